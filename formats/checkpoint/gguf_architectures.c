/* What llama.cpp's converter leaves out, renames or reorders, by architecture. A `put` function restores
 * fields of config.json from metadata, and where those are silent from the tensors that exist. A `layout`
 * function undoes the converter's changes of a tensor: order of heads, pairs, -exp, the 1 of norms. A family
 * thus sees what the Hugging Face folder has. Nothing here may need the family to know of GGUF. */
#include "formats/checkpoint/gguf_architectures.h"

#include "formats/base/elementary.h"
#include "formats/base/printable.h"
#include "formats/family/family_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* llama.cpp scales AFMoE's embeddings without asking. */
static enum moec_status put_afmoe(const struct moec_gguf_making *m)
{
    moec_json_out_bool(m->root, "mup_enabled", true);
    return MOEC_OK;
}

/* Dimensions of heads and latents. Since April 2025 converters say those of absorbed heads, and beside them
 * ("_mla") those of the model. */
static enum moec_status put_latents(const struct moec_gguf_making *m)
{
    const bool is_absorbed = moec_gguf_making_find(m, "attention.key_length_mla") != NULL;
    uint64_t n_head = 0, n_rotated = 0, n_value = 0, n_latent = 0;
    MOEC_TRY(moec_gguf_making_count(m, is_absorbed ? "attention.key_length_mla" : "attention.key_length",
                                    &n_head));
    MOEC_TRY(moec_gguf_making_count(m, is_absorbed ? "attention.value_length_mla" : "attention.value_length",
                                    &n_value));
    MOEC_TRY(moec_gguf_making_count(m, "rope.dimension_count", &n_rotated));
    MOEC_TRY(moec_gguf_making_count(m, "attention.q_lora_rank", &n_latent));
    if (n_rotated == 0 || n_rotated >= n_head)
        return moec_fail(m->err, MOEC_ERR_FORMAT,
                         "the GGUF file '%s' rotates %" PRIu64 " of the %" PRIu64 " dimensions of a head "
                         "('%s.rope.dimension_count'), expected at least 1, but not all",
                         m->gguf->file.path, n_rotated, n_head, m->architecture->name);
    moec_json_out_u64(m->root, "qk_rope_head_dim", n_rotated);
    moec_json_out_u64(m->root, "qk_nope_head_dim", n_head - n_rotated);
    moec_json_out_u64(m->root, "v_head_dim", n_value);
    moec_json_out_u64_or_null(m->root, "q_lora_rank", n_latent);
    return MOEC_OK;
}

static enum moec_status put_groups(const struct moec_gguf_making *m, uint64_t *n_group)
{
    MOEC_TRY(moec_gguf_making_count(m, "expert_group_count", n_group));
    if (*n_group == 0) {
        moec_json_out_u64(m->root, "n_group", 1);
        moec_json_out_u64(m->root, "topk_group", 1);
    }
    return MOEC_OK;
}

/* By how much queries grow with their position. */
static const struct moec_gguf_key growth = {"attention.temperature_scale", "llama_4_scaling_beta",
                                            MOEC_KEY_REAL, false};

/* One architecture for DeepSeek-V2, V3 and what follows them (GLM-4 MoE Lite), and for Mistral's models that
 * were converted from Mistral's own format: scores are sigmoids where the file says so, or where it does not
 * and the choice has a bias. DeepSeek-V2 never normalises weights, Mistral does. */
static enum moec_status put_deepseek2(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *gating = moec_gguf_making_find(m, "expert_gating_func"),
                                 *norm = moec_gguf_making_find(m, "expert_weights_norm");
    struct moec_tensor bias;
    uint64_t n_group = 0, kind = MOEC_GATING_SOFTMAX;
    bool normalises = false;
    if (moec_gguf_making_has(m, m->n_layer - 1, "exp_probs_b.bias", &bias))
        kind = MOEC_GATING_SIGMOID;
    MOEC_TRY(put_latents(m));
    MOEC_TRY(put_groups(m, &n_group));
    if (gating != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, gating, &kind, m->err));
    if (norm != NULL)
        MOEC_TRY(moec_gguf_as_bool(m->gguf, norm, &normalises, m->err));
    if (kind != MOEC_GATING_SOFTMAX)
        return MOEC_OK;
    moec_json_out_string(m->root, "model_type", normalises ? "mistral4" : "deepseek_v2");
    if (!normalises)
        moec_json_out_string(m->root, "topk_method", n_group > 1 ? "group_limited_greedy" : "greedy");
    return MOEC_OK;
}

static enum moec_status put_growth(const struct moec_gguf_making *m)
{
    return moec_gguf_making_put(m, &growth);
}

static enum moec_status put_mistral4(const struct moec_gguf_making *m)
{
    uint64_t n_group = 0;
    MOEC_TRY(put_latents(m));
    return put_groups(m, &n_group);
}

/* The converter leaves it out of what it makes of a Hugging Face folder: that of the class and of the
 * published models. */
