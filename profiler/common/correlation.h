/* Correlation of paired numbers: whether two measures agree on values (Pearson) or on order (Spearman).
 *
 * Pairs in which either number is not finite are left out. The answer is between -1 and 1, and NaN where
 * nothing can be said: fewer than two pairs, or one side constant. Sums run in the order of the pairs, so
 * that the same numbers give the same bits. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_CORRELATION_H
#define MOEC_PROFILER_CORRELATION_H

#include "formats/base/error.h"

#include <stddef.h>

/* Pearson's product-moment correlation of a[i] and b[i]. */
double moec_correlation_pearson(const double *a, const double *b, size_t n);

/* Spearman's rank correlation: Pearson's of the ranks, equal values sharing the mean of theirs. Errors:
 * MOEC_ERR_MEMORY, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_correlation_spearman(const double *a, const double *b, size_t n,
                                                            double *out, struct moec_error *err);

/* ranks[i] = 1 + how many values are smaller than values[i] + half of the others that equal it.
 * Values are finite. */
MOEC_WARN_UNUSED enum moec_status moec_correlation_ranks(const double *values, size_t n, double *ranks,
                                                         struct moec_error *err);

#endif
