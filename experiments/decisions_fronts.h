/* What stands between loss and misses: the settings of a method that no other one of it beats in both. Thread
 * rule: plain data; fronts borrow their points. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_FRONTS_H
#define MOEC_EXPERIMENTS_DECISIONS_FRONTS_H

#include "experiments/decisions_measured.h"

#define DECISIONS_MAX_FRONT 64
#define DECISIONS_ANY_KEEP  UINT32_MAX

struct decisions_front {
    uint32_t n;
    const struct decisions_point *points[DECISIONS_MAX_FRONT]; /* by rising misses, so by falling loss */
};

/* Of the points with so many slots and `keep_top`, and the router's own choice, which every method ends in.
 */
void decisions_front_make(const struct decisions_group *group, enum decisions_method method, uint32_t n_slots,
                          uint32_t keep_top, struct decisions_front *front);

/* Loss at a rate of misses, between points by a straight line; NaN where the front does not reach. */
double decisions_front_loss(const struct decisions_front *front, double miss_rate);

/* The point with the fewest misses whose loss, or the upper end of it (`is_proven`), is within a limit; NULL
 * when there is none. The router's own choice is none of them. */
const struct decisions_point *decisions_fewest_misses(const struct decisions_group *group,
                                                      enum decisions_method method, uint32_t n_slots,
                                                      double limit, bool is_proven);

#endif
