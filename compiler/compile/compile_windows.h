/* How many windows the certificate is tested on. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_WINDOWS_H
#define MOEC_COMPILER_COMPILE_WINDOWS_H

#include "compiler/compile/compile_run.h"

/* How many of the certificate part's windows tests would take (compiler/certify/prefix.h), by what the search
 * and selection parts have shown so far; of rows all. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_compile_windows_expect(const struct moec_compile_run *run, uint32_t *n,
                                                              struct moec_error *err);
/* Sets n_certify. Where a compile whose journal this is has tested on more windows of the same part, it is
 * these: what it said that they prove is then proven. */
MOEC_WARN_UNUSED enum moec_status moec_compile_windows_choose(struct moec_compile_run *run,
                                                              struct moec_error *err);
/* Keeps what the certificate is going to do, before it does: the order of the part's windows, n_certify and
 * the sequence. */
MOEC_WARN_UNUSED enum moec_status moec_compile_windows_fix(struct moec_compile_run *run,
                                                           struct moec_error *err);

#endif
