/* Weights of HOBBIT's eviction (runtime/policy/evict_hobbit.c), tuned on recorded routing: those with which
 * the fewest bytes are read while decoding (arXiv:2411.01433, section 3.4: the weights that minimise the miss
 * penalty on a calibration data set). Thread rule: one call at a time; it parallelises inside, and results do
 * not depend on that. */
#ifndef MOEC_PROFILER_TUNE_EVICT_H
#define MOEC_PROFILER_TUNE_EVICT_H

#include "profiler/simulate/simulated_run.h"

struct moec_tuned_evict {
    float weights[MOEC_EVICT_WEIGHTS];
    double hit_rate;     /* of the experts that routers asked for while decoding */
    uint64_t read_bytes; /* while decoding */
};

/* Tries weights in steps of a fifth for a buffer of capacity_bytes, without predictions; of equals the first.
 * A recording has one precision, so uses in high precision, which are all uses, get none. Errors: those of
 * moec_simulated_run. */
MOEC_WARN_UNUSED enum moec_status moec_tune_evict(const struct moec_recording *recording,
                                                  const struct moec_simulated_model *model,
                                                  const struct moec_simulated_device *device,
                                                  uint64_t capacity_bytes, int n_threads,
                                                  struct moec_tuned_evict *out, struct moec_error *err);

#endif
