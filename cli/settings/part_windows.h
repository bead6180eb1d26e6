/* The windows with parts that moec compile draws from the same options, for verbs that work on a bundle: what
 * feeds the search of one feeds that of the other, and what certified stays unseen. Thread rule: one thread,
 * parallel inside. */
#ifndef MOEC_CLI_PART_WINDOWS_H
#define MOEC_CLI_PART_WINDOWS_H

#include "cli/settings/measure_options.h"
#include "profiler/evaluate/source.h"
#include "profiler/evaluate/windows.h"
#include "runtime/text/tokenizer.h"

struct cli_part_windows {
    struct moec_tokenizer *tokenizer; /* owned, as all of it */
    struct moec_rows rows;            /* their texts are dropped */
    struct moec_windows windows;      /* of all parts */
};

/* `measure->data` read by the source's tokenizer; `purpose` names in a message what does not go with the
 * task. Release it after an error too. Errors: MOEC_ERR_UNSUPPORTED without a tokenizer, MOEC_ERR_LIMIT where
 * --seq-len is beyond the model's positions; those of rows and windows. */
MOEC_WARN_UNUSED enum moec_status cli_part_windows_make(const struct cli_measure_options *measure,
                                                        const struct moec_source *source, const char *purpose,
                                                        struct cli_part_windows *out, struct moec_error *err);
/* The same without parts: measure->n_sample windows of it at most, 0 = all. Errors likewise. */
MOEC_WARN_UNUSED enum moec_status cli_whole_windows_make(const struct cli_measure_options *measure,
                                                         const struct moec_source *source,
                                                         const char *purpose, struct cli_part_windows *out,
                                                         struct moec_error *err);
void cli_part_windows_release(struct cli_part_windows *made);

#endif
