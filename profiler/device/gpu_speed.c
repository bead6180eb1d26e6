/* Launches of a round go over copies of the weights that together exceed the GPU's caches, so each reads
 * memory. A round ends with a wait for the stream, and its time is shared among its launches. Device memory
 * is one block cut into pieces: each allocation's sum must name every piece that is taken. */
#include "profiler/device/gpu_speed.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "runtime/cuda/kernels/cuda_matrix.h"
#include "runtime/kernels/kernels.h"

#include <string.h>

#define LEAST_ROUNDS 3u
#define MOST_ROUNDS  1000u
#define LAUNCHES     64u                 /* of next to nothing, in a row */
#define MOST_SETS    64u                 /* of weights that take turns */
#define PIECE_BYTES  ((uint64_t)1 << 20) /* of a pinned buffer that pageable memory goes through */

/* Work of one round, given to the stream and waited for; context is the measurement's. */
typedef enum moec_status round_fn(void *context, struct moec_error *err);

/* Median of the rounds' times. */
static enum moec_status measure(const struct moec_gpu_speed *speed, round_fn *round, void *context,
                                double *ns, struct moec_error *err)
{
    static const double middle[] = {0.5};
    float *times = NULL;
    uint32_t n = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&times, 2 * MOST_ROUNDS, sizeof *times, "measured times", err));
    MOEC_TRY_OUT(round(context, err)); /* the first one loads what runs */
    const uint64_t begun = moec_now_ns();
    while (n < LEAST_ROUNDS || (n < MOST_ROUNDS && moec_now_ns() - begun < speed->limit_ns)) {
        const uint64_t from = moec_now_ns();
        MOEC_TRY_OUT(round(context, err));
        times[n++] = (float)(moec_now_ns() - from);
    }
    moec_quantiles(times, times + MOST_ROUNDS, n, middle, 1, ns);
out:
    free(times);
    return status;
}

static enum moec_status finish(const struct moec_gpu_speed *speed, struct moec_error *err)
{
    MOEC_TRY(speed->gpu->ops->check(speed->gpu, err));
    return speed->gpu->ops->finish(speed->gpu, speed->stream, err);
}

/* Bytes of no pattern, in which no float of 16 bits is infinite or a NaN. */
static void fill(uint8_t *bytes, uint64_t n_bytes)
{
    uint64_t state = 88172645463325252u;
    for (uint64_t i = 0; i < n_bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[i] = (uint8_t)(state >> 40) & 0xbb;
    }
}

/* ---- copies ---- */

struct copy {
    const struct moec_gpu_speed *speed;
    enum moec_gpu_copy kind;
    bool is_pinned;
    uint64_t n_bytes;
    uint8_t *device, *other; /* other: pinned, pageable, or of the device */
    uint8_t *pieces[2];      /* pinned */
    struct moec_gpu_event *landed[2];
};

static enum moec_status copy_at_once(void *context, struct moec_error *err)
{
    const struct copy *copy = context;
    const struct moec_gpu_speed *speed = copy->speed;
    const bool is_out = copy->kind == MOEC_GPU_TO_HOST;
    MOEC_TRY(speed->gpu->ops->copy(speed->gpu, speed->stream,
                                   (struct moec_gpu_move){copy->kind, is_out ? copy->other : copy->device,
                                                          is_out ? copy->device : copy->other, copy->n_bytes},
                                   err));
    return finish(speed, err);
}

/* The processor fills one buffer while the other one is copied. */
static enum moec_status send_by_pieces(void *context, struct moec_error *err)
{
    const struct copy *copy = context;
    const struct moec_gpu_ops *ops = copy->speed->gpu->ops;
    struct moec_gpu *gpu = copy->speed->gpu;
    for (uint64_t done = 0, i = 0; done < copy->n_bytes; done += PIECE_BYTES, i ^= 1) {
        const uint64_t left = copy->n_bytes - done, n = left < PIECE_BYTES ? left : PIECE_BYTES;
        MOEC_TRY(ops->finish_event(gpu, copy->landed[i], err));
        memcpy(copy->pieces[i], copy->other + done, n);
        MOEC_TRY(ops->copy(
            gpu, copy->speed->stream,
            (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, copy->device + done, copy->pieces[i], n}, err));
        MOEC_TRY(ops->record(gpu, copy->speed->stream, copy->landed[i], err));
    }
    return finish(copy->speed, err);
}

