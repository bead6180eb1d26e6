#include "formats/checkpoint/gguf_model.h"

#include "formats/base/printable.h"
#include "formats/checkpoint/gguf_tensors.h"
#include "formats/family/family_parts.h"
#include "formats/json/json_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- architectures ---- */

/* LARGEST: of the counts of all layers. */
enum kind { COUNT, REAL, LARGEST };

/* Metadata behind "ARCHITECTURE." and their names in config.json. */
struct key {
    const char *key, *name;
    enum kind kind;
    bool is_needed;
};

#define MAX_OWN_KEYS 12

/* expert_gating_func: how scores are made of the router's products. */
enum gating { SOFTMAX = 1, SIGMOID = 2, SOFTMAX_CHOSEN = 3 };

struct making;

struct architecture {
    const char *name;       /* general.architecture */
    const char *model_type; /* of config.json */
    /* In place of the common ones of these metadata, or beside them; ended by one without a name. */
    struct key keys[MAX_OWN_KEYS + 1];
    enum gating gating;
    /* Weights of chosen experts are normalised: where the metadata do not say it, or (`always_norm`) whatever
     * they say, which must agree. */
    bool norm_topk, always_norm;
    bool takes_softmax; /* beside `gating`, where the metadata say so or nothing */
    /* config.json's names of what tensors show; NULL where the family has none. */
    const char *first_moe, *last_moe; /* layers with experts */
    const char *n_shared;             /* experts' widths in a shared expert */
    /* Layers have windows by a list: all but each window_step-th where the metadata have none. */
    uint32_t window_step;
    bool keeps_rope_ends; /* YaRN's range is not rounded to whole dimensions, which the metadata never say */
    enum moec_status (*put)(const struct making *m); /* fields of this family alone */
    struct moec_gguf_tensors tensors;
};

static enum moec_status put_afmoe(const struct making *m);
static enum moec_status put_deepseek2(const struct making *m);
static enum moec_status put_granite(const struct making *m);
static enum moec_status put_granite_hybrid(const struct making *m);
static enum moec_status put_lfm2(const struct making *m);
static enum moec_status put_nemotron_h(const struct making *m);
static enum moec_status put_qwen_next(const struct making *m);
static struct moec_tensor_layout layout_deepseek2(const struct moec_config *config, enum moec_role role,
                                                  uint32_t layer);
static struct moec_tensor_layout layout_granite_hybrid(const struct moec_config *config, enum moec_role role,
                                                       uint32_t layer);
static struct moec_tensor_layout layout_lfm2(const struct moec_config *config, enum moec_role role,
                                             uint32_t layer);
static struct moec_tensor_layout layout_nemotron_h(const struct moec_config *config, enum moec_role role,
                                                   uint32_t layer);
static struct moec_tensor_layout layout_qwen_next(const struct moec_config *config, enum moec_role role,
                                                  uint32_t layer);

/* clang-format off */
/* Scales of Granite's files. */
#define GRANITE_SCALES                                                                                       \
    {"embedding_scale", "embedding_multiplier", REAL, false},                                                \
        {"residual_scale", "residual_multiplier", REAL, false},                                              \
        {"logit_scale", "logits_scaling", REAL, false},                                                      \
        {"attention.scale", "attention_multiplier", REAL, false}

#define SPACE_NAMES                                                                                          \
    {MOEC_ROLE_OUTPUT_GATE, true, "blk.{L}.ssm_in.weight"}, {MOEC_ROLE_V, true, "blk.{L}.ssm_in.weight"},    \
    {MOEC_ROLE_K, true, "blk.{L}.ssm_in.weight"}, {MOEC_ROLE_Q, true, "blk.{L}.ssm_in.weight"},              \
    {MOEC_ROLE_DELTA_DECAY, true, "blk.{L}.ssm_in.weight"}, {MOEC_ROLE_O, true, "blk.{L}.ssm_out.weight"},   \
    {MOEC_ROLE_CONVOLUTION, false, "blk.{L}.ssm_conv1d.weight"},                                             \
    {MOEC_ROLE_CONVOLUTION_BIAS, false, "blk.{L}.ssm_conv1d.bias"},                                          \
    {MOEC_ROLE_SPACE_SKIP, false, "blk.{L}.ssm_d"}

