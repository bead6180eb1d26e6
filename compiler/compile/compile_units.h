/* What is kept for the case that the compile is interrupted. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_UNITS_H
#define MOEC_COMPILER_COMPILE_UNITS_H

#include "compiler/compile/compile_run.h"

/* Opens the journal that the options name, if there is one and something will be measured. */
MOEC_WARN_UNUSED enum moec_status moec_compile_units_open(struct moec_compile_run *run,
                                                          struct moec_error *err);
/* Ends keeping: with the bundle written the journal is removed, unless the options keep it. Fills
 * report->n_resumed. */
void moec_compile_units_close(struct moec_compile_run *run, bool is_finished);
/* The key of a plan's measurement on a part: of everything that it depends on beside the journal's job. */
void moec_compile_units_name(const struct moec_compile_run *run, enum moec_part part,
                             const struct moec_plan *plan, char key[static MOEC_JOURNAL_MAX_KEY]);
/* The same of one on the first n windows of the part alone. */
void moec_compile_units_name_first(const struct moec_compile_run *run, enum moec_part part, uint32_t n,
                                   const struct moec_plan *plan, char key[static MOEC_JOURNAL_MAX_KEY]);
/* Of the run's codecs, and which of them GPTQ fits. */
uint32_t moec_compile_units_crc(const struct moec_compile_run *run);

#endif
