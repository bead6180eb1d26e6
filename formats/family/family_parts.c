/* Every read function here has a put function that writes the same fields; family.c checks the pair by
 * reading back. An absent field keeps the class's default, and an explicit null may mean something else.
 * Layers are placed last, from flags for each layer, since any field may change the template. */
#include "formats/family/family_parts.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- common fields ---- */

static enum moec_status read_heads(const struct moec_json *root, const char *where,
                                   struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_attention_heads", MOEC_MAX_DIMENSION, &kind->n_head, err));
    /* An explicit null means as many as heads, where absence means the class's default. */
    const struct moec_json *kv = moec_json_find(root, "num_key_value_heads");
    if (kv != NULL && moec_json_type(kv) == MOEC_JSON_NULL)
        kind->n_kv_head = 0;
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_key_value_heads", MOEC_MAX_DIMENSION, &kind->n_kv_head, err));
    if (kind->n_kv_head == 0)
        kind->n_kv_head = kind->n_head;
    const struct moec_json *dim = moec_json_find(root, "head_dim");
    if (dim != NULL && moec_json_type(dim) == MOEC_JSON_NULL)
        kind->head_dim = 0;
    MOEC_TRY(moec_json_update_u32(root, where, "head_dim", MOEC_MAX_DIMENSION, &kind->head_dim, err));
    if (kind->head_dim != 0)
        return MOEC_OK;
    if (kind->n_head == 0 || config->n_embd % kind->n_head != 0)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s says 'hidden_size' %u and 'num_attention_heads' %u, expected 'hidden_size' to be a multiple "
            "of 'num_attention_heads'",
            where, config->n_embd, kind->n_head);
    kind->head_dim = config->n_embd / kind->n_head;
    return MOEC_OK;
}

static enum moec_status refuse_activation(const struct moec_json *root, const char *where,
                                          struct moec_error *err)
{
    const char *activation = NULL;
    MOEC_TRY(moec_json_get_string_or(root, where, "hidden_act", "silu", &activation, err));
    if (strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s says 'hidden_act' '%.40s', only 'silu' is supported",
                         where, activation);
    return MOEC_OK;
}