static enum moec_status put_usual_growth(const struct moec_gguf_making *m)
{
    if (moec_gguf_making_find(m, growth.key) == NULL)
        moec_json_out_double(m->root, growth.name, 0.1);
    return put_growth(m);
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
static enum moec_status put_granite(const struct moec_gguf_making *m)
{
    static const struct moec_gguf_key shared = {"expert_shared_feed_forward_length",
                                                "shared_intermediate_size", MOEC_KEY_COUNT, false};
    if (moec_gguf_making_find(m, shared.key) != NULL)
        moec_json_out_string(m->root, "model_type", "granitemoeshared");
    return moec_gguf_making_put(m, &shared);
}

/* Layers without keys and values are state spaces. RoPE is there if the file says that it was trained. */
static enum moec_status put_granite_hybrid(const struct moec_gguf_making *m)
{
    static const struct moec_gguf_key shared = {"expert_shared_feed_forward_length",
                                                "shared_intermediate_size", MOEC_KEY_COUNT, false};
    const struct moec_gguf_value *kv = moec_gguf_making_find(m, "attention.head_count_kv"),
                                 *inner = moec_gguf_making_find(m, "ssm.inner_size"),
                                 *heads = moec_gguf_making_find(m, "ssm.time_step_rank"),
                                 *width = moec_gguf_making_find(m, "embedding_length"),
                                 *rotates = moec_gguf_making_find(m, "rope.scaling.finetuned");
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
    MOEC_TRY(moec_gguf_making_put(m, &shared));
    if (kv->type != MOEC_GGUF_ARRAY)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_expect_array(m->gguf, kv, MOEC_GGUF_I32, m->n_layer, m->err));
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++)
        moec_json_out_string(types, NULL, moec_gguf_number(kv, layer) == 0 ? "mamba" : "attention");
    moec_json_out_node(m->root, "layer_types", types);
    return MOEC_OK;
}

static bool is_running_layer(const struct moec_config *config, uint32_t layer)
{
    return layer != MOEC_LAYER_NONE && moec_layer_is_running(moec_config_layer(config, layer));
}

/* What the converter makes of layers with state spaces and of those beside them: it puts the coordinates of
 * attention into pairs, gives vectors of the state space a second dimension, and stores what decays are
 * computed from as -exp. */
static struct moec_tensor_layout with_spaces(struct moec_tensor_layout layout, bool is_running,
                                             enum moec_role role)
{
    layout.is_convolution = false;
    layout.has_pairs = !is_running && (role == MOEC_ROLE_Q || role == MOEC_ROLE_K);
    layout.is_flat =
        role == MOEC_ROLE_DELTA_DECAY_LOG || role == MOEC_ROLE_SPACE_SKIP || role == MOEC_ROLE_DELTA_NORM;
    layout.takes_log = role == MOEC_ROLE_DELTA_DECAY_LOG;
    return layout;
}

/* It takes gate and up of the shared expert apart, too. */
static struct moec_tensor_layout layout_granite_hybrid(const struct moec_config *config, enum moec_role role,
                                                       uint32_t layer)
{
    const bool is_running = is_running_layer(config, layer);
    struct moec_tensor_layout layout = {0};
    if (is_running && role != MOEC_ROLE_SHARED_GATE && role != MOEC_ROLE_SHARED_UP)
        layout = moec_family_granitemoehybrid.layout_of(config, role, layer);
    return with_spaces(layout, is_running, role);
}

/* What a layer is shows in its tensors. */
static char letter_of_layer(const struct moec_gguf_making *m, uint64_t layer, struct moec_tensor *tensor)
{
    static const struct {
        const char *name, letter;
    } signs[] = {{"ssm_in.weight", 'M'}, {"attn_output.weight", '*'}, {"ffn_gate_inp.weight", 'E'}};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (moec_gguf_making_has(m, layer, signs[i].name, tensor))
            return signs[i].letter;
    return '-';
}

static enum moec_status put_nemotron_h(const struct moec_gguf_making *m)
{
    char letters[MOEC_MAX_LAYERS + 1] = "";
    uint64_t n_inner = 0, n_head = 0;
    struct moec_tensor tensor;
    MOEC_TRY(moec_gguf_making_count(m, "ssm.inner_size", &n_inner));
    MOEC_TRY(moec_gguf_making_count(m, "ssm.time_step_rank", &n_head));
    moec_json_out_u64(m->root, "mamba_head_dim", n_head > 0 ? n_inner / n_head : 0);
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        letters[layer] = letter_of_layer(m, layer, &tensor);
        if (letters[layer] == '-' && moec_gguf_making_has(m, layer, "ffn_up.weight", &tensor))
            moec_json_out_u64(m->root, "intermediate_size", tensor.shape[0]);
    }
    moec_json_out_string(m->root, "hybrid_override_pattern", letters);
    return MOEC_OK;
}

/* Pairs as in Granite's files, although nothing rotates them. */
static struct moec_tensor_layout layout_nemotron_h(const struct moec_config *config, enum moec_role role,
                                                   uint32_t layer)
{
    return with_spaces(moec_family_space_layout(config, role, layer), is_running_layer(config, layer), role);
}

