/* Kimi Linear (arXiv 2510.26692): three layers of Kimi Delta Attention, then one of latent attention without
 * RoPE; experts as DeepSeek-V3 has them. */
#include "formats/family/family_parts.h"

#include <stdio.h>
#include <string.h>

static const struct moec_family_routed_keys keys = {.n_expert = "num_experts",
                                                    .n_shared = "num_shared_experts",
                                                    .n_shared_default = 1,
                                                    .scale = "routed_scaling_factor",
                                                    .scale_default = 2.446,
                                                    .has_norm = true,
                                                    .has_groups = true,
                                                    .norm = "moe_renormalize",
                                                    .n_group = "num_expert_group"};

/* What the published config.json says and transformers' class does not know. */
static enum moec_status refuse_others(const struct moec_json *root, const char *where, struct moec_error *err)
{
    const char *score = NULL;
    bool has_no_rope = true;
    MOEC_TRY(moec_json_get_string_or(root, where, "moe_router_activation_func", "sigmoid", &score, err));
    if (strcmp(score, "sigmoid") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'moe_router_activation_func' '%.40s', only 'sigmoid' is supported", where,
                         score);
    MOEC_TRY(moec_json_get_bool_or(root, where, "mla_use_nope", true, &has_no_rope, err));
    if (!has_no_rope)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'mla_use_nope' false, only true is supported: moec does not implement RoPE in this "
            "family's latent attention",
            where);
    return moec_family_refuse_flag(root, where, "attention_bias", "biases of latent projections", err);
}

/* Numbers of layers, from 1 on. */
static enum moec_status read_numbers(const struct moec_json *attention, const char *where, const char *key,
                                     uint8_t value, const struct moec_config *config,
                                     struct moec_family_layers *layers, struct moec_error *err)
{
    const struct moec_json *list = NULL;
    MOEC_TRY(moec_json_get(attention, where, key, MOEC_JSON_ARRAY, &list, err));
    for (size_t i = 0; i < moec_json_length(list); i++) {
        uint64_t number = 0;
        char what[300];
        (void)snprintf(what, sizeof what, "'%s'[%zu] in %.200s", key, i, where);
        MOEC_TRY(moec_json_as_u64(moec_json_at(list, i), what, 1, MOEC_MAX_LAYERS, &number, err));
        if (number <= config->n_layer)
            layers->is_running[number - 1] = value;
    }
    return MOEC_OK;
}