/* The processor empties one buffer while the other one is filled. */
static enum moec_status fetch_by_pieces(void *context, struct moec_error *err)
{
    const struct copy *copy = context;
    const struct moec_gpu_ops *ops = copy->speed->gpu->ops;
    struct moec_gpu *gpu = copy->speed->gpu;
    const uint64_t n_pieces = (copy->n_bytes - 1) / PIECE_BYTES + 1;
    for (uint64_t i = 0; i <= n_pieces; i++) {
        const uint64_t at = i * PIECE_BYTES;
        if (i < n_pieces) {
            const uint64_t left = copy->n_bytes - at, n = left < PIECE_BYTES ? left : PIECE_BYTES;
            MOEC_TRY(ops->copy(
                gpu, copy->speed->stream,
                (struct moec_gpu_move){MOEC_GPU_TO_HOST, copy->pieces[i % 2], copy->device + at, n}, err));
            MOEC_TRY(ops->record(gpu, copy->speed->stream, copy->landed[i % 2], err));
        }
        if (i > 0) {
            const uint64_t before = at - PIECE_BYTES, left = copy->n_bytes - before;
            MOEC_TRY(ops->finish_event(gpu, copy->landed[(i - 1) % 2], err));
            memcpy(copy->other + before, copy->pieces[(i - 1) % 2], left < PIECE_BYTES ? left : PIECE_BYTES);
        }
    }
    return MOEC_OK;
}

static enum moec_status prepare_copy(struct copy *copy, struct moec_error *err)
{
    struct moec_gpu *gpu = copy->speed->gpu;
    void *memory = NULL;
    MOEC_TRY(gpu->ops->alloc(gpu, copy->n_bytes, "a copy", &memory, err));
    copy->device = memory;
    memory = NULL;
    if (copy->kind == MOEC_GPU_WITHIN)
        MOEC_TRY(gpu->ops->alloc(gpu, copy->n_bytes, "a copy", &memory, err));
    else if (copy->is_pinned)
        MOEC_TRY(gpu->ops->alloc_pinned(gpu, copy->n_bytes, "a copy", &memory, err));
    else
        MOEC_TRY(moec_alloc_pages(&memory, copy->n_bytes, "a copy", err));
    copy->other = memory;
    if (copy->kind != MOEC_GPU_WITHIN)
        memset(copy->other, 1, copy->n_bytes);
    MOEC_TRY(gpu->ops->clear(gpu, copy->speed->stream, copy->device, copy->n_bytes, err));
    for (int i = 0; i < 2 && !copy->is_pinned; i++) {
        memory = NULL;
        MOEC_TRY(gpu->ops->alloc_pinned(gpu, PIECE_BYTES, "a copy's buffer", &memory, err));
        copy->pieces[i] = memory;
        MOEC_TRY(gpu->ops->event_create(gpu, &copy->landed[i], err));
    }
    return MOEC_OK;
}

static void release_copy(struct copy *copy)
{
    struct moec_gpu *gpu = copy->speed->gpu;
    gpu->ops->free(gpu, copy->device);
    if (copy->kind == MOEC_GPU_WITHIN)
        gpu->ops->free(gpu, copy->other);
    else if (copy->is_pinned)
        gpu->ops->free_pinned(gpu, copy->other);
    else
        free(copy->other);
    for (int i = 0; i < 2; i++) {
        gpu->ops->free_pinned(gpu, copy->pieces[i]);
        gpu->ops->event_free(gpu, copy->landed[i]);
    }
}

static enum moec_status measure_copy(struct copy *copy, round_fn *round, uint64_t *ns, struct moec_error *err)
{
    double median = 0;
    enum moec_status status = prepare_copy(copy, err);
    if (status == MOEC_OK)
        status = measure(copy->speed, round, copy, &median, err);
    release_copy(copy);
    *ns = (uint64_t)median;
    return status;
}

enum moec_status moec_gpu_speed_copy(const struct moec_gpu_speed *speed, enum moec_gpu_copy kind,
                                     bool is_pinned, uint64_t n_bytes, uint64_t *ns, struct moec_error *err)
{
    const bool by_pieces = !is_pinned && kind != MOEC_GPU_WITHIN;
    struct copy copy = {.speed = speed, .kind = kind, .is_pinned = !by_pieces, .n_bytes = n_bytes};
    return measure_copy(&copy,
                        !by_pieces                   ? copy_at_once
                        : kind == MOEC_GPU_TO_DEVICE ? send_by_pieces
                                                     : fetch_by_pieces,
                        ns, err);
}

