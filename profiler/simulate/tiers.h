/* A sweep of simulated runs with three tiers (profiler/simulate/simulated_tiers.h): every mode with every
 * eviction at every size of the pool and of the buffer. Thread rule: one call at a time; it
 * parallelises inside, and results do not depend on that. */
#ifndef MOEC_PROFILER_TIERS_H
#define MOEC_PROFILER_TIERS_H

#include "profiler/simulate/simulate.h"
#include "profiler/simulate/simulated_tiers.h"

/* Sizes of a pool or of a buffer. */
struct moec_tiers_sizes {
    uint32_t n;
    uint64_t bytes[MOEC_SIMULATE_MAX_BUDGETS]; /* increasing */
};

struct moec_tiers_sweep {
    const struct moec_recording *recording;
    const struct moec_simulated_model *model;
    const struct moec_simulated_device *device;
    const struct moec_simulated_gpu *gpu;
    struct {
        uint32_t n;
        enum moec_tiers_mode all[MOEC_TIERS_MODES];
    } modes;
    struct moec_simulate_policies evict;
    struct {
        struct moec_tiers_sizes pool, buffer;
    } sizes;
    struct moec_tiers_preload preload; /* if MOEC_TIERS_PRELOAD is among the modes */
};

/* One run. The policy of modes that keep nothing, or everything, is the first one. */
struct moec_tiers_row {
    enum moec_tiers_mode mode;
    struct moec_evict_choice policy;
    uint64_t pool_bytes, buffer_bytes;
    struct moec_tiers_result result;
};

struct moec_tiers {
    struct moec_tiers_sweep sweep;
    uint32_t n;
    struct moec_tiers_row *rows; /* (n), owned: by buffer, pool, mode, policy */
};

/* Runs the sweep, whose data is borrowed until release. Errors: those of moec_simulated_tiers,
 * MOEC_ERR_CANCELLED. On failure `tiers` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_tiers_run(const struct moec_tiers_sweep *sweep, int n_threads,
                                                 moec_simulate_progress_fn *progress, void *context,
                                                 struct moec_tiers *tiers, struct moec_error *err);
void moec_tiers_release(struct moec_tiers *tiers);

#endif
