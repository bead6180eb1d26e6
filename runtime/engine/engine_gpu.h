/* What an engine has on a GPU: the device, its share of the bundle, and the pool of experts in front of the
 * cache in the process's memory (internal to runtime/). Thread rule: created and freed by the engine, else
 * immutable. */
#ifndef MOEC_RUNTIME_ENGINE_GPU_H
#define MOEC_RUNTIME_ENGINE_GPU_H

#include "runtime/cuda/gpu_backend.h"
#include "runtime/cuda/gpu_experts.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/cuda/gpu_neurons.h"
#include "runtime/engine/vram_plan.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/kernels/arithmetic.h"

struct moec_engine_gpu {
    struct moec_gpu *gpu;
    const struct moec_gpu_kernels *kernels;
    struct moec_gpu_info info; /* as it was opened */
    struct moec_vram_plan plan;
    struct moec_gpu_model *model;
    struct moec_gpu_experts *experts; /* one of these two serves the experts */
    struct moec_gpu_neurons *neurons;
    void *pinned;        /* the cache's memory */
    bool cooperates;     /* the processor computes missed experts too */
    bool copies_neurons; /* where there is room for it, with a sparsity: alone, gathered by so many threads */
    int n_threads;
    double copy_byte_ns, cpu_byte_ns, gpu_byte_ns; /* of struct moec_gpu_experts_setup */
};

/* Opens the device of this name ("cuda:1") by an entry, or NULL: that of libmoert-cuda.so. */
MOEC_WARN_UNUSED enum moec_status moec_engine_gpu_open(const char *device, const struct moec_gpu_entry *entry,
                                                       struct moec_engine_gpu **out, struct moec_error *err);

/* Copies the dense weights, and what a sparsity needs, and makes the pool; all are borrowed until it is
 * freed. With `plan` made. */
MOEC_WARN_UNUSED enum moec_status
moec_engine_gpu_load(struct moec_engine_gpu *gpu, const struct moec_model *model,
                     const struct moec_bundle *bundle, struct moec_sparsity *sparsity,
                     const struct moec_expert_cache_options *options, struct moec_expert_cache *cache,
                     struct moec_error *err);
struct moec_experts *moec_engine_gpu_source(const struct moec_engine_gpu *gpu);
uint64_t moec_engine_gpu_pool_bytes(const struct moec_engine_gpu *gpu);
struct moec_gpu_experts_counters moec_engine_gpu_counters(const struct moec_engine_gpu *gpu);
void moec_engine_gpu_free(struct moec_engine_gpu *gpu); /* NULL-safe */

#endif