static const struct architecture architectures[] = {
    {.name = "olmoe", .model_type = "olmoe", .gating = SOFTMAX},
    {.name = "qwen2moe", .model_type = "qwen2_moe", .gating = SOFTMAX},
    {.name = "qwen3moe", .model_type = "qwen3_moe", .gating = SOFTMAX, .norm_topk = true},
    {.name = "llama", .model_type = "mixtral", .gating = SOFTMAX, .tensors.has_pairs = true, .norm_topk = true,
     .keys = {{"expert_count", "num_local_experts", COUNT, true}}},
    {.name = "deepseek", .model_type = "deepseek", .gating = SOFTMAX, .tensors.has_pairs = true,
     .first_moe = "first_k_dense_replace", .n_shared = "n_shared_experts",
     .keys = {{"expert_count", "n_routed_experts", COUNT, true}}},
    {.name = "deepseek2", .model_type = "deepseek_v3", .gating = SIGMOID, .takes_softmax = true,
     .first_moe = "first_k_dense_replace", .n_shared = "n_shared_experts", .put = put_deepseek2,
     .tensors.layout_of = layout_deepseek2,
     .keys = {{"expert_count", "n_routed_experts", COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", REAL, false},
              {"attention.kv_lora_rank", "kv_lora_rank", COUNT, true},
              {"attention.head_count_kv", "absorbed_key_value_heads", COUNT, false},
              {"attention.key_length", "absorbed_key_length", COUNT, false}},
     .tensors.names = {{MOEC_ROLE_Q, false, "blk.{L}.attn_q_b.weight"},
               {MOEC_ROLE_Q_DOWN, false, "blk.{L}.attn_q_a.weight"},
               {MOEC_ROLE_Q_DOWN_NORM, false, "blk.{L}.attn_q_a_norm.weight"},
               {MOEC_ROLE_KV_DOWN, false, "blk.{L}.attn_kv_a_mqa.weight"},
               {MOEC_ROLE_KV_DOWN_NORM, false, "blk.{L}.attn_kv_a_norm.weight"},
               {MOEC_ROLE_KV_UP, false, "blk.{L}.attn_kv_b.weight"},
               {MOEC_ROLE_K, false, "blk.{L}.attn_k_b.weight"},
               {MOEC_ROLE_V, false, "blk.{L}.attn_v_b.weight"}}},
    {.name = "dots1", .model_type = "dots1", .gating = SIGMOID, .first_moe = "first_k_dense_replace",
     .n_shared = "n_shared_experts", .window_step = 1,
     .keys = {{"expert_count", "n_routed_experts", COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", REAL, false}}},
    {.name = "glm4moe", .model_type = "glm4_moe", .gating = SIGMOID, .first_moe = "first_k_dense_replace",
     .n_shared = "n_shared_experts",
     .tensors.names = {{MOEC_ROLE_MLP_NORM, false, "blk.{L}.post_attention_norm.weight"}},
     .keys = {{"expert_count", "n_routed_experts", COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", REAL, false}}},
    {.name = "ernie4_5-moe", .model_type = "ernie4_5_moe", .gating = SOFTMAX, .tensors.has_pairs = true,
     .norm_topk = true, .always_norm = true, .first_moe = "moe_layer_start_index",
     .last_moe = "moe_layer_end_index", .n_shared = "moe_num_shared_experts",
     .keys = {{"expert_count", "moe_num_experts", COUNT, true}, {"expert_used_count", "moe_k", COUNT, true},
              {"interleave_moe_layer_step", "moe_layer_interval", COUNT, false}}},
    {.name = "hunyuan-moe", .model_type = "hunyuan_v1_moe", .gating = SOFTMAX, .norm_topk = true,
     .always_norm = true, .keys = {{"expert_used_count", "moe_topk", COUNT, true}}},
    {.name = "minimax-m2", .model_type = "minimax_m2", .gating = SIGMOID, .norm_topk = true,
     .always_norm = true, .keys = {{"expert_count", "num_local_experts", COUNT, true}}},
    {.name = "granitemoe", .model_type = "granitemoe", .gating = SOFTMAX, .tensors.has_pairs = true,
     .norm_topk = true, .always_norm = true, .put = put_granite,
     .keys = {{"expert_count", "num_local_experts", COUNT, true},
              GRANITE_SCALES}},
    {.name = "granitehybrid", .model_type = "granitemoehybrid", .gating = SOFTMAX, .norm_topk = true,
     .always_norm = true, .put = put_granite_hybrid, .tensors.layout_of = layout_granite_hybrid,
     .keys = {{"expert_count", "num_local_experts", COUNT, true},
              GRANITE_SCALES,
              {"attention.head_count_kv", "num_key_value_heads", LARGEST, true},
              {"ssm.conv_kernel", "mamba_d_conv", COUNT, true},
              {"ssm.state_size", "mamba_d_state", COUNT, true},
              {"ssm.group_count", "mamba_n_groups", COUNT, true},
              {"ssm.time_step_rank", "mamba_n_heads", COUNT, true}},
     .tensors.names = {SPACE_NAMES}},
    {.name = "nemotron_h_moe", .model_type = "nemotron_h", .gating = SIGMOID, .norm_topk = true,
     .put = put_nemotron_h, .tensors.layout_of = layout_nemotron_h,
     .keys = {{"expert_count", "n_routed_experts", COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", REAL, false},
              {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", COUNT, true},
              {"attention.head_count_kv", "num_key_value_heads", LARGEST, true},
              {"feed_forward_length", "widest_feed_forward", LARGEST, false},
              {"moe_latent_size", "moe_latent_size", COUNT, false},
              {"attention.layer_norm_epsilon", "layer_norm_epsilon", REAL, false},
              {"attention.layer_norm_rms_epsilon", "rms_norm_eps", REAL, false},
              {"ssm.conv_kernel", "conv_kernel", COUNT, true},
              {"ssm.state_size", "ssm_state_size", COUNT, true},
              {"ssm.group_count", "n_groups", COUNT, true},
              {"ssm.time_step_rank", "mamba_num_heads", COUNT, true}},
     .tensors.names = {SPACE_NAMES, {MOEC_ROLE_MLP_NORM, false, "blk.{L}.attn_norm.weight"}}},
    {.name = "exaone-moe", .model_type = "exaone_moe", .gating = SIGMOID,
     .first_moe = "first_k_dense_replace", .n_shared = "num_shared_experts", .window_step = 4,
     .keys = {{"expert_weights_scale", "routed_scaling_factor", REAL, false}}},
    {.name = "afmoe", .model_type = "afmoe", .gating = SIGMOID, .always_norm = true, .norm_topk = true,
     .first_moe = "num_dense_layers", .n_shared = "num_shared_experts", .window_step = 4, .put = put_afmoe,
     .keys = {{"expert_weights_scale", "route_scale", REAL, false}}},
    {.name = "lfm2moe", .model_type = "lfm2_moe", .gating = SIGMOID, .norm_topk = true, .always_norm = true,
     .first_moe = "num_dense_layers", .put = put_lfm2, .tensors.layout_of = layout_lfm2,
     .keys = {{"attention.head_count_kv", "num_key_value_heads", LARGEST, true},
              {"shortconv.l_cache", "conv_L_cache", COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", REAL, false}},
     .tensors.names = {{MOEC_ROLE_FINAL_NORM, false, "token_embd_norm.weight"},
               {MOEC_ROLE_CONVOLUTION, false, "blk.{L}.shortconv.conv.weight"},
               {MOEC_ROLE_INPUT_GATE, false, "blk.{L}.shortconv.in_proj.weight"},
               {MOEC_ROLE_OUTPUT_GATE, false, "blk.{L}.shortconv.in_proj.weight"},
               {MOEC_ROLE_V, true, "blk.{L}.shortconv.in_proj.weight"},
               {MOEC_ROLE_O, true, "blk.{L}.shortconv.out_proj.weight"}}},
    {.name = "gpt-oss", .model_type = "gpt_oss", .gating = SOFTMAX_CHOSEN, .norm_topk = true,
     .always_norm = true, .window_step = 2, .keeps_rope_ends = true,
     .keys = {{"expert_count", "num_local_experts", COUNT, true},
              {"expert_feed_forward_length", "intermediate_size", COUNT, true},
              {"feed_forward_length", "dense_intermediate_size", COUNT, false}},
     .tensors.names = {{MOEC_ROLE_MLP_NORM, false, "blk.{L}.post_attention_norm.weight"}}},
    {.name = "qwen3next", .model_type = "qwen3_next", .gating = SOFTMAX, .norm_topk = true,
     .put = put_qwen_next, .tensors.layout_of = layout_qwen_next,
     .keys = {{"ssm.conv_kernel", "linear_conv_kernel_dim", COUNT, true},
              {"ssm.state_size", "linear_key_head_dim", COUNT, true},
              {"ssm.group_count", "linear_num_key_heads", COUNT, true},
              {"ssm.time_step_rank", "linear_num_value_heads", COUNT, true},
              {"full_attention_interval", "full_attention_interval", COUNT, false}},
     .tensors.names = {{MOEC_ROLE_MLP_NORM, false, "blk.{L}.post_attention_norm.weight"},
               {MOEC_ROLE_OUTPUT_GATE, false, "blk.{L}.attn_q.weight"},
               {MOEC_ROLE_OUTPUT_GATE, true, "blk.{L}.attn_gate.weight"},
               {MOEC_ROLE_Q, true, "blk.{L}.attn_qkv.weight"},
               {MOEC_ROLE_K, true, "blk.{L}.attn_qkv.weight"},
               {MOEC_ROLE_V, true, "blk.{L}.attn_qkv.weight"},
               {MOEC_ROLE_O, true, "blk.{L}.ssm_out.weight"},
               {MOEC_ROLE_CONVOLUTION, false, "blk.{L}.ssm_conv1d.weight"}}},
};
/* clang-format on */
#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

static enum moec_status find_architecture(const struct moec_gguf *gguf, const struct architecture **found,
                                          struct moec_error *err)
{
    const struct moec_gguf_value *value = moec_gguf_find(gguf, "general.architecture");
    struct moec_gguf_text text = {0};
    char known[512] = "";
    if (value == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has no 'general.architecture'", gguf->file.path);
    MOEC_TRY(moec_gguf_as_text(gguf, value, &text, err));
    for (size_t i = 0; i < N_ARCHITECTURES; i++) {
        const char *name = architectures[i].name;
        if (text.n_bytes == strlen(name) && memcmp(text.bytes, name, text.n_bytes) == 0) {
            *found = &architectures[i];
            return MOEC_OK;
        }
        const size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s'%s'", i == 0 ? "" : ", ", name);
    }
    char shown[64];
    (void)moec_printable(text.bytes, text.n_bytes, false, shown, sizeof shown);
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "'%s' has 'general.architecture' '%s', architectures known: %s", gguf->file.path, shown,
                     known);
}

const struct moec_gguf_tensors *moec_gguf_tensors_of(const struct moec_gguf *gguf)
{
    const struct architecture *architecture = NULL;
    return find_architecture(gguf, &architecture, NULL) == MOEC_OK ? &architecture->tensors : NULL;
}

/* ---- metadata ---- */

static const struct key keys[] = {
    {"context_length", "max_position_embeddings", COUNT, true},
    {"embedding_length", "hidden_size", COUNT, true},
    {"feed_forward_length", "intermediate_size", COUNT, false},
    {"attention.head_count", "num_attention_heads", COUNT, true},
    {"attention.head_count_kv", "num_key_value_heads", COUNT, false},
    {"attention.key_length", "head_dim", COUNT, false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", REAL, true},
    {"attention.sliding_window", "sliding_window", COUNT, false},
    {"attention.clamp_kqv", "clip_qkv", REAL, false},
    {"expert_count", "num_experts", COUNT, true},
    {"expert_used_count", "num_experts_per_tok", COUNT, true},
    {"expert_feed_forward_length", "moe_intermediate_size", COUNT, false},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", COUNT, false},
    {"expert_group_count", "n_group", COUNT, false},
    {"expert_group_used_count", "topk_group", COUNT, false},
};
#define N_KEYS (sizeof keys / sizeof *keys)

/* What config.json is made from. */
struct making {
    const struct moec_tensor_source *source;
    const struct moec_gguf *gguf;
    const struct architecture *architecture;
    struct moec_json_out *root;
    uint64_t n_layer;
    struct moec_error *err;
};

static const struct moec_gguf_value *find_key(const struct making *m, const char *key)
{
    char name[MOEC_GGUF_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.%s", m->architecture->name, key);
    return moec_gguf_find(m->gguf, name);
}

/* Metadata hold F32 where config.json has a decimal: the shortest that gives the same F32 is what was
 * written. */
static double shortest(double value)
{
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtof(text, NULL) == (float)value)
            return strtod(text, NULL);
    }
    return value;
}

static enum moec_status find_largest(const struct making *m, const struct moec_gguf_value *value,
                                     uint64_t *largest)
{
    MOEC_TRY(moec_gguf_expect_array(m->gguf, value, MOEC_GGUF_I32, value->n_items, m->err));
    *largest = 0;
    for (uint64_t i = 0; i < value->n_items; i++) {
        const double number = moec_gguf_number(value, i);
        *largest = number > (double)*largest ? (uint64_t)number : *largest;
    }
    return MOEC_OK;
}

static enum moec_status put_key(const struct making *m, const struct key *key)
{
    const struct moec_gguf_value *value = find_key(m, key->key);
    uint64_t count = 0;
    double real = 0;
    if (value == NULL && key->is_needed)
        return moec_fail(m->err, MOEC_ERR_FORMAT, "'%s' has no '%s.%s', which models with experts need",
                         m->gguf->file.path, m->architecture->name, key->key);
    if (value == NULL)
        return MOEC_OK;
    switch (key->kind) {
    case LARGEST:
        if (value->type == MOEC_GGUF_ARRAY) {
            MOEC_TRY(find_largest(m, value, &count));
            moec_json_out_u64(m->root, key->name, count);
            break;
        }
        /* fall through */
    case COUNT:
        MOEC_TRY(moec_gguf_as_u64(m->gguf, value, &count, m->err));
        moec_json_out_u64(m->root, key->name, count);
        break;
    case REAL:
        MOEC_TRY(moec_gguf_as_double(m->gguf, value, &real, m->err));
        moec_json_out_double(m->root, key->name, value->type == MOEC_GGUF_F32 ? shortest(real) : real);
        break;
    }
    return MOEC_OK;
}

static const struct key *own_key(const struct architecture *architecture, const char *key)
{
    for (const struct key *own = architecture->keys; own->key != NULL; own++)
        if (strcmp(own->key, key) == 0)
            return own;
    return NULL;
}

static enum moec_status put_keys(const struct making *m)
{
    for (size_t i = 0; i < N_KEYS; i++)
        if (own_key(m->architecture, keys[i].key) == NULL)
            MOEC_TRY(put_key(m, &keys[i]));
    for (const struct key *own = m->architecture->keys; own->key != NULL; own++)
        MOEC_TRY(put_key(m, own));
    return MOEC_OK;
}

/* Blocks for multi-token prediction count in block_count, after the model's layers. */
static enum moec_status count_layers(struct making *m)
{
    static const struct key block_count = {"block_count", NULL, COUNT, true};
    const struct moec_gguf_value *blocks = find_key(m, block_count.key),
                                 *extra = find_key(m, "nextn_predict_layers");
    uint64_t n_extra = 0;
    if (blocks == NULL)
        return put_key(m, &block_count);
    MOEC_TRY(moec_gguf_as_u64(m->gguf, blocks, &m->n_layer, m->err));
    if (extra != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, extra, &n_extra, m->err));
    if (n_extra >= m->n_layer)
        return moec_fail(m->err, MOEC_ERR_FORMAT,
                         "'%s' has %" PRIu64 " blocks ('%s.block_count') of which %" PRIu64
                         " predict further tokens, expected fewer",
                         m->gguf->file.path, m->n_layer, m->architecture->name, n_extra);
    m->n_layer -= n_extra;
    moec_json_out_u64(m->root, "num_hidden_layers", m->n_layer);
    return MOEC_OK;
}

/* The router, which an architecture has of one kind. */
static enum moec_status put_router(const struct making *m)
{
    static const char *const names[] = {
        [SOFTMAX] = "softmax", [SIGMOID] = "sigmoid", [SOFTMAX_CHOSEN] = "softmax of the chosen"};
    const struct architecture *a = m->architecture;
    const struct moec_gguf_value *norm = find_key(m, "expert_weights_norm"),
                                 *gating = find_key(m, "expert_gating_func"),
                                 *scale = find_key(m, "expert_weights_scale");
    bool norm_topk = a->norm_topk;
    uint64_t kind = a->gating;
    double factor = 1;
    if (norm != NULL)
        MOEC_TRY(moec_gguf_as_bool(m->gguf, norm, &norm_topk, m->err));
    if (a->always_norm && !norm_topk)
        return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                         "'%s' has '%s.expert_weights_norm' false, only true is supported for this "
                         "architecture",
                         m->gguf->file.path, a->name);
    moec_json_out_bool(m->root, "norm_topk_prob", norm_topk);
    if (gating != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, gating, &kind, m->err));
    if (kind != a->gating && !(a->takes_softmax && kind == SOFTMAX))
        return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                         "'%s' has '%s.expert_gating_func' %" PRIu64
                         ", only %d (%s) is supported for this architecture",
                         m->gguf->file.path, a->name, kind, a->gating, names[a->gating]);
    if (scale != NULL)
        MOEC_TRY(moec_gguf_as_double(m->gguf, scale, &factor, m->err));
    /* 0 is what writers without a scale leave there. */
    if (factor != 1 && factor != 0 && own_key(a, "expert_weights_scale") == NULL)
        return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                         "'%s' has '%s.expert_weights_scale' %g, only 1 is supported for this architecture",
                         m->gguf->file.path, a->name, factor);
    return MOEC_OK;
}

/* ---- rotation ---- */

/* The rotated part of a head. */
static enum moec_status put_rotated(const struct making *m)
{
    const struct moec_gguf_value *dims = find_key(m, "rope.dimension_count"),
                                 *head = find_key(m, "attention.key_length"),
                                 *width = find_key(m, "embedding_length"),
                                 *heads = find_key(m, "attention.head_count");
    uint64_t n_rotated = 0, n_head = 0, n_heads = 0;
    if (dims == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_as_u64(m->gguf, dims, &n_rotated, m->err));
    MOEC_TRY(moec_gguf_as_u64(m->gguf, head != NULL ? head : width, &n_head, m->err));
    MOEC_TRY(moec_gguf_as_u64(m->gguf, heads, &n_heads, m->err));
    if (head == NULL && n_heads > 0)
        n_head /= n_heads;
    /* A little more than the quotient, whose product with the head is rounded down. */
    if (n_head > 0 && n_rotated < n_head)
        moec_json_out_double(m->root, "partial_rotary_factor", ((double)n_rotated + 1e-6) / (double)n_head);
    return MOEC_OK;
}

/* DeepSeek's 'mscale_all_dim', a tenth of which the file has; llama.cpp takes 'mscale' to be the same. */
static enum moec_status put_mscale(const struct making *m)
{
    const struct moec_gguf_value *factor = find_key(m, "rope.scaling.yarn_log_multiplier");
    double tenth = 0;
    if (factor == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_as_double(m->gguf, factor, &tenth, m->err));
    moec_json_out_double(m->root, "mscale", shortest((float)(10 * shortest(tenth))));
    moec_json_out_double(m->root, "mscale_all_dim", shortest((float)(10 * shortest(tenth))));
    return MOEC_OK;
}

static enum moec_status put_scaling(const struct making *m, struct moec_gguf_text type)
{
    static const struct key yarn[] = {
        {"rope.scaling.factor", "factor", REAL, false},
        {"rope.scaling.original_context_length", "original_max_position_embeddings", COUNT, false},
        {"rope.scaling.yarn_beta_fast", "beta_fast", REAL, false},
        {"rope.scaling.yarn_beta_slow", "beta_slow", REAL, false},
        {"rope.scaling.yarn_attn_factor", "attention_factor", REAL, false},
    };
    struct making inner = *m;
    enum moec_status status = MOEC_OK;
    inner.root = moec_json_out_object();
    moec_json_out_string_n(inner.root, "rope_type", type.bytes, type.n_bytes);
    for (size_t i = 0; i < sizeof yarn / sizeof *yarn && status == MOEC_OK; i++)
        status = put_key(&inner, &yarn[i]);
    if (status == MOEC_OK)
        status = put_mscale(&inner);
    if (m->architecture->keeps_rope_ends)
        moec_json_out_bool(inner.root, "truncate", false);
    moec_json_out_node(m->root, "rope_scaling", inner.root);
    return status;
}

/* ggml's base is 10000 where none is given, and a factor without a type is a linear one; the family judges
 * the type. */
static enum moec_status put_rope(const struct making *m)
{
    const struct moec_gguf_value *base = find_key(m, "rope.freq_base"),
                                 *type = find_key(m, "rope.scaling.type"),
                                 *factor = find_key(m, "rope.scaling.factor");
    struct moec_tensor factors;
    struct moec_gguf_text text = {"none", 4};
    double theta = 10000, scale = 1;
    if (base != NULL)
        MOEC_TRY(moec_gguf_as_double(m->gguf, base, &theta, m->err));
    moec_json_out_double(m->root, "rope_theta", shortest(theta));
    MOEC_TRY(put_rotated(m));
    if (factor != NULL)
        MOEC_TRY(moec_gguf_as_double(m->gguf, factor, &scale, m->err));
    if (scale != 1 && scale != 0)
        text = (struct moec_gguf_text){"linear", 6};
    if (type != NULL)
        MOEC_TRY(moec_gguf_as_text(m->gguf, type, &text, m->err));
    if (m->source->find(m->source, "rope_freqs.weight", &factors))
        text = (struct moec_gguf_text){"llama3", 6};
    if (m->source->find(m->source, "rope_factors_long.weight", &factors))
        text = (struct moec_gguf_text){"longrope", 8};
    if (text.n_bytes == 4 && memcmp(text.bytes, "none", 4) == 0)
        return MOEC_OK;
    return put_scaling(m, text);
}

/* `attention.sliding_window_pattern`: which layers have a window, or that each so many-th has none. */
static enum moec_status put_windows(const struct making *m)
{
    const struct moec_gguf_value *window = find_key(m, "attention.sliding_window"),
                                 *pattern = find_key(m, "attention.sliding_window_pattern");
    const bool is_list = pattern != NULL && pattern->type == MOEC_GGUF_ARRAY;
    uint64_t n_window = 0, step = m->architecture->window_step;
    if (window != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, window, &n_window, m->err));
    if (is_list)
        MOEC_TRY(moec_gguf_expect_array(m->gguf, pattern, MOEC_GGUF_BOOL, m->n_layer, m->err));
    else if (pattern != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, pattern, &step, m->err));
    if (n_window == 0)
        moec_json_out_null(m->root, "sliding_window");
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        const bool has_window =
            is_list ? moec_gguf_number(pattern, layer) != 0 : step == 0 || layer % step + 1 < step;
        moec_json_out_string(types, NULL,
                             n_window > 0 && has_window ? "sliding_attention" : "full_attention");
    }
    moec_json_out_node(m->root, "layer_types", types);
    return MOEC_OK;
}

/* ---- what is left to say ---- */

/* Ids that end a text: of the text, of a turn, of a message. */
static enum moec_status put_ends(const struct making *m)
{
    static const char *const names[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    uint64_t ids[3];
    size_t n = 0;
    struct moec_json_out *list = moec_json_out_array();
    for (size_t i = 0; i < 3; i++) {
        const struct moec_gguf_value *value = moec_gguf_find(m->gguf, names[i]);
        enum moec_status status = value == NULL ? MOEC_OK : moec_gguf_as_u64(m->gguf, value, &ids[n], m->err);
        if (status != MOEC_OK) {
            moec_json_out_free(list);
            return status;
        }
        bool is_new = value != NULL;
        for (size_t j = 0; j < n && is_new; j++)
            is_new = ids[j] != ids[n];
        if (is_new)
            moec_json_out_u64(list, NULL, ids[n++]);
    }
    moec_json_out_node(m->root, "eos_token_id", list);
    return MOEC_OK;
}

static bool find_in_layer(const struct making *m, uint64_t layer, const char *name,
                          struct moec_tensor *tensor)
{
    char full[64];
    (void)snprintf(full, sizeof full, "blk.%" PRIu64 ".%s", layer, name);
    return m->source->find(m->source, full, tensor);
}

/* Layers with a plain MLP, and the width of a shared expert in experts. */
static enum moec_status put_layers(const struct making *m)
{
    const struct architecture *a = m->architecture;
    const struct moec_gguf_value *width = find_key(m, "expert_feed_forward_length");
    struct moec_tensor tensor;
    uint64_t first = m->n_layer, last = 0, n_ff = 0;
    struct moec_json_out *plain = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        if (!find_in_layer(m, layer, "ffn_gate_inp.weight", &tensor)) {
            moec_json_out_u64(plain, NULL, layer);
            continue;
        }
        first = first == m->n_layer ? layer : first;
        last = layer;
    }
    moec_json_out_node(m->root, "mlp_only_layers", plain);
    if (a->first_moe != NULL)
        moec_json_out_u64(m->root, a->first_moe, first);
    if (a->last_moe != NULL)
        moec_json_out_u64(m->root, a->last_moe, last);
    if (a->n_shared == NULL)
        return MOEC_OK;
    if (width != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, width, &n_ff, m->err));
    const bool has_shared = find_in_layer(m, last, "ffn_up_shexp.weight", &tensor) && n_ff > 0;
    moec_json_out_u64(m->root, a->n_shared, has_shared ? tensor.shape[0] / n_ff : 0);
    return MOEC_OK;
}

/* What shows in the tensors alone: the vocabulary, a tied head, biases and norms of attention. */
static enum moec_status put_tensors(const struct making *m)
{
    struct moec_tensor tensor;
    if (!m->source->find(m->source, "token_embd.weight", &tensor) || tensor.n_dims != 2)
        return moec_fail(m->err, MOEC_ERR_FORMAT, "'%s' has no tensor 'token_embd.weight' of two dimensions",
                         m->gguf->file.path);
    moec_json_out_u64(m->root, "vocab_size", tensor.shape[0]);
    moec_json_out_bool(m->root, "tie_word_embeddings", !m->source->find(m->source, "output.weight", &tensor));
    const bool has_bias =
        find_in_layer(m, 0, "attn_q.bias", &tensor) || find_in_layer(m, 0, "attn_qkv.bias", &tensor);
    moec_json_out_bool(m->root, "qkv_bias", has_bias);
    moec_json_out_bool(m->root, "attention_bias", has_bias);
    moec_json_out_bool(m->root, "use_qk_norm", find_in_layer(m, 0, "attn_q_norm.weight", &tensor));
    return put_layers(m);
}

/* ---- families ---- */

/* llama.cpp scales AFMoE's embeddings without asking. */
static enum moec_status put_afmoe(const struct making *m)
{
    moec_json_out_bool(m->root, "mup_enabled", true);
    return MOEC_OK;
}

static enum moec_status find_count(const struct making *m, const char *key, uint64_t *count)
{
    const struct moec_gguf_value *value = find_key(m, key);
    *count = 0;
    return value == NULL ? MOEC_OK : moec_gguf_as_u64(m->gguf, value, count, m->err);
}

/* One architecture for DeepSeek-V2, V3 and what follows them (GLM-4 MoE Lite): scores are sigmoids where the
 * file says so, or where it does not and the choice has a bias. Since April 2025 converters say the
 * dimensions of absorbed heads, and beside them ("_mla") those of the model. */
static enum moec_status put_deepseek2(const struct making *m)
{
    const bool is_absorbed = find_key(m, "attention.key_length_mla") != NULL;
    const struct moec_gguf_value *gating = find_key(m, "expert_gating_func");
    struct moec_tensor bias;
    uint64_t n_head = 0, n_rotated = 0, n_value = 0, n_latent = 0, n_group = 0;
    uint64_t kind = find_in_layer(m, m->n_layer - 1, "exp_probs_b.bias", &bias) ? SIGMOID : SOFTMAX;
    MOEC_TRY(find_count(m, is_absorbed ? "attention.key_length_mla" : "attention.key_length", &n_head));
    MOEC_TRY(find_count(m, is_absorbed ? "attention.value_length_mla" : "attention.value_length", &n_value));
    MOEC_TRY(find_count(m, "rope.dimension_count", &n_rotated));
    MOEC_TRY(find_count(m, "attention.q_lora_rank", &n_latent));
    MOEC_TRY(find_count(m, "expert_group_count", &n_group));
    if (gating != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, gating, &kind, m->err));
    if (n_rotated == 0 || n_rotated >= n_head)
        return moec_fail(m->err, MOEC_ERR_FORMAT,
                         "'%s' says %" PRIu64 " rotated dimensions of heads with %" PRIu64
                         " ('deepseek2.rope.dimension_count'), expected 1 or more, and fewer",
                         m->gguf->file.path, n_rotated, n_head);
    moec_json_out_u64(m->root, "qk_rope_head_dim", n_rotated);
    moec_json_out_u64(m->root, "qk_nope_head_dim", n_head - n_rotated);
    moec_json_out_u64(m->root, "v_head_dim", n_value);
    if (n_latent > 0)
        moec_json_out_u64(m->root, "q_lora_rank", n_latent);
    else
        moec_json_out_null(m->root, "q_lora_rank");
    if (n_group == 0) {
        moec_json_out_u64(m->root, "n_group", 1);
        moec_json_out_u64(m->root, "topk_group", 1);
    }
    if (kind != SOFTMAX)
        return MOEC_OK;
    moec_json_out_string(m->root, "model_type", "deepseek_v2");
    moec_json_out_string(m->root, "topk_method", n_group > 1 ? "group_limited_greedy" : "greedy");
    return MOEC_OK;
}

/* As published: rotated coordinates side by side. */
static struct moec_tensor_layout layout_deepseek2(const struct moec_config *config, enum moec_role role,
                                                  uint32_t layer)
{
    (void)config;
    (void)layer;
    return (struct moec_tensor_layout){.has_pairs = role == MOEC_ROLE_Q || role == MOEC_ROLE_KV_DOWN};
}

/* One architecture for models without and with a shared expert. */
static enum moec_status put_granite(const struct making *m)
{
    static const struct key shared = {"expert_shared_feed_forward_length", "shared_intermediate_size", COUNT,
                                      false};
    if (find_key(m, shared.key) != NULL)
        moec_json_out_string(m->root, "model_type", "granitemoeshared");
    return put_key(m, &shared);
}

/* Layers without keys and values are state spaces. RoPE is there if the file says that it was trained. */
static enum moec_status put_granite_hybrid(const struct making *m)
{
    static const struct key shared = {"expert_shared_feed_forward_length", "shared_intermediate_size", COUNT,
                                      false};
    const struct moec_gguf_value *kv = find_key(m, "attention.head_count_kv"),
                                 *inner = find_key(m, "ssm.inner_size"),
                                 *heads = find_key(m, "ssm.time_step_rank"),
                                 *width = find_key(m, "embedding_length"),
                                 *rotates = find_key(m, "rope.scaling.finetuned");
    uint64_t n_inner = 0, n_head = 0, n_embd = 0;
    bool has_rope = false;
    if (inner == NULL)
        return moec_fail(m->err, MOEC_ERR_FORMAT, "'%s' has no 'granitehybrid.ssm.inner_size'",
                         m->gguf->file.path);
    MOEC_TRY(moec_gguf_as_u64(m->gguf, inner, &n_inner, m->err));
    MOEC_TRY(moec_gguf_as_u64(m->gguf, heads, &n_head, m->err));
    MOEC_TRY(moec_gguf_as_u64(m->gguf, width, &n_embd, m->err));
    if (rotates != NULL)
        MOEC_TRY(moec_gguf_as_bool(m->gguf, rotates, &has_rope, m->err));
    moec_json_out_u64(m->root, "mamba_d_head", n_head > 0 ? n_inner / n_head : 0);
    moec_json_out_u64(m->root, "mamba_expand", n_embd > 0 ? n_inner / n_embd : 0);
    moec_json_out_string(m->root, "position_embedding_type", has_rope ? "rope" : "nope");
    MOEC_TRY(put_key(m, &shared));
    if (kv->type != MOEC_GGUF_ARRAY)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_expect_array(m->gguf, kv, MOEC_GGUF_I32, m->n_layer, m->err));
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++)
        moec_json_out_string(types, NULL, moec_gguf_number(kv, layer) == 0 ? "mamba" : "attention");
    moec_json_out_node(m->root, "layer_types", types);
    return MOEC_OK;
}

