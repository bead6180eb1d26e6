#include "runtime/cuda/gpu_backend.h"

#include "formats/base/memory.h"
#include "runtime/cuda/gpu_staging.h"
#include "runtime/cuda/kernels/cuda_matrix.h"
#include "runtime/forward/rope.h"
#include "runtime/forward/scratch.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define HEAD_ROWS 8u  /* whose logits come from the device together */
#define FEW_PAIRS 64u /* rows of experts whose chunks are summed side by side */

/* Working memory of the device, one allocation. Letters as in runtime/forward/scratch.h; F: neurons of the
 * largest MLP, padded. */
struct room {
    float *normed;   /* (M, S) */
    float *q;        /* (M, q_stride) */
    float *attended; /* (M, q_stride): what attention gives */
    float *ranks;    /* (M, k, S) */
    float *shared;   /* (M, S); also the output of a dense MLP */
    float *h;        /* (M x k, F): activations of MLPs */
    float *partials; /* (FEW_PAIRS, chunks of F, n_embd): sums of chunks */
    float
        *logits; /* (M, E padded) of the router, then (M) of the shared expert's gate; or those of the head */
    float *rope[MOEC_MAX_LAYER_KINDS]; /* (M, rotary_dim) by kind, shared by kinds that rotate alike */
};

struct moec_gpu_backend {
    struct moec_backend backend; /* first */
    const struct moec_gpu_model *model;
    const struct moec_config *config;
    const struct moec_gpu_kernels *kernels;
    struct moec_gpu *gpu;
    const struct moec_gpu_ops *ops;
    struct moec_gpu_stream *stream;
    uint32_t max_tokens;
    size_t stride, q_stride, h_stride, logits_stride;
    uint8_t *memory; /* owned, the device's: what `room` is carved from */
    struct room room;
    float *answers; /* owned, pinned: logits from the device */
    struct moec_gpu_staging staging;
    uint32_t *positions;   /* owned, (M): of the rows whose angles stand in room.rope */
    uint32_t n_positioned; /* rows of these */
    enum moec_status lost; /* of a copy, which cannot answer itself */
    struct moec_error lost_words;
};

static struct moec_gpu_backend *of(struct moec_backend *self)
{
    return (struct moec_gpu_backend *)self;
}

/* ---- sizes ---- */

static uint64_t router_floats(const struct moec_config *config, uint64_t n_tok)
{
    return n_tok * (moec_lanes_padded(config->n_expert) + 1);
}

static uint64_t answer_floats(const struct moec_config *config, uint32_t max_tokens)
{
    const uint64_t head = (uint64_t)(max_tokens < HEAD_ROWS ? max_tokens : HEAD_ROWS) * config->n_vocab;
    const uint64_t router = router_floats(config, max_tokens);
    return head > router ? head : router;
}

static uint32_t most_neurons(const struct moec_config *config)
{
    uint32_t n = config->n_ff_expert > config->n_ff_shared ? config->n_ff_expert : config->n_ff_shared;
    for (uint32_t i = 0; i < config->n_kind; i++)
        n = config->kinds[i].n_ff_dense > n ? config->kinds[i].n_ff_dense : n;
    return n;
}

static size_t q_stride_of(const struct moec_config *config)
{
    size_t most = moec_lanes_padded(config->n_embd);
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const size_t n = moec_lanes_padded(moec_layer_q_dim(&config->kinds[i]));
        most = n > most ? n : most;
    }
    return most;
}

/* Carves n floats at a multiple of 256 bytes; base NULL only counts. */
static float *carve(uint8_t *base, uint64_t *used, uint64_t n)
{
    float *place = base == NULL ? NULL : (float *)(base + *used);
    *used += moec_gpu_staging_piece_bytes(n * sizeof(float));
    return place;
}

/* Rows of experts whose chunks there is room for, and floats of a row's. */
static uint64_t partial_rows(const struct moec_config *config, uint32_t max_tokens)
{
    const uint64_t pairs = (uint64_t)max_tokens * config->top_k;
    return pairs < FEW_PAIRS ? pairs : FEW_PAIRS;
}

