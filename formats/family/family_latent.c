/* DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437), GLM-4 MoE Lite and Mistral 4: latent
 * attention whose rotated coordinates stand in pairs, first layers without experts, shared experts without a
 * gate. */
#include "formats/family/family_parts.h"

#include <string.h>

/* ---- what they have in common ---- */

static enum moec_status refuse_biases(const struct moec_json *root, const char *where, struct moec_error *err)
{
    bool is_interleaved = true;
    MOEC_TRY(moec_family_refuse_flag(root, where, "attention_bias", "biases of latent projections", err));
    MOEC_TRY(moec_family_refuse_flag(root, where, "mlp_bias", "biases of dense MLPs", err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "rope_interleave", true, &is_interleaved, err));
    if (!is_interleaved)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'rope_interleave' false, only true is supported: moec implements only interleaved RoPE "
            "in this family",
            where);
    return MOEC_OK;
}

enum moec_status moec_family_read_latent(const struct moec_json *root, const char *where,
                                         struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    const struct moec_json *rank = moec_json_find(root, "q_lora_rank");
    const uint32_t most = MOEC_MAX_DIMENSION / 2;
    const struct moec_layer_kind *assumed = &moec_family_find(config->family)->defaults.kinds[0];
    uint32_t plain = moec_layer_plain_dim(assumed), rotated = assumed->rotary_dim;
    if (rank != NULL && moec_json_type(rank) == MOEC_JSON_NULL)
        kind->q_latent_dim = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "q_lora_rank", most, &kind->q_latent_dim, err));
    MOEC_TRY(moec_json_update_u32(root, where, "kv_lora_rank", most, &kind->latent_dim, err));
    MOEC_TRY(moec_json_update_u32(root, where, "v_head_dim", most, &kind->value_dim, err));
    MOEC_TRY(moec_json_update_u32(root, where, "qk_nope_head_dim", most, &plain, err));
    MOEC_TRY(moec_json_update_u32(root, where, "qk_rope_head_dim", most, &rotated, err));
    kind->n_kv_head = 1;
    kind->head_dim = plain + rotated;
    kind->rotary_dim = rotated;
    return MOEC_OK;
}

static enum moec_status read_latent(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    MOEC_TRY(refuse_biases(root, where, err));
    MOEC_TRY(moec_family_read_latent(root, where, config, err));
    return moec_family_read_mscale(root, where, config, err);
}

void moec_family_put_latent(const struct moec_config *config, struct moec_json_out *root)
{
    const struct moec_layer_kind *kind = moec_config_attention(config);
    moec_json_out_u64_or_null(root, "q_lora_rank", kind->q_latent_dim);
    moec_json_out_u64(root, "kv_lora_rank", kind->latent_dim);
    moec_json_out_u64(root, "v_head_dim", kind->value_dim);
    moec_json_out_u64(root, "qk_nope_head_dim", moec_layer_plain_dim(kind));
    moec_json_out_u64(root, "qk_rope_head_dim", kind->rotary_dim);
    moec_json_out_bool(root, "attention_bias", false);
}

static void put_latent(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_latent(config, root);
    moec_json_out_bool(root, "rope_interleave", true);
}

/* ---- DeepSeek-V2 ---- */

static const struct moec_family_routed_keys v2_keys = {.n_expert = "n_routed_experts",
                                                       .n_shared = "n_shared_experts",
                                                       .n_shared_default = 2,
                                                       .scale = "routed_scaling_factor",
                                                       .scale_default = 1,
                                                       .has_groups = true};