/* The converter puts the rotated coordinates of attention into pairs, takes gate and up of the shared expert
 * apart, gives vectors of the state space a second dimension, and stores what decays are computed from as
 * -exp. */
static struct moec_tensor_layout layout_granite_hybrid(const struct moec_config *config, enum moec_role role,
                                                       uint32_t layer)
{
    const bool is_running =
        layer != MOEC_LAYER_NONE && moec_layer_is_running(moec_config_layer(config, layer));
    struct moec_tensor_layout layout = {0};
    if (is_running && role != MOEC_ROLE_SHARED_GATE && role != MOEC_ROLE_SHARED_UP)
        layout = moec_family_granitemoehybrid.layout_of(config, role, layer);
    layout.is_convolution = false;
    layout.has_pairs = !is_running && (role == MOEC_ROLE_Q || role == MOEC_ROLE_K);
    layout.is_flat =
        role == MOEC_ROLE_DELTA_DECAY_LOG || role == MOEC_ROLE_SPACE_SKIP || role == MOEC_ROLE_DELTA_NORM;
    layout.takes_log = role == MOEC_ROLE_DELTA_DECAY_LOG;
    return layout;
}

/* What a layer is shows in its tensors. */
static enum moec_status put_nemotron_h(const struct making *m)
{
    char letters[MOEC_MAX_LAYERS + 1] = "";
    uint64_t n_inner = 0, n_head = 0;
    struct moec_tensor tensor;
    MOEC_TRY(find_count(m, "ssm.inner_size", &n_inner));
    MOEC_TRY(find_count(m, "ssm.time_step_rank", &n_head));
    moec_json_out_u64(m->root, "mamba_head_dim", n_head > 0 ? n_inner / n_head : 0);
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        letters[layer] = find_in_layer(m, layer, "ssm_in.weight", &tensor)         ? 'M'
                         : find_in_layer(m, layer, "attn_output.weight", &tensor)  ? '*'
                         : find_in_layer(m, layer, "ffn_gate_inp.weight", &tensor) ? 'E'
                                                                                   : '-';
        if (letters[layer] == '-' && find_in_layer(m, layer, "ffn_up.weight", &tensor))
            moec_json_out_u64(m->root, "intermediate_size", tensor.shape[0]);
    }
    moec_json_out_string(m->root, "hybrid_override_pattern", letters);
    return MOEC_OK;
}

