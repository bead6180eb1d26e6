/* Experts in order of a score (internal to runtime/). */
#ifndef MOEC_RUNTIME_SCORED_H
#define MOEC_RUNTIME_SCORED_H

#include "runtime/seam/experts.h"

/* Puts the n_best experts with the highest scores of list (n_expert) at its beginning: by falling score, ties
 * to the lower index, NaN last of all. What stands behind them is left open. n_best <= n_expert.
 * Allocates nothing. */
void moec_scored_order(struct moec_scored_expert *list, uint32_t n_expert, uint32_t n_best);

#endif