/* Layers without keys and values are convolutions. */
static enum moec_status put_lfm2(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *heads = moec_gguf_making_find(m, "attention.head_count_kv");
    const bool is_list = heads->type == MOEC_GGUF_ARRAY;
    struct moec_tensor tensor;
    bool has_bias = false;
    if (is_list)
        MOEC_TRY(moec_gguf_expect_array(m->gguf, heads, MOEC_GGUF_I32, m->n_layer, m->err));
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        moec_json_out_string(types, NULL,
                             is_list && moec_gguf_number(heads, layer) == 0 ? "conv" : "full_attention");
        has_bias = has_bias || moec_gguf_making_has(m, layer, "exp_probs_b.bias", &tensor);
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
static enum moec_status put_qwen_next(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *running = moec_gguf_making_find(m, "attention.recurrent_layers"),
                                 *inner = moec_gguf_making_find(m, "ssm.inner_size"),
                                 *heads = moec_gguf_making_find(m, "ssm.time_step_rank");
    uint64_t n_inner = 0, n_head = 0;
    if (inner == NULL)
        return moec_fail(m->err, MOEC_ERR_FORMAT, "'%s' has no '%s.ssm.inner_size'", m->gguf->file.path,
                         m->architecture->name);
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
    const bool is_running = is_running_layer(config, layer);
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

/* Where value heads stand that the converter put in turns: the first of each key head, then the second ones.
 * `head`: outputs of one. */
static struct moec_tensor_tiles tiles_of(const struct moec_layer_kind *kind, uint32_t first, uint32_t head)
{
    return (struct moec_tensor_tiles){
        .first = first, .head = head, .n_group = kind->n_kv_head, .n_each = kind->n_head / kind->n_kv_head};
}

/* As Qwen3.5 has them, but for norms and decays, which are as Qwen3-Next's, and the order of value heads. */
static struct moec_tensor_layout layout_qwen_3_5(const struct moec_config *config, enum moec_role role,
                                                 uint32_t layer)
{
    const struct moec_layer_kind *kind = layer == MOEC_LAYER_NONE ? NULL : moec_config_layer(config, layer);
    struct moec_tensor_layout layout = moec_family_qwen3_5_moe.layout_of(config, role, layer);
    layout.is_convolution = layout.adds_one = false;
    layout.takes_log = role == MOEC_ROLE_DELTA_DECAY_LOG;
    if (kind == NULL || !moec_layer_is_running(kind))
        return layout;
    const uint32_t dim = moec_layer_value_dim(kind);
    const bool is_value = role == MOEC_ROLE_V || role == MOEC_ROLE_OUTPUT_GATE || role == MOEC_ROLE_O;
    const bool is_number = role == MOEC_ROLE_DELTA_RATE || role == MOEC_ROLE_DELTA_DECAY ||
                           role == MOEC_ROLE_DELTA_DECAY_LOG || role == MOEC_ROLE_DELTA_DECAY_BIAS;
    if (is_value || is_number)
        layout.tiles = tiles_of(kind, 0, is_value ? dim : 1);
    if (role == MOEC_ROLE_CONVOLUTION)
        layout.tiles = tiles_of(kind, 2 * moec_layer_q_rows(kind), dim);
    layout.tiles.are_inputs = role == MOEC_ROLE_O;
    return layout;
}

/* Layers without keys and values are running ones. How many heads these have shows in their decays. */
static enum moec_status put_kimi(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *heads = moec_gguf_making_find(m, "attention.head_count_kv");
    uint64_t n_chosen = 0, n_group = 0, n_head = 0;
    struct moec_tensor decay;
    MOEC_TRY(put_latents(m));
    MOEC_TRY(moec_gguf_making_count(m, "expert_group_used_count", &n_chosen));
    MOEC_TRY(moec_gguf_making_count(m, "expert_group_count", &n_group));
    if (n_chosen > 1 && n_group == 0)
        return moec_fail(
            m->err, MOEC_ERR_UNSUPPORTED,
            "the GGUF file '%s' chooses experts from %" PRIu64 " groups "
            "('kimi-linear.expert_group_used_count') but does not say how many groups exist: start from "
            "the model's Hugging Face folder, whose config.json has 'num_expert_group'",
            m->gguf->file.path, n_chosen);
    MOEC_TRY(moec_gguf_expect_array(m->gguf, heads, MOEC_GGUF_I32, m->n_layer, m->err));
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        const bool is_running = moec_gguf_number(heads, layer) == 0;
        moec_json_out_string(types, NULL, is_running ? "linear_attention" : "full_attention");
        if (is_running && moec_gguf_making_has(m, layer, "ssm_beta.weight", &decay))
            n_head = decay.shape[0];
    }
    moec_json_out_node(m->root, "layer_types", types);
    moec_json_out_u64(m->root, "linear_num_heads", n_head);
    return MOEC_OK;
}

/* The converter writes four dimensions here and there, and decays as -exp. */
static struct moec_tensor_layout layout_kimi(const struct moec_config *config, enum moec_role role,
                                             uint32_t layer)
{
    (void)config;
    (void)layer;
    const bool is_log = role == MOEC_ROLE_DELTA_DECAY_LOG;
    return (struct moec_tensor_layout){.is_flat = is_log || role == MOEC_ROLE_Q_CONVOLUTION ||
                                                  role == MOEC_ROLE_K_CONVOLUTION ||
                                                  role == MOEC_ROLE_V_CONVOLUTION,
                                       .takes_log = is_log};
}

/* Layers with and without a window have heads of their own sizes, and keys and values of their own numbers.
 */
static enum moec_status put_gemma4_heads(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *kv = moec_gguf_making_find(m, "attention.head_count_kv"),
                                 *windows = moec_gguf_making_find(m, "attention.sliding_window_pattern");
    struct moec_tensor values;
    bool keys_are_values = false;
    if (windows == NULL)
        return moec_fail(m->err, MOEC_ERR_FORMAT, "'%s' has no 'gemma4.attention.sliding_window_pattern'",
                         m->gguf->file.path);
    MOEC_TRY(moec_gguf_expect_array(m->gguf, windows, MOEC_GGUF_BOOL, m->n_layer, m->err));
    const bool is_list = kv->type == MOEC_GGUF_ARRAY;
    if (is_list)
        MOEC_TRY(moec_gguf_expect_array(m->gguf, kv, MOEC_GGUF_I32, m->n_layer, m->err));
    for (uint64_t layer = 0; layer < m->n_layer; layer++) {
        const bool is_full = moec_gguf_number(windows, layer) == 0;
        const double n = is_list ? moec_gguf_number(kv, layer) : 0;
        if (n > 0)
            moec_json_out_u64(m->root, is_full ? "num_global_key_value_heads" : "num_key_value_heads",
                              (uint64_t)n);
        keys_are_values =
            keys_are_values || (is_full && !moec_gguf_making_has(m, layer, "attn_v.weight", &values));
    }
    moec_json_out_bool(m->root, "attention_k_eq_v", keys_are_values);
    return MOEC_OK;
}

static enum moec_status put_gemma4_rope(const struct moec_gguf_making *m, struct moec_json_out *root,
                                        const char *layers, const char *type, const char *base, double part)
{
    const struct moec_gguf_key theta = {base, "rope_theta", MOEC_KEY_REAL, true};
    struct moec_gguf_making inner = *m;
    inner.root = moec_json_out_object();
    moec_json_out_string(inner.root, "rope_type", type);
    moec_json_out_double(inner.root, "partial_rotary_factor", part);
    const enum moec_status status = moec_gguf_making_put(&inner, &theta);
    moec_json_out_node(root, layers, inner.root);
    return status;
}

/* Without a window a part of a head's pairs turns: those that a tensor divides by 1, and not by 1e30. */
static enum moec_status put_gemma4(const struct moec_gguf_making *m)
{
    enum { MAX_PAIRS = 4096 };
    float factors[MAX_PAIRS];
    uint64_t n = 0, n_turning = 0;
    MOEC_TRY(put_gemma4_heads(m));
    MOEC_TRY(moec_gguf_making_read(m, "rope_freqs.weight", MAX_PAIRS, factors, &n));
    while (n_turning < n && factors[n_turning] == 1)
        n_turning++;
    for (uint64_t i = n_turning; i < n; i++)
        if (factors[i] < 1e29f)
            return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                             "tensor 'rope_freqs.weight' in the GGUF file '%s' divides the angle of RoPE "
                             "pair %" PRIu64 " by %g, expected 1 for the first pairs and 1e30 for the "
                             "others",
                             m->gguf->file.path, i, (double)factors[i]);
    struct moec_json_out *rope = moec_json_out_object();
    /* A little more than the quotient, whose product with the pairs is rounded down. */
    enum moec_status status = put_gemma4_rope(m, rope, "full_attention", "proportional", "rope.freq_base",
                                              n_turning < n ? ((double)n_turning + 1e-6) / (double)n : 1);
    if (status == MOEC_OK)
        status = put_gemma4_rope(m, rope, "sliding_attention", "default", "rope.freq_base_swa", 1);
    moec_json_out_node(m->root, "rope_parameters", rope);
    moec_json_out_bool(m->root, "enable_moe_block", true);
    return status;
}

