/* Progress of long work on stderr (D14): what is done, how far the whole job is and how long it still takes,
 * on one line that rewrites itself and is cut to the terminal's width; a line now and then in a log; nothing
 * when quiet.
 *
 * A line has one percentage and one time left, both of the whole job. Neither runs backwards: where the work
 * turns out longer than expected, they stand still until they are true again. Only a time left that has
 * become wrong by more than a quarter is corrected upwards.
 *
 * Work is counted in units that all phases of a job share, such as passes over the data. A job of many phases
 * says what is still to come (cli_progress_expect); a job that never says has a single phase or phases with a
 * common count. Of ranks that share a job, all count alike, and the mean of what they have done is shown. Thread rule:
 * main thread. */
#ifndef MOEC_CLI_PROGRESS_LINE_H
#define MOEC_CLI_PROGRESS_LINE_H

#include "profiler/common/phases.h"
#include "profiler/common/progress.h"
#include "profiler/ranks/ranks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli_progress {
    bool is_quiet;
    bool is_verbose; /* each phase says at its end how long it took; set after init */
    bool has_notes;  /* an observer shows notes though not verbose; set after init */
    bool is_terminal;
    const char *job;  /* "compile" */
    const char *unit; /* "samples" of a job that counts them; NULL: a share is shown */
    char phase[48];
    double phase_first; /* done when the phase began: earlier runs may have begun it */
    double phase_done;  /* of this run */
    double work_before; /* of the phases before */
    double expected;    /* work from `expected_at` on, as the job expects; NaN = unknown */
    double expected_at;
    double later;                                  /* work behind what is expected, cli_progress_later */
    double best_part;                              /* so that a percentage never falls */
    double left_seconds;                           /* shown last; NaN = none yet */
    int64_t start_ns, work_ns, phase_ns, shown_ns; /* work_ns: when the first phase began */
    int64_t named_ns;                              /* when phases of this name began */
    struct moec_phases *phases; /* what phases take is recorded there; borrowed, NULL = nowhere */
    struct moec_ranks
        *ranks; /* what is shown is the mean of theirs; borrowed, NULL = this process is alone */
    double shown_done, shown_total; /* of the phase, to be shown again while others are waited for */
    bool is_line_open;              /* the terminal shows a line that can be rewritten */
};

/* `job` and `unit` are borrowed. */
void cli_progress_init(struct cli_progress *progress, const char *job, const char *unit, bool is_quiet);
/* From here on this much work is left, of which the phases to come are shown. */
void cli_progress_expect(struct cli_progress *progress, double work);
/* Work that comes after what is expected, in the same units: of a job that is made of two. */
void cli_progress_later(struct cli_progress *progress, double work);
/* Shows at most ten times a second. A new `phase`, or one whose `done` falls, begins a phase. */
void cli_progress_show(struct cli_progress *progress, const char *phase, double done, double total);
/* Bytes that are read before the work itself begins, as "1.2 of 60.0 GB": they have no part in percentage and
 * time left. */
void cli_progress_prepare(struct cli_progress *progress, const char *phase, uint64_t done_bytes,
                          uint64_t total_bytes);
/* Prints a line above the progress line; `note` prints nothing when quiet, `tell` always prints. */
void cli_progress_note(struct cli_progress *progress, const char *line);
void cli_progress_tell(struct cli_progress *progress, const char *line);
/* Clears the progress line. Nothing is shown any more while ranks wait. */
void cli_progress_end(struct cli_progress *progress);
/* What long work reports to: shows phases and what is expected, and notes where verbose or has_notes. After a
 * signal (cli/terminal/interrupt.h) it asks the work to stop. Borrows `progress`. */
struct moec_progress cli_progress_observer(struct cli_progress *progress);

/* "42 s", "2 min 05 s", "3 h 10 min" */
void cli_duration_text(char text[static 24], double seconds);

/* How far a phase is, and for how long. */
struct cli_progress_point {
    double done, total;
    double job_seconds, phase_seconds; /* since the job and since the phase began */
};

/* What a line of `columns` shows of the state, for tests: at most columns - 1 bytes. */
void cli_progress_text(struct cli_progress *progress, struct cli_progress_point at, int columns, char *text,
                       size_t capacity);

#endif
