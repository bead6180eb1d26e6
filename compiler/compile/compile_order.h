/* The order of neurons in records. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_ORDER_H
#define MOEC_COMPILER_COMPILE_ORDER_H

#include "compiler/compile/compile_run.h"

/* Orders neurons by coactivation on the search part, if the options ask for it; from then on the run's
 * variants have them so. Errors: those of moec_coactivation_order. */
MOEC_WARN_UNUSED enum moec_status moec_compile_order_make(struct moec_compile_run *run,
                                                          struct moec_error *err);

#endif
