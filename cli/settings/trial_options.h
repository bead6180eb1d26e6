/* What verbs that certify on windows share: a bundle against its original, on parts of --data. Thread rule:
 * main thread. */
#ifndef MOEC_CLI_TRIAL_OPTIONS_H
#define MOEC_CLI_TRIAL_OPTIONS_H

#include "cli/settings/measure_options.h"
#include "cli/settings/part_windows.h"
#include "compiler/certify/trial.h"

/* How the measurements of these options are made, with a confidence of 95 % and no target yet. Borrows the
 * kernels. */
struct moec_trial_options cli_trial_options(const struct cli_measure_options *measure);

/* Refuses a command without --reference. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_need_reference(const struct cli_args *args, struct moec_error *err);

/* Both models on the windows; everything is borrowed. */
struct moec_trial_inputs cli_trial_inputs(const struct cli_part_windows *data,
                                          const struct moec_source *bundle,
                                          const struct moec_source *original);

#endif
