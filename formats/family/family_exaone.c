/* EXAONE MoE: most layers have a window, and those without one are not rotated. */
#include "formats/family/family_parts.h"

static const struct moec_family_routed_keys keys = {.n_expert = "num_experts",
                                                    .n_shared = "num_shared_experts",
                                                    .n_shared_default = 1,
                                                    .scale = "routed_scaling_factor",
                                                    .scale_default = 2.5,
                                                    .has_norm = true,
                                                    .has_groups = true};

static enum moec_status read_exaone(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {.n_dense = 1, .window = 4096};
    uint64_t step = 4;
    MOEC_TRY(moec_family_read_routed(root, where, &keys, config, err));
    MOEC_TRY(moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &layers.window, err));
    const struct moec_json *given = moec_json_find(root, "sliding_window");
    const bool has_window = given == NULL || moec_json_type(given) != MOEC_JSON_NULL;
    const struct moec_json *pattern = moec_json_present(root, "sliding_window_pattern");
    if (has_window && pattern != NULL && moec_json_type(pattern) != MOEC_JSON_STRING)
        MOEC_TRY(moec_json_get_u64(root, where, "sliding_window_pattern", 1, MOEC_MAX_DIMENSION, &step, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers.has_window[layer] = has_window && (layer + 1) % step != 0;
    if (has_window)
        MOEC_TRY(moec_family_read_layer_types(root, where, config, &layers, err));
    layers.rotates_in_window_only = has_window;
    MOEC_TRY(moec_family_read_mlp_types(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_exaone(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &keys, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
    moec_family_put_layer_types(config, root);
}

/* clang-format off */
const struct moec_family moec_family_exaone_moe = {
    .model_type = "exaone_moe",
    .read = read_exaone,
    .write = write_exaone,
    .architecture = "ExaoneMoeForCausalLM",
    .defaults = {.n_vocab = 102400, .n_embd = 4096, .n_layer = 32, .n_position = 2048, .rms_eps = 1e-5,
                 .n_expert = 64, .top_k = 8, .n_ff_expert = 1024, .router.kind = MOEC_ROUTER_SIGMOID,
                 .router.choice_bias = true, .router.norm_topk_prob = true, .router.group_score = MOEC_GROUP_BEST_TWO,
                 .ids.n_eos = 1, .ids.eos = {53},
                 .kinds = {{.n_head = 32, .n_kv_head = 32, .rope_theta = 10000.0, .n_ff_dense = 16384,
                            .qk_norm = MOEC_QK_NORM_HEAD}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_QK_NORM, MOEC_NAMES_DENSE,
        MOEC_NAMES_SHARED("mlp.shared_experts"), [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.e_score_correction_bias",
    },
    .other_names = {
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.gate.e_score_correction_bias",
    },
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