enum moec_status moec_family_read_common(const struct moec_json *root, const char *where,
                                         const struct moec_family *family, struct moec_config *config,
                                         struct moec_error *err)
{
    MOEC_TRY(refuse_activation(root, where, err));
    MOEC_TRY(moec_json_update_u32(root, where, "vocab_size", MOEC_MAX_VOCABULARY, &config->n_vocab, err));
    MOEC_TRY(moec_json_update_u32(root, where, "hidden_size", MOEC_MAX_DIMENSION, &config->n_embd, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_hidden_layers", MOEC_MAX_LAYERS, &config->n_layer, err));
    MOEC_TRY(moec_json_update_u32(root, where, "max_position_embeddings", MOEC_MAX_POSITIONS,
                                  &config->n_position, err));
    MOEC_TRY(moec_json_update_u32(root, where, "num_experts_per_tok", MOEC_MAX_TOP_K, &config->top_k, err));
    MOEC_TRY(
        moec_json_get_double_or(root, where, "rms_norm_eps", 0, 1, config->rms_eps, &config->rms_eps, err));
    MOEC_TRY(moec_json_get_bool_or(root, where, "tie_word_embeddings", config->head.is_tied,
                                   &config->head.is_tied, err));
    MOEC_TRY(read_heads(root, where, config, err));
    return family->has_own_rope ? MOEC_OK : moec_family_read_rope(root, where, family, config, err);
}

void moec_family_put_common(const struct moec_config *config, struct moec_json_out *root)
{
    const struct moec_layer_kind *kind = moec_config_attention(config);
    moec_json_out_u64(root, "vocab_size", config->n_vocab);
    moec_json_out_u64(root, "hidden_size", config->n_embd);
    moec_json_out_u64(root, "num_hidden_layers", config->n_layer);
    moec_json_out_u64(root, "num_attention_heads", kind->n_head);
    /* With a latent, classes count a key/value head for each query head, and what is rotated of it. */
    moec_json_out_u64(root, "num_key_value_heads", kind->latent_dim > 0 ? kind->n_head : kind->n_kv_head);
    moec_json_out_u64(root, "head_dim", kind->latent_dim > 0 ? kind->rotary_dim : kind->head_dim);
    moec_json_out_string(root, "hidden_act", "silu");
    const bool is_dynamic = kind->rope_scaling.kind == MOEC_ROPE_DYNAMIC;
    moec_json_out_u64(root, "max_position_embeddings",
                      is_dynamic ? kind->rope_scaling.original_positions : config->n_position);
    if (!moec_family_find(config->family)->has_own_rope)
        moec_family_put_rope(config, root);
    moec_json_out_double(root, "rms_norm_eps", config->rms_eps);
    moec_json_out_bool(root, "tie_word_embeddings", config->head.is_tied);
    moec_json_out_u64(root, "num_experts_per_tok", config->top_k);
    /* Unknown to the engine, and classes assume ids that the vocabulary may not have. */
    moec_json_out_null(root, "bos_token_id");
    moec_json_out_null(root, "pad_token_id");
}

enum moec_status moec_family_update_any(const struct moec_json *root, const char *where,
                                        const char *const *keys, uint32_t max, uint32_t *out,
                                        struct moec_error *err)
{
    for (; *keys != NULL; keys++)
        if (moec_json_present(root, *keys) != NULL)
            return moec_json_update_u32(root, where, *keys, max, out, err);
    return MOEC_OK;
}

enum moec_status moec_family_refuse_flag(const struct moec_json *root, const char *where, const char *key,
                                         const char *needed, struct moec_error *err)
{
    bool is_set = false;
    MOEC_TRY(moec_json_get_bool_or(root, where, key, false, &is_set, err));
    if (is_set)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says '%s' true, only false is supported: moec does not implement %s", where, key,
                         needed);
    return MOEC_OK;
}

/* Python writes an infinite end as Infinity, and transformers 5 as {"__float__": "Infinity"}. */
enum moec_status moec_family_check_step_limit(const struct moec_json *root, const char *where,
                                              struct moec_error *err)
{
    const struct moec_json *limit = moec_json_present(root, "time_step_limit");
    double ends[2] = {0, (double)INFINITY};
    char what[300];
    (void)snprintf(what, sizeof what, "'time_step_limit' in %.260s", where);
    for (size_t i = 0; i < 2 && limit != NULL; i++) {
        const struct moec_json *end = moec_json_at(limit, i);
        if (end != NULL && moec_json_type(end) != MOEC_JSON_OBJECT && moec_json_type(end) != MOEC_JSON_STRING)
            MOEC_TRY(moec_json_as_double(end, what, -(double)INFINITY, (double)INFINITY, &ends[i], err));
    }
    if (ends[0] > 0 || ends[1] < (double)INFINITY)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s has a 'time_step_limit' of %g to %g, only 0 to infinity is supported: moec does not clamp "
            "time steps",
            where, ends[0], ends[1]);
    return MOEC_OK;
}

enum moec_status moec_family_check_head_dim(const char *where, const struct moec_config *config,
                                            struct moec_error *err)
{
    const struct moec_layer_kind *kind = &config->kinds[0];
    if ((uint64_t)kind->head_dim * kind->n_head != config->n_embd)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'head_dim' %u, expected 'hidden_size' / 'num_attention_heads' = %u / %u in family '%s'",
            where, kind->head_dim, config->n_embd, kind->n_head, config->family);
    return MOEC_OK;
}

enum moec_status moec_family_read_bias(const struct moec_json *root, const char *where, bool has_o,
                                       struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    MOEC_TRY(moec_json_get_bool_or(root, where, "attention_bias", kind->qkv_bias, &kind->qkv_bias, err));
    kind->o_bias = has_o && kind->qkv_bias;
    return MOEC_OK;
}

void moec_family_put_bias(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_bool(root, "attention_bias", moec_config_layer(config, 0)->qkv_bias);
}

enum moec_status moec_family_read_factor(const struct moec_json *root, const char *where, const char *key,
                                         double assumed, float *out, struct moec_error *err)
{
    double value = assumed;
    MOEC_TRY(moec_json_get_double_or(root, where, key, 1e-30, 1e30, assumed, &value, err));
    *out = value == 1 ? 0 : (float)value;
    return MOEC_OK;
}

void moec_family_put_factor(struct moec_json_out *root, const char *key, float value)
{
    moec_json_out_double(root, key, value == 0 ? 1 : (double)value);
}