/* ---- work of kernels ---- */

/* The device's memory of a measurement. */
struct work {
    const struct moec_gpu_speed *speed;
    uint8_t *memory; /* owned */
    uint64_t n_bytes, used;
    uint32_t n_launches;
    struct moec_cuda_product products[MOST_SETS];
    struct moec_cuda_mlp mlps[MOST_SETS];
    struct moec_cuda_addition addition;
};

static uint64_t piece_bytes(uint64_t n_bytes)
{
    return (n_bytes + 255) / 256 * 256;
}

static void *take(struct work *work, uint64_t n_bytes)
{
    uint8_t *piece = work->memory + work->used;
    work->used += piece_bytes(n_bytes);
    return piece;
}

static enum moec_status allocate(struct work *work, uint64_t n_bytes, struct moec_error *err)
{
    struct moec_gpu *gpu = work->speed->gpu;
    void *memory = NULL;
    MOEC_TRY(gpu->ops->alloc(gpu, n_bytes, "weights to measure with", &memory, err));
    work->memory = memory;
    work->n_bytes = n_bytes;
    return gpu->ops->clear(gpu, work->speed->stream, memory, n_bytes, err);
}

/* Sends bytes of the process's memory to a place of the device's, by way of pinned memory. */
static enum moec_status send(const struct moec_gpu_speed *speed, void *to, const void *from, uint64_t n_bytes,
                             struct moec_error *err)
{
    struct moec_gpu *gpu = speed->gpu;
    void *pinned = NULL;
    MOEC_TRY(gpu->ops->alloc_pinned(gpu, n_bytes, "weights to measure with", &pinned, err));
    memcpy(pinned, from, n_bytes);
    enum moec_status status = gpu->ops->copy(
        gpu, speed->stream, (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, to, pinned, n_bytes}, err);
    if (status == MOEC_OK)
        status = gpu->ops->finish(gpu, speed->stream, err);
    gpu->ops->free_pinned(gpu, pinned);
    return status;
}

/* How many sets of so many bytes take turns. */
static uint32_t sets_of(const struct moec_gpu_speed *speed, uint64_t n_bytes)
{
    const uint64_t n = speed->cache_bytes / n_bytes + 1;
    return n < MOST_SETS ? (uint32_t)n : MOST_SETS;
}

static enum moec_status launch_additions(void *context, struct moec_error *err)
{
    const struct work *work = context;
    for (uint32_t i = 0; i < work->n_launches; i++)
        work->speed->kernels->addition(work->speed->stream, &work->addition);
    return finish(work->speed, err);
}

static enum moec_status launch_products(void *context, struct moec_error *err)
{
    const struct work *work = context;
    for (uint32_t i = 0; i < work->n_launches; i++)
        work->speed->kernels->product(work->speed->stream, &work->products[i]);
    return finish(work->speed, err);
}

static enum moec_status launch_mlps(void *context, struct moec_error *err)
{
    const struct work *work = context;
    for (uint32_t i = 0; i < work->n_launches; i++)
        work->speed->kernels->mlp(work->speed->stream, &work->mlps[i]);
    return finish(work->speed, err);
}

enum moec_status moec_gpu_speed_launch(const struct moec_gpu_speed *speed, uint64_t *launch_ns,
                                       uint64_t *answer_ns, struct moec_error *err)
{
    struct work work = {.speed = speed, .n_launches = LAUNCHES};
    double many = 0, one = 0;
    enum moec_status status = allocate(&work, 512, err);
    if (status == MOEC_OK) {
        float *const x = take(&work, 64), *const y = take(&work, 64);
        work.addition = (struct moec_cuda_addition){{x, 16, NULL}, {y, 16, NULL}, 1, 16, 0};
        status = measure(speed, launch_additions, &work, &many, err);
    }
    work.n_launches = 1;
    if (status == MOEC_OK)
        status = measure(speed, launch_additions, &work, &one, err);
    speed->gpu->ops->free(speed->gpu, work.memory);
    *launch_ns = (uint64_t)(many / LAUNCHES);
    *answer_ns = (uint64_t)one;
    return status;
}

