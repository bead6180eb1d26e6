/* The way out of a budget that is too small: the same command line as it would work. moec-run prints it too,
 * so it stands on libmoert alone. Thread rule: main thread. */
#ifndef MOEC_CLI_FLOOR_ADVICE_H
#define MOEC_CLI_FLOOR_ADVICE_H

#include "cli/options/options.h"
#include "runtime/moert.h"

/* After MOEC_ERR_BUDGET with a budget that was refused as below this floor: prints to stderr one line of what
 * would fit and one that can be typed. Of a smaller program, a shorter context and more memory it is the
 * first that works. Nothing where another budget was refused (the floor's memory_bytes is 0). */
void cli_advise_floor(const struct cli_args *args, uint64_t budget_bytes, const struct moert_floor *floor);

#endif
