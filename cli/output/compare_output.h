/* moec profile --compare: two profiles beside each other. */
#ifndef MOEC_CLI_COMPARE_OUTPUT_H
#define MOEC_CLI_COMPARE_OUTPUT_H

#include "cli/options/options.h"

/* Reads A (the option's value) and B (the positional argument), compares,
 * prints words or JSON and draws --plots. */
MOEC_WARN_UNUSED enum moec_status cli_compare_profiles(const struct cli_args *args, struct moec_error *err);

#endif
