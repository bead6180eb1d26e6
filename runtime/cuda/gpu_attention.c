/* Attention on a GPU, as runtime/forward/attention/attention.c has it: of a decoder, of an encoder, across to it, and
 * of latents. */
#include "runtime/cuda/gpu_pass.h"
#include "runtime/forward/attention/latent.h"
#include "runtime/forward/weights/position_bias.h"
#include "runtime/forward/weights/rope.h"

#include <math.h>

struct of_layer {
    uint32_t index;
    const struct moec_layer_kind *kind;
    const struct moec_layer *weights;
    struct moec_gpu_mixer_row row;
};

/* What the device is sent of a batch. */
struct sent {
    struct moec_cuda_rows keys, values; /* where the batch's rows go; of a latent what follows it */
    const struct moec_cuda_span *spans;
    const uint32_t *row_span; /* of each row */
    const float *growth;      /* (n_tok) factors of queries, or NULL */
};

/* One attention of a layer, for a batch. */
struct attention {
    struct moec_gpu_backend *b;
    struct of_layer layer;
    struct moec_batch batch;
    float *hidden;
    bool is_cross;     /* from a decoder to an encoder */
    bool has_own_keys; /* the batch's rows make keys and values */
    struct sent sent;
};

uint64_t moec_gpu_mixer_staging_bytes(const struct moec_config *config, uint32_t n_tok)
{
    const uint64_t m = n_tok;
    uint64_t angles = 0;
    for (uint32_t i = 0; i < config->n_kind; i++)
        angles += moec_gpu_staging_piece_bytes(m * moec_layer_rotary_dim(&config->kinds[i]) * sizeof(float));
    return angles + moec_gpu_staging_piece_bytes(2 * m * sizeof(float *)) +
           moec_gpu_staging_piece_bytes(m * sizeof(struct moec_cuda_span)) +
           moec_gpu_staging_piece_bytes(m * sizeof(struct moec_cuda_state)) +
           3 * moec_gpu_staging_piece_bytes(m * sizeof(uint32_t)); /* spans, positions, factors */
}

static struct moec_cuda_rows mixer_rows(const struct moec_gpu_backend *b, size_t offset)
{
    return moec_gpu_rows(b->room.mixer + offset, b->strides.mixer);
}

static uint32_t position_of(const struct moec_span *span, uint32_t row)
{
    return span->first_position + row - span->first_row;
}

/* Whether room.rope has the angles of these rows; else notes that it is to get them. */
static bool has_angles(struct moec_gpu_backend *b, const struct moec_span *spans, uint32_t n_spans,
                       uint32_t n_tok)
{
    bool same = b->positions.n == n_tok;
    for (uint32_t i = 0; i < n_spans; i++)
        for (uint32_t row = spans[i].first_row; row < spans[i].first_row + spans[i].n_rows; row++) {
            const uint32_t position = position_of(&spans[i], row);
            same = same && b->positions.of[row] == position;
            b->positions.of[row] = position;
        }
    b->positions.n = n_tok;
    return same;
}

static enum moec_status send_angles(struct moec_gpu_backend *b, uint32_t at, uint32_t n_tok,
                                    struct moec_error *err)
{
    const struct moec_layer_kind *kind = &b->config->kinds[at];
    const uint32_t dim = moec_layer_rotary_dim(kind);
    const uint64_t n_bytes = (uint64_t)n_tok * dim * sizeof(float);
    float *angles = moec_gpu_staging_take(&b->staging, n_bytes);
    for (uint32_t row = 0; row < n_tok; row++)
        moec_rope_angles(b->config, kind, b->model->model->inverse_frequency[at], b->positions.of[row],
                         angles + (size_t)row * dim, angles + (size_t)row * dim + dim / 2);
    return b->ops->copy(b->gpu, b->stream,
                        (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, b->room.rope[at], angles, n_bytes}, err);
}

/* The angles of all kinds of layers, once for the layers of a batch. */
static enum moec_status send_all_angles(struct moec_gpu_backend *b, const struct attention *attention,
                                        struct moec_error *err)
{
    if (has_angles(b, attention->batch.spans, attention->batch.n_spans, attention->batch.n_tok))
        return MOEC_OK;
    b->positions.n = 0; /* until all have come */
    for (uint32_t i = 0; i < b->config->n_kind; i++)
        if (b->room.rope[i] != NULL && moec_config_rope_kind(b->config, i) == i)
            MOEC_TRY(send_angles(b, i, attention->batch.n_tok, err));
    b->positions.n = attention->batch.n_tok;
    return MOEC_OK;
}

