/* A phase's work counts from where its first report stood; one that begins under its name again counts
 * anew. What the phase has left goes at its own pace once that is known, the rest of the job at the mean.
 * The part that is done never falls. The time left is held against an estimate that is longer by less than
 * WRONG_LEFT. */
#include "cli/terminal/progress_line.h"
#include "cli/print/print.h"
#include "cli/terminal/interrupt.h"

#include "formats/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SECOND_NS         1000000000LL
#define TERMINAL_EVERY_NS (SECOND_NS / 10)
/* A log gets a line after 10 s, then about twenty for as long as the job has run, and at least six an hour.
 */
#define LOG_FIRST_NS    (10 * SECOND_NS)
#define LOG_LAST_NS     (600 * SECOND_NS)
#define LOG_PARTS       20
#define LINE_BYTES      256
#define DEFAULT_COLUMNS 80
#define KNOWN_SECONDS   0.5  /* before, a rate says nothing */
#define WRONG_LEFT      1.25 /* a time left that is too short by more is corrected */

void cli_progress_init(struct cli_progress *progress, const char *job, const char *unit, bool is_quiet)
{
    *progress = (struct cli_progress){.job = job,
                                      .unit = unit,
                                      .is_quiet = is_quiet,
                                      .is_terminal = isatty(STDERR_FILENO),
                                      .expected = NAN,
                                      .left_seconds = NAN};
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

void cli_progress_expect(struct cli_progress *progress, double work)
{
    progress->expected = work;
    progress->expected_at = progress->work_before + progress->phase_done;
}

void cli_progress_later(struct cli_progress *progress, double work)
{
    progress->later = work;
}

/* ---- the text ---- */

void cli_duration_text(char text[static 24], double seconds)
{
    if (seconds < 100)
        (void)snprintf(text, 24, "%.0f s", seconds);
    else if (seconds < 6000)
        (void)snprintf(text, 24, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else
        (void)snprintf(text, 24, "%d h %02d min", (int)(seconds / 3600), (int)(seconds / 60) % 60);
}

/* Of the whole job; *phase is what its phase has left. */
static double work_left(const struct cli_progress *progress, double done, double total, double *phase)
{
    const double now = progress->work_before + progress->phase_done;
    *phase = larger(total - done, 0);
    if (isnan(progress->expected))
        return *phase;
    return larger(progress->expected - (now - progress->expected_at), *phase) + progress->later;
}

void cli_progress_text(struct cli_progress *progress, struct cli_progress_point at, int columns, char *text,
                       size_t capacity)
{
    double phase_left = 0;
    char time[40] = "", detail[96];
    char duration[24];
    const double left = work_left(progress, at.done, at.total, &phase_left);
    const double now = progress->work_before + progress->phase_done;
    /* A job that counts only this phase may have begun in an earlier run. */
    const double before = isnan(progress->expected) ? at.done : now;
    progress->best_part =
        larger(progress->best_part, before + left > 0 ? before / (before + left) : progress->best_part);
    if (now > 0 && at.job_seconds > KNOWN_SECONDS) {
        const double mean = at.job_seconds / now;
        const double pace = progress->phase_done > 0 && at.phase_seconds > 2 * KNOWN_SECONDS
                                ? at.phase_seconds / progress->phase_done
                                : mean;
        const double estimate = phase_left * pace + (left - phase_left) * mean;
        /* False before a first time was shown too. */
        const bool is_held =
            estimate > progress->left_seconds && estimate <= WRONG_LEFT * progress->left_seconds;
        progress->left_seconds = is_held ? progress->left_seconds : estimate;
        cli_duration_text(duration, progress->left_seconds);
        (void)snprintf(time, sizeof time, ", %s left", duration);
    }
    if (progress->unit != NULL)
        (void)snprintf(detail, sizeof detail, "%.0f of %.0f %s", at.done, at.total, progress->unit);
    else
        (void)snprintf(detail, sizeof detail, "%s", progress->phase);
    (void)snprintf(text, capacity, "%s: %.0f%%%s (%s)", progress->job, floor(100 * progress->best_part), time,
                   detail);
    if (columns > 0 && (size_t)columns <= strlen(text))
        text[columns - 1] = '\0';
}

/* ---- showing it ---- */

static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : DEFAULT_COLUMNS;
}

static bool is_due(const struct cli_progress *progress, int64_t now)
{
    if (progress->is_terminal)
        return now - progress->shown_ns >= TERMINAL_EVERY_NS;
    int64_t every = (now - progress->start_ns) / LOG_PARTS;
    every = every < LOG_FIRST_NS ? LOG_FIRST_NS : every > LOG_LAST_NS ? LOG_LAST_NS : every;
    return now - progress->shown_ns >= every;
}

static void put(struct cli_progress *progress, const char *text, int64_t now)
{
    progress->shown_ns = now;
    (void)fprintf(stderr, progress->is_terminal ? "\r%s\033[K" : "%s\n", text);
    (void)fflush(stderr);
    progress->is_line_open = progress->is_terminal;
}

/* A log's first line comes when the job has lasted for a while. */
static int64_t start_clock(struct cli_progress *progress)
{
    const int64_t now = (int64_t)moec_now_ns();
    if (progress->start_ns == 0) {
        progress->start_ns = now;
        progress->shown_ns = progress->is_terminal ? 0 : now;
    }
    return now;
}

/* Of one name. */
static void end_phases(struct cli_progress *progress, int64_t now)
{
    char took[24], line[96];
    if (progress->is_verbose && progress->phase[0] != '\0') {
        cli_duration_text(took, (double)(now - progress->named_ns) / (double)SECOND_NS);
        (void)snprintf(line, sizeof line, "%s: %s", progress->phase, took);
        cli_progress_tell(progress, line);
    }
    progress->phase[0] = '\0';
    progress->named_ns = now;
}

/* Shows the phase with as much done as ranks have in the mean, if it is time. */
static void show_now(struct cli_progress *progress, int64_t now)
{
    char text[LINE_BYTES];
    const double own = progress->phase_done;
    if (!is_due(progress, now))
        return;
    if (progress->ranks != NULL) {
        const double mean = moec_ranks_mean_done(progress->ranks) - progress->work_before;
        progress->phase_done = larger(mean, 0);
    }
    const struct cli_progress_point at = {progress->shown_done + progress->phase_done - own,
                                          progress->shown_total,
                                          (double)(now - progress->work_ns) / (double)SECOND_NS,
                                          (double)(now - progress->phase_ns) / (double)SECOND_NS};
    cli_progress_text(progress, at, progress->is_terminal ? terminal_columns() : 0, text, sizeof text);
    progress->phase_done = own;
    put(progress, text, now);
}

static void show_again(void *context)
{
    show_now(context, (int64_t)moec_now_ns());
}

void cli_progress_show(struct cli_progress *progress, const char *phase, double done, double total)
{
    if (progress->phases != NULL)
        moec_phases_begin(progress->phases, phase);
    if (progress->is_quiet)
        return;
    const int64_t now = start_clock(progress);
    const bool is_named = strncmp(progress->phase, phase, sizeof progress->phase - 1) != 0;
    if (progress->work_ns == 0) {
        progress->work_ns = now;
        moec_ranks_on_wait(progress->ranks, show_again, progress);
    }
    if (is_named)
        end_phases(progress, now);
    if (is_named || done < progress->phase_first + progress->phase_done) {
        (void)snprintf(progress->phase, sizeof progress->phase, "%s", phase);
        progress->work_before += progress->phase_done;
        progress->phase_first = done;
        progress->phase_ns = now;
    }
    progress->phase_done = done - progress->phase_first;
    progress->shown_done = done;
    progress->shown_total = total;
    moec_ranks_tell(progress->ranks, progress->work_before + progress->phase_done);
    show_now(progress, now);
}

void cli_progress_prepare(struct cli_progress *progress, const char *phase, uint64_t done_bytes,
                          uint64_t total_bytes)
{
    char text[LINE_BYTES];
    const bool is_large = total_bytes >= 1000000000;
    const double unit = is_large ? 1e9 : 1e6;
    if (progress->is_quiet)
        return;
    const int64_t now = start_clock(progress);
    if (!is_due(progress, now))
        return;
    (void)snprintf(text, sizeof text, "%s: %s, %.1f of %.1f %s", progress->job, phase,
                   (double)done_bytes / unit, (double)total_bytes / unit, is_large ? "GB" : "MB");
    if (progress->is_terminal && (size_t)terminal_columns() <= strlen(text))
        text[terminal_columns() - 1] = '\0';
    put(progress, text, now);
}

static void clear_line(struct cli_progress *progress)
{
    if (progress->is_line_open)
        fprintf(stderr, "\r\033[K");
    progress->is_line_open = false;
}

void cli_progress_end(struct cli_progress *progress)
{
    moec_ranks_on_wait(progress->ranks, NULL, NULL);
    clear_line(progress);
    if (progress->work_ns != 0)
        end_phases(progress, (int64_t)moec_now_ns());
}

void cli_progress_note(struct cli_progress *progress, const char *line)
{
    if (!progress->is_quiet)
        cli_progress_tell(progress, line);
}

void cli_progress_tell(struct cli_progress *progress, const char *line)
{
    clear_line(progress);
    if (progress->is_terminal)
        cli_put_wrapped(stderr, 2, line);
    else
        cli_put(stderr, line);
    (void)fputc('\n', stderr);
}

/* ---- the observer ---- */

static enum moec_status observe_part(void *context, const char *phase, double done, double total)
{
    cli_progress_show(context, phase, done, total);
    return cli_interrupt_status();
}

static void observe_expected(void *context, double work)
{
    cli_progress_expect(context, work);
}

static void observe_note(void *context, const char *line)
{
    struct cli_progress *progress = context;
    if (progress->is_verbose || progress->has_notes)
        cli_progress_note(progress, line);
}

struct moec_progress cli_progress_observer(struct cli_progress *progress)
{
    return (struct moec_progress){
        .report = observe_part, .note = observe_note, .expect = observe_expected, .context = progress};
}
