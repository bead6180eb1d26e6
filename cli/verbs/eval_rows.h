/* `moec eval` on tasks whose rows are scored one by one: summaries, answers, choices. */
#ifndef MOEC_CLI_EVAL_ROWS_H
#define MOEC_CLI_EVAL_ROWS_H

#include "cli/settings/measure_options.h"
#include "cli/terminal/progress_line.h"
#include "cli/verbs/eval_decisions.h"
#include "profiler/evaluate/source.h"

/* Scores the model with these decisions, and the one of --reference where it is given, and prints the result.
 */
MOEC_WARN_UNUSED enum moec_status cli_eval_rows(const struct cli_args *args,
                                                const struct cli_measure_options *measure,
                                                const struct moec_source *source,
                                                const struct cli_eval_decisions *decisions,
                                                struct cli_progress *progress, struct moec_error *err);

#endif
