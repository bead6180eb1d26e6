/* OLMoE and FlexOlmo. */
#include "formats/family/family_parts.h"

#include <float.h>

static enum moec_status read_olmoe(const struct moec_json *root, const char *where,
                                   struct moec_config *config, struct moec_error *err)
{
    double clip = 0;
    MOEC_TRY(moec_family_refuse_flag(root, where, "attention_bias", "biases of OLMoE's projections", err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    MOEC_TRY(
        moec_json_get_bool_or(root, where, "norm_topk_prob", false, &config->router.norm_topk_prob, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "clip_qkv", FLT_MIN, FLT_MAX, 0, &clip, err));
    config->kinds[0].clip_qkv = (float)clip;
    MOEC_TRY(moec_family_check_head_dim(where, config, err));
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_olmoe(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    moec_json_out_bool(root, "norm_topk_prob", config->router.norm_topk_prob);
    moec_json_out_bool(root, "attention_bias", false);
    const float clip = moec_config_layer(config, 0)->clip_qkv;
    if (clip > 0)
        moec_json_out_double(root, "clip_qkv", (double)clip);
    else
        moec_json_out_null(root, "clip_qkv");
}

static enum moec_status read_flex_olmo(const struct moec_json *root, const char *where,
                                       struct moec_config *config, struct moec_error *err)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", NULL};
    MOEC_TRY(moec_family_update_any(root, where, keys, MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    MOEC_TRY(
        moec_json_get_bool_or(root, where, "norm_topk_prob", false, &config->router.norm_topk_prob, err));
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_flex_olmo(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    moec_json_out_bool(root, "norm_topk_prob", config->router.norm_topk_prob);
    moec_family_put_bias(config, root);
}

/* clang-format off */
const struct moec_family moec_family_olmoe = {
    .model_type = "olmoe",
    .read = read_olmoe,
    .write = write_olmoe,
    .architecture = "OlmoeForCausalLM",
    .defaults = {.n_vocab = 50304, .n_embd = 2048, .n_layer = 16, .n_position = 4096, .rms_eps = 1e-5,
                 .n_expert = 64, .top_k = 8, .n_ff_expert = 2048, .ids.n_eos = 1, .ids.eos = {50279},
                 .kinds = {{.n_head = 16, .rope_theta = 10000.0, .qk_norm = MOEC_QK_NORM_WHOLE}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_QK_NORM,
        [MOEC_ROLE_ROUTER] = "model.layers.{L}.mlp.gate.weight",
    },
    MOEC_USUAL_EXPERTS,
};

/* Norms stand after attention and MLP alone. */
const struct moec_family moec_family_flex_olmo = {
    .model_type = "flex_olmo",
    .read = read_flex_olmo,
    .write = write_flex_olmo,
    .architecture = "FlexOlmoForCausalLM",
    .defaults = {.n_vocab = 100352, .n_embd = 4096, .n_layer = 32, .n_position = 4096, .rms_eps = 1e-6,
                 .norms = MOEC_NORMS_AFTER, .n_expert = 7, .top_k = 5, .n_ff_expert = 11008, .ids.n_eos = 1,
                 .ids.eos = {100257},
                 .kinds = {{.n_head = 32, .rope_theta = 500000.0, .qk_norm = MOEC_QK_NORM_WHOLE}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_QK_NORM,
        [MOEC_ROLE_ATTENTION_POST_NORM] = MOEC_LAYER_NAME "post_attention_layernorm.weight",
        [MOEC_ROLE_MLP_POST_NORM] = MOEC_LAYER_NAME "post_feedforward_layernorm.weight",
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",
    },
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
