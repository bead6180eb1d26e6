/* The text of Gemma 4's MoE models: layers with a window and layers without one differ in their heads, and
 * the latter have no values but their keys. Each layer has an MLP beside its experts, and norms everywhere.
 */
#include "formats/family/family_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *type_of(const struct moec_layer_kind *kind)
{
    return kind->window > 0 ? "sliding_attention" : "full_attention";
}

/* A factor that leaves n of a head's pairs turning; 0 where all do. */
static double turning_factor(uint32_t n, uint32_t head_dim)
{
    const uint32_t n_pair = head_dim / 2;
    return n < n_pair ? (double)n_pair / (double)n : 0;
}

static enum moec_status read_rope(const struct moec_json *root, const char *where,
                                  struct moec_layer_kind *kind, struct moec_error *err)
{
    const struct moec_json *all = moec_json_present(root, "rope_parameters"), *rope = NULL;
    const bool is_full = kind->window == 0;
    const char *type = is_full ? "proportional" : "default";
    char outer[256], inner[300];
    double part = is_full ? 0.25 : 1;
    kind->rope_theta = is_full ? 1000000.0 : 10000.0;
    (void)snprintf(outer, sizeof outer, "'rope_parameters' of %.200s", where);
    (void)snprintf(inner, sizeof inner, "'%s' in %.250s", type_of(kind), outer);
    if (all != NULL) {
        MOEC_TRY(moec_json_get(root, where, "rope_parameters", MOEC_JSON_OBJECT, &all, err));
        MOEC_TRY(moec_json_get(all, outer, type_of(kind), MOEC_JSON_OBJECT, &rope, err));
        MOEC_TRY(moec_json_get_string_or(rope, inner, "rope_type", "default", &type, err));
        MOEC_TRY(moec_json_get_double_or(rope, inner, "rope_theta", MOEC_MIN_ROPE_THETA, MOEC_MAX_ROPE_THETA,
                                         kind->rope_theta, &kind->rope_theta, err));
        MOEC_TRY(moec_json_get_double_or(rope, inner, "partial_rotary_factor", 0, 1, 1, &part, err));
    }
    const bool is_proportional = strcmp(type, "proportional") == 0;
    if (!is_proportional && strcmp(type, "default") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s asks for RoPE of type '%.40s', supported: 'default', 'proportional'", inner,
                         type);
    const uint32_t n = is_proportional ? (uint32_t)(part * kind->head_dim / 2) : kind->head_dim / 2;
    if (n == 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s rotates 0 pairs of dimensions per head, expected 1 or more: "
                         "'partial_rotary_factor' or 'head_dim' is too small",
                         inner);
    const double factor = turning_factor(n, kind->head_dim);
    if (factor > 0)
        kind->rope_scaling = (struct moec_rope_scaling){.kind = MOEC_ROPE_PROPORTIONAL, .factor = factor};
    return MOEC_OK;
}

/* What `per_layer_config` says of a layer. */
static enum moec_status read_own(const struct moec_json *root, const char *where, uint32_t layer,
                                 struct moec_layer_kind *kind, struct moec_error *err)
{
    const struct moec_json *all = NULL;
    char inner[256], key[16];
    MOEC_TRY(moec_json_get(root, where, "per_layer_config", MOEC_JSON_OBJECT, &all, err));
    (void)snprintf(key, sizeof key, "%u", layer);
    (void)snprintf(inner, sizeof inner, "'per_layer_config' of %.200s", where);
    if (moec_json_present(all, key) == NULL)
        return MOEC_OK;
    const struct moec_json *own = NULL;
    MOEC_TRY(moec_json_get(all, inner, key, MOEC_JSON_OBJECT, &own, err));
    MOEC_TRY(moec_json_update_u32(own, inner, "head_dim", MOEC_MAX_DIMENSION, &kind->head_dim, err));
    return moec_json_update_u32(own, inner, "num_key_value_heads", MOEC_MAX_DIMENSION, &kind->n_kv_head, err);
}