/* Positions that every row sees where attention is not causal. */
static uint32_t visible_keys(const struct moec_span *span)
{
    return span->n_source > 0 ? span->n_source : span->first_position + span->n_rows;
}

/* Where each row's keys and values go, and what each sequence has. */
static enum moec_status send_places(struct attention *attention, struct moec_error *err)
{
    struct moec_gpu_staging *staging = &attention->b->staging;
    const size_t stride = moec_layer_kv_dim(attention->layer.kind);
    const uint32_t n_tok = attention->batch.n_tok, latent_dim = attention->layer.kind->latent_dim;
    const uint64_t span_bytes = attention->batch.n_spans * sizeof(struct moec_cuda_span),
                   place_bytes = 2 * (uint64_t)n_tok * sizeof(float *);
    float **places = moec_gpu_staging_take(staging, place_bytes);
    struct moec_cuda_span *spans = moec_gpu_staging_take(staging, span_bytes);
    uint32_t *row_span = moec_gpu_staging_take(staging, n_tok * sizeof *row_span);
    for (uint32_t i = 0; i < attention->batch.n_spans; i++) {
        const struct moec_span *span = &attention->batch.spans[i];
        spans[i] =
            (struct moec_cuda_span){.first_row = span->first_row,
                                    .first_position = span->first_position,
                                    .own_from = span->n_source > 0 ? span->n_source : span->first_position,
                                    .n_keys = visible_keys(span),
                                    .k_prefix = span->keys.k_prefix,
                                    .v_prefix = span->keys.v_prefix,
                                    .k_own = span->keys.k_own,
                                    .v_own = span->keys.v_own};
        for (uint32_t row = 0; row < span->n_rows; row++) {
            float *key = attention->has_own_keys ? span->keys.k_own + row * stride : NULL;
            places[span->first_row + row] = key;
            places[n_tok + span->first_row + row] = !attention->has_own_keys ? NULL
                                                    : latent_dim > 0         ? key + latent_dim
                                                                     : span->keys.v_own + row * stride;
            row_span[span->first_row + row] = i;
        }
    }
    const void *device_places = NULL, *device_spans = NULL, *device_rows = NULL;
    MOEC_TRY(moec_gpu_staging_send(staging, places, place_bytes, &device_places, err));
    MOEC_TRY(moec_gpu_staging_send(staging, spans, span_bytes, &device_spans, err));
    MOEC_TRY(moec_gpu_staging_send(staging, row_span, n_tok * sizeof *row_span, &device_rows, err));
    float *const *each = device_places;
    attention->sent.keys = (struct moec_cuda_rows){.each = each};
    attention->sent.values = (struct moec_cuda_rows){.each = each + n_tok};
    attention->sent.spans = device_spans;
    attention->sent.row_span = device_rows;
    return MOEC_OK;
}

/* Factors of queries, where any row's is not 1. */
static enum moec_status send_growth(struct attention *attention, struct moec_error *err)
{
    struct moec_gpu_backend *b = attention->b;
    const uint64_t n_bytes = attention->batch.n_tok * sizeof(float);
    bool grows = false;
    if (b->config->position.query_growth == 0)
        return MOEC_OK;
    float *factors = moec_gpu_staging_take(&b->staging, n_bytes);
    const void *device = NULL;
    for (uint32_t row = 0; row < attention->batch.n_tok; row++) {
        factors[row] = moec_rope_query_factor(b->config, attention->layer.kind, b->positions.of[row]);
        grows = grows || factors[row] != 1;
    }
    MOEC_TRY(moec_gpu_staging_send(&b->staging, factors, n_bytes, &device, err));
    attention->sent.growth = grows ? device : NULL;
    return MOEC_OK;
}

