/* How fast the products of several tokens with encoded weights are: what a prompt and an evaluation come down
 * to.
 *
 * The matrices are of an expert of OLMoE's dimensions, one for each thread, which the caches beside a core
 * hold for the most part: computing binds such products, not memory. Both kernels for several tokens are
 * timed as layers call them (runtime/kernels/kernels.h, runtime/kernels/int8.h), 64 rows at a time: dot
 * (gate, up, dense and head) and weighted sum (down). Kernels take turns with multiply-adds from registers
 * alone, the most that canonical products can reach; medians are reported, of the shares in a turn too.
 *
 * Thread rule: one thread, which uses the pool. */
#ifndef MOEC_PROFILER_TOKEN_BENCH_H
#define MOEC_PROFILER_TOKEN_BENCH_H

#include "formats/base/error.h"
#include "runtime/forward/moe/mlp.h"

#define MOEC_TOKEN_BENCH_MAX 84

struct moec_token_rate {
    char codec[40];
    const char *kernel; /* "dot", "sum" */
    uint32_t n_tokens;
    double products_per_second; /* multiply-adds of all threads together */
    double peak_share;          /* of multiply-adds from registers alone in the same turn */
};

/* Adds rows at `rates` from *n on, at most MOEC_TOKEN_BENCH_MAX in all: codecs in order, of each its numbers
 * of tokens, of each dot and sum. n_threads as moec_pool_make. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_token_bench_run(const struct moec_mlp_kernels *kernels, int n_threads,
                                                       struct moec_token_rate *rates, uint32_t *n,
                                                       double *peak, struct moec_error *err);

#endif
