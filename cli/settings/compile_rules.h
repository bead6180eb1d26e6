/* Which options of moec compile go together: what a preset stands for, and what a policy has no use for.
 * Checked before any work. Thread rule: pure functions. */
#ifndef MOEC_CLI_COMPILE_RULES_H
#define MOEC_CLI_COMPILE_RULES_H

#include "cli/options/options.h"

/* Gives `args` the options that --preset stands for. Errors: MOEC_ERR_USAGE for an option that says
 * otherwise.
 */
MOEC_WARN_UNUSED enum moec_status cli_compile_preset(struct cli_args *args, struct moec_error *err);

/* Errors: MOEC_ERR_USAGE naming an option that the policy, or a profile that is already made, ignores, and
 * what to do. */
MOEC_WARN_UNUSED enum moec_status cli_compile_check_used(const struct cli_args *args, const char *policy,
                                                         struct moec_error *err);

#endif
