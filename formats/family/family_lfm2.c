/* LFM2 MoE (Liquid): most layers are short convolutions, whose three input projections are one tensor. */
#include "formats/family/family_parts.h"

static enum moec_status read_router(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    MOEC_TRY(moec_json_update_u32(root, where, "num_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "moe_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_expert, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "use_expert_bias", true, &config->router.choice_bias, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "norm_topk_prob", true, &config->router.norm_topk_prob, err));
    config->router.soft_sum = config->router.norm_topk_prob;
    return moec_family_read_factor(root, where, "routed_scaling_factor", 1, &config->router.scale, err);
}

static enum moec_status read_lfm2(const struct moec_json *root, const char *where, struct moec_config *config,
                                  struct moec_error *err)
{
    struct moec_family_layers layers = {.n_dense = 2};
    struct moec_layer_kind *running = &layers.running;
    MOEC_TRY(read_router(root, where, config, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "norm_eps", 0, 1, config->rms_eps, &config->rms_eps, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "tie_embedding", config->head.is_tied, &config->head.is_tied,
                                   err));
    MOEC_TRY(moec_family_refuse_flag(root, where, "conv_bias", "biases of convolutions", err));
    *running = (struct moec_layer_kind){.mixer = MOEC_MIXER_CONVOLUTION,
                                        .n_head = 1,
                                        .n_kv_head = 1,
                                        .head_dim = config->n_embd,
                                        .conv_size = 3};
    MOEC_TRY(moec_json_update_u32(root, where, "conv_L_cache", MOEC_MAX_DIMENSION, &running->conv_size, err));
    if (moec_json_present(root, "layer_types") == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has no 'layer_types', expected 'conv' or 'full_attention' for each layer",
                         where);
    MOEC_TRY(moec_family_read_layer_types(root, where, config, &layers, err));
    MOEC_TRY(moec_family_read_first_dense(root, where, "num_dense_layers", config, &layers, err));
    running->n_ff_dense = config->kinds[0].n_ff_dense;
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_lfm2(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_double(root, "norm_eps", config->rms_eps);
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "moe_intermediate_size", config->n_ff_expert);
    moec_json_out_bool(root, "use_expert_bias", config->router.choice_bias);
    moec_json_out_bool(root, "norm_topk_prob", config->router.norm_topk_prob);
    moec_family_put_factor(root, "routed_scaling_factor", config->router.scale);
    moec_json_out_bool(root, "conv_bias", false);
    for (uint32_t kind = 0; kind < config->n_kind; kind++)
        if (moec_layer_is_running(&config->kinds[kind]))
            moec_json_out_u64(root, "conv_L_cache", config->kinds[kind].conv_size);
    moec_family_put_first_dense(config, "num_dense_layers", root);
    moec_family_put_layer_types(config, root);
}

/* in_proj has the gate of inputs, the gate of outputs, then what is convolved. */
static struct moec_tensor_layout layout_of(const struct moec_config *config, enum moec_role role,
                                           uint32_t layer)
{
    static const enum moec_role parts[] = {MOEC_ROLE_INPUT_GATE, MOEC_ROLE_OUTPUT_GATE, MOEC_ROLE_V};
    struct moec_tensor_layout layout = {.is_convolution = role == MOEC_ROLE_CONVOLUTION};
    if (layer == MOEC_LAYER_NONE || !moec_layer_is_running(moec_config_layer(config, layer)))
        return layout;
    const uint32_t n = moec_layer_out_dim(moec_config_layer(config, layer));
    for (uint32_t i = 0; i < 3; i++)
        if (role == parts[i])
            layout = (struct moec_tensor_layout){.block_rows = n, .block_first = i * n, .block_step = 3 * n};
    return layout;
}

/* clang-format off */
#define LAYER MOEC_LAYER_NAME

const struct moec_family moec_family_lfm2_moe = {
    .model_type = "lfm2_moe",
    .read = read_lfm2,
    .write = write_lfm2,
    .architecture = "Lfm2MoeForCausalLM",
    .defaults = {.n_vocab = 65536, .n_embd = 2048, .n_layer = 32, .n_position = 128000, .rms_eps = 1e-5,
                 .head.is_tied = true, .n_expert = 32, .top_k = 4, .n_ff_expert = 1792,
                 .router.kind = MOEC_ROUTER_SIGMOID, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 32, .n_kv_head = 8, .rope_theta = 1000000.0, .n_ff_dense = 7168,
                            .qk_norm = MOEC_QK_NORM_HEAD}}},
    .names = {
        [MOEC_ROLE_EMBEDDING] = "model.embed_tokens.weight",
        [MOEC_ROLE_HEAD] = "lm_head.weight",
        [MOEC_ROLE_Q] = LAYER "self_attn.q_proj.weight",
        [MOEC_ROLE_K] = LAYER "self_attn.k_proj.weight",
        [MOEC_ROLE_V] = LAYER "self_attn.v_proj.weight",
        [MOEC_ROLE_FINAL_NORM] = "model.embedding_norm.weight",
        [MOEC_ROLE_ATTENTION_NORM] = LAYER "operator_norm.weight",
        [MOEC_ROLE_MLP_NORM] = LAYER "ffn_norm.weight",
        [MOEC_ROLE_O] = LAYER "self_attn.out_proj.weight",
        [MOEC_ROLE_Q_NORM] = LAYER "self_attn.q_layernorm.weight",
        [MOEC_ROLE_K_NORM] = LAYER "self_attn.k_layernorm.weight",
        [MOEC_ROLE_CONVOLUTION] = LAYER "conv.conv.weight",
        [MOEC_ROLE_INPUT_GATE] = LAYER "conv.in_proj.weight",
        [MOEC_ROLE_OUTPUT_GATE] = LAYER "conv.in_proj.weight",
        [MOEC_ROLE_DENSE_GATE] = LAYER "feed_forward.w1.weight",
        [MOEC_ROLE_DENSE_UP] = LAYER "feed_forward.w3.weight",
        [MOEC_ROLE_DENSE_DOWN] = LAYER "feed_forward.w2.weight",
        [MOEC_ROLE_ROUTER] = LAYER "feed_forward.gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = LAYER "feed_forward.expert_bias",
    },
    .running_names = {
        [MOEC_ROLE_V] = LAYER "conv.in_proj.weight",
        [MOEC_ROLE_O] = LAYER "conv.out_proj.weight",
    },
    .layout_of = layout_of,
    .expert_names = {MOEC_NAMES_EXPERTS("feed_forward.experts", "w1", "w3", "w2")},
    .other_experts = {MOEC_STACKED_EXPERTS("feed_forward.experts")},
};
/* clang-format on */
