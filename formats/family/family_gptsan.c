/* GPTSAN-japanese (Sakamoto 2023; transformers 4.57's models/deprecated/gptsan_japanese): layers of top-1
 * experts with a capacity and a bypass beside them, then perhaps "extra" layers with an MLP; LayerNorms
 * after, learned positions, which extra layers begin with again, and a projection before the head.
 *
 * Texts are read from left to right, as model.generate(input_ids) does: of a prefix whose tokens all see each
 * other (token_type_ids) nothing is known, and no 'spout' is given, whose weights are not read. Every token
 * of a text counts for its expert's capacity, as in a forward pass over all of it. */
#include "formats/family/family_parts.h"

#include <string.h>

/* Layers with experts come first. */
static enum moec_status place_layers(struct moec_config *config, uint32_t n_switch, uint32_t n_extra,
                                     const char *where, struct moec_error *err)
{
    const struct moec_layer_kind like = config->kinds[0];
    if (n_switch == 0 || n_switch > MOEC_MAX_LAYERS || n_extra > MOEC_MAX_LAYERS - n_switch)
        return moec_fail(
            err, MOEC_ERR_LIMIT,
            "%s says 'num_switch_layers' %u and 'num_ext_layers' %u, expected at least 1 switch layer and at "
            "most %d layers in all",
            where, n_switch, n_extra, MOEC_MAX_LAYERS);
    config->n_kind = 0;
    for (uint32_t layer = 0; layer < n_switch + n_extra; layer++) {
        struct moec_layer_kind kind = like;
        kind.is_moe = layer < n_switch;
        kind.n_ff_dense = kind.is_moe ? 0 : like.n_ff_dense;
        kind.adds_positions = layer == 0 || layer == n_switch;
        if (!moec_config_add_layer(config, &kind))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %d layers", where, MOEC_MAX_LAYERS);
    }
    config->mlp.dense_bias = config->mlp.dense_silu = n_extra > 0;
    return MOEC_OK;
}

static enum moec_status read_gptsan(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    uint32_t n_switch = 10, n_extra = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "vocab_size", MOEC_MAX_VOCABULARY, &config->n_vocab, err));
    MOEC_TRY(moec_json_update_u32(root, where, "max_position_embeddings", MOEC_MAX_POSITIONS,
                                  &config->n_position, err));
    MOEC_TRY(moec_json_update_u32(root, where, "d_model", MOEC_MAX_DIMENSION, &config->n_embd, err));
    MOEC_TRY(moec_json_update_u32(root, where, "d_ff", MOEC_MAX_DIMENSION, &config->n_ff_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "d_ext", MOEC_MAX_DIMENSION, &kind->n_ff_dense, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_switch_layers", MOEC_MAX_LAYERS, &n_switch, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_ext_layers", MOEC_MAX_LAYERS, &n_extra, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_heads", MOEC_MAX_DIMENSION, &kind->n_head, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "layer_norm_epsilon", 0, 1, config->rms_eps,
                                     &config->rms_eps, err));
    if (kind->n_head == 0 || config->n_embd % kind->n_head != 0)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s says 'd_model' %u and 'num_heads' %u, expected 'd_model' to be a multiple of 'num_heads'",
            where, config->n_embd, kind->n_head);
    kind->n_kv_head = kind->n_head;
    kind->head_dim = config->n_embd / kind->n_head;
    MOEC_TRY(moec_family_read_capacity(root, where, config, err));
    return place_layers(config, n_switch, n_extra, where, err);
}

static void write_gptsan(const struct moec_config *config, struct moec_json_out *root)
{
    uint32_t n_switch = 0;
    while (n_switch < config->n_layer && moec_config_is_moe(config, n_switch))
        n_switch++;
    moec_json_out_u64(root, "vocab_size", config->n_vocab);
    moec_json_out_u64(root, "max_position_embeddings", config->n_position);
    moec_json_out_u64(root, "d_model", config->n_embd);
    moec_json_out_u64(root, "d_ff", config->n_ff_expert);
    if (n_switch < config->n_layer)
        moec_json_out_u64(root, "d_ext", moec_config_layer(config, n_switch)->n_ff_dense);
    moec_json_out_u64(root, "d_spout", 0);
    moec_json_out_u64(root, "num_switch_layers", n_switch);
    moec_json_out_u64(root, "num_ext_layers", config->n_layer - n_switch);
    moec_json_out_u64(root, "num_heads", moec_config_layer(config, 0)->n_head);
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "expert_capacity", config->router.expert_capacity);
    moec_json_out_double(root, "layer_norm_epsilon", config->rms_eps);
    moec_json_out_bool(root, "router_bias", config->router.bias);
    moec_json_out_string(root, "router_dtype", "float32");
}

