/* The same walk over all weights runs twice: without a base it counts floats, with one it fills them. So a
 * bind function takes from the arena in both and loads only in the second. Constants are folded into
 * vectors: 1 / sqrt(n_embd) into the norm of a router. Those of a delta rule's keys and queries are norms of
 * their own. */
#include "runtime/forward/weights/model.h"

#include "formats/base/memory.h"
#include "runtime/forward/weights/model_stream.h"
#include "runtime/forward/weights/model_test_hook.h"
#include "runtime/forward/weights/offload.h"
#include "runtime/forward/weights/position_bias.h"
#include "runtime/forward/weights/rope.h"
#include "runtime/kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Small vectors (norms, biases, gates, rotary frequencies) are F32 copies in one allocation, and so are the
 * routers and biases of experts of a streamed model as they are encoded. The same walk over the model first
 * counts it (base NULL), then fills it. Each vector is padded with zeros to whole lanes. */
struct vector_arena {
    const struct moec_dense *dense;
    float *base;
    uint64_t used_floats;
    struct moec_error *err;
};

/* What moec_model_free and moec_model_bytes need beyond the public struct, which must stay its first member.
 */
struct model_owned {
    struct moec_model model;
    void *vectors;
    uint64_t vector_bytes;
};

static float *arena_take(struct vector_arena *arena, size_t n)
{
    float *vector = arena->base == NULL ? NULL : arena->base + arena->used_floats;
    arena->used_floats += moec_lanes_padded(n);
    return vector;
}

static enum moec_status missing(enum moec_role role, uint32_t layer, struct moec_error *err)
{
    if (layer == MOEC_LAYER_NONE)
        return moec_fail(err, MOEC_ERR_FORMAT, "dense weights lack '%s'", moec_role_name(role));
    return moec_fail(err, MOEC_ERR_FORMAT, "dense weights lack '%s' of layer %" PRIu32, moec_role_name(role),
                     layer);
}

/* All rows of a tensor of floats. */
static enum moec_status load_floats(const struct moec_dense *dense, const struct moec_dense_entry *entry,
                                    float *out, struct moec_error *err)
{
    const size_t n = (size_t)entry->rows * entry->columns;
    void *rows = NULL;
    if (dense->source == NULL) {
        moec_codec_decode_row(entry->codec, dense->blob + entry->offset, n, out);
        return MOEC_OK;
    }
    MOEC_TRY(moec_alloc(&rows, entry->n_bytes, 1, "a vector of the dense weights", err));
    enum moec_status status = dense->source->load(dense->source, entry, 0, entry->rows, rows, err);
    if (status == MOEC_OK)
        moec_codec_decode_row(entry->codec, rows, n, out);
    free(rows);
    return status;
}

static enum moec_status bind_vector(struct vector_arena *arena, enum moec_role role, uint32_t layer,
                                    float **out)
{
    const struct moec_dense *dense = arena->dense;
    const struct moec_dense_entry *entry = moec_dense_entry_find(dense, role, layer);
    if (entry == NULL)
        return missing(role, layer, arena->err);
    const uint32_t n = entry->columns;
    *out = arena_take(arena, n);
    if (*out == NULL)
        return MOEC_OK;
    MOEC_TRY(load_floats(dense, entry, *out, arena->err));
    memset(*out + n, 0, (moec_lanes_padded(n) - n) * sizeof(float));
    return MOEC_OK;
}

/* A norm's weights and, of a LayerNorm, its biases behind them. */
static enum moec_status bind_norm(struct vector_arena *arena, const struct moec_config *config,
                                  enum moec_role role, enum moec_role bias, uint32_t layer, float **out)
{
    float *behind = NULL;
    MOEC_TRY(bind_vector(arena, role, layer, out));
    return config->layer_norm ? bind_vector(arena, bias, layer, &behind) : MOEC_OK;
}

static enum moec_status bind_matrix(struct vector_arena *arena, enum moec_role role, uint32_t layer,
                                    struct moec_matrix *out)
{
    if (!moec_dense_find(arena->dense, role, layer, out))
        return missing(role, layer, arena->err);
    return MOEC_OK;
}

