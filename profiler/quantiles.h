/* Quantiles of many magnitudes.
 *
 * The q-quantile of n values is the smallest of them with at least q n values at or below it, the inverse of
 * the empirical distribution function (FloE, eq. 6); q = 0 is the least value. Thread rule: pure function. */
#ifndef MOEC_PROFILER_QUANTILES_H
#define MOEC_PROFILER_QUANTILES_H

#include <stddef.h>
#include <stdint.h>

/* out[i] = the at[i]-quantile (0..1) of values (n), which are sorted in place and must not be negative or
 * NaN; scratch (n). NaN for n = 0. */
void moec_quantiles(float *values, float *scratch, size_t n, const double *at, size_t n_at, double *out);

#endif
