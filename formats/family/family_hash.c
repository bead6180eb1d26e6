/* Hash layers: DeepSeek-V4's layers with experts, of which the first ones route by a table of tokens (arXiv
 * 2106.04426), behind plain attention. What DeepSeek-V4 attends with is another matter, so this is a
 * model_type of moec's own, with the field and tensor names of transformers' deepseek_v4. */
#include "formats/family/family_parts.h"

#include <stdio.h>
#include <string.h>

#define LIMIT 10.0 /* of MOEC_ACTIVATION_CLAMPED_SILU */

static const struct moec_family_routed_keys hash_keys = {.n_expert = "n_routed_experts",
                                                         .n_shared = "n_shared_experts",
                                                         .n_shared_default = 1,
                                                         .scale = "routed_scaling_factor",
                                                         .scale_default = 1.5};

/* 'mlp_layer_types': which layers are 'hash_moe', which 'moe'; without it the first 'num_hash_layers' are. */
static enum moec_status read_types(const struct moec_json *root, const char *where,
                                   const struct moec_config *config, struct moec_family_layers *layers,
                                   struct moec_error *err)
{
    const struct moec_json *list = moec_json_present(root, "mlp_layer_types");
    uint64_t n_hash = 3;
    if (list != NULL)
        MOEC_TRY(moec_json_get(root, where, "mlp_layer_types", MOEC_JSON_ARRAY, &list, err));
    else
        MOEC_TRY(
            moec_json_get_u64_or(root, where, "num_hash_layers", 0, MOEC_MAX_LAYERS, n_hash, &n_hash, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const char *type = layer < n_hash && list == NULL ? "hash_moe" : "moe";
        char what[256];
        (void)snprintf(what, sizeof what, "'mlp_layer_types'[%u] in %.200s", layer, where);
        if (list != NULL && layer < moec_json_length(list))
            MOEC_TRY(moec_json_as_string(moec_json_at(list, layer), what, &type, NULL, err));
        layers->is_moe[layer] = 1;
        layers->routes_by_token[layer] = strcmp(type, "hash_moe") == 0;
        if (!layers->routes_by_token[layer] && strcmp(type, "moe") != 0)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s is '%.40s', supported: 'hash_moe', 'moe'", what,
                             type);
    }
    return MOEC_OK;
}

static enum moec_status read_hash(const struct moec_json *root, const char *where, struct moec_config *config,
                                  struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    const char *score = NULL;
    double limit = LIMIT;
    MOEC_TRY(moec_json_get_string_or(root, where, "scoring_func", "sqrtsoftplus", &score, err));
    if (strcmp(score, "sqrtsoftplus") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'scoring_func' '%.40s', only 'sqrtsoftplus' is supported", where, score);
    MOEC_TRY(moec_json_get_double_or(root, where, "swiglu_limit", 0, 1e9, limit, &limit, err));
    if (limit != LIMIT)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s says 'swiglu_limit' %g, only %g is supported", where,
                         limit, LIMIT);
    MOEC_TRY(moec_family_read_routed(root, where, &hash_keys, config, err));
    MOEC_TRY(moec_family_check_head_dim(where, config, err));
    MOEC_TRY(read_types(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_hash(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *types = moec_json_out_array();
    moec_family_put_routed(config, &hash_keys, root);
    moec_json_out_string(root, "scoring_func", "sqrtsoftplus");
    moec_json_out_double(root, "swiglu_limit", LIMIT);
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        moec_json_out_string(types, NULL,
                             moec_config_layer(config, layer)->routes_by_token ? "hash_moe" : "moe");
    moec_json_out_node(root, "mlp_layer_types", types);
}

/* clang-format off */
const struct moec_family moec_family_hash_moe = {
    .model_type = "hash_moe",
    .read = read_hash,
    .write = write_hash,
    .architecture = "HashMoeForCausalLM",
    .defaults = {.n_vocab = 129280, .n_embd = 4096, .n_layer = 43, .n_position = 4096, .rms_eps = 1e-6,
                 .n_expert = 256, .top_k = 6, .n_ff_expert = 2048, .router.kind = MOEC_ROUTER_ROOT_SOFTPLUS,
                 .router.choice_bias = true, .router.norm_topk_prob = true,
                 .mlp.activation = MOEC_ACTIVATION_CLAMPED_SILU, .ids.n_eos = 1, .ids.eos = {1},
                 .kinds = {{.n_head = 32, .rope_theta = 10000.0}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_SHARED("mlp.shared_experts"),
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.gate.e_score_correction_bias",
        [MOEC_ROLE_ROUTER_TABLE] = MOEC_LAYER_NAME "mlp.gate.tid2eid",
    },
    .layouts = {[MOEC_ROLE_ROUTER_TABLE] = {.is_integer = true}},
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
