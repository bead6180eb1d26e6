/* Studies whose values are losses: one array of losses, and beside it KL and both ends of the interval.
 *
 * "X/loss" is relative to the original weights (D5), on the measured windows; "X/loss_low" and "X/loss_high" are the
 * ends of its one-sided 95 % intervals (D6), "X/kl" the mean of KL(original || variant) over the scored
 * tokens. Values that are never set stay NaN: nothing to say. Thread rule: plain data. */
#ifndef MOEC_PROFILER_LOSS_STUDY_H
#define MOEC_PROFILER_LOSS_STUDY_H

#include "formats/profile/profile.h"

struct moec_loss_study {
    struct moec_study shape;        /* of X/loss; what its axes point to is borrowed */
    uint64_t n;                     /* values */
    double *loss, *kl, *low, *high; /* (n), owned */
};

/* `shape` names, describes and measures the study by its axes; name ends in "/loss", values are ignored. */
MOEC_WARN_UNUSED enum moec_status
moec_loss_study_create(const struct moec_study *shape, struct moec_loss_study *study, struct moec_error *err);
void moec_loss_study_release(struct moec_loss_study *study);

/* Value `at` from sums over the windows of `profile`, whose reference is measured. */
MOEC_WARN_UNUSED enum moec_status moec_loss_study_set(struct moec_loss_study *study, uint64_t at,
                                                      const struct moec_profile *profile,
                                                      const struct moec_measure *measure,
                                                      struct moec_error *err);

/* The same from the first n_window of them, which are all that was measured. */
MOEC_WARN_UNUSED enum moec_status moec_loss_study_set_first(struct moec_loss_study *study, uint64_t at,
                                                            const struct moec_profile *profile,
                                                            const struct moec_measure *measure,
                                                            uint32_t n_window, struct moec_error *err);

/* Value `at` as value `from`, which is the same model. */
void moec_loss_study_repeat(struct moec_loss_study *study, uint64_t at, uint64_t from);

/* Adds the four arrays to the profile's studies. */
MOEC_WARN_UNUSED enum moec_status moec_loss_study_add(const struct moec_loss_study *study,
                                                      struct moec_profile *profile, struct moec_error *err);

#endif
