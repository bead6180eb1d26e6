/* MiniMax-M2: half of each head rotates, q and k norms over the whole row, a choice bias. */
#include "formats/family/family_parts.h"

static enum moec_status read_minimax(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_local_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_minimax(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_local_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
}

/* clang-format off */
const struct moec_family moec_family_minimax_m2 = {
    .model_type = "minimax_m2",
    .read = read_minimax,
    .write = write_minimax,
    .has_partial_rope = true,
    .architecture = "MiniMaxM2ForCausalLM",
    .defaults = {.n_vocab = 200064, .n_embd = 3072, .n_layer = 62, .n_position = 196608, .rms_eps = 1e-6,
                 .n_expert = 256, .top_k = 8, .n_ff_expert = 1536, .router.kind = MOEC_ROUTER_SIGMOID,
                 .router.choice_bias = true, .router.norm_topk_prob = true, .ids.n_eos = 1, .ids.eos = {200020},
                 .kinds = {{.n_head = 48, .n_kv_head = 8, .head_dim = 128, .rope_theta = 5e6,
                            .qk_norm = MOEC_QK_NORM_WHOLE}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_QK_NORM,
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "block_sparse_moe.gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "block_sparse_moe.e_score_correction_bias",
    },
    .expert_names = {MOEC_NAMES_EXPERTS("block_sparse_moe.experts", "w1", "w3", "w2")},
    .other_names = {
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.e_score_correction_bias",
    },
    .other_experts = {MOEC_STACKED_EXPERTS("mlp.experts")},
};
/* clang-format on */
