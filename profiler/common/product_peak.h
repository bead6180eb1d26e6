/* The rate that the canonical product reaches on this machine: what shares of a peak are shares of.
 *
 * The runtime's own products of tokens with rows of floats, of tokens as they lie (dot of
 * runtime/kernels/kernels.h) and, where the set has it, of tokens that are laid (dot_transposed, with the decoding
 * of rows that belongs to it), in buffers that the nearest caches hold, on all threads at once: the best of
 * these, some shapes and turns, so that work with exactly the fastest of them alone would have a share of 1.
 * A loop of multiply-adds on registers would be faster: canonical sums have an order, and inputs to load.
 * Takes about a fifth of a second.
 *
 * Thread rule: one thread, which uses the pool. */
#ifndef MOEC_PROFILER_PRODUCT_PEAK_H
#define MOEC_PROFILER_PRODUCT_PEAK_H

#include "runtime/kernels/kernels.h"

/* Multiply-adds a second of all threads together; n_threads as moec_pool_make. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_product_peak(const struct moec_kernels *kernels, int n_threads,
                                                    double *peak, struct moec_error *err);

#endif
