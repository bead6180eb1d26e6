#include "cli/terminal/floor_advice.h"

#include "cli/print/print.h"
#include "cli/terminal/terminal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What moec holds in memory beside moec-run, at least: libraries of profiles, policies and plots. Measured on
 * Debian 12 as 8.9 MiB. */
#define MOEC_BESIDE_RUN_BYTES ((uint64_t)7 << 20)
#define LEAST_TEXT_TOKENS     16 /* a context with room for less is no way out */

void cli_advise_floor(const struct cli_args *args, uint64_t budget_bytes, const struct moert_floor *floor)
{
    char value[24];
    if (floor->memory_bytes == 0)
        return;
    const uint64_t works_bytes = floor->memory_bytes + floor->start_bytes;
    const bool has_smaller =
        strcmp(args->program, "moec-run") != 0 && strcmp(args->command->name, "run") == 0;
    if (has_smaller && works_bytes <= budget_bytes + MOEC_BESIDE_RUN_BYTES) {
        cli_print(stderr, "moec-run, a smaller program that only runs bundles, fits into this memory:\n  ");
        cli_print_changed(stderr, args, "moec-run", "", "");
    } else if (floor->n_context_fits >= floor->n_prompt + LEAST_TEXT_TOKENS) {
        cli_print(stderr, "the longest context that fits has %" PRIu32 " tokens:\n  ", floor->n_context_fits);
        (void)snprintf(value, sizeof value, "%" PRIu32, floor->n_context_fits);
        cli_print_changed(stderr, args, args->program, "ctx", value);
    } else {
        cli_print(stderr, "this memory is enough%s:\n  ", has_smaller ? "; moec-run needs less" : "");
        cli_budget_text(value, works_bytes);
        cli_print_changed(stderr, args, args->program, "memory", value);
    }
    fputc('\n', stderr);
}
