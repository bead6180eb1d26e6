/* The text of Llama 4 (transformers' models/llama4): most layers rotate, norm queries and keys afterwards and
 * attend within chunks; each fourth does neither, sees everything, and its queries grow with their position.
 * The router scales what its one expert reads. Experts of a layer are stacked and transposed. */
#include "formats/family/family_parts.h"

#include <stdio.h>
#include <string.h>

/* 1 for layers that rotate, 0 for those that do not; without a list, or with an empty one, each `interval`th
 * does not. */
static enum moec_status read_rotating(const struct moec_json *root, const char *where,
                                      const struct moec_config *config, uint8_t *rotates,
                                      struct moec_error *err)
{
    char what[256];
    uint64_t interval = 4;
    const struct moec_json *list = moec_json_present(root, "no_rope_layers");
    MOEC_TRY(
        moec_json_get_u64_or(root, where, "no_rope_layer_interval", 1, MOEC_MAX_LAYERS, 4, &interval, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        rotates[layer] = (layer + 1) % interval != 0;
    if (list == NULL || moec_json_length(list) == 0)
        return MOEC_OK;
    MOEC_TRY(moec_json_get(root, where, "no_rope_layers", MOEC_JSON_ARRAY, &list, err));
    if (moec_json_length(list) < config->n_layer)
        return moec_fail(err, MOEC_ERR_FORMAT, "'no_rope_layers' in %s has %zu entries, expected %u", where,
                         moec_json_length(list), config->n_layer);
    (void)snprintf(what, sizeof what, "'no_rope_layers' of %.200s", where);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        uint64_t value = 0;
        MOEC_TRY(moec_json_as_u64(moec_json_at(list, layer), what, 0, 1, &value, err));
        rotates[layer] = value != 0;
    }
    return MOEC_OK;
}

/* Which layers attend in chunks: by 'layer_types', else those that rotate. */
static enum moec_status read_chunked(const struct moec_json *root, const char *where,
                                     const struct moec_config *config, uint8_t *is_chunked,
                                     struct moec_error *err)
{
    char what[256];
    const struct moec_json *list = moec_json_present(root, "layer_types");
    if (list == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_json_get(root, where, "layer_types", MOEC_JSON_ARRAY, &list, err));
    if (moec_json_length(list) != config->n_layer)
        return moec_fail(err, MOEC_ERR_FORMAT, "'layer_types' in %s has %zu entries, expected %u", where,
                         moec_json_length(list), config->n_layer);
    (void)snprintf(what, sizeof what, "'layer_types' of %.200s", where);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const char *type = NULL;
        MOEC_TRY(moec_json_as_string(moec_json_at(list, layer), what, &type, NULL, err));
        is_chunked[layer] = strcmp(type, "chunked_attention") == 0;
        if (!is_chunked[layer] && strcmp(type, "full_attention") != 0)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "'layer_types'[%u] in %s is "
                             "'%.40s', supported: 'chunked_attention', 'full_attention'",
                             layer, where, type);
    }
    return MOEC_OK;
}

/* 'moe_layers', numbers of layers; without it each `interleave_moe_layer_step`th has experts. */
static enum moec_status read_sparse(const struct moec_json *root, const char *where,
                                    const struct moec_config *config, uint8_t *is_moe, struct moec_error *err)
{
    char what[256];
    uint64_t step = 1;
    const struct moec_json *list = moec_json_present(root, "moe_layers");
    MOEC_TRY(
        moec_json_get_u64_or(root, where, "interleave_moe_layer_step", 1, MOEC_MAX_LAYERS, 1, &step, err));
    for (uint32_t layer = 0; list == NULL && layer < config->n_layer; layer++)
        is_moe[layer] = (layer + 1) % step == 0;
    if (list == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_json_get(root, where, "moe_layers", MOEC_JSON_ARRAY, &list, err));
    (void)snprintf(what, sizeof what, "'moe_layers' of %.200s", where);
    for (size_t i = 0; i < moec_json_length(list); i++) {
        uint64_t layer = 0;
        MOEC_TRY(moec_json_as_u64(moec_json_at(list, i), what, 0, config->n_layer - 1, &layer, err));
        is_moe[layer] = 1;
    }
    return MOEC_OK;
}

