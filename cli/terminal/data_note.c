#include "cli/terminal/data_note.h"

void cli_note_data(struct cli_progress *progress, const struct moec_rows *rows)
{
    char line[512];
    if (moec_rows_note(rows, line, sizeof line))
        cli_progress_note(progress, line);
}