/* hidden += the learned vectors of the rows' positions. */
static enum moec_status add_positions(const struct attention *attention, struct moec_error *err)
{
    struct moec_gpu_backend *b = attention->b;
    const struct moec_matrix *positions = &attention->layer.weights->positions;
    const uint64_t n_bytes = attention->batch.n_tok * sizeof(uint32_t);
    const void *device = NULL;
    if (positions->rows == 0)
        return MOEC_OK;
    uint32_t *ids = moec_gpu_staging_take(&b->staging, n_bytes);
    for (uint32_t row = 0; row < attention->batch.n_tok; row++)
        ids[row] = moec_min_u32(b->positions.of[row], positions->rows - 1);
    MOEC_TRY(moec_gpu_staging_send(&b->staging, ids, n_bytes, &device, err));
    const struct moec_cuda_lookup step = {.matrix = moec_gpu_matrix(positions),
                                          .n_first = positions->rows,
                                          .ids = device,
                                          .n = attention->batch.n_tok,
                                          .out = moec_gpu_rows(b->room.mlp.shared, b->strides.row)};
    b->kernels->lookup(b->stream, &step);
    moec_gpu_add(b, attention->batch.n_tok, b->room.mlp.shared, 0, attention->hidden);
    return MOEC_OK;
}

/* ---- queries and keys ---- */

static void clip(const struct attention *attention, struct moec_cuda_rows rows, size_t n)
{
    const struct moec_cuda_scaling step = {.x = rows,
                                           .n_tok = attention->batch.n_tok,
                                           .n = (uint32_t)n,
                                           .limit = attention->layer.kind->clip_qkv};
    attention->b->kernels->scaling(attention->b->stream, &step);
}

/* Of n_head heads, head_dim floats apart, the floats from each row's first on. */
static void rotate(const struct attention *attention, struct moec_cuda_rows rows, uint32_t n_head)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_cuda_rotation step = {.x = rows,
                                            .angles =
                                                b->room.rope[b->config->layer_kind[attention->layer.index]],
                                            .n_tok = attention->batch.n_tok,
                                            .n_head = n_head,
                                            .head_dim = attention->layer.kind->head_dim,
                                            .n_pair = moec_layer_rotary_dim(attention->layer.kind) / 2};
    if (step.angles != NULL)
        b->kernels->rotation(b->stream, &step);
}

static void grow(const struct attention *attention, struct moec_cuda_rows queries, size_t n)
{
    const struct moec_cuda_scaling step = {
        .x = queries, .n_tok = attention->batch.n_tok, .n = (uint32_t)n, .factors = attention->sent.growth};
    if (attention->sent.growth != NULL)
        attention->b->kernels->scaling(attention->b->stream, &step);
}

/* Norms of queries and keys, whole or by heads. */
static void norm_heads(const struct attention *attention, struct moec_cuda_rows q)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->layer.kind;
    const bool is_whole = kind->qk_norm == MOEC_QK_NORM_WHOLE;
    const float eps = (float)b->config->rms_eps;
    const uint32_t n_q = is_whole ? 1 : kind->n_head, n_k = is_whole ? 1 : kind->n_kv_head;
    moec_gpu_norm_parts(b, attention->layer.weights->q_norm, eps, attention->batch.n_tok,
                        (struct moec_gpu_parts){n_q, kind->n_head * kind->head_dim / n_q}, q);
    moec_gpu_norm_parts(b, attention->layer.weights->k_norm, eps, attention->batch.n_tok,
                        (struct moec_gpu_parts){n_k, kind->n_kv_head * kind->head_dim / n_k},
                        attention->sent.keys);
}

/* As place_rows of runtime/forward/attention/attention.c. */
static void place(const struct attention *attention, struct moec_cuda_rows q)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->layer.kind;
    const struct moec_layer *weights = attention->layer.weights;
    const size_t kv_dim = moec_layer_kv_dim(kind);
    const bool has_norms = weights->q_norm != NULL, norms_after = kind->qk_norm >= MOEC_QK_NORM_HEAD_AFTER;
    if (weights->v_norm != NULL)
        moec_gpu_norm_parts(b, weights->v_norm, (float)b->config->rms_eps, attention->batch.n_tok,
                            (struct moec_gpu_parts){kind->n_kv_head, kind->head_dim}, attention->sent.values);
    if (has_norms && !norms_after)
        norm_heads(attention, q);
    if (kind->clip_qkv > 0) {
        clip(attention, q, moec_layer_q_dim(kind));
        clip(attention, attention->sent.keys, kv_dim);
        clip(attention, attention->sent.values, kv_dim);
    }
    rotate(attention, q, kind->n_head);
    rotate(attention, attention->sent.keys, kind->n_kv_head);
    grow(attention, q, moec_layer_q_dim(kind));
    if (has_norms && norms_after)
        norm_heads(attention, q);
}

