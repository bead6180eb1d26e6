/* Each thread has a matrix and vectors of its own, so no cache line is shared. Repetitions are chosen so that
 * a turn lasts some milliseconds. The peak is measured in each turn, for clocks fall while all threads work,
 * and shares are of their own turn's peak. */
#include "profiler/bench/token_bench.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/bench/bench_matrix.h"
#include "profiler/common/quantiles.h"
#include "runtime/threads/parallel.h"

#include <stdlib.h>

#define COLUMNS      ((uint32_t)MOEC_BENCH_COLUMNS)
#define ROWS         1024u
#define ROWS_SCALAR  64u
#define MOST_TOKENS  512u
#define TURNS        9
#define TURNS_SCALAR 1
#define TURN_NS      4000000u
#define SPANS        (COLUMNS / MOEC_INT8_SPAN)

static const struct moec_codec codecs[] = {{.dtype = MOEC_DTYPE_INT2, .group = 64},
                                           {.dtype = MOEC_DTYPE_INT3, .group = 64},
                                           {.dtype = MOEC_DTYPE_INT4, .group = 32},
                                           {.dtype = MOEC_DTYPE_INT8, .group = 32},
                                           {.dtype = MOEC_DTYPE_MXFP4},
                                           {.dtype = MOEC_DTYPE_BF16}};
/* The scalar set, which takes seconds for as many, goes without the last, and takes one turn. */
static const uint32_t tokens[] = {2, 4, 8, 16, 64, 128, MOST_TOKENS};
enum { N_CODEC = sizeof codecs / sizeof *codecs, N_TOKENS = sizeof tokens / sizeof *tokens, N_KERNEL = 2 };
_Static_assert(N_CODEC *N_TOKENS *N_KERNEL <= MOEC_TOKEN_BENCH_MAX, "all rows have room");

/* Of one thread, one after the other: activations, outputs, decoded rows and activations that are laid. */
#define X_FLOATS      (MOST_TOKENS * COLUMNS)
#define Y_FLOATS      (MOST_TOKENS * COLUMNS)
#define ROOM_FLOATS   (moec_transposed_room_floats(MOEC_SUM_CHUNK, COLUMNS))
#define THREAD_FLOATS (X_FLOATS + Y_FLOATS + ROOM_FLOATS + X_FLOATS)

struct job {
    struct moec_mlp_kernels kernels;
    float *floats;                /* (n_threads, THREAD_FLOATS), owned, as all below */
    struct moec_int8_span *spans; /* (MOST_TOKENS, SPANS) of the first thread's x */
    struct moec_int8_tile *tiles;
    uint8_t *data; /* (n_threads, rows, stride) */
    struct moec_matrix matrix;
    uint32_t n_tok, n_times;
    size_t n_turn; /* at most TURNS */
};

static void release(struct job *job)
{
    free(job->floats);
    free(job->spans);
    free(job->tiles);
    free(job->data);
}

/* ---- bodies: item i has a matrix of its own ---- */

static float *floats_of(const struct job *job, size_t item)
{
    return job->floats + item * THREAD_FLOATS;
}

static struct moec_matrix matrix_of(const struct job *job, size_t item)
{
    struct moec_matrix matrix = job->matrix;
    matrix.data = job->data + item * matrix.rows * matrix.stride_bytes;
    return matrix;
}

static bool lays(const struct job *job)
{
    return job->kernels.int8 == NULL && job->n_tok >= MOEC_TRANSPOSED_TOKENS &&
           job->kernels.all->dot_transposed != NULL;
}

static void lay_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    const float *x[MOST_TOKENS];
    (void)thread;
    for (uint32_t t = 0; t < job->n_tok; t++)
        x[t] = floats_of(job, item) + (size_t)t * COLUMNS;
    job->kernels.all->transpose_tokens(x, job->n_tok, COLUMNS,
                                       floats_of(job, item) + X_FLOATS + Y_FLOATS + ROOM_FLOATS);
}