/* The matrices of the embedding or the head. */
static enum moec_status bind_token_rows(struct vector_arena *arena, const struct moec_config *config,
                                        enum moec_role first, enum moec_role rest,
                                        struct moec_token_rows *out)
{
    MOEC_TRY(bind_matrix(arena, first, MOEC_LAYER_NONE, &out->first));
    return config->n_frequent > 0 ? bind_matrix(arena, rest, MOEC_LAYER_NONE, &out->rest) : MOEC_OK;
}

/* A matrix that is resident in every model: a router, biases of experts. */
static enum moec_status bind_resident(struct vector_arena *arena, enum moec_role role, uint32_t layer,
                                      struct moec_matrix *out)
{
    const struct moec_dense *dense = arena->dense;
    MOEC_TRY(bind_matrix(arena, role, layer, out));
    if (dense->source == NULL)
        return MOEC_OK;
    const struct moec_dense_entry *entry = moec_dense_entry_find(dense, role, layer);
    uint8_t *bytes = (uint8_t *)arena_take(arena, (size_t)(entry->n_bytes / sizeof(float)) + 1);
    out->data = bytes;
    if (bytes == NULL)
        return MOEC_OK;
    return dense->source->load(dense->source, entry, 0, entry->rows, bytes, arena->err);
}

static enum moec_status bind_router_table(struct vector_arena *arena, const struct moec_config *config,
                                          uint32_t layer, struct moec_matrix *out)
{
    MOEC_TRY(bind_resident(arena, MOEC_ROLE_ROUTER_TABLE, layer, out));
    if (arena->base == NULL)
        return MOEC_OK;
    return moec_dense_check_routes(out->entry, 0, out->rows, out->data, config->n_expert, arena->err);
}

struct mlp_roles {
    enum moec_role gate, up, down;
};

static enum moec_status bind_mlp(struct vector_arena *arena, const struct moec_config *config,
                                 struct mlp_roles roles, uint32_t layer, struct moec_mlp *mlp)
{
    mlp->activation = config->mlp.activation;
    if (!config->mlp.plain)
        MOEC_TRY(bind_matrix(arena, roles.gate, layer, &mlp->gate));
    MOEC_TRY(bind_matrix(arena, roles.up, layer, &mlp->up));
    return bind_matrix(arena, roles.down, layer, &mlp->down);
}

/* Weights of channels from `first` on, in `out` with all channels side by side, `stride` floats a position.
 */
static enum moec_status load_convolution(const struct vector_arena *arena,
                                         const struct moec_dense_entry *entry, size_t first, size_t stride,
                                         float *out)
{
    float *weights = NULL;
    MOEC_TRY(moec_alloc((void **)&weights, (uint64_t)entry->rows * entry->columns, sizeof(float),
                        "weights of a convolution", arena->err));
    enum moec_status status = load_floats(arena->dense, entry, weights, arena->err);
    for (size_t channel = 0; status == MOEC_OK && channel < entry->rows; channel++)
        for (size_t i = 0; i < entry->columns; i++)
            out[i * stride + first + channel] = weights[channel * entry->columns + i];
    free(weights);
    return status;
}

/* In one tensor, or in one each for queries, keys and values. */
static enum moec_status bind_convolution(struct vector_arena *arena, const struct moec_layer_kind *kind,
                                         uint32_t at, float **out)
{
    static const enum moec_role parts[] = {MOEC_ROLE_Q_CONVOLUTION, MOEC_ROLE_K_CONVOLUTION,
                                           MOEC_ROLE_V_CONVOLUTION},
                                whole[] = {MOEC_ROLE_CONVOLUTION};
    const bool is_parted = kind->mixer == MOEC_MIXER_CHANNEL_DELTA;
    const size_t stride = moec_lanes_padded(moec_layer_channels(kind)), n = kind->conv_size * stride;
    size_t first = 0;
    *out = arena_take(arena, n);
    if (*out != NULL)
        memset(*out, 0, n * sizeof **out);
    for (size_t i = 0; i < (is_parted ? 3 : 1); i++) {
        const enum moec_role role = is_parted ? parts[i] : whole[i];
        const struct moec_dense_entry *entry = moec_dense_entry_find(arena->dense, role, at);
        if (entry == NULL)
            return missing(role, at, arena->err);
        if (*out != NULL)
            MOEC_TRY(load_convolution(arena, entry, first, stride, *out));
        first += entry->rows;
    }
    return MOEC_OK;
}

