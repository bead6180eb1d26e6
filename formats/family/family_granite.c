/* Granite 3 and 4 MoE, without and with a shared expert, and with layers of state spaces: four multipliers,
 * experts stacked in two tensors. */
#include "formats/family/family_parts.h"

#include <stdio.h>
#include <string.h>

static enum moec_status read_fields(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    double scale = 1;
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_local_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    MOEC_TRY(moec_json_update_u32(root, where, "shared_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_shared, err));
    MOEC_TRY(moec_family_read_factor(root, where, "embedding_multiplier", 1, &config->scale.embedding, err));
    MOEC_TRY(moec_family_read_factor(root, where, "residual_multiplier", 1, &config->scale.residual, err));
    MOEC_TRY(moec_family_read_factor(root, where, "logits_scaling", 1, &config->scale.logit_divisor, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "attention_multiplier", 1e-30, 1e30, 1, &scale, err));
    config->kinds[0].score_scale = (float)scale;
    return moec_family_read_bias(root, where, true, config, err);
}

static enum moec_status read_granite(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    MOEC_TRY(read_fields(root, where, config, err));
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_granite(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_local_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    moec_family_put_factor(root, "embedding_multiplier", config->scale.embedding);
    moec_family_put_factor(root, "residual_multiplier", config->scale.residual);
    moec_family_put_factor(root, "logits_scaling", config->scale.logit_divisor);
    moec_json_out_double(root, "attention_multiplier", (double)moec_config_attention(config)->score_scale);
    moec_family_put_bias(config, root);
}

static enum moec_status read_without_shared(const struct moec_json *root, const char *where,
                                            struct moec_config *config, struct moec_error *err)
{
    const struct moec_json *shared = moec_json_present(root, "shared_intermediate_size");
    if (shared != NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s has 'shared_intermediate_size', which 'granitemoe' models do not have: expected 'model_type' "
            "'granitemoeshared'",
            where);
    return read_granite(root, where, config, err);
}

static void write_shared(const struct moec_config *config, struct moec_json_out *root)
{
    write_granite(config, root);
    moec_json_out_u64(root, "shared_intermediate_size", config->n_ff_shared);
}

/* ---- with state spaces ---- */

static enum moec_status read_space(const struct moec_json *root, const char *where,
                                   const struct moec_config *config, struct moec_layer_kind *space,
                                   struct moec_error *err)
{
    const struct moec_json *dim = moec_json_present(root, "mamba_d_head");
    const uint32_t most = MOEC_MAX_DIMENSION;
    uint32_t expand = 2;
    bool has_bias = true;
    *space = (struct moec_layer_kind){.mixer = MOEC_MIXER_SPACE,
                                      .conv_size = 4,
                                      .n_head = 128,
                                      .n_kv_head = 1,
                                      .head_dim = 256,
                                      .is_moe = true};
    MOEC_TRY(moec_json_update_u32(root, where, "mamba_d_conv", most, &space->conv_size, err));
    MOEC_TRY(moec_json_update_u32(root, where, "mamba_n_heads", most, &space->n_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "mamba_n_groups", most, &space->n_kv_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "mamba_d_state", most, &space->head_dim, err));
    MOEC_TRY(moec_json_update_u32(root, where, "mamba_expand", 1024, &expand, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "mamba_conv_bias", true, &has_bias, err));
    if (!has_bias)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'mamba_conv_bias' false, only true is supported: moec does not implement state-space "
            "convolutions without a bias",
            where);
    MOEC_TRY(moec_family_refuse_flag(root, where, "mamba_proj_bias", "biases of projections", err));
    MOEC_TRY(moec_family_check_step_limit(root, where, err));
    space->value_dim = space->n_head > 0 ? (uint32_t)((uint64_t)expand * config->n_embd / space->n_head) : 0;
    if (dim != NULL && moec_json_type(dim) != MOEC_JSON_STRING)
        MOEC_TRY(moec_json_update_u32(root, where, "mamba_d_head", most, &space->value_dim, err));
    return MOEC_OK;
}

/* `layer_types`, in the words of Granite or of transformers. */
static enum moec_status read_types(const struct moec_json *root, const char *where,
                                   const struct moec_config *config, struct moec_family_layers *layers,
                                   struct moec_error *err)
{
    const struct moec_json *list = NULL;
    MOEC_TRY(moec_json_get(root, where, "layer_types", MOEC_JSON_ARRAY, &list, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const char *type = NULL;
        char what[256];
        (void)snprintf(what, sizeof what, "'layer_types'[%u] in %.200s", layer, where);
        if (layer >= moec_json_length(list))
            return moec_fail(err, MOEC_ERR_FORMAT, "%s is missing, expected a type for each layer", what);
        MOEC_TRY(moec_json_as_string(moec_json_at(list, layer), what, &type, NULL, err));
        layers->is_running[layer] = strcmp(type, "mamba") == 0 || strcmp(type, "linear_attention") == 0;
        if (!layers->is_running[layer] && strcmp(type, "attention") != 0 &&
            strcmp(type, "full_attention") != 0)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s is '%.40s', supported: 'attention', 'mamba'",
                             what, type);
        layers->is_moe[layer] = 1;
    }
    return MOEC_OK;
}

static enum moec_status read_hybrid(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    const char *positions = NULL;
    MOEC_TRY(read_fields(root, where, config, err));
    MOEC_TRY(read_space(root, where, config, &layers.running, err));
    MOEC_TRY(read_types(root, where, config, &layers, err));
    MOEC_TRY(moec_json_get_string_or(root, where, "position_embedding_type", "nope", &positions, err));
    if (strcmp(positions, "rope") != 0) {
        config->kinds[0].rope_theta = 0;
        config->kinds[0].rope_scaling = (struct moec_rope_scaling){0};
    }
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_hybrid(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *types = moec_json_out_array();
    write_granite(config, root);
    moec_json_out_u64(root, "shared_intermediate_size", config->n_ff_shared);
    moec_json_out_string(root, "position_embedding_type",
                         moec_config_attention(config)->rope_theta > 0 ? "rope" : "nope");
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        moec_json_out_string(types, NULL,
                             moec_layer_is_running(moec_config_layer(config, layer)) ? "mamba" : "attention");
    moec_json_out_node(root, "layer_types", types);
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        if (!moec_layer_is_running(kind))
            continue;
        moec_json_out_u64(root, "mamba_d_conv", kind->conv_size);
        moec_json_out_u64(root, "mamba_n_heads", kind->n_head);
        moec_json_out_u64(root, "mamba_n_groups", kind->n_kv_head);
        moec_json_out_u64(root, "mamba_d_state", kind->head_dim);
        moec_json_out_u64(root, "mamba_d_head", kind->value_dim);
        moec_json_out_u64(root, "mamba_expand", moec_layer_out_dim(kind) / config->n_embd);
    }
}

static struct moec_tensor_layout hybrid_layout(const struct moec_config *config, enum moec_role role,
                                               uint32_t layer)
{
    if (role == MOEC_ROLE_SHARED_GATE || role == MOEC_ROLE_SHARED_UP)
        return (struct moec_tensor_layout){.n_part = 2, .part = role == MOEC_ROLE_SHARED_UP};
    return moec_family_space_layout(config, role, layer);
}

/* clang-format off */
#define EXPERTS MOEC_LAYER_NAME "block_sparse_moe."

#define ROW                                                                                                  \
    .defaults = {.n_vocab = 32000, .n_embd = 4096, .n_layer = 32, .n_position = 2048, .rms_eps = 1e-6,       \
                 .n_expert = 8, .top_k = 2, .n_ff_expert = 11008, .router.kind = MOEC_ROUTER_SOFTMAX_CHOSEN, \
                 .ids.n_eos = 1, .ids.eos = {2}, .kinds = {{.n_head = 32, .rope_theta = 10000.0}}},              \
    .names = {                                                                                               \
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, [MOEC_ROLE_ROUTER] = EXPERTS "router.layer.weight",          \
        [MOEC_ROLE_SHARED_GATE] = MOEC_LAYER_NAME "shared_mlp.input_linear.weight",                          \
        [MOEC_ROLE_SHARED_UP] = MOEC_LAYER_NAME "shared_mlp.input_linear.weight",                            \
        [MOEC_ROLE_SHARED_DOWN] = MOEC_LAYER_NAME "shared_mlp.output_linear.weight",                         \
    },                                                                                                       \
    .layouts = {[MOEC_ROLE_SHARED_GATE] = {.n_part = 2}, [MOEC_ROLE_SHARED_UP] = {.n_part = 2, .part = 1}},  \
    .expert_names = {                                                                                        \
        [MOEC_PROJECTION_GATE] = EXPERTS "input_linear.weight",                                              \
        [MOEC_PROJECTION_UP] = EXPERTS "input_linear.weight",                                                \
        [MOEC_PROJECTION_DOWN] = EXPERTS "output_linear.weight",                                             \
    },                                                                                                       \
    .expert_layouts = {                                                                                      \
        [MOEC_PROJECTION_GATE] = {.is_stacked = true, .n_part = 2},                                          \
        [MOEC_PROJECTION_UP] = {.is_stacked = true, .n_part = 2, .part = 1},                                 \
        [MOEC_PROJECTION_DOWN] = {.is_stacked = true},                                                       \
    }

const struct moec_family moec_family_granitemoehybrid = {
    .model_type = "granitemoehybrid",
    .read = read_hybrid,
    .write = write_hybrid,
    .architecture = "GraniteMoeHybridForCausalLM",
    .layout_of = hybrid_layout,
    .running_names = {MOEC_NAMES_SPACE("model.layers.{L}.mamba.")},
    ROW,
};

const struct moec_family moec_family_granitemoe = {
    .model_type = "granitemoe",
    .read = read_without_shared,
    .write = write_granite,
    .architecture = "GraniteMoeForCausalLM",
    ROW,
};

const struct moec_family moec_family_granitemoeshared = {
    .model_type = "granitemoeshared",
    .read = read_granite,
    .write = write_shared,
    .architecture = "GraniteMoeSharedForCausalLM",
    ROW,
};
/* clang-format on */
