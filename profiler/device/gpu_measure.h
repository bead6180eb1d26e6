/* Measuring a GPU with a bundle (formats/trace/gpu_description.h): copies by size, launches, products of each
 * codec at the experts' sizes, gathering, one expert at each bitwidth, whole tokens by the engine.
 *
 * A token is decoded twice at the same position, so that its experts are in the pool the second time, which
 * counts. Thread rule: one thread. */
#ifndef MOEC_PROFILER_GPU_MEASURE_H
#define MOEC_PROFILER_GPU_MEASURE_H

#include "formats/bundle/bundle.h"
#include "formats/trace/gpu_description.h"
#include "profiler/common/progress.h"
#include "runtime/cuda/gpu_library.h"

struct moec_gpu_measure_options {
    const struct moec_gpu_entry *entry; /* where the device and its kernels come from */
    uint32_t number;                    /* of the device */
    int n_threads;                      /* that gather; 0 = all that this process may use */
    uint64_t limit_ns;                  /* of each measurement; 0 = 50 ms */
    uint64_t largest_bytes;             /* of a copy; 0 = 64 MiB */
    uint64_t cache_bytes;               /* more than the device's caches; 0 = 256 MiB */
    const struct moec_progress *progress;
};

/* Everything. Errors: MOEC_ERR_UNSUPPORTED without the device and for layers that have no kernels,
 * MOEC_ERR_MEMORY, MOEC_ERR_IO, MOEC_ERR_CANCELLED. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_measure(const struct moec_bundle *bundle,
                                                   const struct moec_gpu_measure_options *options,
                                                   struct moec_gpu_description *gpu, struct moec_error *err);

#endif
