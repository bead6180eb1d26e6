/* What `moec simulate` prints. */
#ifndef MOEC_CLI_SIMULATE_OUTPUT_H
#define MOEC_CLI_SIMULATE_OUTPUT_H

#include "profiler/common/paragraphs.h"
#include "profiler/simulate/agreement.h"
#include "profiler/simulate/simulate.h"

/* Tables of hit rates (and times) by budget and policy, one for each predictor; every count for a single
 * pair. `note` says what was left out, "" = nothing; `decided` what the recording is of,
 * NULL = of what ran. */
void cli_print_simulation(const struct moec_simulation *simulation, const char *source,
                          const struct moec_paragraphs *text, const char *note,
                          const struct moec_simulated_decisions *decided);

MOEC_WARN_UNUSED enum moec_status
cli_print_simulation_json(const struct moec_simulation *simulation, const char *source,
                          const struct moec_paragraphs *text, const char *note,
                          const struct moec_simulated_decisions *decided, struct moec_error *err);

/* Rows of a bench, or a run, beside the simulator's predictions, as a table or as JSON; where they decide,
 * what tokens took too. */
void cli_print_agreement(const struct moec_agreement *agreement, bool decides);
MOEC_WARN_UNUSED enum moec_status cli_print_agreement_json(const struct moec_agreement *agreement,
                                                           bool decides, struct moec_error *err);

#endif