/* 'norm_topk_prob' is ignored, as transformers does. */
static enum moec_status read_v2(const struct moec_json *root, const char *where, struct moec_config *config,
                                struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    const char *method = NULL;
    MOEC_TRY(moec_json_get_string_or(root, where, "topk_method", "greedy", &method, err));
    const bool is_greedy = strcmp(method, "greedy") == 0;
    if (!is_greedy && strcmp(method, "group_limited_greedy") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'topk_method' '%.40s', supported: 'greedy', 'group_limited_greedy'", where,
                         method);
    MOEC_TRY(moec_family_read_routed(root, where, &v2_keys, config, err));
    if (is_greedy)
        config->router.n_group = config->router.n_top_group = 0;
    MOEC_TRY(read_latent(root, where, config, err));
    MOEC_TRY(moec_family_read_first_dense(root, where, "first_k_dense_replace", config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_v2(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &v2_keys, root);
    moec_json_out_string(root, "topk_method", config->router.n_group > 0 ? "group_limited_greedy" : "greedy");
    put_latent(config, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
}

/* ---- DeepSeek-V3 and GLM-4 MoE Lite ---- */

static const struct moec_family_routed_keys v3_keys = {.n_expert = "n_routed_experts",
                                                       .n_shared = "n_shared_experts",
                                                       .n_shared_default = 1,
                                                       .scale = "routed_scaling_factor",
                                                       .scale_default = 2.5,
                                                       .has_norm = true,
                                                       .has_groups = true};

static enum moec_status read_v3(const struct moec_json *root, const char *where, struct moec_config *config,
                                struct moec_error *err)
{
    struct moec_family_layers layers = {.n_dense = 3};
    MOEC_TRY(moec_family_read_routed(root, where, &v3_keys, config, err));
    MOEC_TRY(read_latent(root, where, config, err));
    MOEC_TRY(moec_family_read_first_dense(root, where, "first_k_dense_replace", config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_v3(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &v3_keys, root);
    put_latent(config, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
}

static const struct moec_family_routed_keys lite_keys = {.n_expert = "n_routed_experts",
                                                         .n_shared = "n_shared_experts",
                                                         .n_shared_default = 1,
                                                         .scale = "routed_scaling_factor",
                                                         .scale_default = 1.8,
                                                         .has_norm = true,
                                                         .has_groups = true};

static enum moec_status read_lite(const struct moec_json *root, const char *where, struct moec_config *config,
                                  struct moec_error *err)
{
    struct moec_family_layers layers = {.n_dense = 1};
    MOEC_TRY(moec_family_read_routed(root, where, &lite_keys, config, err));
    MOEC_TRY(read_latent(root, where, config, err));
    MOEC_TRY(moec_family_read_mlp_types(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_lite(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &lite_keys, root);
    put_latent(config, root);
    moec_family_put_mlp_types(config, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
}

/* ---- Mistral 4 ---- */

/* 'llama_4_scaling_beta', beside YaRN's parameters: by how much queries grow with their position. */
static enum moec_status read_growth(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    double growth = 0;
    for (size_t i = 0; i < 2; i++) {
        const struct moec_json *rope = moec_json_present(root, keys[i]);
        if (rope != NULL)
            MOEC_TRY(
                moec_json_get_double_or(rope, where, "llama_4_scaling_beta", 0, 1e3, growth, &growth, err));
    }
    config->position.query_growth = (float)growth;
    if (growth > 0 && config->kinds[0].rope_scaling.kind != MOEC_ROPE_YARN)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'llama_4_scaling_beta' %g, which is supported only with RoPE of type 'yarn'", where,
            growth);
    return MOEC_OK;
}

static enum moec_status read_mistral4(const struct moec_json *root, const char *where,
                                      struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    if (moec_json_present(root, "rope_parameters") == NULL && moec_json_present(root, "rope_scaling") == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s has no 'rope_parameters', which moec needs and does not compute from other "
                         "fields",
                         where);
    MOEC_TRY(moec_family_read_routed(root, where, &moec_family_usual_keys, config, err));
    MOEC_TRY(read_latent(root, where, config, err));
    MOEC_TRY(read_growth(root, where, config, err));
    MOEC_TRY(moec_family_read_first_dense(root, where, "first_k_dense_replace", config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_mistral4(const struct moec_config *config, struct moec_json_out *root)
{
    moec_family_put_routed(config, &moec_family_usual_keys, root);
    put_latent(config, root);
    moec_family_put_first_dense(config, "first_k_dense_replace", root);
}

/* clang-format off */
#define ATTENTION MOEC_LAYER_NAME "self_attn."

#define TENSORS                                                                                              \
    .names = {                                                                                               \
        MOEC_NAMES_NORMS, MOEC_NAMES_DENSE, MOEC_NAMES_SHARED("mlp.shared_experts"),                         \
        [MOEC_ROLE_EMBEDDING] = "model.embed_tokens.weight", [MOEC_ROLE_HEAD] = "lm_head.weight",            \
        [MOEC_ROLE_FINAL_NORM] = "model.norm.weight", [MOEC_ROLE_Q] = ATTENTION "q_b_proj.weight",           \
        [MOEC_ROLE_O] = ATTENTION "o_proj.weight", [MOEC_ROLE_Q_DOWN] = ATTENTION "q_a_proj.weight",         \
        [MOEC_ROLE_Q_DOWN_NORM] = ATTENTION "q_a_layernorm.weight",                                          \
        [MOEC_ROLE_KV_DOWN] = ATTENTION "kv_a_proj_with_mqa.weight",                                         \
        [MOEC_ROLE_KV_DOWN_NORM] = ATTENTION "kv_a_layernorm.weight",                                        \
        [MOEC_ROLE_KV_UP] = ATTENTION "kv_b_proj.weight",                                                    \
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.gate.weight",                                              \
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MOEC_LAYER_NAME "mlp.gate.e_score_correction_bias",                 \
    },                                                                                                       \
    .layouts = {[MOEC_ROLE_Q] = {.has_pairs = true}, [MOEC_ROLE_KV_DOWN] = {.has_pairs = true}},             \
    .direct_q_name = ATTENTION "q_proj.weight",                                                              \
    MOEC_USUAL_EXPERTS

const struct moec_family moec_family_deepseek_v2 = {
    .model_type = "deepseek_v2",
    .read = read_v2,
    .write = write_v2,
    .architecture = "DeepseekV2ForCausalLM",
    .defaults = {.n_vocab = 102400, .n_embd = 4096, .n_layer = 32, .n_position = 2048, .rms_eps = 1e-6,
                 .n_expert = 64, .n_ff_expert = 1407, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 32, .head_dim = 192, .rotary_dim = 64, .value_dim = 128,
                            .latent_dim = 512, .q_latent_dim = 1536, .rope_theta = 10000.0,
                            .n_ff_dense = 11008}}},
    TENSORS,
};

const struct moec_family moec_family_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .read = read_v3,
    .write = write_v3,
    .architecture = "DeepseekV3ForCausalLM",
    .defaults = {.n_vocab = 129280, .n_embd = 7168, .n_layer = 61, .n_position = 4096, .rms_eps = 1e-6,
                 .n_expert = 256, .top_k = 8, .n_ff_expert = 2048, .router.kind = MOEC_ROUTER_SIGMOID,
                 .router.choice_bias = true, .router.norm_topk_prob = true, .router.group_score = MOEC_GROUP_BEST_TWO,
                 .router.n_group = 8, .router.n_top_group = 4, .ids.n_eos = 1, .ids.eos = {1},
                 .kinds = {{.n_head = 128, .head_dim = 192, .rotary_dim = 64, .value_dim = 128,
                            .latent_dim = 512, .q_latent_dim = 1536, .rope_theta = 10000.0,
                            .n_ff_dense = 18432}}},
    TENSORS,
};

const struct moec_family moec_family_glm4_moe_lite = {
    .model_type = "glm4_moe_lite",
    .read = read_lite,
    .write = write_lite,
    .architecture = "Glm4MoeLiteForCausalLM",
    .defaults = {.n_vocab = 154880, .n_embd = 2048, .n_layer = 47, .n_position = 202752, .rms_eps = 1e-5,
                 .n_expert = 64, .top_k = 4, .n_ff_expert = 1536, .router.kind = MOEC_ROUTER_SIGMOID,
                 .router.choice_bias = true, .router.norm_topk_prob = true, .router.group_score = MOEC_GROUP_BEST_TWO,
                 .ids.n_eos = 1, .ids.eos = {1},
                 .kinds = {{.n_head = 20, .head_dim = 256, .rotary_dim = 64, .value_dim = 256,
                            .latent_dim = 512, .q_latent_dim = 768, .rope_theta = 10000.0,
                            .n_ff_dense = 10240}}},
    TENSORS,
};

const struct moec_family moec_family_mistral4 = {
    .model_type = "mistral4",
    .outer_type = "mistral3",
    .read = read_mistral4,
    .write = write_mistral4,
    .architecture = "Mistral4ForCausalLM",
    .defaults = {.n_vocab = 131072, .n_embd = 4096, .n_layer = 36, .n_position = 1048576, .rms_eps = 1e-6,
                 .n_expert = 128, .top_k = 4, .n_ff_expert = 2048, .router.norm_topk_prob = true,
                 .router.group_score = MOEC_GROUP_BEST_TWO, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 32, .head_dim = 128, .rotary_dim = 64, .value_dim = 128,
                            .latent_dim = 256, .q_latent_dim = 1024, .rope_theta = 10000.0,
                            .n_ff_dense = 12288}}},
    TENSORS,
};
/* clang-format on */
