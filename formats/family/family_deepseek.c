/* DeepSeekMoE (arXiv 2401.06066) and families of its kind without latent attention: dots1, GLM-4 MoE. The
 * first layers have no experts, and shared experts, which are one MLP, have no gate. */
#include "formats/family/family_parts.h"

#include <string.h>

/* ---- DeepSeekMoE-16B, of remote code ---- */

static const struct moec_family_routed_keys deepseek_keys = {
    .n_expert = "n_routed_experts", .n_shared = "n_shared_experts", .has_norm = true};

static enum moec_status read_deepseek(const struct moec_json *root, const char *where,
                                      struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    const char *score = NULL;
    uint64_t step = 1;
    MOEC_TRY(moec_json_get_string_or(root, where, "scoring_func", "softmax", &score, err));
    if (strcmp(score, "softmax") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'scoring_func' '%.40s', only 'softmax' is supported", where, score);
    MOEC_TRY(moec_json_get_u64_or(root, where, "moe_layer_freq", 1, MOEC_MAX_DIMENSION, 1, &step, err));
    MOEC_TRY(moec_family_read_routed(root, where, &deepseek_keys, config, err));
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    MOEC_TRY(moec_family_check_head_dim(where, config, err));
    MOEC_TRY(moec_family_read_first_dense(root, where, "first_k_dense_replace", config, &layers, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers.is_moe[layer] = layers.is_moe[layer] && layer % step == 0;
    MOEC_TRY(moec_family_read_dense_size(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_deepseek(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &deepseek_keys, root);
    moec_family_put_bias(config, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
    moec_json_out_string(root, "scoring_func", "softmax");
    moec_json_out_u64(root, "moe_layer_freq", 1);
}

/* ---- with the router of DeepSeek-V3 ---- */

static const struct moec_family_routed_keys dots1_keys = {.n_expert = "n_routed_experts",
                                                          .n_shared = "n_shared_experts",
                                                          .scale = "routed_scaling_factor",
                                                          .scale_default = 1,
                                                          .has_norm = true,
                                                          .has_groups = true};

static enum moec_status read_dots1(const struct moec_json *root, const char *where,
                                   struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {.window = 4096};
    uint32_t first = 62;
    MOEC_TRY(moec_family_read_routed(root, where, &dots1_keys, config, err));
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    const struct moec_json *given = moec_json_find(root, "sliding_window");
    if (given != NULL && moec_json_type(given) == MOEC_JSON_NULL)
        layers.window = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &layers.window, err));
    MOEC_TRY(moec_json_update_u32(root, where, "max_window_layers", MOEC_MAX_DIMENSION, &first, err));
    for (uint32_t layer = first; layer < config->n_layer && layers.window > 0; layer++)
        layers.has_window[layer] = 1;
    MOEC_TRY(moec_family_read_layer_types(root, where, config, &layers, err));
    MOEC_TRY(moec_family_read_first_dense(root, where, "first_k_dense_replace", config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_dots1(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &dots1_keys, root);
    moec_family_put_bias(config, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
    moec_family_put_layer_types(config, root);
}

static enum moec_status read_glm4_moe(const struct moec_json *root, const char *where,
                                      struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {.n_dense = 1};
    bool has_norm = false;
    MOEC_TRY(moec_family_read_routed(root, where, &moec_family_usual_keys, config, err));
    MOEC_TRY(moec_family_read_bias(root, where, false, config, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "use_qk_norm", false, &has_norm, err));
    config->kinds[0].qk_norm = has_norm ? MOEC_QK_NORM_HEAD : MOEC_QK_NORM_NONE;
    MOEC_TRY(moec_family_read_first_dense(root, where, "first_k_dense_replace", config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_glm4_moe(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &moec_family_usual_keys, root);
    moec_family_put_bias(config, root);
    moec_json_out_bool(root, "use_qk_norm", moec_config_layer(config, 0)->qk_norm != MOEC_QK_NORM_NONE);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
}

/* clang-format off */
#define NAMES                                                                                                \
    MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_QK_NORM, MOEC_NAMES_DENSE,                            \
    MOEC_NAMES_SHARED("mlp.shared_experts"), [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",         \
    [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.gate.e_score_correction_bias"

const struct moec_family moec_family_deepseek = {
    .model_type = "deepseek",
    .read = read_deepseek,
    .write = write_deepseek,
    .architecture = "DeepseekForCausalLM",
    .defaults = {.n_vocab = 102400, .n_embd = 4096, .n_layer = 30, .n_position = 2048, .rms_eps = 1e-6,
                 .n_expert = 64, .top_k = 6, .n_ff_expert = 1407, .ids.n_eos = 1, .ids.eos = {100001},
                 .kinds = {{.n_head = 32, .n_kv_head = 32, .rope_theta = 10000.0, .n_ff_dense = 11008}}},
    .names = {NAMES},
    MOEC_USUAL_EXPERTS,
};

const struct moec_family moec_family_dots1 = {
    .model_type = "dots1",
    .read = read_dots1,
    .write = write_dots1,
    .architecture = "Dots1ForCausalLM",
    .defaults = {.n_vocab = 152064, .n_embd = 4608, .n_layer = 62, .n_position = 2048, .rms_eps = 1e-6,
                 .n_ff_expert = 1408, .router.kind = MOEC_ROUTER_SIGMOID, .router.choice_bias = true,
                 .router.group_score = MOEC_GROUP_BEST_TWO,
                 .kinds = {{.n_head = 32, .n_kv_head = 32, .rope_theta = 10000.0, .n_ff_dense = 10944,
                            .qk_norm = MOEC_QK_NORM_HEAD}}},
    .names = {NAMES},
    MOEC_USUAL_EXPERTS,
};

const struct moec_family moec_family_glm4_moe = {
    .model_type = "glm4_moe",
    .read = read_glm4_moe,
    .write = write_glm4_moe,
    .has_partial_rope = true,
    .rotary_part = 0.5,
    .architecture = "Glm4MoeForCausalLM",
    .defaults = {.n_vocab = 151552, .n_embd = 4096, .n_layer = 46, .n_position = 131072, .rms_eps = 1e-5,
                 .n_expert = 128, .top_k = 8, .n_ff_expert = 1408, .router.kind = MOEC_ROUTER_SIGMOID,
                 .router.choice_bias = true, .router.norm_topk_prob = true, .router.group_score = MOEC_GROUP_BEST_TWO,
                 .kinds = {{.n_head = 96, .n_kv_head = 8, .rope_theta = 10000.0, .n_ff_dense = 10944}}},
    .names = {NAMES},
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
