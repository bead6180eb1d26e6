/* Plans with decisions about each token, where a policy asks for them. Thread rule: one thread, parallel
 * inside. */
#ifndef MOEC_COMPILER_COMPILE_DECIDE_H
#define MOEC_COMPILER_COMPILE_DECIDE_H

#include "compiler/compile/compile_run.h"

/* What candidates of the run's policy may have, which borrow the run. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_compile_rules(const struct moec_compile_run *run,
                                                     struct moec_candidate_rules *rules,
                                                     struct moec_error *err);
/* Of struct moec_policy_ops; `context` is the run. */
MOEC_WARN_UNUSED enum moec_status moec_compile_decide(void *context, const struct moec_plan *plan,
                                                      const struct moec_decision_settings *settings,
                                                      enum moec_part which, struct moec_evaluation *out,
                                                      struct moec_error *err);

/* A loss as a policy is told it. */
struct moec_evaluation moec_compile_evaluation(const struct moec_compile_run *run,
                                               const struct moec_loss *loss);

#endif
