/* What a simulation found, in words. Thread rule: pure function. */
#ifndef MOEC_PROFILER_SIMULATE_TEXT_H
#define MOEC_PROFILER_SIMULATE_TEXT_H

#include "profiler/common/paragraphs.h"
#include "profiler/simulate/simulate.h"

/* What to take of all that was simulated: a paragraph for a buffer of a quarter of the experts, one for its
 * least size. None where nothing was decoded. */
void moec_simulation_answer(const struct moec_simulation *simulation, struct moec_paragraphs *paragraphs);

/* The working set of a token and LRU's cliff; how experts repeat; which policy is best and what is left to
 * gain; what predictions add; times. */
void moec_simulation_describe(const struct moec_simulation *simulation, struct moec_paragraphs *paragraphs);

/* Policy with the highest mean hit rate over all budgets (late ones count), and that mean. */
uint32_t moec_simulation_best_policy(const struct moec_simulation *simulation, uint32_t predictor,
                                     double *mean_rate);

#endif