static enum moec_status place_layers(const struct moec_json *root, const char *where,
                                     const struct moec_family_layers *layers, struct moec_config *config,
                                     struct moec_error *err)
{
    const struct moec_layer_kind sliding = config->kinds[0];
    const bool has_own = moec_json_present(root, "per_layer_config") != NULL;
    const uint32_t n_layer = config->n_layer;
    uint32_t head_dim = 512, n_kv_head = sliding.n_kv_head;
    bool keys_are_values = false;
    MOEC_TRY(moec_json_get_bool_or(root, where, "attention_k_eq_v", false, &keys_are_values, err));
    MOEC_TRY(moec_json_update_u32(root, where, "global_head_dim", MOEC_MAX_DIMENSION, &head_dim, err));
    if (keys_are_values)
        MOEC_TRY(moec_json_update_u32(root, where, "num_global_key_value_heads", MOEC_MAX_DIMENSION,
                                      &n_kv_head, err));
    config->n_kind = 0;
    config->n_layer = 0;
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        const bool is_full = layers->has_window[layer] == 0;
        struct moec_layer_kind kind = sliding;
        kind.window = is_full ? 0 : layers->window;
        kind.keys_are_values = is_full && keys_are_values;
        if (is_full && !has_own) {
            kind.head_dim = head_dim;
            kind.n_kv_head = n_kv_head;
        }
        if (has_own)
            MOEC_TRY(read_own(root, where, layer, &kind, err));
        MOEC_TRY(read_rope(root, where, &kind, err));
        if (!moec_config_add_layer(config, &kind))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %u kinds of layers", where,
                             MOEC_MAX_LAYER_KINDS);
    }
    return MOEC_OK;
}

/* Features that the text of MoE models does without. */
static enum moec_status refuse_others(const struct moec_json *root, const char *where, struct moec_error *err)
{
    static const struct {
        const char *key, *needed;
        uint32_t assumed;
    } counts[] = {{"hidden_size_per_layer_input", "per-layer embeddings", 256},
                  {"num_kv_shared_layers", "keys and values shared between layers", 0}};
    const char *activation = NULL, *direction = NULL;
    bool has_experts = false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint32_t n = counts[i].assumed;
        MOEC_TRY(moec_json_update_u32(root, where, counts[i].key, MOEC_MAX_DIMENSION, &n, err));
        if (n > 0)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "%s says '%s' %u, only 0 is supported: moec does not implement %s", where,
                             counts[i].key, n, counts[i].needed);
    }
    MOEC_TRY(moec_json_get_bool_or(root, where, "enable_moe_block", false, &has_experts, err));
    if (!has_experts)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s does not say 'enable_moe_block' true: the model has no experts", where);
    MOEC_TRY(moec_family_refuse_flag(root, where, "attention_bias", "attention biases", err));
    MOEC_TRY(moec_json_get_string_or(root, where, "use_bidirectional_attention", "vision", &direction, err));
    if (strcmp(direction, "vision") != 0)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'use_bidirectional_attention' '%.40s', only null and 'vision' are supported", where,
            direction);
    MOEC_TRY(
        moec_json_get_string_or(root, where, "hidden_activation", "gelu_pytorch_tanh", &activation, err));
    if (strcmp(activation, "gelu_pytorch_tanh") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'hidden_activation' '%.40s', only 'gelu_pytorch_tanh' is supported", where,
                         activation);
    return MOEC_OK;
}

static enum moec_status read_gemma4(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {.window = 512};
    double cap = 0;
    MOEC_TRY(refuse_others(root, where, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "top_k_experts", MOEC_MAX_TOP_K, &config->top_k, err));
    MOEC_TRY(moec_json_update_u32(root, where, "moe_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_shared,
                                  err));
    MOEC_TRY(moec_json_get_double_or(root, where, "final_logit_softcapping", 0, 1e6, 0, &cap, err));
    config->scale.logit_cap = (float)cap;
    config->scale.embedding = (float)sqrt(config->n_embd);
    MOEC_TRY(moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &layers.window, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers.has_window[layer] = (layer + 1) % 6 != 0;
    MOEC_TRY(moec_family_read_layer_types(root, where, config, &layers, err));
    if (config->n_layer > 0)
        layers.has_window[config->n_layer - 1] = 0;
    return place_layers(root, where, &layers, config, err);
}

static void put_rope(const struct moec_layer_kind *kind, struct moec_json_out *root)
{
    struct moec_json_out *rope = moec_json_out_object();
    const bool is_part = kind->rope_scaling.kind == MOEC_ROPE_PROPORTIONAL;
    double part = is_part ? 1 / kind->rope_scaling.factor : 1;
    while (is_part &&
           turning_factor((uint32_t)(part * kind->head_dim / 2), kind->head_dim) != kind->rope_scaling.factor)
        part = nextafter(part, 2);
    moec_json_out_string(rope, "rope_type", is_part ? "proportional" : "default");
    moec_json_out_double(rope, "rope_theta", kind->rope_theta);
    moec_json_out_double(rope, "partial_rotary_factor", part);
    moec_json_out_node(root, type_of(kind), rope);
}

static void write_gemma4(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *rope = moec_json_out_object();
    bool has_written[2] = {false, false};
    moec_json_out_bool(root, "enable_moe_block", true);
    moec_json_out_u64(root, "hidden_size_per_layer_input", 0);
    moec_json_out_u64(root, "num_kv_shared_layers", 0);
    moec_json_out_string(root, "hidden_activation", "gelu_pytorch_tanh");
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "top_k_experts", config->top_k);
    moec_json_out_u64(root, "moe_intermediate_size", config->n_ff_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_shared);
    if (config->scale.logit_cap > 0)
        moec_json_out_double(root, "final_logit_softcapping", (double)config->scale.logit_cap);
    moec_family_put_layer_types(config, root);
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        const bool is_full = kind->window == 0;
        if (has_written[is_full])
            continue;
        has_written[is_full] = true;
        put_rope(kind, rope);
        if (!is_full)
            continue;
        moec_json_out_bool(root, "attention_k_eq_v", kind->keys_are_values);
        moec_json_out_u64(root, "global_head_dim", kind->head_dim);
        moec_json_out_u64(root, "num_global_key_value_heads", kind->n_kv_head);
    }
    moec_json_out_node(root, "rope_parameters", rope);
}