enum moec_status moec_family_read_capacity(const struct moec_json *root, const char *where,
                                           struct moec_config *config, struct moec_error *err)
{
    const char *dtype = NULL;
    MOEC_TRY(moec_json_update_u32(root, where, "num_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "expert_capacity", UINT32_MAX, &config->router.expert_capacity,
                                  err));
    if (config->router.expert_capacity == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'expert_capacity' 0, expected 1 or more: with 0 no token reaches an expert",
                         where);
    MOEC_TRY(moec_json_get_bool_or(root, where, "router_bias", false, &config->router.bias, err));
    MOEC_TRY(moec_json_get_string_or(root, where, "router_dtype", "float32", &dtype, err));
    if (strcmp(dtype, "float32") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'router_dtype' '%.40s', only 'float32' is supported", where, dtype);
    return MOEC_OK;
}

/* ---- layers ---- */

enum moec_status moec_family_read_first_dense(const struct moec_json *root, const char *where,
                                              const char *key, struct moec_config *config,
                                              struct moec_family_layers *layers, struct moec_error *err)
{
    uint32_t n_dense = layers->n_dense;
    MOEC_TRY(moec_json_update_u32(root, where, key, MOEC_MAX_DIMENSION, &n_dense, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers->is_moe[layer] = layer >= n_dense;
    return moec_family_read_dense_size(root, where, config, layers, err);
}

enum moec_status moec_family_read_mlp_types(const struct moec_json *root, const char *where,
                                            struct moec_config *config, struct moec_family_layers *layers,
                                            struct moec_error *err)
{
    const struct moec_json *list = moec_json_present(root, "mlp_layer_types");
    if (list == NULL)
        return moec_family_read_first_dense(root, where, "first_k_dense_replace", config, layers, err);
    MOEC_TRY(moec_json_get(root, where, "mlp_layer_types", MOEC_JSON_ARRAY, &list, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const char *type = "sparse";
        char what[256];
        (void)snprintf(what, sizeof what, "'mlp_layer_types'[%u] in %.200s", layer, where);
        if (layer < moec_json_length(list))
            MOEC_TRY(moec_json_as_string(moec_json_at(list, layer), what, &type, NULL, err));
        layers->is_moe[layer] = strcmp(type, "sparse") == 0;
        if (!layers->is_moe[layer] && strcmp(type, "dense") != 0)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s is '%.40s', supported: 'dense', 'sparse'", what,
                             type);
    }
    return moec_family_read_dense_size(root, where, config, layers, err);
}

void moec_family_put_mlp_types(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *types = moec_json_out_array();
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, layer);
        moec_json_out_string(types, NULL, kind->is_moe ? "sparse" : "dense");
    }
    moec_json_out_node(root, "mlp_layer_types", types);
}

enum moec_status moec_family_read_dense_size(const struct moec_json *root, const char *where,
                                             struct moec_config *config,
                                             const struct moec_family_layers *layers, struct moec_error *err)
{
    if (memchr(layers->is_moe, 0, config->n_layer) == NULL)
        return MOEC_OK;
    return moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION,
                                &config->kinds[0].n_ff_dense, err);
}

void moec_family_put_first_dense(const struct moec_config *config, const char *key,
                                 struct moec_json_out *root)
{
    uint32_t n_dense = 0;
    while (n_dense < config->n_layer && !moec_config_is_moe(config, n_dense))
        n_dense++;
    moec_json_out_u64(root, key, n_dense);
    if (n_dense > 0)
        moec_json_out_u64(root, "intermediate_size", moec_config_layer(config, 0)->n_ff_dense);
}

/* What `layer_types` calls layers of a kind. */
static const char *running_type(const struct moec_layer_kind *kind)
{
    return kind->mixer == MOEC_MIXER_CONVOLUTION ? "conv" : "linear_attention";
}

enum moec_status moec_family_read_layer_types(const struct moec_json *root, const char *where,
                                              const struct moec_config *config,
                                              struct moec_family_layers *layers, struct moec_error *err)
{
    const struct moec_json *list = moec_json_present(root, "layer_types");
    if (list == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_json_get(root, where, "layer_types", MOEC_JSON_ARRAY, &list, err));
    if (moec_json_length(list) != config->n_layer)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "'layer_types' in %s has %zu entries, expected one for each of "
                         "the %u layers",
                         where, moec_json_length(list), config->n_layer);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const char *type = NULL;
        char what[256];
        (void)snprintf(what, sizeof what, "'layer_types'[%u] in %.200s", layer, where);
        MOEC_TRY(moec_json_as_string(moec_json_at(list, layer), what, &type, NULL, err));
        const bool may_run = moec_layer_is_running(&layers->running);
        const char *other = may_run ? running_type(&layers->running) : "sliding_attention";
        const bool is_other = strcmp(type, other) == 0;
        layers->has_window[layer] = is_other && !may_run;
        layers->is_running[layer] = is_other && may_run;
        if (!is_other && strcmp(type, "full_attention") != 0)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s is '%.40s', supported: 'full_attention', '%s'",
                             what, type, other);
    }
    return MOEC_OK;
}

