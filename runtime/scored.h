/* Experts in order of a score (internal to runtime/). */
#ifndef MOEC_RUNTIME_SCORED_H
#define MOEC_RUNTIME_SCORED_H

#include "runtime/experts.h"

/* The n_best experts with the highest of scores (n_expert): by falling score, ties to the lower index, NaN as
 * the lowest of all. Writes out (n_best), n_best <= n_expert. Allocates nothing. */
void moec_scored_best(const float *scores, uint32_t n_expert, uint32_t n_best,
                      struct moec_scored_expert *out);

#endif