static uint64_t partial_floats(const struct moec_config *config)
{
    return (most_neurons(config) + (uint64_t)MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK * config->n_embd;
}

/* Bytes of the room, which is carved from `base`. */
static uint64_t carve_room(const struct moec_config *config, uint32_t max_tokens, uint8_t *base,
                           struct room *room)
{
    const uint64_t m = max_tokens, stride = moec_lanes_padded(config->n_embd);
    uint64_t used = 0;
    room->normed = carve(base, &used, m * stride);
    room->q = carve(base, &used, m * q_stride_of(config));
    room->attended = carve(base, &used, m * q_stride_of(config));
    room->ranks = carve(base, &used, m * config->top_k * stride);
    room->shared = carve(base, &used, m * stride);
    room->h = carve(base, &used, m * config->top_k * moec_lanes_padded(most_neurons(config)));
    room->partials = carve(base, &used, partial_rows(config, max_tokens) * partial_floats(config));
    room->logits = carve(base, &used, answer_floats(config, max_tokens));
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const uint32_t first = moec_config_rope_kind(config, i);
        if (config->kinds[i].rope_theta <= 0)
            continue;
        room->rope[i] =
            first < i ? room->rope[first] : carve(base, &used, m * moec_layer_rotary_dim(&config->kinds[i]));
    }
    return used;
}

/* Of the tables of the step that has most. */
static uint64_t staging_bytes(const struct moec_config *config, uint32_t max_tokens)
{
    const uint64_t m = max_tokens, pairs = m * config->top_k;
    uint64_t angles = 0;
    for (uint32_t i = 0; i < config->n_kind; i++)
        angles += moec_gpu_staging_piece_bytes(m * moec_layer_rotary_dim(&config->kinds[i]) * sizeof(float));
    const uint64_t attention = angles + moec_gpu_staging_piece_bytes(2 * m * sizeof(float *)) +
                               moec_gpu_staging_piece_bytes(m * sizeof(struct moec_cuda_span)) +
                               moec_gpu_staging_piece_bytes(m * sizeof(uint32_t));
    const uint64_t n_job = config->n_expert < MOEC_HELD_EXPERTS ? config->n_expert : MOEC_HELD_EXPERTS;
    const uint64_t experts = moec_gpu_staging_piece_bytes(pairs * sizeof(uint32_t)) +
                             moec_gpu_staging_piece_bytes(n_job * sizeof(struct moec_cuda_mlp_job)) +
                             moec_gpu_staging_piece_bytes(sizeof(struct moec_cuda_mlp_job));
    const uint64_t sum = moec_gpu_staging_piece_bytes(pairs * sizeof(float)) +

                         moec_gpu_staging_piece_bytes(m * sizeof(float));
    return attention + experts + sum;
}

struct moec_gpu_backend_sizes moec_gpu_backend_sizes_of(const struct moec_config *config, uint32_t max_tokens)
{
    struct room room = {0};
    const uint64_t staged = staging_bytes(config, max_tokens);
    return (struct moec_gpu_backend_sizes){
        .device_bytes = carve_room(config, max_tokens, NULL, &room) + staged,
        .host_bytes = sizeof(struct moec_gpu_backend) + staged +
                      answer_floats(config, max_tokens) * sizeof(float) + max_tokens * sizeof(uint32_t)};
}

/* ---- memory ---- */

static enum moec_status backend_alloc(struct moec_backend *self, uint64_t n_bytes, const char *what,
                                      void **out, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    void *memory = NULL;
    MOEC_TRY(b->ops->alloc(b->gpu, n_bytes, what, &memory, err));
    const enum moec_status status = b->ops->clear(b->gpu, b->stream, memory, n_bytes, err);
    if (status != MOEC_OK)
        b->ops->free(b->gpu, memory);
    else
        *out = memory;
    return status;
}

static void backend_free(struct moec_backend *self, void *memory)
{
    of(self)->ops->free(of(self)->gpu, memory);
}

static void backend_copy(struct moec_backend *self, void *to, const void *from, uint64_t n_bytes)
{
    struct moec_gpu_backend *b = of(self);
    if (b->lost == MOEC_OK && n_bytes > 0)
        b->lost = b->ops->copy(b->gpu, b->stream, MOEC_GPU_WITHIN, to, from, n_bytes, &b->lost_words);
}

/* ---- launches ---- */

static struct moec_cuda_rows rows_at(float *first, size_t stride)
{
    return (struct moec_cuda_rows){.first = first, .stride = stride};
}

static struct moec_cuda_matrix matrix_of(const struct moec_matrix *matrix)
{
    return moec_cuda_matrix_make(matrix, matrix->data);
}

/* The kernels read rows that they do not write through the same struct. */
static float *written(const float *rows)
{
    return (float *)(uintptr_t)rows;
}

