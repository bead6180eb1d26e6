/* A run of moec compile from its beginning to its end, for drafts too. Thread rule: one thread, parallel
 * inside. */
#ifndef MOEC_COMPILER_COMPILE_INTERNAL_H
#define MOEC_COMPILER_COMPILE_INTERNAL_H

#include "compiler/compile/compile_run.h"

/* Everything before a search, of a run whose checkpoint, profile, options, hooks and report are set; begins
 * the report. Whatever it answers, moec_compile_finish ends the run. Errors: as moec_compile. */
MOEC_WARN_UNUSED enum moec_status moec_compile_start(struct moec_compile_run *run, struct moec_error *err);
/* No plan is measured from here on. */
void moec_compile_pack_begin(struct moec_compile_run *run);
/* Writes the bundle of report->plan with report->certificate. Errors: those of the writer. */
MOEC_WARN_UNUSED enum moec_status moec_compile_write(struct moec_compile_run *run,
                                                     const uint8_t profile_digest[static MOEC_SHA256_BYTES],
                                                     const char *path, struct moec_error *err);
void moec_compile_finish(struct moec_compile_run *run);

#endif
