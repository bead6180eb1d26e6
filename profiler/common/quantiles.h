/* Sorted values and their quantiles: of many magnitudes at once (moec_quantiles), and of ordinary doubles.
 *
 * Where nothing else is said, the q-quantile of n values is the smallest of them with at least q n values at
 * or below it, the inverse of the empirical distribution function (FloE, eq. 6); q = 0 gives the smallest
 * value. Thread rule: pure functions.
 */
#ifndef MOEC_PROFILER_QUANTILES_H
#define MOEC_PROFILER_QUANTILES_H

#include <stddef.h>
#include <stdint.h>

/* out[i] = the at[i]-quantile (0..1) of values (n), which are sorted in place and must not be negative or
 * NaN; scratch (n). NaN for n = 0. */
void moec_quantiles(float *values, float *scratch, size_t n, const double *at, size_t n_at, double *out);

/* Increasing, in place; without NaN. */
void moec_sort_doubles(double *values, size_t n);

/* The median of n > 0 values, which it sorts: the upper of two in the middle. */
double moec_median(double *values, size_t n);

/* The p-quantile (0..1) of n > 0 increasing values. */
double moec_quantile_of_sorted(const double *sorted, size_t n, double p);

/* The p-quantile (0..1) of the finite ones among n values, which it sorts into scratch (n): the one whose
 * place is nearest to p of the way from the least to the greatest, the later of two that are as near; so the
 * median of an even number is the upper of the two in the middle. NaN when none is finite. */
double moec_quantile_of_finite(const double *values, size_t n, double p, double *scratch);

#endif