static void dot_rows(const struct job *job, const struct moec_matrix *matrix, uint32_t row, float *floats)
{
    const struct moec_int8_kernels *int8 = job->kernels.int8;
    float *y = floats + X_FLOATS;
    const struct moec_int8_span *x[MOEC_LANES];
    for (uint32_t t = 0; t < MOEC_LANES; t++)
        x[t] = job->spans + (size_t)t * SPANS;
    if (lays(job))
        job->kernels.all->dot_transposed(matrix, row, MOEC_SUM_CHUNK, y + Y_FLOATS + ROOM_FLOATS, job->n_tok,
                                         y + Y_FLOATS, y, MOEC_SUM_CHUNK);
    else if (int8 == NULL)
        job->kernels.all->dot_tokens(matrix, row, MOEC_SUM_CHUNK, floats, COLUMNS, job->n_tok, y + Y_FLOATS,
                                     y, MOEC_SUM_CHUNK);
    else if (job->n_tok < int8->many_tokens)
        int8->dot(matrix, row, NULL, MOEC_SUM_CHUNK, x, job->n_tok, y, MOEC_SUM_CHUNK);
    else
        for (uint32_t r = 0; r < MOEC_SUM_CHUNK; r += MOEC_INT8_ROWS)
            int8->dot_tiles(matrix, row + r, MOEC_INT8_ROWS, job->tiles, job->n_tok, y + r, MOEC_SUM_CHUNK);
}

static void dot_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    const struct moec_matrix matrix = matrix_of(job, item);
    (void)thread;
    for (uint32_t i = 0; i < job->n_times; i++)
        for (uint32_t row = 0; row < matrix.rows; row += MOEC_SUM_CHUNK)
            dot_rows(job, &matrix, row, floats_of(job, item));
}

/* As layers take them: tile by tile of tokens, whose outputs stay in the second-level cache. */
static void sum_tokens(const struct job *job, const struct moec_matrix *matrix, float *floats)
{
    for (uint32_t t = 0, n; t < job->n_tok; t += n) {
        const float *h = floats + (size_t)t * MOEC_SUM_CHUNK;
        float *y = floats + X_FLOATS + (size_t)t * COLUMNS, *room = floats + X_FLOATS + Y_FLOATS;
        n = moec_min_u32(MOEC_MLP_TILE_MAX, job->n_tok - t);
        for (uint32_t row = 0; row < matrix->rows; row += MOEC_SUM_CHUNK) {
            if (job->kernels.int8 != NULL)
                job->kernels.int8->sum_chunk(matrix, row, NULL, MOEC_SUM_CHUNK, h, MOEC_SUM_CHUNK, n, y,
                                             COLUMNS);
            else
                job->kernels.all->sum_chunk_tokens(matrix, row, MOEC_SUM_CHUNK, h, MOEC_SUM_CHUNK, n, row > 0,
                                                   room, y, COLUMNS);
        }
    }
}

static void sum_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    const struct moec_matrix matrix = moec_bench_matrix_down(matrix_of(job, item));
    (void)thread;
    for (uint32_t i = 0; i < job->n_times; i++)
        sum_tokens(job, &matrix, floats_of(job, item));
}

static void peak_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    (void)item;
    (void)thread;
    (void)job->kernels.all->multiply_adds(job->n_times);
}

/* ---- measuring ---- */

static double once_ns(const struct moec_pool *pool, moec_parallel_body *body, struct job *job)
{
    const uint64_t begun_ns = moec_now_ns();
    moec_parallel_for(pool, (size_t)pool->n_threads, body, job);
    return (double)(moec_now_ns() - begun_ns) + 1;
}

/* How often peak_item multiplies in a turn. */
static uint32_t peak_times(struct job *job, const struct moec_pool *pool)
{
    job->n_times = 1u << 10;
    while (once_ns(pool, peak_item, job) < TURN_NS)
        job->n_times *= 2;
    return job->n_times;
}

/* Multiply-adds a second of all threads from registers alone, in this turn. */
static double peak_rate(struct job *job, const struct moec_pool *pool, uint32_t n_times)
{
    job->n_times = n_times;
    const double ns = once_ns(pool, peak_item, job);
    return 1e9 * pool->n_threads * (double)job->kernels.all->multiply_adds(1) * n_times / ns;
}

static double product_rate(struct job *job, const struct moec_pool *pool, moec_parallel_body *body,
                           uint32_t n_times)
{
    job->n_times = n_times;
    const double work = (double)n_times * pool->n_threads * job->n_tok * job->matrix.rows * COLUMNS;
    return 1e9 * work / once_ns(pool, body, job);
}

/* Peaks of its turns to `peaks`. Processors slow down when others beside them work, so each turn has a peak
 * of its own. */