/* 'attn_temperature_tuning' is a flag, which the first files have as a number. */
static enum moec_status read_growth(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    const struct moec_json *given = moec_json_present(root, "attn_temperature_tuning");
    bool grows = true;
    double scale = 0.1;
    uint32_t positions = 8192;
    if (given != NULL && moec_json_type(given) == MOEC_JSON_INTEGER) {
        uint64_t value = 0;
        char what[256];
        (void)snprintf(what, sizeof what, "'attn_temperature_tuning' of %.200s", where);
        MOEC_TRY(moec_json_as_u64(given, what, 0, UINT32_MAX, &value, err));
        grows = value != 0;
    } else {
        MOEC_TRY(moec_json_get_bool_or(root, where, "attn_temperature_tuning", true, &grows, err));
    }
    MOEC_TRY(moec_json_get_double_or(root, where, "attn_scale", 0, 1e6, scale, &scale, err));
    MOEC_TRY(moec_json_update_u32(root, where, "floor_scale", MOEC_MAX_POSITIONS, &positions, err));
    config->position.query_growth = grows ? (float)scale : 0;
    config->position.growth_positions = config->position.query_growth > 0 ? positions : 0;
    return MOEC_OK;
}

/* What layers differ in, one byte each. */
struct marks {
    uint8_t rotates[MOEC_MAX_LAYERS], is_chunked[MOEC_MAX_LAYERS], is_moe[MOEC_MAX_LAYERS];
};

static enum moec_status place_layers(struct moec_config *config, const struct marks *marks, uint32_t chunk,
                                     const char *where, struct moec_error *err)
{
    const struct moec_layer_kind like = config->kinds[0];
    const uint32_t n_layer = config->n_layer;
    config->n_kind = config->n_layer = 0;
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        struct moec_layer_kind kind = like;
        kind.is_moe = marks->is_moe[layer] != 0;
        kind.n_ff_dense = kind.is_moe ? 0 : like.n_ff_dense;
        kind.chunk = marks->is_chunked[layer] ? chunk : 0;
        if (!marks->rotates[layer]) {
            kind.rope_theta = 0;
            kind.rope_scaling = (struct moec_rope_scaling){0};
            kind.qk_norm = MOEC_QK_NORM_NONE;
        }
        if (!moec_config_add_layer(config, &kind))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %d layers", where, MOEC_MAX_LAYERS);
    }
    return MOEC_OK;
}

static enum moec_status read_llama4(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    struct marks marks = {0};
    uint32_t chunk = 8192;
    bool norms = true;
    if (config->top_k != 1)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'num_experts_per_tok' %u, only 1 is supported: moec scales an expert's input by the "
            "router's weight only if each token has one expert",
            where, config->top_k);
    MOEC_TRY(moec_family_refuse_flag(root, where, "attention_bias", "attention biases with interleaved RoPE",
                                     err));
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_local_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    config->n_ff_shared = config->n_ff_expert;
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size_mlp", MOEC_MAX_DIMENSION, &kind->n_ff_dense,
                                  err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "use_qk_norm", true, &norms, err));
    kind->qk_norm = norms ? MOEC_QK_NORM_PLAIN_AFTER : MOEC_QK_NORM_NONE;
    const struct moec_json *given = moec_json_find(root, "attention_chunk_size");
    if (given != NULL && moec_json_type(given) == MOEC_JSON_NULL)
        chunk = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "attention_chunk_size", MOEC_MAX_POSITIONS, &chunk, err));
    MOEC_TRY(read_growth(root, where, config, err));
    MOEC_TRY(read_rotating(root, where, config, marks.rotates, err));
    memcpy(marks.is_chunked, marks.rotates, sizeof marks.is_chunked);
    MOEC_TRY(read_chunked(root, where, config, marks.is_chunked, err));
    MOEC_TRY(read_sparse(root, where, config, marks.is_moe, err));
    return place_layers(config, &marks, chunk, where, err);
}