void moec_family_put_layer_types(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *types = moec_json_out_array();
    uint32_t window = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, layer);
        const uint32_t own = kind->window;
        moec_json_out_string(types, NULL,
                             moec_layer_is_running(kind) ? running_type(kind)
                             : own > 0                   ? "sliding_attention"
                                                         : "full_attention");
        window = own > 0 ? own : window;
    }
    moec_json_out_node(root, "layer_types", types);
    if (window > 0)
        moec_json_out_u64(root, "sliding_window", window);
    else if (!moec_config_is_running(config))
        moec_json_out_null(root, "sliding_window");
}

enum moec_status moec_family_place_layers(struct moec_config *config, const struct moec_family_layers *layers,
                                          const char *where, struct moec_error *err)
{
    const struct moec_layer_kind like = config->kinds[0];
    const uint32_t n_layer = config->n_layer;
    config->n_kind = 0;
    config->n_layer = 0;
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        struct moec_layer_kind kind = layers->is_running[layer] ? layers->running : like;
        kind.is_moe = layers->is_moe[layer] != 0;
        kind.routes_by_token = layers->routes_by_token[layer] != 0;
        kind.n_ff_dense = kind.is_moe ? 0 : like.n_ff_dense;
        if (layers->has_window[layer] && layers->window == 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s has no 'sliding_window' for layer %u, expected 1 or more", where, layer);
        kind.window = layers->has_window[layer] ? layers->window : 0;
        if (layers->rotates_in_window_only && kind.window == 0) {
            kind.rope_theta = 0;
            kind.rotary_dim = 0;
            kind.rope_scaling = (struct moec_rope_scaling){0};
        }
        if (!moec_config_add_layer(config, &kind))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %u layers", where, MOEC_MAX_LAYERS);
    }
    return MOEC_OK;
}

/* ---- state spaces ---- */

struct moec_tensor_layout moec_family_space_layout(const struct moec_config *config, enum moec_role role,
                                                   uint32_t layer)
{
    struct moec_tensor_layout layout = {.is_convolution = role == MOEC_ROLE_CONVOLUTION};
    if (layer == MOEC_LAYER_NONE || moec_config_layer(config, layer)->mixer != MOEC_MIXER_SPACE)
        return layout;
    const struct moec_layer_kind *kind = moec_config_layer(config, layer);
    const struct {
        enum moec_role role;
        uint32_t rows;
    } parts[] = {{MOEC_ROLE_OUTPUT_GATE, moec_layer_out_dim(kind)},
                 {MOEC_ROLE_V, moec_layer_out_dim(kind)},
                 {MOEC_ROLE_K, moec_layer_q_rows(kind)},
                 {MOEC_ROLE_Q, moec_layer_q_rows(kind)},
                 {MOEC_ROLE_DELTA_DECAY, kind->n_head}};
    uint32_t first = 0, step = 0;
    for (size_t i = 0; i < 5; i++)
        step += parts[i].rows;
    for (size_t i = 0; i < 5; first += parts[i++].rows)
        if (parts[i].role == role)
            layout = (struct moec_tensor_layout){
                .block_rows = parts[i].rows, .block_first = first, .block_step = step};
    return layout;
}

/* ---- routers ---- */

static const char *norm_key(const struct moec_family_routed_keys *keys)
{
    return keys->norm != NULL ? keys->norm : "norm_topk_prob";
}

static const char *group_key(const struct moec_family_routed_keys *keys)
{
    return keys->n_group != NULL ? keys->n_group : "n_group";
}

static enum moec_status read_groups(const struct moec_json *root, const char *where, const char *key,
                                    struct moec_config *config, struct moec_error *err)
{
    uint32_t n_group = config->router.n_group > 0 ? config->router.n_group : 1;
    uint32_t n_top_group = config->router.n_group > 0 ? config->router.n_top_group : 1;
    MOEC_TRY(moec_json_update_u32(root, where, key, MOEC_MAX_EXPERTS, &n_group, err));
    MOEC_TRY(moec_json_update_u32(root, where, "topk_group", MOEC_MAX_EXPERTS, &n_top_group, err));
    const bool restricts = n_group > 1 && n_top_group != n_group;
    config->router.n_group = restricts ? n_group : 0;
    config->router.n_top_group = restricts ? n_top_group : 0;
    if (!restricts)
        config->router.group_score = MOEC_GROUP_BEST;
    return MOEC_OK;
}

