#include "cli/terminal/checkpoint_note.h"

#include <stdio.h>

void cli_say_checkpoint(struct cli_progress *progress, const struct moec_checkpoint *checkpoint)
{
    const char *note = moec_checkpoint_note(checkpoint);
    char line[MOEC_ERROR_BYTES];
    if (note == NULL)
        return;
    (void)snprintf(line, sizeof line, "moec %s: note: %s", progress->job, note);
    cli_progress_note(progress, line);
}
