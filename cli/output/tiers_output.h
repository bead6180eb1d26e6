/* What `moec simulate --vram` prints. */
#ifndef MOEC_CLI_TIERS_OUTPUT_H
#define MOEC_CLI_TIERS_OUTPUT_H

#include "profiler/simulate/tiers.h"

/* A table for each size of the buffer, a row a mode; `gpu` names the device. `note` says what was left out,
 * "" = nothing. */
void cli_print_tiers(const struct moec_tiers *tiers, const char *source, const char *gpu, const char *note);

MOEC_WARN_UNUSED enum moec_status cli_print_tiers_json(const struct moec_tiers *tiers, const char *source,
                                                       const char *gpu, const char *note,
                                                       struct moec_error *err);

#endif
