/* The plans that the certificate tests, and their order. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_SEQUENCE_H
#define MOEC_COMPILER_COMPILE_SEQUENCE_H

#include "compiler/compile/compile_run.h"

/* Keeps a plan that was measured on the search part, with the dense weights that are bound, if it may be
 * worth a test. */
MOEC_WARN_UNUSED enum moec_status moec_compile_candidates_add(struct moec_compile_run *run,
                                                              const struct moec_plan *plan, uint64_t n_bytes,
                                                              const struct moec_loss *loss,
                                                              struct moec_error *err);
/* Starts with the plans of a policy's answer, with the dense weights that are bound. */
MOEC_WARN_UNUSED enum moec_status moec_compile_candidates_start(struct moec_compile_run *run,
                                                                const struct moec_policy_answer *answer,
                                                                struct moec_error *err);
/* Idempotent. */
void moec_compile_candidates_release(struct moec_compile_candidates *candidates);
/* Makes the sequence that ends with report->plan, which was measured. The others are plans that the search
 * measured, those of the policy and uniform ones, whose losses are foretold. Nothing of the certificate part
 * is known yet. */
MOEC_WARN_UNUSED enum moec_status moec_compile_sequence_make(struct moec_compile_run *run,
                                                             struct moec_error *err);

#endif