static float *take_constants(struct vector_arena *arena, size_t n, float value)
{
    float *out = arena_take(arena, n);
    for (size_t i = 0; out != NULL && i < moec_lanes_padded(n); i++)
        out[i] = i < n ? value : 0;
    return out;
}

static enum moec_status bind_running(struct vector_arena *arena, const struct moec_config *config,
                                     uint32_t at, struct moec_layer *layer)
{
    const struct moec_layer_kind *kind = moec_config_layer(config, at);
    MOEC_TRY(bind_convolution(arena, kind, at, &layer->convolution));
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_OUTPUT_GATE, at, &layer->output_gate));
    if (kind->mixer == MOEC_MIXER_CONVOLUTION)
        return bind_matrix(arena, MOEC_ROLE_INPUT_GATE, at, &layer->input_gate);
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_Q, at, &layer->q));
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_K, at, &layer->k));
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_DELTA_DECAY, at, &layer->delta_decay));
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_DELTA_DECAY_LOG, at, &layer->decay_log));
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_DELTA_DECAY_BIAS, at, &layer->decay_bias));
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_DELTA_NORM, at, &layer->delta_norm));
    if (kind->mixer == MOEC_MIXER_SPACE) {
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_CONVOLUTION_BIAS, at, &layer->convolution_bias));
        return bind_vector(arena, MOEC_ROLE_SPACE_SKIP, at, &layer->skip);
    }
    if (kind->mixer == MOEC_MIXER_CHANNEL_DELTA) {
        MOEC_TRY(bind_matrix(arena, MOEC_ROLE_DELTA_DECAY_DOWN, at, &layer->delta_decay_down));
        MOEC_TRY(bind_matrix(arena, MOEC_ROLE_OUTPUT_GATE_DOWN, at, &layer->output_gate_down));
    }
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_DELTA_RATE, at, &layer->delta_rate));
    layer->q_norm = take_constants(arena, kind->head_dim, 1.0f / (float)kind->head_dim);
    layer->k_norm = take_constants(arena, kind->head_dim, 1.0f / sqrtf((float)kind->head_dim));
    return MOEC_OK;
}

static enum moec_status bind_expert_biases(struct vector_arena *arena, const struct moec_config *config,
                                           uint32_t layer,
                                           struct moec_matrix biases[static MOEC_PROJECTION_COUNT])
{
    if (!config->mlp.plain)
        MOEC_TRY(bind_resident(arena, MOEC_ROLE_EXPERT_GATE_BIAS, layer, &biases[MOEC_PROJECTION_GATE]));
    MOEC_TRY(bind_resident(arena, MOEC_ROLE_EXPERT_UP_BIAS, layer, &biases[MOEC_PROJECTION_UP]));
    return bind_resident(arena, MOEC_ROLE_EXPERT_DOWN_BIAS, layer, &biases[MOEC_PROJECTION_DOWN]);
}

static enum moec_status bind_latent(struct vector_arena *arena, const struct moec_layer_kind *kind,
                                    uint32_t at, struct moec_layer *layer)
{
    if (kind->q_latent_dim > 0) {
        MOEC_TRY(bind_matrix(arena, MOEC_ROLE_Q_DOWN, at, &layer->q_down));
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_Q_DOWN_NORM, at, &layer->q_down_norm));
    }
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_KV_DOWN, at, &layer->kv_down));
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_KV_DOWN_NORM, at, &layer->kv_down_norm));
    return bind_matrix(arena, MOEC_ROLE_KV_UP, at, &layer->kv_up);
}