static void norm(const struct moec_gpu_backend *b, const float *weight, uint32_t n_tok, const float *x,
                 float *out)
{
    const struct moec_cuda_norm step = {.x = rows_at(written(x), b->stride),
                                        .out = rows_at(out, b->stride),
                                        .n_tok = n_tok,
                                        .n_part = 1,
                                        .n = b->config->n_embd,
                                        .weight = weight,
                                        .eps = (float)b->config->rms_eps,
                                        .padded = (uint32_t)b->stride};
    b->kernels->norm(b->stream, &step);
}

/* All rows of a matrix with the normed rows. */
static void multiply(const struct moec_gpu_backend *b, const struct moec_matrix *matrix, const float *bias,
                     uint32_t n_tok, struct moec_cuda_rows y, enum moec_cuda_sink sink)
{
    const struct moec_cuda_product step = {.matrix = matrix_of(matrix),
                                           .n_rows = matrix->rows,
                                           .n_tok = n_tok,
                                           .x = b->room.normed,
                                           .x_stride = b->stride,
                                           .bias = bias,
                                           .y = y,
                                           .sink = (uint8_t)sink};
    b->kernels->product(b->stream, &step);
}

static void add(const struct moec_gpu_backend *b, uint32_t n_tok, const float *x, float *hidden)
{
    const struct moec_cuda_addition step = {.x = rows_at(written(x), b->stride),
                                            .y = rows_at(hidden, b->stride),
                                            .n_tok = n_tok,
                                            .n = b->config->n_embd,
                                            .scale = b->config->residual_scale};
    b->kernels->addition(b->stream, &step);
}

static enum moec_status check(const struct moec_gpu_backend *b, struct moec_error *err)
{
    return b->ops->check(b->gpu, err);
}

/* Jobs on the normed rows, n_jobs > 0, with their pairs one behind the other; `piece` is where they are put
 * together.
 */
static enum moec_status run_mlps(struct moec_gpu_backend *b, const struct moec_mlp *mlp,
                                 const struct moec_cuda_mlp_job *piece, uint32_t n_jobs,
                                 const uint32_t *pairs, uint32_t pairs_per_row, float *out,
                                 struct moec_error *err)
{
    const struct moec_cuda_mlp_job *last = &piece[n_jobs - 1];
    const void *jobs = NULL;
    uint32_t most = 0;
    for (uint32_t j = 0; j < n_jobs; j++)
        most = piece[j].n > most ? piece[j].n : most;
    const bool is_few = last->first + last->n <= partial_rows(b->config, b->max_tokens);
    MOEC_TRY(moec_gpu_staging_send(&b->staging, piece, n_jobs * sizeof *piece, &jobs, err));
    const struct moec_cuda_mlp step = {.jobs = jobs,
                                       .pairs = pairs,
                                       .n_jobs = n_jobs,
                                       .most = most,
                                       .n_ff = mlp->up.rows,
                                       .n_embd = b->config->n_embd,
                                       .pairs_per_row = pairs_per_row,
                                       .activation = mlp->activation,
                                       .x = b->room.normed,
                                       .x_stride = b->stride,
                                       .h = b->room.h,
                                       .h_stride = b->h_stride,
                                       .partials = is_few ? b->room.partials : NULL,
                                       .out = out,
                                       .out_stride = b->stride};
    b->kernels->mlp(b->stream, &step);
    return check(b, err);
}

static struct moec_cuda_mlp_job job_of(const struct moec_mlp *mlp, uint32_t first, uint32_t n)
{
    return (struct moec_cuda_mlp_job){.gate = matrix_of(&mlp->gate),
                                      .up = matrix_of(&mlp->up),
                                      .down = matrix_of(&mlp->down),
                                      .first = first,
                                      .n = n};
}

/* A dense MLP, or a shared expert. */
static enum moec_status run_dense(struct moec_gpu_backend *b, const struct moec_mlp *mlp, uint32_t n_tok,
                                  struct moec_error *err)
{
    struct moec_cuda_mlp_job *piece = NULL;
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_staging_piece_bytes(sizeof *piece), err));
    piece = moec_gpu_staging_take(&b->staging, sizeof *piece);
    *piece = job_of(mlp, 0, n_tok);
    return run_mlps(b, mlp, piece, 1, NULL, 1, b->room.shared, err);
}

/* ---- embedding ---- */

static enum moec_status backend_embed(struct moec_backend *self, const uint32_t *tokens, uint32_t n_tok,
                                      float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const void *ids = NULL;
    if (b->lost != MOEC_OK)
        return moec_fail(err, b->lost, "%s", b->lost_words.message);
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_staging_piece_bytes(n_tok * sizeof *tokens), err));
    MOEC_TRY(moec_gpu_staging_put(&b->staging, tokens, n_tok * sizeof *tokens, &ids, err));
    const struct moec_cuda_lookup step = {.matrix = matrix_of(&b->model->embedding),
                                          .ids = ids,
                                          .n = n_tok,
                                          .scale = b->config->embedding_scale,
                                          .out = rows_at(hidden, b->stride)};
    b->kernels->lookup(b->stream, &step);
    return check(b, err);
}

