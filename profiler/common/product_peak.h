/* The rate that the canonical product reaches on this machine: what shares of a peak are shares of.
 *
 * The runtime's own product of a tile of tokens with rows of floats (dot of runtime/kernels/kernels.h), in
 * buffers that the nearest caches hold, on all threads at once: the best of some shapes and turns, so that
 * work with exactly such products alone would have a share of 1. Takes about a tenth of a second.
 *
 * Thread rule: one thread, which uses the pool. */
#ifndef MOEC_PROFILER_PRODUCT_PEAK_H
#define MOEC_PROFILER_PRODUCT_PEAK_H

#include "runtime/kernels/kernels.h"

/* Multiply-adds a second of all threads together; n_threads as moec_pool_make. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_product_peak(const struct moec_kernels *kernels, int n_threads,
                                                    double *peak, struct moec_error *err);

#endif