float moec_gpu_speed_input(uint32_t i)
{
    return (float)(i * 2654435761u >> 8) * 0x1p-23f - 1.0f; /* Knuth's multiplicative hash, in [-1, 1) */
}

/* Rows of n numbers each, zeros up to a multiple of 16. */
static enum moec_status send_inputs(const struct work *work, uint32_t n_tok, uint32_t n, float *x,
                                    struct moec_error *err)
{
    const uint64_t stride = moec_lanes_padded(n);
    float *values = NULL;
    MOEC_TRY(moec_alloc((void **)&values, n_tok * stride, sizeof *values, "inputs", err));
    for (uint64_t i = 0; i < n_tok * stride; i++)
        values[i] = i % stride < n ? moec_gpu_speed_input((uint32_t)i) : 0;
    const enum moec_status status = send(work->speed, x, values, n_tok * stride * sizeof *values, err);
    free(values);
    return status;
}

/* Room for inputs in the arithmetic bf16: none in the canonical one. */
static uint64_t rounded_bytes(const struct moec_gpu_speed *speed, uint32_t n, uint32_t n_tok)
{
    const bool rounds = speed->arithmetic == MOEC_ARITHMETIC_BF16;
    return rounds ? moec_cuda_rounded(n, n_tok) * sizeof(uint16_t) : 0;
}

static enum moec_status prepare_products(struct work *work, const struct moec_matrix *shape, uint32_t n_tok,
                                         struct moec_error *err)
{
    const uint64_t n_bytes = (uint64_t)shape->rows * shape->stride_bytes;
    const uint64_t x_stride = moec_lanes_padded(shape->columns);
    const uint64_t x_bytes = n_tok * x_stride * sizeof(float),
                   y_bytes = (uint64_t)n_tok * shape->rows * sizeof(float),
                   round_bytes = rounded_bytes(work->speed, shape->columns, n_tok);
    uint8_t *bytes = NULL;
    enum moec_status status = MOEC_OK;
    work->n_launches = sets_of(work->speed, n_bytes);
    MOEC_TRY(moec_alloc((void **)&bytes, n_bytes, 1, "weights to measure with", err));
    fill(bytes, n_bytes);
    MOEC_TRY_OUT(allocate(work,
                          work->n_launches * piece_bytes(n_bytes) + piece_bytes(x_bytes) +
                              piece_bytes(y_bytes) + piece_bytes(round_bytes),
                          err));
    float *const x = take(work, x_bytes), *const y = take(work, y_bytes);
    uint16_t *const rounded = round_bytes > 0 ? take(work, round_bytes) : NULL;
    MOEC_TRY_OUT(send_inputs(work, n_tok, shape->columns, x, err));
    for (uint32_t i = 0; i < work->n_launches; i++) {
        uint8_t *data = take(work, n_bytes);
        MOEC_TRY_OUT(send(work->speed, data, bytes, n_bytes, err));
        work->products[i] = (struct moec_cuda_product){.matrix = moec_cuda_matrix_make(shape, data),
                                                       .n_rows = shape->rows,
                                                       .n_tok = n_tok,
                                                       .x = {.first = x, .stride = x_stride},
                                                       .y.rows = {y, shape->rows, NULL},
                                                       .rounded = rounded};
    }
out:
    free(bytes);
    return status;
}

enum moec_status moec_gpu_speed_product(const struct moec_gpu_speed *speed, const struct moec_matrix *matrix,
                                        uint32_t n_tok, uint64_t *n_bytes, uint64_t *ns,
                                        struct moec_error *err)
{
    struct work work = {.speed = speed};
    double all = 0;
    struct moec_matrix shape = *matrix;
    shape.stride_bytes = moec_codec_row_bytes(shape.codec, shape.columns);
    enum moec_status status = prepare_products(&work, &shape, n_tok, err);
    if (status == MOEC_OK)
        status = measure(speed, launch_products, &work, &all, err);
    speed->gpu->ops->free(speed->gpu, work.memory);
    *n_bytes = (uint64_t)shape.rows * shape.stride_bytes;
    *ns = work.n_launches > 0 ? (uint64_t)(all / work.n_launches) : 0;
    return status;
}

/* The same matrix where its record lies on the device. */
static struct moec_cuda_matrix moved(const struct moec_matrix *matrix, const uint8_t *record,
                                     const uint8_t *data)
{
    return moec_cuda_matrix_make(matrix, matrix->rows > 0 ? data + (matrix->data - record) : data);
}