static enum moec_status bind_attention(struct vector_arena *arena, const struct moec_config *config,
                                       uint32_t at, struct moec_layer *layer)
{
    const struct moec_layer_kind *kind = moec_config_layer(config, at);
    if (!moec_layer_mixes(kind))
        return MOEC_OK;
    if (config->norms != MOEC_NORMS_AFTER)
        MOEC_TRY(bind_norm(arena, config, MOEC_ROLE_ATTENTION_NORM, MOEC_ROLE_ATTENTION_NORM_BIAS, at,
                           &layer->attention_norm));
    if (config->norms != MOEC_NORMS_BEFORE)
        MOEC_TRY(bind_norm(arena, config, MOEC_ROLE_ATTENTION_POST_NORM, MOEC_ROLE_ATTENTION_POST_NORM_BIAS,
                           at, &layer->attention_post_norm));
    if (kind->adds_positions)
        MOEC_TRY(bind_resident(arena, MOEC_ROLE_POSITIONS, at, &layer->positions));
    if (!kind->keys_are_values && kind->latent_dim == 0)
        MOEC_TRY(bind_matrix(arena, MOEC_ROLE_V, at, &layer->v));
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_O, at, &layer->o));
    if (kind->v_norm)
        layer->v_norm = take_constants(arena, kind->head_dim, 1);
    if (moec_layer_is_running(kind))
        return bind_running(arena, config, at, layer);
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_Q, at, &layer->q));
    if (kind->latent_dim > 0)
        MOEC_TRY(bind_latent(arena, kind, at, layer));
    else
        MOEC_TRY(bind_matrix(arena, MOEC_ROLE_K, at, &layer->k));
    if (kind->qkv_bias) {
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_Q_BIAS, at, &layer->q_bias));
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_K_BIAS, at, &layer->k_bias));
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_V_BIAS, at, &layer->v_bias));
    }
    if (kind->o_bias)
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_O_BIAS, at, &layer->o_bias));
    if (kind->has_sinks)
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_SINKS, at, &layer->sinks));
    if (kind->has_gate)
        MOEC_TRY(bind_matrix(arena, MOEC_ROLE_OUTPUT_GATE, at, &layer->output_gate));
    if (kind->qk_norm == MOEC_QK_NORM_PLAIN_AFTER) {
        layer->q_norm = layer->k_norm = take_constants(arena, kind->head_dim, 1);
    } else if (kind->qk_norm != MOEC_QK_NORM_NONE) {
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_Q_NORM, at, &layer->q_norm));
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_K_NORM, at, &layer->k_norm));
    }
    return MOEC_OK;
}

static enum moec_status bind_cross(struct vector_arena *arena, uint32_t at, struct moec_layer *layer)
{
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_CROSS_NORM, at, &layer->cross_norm));
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_CROSS_Q, at, &layer->cross_q));
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_CROSS_K, at, &layer->cross_k));
    MOEC_TRY(bind_matrix(arena, MOEC_ROLE_CROSS_V, at, &layer->cross_v));
    return bind_matrix(arena, MOEC_ROLE_CROSS_O, at, &layer->cross_o);
}

/* The table of a stack, made of the weights of its first layer. */
static enum moec_status bind_position_bias(struct vector_arena *arena, const struct moec_config *config,
                                           enum moec_stack stack, float **out)
{
    const uint32_t layer = stack == MOEC_STACK_ENCODER ? 0 : config->n_encoder_layer;
    const struct moec_dense_entry *entry =
        moec_dense_entry_find(arena->dense, MOEC_ROLE_ATTENTION_BIAS, layer);
    if (entry == NULL)
        return missing(MOEC_ROLE_ATTENTION_BIAS, layer, arena->err);
    *out =
        arena_take(arena, moec_config_layer(config, layer)->n_head * moec_position_bias_width(config, stack));
    if (*out == NULL)
        return MOEC_OK;
    void *weights = NULL;
    MOEC_TRY(moec_alloc(&weights, (uint64_t)entry->rows * entry->columns, sizeof(float),
                        "biases of relative positions", arena->err));
    enum moec_status status = load_floats(arena->dense, entry, weights, arena->err);
    if (status == MOEC_OK)
        moec_position_bias_fill(config, stack, weights, *out);
    free(weights);
    return status;
}

