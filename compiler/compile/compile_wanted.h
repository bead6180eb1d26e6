/* Which variants are fitted. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_WANTED_H
#define MOEC_COMPILER_COMPILE_WANTED_H

#include "compiler/compile/compile_run.h"

/* Looks at experts whose codes were not fitted, and allocates and fills `wanted` (moec_compile_fit_experts)
 * with what plans near the target are foretold to take. The caller frees it. */
MOEC_WARN_UNUSED enum moec_status moec_compile_wanted_foretell(struct moec_compile_run *run, uint8_t **wanted,
                                                               struct moec_error *err);
/* After that fit: fills offer.harm, and fits what plans near the target take beside it, until this is next to
 * nothing. Numbers that are not fitted then have infinite harm. */
MOEC_WARN_UNUSED enum moec_status moec_compile_wanted_settle(struct moec_compile_run *run,
                                                             struct moec_error *err);
/* Whether all that the plan's experts take is fitted, of numbers that are. */
bool moec_compile_is_fitted(const struct moec_compile_run *run, const struct moec_plan *plan);

#endif
