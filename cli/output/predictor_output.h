/* How well predictors name the experts of the next layer, as moec predict shows it. Thread rule: main thread.
 */
#ifndef MOEC_CLI_PREDICTOR_OUTPUT_H
#define MOEC_CLI_PREDICTOR_OUTPUT_H

#include "formats/json/json_write.h"
#include "profiler/routing/neuron_study.h"
#include "profiler/routing/predictor_study.h"

/* The table: recall and precision of each predictor at each width, with intervals. */
void cli_print_predictors(const struct moec_predictor_study *study);
/* What comes of it: whether what was learned names more than the next layer's router does. Nothing without a
 * learned predictor. */
void cli_print_predictor_verdict(const struct moec_predictor_study *study);

/* The same with figures of each layer. */
struct moec_json_out *cli_json_predictors(const struct moec_predictor_study *study,
                                          const struct moec_config *config);

/* How many active neurons of the next layer's experts this layer's input names. Nothing of an empty study. */
void cli_print_neurons(const struct moec_neuron_study *study);
struct moec_json_out *cli_json_neurons(const struct moec_neuron_study *study);

#endif
