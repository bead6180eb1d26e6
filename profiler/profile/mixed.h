/* The study `mixed`: what a mixed assignment saves against the best uniform bitwidth at 1, 2 and 5 % loss.
 *
 * For each target a plan is made from the single-expert effects (profiler/profile/mixed_plan.h) and measured
 * as a whole model; where the measurement misses the target, or leaves more than a tenth of it, the KL that
 * the plan may spend is corrected and it is measured again, up to MOEC_MIXED_ATTEMPTS times. The smallest one
 * that met the target is kept, else the last. Fast profiles only predict: they measure no plans.
 * A phase of the profile run (profiler/profile/profile_job.h). */
#ifndef MOEC_PROFILER_MIXED_H
#define MOEC_PROFILER_MIXED_H

#include "profiler/profile/profile_job.h"

#define MOEC_MIXED_TARGETS  3
#define MOEC_MIXED_ATTEMPTS 4

/* 0.01, 0.02, 0.05. */
extern const double moec_mixed_targets[MOEC_MIXED_TARGETS];

/* Adds the studies mixed/... to the profile, whose sensitivities and uniform measurements are there. */
MOEC_WARN_UNUSED enum moec_status moec_mixed_measure(struct moec_profile_job *job, struct moec_error *err);

#endif
