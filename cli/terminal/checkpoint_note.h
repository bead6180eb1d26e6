/* What a user should hear of a checkpoint's files before long work. Thread rule: main thread. */
#ifndef MOEC_CLI_CHECKPOINT_NOTE_H
#define MOEC_CLI_CHECKPOINT_NOTE_H

#include "cli/terminal/progress_line.h"

#include "formats/checkpoint/checkpoint.h"

/* Prints the note of an open checkpoint, if it has one, above the progress line (nothing when quiet). */
void cli_say_checkpoint(struct cli_progress *progress, const struct moec_checkpoint *checkpoint);

#endif