const struct moec_family_routed_keys moec_family_usual_keys = {.n_expert = "n_routed_experts",
                                                               .n_shared = "n_shared_experts",
                                                               .n_shared_default = 1,
                                                               .scale = "routed_scaling_factor",
                                                               .scale_default = 1,
                                                               .has_norm = true,
                                                               .has_groups = true};

enum moec_status moec_family_read_routed(const struct moec_json *root, const char *where,
                                         const struct moec_family_routed_keys *keys,
                                         struct moec_config *config, struct moec_error *err)
{
    const char *const expert_keys[] = {keys->n_expert, "num_local_experts", NULL};
    uint32_t n_shared = keys->n_shared_default;
    MOEC_TRY(moec_family_update_any(root, where, expert_keys, MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "moe_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, keys->n_shared, 1024, &n_shared, err));
    config->n_ff_shared = n_shared * config->n_ff_expert; /* at most 2^30, checked with the config */
    if (keys->has_norm)
        MOEC_TRY(moec_json_get_bool_or(root, where, norm_key(keys), config->router.norm_topk_prob,
                                       &config->router.norm_topk_prob, err));
    if (keys->scale != NULL)
        MOEC_TRY(moec_family_read_factor(root, where, keys->scale, keys->scale_default, &config->router.scale,
                                         err));
    return keys->has_groups ? read_groups(root, where, group_key(keys), config, err) : MOEC_OK;
}

void moec_family_put_routed(const struct moec_config *config, const struct moec_family_routed_keys *keys,
                            struct moec_json_out *root)
{
    moec_json_out_u64(root, keys->n_expert, config->n_expert);
    moec_json_out_u64(root, "moe_intermediate_size", config->n_ff_expert);
    moec_json_out_u64(root, keys->n_shared, config->n_ff_shared / config->n_ff_expert);
    if (keys->has_norm)
        moec_json_out_bool(root, norm_key(keys), config->router.norm_topk_prob);
    if (keys->scale != NULL)
        moec_family_put_factor(root, keys->scale, config->router.scale);
    if (!keys->has_groups)
        return;
    moec_json_out_u64(root, group_key(keys), config->router.n_group > 0 ? config->router.n_group : 1);
    moec_json_out_u64(root, "topk_group", config->router.n_group > 0 ? config->router.n_top_group : 1);
}

/* ---- Qwen ---- */

enum moec_status moec_family_read_sparse_layers(const struct moec_json *root, const char *where,
                                                struct moec_config *config, struct moec_family_layers *layers,
                                                struct moec_error *err)
{
    uint64_t step = 1;
    MOEC_TRY(moec_json_get_u64_or(root, where, "decoder_sparse_step", 1, MOEC_MAX_DIMENSION, 1, &step, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers->is_moe[layer] = (layer + 1) % step == 0;
    const struct moec_json *plain = moec_json_present(root, "mlp_only_layers");
    if (plain != NULL)
        MOEC_TRY(moec_json_get(root, where, "mlp_only_layers", MOEC_JSON_ARRAY, &plain, err));
    for (size_t i = 0; plain != NULL && i < moec_json_length(plain); i++) {
        uint64_t layer = 0;
        char what[256];
        (void)snprintf(what, sizeof what, "'mlp_only_layers'[%zu] in %.200s", i, where);
        MOEC_TRY(moec_json_as_u64(moec_json_at(plain, i), what, 0, INT32_MAX, &layer, err));
        if (layer < config->n_layer)
            layers->is_moe[layer] = 0;
    }
    return moec_family_read_dense_size(root, where, config, layers, err);
}

enum moec_status moec_family_read_qwen_experts(const struct moec_json *root, const char *where,
                                               struct moec_config *config, struct moec_error *err)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", NULL};
    MOEC_TRY(moec_family_update_any(root, where, keys, MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "moe_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_expert, err));
    return moec_json_get_bool_or(root, where, "norm_topk_prob", config->router.norm_topk_prob,
                                 &config->router.norm_topk_prob, err);
}

void moec_family_put_qwen_experts(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *plain = moec_json_out_array();
    uint32_t n_ff_dense = 0;
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "moe_intermediate_size", config->n_ff_expert);
    moec_json_out_bool(root, "norm_topk_prob", config->router.norm_topk_prob);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        if (moec_config_is_moe(config, layer))
            continue;
        n_ff_dense = moec_config_layer(config, layer)->n_ff_dense;
        moec_json_out_u64(plain, NULL, layer);
    }
    if (n_ff_dense > 0)
        moec_json_out_u64(root, "intermediate_size", n_ff_dense);
    moec_json_out_u64(root, "decoder_sparse_step", 1);
    moec_json_out_node(root, "mlp_only_layers", plain);
}
