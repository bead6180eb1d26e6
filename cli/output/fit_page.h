/* The page of a fit (moec fit --report): one self-contained HTML file, text first.
 *
 * What was written and what it promises, the curve of time (or bytes) against loss of everything that was measured,
 * the tests, what the bundle would take elsewhere and without one of its decisions, every candidate, settings.
 * Pictures are data, there are no scripts, all text from files is escaped. Equal fits give equal bytes: no times of
 * the work, no paths of other files. Thread rule: main thread. */
#ifndef MOEC_CLI_FIT_PAGE_H
#define MOEC_CLI_FIT_PAGE_H

#include "cli/output/fit_output.h"

/* Everything is borrowed. */
struct cli_fit_page {
    const struct cli_fit_result *result; /* after a failure only its report, which has what was measured */
    const char *model;                   /* the checkpoint as it is named in bundles */
    const char *data;                    /* the text likewise */
    double max_loss, confidence;         /* as asked: 0.02 is 2 % */
    const char *failure;                 /* why nothing was written; NULL: there is a bundle */
};

/* Writes the page whole or not at all. Errors: MOEC_ERR_IO, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status cli_fit_page_write(const struct cli_fit_page *page, const char *path,
                                                     struct moec_error *err);

#endif