/* 'linear_attn_config', as it is published, or what transformers writes. */
static enum moec_status read_linear(const struct moec_json *root, const char *where,
                                    const struct moec_config *config, struct moec_family_layers *layers,
                                    struct moec_error *err)
{
    struct moec_layer_kind *kind = &layers->running;
    const struct moec_json *inner = moec_json_present(root, "linear_attn_config");
    const uint32_t most = MOEC_MAX_DIMENSION;
    char what[300];
    *kind = (struct moec_layer_kind){
        .mixer = MOEC_MIXER_CHANNEL_DELTA, .conv_size = 4, .n_head = 32, .head_dim = 128};
    MOEC_TRY(moec_json_update_u32(root, where, "linear_conv_kernel_dim", most, &kind->conv_size, err));
    MOEC_TRY(moec_json_update_u32(root, where, "linear_num_heads", most, &kind->n_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "linear_head_dim", most, &kind->head_dim, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers->is_running[layer] = layer == 0 || layer % 4 != 0;
    (void)snprintf(what, sizeof what, "'linear_attn_config' of %.200s", where);
    if (inner != NULL) {
        MOEC_TRY(moec_json_get(root, where, "linear_attn_config", MOEC_JSON_OBJECT, &inner, err));
        MOEC_TRY(moec_json_update_u32(inner, what, "short_conv_kernel_size", most, &kind->conv_size, err));
        MOEC_TRY(moec_json_update_u32(inner, what, "num_heads", most, &kind->n_head, err));
        MOEC_TRY(moec_json_update_u32(inner, what, "head_dim", most, &kind->head_dim, err));
        MOEC_TRY(read_numbers(inner, what, "kda_layers", 1, config, layers, err));
        MOEC_TRY(read_numbers(inner, what, "full_attn_layers", 0, config, layers, err));
    }
    kind->n_kv_head = kind->n_head;
    return moec_family_read_layer_types(root, where, config, layers, err);
}

static enum moec_status read_kimi(const struct moec_json *root, const char *where, struct moec_config *config,
                                  struct moec_error *err)
{
    struct moec_family_layers layers = {.n_dense = 1};
    uint64_t step = 1;
    MOEC_TRY(refuse_others(root, where, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_experts_per_token", MOEC_MAX_TOP_K, &config->top_k, err));
    MOEC_TRY(
        moec_json_update_u32(root, where, "model_max_length", MOEC_MAX_POSITIONS, &config->n_position, err));
    MOEC_TRY(moec_family_read_routed(root, where, &keys, config, err));
    MOEC_TRY(moec_family_read_latent(root, where, config, err));
    MOEC_TRY(read_linear(root, where, config, &layers, err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "moe_layer_freq", 1, MOEC_MAX_DIMENSION, 1, &step, err));
    MOEC_TRY(moec_family_read_mlp_types(root, where, config, &layers, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers.is_moe[layer] = layers.is_moe[layer] && layer % step == 0;
    MOEC_TRY(moec_family_read_dense_size(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_kimi(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_experts_per_token", config->top_k);
    moec_json_out_u64(root, "model_max_length", config->n_position);
    moec_family_put_routed(config, &keys, root);
    moec_family_put_latent(config, root);
    moec_family_put_layer_types(config, root);
    moec_family_put_mlp_types(config, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        if (!moec_layer_is_running(kind))
            continue;
        moec_json_out_u64(root, "linear_conv_kernel_dim", kind->conv_size);
        moec_json_out_u64(root, "linear_num_heads", kind->n_head);
        moec_json_out_u64(root, "linear_head_dim", kind->head_dim);
    }
}

static struct moec_tensor_layout layout_of(const struct moec_config *config, enum moec_role role,
                                           uint32_t layer)
{
    (void)config;
    (void)layer;
    const bool is_log = role == MOEC_ROLE_DELTA_DECAY_LOG;
    return (struct moec_tensor_layout){
        .is_convolution = role == MOEC_ROLE_Q_CONVOLUTION || role == MOEC_ROLE_K_CONVOLUTION ||
                          role == MOEC_ROLE_V_CONVOLUTION,
        .is_flat = is_log,
        .is_four = is_log,
    };
}

/* clang-format off */
#define ATTENTION MOEC_LAYER_NAME "self_attn."
#define EXPERTS MOEC_LAYER_NAME "block_sparse_moe."

const struct moec_family moec_family_kimi_linear = {
    .model_type = "kimi_linear",
    .read = read_kimi,
    .write = write_kimi,
    .has_own_rope = true,
    .architecture = "KimiLinearForCausalLM",
    .layout_of = layout_of,
    .defaults = {.n_vocab = 163840, .n_embd = 2304, .n_layer = 27, .n_position = 1048576, .rms_eps = 1e-5,
                 .n_expert = 256, .top_k = 8, .n_ff_expert = 1024, .router.kind = MOEC_ROUTER_SIGMOID,
                 .router.choice_bias = true, .router.norm_topk_prob = true, .router.group_score = MOEC_GROUP_BEST_TWO,
                 .ids.n_eos = 1, .ids.eos = {163586},
                 .kinds = {{.n_head = 32, .head_dim = 192, .rotary_dim = 64, .value_dim = 128,
                            .latent_dim = 512, .n_ff_dense = 9216}}},
    .names = {
        MOEC_NAMES_NORMS, MOEC_NAMES_DENSE,
        [MOEC_ROLE_EMBEDDING] = "model.embed_tokens.weight", [MOEC_ROLE_HEAD] = "lm_head.weight",
        [MOEC_ROLE_FINAL_NORM] = "model.norm.weight",
        [MOEC_ROLE_K] = ATTENTION "k_proj.weight", [MOEC_ROLE_V] = ATTENTION "v_proj.weight",
        [MOEC_ROLE_O] = ATTENTION "o_proj.weight",
        MOEC_NAMES_SHARED("block_sparse_moe.shared_experts"),
        [MOEC_ROLE_Q] = ATTENTION "q_b_proj.weight", [MOEC_ROLE_Q_DOWN] = ATTENTION "q_a_proj.weight",
        [MOEC_ROLE_Q_DOWN_NORM] = ATTENTION "q_a_layernorm.weight",
        [MOEC_ROLE_KV_DOWN] = ATTENTION "kv_a_proj_with_mqa.weight",
        [MOEC_ROLE_KV_DOWN_NORM] = ATTENTION "kv_a_layernorm.weight",
        [MOEC_ROLE_KV_UP] = ATTENTION "kv_b_proj.weight",
        [MOEC_ROLE_ROUTER] = EXPERTS "gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = EXPERTS "gate.e_score_correction_bias",
        [MOEC_ROLE_Q_CONVOLUTION] = ATTENTION "q_conv1d.weight",
        [MOEC_ROLE_K_CONVOLUTION] = ATTENTION "k_conv1d.weight",
        [MOEC_ROLE_V_CONVOLUTION] = ATTENTION "v_conv1d.weight",
        [MOEC_ROLE_DELTA_RATE] = ATTENTION "b_proj.weight",
        [MOEC_ROLE_DELTA_DECAY_DOWN] = ATTENTION "f_a_proj.weight",
        [MOEC_ROLE_DELTA_DECAY] = ATTENTION "f_b_proj.weight",
        [MOEC_ROLE_DELTA_DECAY_LOG] = ATTENTION "A_log",
        [MOEC_ROLE_DELTA_DECAY_BIAS] = ATTENTION "dt_bias",
        [MOEC_ROLE_OUTPUT_GATE_DOWN] = ATTENTION "g_a_proj.weight",
        [MOEC_ROLE_OUTPUT_GATE] = ATTENTION "g_b_proj.weight",
        [MOEC_ROLE_DELTA_NORM] = ATTENTION "o_norm.weight",
    },
    .direct_q_name = ATTENTION "q_proj.weight",
    .running_names = {[MOEC_ROLE_Q] = ATTENTION "q_proj.weight"},
    /* transformers 5 writes MLPs of the first layers so. */
    .other_names = {
        [MOEC_ROLE_DENSE_UP] = EXPERTS "up_proj.weight", [MOEC_ROLE_DENSE_GATE] = EXPERTS "gate_proj.weight",
        [MOEC_ROLE_DENSE_DOWN] = EXPERTS "down_proj.weight",
    },
    .expert_names = {MOEC_NAMES_EXPERTS("block_sparse_moe.experts", "w1", "w3", "w2")},
    .other_experts = {MOEC_STACKED_EXPERTS("mlp.experts")},
};
/* clang-format on */