/* ---- attention ---- */

/* One layer's attention for a batch. */
struct attention {
    struct moec_gpu_backend *b;
    const struct moec_layer_kind *kind;
    const struct moec_layer *weights;
    const struct moec_span *spans;
    uint32_t n_spans, n_tok;
    float *hidden;
    struct moec_cuda_rows keys, values; /* where the batch's rows go */
    const struct moec_cuda_span *device_spans;
    const uint32_t *row_span; /* of each row, likewise the device's */
};

static uint32_t position_of(const struct moec_span *span, uint32_t row)
{
    return span->first_position + row - span->first_row;
}

/* Whether room.rope has the angles of these rows; else notes that it is to get them. */
static bool has_angles(struct moec_gpu_backend *b, const struct moec_span *spans, uint32_t n_spans,
                       uint32_t n_tok)
{
    bool same = b->n_positioned == n_tok;
    for (uint32_t i = 0; i < n_spans; i++)
        for (uint32_t row = spans[i].first_row; row < spans[i].first_row + spans[i].n_rows; row++) {
            const uint32_t position = position_of(&spans[i], row);
            same = same && b->positions[row] == position;
            b->positions[row] = position;
        }
    b->n_positioned = n_tok;
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
        moec_rope_angles(b->config, kind, b->model->model->inverse_frequency[at], b->positions[row],
                         angles + (size_t)row * dim, angles + (size_t)row * dim + dim / 2);
    return b->ops->copy(b->gpu, b->stream, MOEC_GPU_TO_DEVICE, b->room.rope[at], angles, n_bytes, err);
}

/* The angles of all kinds of layers, once for the layers of a batch. */
static enum moec_status send_all_angles(struct moec_gpu_backend *b, const struct attention *attention,
                                        struct moec_error *err)
{
    if (has_angles(b, attention->spans, attention->n_spans, attention->n_tok))
        return MOEC_OK;
    b->n_positioned = 0; /* until all have come */
    for (uint32_t i = 0; i < b->config->n_kind; i++)
        if (b->room.rope[i] != NULL && moec_config_rope_kind(b->config, i) == i)
            MOEC_TRY(send_angles(b, i, attention->n_tok, err));
    b->n_positioned = attention->n_tok;
    return MOEC_OK;
}

/* Where each row's keys and values go, and what each sequence has. */
static enum moec_status send_places(struct attention *attention, struct moec_error *err)
{
    struct moec_gpu_staging *staging = &attention->b->staging;
    const size_t stride = moec_layer_kv_dim(attention->kind);
    const uint32_t n_tok = attention->n_tok;
    const uint64_t span_bytes = attention->n_spans * sizeof(struct moec_cuda_span),
                   place_bytes = 2 * (uint64_t)n_tok * sizeof(float *);
    float **places = moec_gpu_staging_take(staging, place_bytes);
    struct moec_cuda_span *spans = moec_gpu_staging_take(staging, span_bytes);
    uint32_t *row_span = moec_gpu_staging_take(staging, n_tok * sizeof *row_span);
    for (uint32_t i = 0; i < attention->n_spans; i++) {
        const struct moec_span *span = &attention->spans[i];
        spans[i] = (struct moec_cuda_span){.first_row = span->first_row,
                                           .first_position = span->first_position,
                                           .own_from = span->first_position,
                                           .n_keys = span->first_position + span->n_rows,
                                           .k_prefix = span->k_prefix,
                                           .v_prefix = span->v_prefix,
                                           .k_own = span->k_own,
                                           .v_own = span->v_own};
        for (uint32_t row = 0; row < span->n_rows; row++) {
            places[span->first_row + row] = span->k_own + row * stride;
            places[n_tok + span->first_row + row] = span->v_own + row * stride;
            row_span[span->first_row + row] = i;
        }
    }
    const void *device_places = NULL, *device_spans = NULL, *device_rows = NULL;
    MOEC_TRY(moec_gpu_staging_send(staging, places, place_bytes, &device_places, err));
    MOEC_TRY(moec_gpu_staging_send(staging, spans, span_bytes, &device_spans, err));
    MOEC_TRY(moec_gpu_staging_send(staging, row_span, n_tok * sizeof *row_span, &device_rows, err));
    float *const *each = device_places;
    attention->keys = (struct moec_cuda_rows){.each = each};
    attention->values = (struct moec_cuda_rows){.each = each + n_tok};
    attention->device_spans = device_spans;
    attention->row_span = device_rows;
    return MOEC_OK;
}

