/* Switch Transformers (Fedus, Zoph and Shazeer, arXiv 2101.03961) as transformers' class has it: T5's blocks
 * in two stacks, of which some have top-1 experts in place of their MLP.
 *
 * The class knows MLPs of two matrices alone: 'dense_act_fn' names a function, and its documentation's
 * 'gated-gelu' is refused by its code. Gated ones are read as T5 has them (wi_0 is the gate, wi_1 the up
 * projection), asked for by that prefix or by T5's 'is_gated_act'. */
#include "formats/family/family_parts.h"

#include <stdio.h>
#include <string.h>

/* 'gated-gelu' means the tanh form, as in T5, while plain 'gelu' would mean the error function's. */
static const struct activation {
    const char *name;
    bool is_gated;
    enum moec_activation activation;
} activations[] = {
    {"relu", false, MOEC_ACTIVATION_RELU},       {"gelu_new", false, MOEC_ACTIVATION_GELU_TANH},
    {"silu", false, MOEC_ACTIVATION_SILU},       {"swish", false, MOEC_ACTIVATION_SILU},
    {"gated-relu", true, MOEC_ACTIVATION_RELU},  {"gated-gelu", true, MOEC_ACTIVATION_GELU_TANH},
    {"gated-silu", true, MOEC_ACTIVATION_SILU},  {"gated-gelu_new", true, MOEC_ACTIVATION_GELU_TANH},
    {"gated-swish", true, MOEC_ACTIVATION_SILU},
};

#define N_ACTIVATIONS (sizeof activations / sizeof *activations)

static enum moec_status read_activation(const struct moec_json *root, const char *where,
                                        struct moec_config *config, struct moec_error *err)
{
    const char *name = NULL;
    bool is_gated = false;
    MOEC_TRY(moec_json_get_string_or(root, where, "dense_act_fn", "relu", &name, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "is_gated_act", false, &is_gated, err));
    for (size_t i = 0; i < N_ACTIVATIONS; i++) {
        if (strcmp(activations[i].name, name) != 0)
            continue;
        config->mlp.activation = (uint8_t)activations[i].activation;
        config->mlp.plain = !activations[i].is_gated && !is_gated;
        return MOEC_OK;
    }
    return moec_fail(
        err, MOEC_ERR_UNSUPPORTED,
        "%s says 'dense_act_fn' '%.40s', supported: 'relu', 'gelu_new', 'silu', and 'gated-relu', "
        "'gated-gelu', 'gated-silu'",
        where, name);
}

/* Blocks with experts among the n of a stack. The class derives the step from
 * the number of sparse layers, but a step that the file states overrides it; no sparse layer is a step of n,
 * which still makes block 1 sparse. */
static enum moec_status read_stack(const struct moec_json *root, const char *where, const char *stack,
                                   uint32_t n, uint8_t *is_moe, struct moec_error *err)
{
    char key[64];
    uint32_t n_sparse = 3;
    (void)snprintf(key, sizeof key, "num_sparse_%s_layers", stack);
    MOEC_TRY(moec_json_update_u32(root, where, key, MOEC_MAX_DIMENSION, &n_sparse, err));
    uint32_t step = n_sparse > 0 ? n / n_sparse : n;
    (void)snprintf(key, sizeof key, "%s_sparse_step", stack);
    MOEC_TRY(moec_json_update_u32(root, where, key, MOEC_MAX_DIMENSION, &step, err));
    for (uint32_t i = 0; i < n; i++)
        is_moe[i] = step > 0 && (step == 1 || i % step == 1);
    return MOEC_OK;
}

static enum moec_status read_layers(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    uint32_t n_encoder = 12, n_decoder = 12;
    MOEC_TRY(moec_json_update_u32(root, where, "num_layers", MOEC_MAX_LAYERS, &n_encoder, err));
    const struct moec_json *given = moec_json_find(root, "num_decoder_layers");
    if (given != NULL && moec_json_type(given) == MOEC_JSON_NULL)
        n_decoder = n_encoder;
    MOEC_TRY(moec_json_update_u32(root, where, "num_decoder_layers", MOEC_MAX_LAYERS, &n_decoder, err));
    if (n_encoder == 0 || n_decoder == 0 || n_encoder + n_decoder > MOEC_MAX_LAYERS)
        return moec_fail(
            err, MOEC_ERR_LIMIT,
            "%s says %u encoder and %u decoder layers, expected at least 1 of each and at most %d in all",
            where, n_encoder, n_decoder, MOEC_MAX_LAYERS);
    config->n_encoder_layer = n_encoder;
    config->n_layer = n_encoder + n_decoder;
    uint8_t is_moe[MOEC_MAX_LAYERS] = {0};
    MOEC_TRY(read_stack(root, where, "encoder", n_encoder, is_moe, err));
    MOEC_TRY(read_stack(root, where, "decoder", n_decoder, is_moe + n_encoder, err));
    return moec_config_place_layers(config, is_moe, where, err);
}