/* clang-format off */
#define BLOCK "model.blocks.{L}."
const struct moec_family moec_family_gptsan = {
    .model_type = "gptsan-japanese",
    .read = read_gptsan,
    .write = write_gptsan,
    .has_own_fields = true,
    .architecture = "GPTSanJapaneseForConditionalGeneration",
    .defaults = {.n_vocab = 36000, .n_embd = 1024, .n_position = 1280, .rms_eps = 1e-5, .head.is_tied = true,
                 .norms = MOEC_NORMS_AFTER, .layer_norm = true, .head.projects_output = true, .head.bias = true,
                 .n_expert = 16, .top_k = 1, .n_ff_expert = 8192, .mlp.activation = MOEC_ACTIVATION_RELU,
                 .mlp.plain = true, .mlp.has_bypass = true, .router.expert_capacity = 128, .router.full_keeps_input = true,
                 .ids.n_eos = 1, .ids.eos = {35999}, .kinds = {{.n_head = 16, .n_ff_dense = 4096}}},
    .names = {
        [MOEC_ROLE_EMBEDDING] = "model.embed_tokens.weight",
        [MOEC_ROLE_HEAD_BIAS] = "final_logits_bias",
        [MOEC_ROLE_OUTPUT_PROJECTION] = "model.last_project.weight",
        [MOEC_ROLE_OUTPUT_PROJECTION_BIAS] = "model.last_project.bias",
        [MOEC_ROLE_POSITIONS] = "model.position_embeddings.weight",
        [MOEC_ROLE_Q] = BLOCK "self_attn.self_attn.q_proj.weight",
        [MOEC_ROLE_K] = BLOCK "self_attn.self_attn.k_proj.weight",
        [MOEC_ROLE_V] = BLOCK "self_attn.self_attn.v_proj.weight",
        [MOEC_ROLE_O] = BLOCK "self_attn.self_attn.out_proj.weight",
        [MOEC_ROLE_ATTENTION_POST_NORM] = BLOCK "self_attn.norm.weight",
        [MOEC_ROLE_ATTENTION_POST_NORM_BIAS] = BLOCK "self_attn.norm.bias",
        [MOEC_ROLE_ROUTER] = BLOCK "feed_forward.mlp.router.classifier.weight",
        [MOEC_ROLE_ROUTER_BIAS] = BLOCK "feed_forward.mlp.router.classifier.bias",
        [MOEC_ROLE_BYPASS] = BLOCK "feed_forward.soft_bypass_mlp.weight",
        [MOEC_ROLE_DENSE_UP] = BLOCK "feed_forward.mlp.wi.weight",
        [MOEC_ROLE_DENSE_UP_BIAS] = BLOCK "feed_forward.mlp.wi.bias",
        [MOEC_ROLE_DENSE_DOWN] = BLOCK "feed_forward.mlp.wo.weight",
        [MOEC_ROLE_DENSE_DOWN_BIAS] = BLOCK "feed_forward.mlp.wo.bias",
        [MOEC_ROLE_MLP_POST_NORM] = BLOCK "feed_forward.norm.weight",
        [MOEC_ROLE_MLP_POST_NORM_BIAS] = BLOCK "feed_forward.norm.bias",
    },
    .dense_positions_name = "model.extra_position_embeddings.weight",
    .expert_names = {
        [MOEC_PROJECTION_UP] = BLOCK "feed_forward.mlp.experts.expert_{E}.wi.weight",
        [MOEC_PROJECTION_DOWN] = BLOCK "feed_forward.mlp.experts.expert_{E}.wo.weight",
    },
    .layouts = {[MOEC_ROLE_HEAD_BIAS] = {.is_row = true}},
};
/* clang-format on */