static void project(const struct attention *attention)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer *weights = attention->layer.weights;
    const struct moec_cuda_rows x = moec_gpu_rows(b->room.inputs.normed, b->strides.row),
                                q = mixer_rows(b, attention->layer.row.q);
    const uint32_t n_tok = attention->batch.n_tok;
    moec_gpu_multiply(b,
                      (struct moec_gpu_dense){attention->is_cross ? &weights->cross_q : &weights->q,
                                              attention->is_cross ? NULL : weights->q_bias},
                      n_tok, x, q, MOEC_CUDA_STORE);
    if (attention->has_own_keys) {
        moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->k, weights->k_bias}, n_tok, x,
                          attention->sent.keys, MOEC_CUDA_STORE);
        moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->v, weights->v_bias}, n_tok, x,
                          attention->sent.values, MOEC_CUDA_STORE);
        const struct moec_cuda_norm copy = {
            .x = attention->sent.keys,
            .out = attention->sent.values,
            .n_tok = n_tok,
            .parts = {.n_part = 1, .n = (uint32_t)moec_layer_kv_dim(attention->layer.kind)}};
        if (weights->v.rows == 0)
            b->kernels->norm(b->stream, &copy);
    }
    if (b->config->position.n_bucket == 0)
        place(attention, q);
}

/* ---- latent attention ---- */

/* Queries times the keys of their head, which then attend to latents, and their rotated parts. */
static void absorb(const struct attention *attention, struct moec_cuda_rows queries)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->layer.kind;
    const uint32_t n_plain = moec_layer_plain_dim(kind), score_dim = moec_layer_score_dim(kind);
    const struct moec_cuda_rows q = mixer_rows(b, attention->layer.row.q);
    const struct moec_cuda_sum keys = {.matrix = moec_gpu_matrix(&attention->layer.weights->kv_up),
                                       .n_rows = n_plain,
                                       .n_tok = attention->batch.n_tok,
                                       .h = {.first = queries.first, .stride = queries.stride},
                                       .y = q,
                                       .batch = {.n = kind->n_head,
                                                 .row_step = n_plain + moec_layer_value_dim(kind),
                                                 .x_step = kind->head_dim,
                                                 .y_step = score_dim}};
    const struct moec_cuda_norm rotated = {
        .x = moec_gpu_rows(queries.first + n_plain, queries.stride),
        .out = moec_gpu_rows(q.first + kind->latent_dim, q.stride),
        .n_tok = attention->batch.n_tok,
        .parts = {
            .n_part = kind->n_head, .n = kind->rotary_dim, .x_step = kind->head_dim, .out_step = score_dim}};
    b->kernels->sum(b->stream, &keys);
    b->kernels->norm(b->stream, &rotated);
}

/* A latent by its norm, and times what the model multiplies it by. */
static void norm_latent(const struct attention *attention, const float *weight, float scale, uint32_t n,
                        struct moec_cuda_rows latents)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_cuda_scaling step = {
        .x = latents, .n_tok = attention->batch.n_tok, .n = n, .factor = scale};
    moec_gpu_norm_parts(b, weight, MOEC_LATENT_NORM_EPS, attention->batch.n_tok,
                        (struct moec_gpu_parts){1, n}, latents);
    if (scale != 0)
        b->kernels->scaling(b->stream, &step);
}