/* Norms of queries and keys, whole or by heads. */
static void norm_heads(const struct attention *attention, struct moec_cuda_rows q)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->kind;
    const bool is_whole = kind->qk_norm == MOEC_QK_NORM_WHOLE;
    const struct {
        struct moec_cuda_rows rows;
        const float *weight;
        uint32_t n_head;
    } both[] = {{q, attention->weights->q_norm, kind->n_head},
                {attention->keys, attention->weights->k_norm, kind->n_kv_head}};
    for (int i = 0; i < 2; i++) {
        const struct moec_cuda_norm step = {.x = both[i].rows,
                                            .out = both[i].rows,
                                            .n_tok = attention->n_tok,
                                            .n_part = is_whole ? 1 : both[i].n_head,
                                            .n = is_whole ? both[i].n_head * kind->head_dim : kind->head_dim,
                                            .weight = both[i].weight,
                                            .eps = (float)b->config->rms_eps};
        b->kernels->norm(b->stream, &step);
    }
}

static void clip(const struct attention *attention, struct moec_cuda_rows rows, size_t n)
{
    const struct moec_cuda_scaling step = {
        .x = rows, .n_tok = attention->n_tok, .n = (uint32_t)n, .limit = attention->kind->clip_qkv};
    attention->b->kernels->scaling(attention->b->stream, &step);
}

static void rotate(const struct attention *attention, struct moec_cuda_rows rows, uint32_t n_head,
                   const float *angles)
{
    const struct moec_cuda_rotation step = {.x = rows,
                                            .angles = angles,
                                            .n_tok = attention->n_tok,
                                            .n_head = n_head,
                                            .head_dim = attention->kind->head_dim,
                                            .n_pair = moec_layer_rotary_dim(attention->kind) / 2};
    attention->b->kernels->rotation(attention->b->stream, &step);
}

/* As place_rows of runtime/forward/attention.c. */
static void place(const struct attention *attention, struct moec_cuda_rows q, const float *angles)
{
    const struct moec_layer_kind *kind = attention->kind;
    const size_t kv_dim = moec_layer_kv_dim(kind);
    const bool has_norms = attention->weights->q_norm != NULL,
               norms_after = kind->qk_norm == MOEC_QK_NORM_HEAD_AFTER;
    if (has_norms && !norms_after)
        norm_heads(attention, q);
    if (kind->clip_qkv > 0) {
        clip(attention, q, moec_layer_q_dim(kind));
        clip(attention, attention->keys, kv_dim);
        clip(attention, attention->values, kv_dim);
    }
    if (angles != NULL) {
        rotate(attention, q, kind->n_head, angles);
        rotate(attention, attention->keys, kind->n_kv_head, angles);
    }
    if (has_norms && norms_after)
        norm_heads(attention, q);
}

static void attend(const struct attention *attention)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer_kind *kind = attention->kind;
    const struct moec_cuda_attention step = {
        .spans = attention->device_spans,
        .row_span = attention->row_span,
        .n_tok = attention->n_tok,
        .n_head = kind->n_head,
        .group = kind->n_head / kind->n_kv_head,
        .key_dim = kind->head_dim,
        .value_dim = kind->head_dim,
        .kv_stride = moec_layer_kv_dim(kind),
        .group_step = kind->head_dim,
        .q = b->room.q,
        .q_stride = b->q_stride,
        .out = b->room.attended,
        .out_stride = b->q_stride,
        .out_step = kind->head_dim,
        .scale = kind->score_scale > 0 ? kind->score_scale : 1.0f / sqrtf((float)kind->head_dim),
        .sinks = attention->weights->sinks,
        .window = kind->window,
        .is_causal = true};
    b->kernels->attention(b->stream, &step);
}

/* The output product into the hidden state: at once, or scaled by way of `normed`, whose inputs are used up.
 */
static void add_outputs(const struct attention *attention)
{
    const struct moec_gpu_backend *b = attention->b;
    const struct moec_layer *weights = attention->weights;
    const bool is_plain = b->config->residual_scale == 0;
    const struct moec_cuda_product step = {
        .matrix = matrix_of(&weights->o),
        .n_rows = weights->o.rows,
        .n_tok = attention->n_tok,
        .x = b->room.attended,
        .x_stride = b->q_stride,
        .bias = weights->o_bias,
        .y = rows_at(is_plain ? attention->hidden : b->room.normed, b->stride),
        .sink = is_plain ? MOEC_CUDA_ADD : MOEC_CUDA_STORE};
    b->kernels->product(b->stream, &step);
    if (!is_plain)
        add(b, attention->n_tok, b->room.normed, attention->hidden);
}

