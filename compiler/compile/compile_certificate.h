/* The tests, and the loss that is promised. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_CERTIFICATE_H
#define MOEC_COMPILER_COMPILE_CERTIFICATE_H

#include "compiler/compile/compile_run.h"

/* Tests the sequence on the certificate part and fills report->certificate. The last plan that passed becomes
 * report->plan. Errors: MOEC_ERR_TARGET when the first plan misses and that is not accepted. */
MOEC_WARN_UNUSED enum moec_status moec_compile_certify(struct moec_compile_run *run, struct moec_error *err);

#endif