/* As project_latent of runtime/forward/attention/attention.c. */
static void project_latent(const struct attention *attention)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->layer.kind;
    const struct moec_layer *weights = attention->layer.weights;
    const uint32_t n_tok = attention->batch.n_tok;
    const struct moec_cuda_rows queries = mixer_rows(b, attention->layer.row.queries),
                                latents = mixer_rows(b, attention->layer.row.query_latent);
    struct moec_cuda_rows x = moec_gpu_rows(b->room.inputs.normed, b->strides.row);
    moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->kv_down, NULL}, n_tok, x, attention->sent.keys,
                      MOEC_CUDA_STORE);
    if (kind->q_latent_dim > 0) {
        moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->q_down, NULL}, n_tok, x, latents,
                          MOEC_CUDA_STORE);
        norm_latent(attention, weights->q_down_norm, b->config->scale.q_latent, kind->q_latent_dim, latents);
        moec_gpu_pad(b, n_tok, kind->q_latent_dim, latents);
        x = latents;
    }
    moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->q, NULL}, n_tok, x, queries, MOEC_CUDA_STORE);
    norm_latent(attention, weights->kv_down_norm, b->config->scale.latent, kind->latent_dim,
                attention->sent.keys);
    rotate(attention, moec_gpu_rows(queries.first + moec_layer_plain_dim(kind), queries.stride),
           kind->n_head);
    rotate(attention, attention->sent.values, 1);
    grow(attention, queries, (size_t)kind->n_head * kind->head_dim);
    absorb(attention, queries);
}

/* Sums of latents times the values of their head. */
static void expand(const struct attention *attention, struct moec_cuda_rows outputs)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->layer.kind;
    const uint32_t n_plain = moec_layer_plain_dim(kind), value_dim = moec_layer_value_dim(kind);
    const struct moec_cuda_product step = {
        .matrix = moec_gpu_matrix(&attention->layer.weights->kv_up),
        .first_row = n_plain,
        .n_rows = value_dim,
        .n_tok = attention->batch.n_tok,
        .x = {.first = b->room.mixer + attention->layer.row.attended, .stride = b->strides.mixer},
        .y = {.rows = outputs, .sink = MOEC_CUDA_STORE},
        .batch = {.n = kind->n_head,
                  .row_step = n_plain + value_dim,
                  .x_step = attention->layer.row.attended_step,
                  .y_step = value_dim}};
    b->kernels->product(b->stream, &step);
}

/* ---- attention ---- */

static void attend(const struct attention *attention)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->layer.kind;
    const enum moec_stack stack = moec_config_stack(b->config, attention->layer.index);
    const bool is_latent = kind->latent_dim > 0, has_bias = b->config->position.n_bucket > 0;
    const float scale = kind->score_scale > 0 ? kind->score_scale : 1.0f / sqrtf((float)kind->head_dim);
    const bool is_biased = has_bias && !attention->is_cross;
    const struct moec_cuda_attention step = {
        .rows = {.spans = attention->sent.spans,
                 .row_span = attention->sent.row_span,
                 .n_tok = attention->batch.n_tok},
        .heads = {.n_head = kind->n_head,
                  .group = kind->n_head / kind->n_kv_head,
                  .key_dim = moec_layer_score_dim(kind),
                  .value_dim = moec_layer_weighed_dim(kind),
                  .kv_stride = moec_layer_kv_dim(kind),
                  .group_step = is_latent ? 0 : kind->head_dim,
                  .out_step = attention->layer.row.attended_step},
        .q = {.first = b->room.mixer + attention->layer.row.q, .stride = b->strides.mixer},
        .out = {.first = b->room.mixer + attention->layer.row.attended, .stride = b->strides.mixer},
        .scores = {.scale = has_bias ? 0 : scale,
                   .sinks = attention->is_cross ? NULL : attention->layer.weights->sinks,
                   .position_bias = is_biased ? b->model->position_bias[stack] : NULL,
                   .bias_width = is_biased ? (uint32_t)moec_position_bias_width(b->config, stack) : 0,
                   .bias_limit = b->config->position.max_distance},
        .sight = {.window = kind->window,
                  .chunk = kind->chunk,
                  .is_causal = !attention->is_cross && stack == MOEC_STACK_DECODER}};
    b->kernels->attention(b->stream, &step);
}