/* What is only in the tensors. A window of 0 is none. */
static enum moec_status put_phimoe(const struct moec_gguf_making *m)
{
    struct moec_tensor bias;
    uint64_t n_window = 0;
    MOEC_TRY(moec_gguf_making_count(m, "attention.sliding_window", &n_window));
    if (n_window == 0)
        moec_json_out_null(m->root, "sliding_window");
    moec_json_out_bool(m->root, "lm_head_bias", m->source->find(m->source, "output.bias", &bias));
    return MOEC_OK;
}

/* 'short_mscale' and 'long_mscale', which the converter leaves out, are those of Phi-3.5-MoE, the one model
 * that has them. */
static enum moec_status put_phimoe_mscales(const struct moec_gguf_making *m)
{
    uint64_t n_trained = 0, n_context = 0;
    MOEC_TRY(moec_gguf_making_count(m, "rope.scaling.original_context_length", &n_trained));
    MOEC_TRY(moec_gguf_making_count(m, "context_length", &n_context));
    if (n_trained != 4096 || n_context != 131072)
        return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                         "the GGUF file '%s' has LongRoPE from %" PRIu64 " to %" PRIu64 " positions "
                         "without 'short_mscale' and 'long_mscale': moec knows these factors only for "
                         "4096 to 131072 positions; start from the model's Hugging Face folder",
                         m->gguf->file.path, n_trained, n_context);
    moec_json_out_double(m->root, "short_mscale", 1.243163121016122);
    moec_json_out_double(m->root, "long_mscale", 1.243163121016122);
    return MOEC_OK;
}

/* What llama.cpp asks of no file: each fourth layer sees everything and does not rotate, where chunks and
 * positions have the numbers of the class, and the model of 128 experts norms no queries and keys. */
static enum moec_status put_llama4(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *window = moec_gguf_making_find(m, "attention.sliding_window");
    uint64_t n_expert = 0, n_window = 0;
    struct moec_tensor tensor;
    if (window != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, window, &n_window, m->err));
    if (window != NULL && n_window == 0)
        return moec_fail(
            m->err, MOEC_ERR_UNSUPPORTED,
            "the GGUF file '%s' has 'llama4.attention.sliding_window' 0 (no chunked attention) and does "
            "not say which layers use RoPE: start from the model's Hugging Face folder",
            m->gguf->file.path);
    MOEC_TRY(moec_gguf_making_count(m, "expert_count", &n_expert));
    moec_json_out_bool(m->root, "use_qk_norm", n_expert != 128);
    struct moec_json_out *sparse = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++)
        if (moec_gguf_making_has(m, layer, "ffn_gate_inp.weight", &tensor))
            moec_json_out_u64(sparse, NULL, layer);
    moec_json_out_node(m->root, "moe_layers", sparse);
    return MOEC_OK;
}

/* Whether Llama 3's scaling divides the frequencies of these pairs by these factors, to within their
 * rounding. */
static bool is_llama3(const float *factors, uint64_t n, double theta, double high, double trained)
{
    const double factor = (double)factors[n - 1], log_theta = moec_log_f64(theta);
    bool is_same = true;
    for (uint64_t i = 0; i < n && is_same; i++) {
        const double length = 2 * 3.14159265358979323846 * moec_exp_f64(log_theta * (double)i / (double)n);
        const double smooth = high > 1 ? (trained / length - 1) / (high - 1) : 0;
        const double expected = length < trained / high ? 1
                                : length > trained      ? factor
                                                        : 1 / ((1 - smooth) / factor + smooth);
        is_same = fabs((double)factors[i] - expected) <= 1e-4 * expected;
    }
    return is_same;
}