/* Pair p goes to expert p % n_jobs: the rows of a job are of tokens that stand apart, as a router's. */
static enum moec_status send_pairs(struct work *work, const struct moec_gpu_speed_batch *batch,
                                   const uint32_t **out, struct moec_error *err)
{
    const uint32_t n_pairs = batch->n_tok * batch->top_k, n = n_pairs / batch->n_jobs;
    uint32_t *pairs = NULL;
    MOEC_TRY(moec_alloc((void **)&pairs, n_pairs, sizeof *pairs, "pairs", err));
    for (uint32_t i = 0; i < n_pairs; i++)
        pairs[i] = i / n + i % n * batch->n_jobs;
    uint32_t *const place = take(work, n_pairs * sizeof *pairs);
    const enum moec_status status = send(work->speed, place, pairs, n_pairs * sizeof *pairs, err);
    free(pairs);
    *out = place;
    return status;
}

/* Sends jobs with a record each; `piece` is room for the jobs. */
static enum moec_status send_jobs(struct work *work, const struct moec_gpu_speed_batch *batch,
                                  struct moec_cuda_mlp_job *piece, const void **jobs, struct moec_error *err)
{
    const struct moec_mlp *mlp = batch->mlp;
    const uint32_t n_jobs = batch->n_jobs, n = batch->n_tok * batch->top_k / n_jobs;
    void *place = take(work, n_jobs * sizeof *piece);
    for (uint32_t j = 0; j < n_jobs; j++) {
        uint8_t *data = take(work, batch->n_bytes);
        piece[j] = (struct moec_cuda_mlp_job){.gate.matrix = moved(&mlp->gate, batch->record, data),
                                              .up.matrix = moved(&mlp->up, batch->record, data),
                                              .down.matrix = moved(&mlp->down, batch->record, data),
                                              .first = j * n,
                                              .n = n,
                                              .filter = {.threshold = mlp->filter.threshold,
                                                         .at = (uint8_t)mlp->filter.at,
                                                         .is_set = mlp->filter.is_on}};
        MOEC_TRY(send(work->speed, data, batch->record, batch->n_bytes, err));
    }
    *jobs = place;
    return send(work->speed, place, piece, n_jobs * sizeof *piece, err);
}

/* Rows that all launches share. */
static enum moec_status prepare_rows(struct work *work, const struct moec_gpu_speed_batch *batch,
                                     struct moec_cuda_mlp *rows, struct moec_error *err)
{
    const uint32_t n_ff = batch->mlp->up.rows, n_embd = batch->mlp->up.columns,
                   n_pairs = batch->n_tok * batch->top_k;
    const uint64_t stride = moec_lanes_padded(n_embd), h_stride = moec_lanes_padded(n_ff);
    const uint64_t x_bytes = batch->n_tok * stride * sizeof(float),
                   out_bytes = n_pairs * stride * sizeof(float), h_bytes = n_pairs * h_stride * sizeof(float),
                   partial_bytes =
                       rows->jobs.most <= MOEC_CUDA_FEW
                           ? (uint64_t)n_pairs * (n_ff / MOEC_SUM_CHUNK + 1) * n_embd * sizeof(float)
                           : 0,
                   round_bytes = rounded_bytes(work->speed, n_embd, batch->n_tok);
    const uint64_t set_bytes = batch->n_jobs * piece_bytes(batch->n_bytes) +
                               piece_bytes(batch->n_jobs * sizeof(struct moec_cuda_mlp_job));
    MOEC_TRY(allocate(work,
                      work->n_launches * set_bytes + piece_bytes(x_bytes) + piece_bytes(out_bytes) +
                          piece_bytes(h_bytes) + piece_bytes(partial_bytes) + piece_bytes(round_bytes) +
                          piece_bytes(n_pairs * sizeof(uint32_t)),
                      err));
    float *const x = take(work, x_bytes);
    MOEC_TRY(send_inputs(work, batch->n_tok, n_embd, x, err));
    rows->x.first = x;
    rows->x.stride = rows->out.stride = stride;
    rows->h.stride = h_stride;
    rows->out.first = take(work, out_bytes);
    rows->h.first = take(work, h_bytes);
    rows->partials = partial_bytes > 0 ? take(work, partial_bytes) : NULL;
    rows->x.rounded = round_bytes > 0 ? take(work, round_bytes) : NULL;
    return send_pairs(work, batch, &rows->pairs.list, err);
}

