/* Phi-3.5-MoE (arXiv 2404.14219): LayerNorms, biases in attention and head, LongRoPE, and SparseMixer's
 * weights of two experts, which are shares among the experts that come close to each (arXiv 2409.12136). */
#include "formats/family/family_parts.h"

/* transformers 4 wrote a window as long as the context, which limits nothing. */
static enum moec_status read_window(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    uint32_t window = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &window, err));
    config->kinds[0].window = window < config->n_position ? window : 0;
    return MOEC_OK;
}

static enum moec_status read_phimoe(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    double jitter = (double)config->router.jitter;
    if (config->top_k != 2)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'num_experts_per_tok' %u, only 2 is supported: SparseMixer always chooses 2 in "
            "transformers",
            where, config->top_k);
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_local_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    MOEC_TRY(moec_json_get_double_or(root, where, "router_jitter_noise", 0, 1e6, jitter, &jitter, err));
    config->router.jitter = (float)jitter;
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "lm_head_bias", false, &config->head.bias, err));
    MOEC_TRY(read_window(root, where, config, err));
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_phimoe(const struct moec_config *config, struct moec_json_out *root)
{
    const uint32_t window = moec_config_layer(config, 0)->window;
    moec_json_out_u64(root, "num_local_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    moec_json_out_double(root, "router_jitter_noise", (double)config->router.jitter);
    moec_family_put_bias(config, root);
    moec_json_out_bool(root, "lm_head_bias", config->head.bias);
    moec_json_out_u64_or_null(root, "sliding_window", window);
}

/* clang-format off */
const struct moec_family moec_family_phimoe = {
    .model_type = "phimoe",
    .read = read_phimoe,
    .write = write_phimoe,
    .has_mscales = true,
    .architecture = "PhimoeForCausalLM",
    .defaults = {.n_vocab = 32064, .n_embd = 4096, .n_layer = 32, .n_position = 4096 * 32, .rms_eps = 1e-5,
                 .layer_norm = true, .n_expert = 16, .top_k = 2, .n_ff_expert = 6400,
                 .router.kind = MOEC_ROUTER_SPARSEMIXER, .router.jitter = 0.01f, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 32, .n_kv_head = 8, .rope_theta = 1e6}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS,
        [MOEC_ROLE_ATTENTION_NORM_BIAS] = MOEC_LAYER_NAME "input_layernorm.bias",
        [MOEC_ROLE_MLP_NORM_BIAS] = MOEC_LAYER_NAME "post_attention_layernorm.bias",
        [MOEC_ROLE_FINAL_NORM_BIAS] = "model.norm.bias",
        [MOEC_ROLE_HEAD_BIAS] = "lm_head.bias",
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "block_sparse_moe.gate.weight",
    },
    .expert_names = {MOEC_NAMES_EXPERTS("block_sparse_moe.experts", "w1", "w3", "w2")},
    .other_names = {[MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.router.weight"},
    .other_experts = {MOEC_STACKED_EXPERTS("mlp.experts")},
};
/* clang-format on */
