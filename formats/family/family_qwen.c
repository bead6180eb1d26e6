/* Qwen2-MoE and Qwen3-MoE. */
#include "formats/family/family_parts.h"

#include <stdio.h>
#include <string.h>

/* Which layers have a window, before `layer_types` is looked at: with `use_sliding_window`, transformers 4
 * gives one to the layers from `max_window_layers` on, transformers 5 to every second one before it. */
static enum moec_status read_window(const struct moec_json *root, const char *where,
                                    const struct moec_config *config, struct moec_family_layers *layers,
                                    struct moec_error *err)
{
    bool used = false;
    uint32_t first = 28;
    const char *version = NULL;
    MOEC_TRY(moec_json_get_bool_or(root, where, "use_sliding_window", false, &used, err));
    MOEC_TRY(moec_json_get_string_or(root, where, "transformers_version", "4", &version, err));
    const struct moec_json *given = moec_json_find(root, "sliding_window");
    if (!used || (given != NULL && moec_json_type(given) == MOEC_JSON_NULL))
        return MOEC_OK;
    layers->window = 4096;
    MOEC_TRY(moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &layers->window, err));
    if (layers->window == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "'sliding_window' in %s is 0, expected 1 or more", where);
    MOEC_TRY(moec_json_update_u32(root, where, "max_window_layers", MOEC_MAX_DIMENSION, &first, err));
    const bool is_old = strncmp(version, "4", 1) == 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers->has_window[layer] = is_old ? layer >= first : layer < first && layer % 2 == 0;
    return MOEC_OK;
}

static enum moec_status read_qwen2_moe(const struct moec_json *root, const char *where,
                                       struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    MOEC_TRY(moec_family_read_qwen_experts(root, where, config, err));
    MOEC_TRY(moec_json_update_u32(root, where, "shared_expert_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_shared, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "qkv_bias", true, &config->kinds[0].qkv_bias, err));
    config->mlp.shared_gate = config->n_ff_shared > 0;
    MOEC_TRY(moec_family_check_head_dim(where, config, err));
    MOEC_TRY(read_window(root, where, config, &layers, err));
    MOEC_TRY(moec_family_read_layer_types(root, where, config, &layers, err));
    MOEC_TRY(moec_family_read_sparse_layers(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

/* With `use_sliding_window`, every layer has the window. */
static enum moec_status read_qwen3_moe(const struct moec_json *root, const char *where,
                                       struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    bool used = false;
    MOEC_TRY(moec_family_read_qwen_experts(root, where, config, err));
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "use_sliding_window", false, &used, err));
    const struct moec_json *given = moec_json_find(root, "sliding_window");
    if (used && !(given != NULL && moec_json_type(given) == MOEC_JSON_NULL)) {
        layers.window = 4096;
        MOEC_TRY(
            moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &layers.window, err));
        memset(layers.has_window, 1, config->n_layer);
    }
    MOEC_TRY(moec_family_read_sparse_layers(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

/* `max_window_layers` 0 is what transformers before `layer_types` needs for a window in every layer. */
static void write_qwen2_moe(const struct moec_config *config, struct moec_json_out *root)
{
    bool has_window = false;
    for (uint32_t i = 0; i < config->n_kind; i++)
        has_window = has_window || config->kinds[i].window > 0;
    moec_family_put_qwen_experts(config, root);
    moec_json_out_u64(root, "shared_expert_intermediate_size", config->n_ff_shared);
    moec_json_out_bool(root, "qkv_bias", moec_config_layer(config, 0)->qkv_bias);
    moec_json_out_bool(root, "use_sliding_window", has_window);
    if (!has_window)
        return;
    moec_json_out_u64(root, "max_window_layers", 0);
    moec_family_put_layer_types(config, root);
}

static void write_qwen3_moe(const struct moec_config *config, struct moec_json_out *root)
{
    const uint32_t window = moec_config_layer(config, 0)->window;
    moec_family_put_qwen_experts(config, root);
    moec_family_put_bias(config, root);
    moec_json_out_bool(root, "use_sliding_window", window > 0);
    if (window > 0)
        moec_json_out_u64(root, "sliding_window", window);
}

/* clang-format off */
const struct moec_family moec_family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .read = read_qwen2_moe,
    .write = write_qwen2_moe,
    .architecture = "Qwen2MoeForCausalLM",
    .defaults = {.n_vocab = 151936, .n_embd = 2048, .n_layer = 24, .n_position = 32768, .rms_eps = 1e-6,
                 .n_expert = 60, .top_k = 4, .n_ff_expert = 1408, .n_ff_shared = 5632,
                 .kinds = {{.n_head = 16, .n_kv_head = 16, .rope_theta = 10000.0, .n_ff_dense = 5632}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_DENSE, MOEC_NAMES_SHARED("mlp.shared_expert"),
        [MOEC_ROLE_ROUTER] = "model.layers.{L}.mlp.gate.weight",
        [MOEC_ROLE_SHARED_EXPERT_GATE] = "model.layers.{L}.mlp.shared_expert_gate.weight",
    },
    MOEC_USUAL_EXPERTS,
};

const struct moec_family moec_family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .read = read_qwen3_moe,
    .write = write_qwen3_moe,
    .architecture = "Qwen3MoeForCausalLM",
    .defaults = {.n_vocab = 151936, .n_embd = 2048, .n_layer = 24, .n_position = 32768, .rms_eps = 1e-6,
                 .n_expert = 128, .top_k = 8, .n_ff_expert = 768,
                 .kinds = {{.n_head = 32, .n_kv_head = 4, .rope_theta = 10000.0, .n_ff_dense = 6144,
                            .qk_norm = MOEC_QK_NORM_HEAD}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_QK_NORM, MOEC_NAMES_DENSE,
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",
    },
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