/* As in Granite's files: coordinates of attention are put into pairs, although nothing rotates them. */
static struct moec_tensor_layout layout_nemotron_h(const struct moec_config *config, enum moec_role role,
                                                   uint32_t layer)
{
    const bool is_running =
        layer != MOEC_LAYER_NONE && moec_layer_is_running(moec_config_layer(config, layer));
    struct moec_tensor_layout layout = moec_family_space_layout(config, role, layer);
    layout.is_convolution = false;
    layout.has_pairs = !is_running && (role == MOEC_ROLE_Q || role == MOEC_ROLE_K);
    layout.is_flat =
        role == MOEC_ROLE_DELTA_DECAY_LOG || role == MOEC_ROLE_SPACE_SKIP || role == MOEC_ROLE_DELTA_NORM;
    layout.takes_log = role == MOEC_ROLE_DELTA_DECAY_LOG;
    return layout;
}

/* Layers without keys and values are convolutions. */
static enum moec_status put_lfm2(const struct making *m)
{
    const struct moec_gguf_value *heads = find_key(m, "attention.head_count_kv");
    const bool is_list = heads->type == MOEC_GGUF_ARRAY;
    struct moec_tensor tensor;
    bool has_bias = false;
    if (is_list)
        MOEC_TRY(moec_gguf_expect_array(m->gguf, heads, MOEC_GGUF_I32, m->n_layer, m->err));
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        moec_json_out_string(types, NULL,
                             is_list && moec_gguf_number(heads, layer) == 0 ? "conv" : "full_attention");
        has_bias = has_bias || find_in_layer(m, layer, "exp_probs_b.bias", &tensor);
    }
    moec_json_out_node(m->root, "layer_types", types);
    moec_json_out_bool(m->root, "use_expert_bias", has_bias);
    return MOEC_OK;
}