/* Targets begin with the padding id where nothing else is said, as T5's do. */
static enum moec_status read_ids(const struct moec_json *root, const char *where, struct moec_config *config,
                                 struct moec_error *err)
{
    MOEC_TRY(moec_json_update_u32(root, where, "pad_token_id", MOEC_MAX_VOCABULARY, &config->ids.pad, err));
    config->ids.decoder_start = config->ids.pad;
    return moec_json_update_u32(root, where, "decoder_start_token_id", MOEC_MAX_VOCABULARY,
                                &config->ids.decoder_start, err);
}

static enum moec_status read_switch(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    bool has_decoder = true;
    MOEC_TRY(moec_json_get_bool_or(root, where, "is_encoder_decoder", true, &has_decoder, err));
    if (!has_decoder)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'is_encoder_decoder' false, only true is supported: moec does "
                         "not run an encoder alone",
                         where);
    MOEC_TRY(moec_json_update_u32(root, where, "vocab_size", MOEC_MAX_VOCABULARY, &config->n_vocab, err));
    MOEC_TRY(moec_json_update_u32(root, where, "d_model", MOEC_MAX_DIMENSION, &config->n_embd, err));
    MOEC_TRY(moec_json_update_u32(root, where, "d_kv", MOEC_MAX_DIMENSION, &kind->head_dim, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_heads", MOEC_MAX_DIMENSION, &kind->n_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "d_ff", MOEC_MAX_DIMENSION, &config->n_ff_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "relative_attention_num_buckets", MOEC_MAX_BUCKETS,
                                  &config->position.n_bucket, err));
    MOEC_TRY(moec_json_update_u32(root, where, "relative_attention_max_distance", MOEC_MAX_DISTANCE,
                                  &config->position.max_distance, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "layer_norm_epsilon", 0, 1, config->rms_eps,
                                     &config->rms_eps, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "tie_word_embeddings", true, &config->head.is_tied, err));
    config->head.is_scaled = config->head.is_tied;
    kind->n_kv_head = kind->n_head;
    kind->n_ff_dense = config->n_ff_expert;
    MOEC_TRY(read_activation(root, where, config, err));
    MOEC_TRY(read_layers(root, where, config, err));
    MOEC_TRY(moec_family_read_capacity(root, where, config, err));
    return read_ids(root, where, config, err);
}

/* ---- writing ---- */

static const char *activation_name(const struct moec_config *config)
{
    for (size_t i = 0; i < N_ACTIVATIONS; i++)
        if ((uint8_t)activations[i].activation == config->mlp.activation &&
            activations[i].is_gated != config->mlp.plain)
            return activations[i].name;
    return "";
}

/* The step that gives exactly these n layers from `first` on; 0 where there is none, which reading it back
 * will show. */
static uint32_t find_step(const struct moec_config *config, uint32_t first, uint32_t n)
{
    for (uint32_t step = 1; step <= n + 1; step++) {
        uint32_t same = 0;
        while (same < n && moec_config_is_moe(config, first + same) == (step == 1 || same % step == 1))
            same++;
        if (same == n)
            return step;
    }
    return 0;
}

static void put_stack(const struct moec_config *config, uint32_t first, uint32_t n, const char *stack,
                      struct moec_json_out *root)
{
    char key[64];
    uint32_t n_sparse = 0;
    for (uint32_t i = 0; i < n; i++)
        n_sparse += moec_config_is_moe(config, first + i);
    (void)snprintf(key, sizeof key, "num_sparse_%s_layers", stack);
    moec_json_out_u64(root, key, n_sparse);
    (void)snprintf(key, sizeof key, "%s_sparse_step", stack);
    moec_json_out_u64(root, key, find_step(config, first, n));
}

static void write_switch(const struct moec_config *config, struct moec_json_out *root)
{
    const uint32_t n_encoder = config->n_encoder_layer, n_decoder = config->n_layer - n_encoder;
    moec_json_out_bool(root, "is_encoder_decoder", true);
    moec_json_out_u64(root, "vocab_size", config->n_vocab);
    moec_json_out_u64(root, "d_model", config->n_embd);
    moec_json_out_u64(root, "d_kv", moec_config_layer(config, 0)->head_dim);
    moec_json_out_u64(root, "d_ff", config->n_ff_expert);
    moec_json_out_u64(root, "num_heads", moec_config_layer(config, 0)->n_head);
    moec_json_out_u64(root, "num_layers", n_encoder);
    moec_json_out_u64(root, "num_decoder_layers", n_decoder);
    put_stack(config, 0, n_encoder, "encoder", root);
    put_stack(config, n_encoder, n_decoder, "decoder", root);
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "expert_capacity", config->router.expert_capacity);
    moec_json_out_bool(root, "router_bias", config->router.bias);
    moec_json_out_string(root, "router_dtype", "float32");
    moec_json_out_u64(root, "relative_attention_num_buckets", config->position.n_bucket);
    moec_json_out_u64(root, "relative_attention_max_distance", config->position.max_distance);
    moec_json_out_double(root, "layer_norm_epsilon", config->rms_eps);
    moec_json_out_string(root, "dense_act_fn", activation_name(config));
    moec_json_out_bool(root, "is_gated_act", !config->mlp.plain);
    moec_json_out_bool(root, "tie_word_embeddings", config->head.is_tied);
    moec_json_out_u64(root, "pad_token_id", config->ids.pad);
    moec_json_out_u64(root, "decoder_start_token_id", config->ids.decoder_start);
}

