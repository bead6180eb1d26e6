/* What was measured, for the trace and the sequence. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_NOTE_H
#define MOEC_COMPILER_COMPILE_NOTE_H

#include "compiler/compile/compile_run.h"

/* Adds what was measured of a plan to the report's trace. `is_extra`: for comparison only. */
MOEC_WARN_UNUSED enum moec_status moec_compile_note(struct moec_compile_run *run, enum moec_trace_part part,
                                                    const struct moec_plan *plan,
                                                    const struct moec_loss *loss, bool is_extra,
                                                    struct moec_error *err);
/* The same for report->plan, which the search ended with: the trace's `chosen`. */
MOEC_WARN_UNUSED enum moec_status moec_compile_note_choice(struct moec_compile_run *run,
                                                           struct moec_error *err);

#endif
