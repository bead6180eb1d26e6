/* What the fixed sequence of a certificate proved, as moec tune and moec sparsify show it. Thread rule: main
 * thread. */
#ifndef MOEC_CLI_SEQUENCE_OUTPUT_H
#define MOEC_CLI_SEQUENCE_OUTPUT_H

#include "formats/bundle/bundle.h"

/* The certainty, in percent, of a certificate's interval, each end of which has its confidence; 90 where it promises
 * nothing. */
double cli_interval_percent(const struct moec_certificate *certificate);

/* Indented lines: which of the tested ones, a "plan" or "setting", is the last proven and what the next could
 * lose. is_reused: the bundle's own loss was certified on the same windows. */
void cli_print_sequence(const struct moec_certificate *certificate, const char *what, bool is_reused);

#endif