/* The parameters of Llama 3's scaling are not among the metadata, only what frequencies are divided by.
 * Models have low_freq_factor 1, high_freq_factor 4 or, Llama 4, 1, and a power of two as their trained
 * context. */
static enum moec_status put_llama3(const struct moec_gguf_making *m)
{
    float factors[MOEC_MAX_FACTORS];
    const struct moec_gguf_value *base = moec_gguf_making_find(m, "rope.freq_base");
    struct moec_tensor tensor;
    double theta = 10000;
    uint64_t n = 0;
    if (!m->source->find(m->source, "rope_freqs.weight", &tensor))
        return MOEC_OK;
    if (base != NULL)
        MOEC_TRY(moec_gguf_as_double(m->gguf, base, &theta, m->err));
    MOEC_TRY(moec_gguf_making_read(m, "rope_freqs.weight", MOEC_MAX_FACTORS, factors, &n));
    for (double high = 1; n > 0 && theta > 0 && high <= 4; high += 3)
        for (uint32_t trained = 16; trained <= MOEC_MAX_POSITIONS; trained *= 2) {
            if (!is_llama3(factors, n, theta, high, trained))
                continue;
            moec_json_out_double(m->root, "factor", (double)factors[n - 1]);
            moec_json_out_double(m->root, "low_freq_factor", 1);
            moec_json_out_double(m->root, "high_freq_factor", high);
            moec_json_out_u64(m->root, "original_max_position_embeddings", trained);
            return MOEC_OK;
        }
    return moec_fail(
        m->err, MOEC_ERR_UNSUPPORTED,
        "tensor 'rope_freqs.weight' in the GGUF file '%s' matches no RoPE scaling with 'low_freq_factor' "
        "1 and 'high_freq_factor' 1 or 4: start from the model's Hugging Face folder",
        m->gguf->file.path);
}

/* ---- the table ---- */

/* clang-format off */
/* Scales of Granite's files. */
#define GRANITE_SCALES                                                                                       \
    {"embedding_scale", "embedding_multiplier", MOEC_KEY_REAL, false},                                                \
        {"residual_scale", "residual_multiplier", MOEC_KEY_REAL, false},                                              \
        {"logit_scale", "logits_scaling", MOEC_KEY_REAL, false},                                                      \
        {"attention.scale", "attention_multiplier", MOEC_KEY_REAL, false}

#define SPACE_NAMES                                                                                          \
    {MOEC_ROLE_OUTPUT_GATE, true, "blk.{L}.ssm_in.weight"}, {MOEC_ROLE_V, true, "blk.{L}.ssm_in.weight"},    \
    {MOEC_ROLE_K, true, "blk.{L}.ssm_in.weight"}, {MOEC_ROLE_Q, true, "blk.{L}.ssm_in.weight"},              \
    {MOEC_ROLE_DELTA_DECAY, true, "blk.{L}.ssm_in.weight"}, {MOEC_ROLE_O, true, "blk.{L}.ssm_out.weight"},   \
    {MOEC_ROLE_CONVOLUTION, false, "blk.{L}.ssm_conv1d.weight"},                                             \
    {MOEC_ROLE_CONVOLUTION_BIAS, false, "blk.{L}.ssm_conv1d.bias"},                                          \
    {MOEC_ROLE_SPACE_SKIP, false, "blk.{L}.ssm_d"}

#define LATENT_KEYS                                                                                          \
    {"expert_count", "n_routed_experts", MOEC_KEY_COUNT, true},                                              \
        {"expert_weights_scale", "routed_scaling_factor", MOEC_KEY_REAL, false},                             \
        {"attention.kv_lora_rank", "kv_lora_rank", MOEC_KEY_COUNT, true},                                    \
        {"attention.head_count_kv", "absorbed_key_value_heads", MOEC_KEY_COUNT, false},                      \
        {"attention.key_length", "absorbed_key_length", MOEC_KEY_COUNT, false}

#define LATENT_NAMES                                                                                         \
    {MOEC_ROLE_Q, false, "blk.{L}.attn_q_b.weight"}, {MOEC_ROLE_Q_DOWN, false, "blk.{L}.attn_q_a.weight"},   \
    {MOEC_ROLE_Q_DOWN_NORM, false, "blk.{L}.attn_q_a_norm.weight"},                                          \
    {MOEC_ROLE_KV_DOWN, false, "blk.{L}.attn_kv_a_mqa.weight"},                                              \
    {MOEC_ROLE_KV_DOWN_NORM, false, "blk.{L}.attn_kv_a_norm.weight"},                                        \
    {MOEC_ROLE_KV_UP, false, "blk.{L}.attn_kv_b.weight"}, {MOEC_ROLE_K, false, "blk.{L}.attn_k_b.weight"},   \
    {MOEC_ROLE_V, false, "blk.{L}.attn_v_b.weight"}

/* The gated delta rule: Qwen3-Next and 3.5. */
#define DELTA_KEYS                                                                                           \
    {"ssm.conv_kernel", "linear_conv_kernel_dim", MOEC_KEY_COUNT, true},                                     \
        {"ssm.state_size", "linear_key_head_dim", MOEC_KEY_COUNT, true},                                     \
        {"ssm.group_count", "linear_num_key_heads", MOEC_KEY_COUNT, true},                                   \
        {"ssm.time_step_rank", "linear_num_value_heads", MOEC_KEY_COUNT, true},                              \
        {"full_attention_interval", "full_attention_interval", MOEC_KEY_COUNT, false}

