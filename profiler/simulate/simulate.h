/* What any buffer, eviction and predictor would do on recorded routing, before anyone runs it: a sweep
 * of simulated runs (profiler/simulate/simulated_run.h) with Belady's bound beside them.
 *
 * Rates are of the experts that routers asked for while decoding. Thread rule: one call at a time; it
 * parallelises inside, and results do not depend on that. */
#ifndef MOEC_PROFILER_SIMULATE_H
#define MOEC_PROFILER_SIMULATE_H

#include "profiler/simulate/belady.h"
#include "profiler/simulate/search_evict.h"
#include "profiler/simulate/simulated_run.h"

#define MOEC_SIMULATE_MAX_POLICIES   12
#define MOEC_SIMULATE_MAX_PREDICTORS 8
#define MOEC_SIMULATE_MAX_BUDGETS    64

/* Eviction policies to compare. */
struct moec_simulate_policies {
    uint32_t n;
    struct moec_evict_choice all[MOEC_SIMULATE_MAX_POLICIES];
    const float *weights; /* of moec_evict_hobbit where its word has none; NULL: equal; borrowed */
    bool is_searched;     /* these weights are looked for too, at each budget */
};

struct moec_simulate_sweep {
    const struct moec_recording *recording;
    const struct moec_simulated_model *model;
    const struct moec_simulated_device *device;
    bool has_times; /* the device takes any */
    struct moec_simulate_policies evict;
    struct {
        uint32_t n_predictor;
        const struct moec_predict_ops *predictors[MOEC_SIMULATE_MAX_PREDICTORS];
        uint32_t count;                  /* 0: bounded by time, which needs a device */
        uint32_t ahead;                  /* of predictors by gates; 0 = 1 */
        struct moec_precision precision; /* of struct moec_simulated_preload */
    } preload;
    struct {
        uint32_t n;
        uint64_t bytes[MOEC_SIMULATE_MAX_BUDGETS]; /* of the expert buffer, increasing */
    } budgets;
};

#define MOEC_SIMULATE_CURVE 8

/* Hit rate of lru without predictions in buffers around one token's working set, increasing, and where it
 * rises fastest: from point `cliff` to the next. */
struct moec_simulate_lru {
    uint32_t n;
    uint64_t budgets[MOEC_SIMULATE_CURVE];
    double rates[MOEC_SIMULATE_CURVE];
    uint32_t cliff;
};

/* How soon experts are asked for again while decoding. */
struct moec_simulate_reuse {
    double next_token_share; /* of the experts that routers asked for: the token before had it too */
    uint64_t median_tokens;  /* between uses of one expert; those never asked for again are left out */
};

struct moec_simulation {
    struct moec_simulate_sweep sweep;
    struct moec_simulated_result *results; /* (n_predictor, n_policy, n_budget), owned */
    struct moec_belady *belady;            /* (n_budget), owned */
    struct moec_found_weights *found;      /* (n_budget), owned; NULL unless sweep.evict.is_searched */
    struct moec_simulate_lru lru;
    struct moec_simulate_reuse reuse;
};

/* Called after each finished run; a status other than MOEC_OK stops the sweep. */
typedef enum moec_status moec_simulate_progress_fn(void *context, uint64_t n_done, uint64_t n_all);

/* Runs the sweep, whose data is borrowed until release. Errors: those of moec_simulated_run, MOEC_ERR_USAGE
 * for predictors bounded by time without a device, MOEC_ERR_CANCELLED. On failure `simulation` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_simulate(const struct moec_simulate_sweep *sweep, int n_threads,
                                                moec_simulate_progress_fn *progress, void *context,
                                                struct moec_simulation *simulation, struct moec_error *err);
void moec_simulation_release(struct moec_simulation *simulation);

static inline const struct moec_simulated_result *moec_simulation_at(const struct moec_simulation *simulation,
                                                                     uint32_t predictor, uint32_t policy,
                                                                     uint32_t budget)
{
    return &simulation->results[((size_t)predictor * simulation->sweep.evict.n + policy) *
                                    simulation->sweep.budgets.n +
                                budget];
}

/* Hits as a share of what was asked for, 0..1; NaN when nothing was. Experts that were on their way count as
 * hits where `with_late`. */
double moec_simulated_hit_rate(const struct moec_simulated_counts *counts, bool with_late);

#endif
