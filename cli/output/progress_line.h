/* Progress of long work on stderr (D14): one line that rewrites itself with rate and time left on a terminal,
 * a line every few seconds otherwise, nothing when quiet. Thread rule: main thread. */
#ifndef MOEC_CLI_PROGRESS_LINE_H
#define MOEC_CLI_PROGRESS_LINE_H

#include <stdbool.h>
#include <stdint.h>

struct cli_progress {
    bool is_quiet;
    bool is_terminal;
    const char *unit; /* "passes", "MB", "windows" */
    char phase[48];
    double phase_done; /* done when the phase began */
    int64_t phase_ns;
    int64_t shown_ns;
    bool is_end_shown; /* the phase's last state has been shown */
    bool is_line_open; /* the terminal shows a line that can be rewritten */
};

/* `unit` is borrowed. */
void cli_progress_init(struct cli_progress *progress, const char *unit, bool is_quiet);
/* Shows at most ten times a second. A new `phase` starts its own clock. */
void cli_progress_show(struct cli_progress *progress, const char *phase, double done, double total);
/* Prints a line above the progress line; `note` prints nothing when quiet, `tell` always prints. */
void cli_progress_note(struct cli_progress *progress, const char *line);
void cli_progress_tell(struct cli_progress *progress, const char *line);
/* Clears the progress line. */
void cli_progress_end(struct cli_progress *progress);

#endif