static enum moec_status prepare_mlps(struct work *work, const struct moec_gpu_speed_batch *batch,
                                     struct moec_error *err)
{
    struct moec_cuda_mlp mlp = {
        .jobs = {.n = batch->n_jobs, .most = batch->n_tok * batch->top_k / batch->n_jobs},
        .shape = {.n_ff = batch->mlp->up.rows,
                  .n_embd = batch->mlp->up.columns,
                  .activation = batch->mlp->activation},
        .pairs.per_row = batch->top_k,
        .x.n = batch->n_tok};
    struct moec_cuda_mlp_job *piece = NULL;
    enum moec_status status = MOEC_OK;
    work->n_launches = sets_of(work->speed, batch->n_jobs * batch->n_bytes);
    MOEC_TRY(moec_alloc((void **)&piece, batch->n_jobs, sizeof *piece, "jobs", err));
    MOEC_TRY_OUT(prepare_rows(work, batch, &mlp, err));
    for (uint32_t i = 0; i < work->n_launches; i++) {
        const void *jobs = NULL;
        MOEC_TRY_OUT(send_jobs(work, batch, piece, &jobs, err));
        mlp.jobs.each = jobs;
        work->mlps[i] = mlp;
    }
out:
    free(piece);
    return status;
}

enum moec_status moec_gpu_speed_experts(const struct moec_gpu_speed *speed,
                                        const struct moec_gpu_speed_batch *batch, uint64_t *ns,
                                        struct moec_error *err)
{
    struct work work = {.speed = speed};
    double all = 0;
    enum moec_status status = prepare_mlps(&work, batch, err);
    if (status == MOEC_OK)
        status = measure(speed, launch_mlps, &work, &all, err);
    speed->gpu->ops->free(speed->gpu, work.memory);
    *ns = work.n_launches > 0 ? (uint64_t)(all / work.n_launches) : 0;
    return status;
}

/* ---- gathering ---- */

#define GATHERED_AT_ONCE ((uint64_t)64 << 10) /* that one thread takes */

struct gather {
    const struct moec_pool *pool;
    uint64_t piece_bytes, n_pieces, n_at_once;
    uint8_t *from, *to;
};

static void gather_some(void *context, size_t item, int thread)
{
    const struct gather *gather = context;
    const uint64_t first = item * gather->n_at_once, left = gather->n_pieces - first,
                   n = left < gather->n_at_once ? left : gather->n_at_once;
    (void)thread;
    for (uint64_t i = first; i < first + n; i++)
        memcpy(gather->to + i * gather->piece_bytes, gather->from + 2 * i * gather->piece_bytes,
               gather->piece_bytes);
}

static enum moec_status gather_all(void *context, struct moec_error *err)
{
    struct gather *gather = context;
    (void)err;
    moec_parallel_for_brief(gather->pool, (gather->n_pieces - 1) / gather->n_at_once + 1, gather_some,
                            gather);
    return MOEC_OK;
}

enum moec_status moec_gpu_speed_gather(const struct moec_gpu_speed *speed, const struct moec_pool *pool,
                                       uint64_t piece_bytes, uint64_t n_bytes, uint64_t *ns,
                                       struct moec_error *err)
{
    struct gather gather = {
        .pool = pool, .piece_bytes = piece_bytes, .n_pieces = (n_bytes - 1) / piece_bytes + 1};
    void *from = NULL, *to = NULL;
    double median = 0;
    enum moec_status status = MOEC_OK;
    gather.n_at_once = piece_bytes < GATHERED_AT_ONCE ? GATHERED_AT_ONCE / piece_bytes : 1;
    MOEC_TRY_OUT(moec_alloc_pages(&from, 2 * gather.n_pieces * piece_bytes, "pieces to gather", err));
    memset(from, 1, 2 * gather.n_pieces * piece_bytes);
    MOEC_TRY_OUT(speed->gpu->ops->alloc_pinned(speed->gpu, gather.n_pieces * piece_bytes, "gathered pieces",
                                               &to, err));
    gather.from = from;
    gather.to = to;
    status = measure(speed, gather_all, &gather, &median, err);
out:
    speed->gpu->ops->free_pinned(speed->gpu, to);
    free(from);
    *ns = (uint64_t)median;
    return status;
}
