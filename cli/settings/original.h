/* The original of a bundle, for verbs that measure losses against it. Thread rule: one thread, parallel
 * inside. */
#ifndef MOEC_CLI_ORIGINAL_H
#define MOEC_CLI_ORIGINAL_H

#include "cli/settings/measure_options.h"
#include "profiler/evaluate/source.h"

/* Opens the checkpoint that a bundle was compiled from: losses against another model would promise nothing.
 * Errors: MOEC_ERR_USAGE for a bundle, MOEC_ERR_MISMATCH for another checkpoint; those of moec_source_open.
 * To be closed after an error too. */
MOEC_WARN_UNUSED enum moec_status cli_open_original(const struct cli_measure_options *measure,
                                                    const struct moec_source *bundle, const char *path,
                                                    struct moec_source *original, struct moec_error *err);

#endif
