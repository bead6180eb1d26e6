/* How long work reports its progress to the caller, and is asked to stop.
 *
 * Amounts are passes: the multiply-adds of one full evaluation of the chosen windows, head included. Work of
 * several phases says what all that is still to come is expected to cost, so that a caller can tell how long
 * the whole takes. */
#ifndef MOEC_PROFILER_PROGRESS_H
#define MOEC_PROFILER_PROGRESS_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdio.h>

/* Called many times a second, always from the thread that started the work. `phase` is a static string. A
 * status other than MOEC_OK stops the work, which then fails with that status (MOEC_ERR_CANCELLED is the
 * usual one). */
typedef enum moec_status moec_pass_progress_fn(void *context, const char *phase, double done_passes,
                                               double total_passes);

struct moec_progress {
    moec_pass_progress_fn *report;                 /* may be NULL */
    void (*note)(void *context, const char *line); /* what a user should know, once; may be NULL */
    /* Passes expected from here to the end of the work; said again where they are known better. May be NULL
     */
    void (*expect)(void *context, double passes);
    void *context;
};

static inline enum moec_status moec_progress_report(const struct moec_progress *progress, const char *phase,
                                                    double done_passes, double total_passes,
                                                    struct moec_error *err)
{
    if (progress == NULL || progress->report == NULL)
        return MOEC_OK;
    enum moec_status status = progress->report(progress->context, phase, done_passes, total_passes);
    return status == MOEC_OK ? MOEC_OK
                             : moec_fail(err, status, "%s: stopped after %.1f of %.1f passes", phase,
                                         done_passes, total_passes);
}

static inline void moec_progress_expect(const struct moec_progress *progress, double passes)
{
    if (progress != NULL && progress->expect != NULL)
        progress->expect(progress->context, passes);
}

/* One line (at most 1023 bytes) for people, such as a choice made for them or a fallback taken. */
static inline void moec_progress_note(const struct moec_progress *progress, const char *format, ...)
    MOEC_PRINTF(2, 3);
static inline void moec_progress_note(const struct moec_progress *progress, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (progress == NULL || progress->note == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    progress->note(progress->context, line);
}

#endif
