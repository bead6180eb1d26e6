#include "experiments/decisions_fronts.h"

#include <math.h>
#include <stddef.h>

static bool is_beaten(const struct decisions_point *point, const struct decisions_point *by)
{
    const double misses = decisions_miss_rate(point), other = decisions_miss_rate(by);
    return other <= misses && by->loss <= point->loss &&
           (other < misses || by->loss < point->loss || by < point);
}

void decisions_front_make(const struct decisions_group *group, enum decisions_method method, uint32_t n_slots,
                          uint32_t keep_top, struct decisions_front *front)
{
    const struct decisions_point *all[DECISIONS_MAX_FRONT];
    uint32_t n = 0;
    front->n = 0;
    for (uint32_t i = 0; i < group->n && n < DECISIONS_MAX_FRONT; i++) {
        const struct decisions_point *point = &group->points[i];
        const bool is_plain = point->method == DECISIONS_TOP_K;
        const bool is_kept = is_plain || keep_top == DECISIONS_ANY_KEEP || point->keep_top == keep_top;
        if ((point->method == method || is_plain) && point->precision == DECISIONS_ONE_PRECISION &&
            point->n_slots == n_slots && is_kept && isfinite(point->loss) && point->n_chosen > 0)
            all[n++] = point;
    }
    for (uint32_t i = 0; i < n; i++) {
        bool is_on = true;
        for (uint32_t j = 0; j < n && is_on; j++)
            is_on = j == i || !is_beaten(all[i], all[j]);
        if (!is_on)
            continue;
        uint32_t at = front->n++;
        for (; at > 0 && decisions_miss_rate(front->points[at - 1]) > decisions_miss_rate(all[i]); at--)
            front->points[at] = front->points[at - 1];
        front->points[at] = all[i];
    }
}

double decisions_front_loss(const struct decisions_front *front, double miss_rate)
{
    for (uint32_t i = 0; i < front->n; i++) {
        const double right = decisions_miss_rate(front->points[i]);
        if (right < miss_rate)
            continue;
        if (right == miss_rate)
            return front->points[i]->loss;
        if (i == 0)
            return NAN;
        const double left = decisions_miss_rate(front->points[i - 1]);
        const double part = (miss_rate - left) / (right - left);
        return front->points[i - 1]->loss + part * (front->points[i]->loss - front->points[i - 1]->loss);
    }
    return NAN;
}

const struct decisions_point *decisions_fewest_misses(const struct decisions_group *group,
                                                      enum decisions_method method, uint32_t n_slots,
                                                      double limit, bool is_proven)
{
    const struct decisions_point *best = NULL;
    for (uint32_t i = 0; i < group->n; i++) {
        const struct decisions_point *point = &group->points[i];
        if (point->method == method && point->precision == DECISIONS_ONE_PRECISION &&
            point->n_slots == n_slots && (is_proven ? point->high : point->loss) <= limit &&
            (best == NULL || point->n_missed < best->n_missed))
            best = point;
    }
    return best;
}
