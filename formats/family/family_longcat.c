/* LongCat-Flash (arXiv 2509.01322): each of its layers is two here, both with latent attention and an MLP.
 * The first has experts too, some of which only pass their input on, and what these give joins the hidden
 * state at the end of the second. */
#include "formats/family/family_parts.h"

#include <math.h>
#include <string.h>

/* What the published config.json says and transformers' class does not know, or does not obey. */
static enum moec_status refuse_others(const struct moec_json *root, const char *where, struct moec_error *err)
{
    static const char *const scales[] = {"mla_scale_q_lora", "mla_scale_kv_lora"};
    const char *type = NULL;
    MOEC_TRY(moec_json_get_string_or(root, where, "zero_expert_type", "identity", &type, err));
    if (strcmp(type, "identity") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'zero_expert_type' '%.40s', only 'identity' is supported", where, type);
    for (size_t i = 0; i < 2; i++) {
        bool is_scaled = true;
        MOEC_TRY(moec_json_get_bool_or(root, where, scales[i], true, &is_scaled, err));
        if (!is_scaled)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "%s says '%s' false, only true is supported: moec does not implement unscaled latents", where,
                scales[i]);
    }
    MOEC_TRY(moec_family_refuse_flag(root, where, "router_bias", "biases of routers", err));
    return moec_family_refuse_flag(root, where, "attention_bias", "biases of latent projections", err);
}

static enum moec_status read_latents(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    const struct moec_layer_kind *kind = &config->kinds[0];
    MOEC_TRY(moec_family_read_latent(root, where, config, err));
    MOEC_TRY(moec_family_read_mscale(root, where, config, err));
    uint32_t head_dim = kind->head_dim;
    MOEC_TRY(moec_json_update_u32(root, where, "qk_head_dim", MOEC_MAX_DIMENSION, &head_dim, err));
    if (head_dim != kind->head_dim)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'qk_head_dim' %u, expected 'qk_nope_head_dim' + 'qk_rope_head_dim' = %u",
                         where, head_dim, kind->head_dim);
    if (kind->q_latent_dim == 0 || kind->latent_dim == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'q_lora_rank' %u and 'kv_lora_rank' %u, expected both to be 1 or more",
                         where, kind->q_latent_dim, kind->latent_dim);
    config->scale.q_latent = (float)sqrt((double)config->n_embd / kind->q_latent_dim);
    config->scale.latent = (float)sqrt((double)config->n_embd / kind->latent_dim);
    return MOEC_OK;
}