/* The converter leaves out the convolution's dimension of 1. */
static struct moec_tensor_layout layout_lfm2(const struct moec_config *config, enum moec_role role,
                                             uint32_t layer)
{
    struct moec_tensor_layout layout = moec_family_lfm2_moe.layout_of(config, role, layer);
    layout.is_convolution = false;
    return layout;
}

/* Which layers have a running state is a list, or all but each so many-th. */
static enum moec_status put_qwen_next(const struct making *m)
{
    const struct moec_gguf_value *running = find_key(m, "attention.recurrent_layers"),
                                 *inner = find_key(m, "ssm.inner_size"),
                                 *heads = find_key(m, "ssm.time_step_rank");
    uint64_t n_inner = 0, n_head = 0;
    if (inner == NULL)
        return moec_fail(m->err, MOEC_ERR_FORMAT, "'%s' has no 'qwen3next.ssm.inner_size'",
                         m->gguf->file.path);
    MOEC_TRY(moec_gguf_as_u64(m->gguf, inner, &n_inner, m->err));
    MOEC_TRY(moec_gguf_as_u64(m->gguf, heads, &n_head, m->err));
    moec_json_out_u64(m->root, "linear_value_head_dim", n_head > 0 ? n_inner / n_head : 0);
    if (running == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_expect_array(m->gguf, running, MOEC_GGUF_BOOL, running->n_items, m->err));
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < running->n_items; layer++)
        moec_json_out_string(types, NULL,
                             moec_gguf_number(running, layer) != 0 ? "linear_attention" : "full_attention");
    moec_json_out_node(m->root, "layer_types", types);
    return MOEC_OK;
}

