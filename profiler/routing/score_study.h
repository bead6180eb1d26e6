/* How the scores of a token's experts are spread: what thresholds T1 and T2 make of the experts that tokens
 * take (HOBBIT, arXiv:2411.01433, section 3.2: "we can profile the score distribution of all experts",
 * Fig. 5b).
 *
 *   gate/scores   of the experts that tokens take in a layer, the share that stands at this rank by weight
 *                 and has a score (eq. 2, runtime/policy/decide/precision.h) of at most 0, 0.01, .. 1; over all
 *                 ranks the last one's sum to 1
 *
 * Weights are the trace's, of 16 bits. Experts that were full count for nothing. Models with one expert a
 * token, whose score is always 0, have no such study. Thread rule: one thread. */
#ifndef MOEC_PROFILER_SCORE_STUDY_H
#define MOEC_PROFILER_SCORE_STUDY_H

#include "formats/profile/profile.h"
#include "formats/tables/score_shares.h"

#define MOEC_SCORE_STUDY "gate/scores" /* (S, k, MOEC_SCORE_COUNT) */

/* Adds the study, from the profile's routing trace. */
MOEC_WARN_UNUSED enum moec_status moec_score_study_run(struct moec_profile *profile, struct moec_error *err);

/* Of a study of this shape: over all ranks, the mean of its layers that have one (MOEC_SCORE_COUNT). False
 * where it says nothing, as that of a file may. */
bool moec_score_study_shares(const struct moec_study *study, double *shares);

/* The same of a profile, for a bundle; NULL stays where it has none. Owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_score_study_take(const struct moec_profile *profile, float **shares,
                                                        struct moec_error *err);

#endif
