#include "cli/output/sequence_output.h"

#include "cli/print/print.h"

#include <inttypes.h>
#include <stdio.h>

double cli_interval_percent(const struct moec_certificate *certificate)
{
    return certificate->confidence > 0 ? 100 * (2 * certificate->confidence - 1) : 90;
}

void cli_print_sequence(const struct moec_certificate *certificate, const char *what, bool is_reused)
{
    uint32_t n_passed = 0;
    char next[48] = "";
    while (n_passed < certificate->n_sequence &&
           certificate->sequence[n_passed].result == MOEC_SEQUENCE_PASSED)
        n_passed++;
    if (n_passed < certificate->n_sequence)
        (void)snprintf(next, sizeof next, "; the next could lose up to %.3f%%",
                       100 * certificate->sequence[n_passed].high);
    cli_print_wrapped(
        stdout, 13,
        "             %s %" PRIu32 " of %" PRIu32
        " (counted from the safest) is the last proven to stay within the limit, with %g%% confidence%s\n",
        what, n_passed, certificate->n_sequence, 100 * certificate->confidence, next);
    if (is_reused)
        cli_print_wrapped(
            stdout, 13,
            "             the bundle's own loss limit was certified on the same windows: each of the two "
            "promises holds with its confidence, but not both at once (--seed draws other windows)\n");
}
