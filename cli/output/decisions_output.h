/* A bundle's settings of decisions and what is promised of them, as moec tune and inspect show them. Thread
 * rule: main thread. */
#ifndef MOEC_CLI_DECISIONS_OUTPUT_H
#define MOEC_CLI_DECISIONS_OUTPUT_H

#include "formats/bundle/bundle_decisions.h"
#include "formats/json/json_write.h"

/* Members route, precision, slots and so on; words that are not there are null. */
void cli_json_settings(struct moec_json_out *node, const struct moec_decision_settings *settings);
/* Settings, certificate, and what the bundle reads and loses with and without them. */
struct moec_json_out *cli_json_decisions(const struct moec_bundle_decisions *decisions);
/* Indented lines. */
void cli_print_decisions(const struct moec_bundle_decisions *decisions);

#endif
