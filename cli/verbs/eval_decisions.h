/* Decisions about each token in moec eval: settings of the options or of the bundle, and what came of them,
 * for windows of text and for rows. */
#ifndef MOEC_CLI_EVAL_DECISIONS_H
#define MOEC_CLI_EVAL_DECISIONS_H

#include "cli/options/options.h"
#include "cli/terminal/json_output.h"
#include "formats/model/decision_settings.h"
#include "profiler/evaluate/cache_replay.h"
#include "profiler/evaluate/source.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/moert.h"
#include "runtime/policy/decide/route_state.h"

struct cli_eval_decisions {
    const struct cli_args *args;      /* borrowed, */
    const struct moec_source *source; /* as this */
    struct moec_route route;
    struct moec_decision_settings tuned; /* the bundle's, where they are in use; else all zero */
    uint32_t n_prompt;                   /* tokens of a window that are a prompt's; rows have their own */
    enum moec_arithmetic arithmetic;     /* asked for, or certified */
    enum moec_arithmetic meant;          /* the same before a device was found missing */
};

/* What is asked for, or without that the bundle; lets the source serve low copies where they are taken.
 * Errors: MOEC_ERR_USAGE for options that do nothing and for settings that do not fit the model; those of
 * moec_source_serve_low. */
MOEC_WARN_UNUSED enum moec_status cli_eval_decisions_read(const struct cli_args *args,
                                                          const struct moert_decisions *asked,
                                                          struct moec_source *source, bool is_rows,
                                                          struct cli_eval_decisions *own,
                                                          struct moec_error *err);
/* Whether they are the bundle's settings. */
bool cli_eval_are_tuned(const struct cli_eval_decisions *own);
/* From now on the arithmetic is this certificate's, unless options name one. NULL = there is none. */
void cli_eval_take_certificate(struct cli_eval_decisions *own, const struct moec_certificate *certificate);
/* Words of them; NULL = none. */
const char *cli_eval_precision(const struct cli_eval_decisions *own);
const char *cli_eval_prefill(const struct cli_eval_decisions *own);

/* What was decided, where something was. `replayed` NULL: not counted. */
void cli_eval_json_decisions(const struct cli_eval_decisions *own, const struct moec_route_counts *counts,
                             const struct moec_cache_replay_counts *replayed, struct moec_json_out *root);
void cli_eval_print_decisions(const struct cli_eval_decisions *own, const struct moec_route_counts *counts,
                              const struct moec_cache_replay_counts *replayed);

#endif
