/* Measuring what a machine does with a bundle (formats/trace/device_description.h): storage at the sizes and
 * depths that the runtime asks with, and each part of a token with every record in memory.
 *
 * Takes the time that options name and no more memory than experts_bytes beside the dense weights. Where the
 * experts do not fit into that, each layer keeps as many as do and computes those instead of the others:
 * times depend on shapes and bitwidths, not on values. Thread rule: one thread. */
#ifndef MOEC_PROFILER_DEVICE_MEASURE_H
#define MOEC_PROFILER_DEVICE_MEASURE_H

#include "formats/bundle/bundle.h"
#include "formats/trace/device_description.h"
#include "profiler/common/progress.h"
#include "runtime/kernels/kernels.h"
#include "runtime/storage/reader.h"

#define MOEC_DEVICE_DEPTH 32 /* deepest queue that is measured: 1, 2, 4, ... up to it */

struct moec_device_options {
    const struct moec_kernels *kernels;
    int n_threads;                          /* 0 = all that this process may use */
    const struct moec_emulation *emulation; /* describes storage instead of measuring it; NULL = measure */
    uint64_t read_ns;                       /* of each measurement of storage; 0 = 100 ms */
    uint64_t compute_ns;                    /* for decoding, and as much for waiting; 0 = 3 s */
    uint64_t experts_bytes;                 /* of memory for records; 0 = half of what the machine has */
    const struct moec_progress *progress;   /* in steps; may be NULL */
};

/* Everything; of a bundle that has a model's shapes alone (device_shape.h) what the whole model would take.
 * `device` is the caller's (moec_device_release) on success. Errors: MOEC_ERR_IO,
 * MOEC_ERR_MEMORY, those of reading the bundle, MOEC_ERR_CANCELLED. */
MOEC_WARN_UNUSED enum moec_status moec_device_measure(const struct moec_bundle *bundle,
                                                      const struct moec_device_options *options,
                                                      struct moec_device *device, struct moec_error *err);

/* Its halves. They fill their part of `device`, which keeps what it owns on failure too. */
MOEC_WARN_UNUSED enum moec_status moec_device_measure_storage(const struct moec_bundle *bundle,
                                                              const struct moec_device_options *options,
                                                              struct moec_device_storage *storage,
                                                              struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_device_measure_compute(const struct moec_bundle *bundle,
                                                              const struct moec_device_options *options,
                                                              struct moec_device *device,
                                                              struct moec_error *err);

#endif
