/* AFMoE (Arcee Trinity): norms before and after, a gate on attention's outputs, windows in most layers, no
 * rotation in the others. */
#include "formats/family/family_parts.h"

#include <math.h>

static const struct moec_family_routed_keys keys = {.n_expert = "num_experts",
                                                    .n_shared = "num_shared_experts",
                                                    .n_shared_default = 2,
                                                    .scale = "route_scale",
                                                    .scale_default = 1};

static enum moec_status read_afmoe(const struct moec_json *root, const char *where,
                                   struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {.n_dense = 1, .window = 1024, .rotates_in_window_only = true};
    bool has_mup = false;
    uint64_t step = 4;
    MOEC_TRY(moec_family_read_routed(root, where, &keys, config, err));
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "mup_enabled", false, &has_mup, err));
    config->scale.embedding = has_mup ? (float)sqrt(config->n_embd) : 0;
    MOEC_TRY(moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &layers.window, err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "global_attn_every_n_layers", 1, MOEC_MAX_DIMENSION, 4, &step,
                                  err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers.has_window[layer] = (layer + 1) % step != 0;
    MOEC_TRY(moec_family_read_layer_types(root, where, config, &layers, err));
    MOEC_TRY(moec_family_read_first_dense(root, where, "num_dense_layers", config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_afmoe(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &keys, root);
    moec_family_put_bias(config, root);
    moec_family_put_first_dense(config, "num_dense_layers", root);
    moec_family_put_layer_types(config, root);
    moec_json_out_bool(root, "mup_enabled", config->scale.embedding > 0);
}

/* clang-format off */
const struct moec_family moec_family_afmoe = {
    .model_type = "afmoe",
    .read = read_afmoe,
    .write = write_afmoe,
    .architecture = "AfmoeForCausalLM",
    .defaults = {.n_vocab = 200192, .n_embd = 2048, .n_layer = 32, .n_position = 16384, .rms_eps = 1e-5,
                 .norms = MOEC_NORMS_AROUND, .n_expert = 64, .top_k = 6, .n_ff_expert = 1408,
                 .router.kind = MOEC_ROUTER_SIGMOID, .router.choice_bias = true, .router.norm_topk_prob = true,
                 .kinds = {{.n_head = 16, .head_dim = 128, .rope_theta = 10000.0, .n_ff_dense = 6144,
                            .qk_norm = MOEC_QK_NORM_HEAD, .has_gate = true}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_QK_NORM, MOEC_NAMES_DENSE, MOEC_NAMES_SHARED("mlp.shared_experts"),
        [MOEC_ROLE_ATTENTION_NORM] = MOEC_LAYER_NAME "input_layernorm.weight",
        [MOEC_ROLE_ATTENTION_POST_NORM] = MOEC_LAYER_NAME "post_attention_layernorm.weight",
        [MOEC_ROLE_MLP_NORM] = MOEC_LAYER_NAME "pre_mlp_layernorm.weight",
        [MOEC_ROLE_MLP_POST_NORM] = MOEC_LAYER_NAME "post_mlp_layernorm.weight",
        [MOEC_ROLE_OUTPUT_GATE] = MOEC_LAYER_NAME "self_attn.gate_proj.weight",
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.router.gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.expert_bias",
    },
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
