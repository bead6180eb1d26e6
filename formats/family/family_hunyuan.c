/* Hunyuan-A13B: norms of each head after rotation, one shared expert without a gate. */
#include "formats/family/family_parts.h"

#include <stdio.h>

/* A number, or a list that gives each layer its own: these must be equal. */
static enum moec_status read_same(const struct moec_json *root, const char *where, const char *key,
                                  uint32_t max, uint32_t *out, struct moec_error *err)
{
    const struct moec_json *list = moec_json_present(root, key);
    if (list == NULL || moec_json_type(list) != MOEC_JSON_ARRAY)
        return moec_json_update_u32(root, where, key, max, out, err);
    for (size_t i = 0; i < moec_json_length(list); i++) {
        uint64_t value = 0;
        char what[256];
        (void)snprintf(what, sizeof what, "'%s'[%zu] in %.200s", key, i, where);
        MOEC_TRY(moec_json_as_u64(moec_json_at(list, i), what, 0, max, &value, err));
        if (i > 0 && value != *out)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "%s is %u, but earlier layers have %u: expected the same number for all layers",
                             what, (uint32_t)value, *out);
        *out = (uint32_t)value;
    }
    return MOEC_OK;
}

static enum moec_status read_hunyuan(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    MOEC_TRY(moec_family_refuse_flag(root, where, "use_cla", "keys and values shared between layers", err));
    MOEC_TRY(read_same(root, where, "num_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(read_same(root, where, "moe_topk", MOEC_MAX_TOP_K, &config->top_k, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    config->n_ff_shared = config->n_ff_expert;
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    return moec_config_place_layers(config, NULL, where, err);
}

static void write_hunyuan(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "moe_topk", config->top_k);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    moec_family_put_bias(config, root);
}

/* clang-format off */
const struct moec_family moec_family_hunyuan_v1_moe = {
    .model_type = "hunyuan_v1_moe",
    .read = read_hunyuan,
    .write = write_hunyuan,
    .architecture = "HunYuanMoEV1ForCausalLM",
    .defaults = {.n_vocab = 290943, .n_embd = 4096, .n_layer = 32, .n_position = 2048, .rms_eps = 1e-5,
                 .n_expert = 1, .top_k = 1, .n_ff_expert = 11008, .router.norm_topk_prob = true, .ids.n_eos = 1,
                 .ids.eos = {2},
                 .kinds = {{.n_head = 32, .rope_theta = 10000.0, .qk_norm = MOEC_QK_NORM_HEAD_AFTER}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_SHARED("mlp.shared_mlp"),
        [MOEC_ROLE_Q_NORM] = MOEC_LAYER_NAME "self_attn.query_layernorm.weight",
        [MOEC_ROLE_K_NORM] = MOEC_LAYER_NAME "self_attn.key_layernorm.weight",
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.wg.weight",
    },
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
