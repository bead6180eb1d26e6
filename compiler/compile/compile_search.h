/* The policy's questions, and what its answer must hold. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_SEARCH_H
#define MOEC_COMPILER_COMPILE_SEARCH_H

#include "compiler/compile/compile_run.h"

/* The policy's plan for the dense weights that are bound, measured once more on the search part,
 * independently of the policy: report->plan, n_bytes and search_loss. Errors: MOEC_ERR_TARGET,
 * MOEC_ERR_SCRIPT, MOEC_ERR_CANCELLED. */
MOEC_WARN_UNUSED enum moec_status moec_compile_search(struct moec_compile_run *run, struct moec_error *err);

/* All experts at 2, 3, 4 and 8 bits with the chosen plan's dense weights, which are bound: measured on the
 * search part where the search did not, for the trace. */
MOEC_WARN_UNUSED enum moec_status moec_compile_measure_uniform(struct moec_compile_run *run,
                                                               struct moec_error *err);

/* The plan that the search ended with where every expert has the codes that most have: measured on the search
 * part for the trace, so that what mixing gains is known. Not of rows. */
MOEC_WARN_UNUSED enum moec_status moec_compile_measure_alike(struct moec_compile_run *run,
                                                             struct moec_error *err);

#endif