static enum moec_status bind_own_norms(struct vector_arena *arena, const struct moec_config *config,
                                       uint32_t at, struct moec_layer *layer)
{
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_ROUTER_NORM, at, &layer->router_norm));
    for (uint32_t i = 0; layer->router_norm != NULL && i < config->n_embd; i++)
        layer->router_norm[i] *= 1.0f / sqrtf((float)config->n_embd);
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_ROUTER_EXPERT_SCALE, at, &layer->router_expert_scale));
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_EXPERT_NORM, at, &layer->expert_norm));
    MOEC_TRY(bind_vector(arena, MOEC_ROLE_EXPERT_POST_NORM, at, &layer->expert_post_norm));
    return bind_vector(arena, MOEC_ROLE_SHARED_POST_NORM, at, &layer->shared_post_norm);
}

/* The MLP of a layer without experts. */
static enum moec_status bind_dense(struct vector_arena *arena, const struct moec_config *config, uint32_t at,
                                   struct moec_mlp *mlp)
{
    MOEC_TRY(bind_mlp(arena, config,
                      (struct mlp_roles){MOEC_ROLE_DENSE_GATE, MOEC_ROLE_DENSE_UP, MOEC_ROLE_DENSE_DOWN}, at,
                      mlp));
    if (config->mlp.dense_silu)
        mlp->activation = MOEC_ACTIVATION_SILU;
    if (!config->mlp.dense_bias)
        return MOEC_OK;
    MOEC_TRY(bind_resident(arena, MOEC_ROLE_DENSE_UP_BIAS, at, &mlp->biases[MOEC_PROJECTION_UP]));
    return bind_resident(arena, MOEC_ROLE_DENSE_DOWN_BIAS, at, &mlp->biases[MOEC_PROJECTION_DOWN]);
}

static enum moec_status bind_layer(struct vector_arena *arena, const struct moec_config *config, uint32_t at,
                                   struct moec_layer *layer)
{
    MOEC_TRY(bind_attention(arena, config, at, layer));
    if (moec_config_is_encoder_decoder(config) && moec_config_stack(config, at) == MOEC_STACK_DECODER)
        MOEC_TRY(bind_cross(arena, at, layer));
    if (moec_config_layer(config, at)->no_mlp)
        return MOEC_OK;
    if (config->norms != MOEC_NORMS_AFTER)
        MOEC_TRY(bind_norm(arena, config, MOEC_ROLE_MLP_NORM, MOEC_ROLE_MLP_NORM_BIAS, at, &layer->mlp_norm));
    if (config->norms != MOEC_NORMS_BEFORE)
        MOEC_TRY(bind_norm(arena, config, MOEC_ROLE_MLP_POST_NORM, MOEC_ROLE_MLP_POST_NORM_BIAS, at,
                           &layer->mlp_post_norm));
    if (config->scale.has_layer)
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_LAYER_SCALE, at, &layer->layer_scale));
    layer->is_moe = moec_config_is_moe(config, at);
    if (!layer->is_moe)
        return bind_dense(arena, config, at, &layer->dense);
    MOEC_TRY(bind_resident(arena, MOEC_ROLE_ROUTER, at, &layer->router));
    if (moec_config_layer(config, at)->routes_by_token)
        MOEC_TRY(bind_router_table(arena, config, at, &layer->router_table));
    if (config->mlp.expert_bias)
        MOEC_TRY(bind_expert_biases(arena, config, at, layer->expert_biases));
    if (config->router.bias)
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_ROUTER_BIAS, at, &layer->router_bias));
    if (config->router.choice_bias && !moec_config_layer(config, at)->routes_by_token)
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_ROUTER_CHOICE_BIAS, at, &layer->router_choice_bias));
    if (config->mlp.own_norms)
        MOEC_TRY(bind_own_norms(arena, config, at, layer));
    layer->has_shared = config->n_ff_shared > 0 || config->mlp.has_bypass;
    if (config->mlp.has_bypass)
        return bind_matrix(arena, MOEC_ROLE_BYPASS, at, &layer->bypass);
    if (!layer->has_shared)
        return MOEC_OK;
    if (config->mlp.shared_gate)
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_SHARED_EXPERT_GATE, at, &layer->shared_expert_gate));
    return bind_mlp(arena, config,
                    (struct mlp_roles){MOEC_ROLE_SHARED_GATE, MOEC_ROLE_SHARED_UP, MOEC_ROLE_SHARED_DOWN}, at,
                    &layer->shared);
}