/* ---- the row ---- */

/* clang-format off */
/* Of one stack, whose blocks have their MLP as sublayer `mlp`. */
#define SWITCH_NAMES(stack, mlp)                                                                             \
    [MOEC_ROLE_ATTENTION_NORM] = stack "block.{L}.layer.0.layer_norm.weight",                                \
    [MOEC_ROLE_Q] = stack "block.{L}.layer.0.SelfAttention.q.weight",                                        \
    [MOEC_ROLE_K] = stack "block.{L}.layer.0.SelfAttention.k.weight",                                        \
    [MOEC_ROLE_V] = stack "block.{L}.layer.0.SelfAttention.v.weight",                                        \
    [MOEC_ROLE_O] = stack "block.{L}.layer.0.SelfAttention.o.weight",                                        \
    [MOEC_ROLE_ATTENTION_BIAS] = stack "block.{L}.layer.0.SelfAttention.relative_attention_bias.weight",     \
    [MOEC_ROLE_MLP_NORM] = stack "block.{L}.layer." mlp ".layer_norm.weight",                                \
    [MOEC_ROLE_ROUTER] = stack "block.{L}.layer." mlp ".mlp.router.classifier.weight",                       \
    [MOEC_ROLE_ROUTER_BIAS] = stack "block.{L}.layer." mlp ".mlp.router.classifier.bias",                    \
    [MOEC_ROLE_DENSE_GATE] = stack "block.{L}.layer." mlp ".mlp.wi_0.weight",                                \
    [MOEC_ROLE_DENSE_UP] = stack "block.{L}.layer." mlp ".mlp.wi{_1}.weight",                                \
    [MOEC_ROLE_DENSE_DOWN] = stack "block.{L}.layer." mlp ".mlp.wo.weight"

#define SWITCH_EXPERT_NAMES(stack, mlp)                                                                      \
    [MOEC_PROJECTION_GATE] = stack "block.{L}.layer." mlp ".mlp.experts.expert_{E}.wi_0.weight",             \
    [MOEC_PROJECTION_UP] = stack "block.{L}.layer." mlp ".mlp.experts.expert_{E}.wi{_1}.weight",             \
    [MOEC_PROJECTION_DOWN] = stack "block.{L}.layer." mlp ".mlp.experts.expert_{E}.wo.weight"

static const char *const embedding_copies[] = {"encoder.embed_tokens.weight",
                                                      "decoder.embed_tokens.weight", NULL};

const struct moec_family moec_family_switch = {
    .model_type = "switch_transformers",
    .read = read_switch,
    .write = write_switch,
    .has_own_fields = true,
    .architecture = "SwitchTransformersForConditionalGeneration",
    .defaults = {.n_vocab = 32128, .n_embd = 768, .n_position = MOEC_MAX_POSITIONS, .rms_eps = 1e-6,
                 .position.n_bucket = 32, .position.max_distance = 128, .n_expert = 8, .top_k = 1, .n_ff_expert = 2048,
                 .router.expert_capacity = 64, .ids.n_eos = 1, .ids.eos = {1},
                 .kinds = {{.n_head = 12, .head_dim = 64}}},
    .names = {
        SWITCH_NAMES("decoder.", "2"),
        [MOEC_ROLE_EMBEDDING] = "shared.weight",
        [MOEC_ROLE_HEAD] = "lm_head.weight",
        [MOEC_ROLE_FINAL_NORM] = "decoder.final_layer_norm.weight",
        [MOEC_ROLE_ENCODER_NORM] = "encoder.final_layer_norm.weight",
        [MOEC_ROLE_CROSS_NORM] = "decoder.block.{L}.layer.1.layer_norm.weight",
        [MOEC_ROLE_CROSS_Q] = "decoder.block.{L}.layer.1.EncDecAttention.q.weight",
        [MOEC_ROLE_CROSS_K] = "decoder.block.{L}.layer.1.EncDecAttention.k.weight",
        [MOEC_ROLE_CROSS_V] = "decoder.block.{L}.layer.1.EncDecAttention.v.weight",
        [MOEC_ROLE_CROSS_O] = "decoder.block.{L}.layer.1.EncDecAttention.o.weight",
    },
    .expert_names = { SWITCH_EXPERT_NAMES("decoder.", "2") },
    .encoder_names = { SWITCH_NAMES("encoder.", "1") },
    .encoder_expert_names = { SWITCH_EXPERT_NAMES("encoder.", "1") },
    .embedding_copies = embedding_copies,
};
/* clang-format on */
