/* Shares with intervals: a ratio of sums over units that were drawn (windows, or documents of windows).
 *
 * Two-sided at 90 %, Student's t with the standard error of a ratio of sums (Cochran, 1977, 2.11). Thread
 * rule: pure functions. */
#ifndef MOEC_PROFILER_STUDY_SHARE_H
#define MOEC_PROFILER_STUDY_SHARE_H

#include "profiler/evaluate/windows.h"

/* The ends are NaN with a single unit, all is with nothing to divide by. */
struct moec_study_share {
    double value, low, high;
};

/* Sum of parts over sum of wholes, both (n_window), windows of one document as one where they are drawn so.
 */
MOEC_WARN_UNUSED enum moec_status moec_study_share_make(const struct moec_windows *windows,
                                                        const double *parts, const double *wholes,
                                                        struct moec_study_share *out, struct moec_error *err);

#endif