#define DELTA_NAMES                                                                                          \
    {MOEC_ROLE_MLP_NORM, false, "blk.{L}.post_attention_norm.weight"},                                       \
    {MOEC_ROLE_OUTPUT_GATE, false, "blk.{L}.attn_q.weight"},                                                 \
    {MOEC_ROLE_OUTPUT_GATE, true, "blk.{L}.attn_gate.weight"},                                               \
    {MOEC_ROLE_Q, true, "blk.{L}.attn_qkv.weight"}, {MOEC_ROLE_K, true, "blk.{L}.attn_qkv.weight"},          \
    {MOEC_ROLE_V, true, "blk.{L}.attn_qkv.weight"}, {MOEC_ROLE_O, true, "blk.{L}.ssm_out.weight"},           \
    {MOEC_ROLE_CONVOLUTION, false, "blk.{L}.ssm_conv1d.weight"}

static const struct moec_gguf_architecture architectures[] = {
    {.name = "olmoe", .model_type = "olmoe", .gating = MOEC_GATING_SOFTMAX},
    {.name = "qwen2moe", .model_type = "qwen2_moe", .gating = MOEC_GATING_SOFTMAX},
    {.name = "qwen3moe", .model_type = "qwen3_moe", .gating = MOEC_GATING_SOFTMAX, .norm_topk = true},
    {.name = "llama", .model_type = "mixtral", .gating = MOEC_GATING_SOFTMAX, .tensors.has_pairs = true, .norm_topk = true,
     .keys = {{"expert_count", "num_local_experts", MOEC_KEY_COUNT, true}}},
    {.name = "deepseek", .model_type = "deepseek", .gating = MOEC_GATING_SOFTMAX, .tensors.has_pairs = true,
     .first_moe = "first_k_dense_replace", .n_shared = "n_shared_experts",
     .keys = {{"expert_count", "n_routed_experts", MOEC_KEY_COUNT, true}}},
    {.name = "deepseek2", .model_type = "deepseek_v3", .gating = MOEC_GATING_SIGMOID, .takes_softmax = true,
     .first_moe = "first_k_dense_replace", .n_shared = "n_shared_experts", .put = put_deepseek2,
     .put_scaling = put_growth, .tensors.layout_of = layout_deepseek2, .keys = {LATENT_KEYS},
     .tensors.names = {LATENT_NAMES}},
    {.name = "mistral4", .model_type = "mistral4", .gating = MOEC_GATING_SOFTMAX,
     .first_moe = "first_k_dense_replace", .n_shared = "n_shared_experts", .put = put_mistral4,
     .put_scaling = put_usual_growth, .tensors.layout_of = layout_deepseek2, .keys = {LATENT_KEYS},
     .tensors.names = {LATENT_NAMES}},
    {.name = "kimi-linear", .model_type = "kimi_linear", .gating = MOEC_GATING_SIGMOID, .norm_topk = true,
     .always_norm = true, .first_moe = "first_k_dense_replace", .n_shared = "num_shared_experts",
     .has_own_rope = true, .put = put_kimi, .tensors.layout_of = layout_kimi,
     .keys = {{"context_length", "model_max_length", MOEC_KEY_COUNT, true},
              {"expert_used_count", "num_experts_per_token", MOEC_KEY_COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", MOEC_KEY_REAL, false},
              {"expert_group_count", "num_expert_group", MOEC_KEY_COUNT, false},
              {"attention.kv_lora_rank", "kv_lora_rank", MOEC_KEY_COUNT, true},
              {"attention.head_count_kv", "absorbed_key_value_heads", MOEC_KEY_LARGEST, true},
              {"attention.key_length", "absorbed_key_length", MOEC_KEY_COUNT, false},
              {"ssm.conv_kernel", "linear_conv_kernel_dim", MOEC_KEY_COUNT, true},
              {"kda.head_dim", "linear_head_dim", MOEC_KEY_COUNT, true}},
     .tensors.names = {LATENT_NAMES,
               {MOEC_ROLE_Q, true, "blk.{L}.attn_q.weight"}, {MOEC_ROLE_K, true, "blk.{L}.attn_k.weight"},
               {MOEC_ROLE_V, true, "blk.{L}.attn_v.weight"},
               {MOEC_ROLE_Q_CONVOLUTION, false, "blk.{L}.ssm_conv1d_q.weight"},
               {MOEC_ROLE_K_CONVOLUTION, false, "blk.{L}.ssm_conv1d_k.weight"},
               {MOEC_ROLE_V_CONVOLUTION, false, "blk.{L}.ssm_conv1d_v.weight"},
               {MOEC_ROLE_DELTA_RATE, false, "blk.{L}.ssm_beta.weight"},
               {MOEC_ROLE_DELTA_DECAY_DOWN, false, "blk.{L}.ssm_f_a.weight"},
               {MOEC_ROLE_DELTA_DECAY, false, "blk.{L}.ssm_f_b.weight"},
               {MOEC_ROLE_OUTPUT_GATE_DOWN, false, "blk.{L}.ssm_g_a.weight"},
               {MOEC_ROLE_OUTPUT_GATE, false, "blk.{L}.ssm_g_b.weight"}}},
    {.name = "dots1", .model_type = "dots1", .gating = MOEC_GATING_SIGMOID, .first_moe = "first_k_dense_replace",
     .n_shared = "n_shared_experts", .window_step = 1,
     .keys = {{"expert_count", "n_routed_experts", MOEC_KEY_COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", MOEC_KEY_REAL, false}}},
    {.name = "glm4moe", .model_type = "glm4_moe", .gating = MOEC_GATING_SIGMOID, .first_moe = "first_k_dense_replace",
     .n_shared = "n_shared_experts",
     .tensors.names = {{MOEC_ROLE_MLP_NORM, false, "blk.{L}.post_attention_norm.weight"}},
     .keys = {{"expert_count", "n_routed_experts", MOEC_KEY_COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", MOEC_KEY_REAL, false}}},
    {.name = "ernie4_5-moe", .model_type = "ernie4_5_moe", .gating = MOEC_GATING_SOFTMAX, .tensors.has_pairs = true,
     .norm_topk = true, .always_norm = true, .first_moe = "moe_layer_start_index",
     .last_moe = "moe_layer_end_index", .n_shared = "moe_num_shared_experts",
     .keys = {{"expert_count", "moe_num_experts", MOEC_KEY_COUNT, true}, {"expert_used_count", "moe_k", MOEC_KEY_COUNT, true},
              {"interleave_moe_layer_step", "moe_layer_interval", MOEC_KEY_COUNT, false}}},
    {.name = "hunyuan-moe", .model_type = "hunyuan_v1_moe", .gating = MOEC_GATING_SOFTMAX, .norm_topk = true,
     .always_norm = true, .keys = {{"expert_used_count", "moe_topk", MOEC_KEY_COUNT, true}}},
    {.name = "minimax-m2", .model_type = "minimax_m2", .gating = MOEC_GATING_SIGMOID, .norm_topk = true,
     .always_norm = true, .keys = {{"expert_count", "num_local_experts", MOEC_KEY_COUNT, true}}},
    {.name = "granitemoe", .model_type = "granitemoe", .gating = MOEC_GATING_SOFTMAX, .tensors.has_pairs = true,
     .norm_topk = true, .always_norm = true, .put = put_granite,
     .keys = {{"expert_count", "num_local_experts", MOEC_KEY_COUNT, true},
              GRANITE_SCALES}},
    {.name = "granitehybrid", .model_type = "granitemoehybrid", .gating = MOEC_GATING_SOFTMAX, .norm_topk = true,
     .always_norm = true, .put = put_granite_hybrid, .tensors.layout_of = layout_granite_hybrid,
     .keys = {{"expert_count", "num_local_experts", MOEC_KEY_COUNT, true},
              GRANITE_SCALES,
              {"attention.head_count_kv", "num_key_value_heads", MOEC_KEY_LARGEST, true},
              {"ssm.conv_kernel", "mamba_d_conv", MOEC_KEY_COUNT, true},
              {"ssm.state_size", "mamba_d_state", MOEC_KEY_COUNT, true},
              {"ssm.group_count", "mamba_n_groups", MOEC_KEY_COUNT, true},
              {"ssm.time_step_rank", "mamba_n_heads", MOEC_KEY_COUNT, true}},
     .tensors.names = {SPACE_NAMES}},
    {.name = "nemotron_h_moe", .model_type = "nemotron_h", .gating = MOEC_GATING_SIGMOID, .norm_topk = true,
     .put = put_nemotron_h, .tensors.layout_of = layout_nemotron_h,
     .keys = {{"expert_count", "n_routed_experts", MOEC_KEY_COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", MOEC_KEY_REAL, false},
              {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", MOEC_KEY_COUNT, true},
              {"attention.head_count_kv", "num_key_value_heads", MOEC_KEY_LARGEST, true},
              {"feed_forward_length", "widest_feed_forward", MOEC_KEY_LARGEST, false},
              {"moe_latent_size", "moe_latent_size", MOEC_KEY_COUNT, false},
              {"attention.layer_norm_epsilon", "layer_norm_epsilon", MOEC_KEY_REAL, false},
              {"attention.layer_norm_rms_epsilon", "rms_norm_eps", MOEC_KEY_REAL, false},
              {"ssm.conv_kernel", "conv_kernel", MOEC_KEY_COUNT, true},
              {"ssm.state_size", "ssm_state_size", MOEC_KEY_COUNT, true},
              {"ssm.group_count", "n_groups", MOEC_KEY_COUNT, true},
              {"ssm.time_step_rank", "mamba_num_heads", MOEC_KEY_COUNT, true}},
     .tensors.names = {SPACE_NAMES, {MOEC_ROLE_MLP_NORM, false, "blk.{L}.attn_norm.weight"}}},
    {.name = "exaone-moe", .model_type = "exaone_moe", .gating = MOEC_GATING_SIGMOID,
     .first_moe = "first_k_dense_replace", .n_shared = "num_shared_experts", .window_step = 4,
     .keys = {{"expert_weights_scale", "routed_scaling_factor", MOEC_KEY_REAL, false}}},
    {.name = "afmoe", .model_type = "afmoe", .gating = MOEC_GATING_SIGMOID, .always_norm = true, .norm_topk = true,
     .first_moe = "num_dense_layers", .n_shared = "num_shared_experts", .window_step = 4, .put = put_afmoe,
     .keys = {{"expert_weights_scale", "route_scale", MOEC_KEY_REAL, false}}},
    {.name = "lfm2moe", .model_type = "lfm2_moe", .gating = MOEC_GATING_SIGMOID, .norm_topk = true, .always_norm = true,
     .first_moe = "num_dense_layers", .put = put_lfm2, .tensors.layout_of = layout_lfm2,
     .keys = {{"attention.head_count_kv", "num_key_value_heads", MOEC_KEY_LARGEST, true},
              {"shortconv.l_cache", "conv_L_cache", MOEC_KEY_COUNT, true},
              {"expert_weights_scale", "routed_scaling_factor", MOEC_KEY_REAL, false}},
     .tensors.names = {{MOEC_ROLE_FINAL_NORM, false, "token_embd_norm.weight"},
               {MOEC_ROLE_CONVOLUTION, false, "blk.{L}.shortconv.conv.weight"},
               {MOEC_ROLE_INPUT_GATE, false, "blk.{L}.shortconv.in_proj.weight"},
               {MOEC_ROLE_OUTPUT_GATE, false, "blk.{L}.shortconv.in_proj.weight"},
               {MOEC_ROLE_V, true, "blk.{L}.shortconv.in_proj.weight"},
               {MOEC_ROLE_O, true, "blk.{L}.shortconv.out_proj.weight"}}},
    {.name = "gpt-oss", .model_type = "gpt_oss", .gating = MOEC_GATING_SOFTMAX_CHOSEN, .norm_topk = true,
     .always_norm = true, .window_step = 2, .keeps_rope_ends = true,
     .keys = {{"expert_count", "num_local_experts", MOEC_KEY_COUNT, true},
              {"expert_feed_forward_length", "intermediate_size", MOEC_KEY_COUNT, true},
              {"feed_forward_length", "dense_intermediate_size", MOEC_KEY_COUNT, false}},
     .tensors.names = {{MOEC_ROLE_MLP_NORM, false, "blk.{L}.post_attention_norm.weight"}}},
    {.name = "qwen3next", .model_type = "qwen3_next", .gating = MOEC_GATING_SOFTMAX, .norm_topk = true,
     .put = put_qwen_next, .tensors.layout_of = layout_qwen_next, .keys = {DELTA_KEYS},
     .tensors.names = {DELTA_NAMES}},
    {.name = "qwen35moe", .model_type = "qwen3_5_moe_text", .gating = MOEC_GATING_SOFTMAX, .norm_topk = true,
     .always_norm = true, .put = put_qwen_next, .tensors.layout_of = layout_qwen_3_5, .keys = {DELTA_KEYS},
     .tensors.names = {DELTA_NAMES, {MOEC_ROLE_DELTA_RATE, false, "blk.{L}.ssm_beta.weight"},
               {MOEC_ROLE_DELTA_DECAY, false, "blk.{L}.ssm_alpha.weight"}}},
    {.name = "gemma4", .model_type = "gemma4_text", .gating = MOEC_GATING_SOFTMAX, .norm_topk = true,
     .always_norm = true, .window_step = 6, .has_own_rope = true, .put = put_gemma4,
     .keys = {{"attention.head_count_kv", "num_key_value_heads", MOEC_KEY_LARGEST, true},
              {"attention.key_length", "global_head_dim", MOEC_KEY_COUNT, true},
              {"attention.key_length_swa", "head_dim", MOEC_KEY_COUNT, true},
              {"attention.shared_kv_layers", "num_kv_shared_layers", MOEC_KEY_COUNT, false},
              {"embedding_length_per_layer_input", "hidden_size_per_layer_input", MOEC_KEY_COUNT, true},
              {"expert_used_count", "top_k_experts", MOEC_KEY_COUNT, true},
              {"final_logit_softcapping", "final_logit_softcapping", MOEC_KEY_REAL, false}},
     .tensors.names = {{MOEC_ROLE_SHARED_UP, false, "blk.{L}.ffn_up.weight"},
               {MOEC_ROLE_SHARED_GATE, false, "blk.{L}.ffn_gate.weight"},
               {MOEC_ROLE_SHARED_DOWN, false, "blk.{L}.ffn_down.weight"},
               {MOEC_ROLE_SHARED_POST_NORM, false, "blk.{L}.post_ffw_norm_1.weight"},
               {MOEC_ROLE_EXPERT_NORM, false, "blk.{L}.pre_ffw_norm_2.weight"},
               {MOEC_ROLE_EXPERT_POST_NORM, false, "blk.{L}.post_ffw_norm_2.weight"},
               {MOEC_ROLE_LAYER_SCALE, false, "blk.{L}.layer_output_scale.weight"},
               {MOEC_ROLE_ROUTER_NORM, false, "blk.{L}.ffn_gate_inp.scale"},
               {MOEC_ROLE_ROUTER_EXPERT_SCALE, false, "blk.{L}.ffn_down_exps.scale"}}},
    {.name = "llama4", .model_type = "llama4_text", .gating = MOEC_GATING_SIGMOID, .tensors.has_pairs = true,
     .put = put_llama4, .put_scaling = put_llama3,
     .keys = {{"expert_count", "num_local_experts", MOEC_KEY_COUNT, true},
              {"feed_forward_length", "intermediate_size_mlp", MOEC_KEY_COUNT, false},
              {"expert_feed_forward_length", "intermediate_size", MOEC_KEY_COUNT, true}}},
    {.name = "phimoe", .model_type = "phimoe", .gating = MOEC_GATING_SOFTMAX, .put = put_phimoe,
     .put_scaling = put_phimoe_mscales,
     .keys = {{"expert_count", "num_local_experts", MOEC_KEY_COUNT, true}},
     .tensors.names = {{MOEC_ROLE_ATTENTION_NORM_BIAS, false, "blk.{L}.attn_norm.bias"},
               {MOEC_ROLE_MLP_NORM_BIAS, false, "blk.{L}.ffn_norm.bias"},
               {MOEC_ROLE_FINAL_NORM_BIAS, false, "output_norm.bias"},
               {MOEC_ROLE_HEAD_BIAS, false, "output.bias"}}},
};
/* clang-format on */
#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

enum moec_status moec_gguf_find_architecture(const struct moec_gguf *gguf,
                                             const struct moec_gguf_architecture **found,
                                             struct moec_error *err)
{
    const struct moec_gguf_value *value = moec_gguf_find(gguf, "general.architecture");
    struct moec_gguf_text text = {0};
    char known[640] = "";
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
                     "the GGUF file '%s' has 'general.architecture' '%s', supported architectures: %s",
                     gguf->file.path, shown, known);
}

const struct moec_gguf_tensors *moec_gguf_tensors_of(const struct moec_gguf *gguf)
{
    const struct moec_gguf_architecture *architecture = NULL;
    return moec_gguf_find_architecture(gguf, &architecture, NULL) == MOEC_OK ? &architecture->tensors : NULL;
}
