/* What a GPU takes for one thing at a time: copies, launches, products, gathering. Each is repeated for about
 * limit_ns and at least three times; the median counts. Everything is allocated for the measurement and
 * freed. Thread rule: one thread an instance. */
#ifndef MOEC_PROFILER_GPU_SPEED_H
#define MOEC_PROFILER_GPU_SPEED_H

#include "formats/model/dense.h"
#include "formats/model/record.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/gpu_kernels.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/threads/parallel.h"

struct moec_gpu_speed {
    struct moec_gpu *gpu; /* this, kernels and stream: borrowed */
    const struct moec_gpu_kernels *kernels;
    struct moec_gpu_stream *stream;
    uint64_t limit_ns;
    uint64_t cache_bytes;            /* of the device's: weights are taken in turn from more than that */
    enum moec_arithmetic arithmetic; /* of products and experts: canonical or bf16 */
};

/* One copy of n_bytes, from the call until it has landed: from or to pinned memory, or memory that is not,
 * through two pinned buffers in turn; or within the device's memory (is_pinned has no meaning), which reads
 * and writes as many. Errors: the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_speed_copy(const struct moec_gpu_speed *speed,
                                                      enum moec_gpu_copy kind, bool is_pinned,
                                                      uint64_t n_bytes, uint64_t *ns, struct moec_error *err);

/* One of many launches of next to nothing, and one until the process knows that it is done. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_speed_launch(const struct moec_gpu_speed *speed,
                                                        uint64_t *launch_ns, uint64_t *answer_ns,
                                                        struct moec_error *err);

/* One product of a matrix of random codes, of this codec, rows and columns, with n_tok rows; *n_bytes is the
 * matrix's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_speed_product(const struct moec_gpu_speed *speed,
                                                         const struct moec_matrix *matrix, uint32_t n_tok,
                                                         uint64_t *n_bytes, uint64_t *ns,
                                                         struct moec_error *err);

/* Number i of the rows that products and experts are measured with. */
float moec_gpu_speed_input(uint32_t i);

/* Experts that are in one launch: n_jobs with the matrices of `mlp`, which lie in `record` (n_bytes, of the
 * process's memory). The record is copied to the device once for each. The n_tok tokens choose top_k of them
 * each, all equally often: n_tok * top_k is a multiple of n_jobs. */
struct moec_gpu_speed_batch {
    const struct moec_mlp *mlp;
    const uint8_t *record;
    uint64_t n_bytes;
    uint32_t n_jobs, n_tok, top_k;
};
MOEC_WARN_UNUSED enum moec_status moec_gpu_speed_experts(const struct moec_gpu_speed *speed,
                                                         const struct moec_gpu_speed_batch *batch,
                                                         uint64_t *ns, struct moec_error *err);

/* n_bytes in pieces that lie a piece apart, put side by side into pinned memory. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_speed_gather(const struct moec_gpu_speed *speed,
                                                        const struct moec_pool *pool, uint64_t piece_bytes,
                                                        uint64_t n_bytes, uint64_t *ns,
                                                        struct moec_error *err);

#endif