static enum moec_status backend_attention(struct moec_backend *self, uint32_t layer,
                                          const struct moec_span *spans, uint32_t n_spans, uint32_t n_tok,
                                          float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    struct attention attention = {.b = b,
                                  .kind = moec_config_layer(b->config, layer),
                                  .weights = weights,
                                  .spans = spans,
                                  .n_spans = n_spans,
                                  .n_tok = n_tok,
                                  .hidden = hidden};
    const struct moec_cuda_rows q = rows_at(b->room.q, b->q_stride);
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, staging_bytes(b->config, n_tok), err));
    MOEC_TRY(send_all_angles(b, &attention, err));
    MOEC_TRY(send_places(&attention, err));
    if (moec_layer_q_dim(attention.kind) % MOEC_LANES != 0) /* the output product reads whole lanes */
        MOEC_TRY(
            b->ops->clear(b->gpu, b->stream, b->room.attended, n_tok * b->q_stride * sizeof(float), err));
    norm(b, weights->attention_norm, n_tok, hidden, b->room.normed);
    multiply(b, &weights->q, weights->q_bias, n_tok, q, MOEC_CUDA_STORE);
    multiply(b, &weights->k, weights->k_bias, n_tok, attention.keys, MOEC_CUDA_STORE);
    multiply(b, &weights->v, weights->v_bias, n_tok, attention.values, MOEC_CUDA_STORE);
    place(&attention, q, b->room.rope[b->config->layer_kind[layer]]);
    attend(&attention);
    if (weights->output_gate.rows > 0)
        multiply(b, &weights->output_gate, NULL, n_tok, rows_at(b->room.attended, b->q_stride),
                 MOEC_CUDA_MULTIPLY_SIGMOID);
    add_outputs(&attention);
    return check(b, err);
}

/* ---- MLPs and experts ---- */

static enum moec_status backend_dense(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                      float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    norm(b, weights->mlp_norm, n_tok, hidden, b->room.normed);
    MOEC_TRY(run_dense(b, &weights->dense, n_tok, err));
    add(b, n_tok, b->room.shared, hidden);
    return check(b, err);
}

static enum moec_status backend_norm(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                     const float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    norm(b, b->model->layers[layer].mlp_norm, n_tok, hidden, b->room.normed);
    return check(b, err);
}

/* What a vector makes of the normed rows: a product with one row of floats. */
static void multiply_vector(const struct moec_gpu_backend *b, const float *vector, uint32_t n_tok, float *out)
{
    const struct moec_matrix matrix = {.codec = {.dtype = MOEC_DTYPE_F32},
                                       .rows = 1,
                                       .columns = b->config->n_embd,
                                       .stride_bytes = b->config->n_embd * sizeof(float),
                                       .data = (const uint8_t *)vector};
    multiply(b, &matrix, NULL, n_tok, rows_at(out, 1), MOEC_CUDA_STORE);
}

static enum moec_status backend_score(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                      struct moec_backend_scores *out, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    float *shared = b->room.logits + n_tok * b->logits_stride;
    const bool has_gate = weights->shared_expert_gate != NULL;
    const uint64_t n_floats = n_tok * b->logits_stride + (has_gate ? n_tok : 0);
    multiply(b, &weights->router, NULL, n_tok, rows_at(b->room.logits, b->logits_stride), MOEC_CUDA_STORE);
    if (has_gate)
        multiply_vector(b, weights->shared_expert_gate, n_tok, shared);
    MOEC_TRY(check(b, err));
    MOEC_TRY(b->ops->copy(b->gpu, b->stream, MOEC_GPU_TO_HOST, b->answers, b->room.logits,
                          n_floats * sizeof(float), err));
    MOEC_TRY(b->ops->finish(b->gpu, b->stream, err));
    moec_gpu_staging_clear(&b->staging);
    *out = (struct moec_backend_scores){.logits = b->answers,
                                        .logits_stride = b->logits_stride,
                                        .shared = has_gate ? b->answers + n_tok * b->logits_stride : NULL};
    return MOEC_OK;
}