static void measure(struct job *job, const struct moec_pool *pool, uint32_t n_peak_times, double *peaks,
                    struct moec_token_rate *rates)
{
    static moec_parallel_body *const bodies[N_KERNEL] = {dot_item, sum_item};
    static const char *const names[N_KERNEL] = {"dot", "sum"};
    uint32_t n_times[N_KERNEL];
    double turns[N_KERNEL][TURNS], shares[N_KERNEL][TURNS];
    if (lays(job))
        moec_parallel_for(pool, (size_t)pool->n_threads, lay_item, job);
    for (int k = 0; k < N_KERNEL; k++) {
        job->n_times = 1;
        (void)once_ns(pool, bodies[k], job);
        n_times[k] = (uint32_t)(TURN_NS / once_ns(pool, bodies[k], job)) + 1;
    }
    for (size_t turn = 0; turn < job->n_turn; turn++) {
        peaks[turn] = peak_rate(job, pool, n_peak_times);
        for (int k = 0; k < N_KERNEL; k++) {
            turns[k][turn] = product_rate(job, pool, bodies[k], n_times[k]);
            shares[k][turn] = turns[k][turn] / peaks[turn];
        }
    }
    for (int k = 0; k < N_KERNEL; k++) {
        rates[k] = (struct moec_token_rate){.kernel = names[k],
                                            .n_tokens = job->n_tok,
                                            .products_per_second = moec_median(turns[k], job->n_turn),
                                            .peak_share = moec_median(shares[k], job->n_turn)};
        moec_bench_codec_name(job->matrix.codec, rates[k].codec);
    }
}

/* As many rows for each thread. */
static enum moec_status fill_matrix(struct job *job, struct moec_codec codec, uint32_t n_rows, int n_threads,
                                    struct moec_error *err)
{
    const uint64_t n_bytes = (uint64_t)n_threads * n_rows * moec_codec_row_bytes(codec, COLUMNS);
    MOEC_TRY(moec_bench_matrix_fill(codec, job->data, n_bytes, &job->matrix, err));
    job->matrix.rows = n_rows;
    return MOEC_OK;
}

static enum moec_status allocate(struct job *job, uint32_t n_rows, int n_threads, struct moec_error *err)
{
    const uint64_t n = (uint64_t)n_threads;
    const size_t n_floats = (size_t)n * THREAD_FLOATS;
    const uint64_t widest = moec_codec_row_bytes((struct moec_codec){.dtype = MOEC_DTYPE_BF16}, COLUMNS);
    MOEC_TRY(moec_alloc_pages((void **)&job->data, n * n_rows * widest, "an expert's matrices", err));
    MOEC_TRY(moec_alloc_pages((void **)&job->floats, n_floats * sizeof(float), "activations", err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->spans, (uint64_t)MOST_TOKENS * SPANS, sizeof *job->spans,
                                "rounded activations", err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->tiles, moec_int8_tiles(MOST_TOKENS, SPANS), sizeof *job->tiles,
                                "tiles of activations", err));
    for (size_t i = 0; i < n_floats; i++)
        job->floats[i] = (float)(i % 31) * 0.125f - 2;
    return MOEC_OK;
}

static void round_tokens(struct job *job)
{
    const struct moec_int8_span *x[MOST_TOKENS];
    if (job->kernels.int8 == NULL)
        return;
    for (uint32_t t = 0; t < MOST_TOKENS; t++) {
        job->kernels.int8->round(job->floats + (size_t)t * COLUMNS, COLUMNS, job->spans + (size_t)t * SPANS);
        x[t] = job->spans + (size_t)t * SPANS;
    }
    moec_int8_lay(x, MOST_TOKENS, SPANS, job->tiles);
}

enum moec_status moec_token_bench_run(const struct moec_mlp_kernels *kernels, int n_threads,
                                      struct moec_token_rate *rates, uint32_t *n, double *peak,
                                      struct moec_error *err)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    const bool is_scalar = kernels->all == &moec_kernels_scalar;
    const uint32_t n_rows = is_scalar ? ROWS_SCALAR : ROWS;
    const int n_tokens = is_scalar ? N_TOKENS - 1 : N_TOKENS;
    struct job job = {.kernels = *kernels, .n_turn = is_scalar ? TURNS_SCALAR : TURNS};
    const uint32_t n_peak_times = peak_times(&job, &pool);
    double peaks[N_CODEC * N_TOKENS * TURNS];
    size_t n_peak = 0;
    enum moec_status status = allocate(&job, n_rows, pool.n_threads, err);
    if (status == MOEC_OK)
        round_tokens(&job);
    for (int c = 0; c < N_CODEC && status == MOEC_OK; c++) {
        if (kernels->int8 != NULL && !moec_int8_serves(codecs[c]))
            continue;
        status = fill_matrix(&job, codecs[c], n_rows, pool.n_threads, err);
        for (int t = 0; t < n_tokens && status == MOEC_OK; t++, *n += N_KERNEL, n_peak += job.n_turn) {
            job.n_tok = tokens[t];
            measure(&job, &pool, n_peak_times, peaks + n_peak, rates + *n);
        }
    }
    *peak = n_peak > 0 ? moec_median(peaks, n_peak) : 0;
    release(&job);
    return status;
}
