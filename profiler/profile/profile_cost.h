/* What a profile is going to cost, phase by phase, in passes (profiler/evaluate/cost.h): for progress, for
 * the choice between exact and fast sensitivities, and to be known before anything is measured.
 *
 * The cost of an exact sweep depends on the routing. Before the original was routed, tokens are taken to
 * choose experts evenly and independently of each other, so that a layer of E experts reaches each first
 * after E / k tokens; real routing is less even and costs less. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_PROFILE_COST_H
#define MOEC_PROFILER_PROFILE_COST_H

#include "profiler/profile/profile_job.h"

/* In the order of a run. */
enum moec_profile_phase {
    MOEC_PHASE_ROUTING,
    MOEC_PHASE_ORIGINAL, /* its losses, from the last hidden states of that */
    MOEC_PHASE_QUANTIZERS,
    MOEC_PHASE_WHOLE, /* whole models at one bitwidth, and the baseline */
    MOEC_PHASE_SENSITIVITY,
    MOEC_PHASE_MIXED,
    MOEC_PHASE_STUDIES,
    MOEC_PHASE_COUNT
};

struct moec_profile_cost {
    double passes[MOEC_PHASE_COUNT];
    /* For people: sensitivity is exact if it is asked for or would fit into the time, which is not known yet.
     */
    double exact_passes, fast_passes; /* of the phase, either way */
};

/* "sensitivity" */
const char *moec_profile_phase_name(enum moec_profile_phase phase);

/* Needs windows and the described profile; profile->sensitivity where it is chosen, else the options' (AUTO
 * counts as exact). */
void moec_profile_cost_estimate(const struct moec_profile_job *job, struct moec_profile_cost *cost);

/* From a phase on. */
double moec_profile_cost_from(const struct moec_profile_cost *cost, enum moec_profile_phase first);

/* Multiply-adds of the exact sweep with the routing of the original, which is traced: the baseline routes
 * nearly alike. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_profile_cost_exact(const struct moec_profile_job *job, uint64_t *out,
                                                          struct moec_error *err);

#endif