static void bind_rope(struct vector_arena *arena, struct moec_model *model)
{
    for (uint32_t i = 0; i < model->config.n_kind; i++) {
        const struct moec_layer_kind *kind = &model->config.kinds[i];
        const uint32_t first = moec_config_rope_kind(&model->config, i);
        const size_t n = moec_layer_rotary_dim(kind) / 2;
        model->inverse_frequency[i] = first < i               ? model->inverse_frequency[first]
                                      : kind->rope_theta == 0 ? NULL
                                                              : arena_take(arena, n);
        if (first == i && model->inverse_frequency[i] != NULL)
            moec_rope_fill(&model->config, kind, model->inverse_frequency[i]);
    }
}

/* What stands between the last layer and the head. */
static enum moec_status bind_end(struct vector_arena *arena, struct moec_model *model)
{
    if (!model->config.head.projects_output)
        return bind_norm(arena, &model->config, MOEC_ROLE_FINAL_NORM, MOEC_ROLE_FINAL_NORM_BIAS,
                         MOEC_LAYER_NONE, &model->final_norm);
    MOEC_TRY(bind_resident(arena, MOEC_ROLE_OUTPUT_PROJECTION, MOEC_LAYER_NONE, &model->output_projection));
    return bind_vector(arena, MOEC_ROLE_OUTPUT_PROJECTION_BIAS, MOEC_LAYER_NONE,
                       &model->output_projection_bias);
}

static enum moec_status bind_model(struct vector_arena *arena, struct moec_model *model)
{
    const struct moec_config *config = &model->config;
    MOEC_TRY(
        bind_token_rows(arena, config, MOEC_ROLE_EMBEDDING, MOEC_ROLE_EMBEDDING_REST, &model->embedding));
    if (config->head.is_tied)
        model->head = model->embedding;
    else
        MOEC_TRY(bind_token_rows(arena, config, MOEC_ROLE_HEAD, MOEC_ROLE_HEAD_REST, &model->head));
    MOEC_TRY(bind_end(arena, model));
    if (config->head.bias)
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_HEAD_BIAS, MOEC_LAYER_NONE, &model->head_bias));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        MOEC_TRY(bind_layer(arena, config, layer, &model->layers[layer]));
    if (moec_config_is_encoder_decoder(config))
        MOEC_TRY(bind_vector(arena, MOEC_ROLE_ENCODER_NORM, MOEC_LAYER_NONE, &model->encoder_norm));
    if (config->position.n_bucket > 0) {
        MOEC_TRY(
            bind_position_bias(arena, config, MOEC_STACK_ENCODER, &model->position_bias[MOEC_STACK_ENCODER]));
        return bind_position_bias(arena, config, MOEC_STACK_DECODER,
                                  &model->position_bias[MOEC_STACK_DECODER]);
    }
    bind_rope(arena, model);
    return MOEC_OK;
}

enum moec_status moec_model_create(const struct moec_config *config, struct moec_dense *dense,
                                   struct moec_model **out, struct moec_error *err)
{
    return moec_model_create_streamed(config, dense, 0, out, err);
}

