/* What a user should know about the data that was read. Thread rule: main thread. */
#ifndef MOEC_CLI_DATA_NOTE_H
#define MOEC_CLI_DATA_NOTE_H

#include "cli/terminal/progress_line.h"
#include "profiler/tasks/rows.h"

/* Line ends that were changed and places that are broken, as a note of the work; else nothing. */
void cli_note_data(struct cli_progress *progress, const struct moec_rows *rows);

#endif
