/* Each shape is run once to warm up and once to size its turns; then the best of seven turns counts. Rows are
 * a lane longer than their columns, so that they do not collide in sets of the cache. Buffers are a thread's
 * own and fit in the caches beside its core. */
#include "profiler/common/product_peak.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <stdlib.h>

#define TOKENS            64u
#define ROWS              64u
#define TRANSPOSED_TOKENS 128u /* as many share a decoding of rows in the engine's largest products */
#define MOST_COLUMNS      2048u
#define TURNS             7
#define TURN_NS           2000000u

static const uint32_t columns[] = {256, 512, 1024, MOST_COLUMNS};
#define N_SHAPE (sizeof columns / sizeof *columns)

/* Rows do not begin at the same place of a page, or they would take turns in few sets of a cache. */
#define STRIDE(k)  ((k) + MOEC_LANES)
#define MOST_FLOAT ((size_t)STRIDE(MOST_COLUMNS))

/* Of one thread: tokens, rows, room to decode them, and products. */
enum { X = 0, W = 1, ROOM = 2, Y = 3, N_PART };

struct job {
    const struct moec_kernels *kernels;
    float *floats;            /* (n_threads, start[N_PART]) */
    size_t start[N_PART + 1]; /* of each part */
    uint32_t k, n_times;
    bool transposed;
};

static double work_of(const struct job *job)
{
    return job->transposed ? (double)TRANSPOSED_TOKENS * MOEC_TRANSPOSED_ROWS * job->k
                           : (double)TOKENS * ROWS * job->k;
}

static void item(void *context, size_t i, int thread)
{
    const struct job *job = context;
    float *own = job->floats + (size_t)thread * job->start[N_PART];
    float *x = own + job->start[X], *w = own + job->start[W], *y = own + job->start[Y];
    const struct moec_matrix matrix = {.data = (const uint8_t *)w,
                                       .stride_bytes = STRIDE(job->k) * sizeof(float),
                                       .rows = MOEC_TRANSPOSED_ROWS,
                                       .columns = job->k,
                                       .codec = {.dtype = MOEC_DTYPE_F32}};
    (void)i;
    for (uint32_t t = 0; t < job->n_times; t++)
        if (job->transposed)
            job->kernels->dot_transposed(&matrix, 0, MOEC_TRANSPOSED_ROWS, x, TRANSPOSED_TOKENS,
                                         own + job->start[ROOM], y, STRIDE(MOEC_TRANSPOSED_ROWS));
        else
            job->kernels->dot(x, STRIDE(job->k), TOKENS, w, STRIDE(job->k), ROWS, job->k, y, STRIDE(ROWS));
}

static double once_ns(const struct moec_pool *pool, struct job *job)
{
    const uint64_t begun_ns = moec_now_ns();
    moec_parallel_for(pool, (size_t)pool->n_threads, item, job);
    return (double)(moec_now_ns() - begun_ns) + 1;
}

/* The best rate of some turns. */
static double best_rate(const struct moec_pool *pool, struct job *job)
{
    double best = 0;
    job->n_times = 1;
    (void)once_ns(pool, job);
    job->n_times = (uint32_t)(TURN_NS / once_ns(pool, job)) + 1;
    for (int turn = 0; turn < TURNS; turn++) {
        const double work = (double)job->n_times * pool->n_threads * work_of(job);
        const double rate = 1e9 * work / once_ns(pool, job);
        best = rate > best ? rate : best;
    }
    return best;
}

enum moec_status moec_product_peak(const struct moec_kernels *kernels, int n_threads, double *peak,
                                   struct moec_error *err)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    struct job job = {.kernels = kernels};
    job.start[W] = TRANSPOSED_TOKENS * MOST_FLOAT;
    job.start[ROOM] = job.start[W] + ROWS * MOST_FLOAT;
    job.start[Y] =
        job.start[ROOM] + moec_lanes_padded(moec_transposed_room_floats(MOEC_TRANSPOSED_ROWS, MOST_COLUMNS));
    job.start[N_PART] = job.start[Y] + TRANSPOSED_TOKENS * STRIDE(ROWS);
    const size_t n = (size_t)pool.n_threads * job.start[N_PART];
    MOEC_TRY(moec_alloc_aligned((void **)&job.floats, n, sizeof(float), "floats to multiply", err));
    for (size_t i = 0; i < n; i++)
        job.floats[i] = (float)(i % 31) * 0.125f - 2;
    *peak = 0;
    for (size_t s = 0; s < N_SHAPE; s++)
        for (int transposed = 0; transposed <= (kernels->dot_transposed != NULL); transposed++) {
            job.k = columns[s];
            job.transposed = transposed != 0;
            const double rate = best_rate(&pool, &job);
            *peak = rate > *peak ? rate : *peak;
        }
    free(job.floats);
    return MOEC_OK;
}
