#include "profiler/common/product_peak.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <stdlib.h>

#define TOKENS       64u
#define ROWS         64u
#define MOST_COLUMNS 2048u
#define TURNS        7
#define TURN_NS      2000000u

static const uint32_t columns[] = {256, 512, 1024, MOST_COLUMNS};
#define N_SHAPE (sizeof columns / sizeof *columns)

/* Of one thread, one after the other. */
#define X_FLOATS (TOKENS * MOST_COLUMNS)
#define W_FLOATS (ROWS * MOST_COLUMNS)
#define Y_FLOATS (TOKENS * ROWS)

struct job {
    const struct moec_kernels *kernels;
    float *floats; /* (n_threads, X_FLOATS + W_FLOATS + Y_FLOATS) */
    uint32_t k, n_times;
};

static void item(void *context, size_t i, int thread)
{
    const struct job *job = context;
    float *x = job->floats + (size_t)thread * (X_FLOATS + W_FLOATS + Y_FLOATS);
    (void)i;
    for (uint32_t t = 0; t < job->n_times; t++)
        job->kernels->dot(x, job->k, TOKENS, x + X_FLOATS, job->k, ROWS, job->k, x + X_FLOATS + W_FLOATS,
                          ROWS);
}

static double once_ns(const struct moec_pool *pool, struct job *job)
{
    const uint64_t begun_ns = moec_now_ns();
    moec_parallel_for(pool, (size_t)pool->n_threads, item, job);
    return (double)(moec_now_ns() - begun_ns) + 1;
}

enum moec_status moec_product_peak(const struct moec_kernels *kernels, int n_threads, double *peak,
                                   struct moec_error *err)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    const size_t n = (size_t)pool.n_threads * (X_FLOATS + W_FLOATS + Y_FLOATS);
    struct job job = {.kernels = kernels};
    MOEC_TRY(moec_alloc_aligned((void **)&job.floats, n, sizeof(float), "floats to multiply", err));
    for (size_t i = 0; i < n; i++)
        job.floats[i] = (float)(i % 31) * 0.125f - 2;
    *peak = 0;
    for (size_t s = 0; s < N_SHAPE; s++) {
        job.k = columns[s];
        job.n_times = 1;
        (void)once_ns(&pool, &job);
        job.n_times = (uint32_t)(TURN_NS / once_ns(&pool, &job)) + 1;
        for (int turn = 0; turn < TURNS; turn++) {
            const double work = (double)job.n_times * pool.n_threads * TOKENS * ROWS * job.k;
            const double rate = 1e9 * work / once_ns(&pool, &job);
            *peak = rate > *peak ? rate : *peak;
        }
    }
    free(job.floats);
    return MOEC_OK;
}
