/* The profiling job that verbs share: `profile` writes its result, `compile --data` uses it. */
#ifndef MOEC_CLI_RUN_PROFILE_H
#define MOEC_CLI_RUN_PROFILE_H

#include "cli/settings/measure_options.h"
#include "cli/terminal/progress_line.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/profile/profile.h"
#include "profiler/profile/profile_run.h"

/* Runs moec_profile_run with progress. `profile` is released by the caller. */
MOEC_WARN_UNUSED enum moec_status cli_run_profile(struct moec_checkpoint *checkpoint,
                                                  const struct cli_measure_options *measure,
                                                  const struct cli_numbers *bits,
                                                  struct cli_progress *progress, struct moec_profile *profile,
                                                  struct moec_error *err);

/* What that would take. */
MOEC_WARN_UNUSED enum moec_status
cli_estimate_profile(struct moec_checkpoint *checkpoint, const struct cli_measure_options *measure,
                     const struct cli_numbers *bits, struct cli_progress *progress,
                     struct moec_profile_forecast *forecast, struct moec_error *err);

/* The windows of each part that it would draw. */
MOEC_WARN_UNUSED enum moec_status
cli_count_parts(struct moec_checkpoint *checkpoint, const struct cli_measure_options *measure,
                const struct cli_numbers *bits, struct cli_progress *progress,
                uint32_t n_part[static MOEC_PART_COUNT], struct moec_error *err);

/* Last part of a path, without trailing slashes, printable. */
void cli_base_name(const char *path, char *name, size_t capacity);

#endif
