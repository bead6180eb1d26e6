/* `moec profile --sensitivity weights`: a first look at a checkpoint, from weights alone. */
#ifndef MOEC_CLI_PROFILE_WEIGHTS_H
#define MOEC_CLI_PROFILE_WEIGHTS_H

#include "cli/settings/measure_options.h"
#include "cli/terminal/progress_line.h"

/* Whether it is asked for. */
bool cli_profile_wants_weights(const struct cli_args *args);

/* Prints what each bitwidth does to the weights of experts, and draws what the options name. `show_bits` 0: the
 * lowest of `bits`. Errors: MOEC_ERR_USAGE for options that need data; those of
 * moec_weight_error_measure and of the files. */
MOEC_WARN_UNUSED enum moec_status cli_profile_weights(const struct cli_args *args,
                                                      const struct cli_measure_options *measure,
                                                      const struct cli_numbers *bits, uint32_t show_bits,
                                                      struct cli_progress *progress, struct moec_error *err);

#endif