/* clang-format off */
#define LAYER MOEC_LAYER_NAME

const struct moec_family moec_family_gemma4 = {
    .model_type = "gemma4_text",
    .outer_type = "gemma4",
    .read = read_gemma4,
    .write = write_gemma4,
    .has_own_rope = true,
    .architecture = "Gemma4ForCausalLM",
    .defaults = {.n_vocab = 262144, .n_embd = 2304, .n_layer = 30, .n_position = 131072, .rms_eps = 1e-6,
                 .head.is_tied = true, .norms = MOEC_NORMS_AROUND, .mlp.own_norms = true, .scale.has_layer = true,
                 .n_ff_shared = 9216, .mlp.activation = MOEC_ACTIVATION_GELU_TANH, .router.norm_topk_prob = true,
                 .ids.n_eos = 1, .ids.eos = {1},
                 .kinds = {{.n_head = 8, .n_kv_head = 4, .head_dim = 256, .score_scale = 1,
                            .qk_norm = MOEC_QK_NORM_HEAD, .v_norm = true, .is_moe = true}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_QK_NORM, MOEC_NAMES_SHARED("mlp"),
        [MOEC_ROLE_ATTENTION_NORM] = LAYER "input_layernorm.weight",
        [MOEC_ROLE_ATTENTION_POST_NORM] = LAYER "post_attention_layernorm.weight",
        [MOEC_ROLE_MLP_NORM] = LAYER "pre_feedforward_layernorm.weight",
        [MOEC_ROLE_MLP_POST_NORM] = LAYER "post_feedforward_layernorm.weight",
        [MOEC_ROLE_SHARED_POST_NORM] = LAYER "post_feedforward_layernorm_1.weight",
        [MOEC_ROLE_EXPERT_NORM] = LAYER "pre_feedforward_layernorm_2.weight",
        [MOEC_ROLE_EXPERT_POST_NORM] = LAYER "post_feedforward_layernorm_2.weight",
        [MOEC_ROLE_LAYER_SCALE] = LAYER "layer_scalar",
        [MOEC_ROLE_ROUTER] = LAYER "router.proj.weight",
        [MOEC_ROLE_ROUTER_NORM] = LAYER "router.scale",
        [MOEC_ROLE_ROUTER_EXPERT_SCALE] = LAYER "router.per_expert_scale",
    },
    .expert_names = {
        [MOEC_PROJECTION_GATE] = LAYER "experts.gate_up_proj",
        [MOEC_PROJECTION_UP] = LAYER "experts.gate_up_proj",
        [MOEC_PROJECTION_DOWN] = LAYER "experts.down_proj",
    },
    .expert_layouts = {
        [MOEC_PROJECTION_GATE] = {.is_stacked = true, .n_part = 2},
        [MOEC_PROJECTION_UP] = {.is_stacked = true, .n_part = 2, .part = 1},
        [MOEC_PROJECTION_DOWN] = {.is_stacked = true},
    },
};
/* clang-format on */
