#include "cli/output/progress_line.h"
#include "cli/print/print.h"

#include "formats/base/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS         1000000000LL
#define TERMINAL_EVERY_NS (SECOND_NS / 10)
#define LOG_EVERY_NS      (10 * SECOND_NS)

void cli_progress_init(struct cli_progress *progress, const char *unit, bool is_quiet)
{
    *progress =
        (struct cli_progress){.unit = unit, .is_quiet = is_quiet, .is_terminal = isatty(STDERR_FILENO)};
}

static void format_duration(char text[static 24], double seconds)
{
    if (seconds < 100)
        (void)snprintf(text, 24, "%.0f s", seconds);
    else if (seconds < 6000)
        (void)snprintf(text, 24, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else
        (void)snprintf(text, 24, "%d h %02d min", (int)(seconds / 3600), (int)(seconds / 60) % 60);
}

void cli_progress_show(struct cli_progress *progress, const char *phase, double done, double total)
{
    if (progress->is_quiet)
        return;
    int64_t now = (int64_t)moec_now_ns();
    bool is_new = strncmp(progress->phase, phase, sizeof progress->phase - 1) != 0;
    if (is_new) {
        (void)snprintf(progress->phase, sizeof progress->phase, "%s", phase);
        progress->phase_done = done;
        progress->phase_ns = now;
        progress->shown_ns = 0;
        progress->is_end_shown = false;
    }
    int64_t every = progress->is_terminal ? TERMINAL_EVERY_NS : LOG_EVERY_NS;
    if (is_new && !progress->is_terminal)
        progress->shown_ns = now; /* a log says how far a phase came, not that it began */
    bool is_end = done >= total;
    if (now - progress->shown_ns < every && (!is_end || progress->is_end_shown))
        return;
    progress->is_end_shown = is_end;
    progress->shown_ns = now;
    double seconds = (double)(now - progress->phase_ns) / (double)SECOND_NS;
    double rate = seconds > 0 ? (done - progress->phase_done) / seconds : 0;
    char tail[80] = "";
    if (rate > 0 && seconds > 0.5) {
        char left[24];
        format_duration(left, (total - done) / rate);
        (void)snprintf(tail, sizeof tail, ", %.3g %s/s, %s left", rate, progress->unit, left);
    }
    int decimals = strcmp(progress->unit, "passes") == 0 ? 1 : 0;
    fprintf(stderr, "%s%s: %.*f of %.*f %s (%.0f%%)%s%s", progress->is_terminal ? "\r\033[K" : "", phase,
            decimals, done, decimals, total, progress->unit, total > 0 ? 100 * done / total : 100, tail,
            progress->is_terminal ? "" : "\n");
    (void)fflush(stderr);
    progress->is_line_open = progress->is_terminal;
}

void cli_progress_end(struct cli_progress *progress)
{
    if (progress->is_line_open)
        fprintf(stderr, "\r\033[K");
    progress->is_line_open = false;
    progress->phase[0] = '\0';
}

void cli_progress_note(struct cli_progress *progress, const char *line)
{
    if (!progress->is_quiet)
        cli_progress_tell(progress, line);
}

void cli_progress_tell(struct cli_progress *progress, const char *line)
{
    if (progress->is_line_open)
        fprintf(stderr, "\r\033[K");
    progress->is_line_open = false;
    cli_print(stderr, "%s\n", line);
}