static void write_llama4(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *rotating = moec_json_out_array(), *types = moec_json_out_array(),
                         *sparse = moec_json_out_array();
    uint32_t chunk = 0, n_dense = 0;
    bool norms = false;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, layer);
        moec_json_out_u64(rotating, NULL, kind->rope_theta > 0);
        moec_json_out_string(types, NULL, kind->chunk > 0 ? "chunked_attention" : "full_attention");
        if (kind->is_moe)
            moec_json_out_u64(sparse, NULL, layer);
        chunk = kind->chunk > 0 ? kind->chunk : chunk;
        n_dense = kind->is_moe ? n_dense : kind->n_ff_dense;
        norms = norms || kind->qk_norm != MOEC_QK_NORM_NONE;
    }
    moec_json_out_node(root, "no_rope_layers", rotating);
    moec_json_out_node(root, "layer_types", types);
    moec_json_out_node(root, "moe_layers", sparse);
    if (chunk > 0)
        moec_json_out_u64(root, "attention_chunk_size", chunk);
    moec_json_out_u64(root, "num_local_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    if (n_dense > 0)
        moec_json_out_u64(root, "intermediate_size_mlp", n_dense);
    moec_json_out_bool(root, "use_qk_norm", norms);
    moec_json_out_bool(root, "attn_temperature_tuning", config->position.query_growth > 0);
    if (config->position.query_growth > 0) {
        moec_json_out_double(root, "attn_scale", (double)config->position.query_growth);
        moec_json_out_u64(root, "floor_scale", config->position.growth_positions);
    }
}

/* clang-format off */
#define EXPERTS MOEC_LAYER_NAME "feed_forward.experts."
const struct moec_family moec_family_llama4 = {
    .model_type = "llama4_text",
    .outer_type = "llama4",
    .read = read_llama4,
    .write = write_llama4,
    .architecture = "Llama4ForCausalLM",
    .defaults = {.n_vocab = 202048, .n_embd = 5120, .n_layer = 48, .n_position = 131072, .rms_eps = 1e-5,
                 .n_expert = 16, .top_k = 1, .n_ff_expert = 8192, .router.kind = MOEC_ROUTER_SIGMOID_CHOSEN,
                 .router.scales_input = true, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 40, .n_kv_head = 8, .head_dim = 128, .rope_theta = 500000.0,
                            .n_ff_dense = 16384}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_SHARED("feed_forward.shared_expert"),
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "feed_forward.router.weight",
        [MOEC_ROLE_DENSE_GATE] = MOEC_LAYER_NAME "feed_forward.gate_proj.weight",
        [MOEC_ROLE_DENSE_UP] = MOEC_LAYER_NAME "feed_forward.up_proj.weight",
        [MOEC_ROLE_DENSE_DOWN] = MOEC_LAYER_NAME "feed_forward.down_proj.weight",
    },
    .layouts = {[MOEC_ROLE_Q] = {.has_pairs = true}, [MOEC_ROLE_K] = {.has_pairs = true}},
    .expert_names = {[MOEC_PROJECTION_GATE] = EXPERTS "gate_up_proj",
                     [MOEC_PROJECTION_UP] = EXPERTS "gate_up_proj",
                     [MOEC_PROJECTION_DOWN] = EXPERTS "down_proj"},
    .expert_layouts = {
        [MOEC_PROJECTION_GATE] = {.is_stacked = true, .is_transposed = true, .n_part = 2},
        [MOEC_PROJECTION_UP] = {.is_stacked = true, .is_transposed = true, .n_part = 2, .part = 1},
        [MOEC_PROJECTION_DOWN] = {.is_stacked = true, .is_transposed = true},
    },
    /* As compressed-tensors takes them apart. */
    .other_experts = {{.names = {MOEC_NAMES_EXPERTS("feed_forward.experts", "gate_proj", "up_proj",
                                                    "down_proj")}}},
};
/* clang-format on */
