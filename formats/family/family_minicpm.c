/* MiniCPM-MoE-8x2B (arXiv 2404.06395), of remote code: Mixtral's experts, three multipliers. */
#include "formats/family/family_parts.h"

#include <math.h>

static enum moec_status read_minicpm(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    double depth = 1, base = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "num_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    if (config->n_expert == 0)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s has no 'num_experts': this is a MiniCPM without experts, and only MiniCPM-MoE is supported",
            where);
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    MOEC_TRY(moec_family_read_factor(root, where, "scale_emb", 1, &config->scale.embedding, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "scale_depth", 1e-3, 1e6, 1, &depth, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "dim_model_base", 1, 1e9, 1, &base, err));
    config->scale.residual = (float)(depth / sqrt(config->n_layer));
    config->scale.logit_divisor = (float)(config->n_embd / base);
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    MOEC_TRY(moec_family_check_head_dim(where, config, err));
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_minicpm(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    moec_family_put_factor(root, "scale_emb", config->scale.embedding);
    moec_json_out_double(root, "scale_depth", (double)config->scale.residual * sqrt(config->n_layer));
    moec_json_out_double(root, "dim_model_base", config->n_embd / (double)config->scale.logit_divisor);
    moec_family_put_bias(config, root);
}

/* clang-format off */
const struct moec_family moec_family_minicpm = {
    .model_type = "minicpm",
    .read = read_minicpm,
    .write = write_minicpm,
    .architecture = "MiniCPMForCausalLM",
    .defaults = {.n_vocab = 32000, .n_embd = 4096, .n_layer = 32, .n_position = 2048, .rms_eps = 1e-6,
                 .head.is_tied = true, .top_k = 2, .n_ff_expert = 11008, .router.norm_topk_prob = true, .ids.n_eos = 1,
                 .ids.eos = {2}, .kinds = {{.n_head = 32, .rope_theta = 10000.0}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS,
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",
    },
    .expert_names = {MOEC_NAMES_EXPERTS("mlp.experts", "w1", "w3", "w2")},
};
/* clang-format on */
