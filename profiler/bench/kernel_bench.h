/* How fast one token's products with encoded weights are, beside the rate at which this machine reads memory:
 * what decoding with everything resident consists of.
 *
 * Each codec gets a matrix of at least four times the last cache, so that weights come from memory, and both
 * kernels for one token (runtime/kernels/kernels.h): dot (gate, up, dense and head) and weighted sum (down).
 * Turns walk through it, 128 MiB each, so that a last cache of hundreds of MiB does not make them long. It
 * lies in huge pages where the kernel has some, as the engine's weights do. Where memory is short it is as
 * large as there is room for. The scalar set, which no memory is too slow for, gets 256 KiB. The reference
 * reads the same bytes in four streams for each thread, with prefetches. Reference and kernels take turns,
 * and medians of the turns are reported, because memory is shared with whatever else runs. A rate near the
 * reference's is bound by memory; one far below it by the computing of weights from codes, and then weights a
 * second are what counts. Products of several tokens (profiler/bench/token_bench.h) and experts that leave
 * neurons out (profiler/bench/expert_bench.h) follow.
 *
 * Thread rule: one thread, which uses the pool. */
#ifndef MOEC_PROFILER_KERNEL_BENCH_H
#define MOEC_PROFILER_KERNEL_BENCH_H

#include "formats/json/json_write.h"
#include "profiler/bench/expert_bench.h"
#include "profiler/bench/token_bench.h"
#include "profiler/common/progress.h"
#include "runtime/forward/moe/mlp.h"

#define MOEC_KERNEL_BENCH_MAX 128

struct moec_kernel_rate {
    char codec[40];
    const char *kernel; /* "dot", "sum" */
    int n_threads;
    double bytes_per_second; /* of encoded rows */
    double read_share;       /* of the reference's rate in the same turns */
    double weights_per_second;
};

struct moec_kernel_bench {
    const char *set;        /* instruction set */
    const char *arithmetic; /* "canonical" or "int8" */
    uint64_t matrix_bytes;
    uint64_t cache_bytes; /* the last cache; 0: the system does not say */
    bool is_short;        /* of memory: matrix_bytes is less than four times cache_bytes */
    int n_threads;
    double read_bytes_per_second[2]; /* the reference, on one thread and on all */
    double region_ns;                /* a parallel region in which all threads of the team meet */
    uint32_t n_rate;
    struct moec_kernel_rate rates[MOEC_KERNEL_BENCH_MAX];
    double peak_products_per_second; /* multiply-adds from registers alone, all threads */
    uint32_t n_token_rate;
    struct moec_token_rate token_rates[MOEC_TOKEN_BENCH_MAX];
    uint32_t n_expert_rate;
    struct moec_expert_rate expert_rates[MOEC_EXPERT_BENCH_MAX];
};

/* Bytes of a matrix: four times the last cache (0: unknown), at least 128 MiB; if that is more than three
 * quarters of what there is to give (0: unknown), so much. A pure function. Errors: MOEC_ERR_LIMIT where that
 * is less than 128 MiB. */
MOEC_WARN_UNUSED enum moec_status moec_kernel_bench_size(uint64_t cache_bytes, uint64_t available_bytes,
                                                         uint64_t *matrix_bytes, struct moec_error *err);

/* In the int8 arithmetic those codecs alone that it serves. n_threads 0 = all cores. Amounts of progress are
 * codecs. Errors: MOEC_ERR_MEMORY, MOEC_ERR_CANCELLED, those of moec_kernel_bench_size. */
MOEC_WARN_UNUSED enum moec_status moec_kernel_bench_run(const struct moec_mlp_kernels *kernels, int n_threads,
                                                        const struct moec_progress *progress,
                                                        struct moec_kernel_bench *bench,
                                                        struct moec_error *err);

/* The caller frees the tree. */
struct moec_json_out *moec_kernel_bench_json(const struct moec_kernel_bench *bench);

#endif