static enum moec_status backend_experts(struct moec_backend *self, const struct moec_mlp_job *jobs,
                                        uint32_t n_jobs, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    uint32_t n_pairs = 0, first = 0;
    for (uint32_t j = 0; j < n_jobs; j++)
        n_pairs += jobs[j].n;
    if (n_pairs == 0)
        return MOEC_OK;
    const uint64_t pair_bytes = n_pairs * sizeof(uint32_t),
                   job_bytes = n_jobs * sizeof(struct moec_cuda_mlp_job);
    MOEC_TRY(moec_gpu_staging_begin(
        &b->staging, moec_gpu_staging_piece_bytes(pair_bytes) + moec_gpu_staging_piece_bytes(job_bytes),
        err));
    uint32_t *pairs = moec_gpu_staging_take(&b->staging, pair_bytes);
    struct moec_cuda_mlp_job *piece = moec_gpu_staging_take(&b->staging, job_bytes);
    for (uint32_t j = 0; j < n_jobs; j++) {
        piece[j] = job_of(&jobs[j].mlp, first, jobs[j].n);
        memcpy(pairs + first, jobs[j].pairs, jobs[j].n * sizeof *pairs);
        first += jobs[j].n;
    }
    const void *device_pairs = NULL;
    MOEC_TRY(moec_gpu_staging_send(&b->staging, pairs, pair_bytes, &device_pairs, err));
    return run_mlps(b, &jobs->mlp, piece, n_jobs, device_pairs, jobs->pairs_per_row, b->room.ranks, err);
}

static enum moec_status backend_shared(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                       struct moec_error *err)
{
    return run_dense(of(self), &of(self)->model->layers[layer].shared, n_tok, err);
}

/* Outputs of pairs that no expert computed count as zeros. */
static enum moec_status clear_passed(struct moec_gpu_backend *b, const bool *passes_by, uint64_t n_pairs,
                                     struct moec_error *err)
{
    for (uint64_t p = 0; passes_by != NULL && p < n_pairs; p++)
        if (passes_by[p])
            MOEC_TRY(b->ops->clear(b->gpu, b->stream, b->room.ranks + p * b->stride,
                                   b->stride * sizeof(float), err));
    return MOEC_OK;
}

static enum moec_status backend_combine(struct moec_backend *self, uint32_t layer,
                                        const struct moec_backend_sum *sum, float *hidden,
                                        struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const bool has_shared = b->model->layers[layer].has_shared;
    const uint64_t n_pairs = (uint64_t)sum->n_tok * sum->top_k;
    const void *weights = NULL, *factors = NULL;
    MOEC_TRY(moec_gpu_staging_begin(&b->staging,
                                    moec_gpu_staging_piece_bytes(n_pairs * sizeof(float)) +
                                        moec_gpu_staging_piece_bytes(sum->n_tok * sizeof(float)),
                                    err));
    MOEC_TRY(clear_passed(b, sum->passes_by, n_pairs, err));
    MOEC_TRY(moec_gpu_staging_put(&b->staging, sum->weights, n_pairs * sizeof(float), &weights, err));
    if (has_shared)
        MOEC_TRY(
            moec_gpu_staging_put(&b->staging, sum->shared_factor, sum->n_tok * sizeof(float), &factors, err));
    const struct moec_cuda_combination step = {.outputs = b->room.ranks,
                                               .stride = b->stride,
                                               .weights = weights,
                                               .shared = has_shared ? b->room.shared : NULL,
                                               .shared_factors = factors,
                                               .n_tok = sum->n_tok,
                                               .top_k = sum->top_k,
                                               .n = b->config->n_embd,
                                               .scale = b->config->residual_scale,
                                               .adds = true,
                                               .out = rows_at(hidden, b->stride)};
    b->kernels->combination(b->stream, &step);
    return check(b, err);
}

/* ---- the head ---- */

static void scale_normed(const struct moec_gpu_backend *b, uint32_t n_tok, float factor)
{
    const struct moec_cuda_scaling step = {
        .x = rows_at(b->room.normed, b->stride), .n_tok = n_tok, .n = b->config->n_embd, .factor = factor};
    b->kernels->scaling(b->stream, &step);
}