static enum moec_status read_experts(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    static const char *const n_expert[] = {"n_routed_experts", "num_local_experts", NULL};
    static const char *const top_k[] = {"moe_topk", "num_experts_per_tok", NULL};
    static const char *const n_ff_expert[] = {"expert_ffn_hidden_size", "moe_intermediate_size", NULL};
    static const char *const n_ff[] = {"ffn_hidden_size", "intermediate_size", NULL};
    const struct moec_json *n_identity = moec_json_find(root, "zero_expert_num");
    uint32_t *const n_ff_dense = &config->kinds[0].n_ff_dense;
    MOEC_TRY(moec_family_update_any(root, where, n_expert, MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_family_update_any(root, where, top_k, MOEC_MAX_TOP_K, &config->top_k, err));
    MOEC_TRY(moec_family_update_any(root, where, n_ff_expert, MOEC_MAX_DIMENSION, &config->n_ff_expert, err));
    MOEC_TRY(moec_family_update_any(root, where, n_ff, MOEC_MAX_DIMENSION, n_ff_dense, err));
    config->n_ff_shared = *n_ff_dense;
    if (n_identity != NULL && moec_json_type(n_identity) == MOEC_JSON_NULL)
        config->n_identity = 0;
    MOEC_TRY(
        moec_json_update_u32(root, where, "zero_expert_num", MOEC_MAX_EXPERTS, &config->n_identity, err));
    return moec_family_read_factor(root, where, "routed_scaling_factor", 6, &config->router.scale, err);
}

static enum moec_status read_longcat(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    uint32_t n_pair = config->n_layer / 2; /* 'num_hidden_layers' counts attentions */
    MOEC_TRY(moec_json_update_u32(root, where, "num_layers", MOEC_MAX_LAYERS / 2, &n_pair, err));
    config->n_layer = 2 * n_pair;
    for (uint32_t layer = 0; layer < config->n_layer; layer += 2)
        layers.is_moe[layer] = 1;
    MOEC_TRY(refuse_others(root, where, err));
    MOEC_TRY(read_latents(root, where, config, err));
    MOEC_TRY(read_experts(root, where, config, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_longcat(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_layers", config->n_layer / 2);
    moec_json_out_u64(root, "n_routed_experts", config->n_expert);
    moec_json_out_u64(root, "zero_expert_num", config->n_identity);
    moec_json_out_string(root, "zero_expert_type", "identity");
    moec_json_out_u64(root, "moe_topk", config->top_k);
    moec_json_out_u64(root, "expert_ffn_hidden_size", config->n_ff_expert);
    moec_json_out_u64(root, "ffn_hidden_size", config->n_ff_shared);
    moec_family_put_factor(root, "routed_scaling_factor", config->router.scale);
    moec_json_out_u64(root, "qk_head_dim", moec_config_attention(config)->head_dim);
    moec_family_put_latent(config, root);
}

/* clang-format off */
#define LAYER     "model.layers.{H}."
#define ATTENTION LAYER "self_attn.{R}."

const struct moec_family moec_family_longcat_flash = {
    .model_type = "longcat_flash",
    .read = read_longcat,
    .write = write_longcat,
    .architecture = "LongcatFlashForCausalLM",
    .defaults = {.n_vocab = 131072, .n_embd = 6144, .n_layer = 56, .n_position = 131072, .rms_eps = 1e-5,
                 .n_expert = 512, .n_identity = 256, .top_k = 12, .n_ff_expert = 2048, .mlp.joins_late = true,
                 .router.choice_bias = true, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 64, .head_dim = 192, .rotary_dim = 64, .value_dim = 128,
                            .latent_dim = 512, .q_latent_dim = 1536, .rope_theta = 10000000.0,
                            .n_ff_dense = 12288}}},
    .names = {
        [MOEC_ROLE_EMBEDDING] = "model.embed_tokens.weight", [MOEC_ROLE_HEAD] = "lm_head.weight",
        [MOEC_ROLE_FINAL_NORM] = "model.norm.weight",
        [MOEC_ROLE_ATTENTION_NORM] = LAYER "input_layernorm.{R}.weight",
        [MOEC_ROLE_MLP_NORM] = LAYER "post_attention_layernorm.{R}.weight",
        [MOEC_ROLE_Q] = ATTENTION "q_b_proj.weight", [MOEC_ROLE_O] = ATTENTION "o_proj.weight",
        [MOEC_ROLE_Q_DOWN] = ATTENTION "q_a_proj.weight",
        [MOEC_ROLE_Q_DOWN_NORM] = ATTENTION "q_a_layernorm.weight",
        [MOEC_ROLE_KV_DOWN] = ATTENTION "kv_a_proj_with_mqa.weight",
        [MOEC_ROLE_KV_DOWN_NORM] = ATTENTION "kv_a_layernorm.weight",
        [MOEC_ROLE_KV_UP] = ATTENTION "kv_b_proj.weight",
        [MOEC_ROLE_DENSE_UP] = LAYER "mlps.{R}.up_proj.weight",
        [MOEC_ROLE_DENSE_GATE] = LAYER "mlps.{R}.gate_proj.weight",
        [MOEC_ROLE_DENSE_DOWN] = LAYER "mlps.{R}.down_proj.weight",
        [MOEC_ROLE_SHARED_UP] = LAYER "mlps.{R}.up_proj.weight",
        [MOEC_ROLE_SHARED_GATE] = LAYER "mlps.{R}.gate_proj.weight",
        [MOEC_ROLE_SHARED_DOWN] = LAYER "mlps.{R}.down_proj.weight",
        [MOEC_ROLE_ROUTER] = LAYER "mlp.router.classifier.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = LAYER "mlp.router.e_score_correction_bias",
    },
    .layouts = {[MOEC_ROLE_Q] = {.has_pairs = true}, [MOEC_ROLE_KV_DOWN] = {.has_pairs = true}},
    .expert_names = {[MOEC_PROJECTION_GATE] = LAYER "mlp.experts.{E}.gate_proj.weight",
                     [MOEC_PROJECTION_UP] = LAYER "mlp.experts.{E}.up_proj.weight",
                     [MOEC_PROJECTION_DOWN] = LAYER "mlp.experts.{E}.down_proj.weight"},
};
/* clang-format on */
