/* How much faster one token's expert is computed where neurons are left out (FloE), beside the same record
 * with all its neurons: experts of OLMoE's dimensions, as many as fill memory_bytes, four times the last
 * cache, so that weights come from memory. Dense and sparse runs take turns, each turn_bytes of experts
 * further on, and medians of their ratios are reported.
 *
 * Thread rule: one thread, which uses the pool. */
#ifndef MOEC_PROFILER_EXPERT_BENCH_H
#define MOEC_PROFILER_EXPERT_BENCH_H

#include "formats/base/error.h"
#include "runtime/forward/moe/mlp.h"

#define MOEC_EXPERT_BENCH_MAX 16

struct moec_expert_rate {
    char up[40], pairs[40]; /* codecs: of up, and of gate and down */
    double sparsity;        /* share of neurons left out */
    int n_threads;
    double dense_ns;    /* of one expert with all its neurons */
    double speedup;     /* how many times faster */
    double bytes_share; /* of the record that is read */
};

/* Weights that a turn reads, so that they come from memory. */
#define MOEC_BENCH_TURN_BYTES ((uint64_t)128 << 20)

/* Adds rows at `rates` from *n on, at most MOEC_EXPERT_BENCH_MAX in all. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_expert_bench_run(const struct moec_mlp_kernels *kernels, int n_threads,
                                                        uint64_t memory_bytes, struct moec_expert_rate *rates,
                                                        uint32_t *n, struct moec_error *err);

#endif
