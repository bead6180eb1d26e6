/* ERNIE 4.5 MoE: rotated pairs stand side by side; the router's choice bias is added to probabilities. */
#include "formats/family/family_parts.h"

/* `moe_layer_end_index` -1 is the last layer. */
static enum moec_status read_layers(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_family_layers *layers,
                                    struct moec_error *err)
{
    uint32_t first = 1;
    uint64_t step = 1;
    double last = -1;
    MOEC_TRY(moec_json_update_u32(root, where, "moe_layer_start_index", MOEC_MAX_DIMENSION, &first, err));
    MOEC_TRY(
        moec_json_get_double_or(root, where, "moe_layer_end_index", -1, MOEC_MAX_DIMENSION, -1, &last, err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "moe_layer_interval", 1, MOEC_MAX_DIMENSION, 1, &step, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers->is_moe[layer] = layer >= first && (last < 0 || layer <= last) && (layer + 1) % step == 0;
    return moec_family_read_dense_size(root, where, config, layers, err);
}

/* moe_norm_min keeps a sum from being 0: it is far below any sum of probabilities. */
static enum moec_status read_ernie(const struct moec_json *root, const char *where,
                                   struct moec_config *config, struct moec_error *err)
{
    static const char *const experts[] = {"moe_num_experts", "num_experts", "num_local_experts", NULL};
    static const char *const top_k[] = {"moe_k", "num_experts_per_tok", NULL};
    struct moec_family_layers layers = {0};
    uint32_t n_shared = 2;
    MOEC_TRY(
        moec_family_refuse_flag(root, where, "use_bias", "biases of projections and of the LM head", err));
    MOEC_TRY(moec_family_update_any(root, where, experts, MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_family_update_any(root, where, top_k, MOEC_MAX_TOP_K, &config->top_k, err));
    MOEC_TRY(moec_json_update_u32(root, where, "moe_num_shared_experts", 1024, &n_shared, err));
    MOEC_TRY(moec_json_update_u32(root, where, "moe_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_expert, err));
    config->n_ff_shared = n_shared * config->n_ff_expert;
    MOEC_TRY(read_layers(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_ernie(const struct moec_config *config, struct moec_json_out *root)
{
    uint32_t first = 0, last = config->n_layer - 1;
    while (!moec_config_is_moe(config, first))
        first++;
    while (!moec_config_is_moe(config, last))
        last--;
    moec_json_out_bool(root, "use_bias", false);
    moec_json_out_u64(root, "moe_num_experts", config->n_expert);
    moec_json_out_u64(root, "moe_k", config->top_k);
    moec_json_out_u64(root, "moe_num_shared_experts", config->n_ff_shared / config->n_ff_expert);
    moec_json_out_u64(root, "moe_intermediate_size", config->n_ff_expert);
    moec_json_out_u64(root, "moe_layer_start_index", first);
    moec_json_out_u64(root, "moe_layer_end_index", last);
    moec_json_out_u64(root, "moe_layer_interval", 1);
    if (first > 0)
        moec_json_out_u64(root, "intermediate_size", moec_config_layer(config, 0)->n_ff_dense);
}

/* clang-format off */
const struct moec_family moec_family_ernie4_5_moe = {
    .model_type = "ernie4_5_moe",
    .read = read_ernie,
    .write = write_ernie,
    .architecture = "Ernie4_5_MoeForCausalLM",
    .defaults = {.n_vocab = 103424, .n_embd = 2560, .n_layer = 28, .n_position = 131072, .rms_eps = 1e-5,
                 .head.is_tied = true, .n_expert = 64, .top_k = 6, .n_ff_expert = 1536, .router.norm_topk_prob = true,
                 .router.choice_bias = true, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 20, .n_kv_head = 4, .rope_theta = 500000.0, .n_ff_dense = 12288}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_DENSE, MOEC_NAMES_SHARED("mlp.shared_experts"),
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.moe_statics.e_score_correction_bias",
    },
    .layouts = {[MOEC_ROLE_Q] = {.has_pairs = true}, [MOEC_ROLE_K] = {.has_pairs = true}},
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