/* The converter puts queries, keys and values of all heads one after the other, as Qwen3.5 has them, gates in
 * a tensor of their own, adds the 1 of norms, and stores what decays are computed from as -exp. */
static struct moec_tensor_layout layout_qwen_next(const struct moec_config *config, enum moec_role role,
                                                  uint32_t layer)
{
    const bool is_running =
        layer != MOEC_LAYER_NONE && moec_layer_is_running(moec_config_layer(config, layer));
    const bool is_qkv = role == MOEC_ROLE_Q || role == MOEC_ROLE_K || role == MOEC_ROLE_V;
    struct moec_tensor_layout layout = {0};
    if (is_running && is_qkv)
        layout = moec_family_qwen3_5_moe.layout_of(config, role, layer);
    else if (!is_running || role != MOEC_ROLE_OUTPUT_GATE)
        layout = moec_family_qwen3_next.layout_of(config, role, layer);
    layout.is_convolution = layout.adds_one = false;
    layout.takes_log = role == MOEC_ROLE_DELTA_DECAY_LOG;
    return layout;
}

enum moec_status moec_gguf_model_config(const struct moec_tensor_source *source, char **json,
                                        struct moec_error *err)
{
    struct making m = {.source = source, .gguf = moec_gguf_source_header(source), .err = err};
    MOEC_TRY(find_architecture(m.gguf, &m.architecture, err));
    m.root = moec_json_out_object();
    enum moec_status status = MOEC_OK;
    moec_json_out_string(m.root, "model_type", m.architecture->model_type);
    MOEC_TRY_OUT(count_layers(&m));
    MOEC_TRY_OUT(put_keys(&m));
    MOEC_TRY_OUT(put_router(&m));
    MOEC_TRY_OUT(put_rope(&m));
    if (m.architecture->window_step > 0)
        MOEC_TRY_OUT(put_windows(&m));
    MOEC_TRY_OUT(put_ends(&m));
    MOEC_TRY_OUT(put_tensors(&m));
    if (m.architecture->put != NULL)
        MOEC_TRY_OUT(m.architecture->put(&m));
    MOEC_TRY_OUT(moec_json_out_text(m.root, json, err));
out:
    moec_json_out_free(m.root);
    return status;
}