/* Logits of a few rows, which come to the process before they go to their places. */
static enum moec_status head_rows(struct moec_gpu_backend *b, uint32_t first, uint32_t n, float *logits,
                                  size_t logits_stride, struct moec_error *err)
{
    const size_t n_vocab = b->config->n_vocab;
    const struct moec_cuda_product step = {.matrix = matrix_of(&b->model->head),
                                           .n_rows = b->config->n_vocab,
                                           .n_tok = n,
                                           .x = b->room.normed + first * b->stride,
                                           .x_stride = b->stride,
                                           .bias = b->model->head_bias,
                                           .y = rows_at(b->room.logits, n_vocab),
                                           .sink = b->config->logit_cap > 0 ? MOEC_CUDA_CAP : MOEC_CUDA_STORE,
                                           .cap = b->config->logit_cap};
    b->kernels->product(b->stream, &step);
    MOEC_TRY(check(b, err));
    MOEC_TRY(b->ops->copy(b->gpu, b->stream, MOEC_GPU_TO_HOST, b->answers, b->room.logits,
                          n * n_vocab * sizeof(float), err));
    MOEC_TRY(b->ops->finish(b->gpu, b->stream, err));
    moec_gpu_staging_clear(&b->staging);
    for (uint32_t i = 0; i < n; i++)
        memcpy(logits + (first + i) * logits_stride, b->answers + i * n_vocab, n_vocab * sizeof(float));
    return MOEC_OK;
}

static enum moec_status backend_head(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                     float *logits, size_t logits_stride, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const struct moec_config *config = b->config;
    norm(b, b->model->final_norm, n_tok, hidden, b->room.normed);
    if (config->scaled_head)
        scale_normed(b, n_tok, (float)(1 / sqrt((double)config->n_embd)));
    if (config->logit_divisor != 0)
        scale_normed(b, n_tok, 1.0f / config->logit_divisor);
    for (uint32_t done = 0; done < n_tok; done += HEAD_ROWS)
        MOEC_TRY(head_rows(b, done, n_tok - done < HEAD_ROWS ? n_tok - done : HEAD_ROWS, logits,
                           logits_stride, err));
    return MOEC_OK;
}

/* ---- creation ---- */

static enum moec_status create(struct moec_gpu_backend *b, struct moec_error *err)
{
    const uint64_t n_bytes = carve_room(b->config, b->max_tokens, NULL, &b->room);
    MOEC_TRY(moec_alloc((void **)&b->positions, b->max_tokens, sizeof *b->positions, "positions", err));
    MOEC_TRY(b->ops->alloc(b->gpu, n_bytes, "working memory", (void **)&b->memory, err));
    (void)carve_room(b->config, b->max_tokens, b->memory, &b->room);
    MOEC_TRY(b->ops->alloc_pinned(b->gpu, answer_floats(b->config, b->max_tokens) * sizeof(float), "logits",
                                  (void **)&b->answers, err));
    return moec_gpu_staging_create(b->gpu, b->stream, staging_bytes(b->config, b->max_tokens), &b->staging,
                                   err);
}

enum moec_status moec_gpu_backend_create(const struct moec_gpu_model *model,
                                         const struct moec_gpu_kernels *kernels, uint32_t max_tokens,
                                         struct moec_gpu_backend **out, struct moec_error *err)
{
    static const struct moec_backend_ops ops = {.alloc = backend_alloc,
                                                .free = backend_free,
                                                .copy = backend_copy,
                                                .embed = backend_embed,
                                                .attention = backend_attention,
                                                .dense = backend_dense,
                                                .norm = backend_norm,
                                                .score = backend_score,
                                                .experts = backend_experts,
                                                .shared = backend_shared,
                                                .combine = backend_combine,
                                                .head = backend_head};
    const struct moec_config *config = &model->model->config;
    struct moec_gpu_backend *b = NULL;
    MOEC_TRY(moec_alloc((void **)&b, 1, sizeof *b, "a backend", err));
    *b = (struct moec_gpu_backend){.backend = {.ops = &ops},
                                   .model = model,
                                   .config = config,
                                   .kernels = kernels,
                                   .gpu = model->gpu,
                                   .ops = model->gpu->ops,
                                   .stream = model->stream,
                                   .max_tokens = max_tokens,
                                   .stride = moec_lanes_padded(config->n_embd),
                                   .q_stride = q_stride_of(config),
                                   .h_stride = moec_lanes_padded(most_neurons(config)),
                                   .logits_stride = moec_lanes_padded(config->n_expert)};
    const enum moec_status status = create(b, err);
    if (status != MOEC_OK) {
        moec_gpu_backend_free(b);
        return status;
    }
    *out = b;
    return MOEC_OK;
}

void moec_gpu_backend_free(struct moec_gpu_backend *b)
{
    if (b == NULL)
        return;
    (void)b->ops->finish(b->gpu, b->stream, NULL);
    moec_gpu_staging_release(&b->staging);
    b->ops->free_pinned(b->gpu, b->answers);
    b->ops->free(b->gpu, b->memory);
    free(b->positions);
    free(b);
}

struct moec_backend *moec_gpu_backend_of(struct moec_gpu_backend *backend)
{
    return &backend->backend;
}
