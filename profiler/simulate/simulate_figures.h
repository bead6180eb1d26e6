/* Plots of a simulation: hit rate and time of a token against the buffer, one chart a predictor with a line a
 * policy, and one with a line a predictor. Thread rule: plain data. */
#ifndef MOEC_PROFILER_SIMULATE_FIGURES_H
#define MOEC_PROFILER_SIMULATE_FIGURES_H

#include "profiler/report/figures.h"
#include "profiler/simulate/simulate.h"

/* `source`: the file of the routing, for people. Released by the caller (moec_figures_release). */
MOEC_WARN_UNUSED enum moec_status moec_simulate_figures(const struct moec_simulation *simulation,
                                                        const char *source, struct moec_figures *figures,
                                                        struct moec_error *err);

#endif
