/* Weights of HOBBIT's eviction (runtime/policy/evict/evict_hobbit.c), found on recorded routing: those with which
 * decoding loses the least by misses (arXiv:2411.01433, section 3.4: the weights that minimise the miss
 * penalty on a calibration data set). What a miss costs is the time that its record takes to be read, of the
 * high or the low copy, latency included, where times are known; else its bytes. Thread rule: one call at a
 * time; it parallelises inside, and results do not depend on that. */
#ifndef MOEC_PROFILER_SEARCH_EVICT_H
#define MOEC_PROFILER_SEARCH_EVICT_H

#include "profiler/simulate/simulated_run.h"

struct moec_found_weights {
    float weights[MOEC_EVICT_WEIGHTS];
    double hit_rate;                /* of the experts that routers asked for while decoding */
    uint64_t read_bytes;            /* while decoding */
    double lost_ns, lost_by_lru_ns; /* waited for misses while decoding: with them, and by recency alone */
};

/* Tries weights in steps of a fifth without predictions; of equals the first. Of the setup recording, model,
 * device and capacity_bytes count. `has_times`: the device's times count, else bytes. Where all records are
 * of high precision uses in it are all uses, and get no weight of their own. Errors: those of
 * moec_simulated_run. */
MOEC_WARN_UNUSED enum moec_status moec_search_evict(const struct moec_simulated_setup *setup, bool has_times,
                                                    int n_threads, struct moec_found_weights *out,
                                                    struct moec_error *err);

#endif