static enum moec_status run(struct attention *attention, struct moec_error *err)
{
    struct moec_gpu_backend *b = attention->b;
    const struct moec_layer *weights = attention->layer.weights;
    const struct moec_layer_kind *kind = attention->layer.kind;
    const bool is_latent = kind->latent_dim > 0;
    const uint32_t n_tok = attention->batch.n_tok;
    struct moec_cuda_rows outputs = mixer_rows(b, attention->layer.row.attended);
    MOEC_TRY(send_places(attention, err));
    if (is_latent && kind->latent_dim % MOEC_LANES != 0) /* sums of latents are read by whole lanes */
        MOEC_TRY(
            b->ops->clear(b->gpu, b->stream, b->room.mixer, n_tok * b->strides.mixer * sizeof(float), err));
    moec_gpu_norm(b, attention->is_cross ? weights->cross_norm : weights->attention_norm, n_tok,
                  attention->hidden, b->room.inputs.normed);
    if (is_latent)
        project_latent(attention);
    else
        project(attention);
    attend(attention);
    if (is_latent) {
        outputs = mixer_rows(b, attention->layer.row.queries);
        expand(attention, outputs);
    }
    if (!attention->is_cross)
        moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->output_gate, NULL}, n_tok,
                          moec_gpu_rows(b->room.inputs.normed, b->strides.row), outputs,
                          MOEC_CUDA_MULTIPLY_SIGMOID);
    moec_gpu_add_outputs(b,
                         (struct moec_gpu_dense){attention->is_cross ? &weights->cross_o : &weights->o,
                                                 attention->is_cross ? NULL : weights->o_bias},
                         attention->is_cross ? NULL : weights->attention_post_norm, n_tok, outputs,
                         attention->hidden);
    return moec_gpu_check(b, err);
}

static struct attention attention_of(struct moec_gpu_backend *b, uint32_t layer, struct moec_batch batch,
                                     float *hidden)
{
    const struct moec_layer_kind *kind = moec_config_layer(b->config, layer);
    return (struct attention){.b = b,
                              .layer = {.index = layer,
                                        .kind = kind,
                                        .weights = &b->model->layers[layer],
                                        .row = moec_gpu_mixer_row_of(kind)},
                              .batch = batch,
                              .hidden = hidden};
}

enum moec_status moec_gpu_attention(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                    float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    struct attention attention = attention_of(b, layer, batch, hidden);
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_mixer_staging_bytes(b->config, batch.n_tok), err));
    if (moec_layer_is_running(attention.layer.kind))
        return moec_gpu_running(b, layer, batch, hidden, err);
    attention.has_own_keys = batch.n_spans == 0 || batch.spans[0].n_source == 0;
    MOEC_TRY(send_all_angles(b, &attention, err));
    MOEC_TRY(add_positions(&attention, err));
    MOEC_TRY(send_growth(&attention, err));
    return run(&attention, err);
}

/* ---- encoder and decoder ---- */

enum moec_status moec_gpu_cross(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    struct attention attention = attention_of(b, layer, batch, hidden);
    attention.is_cross = true;
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_mixer_staging_bytes(b->config, batch.n_tok), err));
    return run(&attention, err);
}

enum moec_status moec_gpu_encoded(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                  float *encoded, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    moec_gpu_norm(b, b->model->encoder_norm, n_tok, hidden, encoded);
    return moec_gpu_check(b, err);
}

/* Keys and values of inputs `x`. */
static enum moec_status run_keys(struct moec_gpu_backend *b, const struct moec_matrix *k,
                                 const struct moec_matrix *v, uint32_t n_tok, const float *x,
                                 struct moec_kv_rows out, struct moec_error *err)
{
    const struct moec_cuda_rows rows = moec_gpu_rows(x, b->strides.row);
    moec_gpu_multiply(b, (struct moec_gpu_dense){k, NULL}, n_tok, rows, moec_gpu_rows(out.keys, k->rows),
                      MOEC_CUDA_STORE);
    moec_gpu_multiply(b, (struct moec_gpu_dense){v, NULL}, n_tok, rows, moec_gpu_rows(out.values, v->rows),
                      MOEC_CUDA_STORE);
    return moec_gpu_check(b, err);
}

enum moec_status moec_gpu_keys(struct moec_backend *self, uint32_t layer, uint32_t n_tok, const float *hidden,
                               struct moec_kv_rows out, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    moec_gpu_norm(b, weights->attention_norm, n_tok, hidden, b->room.inputs.normed);
    return run_keys(b, &weights->k, &weights->v, n_tok, b->room.inputs.normed, out, err);
}

enum moec_status moec_gpu_cross_keys(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                     const float *encoded, struct moec_kv_rows out, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    return run_keys(b, &weights->cross_k, &weights->cross_v, n_tok, encoded, out, err);
}
