/* The smallest bundle that there can be, and how near a plan is to it. Thread rule: one thread, parallel
 * inside. */
#ifndef MOEC_COMPILER_COMPILE_LIMITS_H
#define MOEC_COMPILER_COMPILE_LIMITS_H

#include "compiler/compile/compile_run.h"

/* Errors: MOEC_ERR_TARGET where the smallest plan of the variants, which are fitted, is larger than the
 * options allow. */
MOEC_WARN_UNUSED enum moec_status moec_compile_check_offer(struct moec_compile_run *run,
                                                           struct moec_error *err);
/* Fills report->uses_smallest for report->plan. */
MOEC_WARN_UNUSED enum moec_status moec_compile_note_smallest(struct moec_compile_run *run,
                                                             struct moec_error *err);

#endif
