/* Mixtral. */
#include "formats/family/family_parts.h"

static enum moec_status read_mixtral(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    uint64_t window = 0;
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_local_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "sliding_window", 1, MOEC_MAX_POSITIONS, 0, &window, err));
    config->kinds[0].window = (uint32_t)window;
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_mixtral(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_local_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    const uint32_t window = moec_config_layer(config, 0)->window;
    moec_json_out_u64_or_null(root, "sliding_window", window);
}

/* clang-format off */
const struct moec_family moec_family_mixtral = {
    .model_type = "mixtral",
    .read = read_mixtral,
    .write = write_mixtral,
    .architecture = "MixtralForCausalLM",
    .defaults = {.n_vocab = 32000, .n_embd = 4096, .n_layer = 32, .n_position = 4096 * 32,
                 .rms_eps = 1e-5, .n_expert = 8, .top_k = 2, .n_ff_expert = 14336, .router.norm_topk_prob = true,
                 .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 32, .n_kv_head = 8, .rope_theta = 1e6}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS,
        [MOEC_ROLE_ROUTER] = "model.layers.{L}.block_sparse_moe.gate.weight",
    },
    .expert_names = {MOEC_NAMES_EXPERTS("block_sparse_moe.experts", "w1", "w3", "w2")},
    .other_names = {[MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight"},
    .other_experts = {MOEC_STACKED_EXPERTS("mlp.experts")},
};
/* clang-format on */
