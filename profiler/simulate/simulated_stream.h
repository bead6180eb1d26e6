/* A simulated run of the mode that reads every expert of every layer in order
 * (runtime/experts/expert_stream.h; STI), into a ring of the buffer's size.
 * Thread rule: as profiler/simulate/simulated_run.h. */
#ifndef MOEC_PROFILER_SIMULATED_STREAM_H
#define MOEC_PROFILER_SIMULATED_STREAM_H

#include "profiler/simulate/simulated_run.h"

/* Policy, predictor and the other choices of `setup` mean nothing here. Records that were there when their
 * router answered are hits, those that were being read late, the others misses; what is read and not needed
 * counts as wasted. Errors: MOEC_ERR_BUDGET for a buffer under the largest slot, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_stream(const struct moec_simulated_setup *setup,
                                                        struct moec_simulated_result *result,
                                                        struct moec_error *err);

/* Times of decode steps (n in step_ns, sorted by it; scratch (n)) as a result has them (internal to the
 * simulated_*.c files). */
void moec_simulated_set_times(float *step_ns, float *scratch, uint64_t n,
                              struct moec_simulated_result *result);

#endif