enum moec_status moec_model_create_streamed(const struct moec_config *config, struct moec_dense *dense,
                                            uint64_t keep_bytes, struct moec_model **out,
                                            struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_dense taken = *dense;
    *dense = (struct moec_dense){0};
    void *owned_memory = NULL;
    status = moec_alloc(&owned_memory, 1, sizeof(struct model_owned), "the model", err);
    if (status != MOEC_OK) {
        moec_dense_release(&taken);
        return status;
    }
    struct model_owned *owned = owned_memory;
    struct moec_model *model = &owned->model;
    model->dense = taken;
    model->config = *config;
    MOEC_TRY_OUT(moec_config_check(config, "the model's config", err));
    MOEC_TRY_OUT(moec_dense_check(&model->dense, config, err));

    void *layers = NULL;
    MOEC_TRY_OUT(moec_alloc(&layers, config->n_layer, sizeof(struct moec_layer), "the table of layers", err));
    model->layers = layers;
    struct vector_arena arena = {.dense = &model->dense, .err = err};
    MOEC_TRY_OUT(bind_model(&arena, model));
    owned->vector_bytes = arena.used_floats * sizeof(float);
    MOEC_TRY_OUT(
        moec_alloc_aligned(&owned->vectors, arena.used_floats, sizeof(float), "norms and biases", err));
    arena.base = owned->vectors;
    arena.used_floats = 0;
    MOEC_TRY_OUT(bind_model(&arena, model));
    if (model->dense.source != NULL) {
        const uint64_t floor = moec_model_stream_floor(config, &model->dense);
        MOEC_TRY_OUT(moec_model_stream_create(config, &model->dense, model->layers,
                                              keep_bytes > floor ? keep_bytes : floor, &model->stream, err));
    }
    *out = model;
    return MOEC_OK;

out:
    moec_model_free(model);
    return status;
}

void moec_model_free(struct moec_model *model)
{
    if (model == NULL)
        return;
    struct model_owned *owned = (struct model_owned *)model;
    if (model->offload != NULL)
        model->offload->ops->free(model->offload);
    moec_model_stream_free(model->stream);
    free(owned->vectors);
    free(model->layers);
    moec_dense_release(&model->dense);
    free(owned);
}

enum moec_status moec_model_bring_embedding(const struct moec_model *model, uint32_t token,
                                            struct moec_error *err)
{
    uint32_t at = token;
    const struct moec_matrix *rows = moec_token_rows_of(&model->embedding, &at);
    struct moec_dense_late *late = model->dense.late;
    if (late == NULL)
        return MOEC_OK;
    const uint8_t *row = rows->data + at * rows->stride_bytes;
    MOEC_TRY(late->bring(late, (uint64_t)(row - model->dense.blob), rows->stride_bytes, err));
    if (!moec_codec_row_is_finite(rows->codec, row, rows->columns))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the dense weights '%s' of the bundle '%s' have a weight that is not finite in "
                         "row %u",
                         moec_role_name(MOEC_ROLE_EMBEDDING), late->path, token);
    return MOEC_OK;
}

enum moec_status moec_model_acquire_layer(const struct moec_model *model, uint32_t layer,
                                          const struct moec_layer **out, struct moec_error *err)
{
    if (model->stream != NULL)
        return moec_model_stream_layer(model->stream, layer, out, err);
    *out = &model->layers[layer];
    return MOEC_OK;
}

void moec_model_release_layer(const struct moec_model *model, uint32_t layer)
{
    if (model->stream != NULL)
        moec_model_stream_release_layer(model->stream, layer);
}

enum moec_status moec_model_acquire_head(const struct moec_model *model, uint32_t first_row,
                                         struct moec_matrix *rows, struct moec_error *err)
{
    if (model->stream != NULL)
        return moec_model_stream_head(model->stream, first_row, rows, err);
    *rows = *moec_token_rows_of(&model->head, &first_row);
    rows->rows -= first_row;
    rows->data += first_row * rows->stride_bytes;
    return MOEC_OK;
}

void moec_model_release_head(const struct moec_model *model, uint32_t first_row)
{
    if (model->stream != NULL)
        moec_model_stream_release_head(model->stream, first_row);
}

uint64_t moec_model_bytes(const struct moec_model *model)
{
    const struct model_owned *owned = (const struct model_owned *)model;
    const uint64_t weights =
        model->stream != NULL ? moec_model_stream_bytes(model->stream) : model->dense.blob_bytes;
    return sizeof *owned + owned->vector_bytes + weights +
           (uint64_t)model->dense.n_entries * sizeof(struct moec_dense_entry) +
           (uint64_t)model->config.n_layer * sizeof(struct moec_layer);
}
