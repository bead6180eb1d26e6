/* One simulated run: a recording runs against one buffer, one policy and one predictor, through the very code
 * that decides in the runtime (residency.h and preload.h of runtime/policy/schedule), on the clock of a
 * simulated device.
 *
 * Without time-bounded preloads no decision looks at the clock: hits, misses and evictions are those of a run
 * with the same routing, exactly; with a preload count hits and late ones together are. Thread rule: replays
 * share their setup's data, which nobody changes, and run on any number of threads. */
#ifndef MOEC_PROFILER_SIMULATED_RUN_H
#define MOEC_PROFILER_SIMULATED_RUN_H

#include "profiler/simulate/simulated_device.h"
#include "profiler/simulate/simulated_model.h"
#include "runtime/policy/decide/precision.h"
#include "runtime/policy/evict/evict.h"
#include "runtime/policy/predict/predict.h"

/* The buffer that experts are kept in. */
struct moec_simulated_buffer {
    uint64_t capacity_bytes; /* at least the model's slots.largest_bytes */
    uint64_t low_pool_bytes; /* of it, where the model has pools; 0: as the runtime divides it */
    bool keeps_nothing;      /* a record goes when it has been computed with (--mode io-exp) */
    bool is_cold;            /* it is empty at first */
};

/* Which expert goes when the buffer is full. */
struct moec_simulated_evict {
    const struct moec_evict_ops *policy;
    const float *weights; /* of struct moec_evict_setup; NULL: the policy's; borrowed */
    uint32_t n_shallow;   /* of fate; 0: the model's */
};

/* What is read before it is asked for. */
struct moec_simulated_preload {
    const struct moec_predict_ops *predictor;
    uint32_t count;                  /* 0: bounded by time */
    uint32_t ahead;                  /* layers that are predicted, at most; 0 = 1 */
    struct moec_precision precision; /* by which a guess is of the high copy or of the low one */
    bool reads_on; /* for prompts (runtime/policy/schedule/prompt_prefetch.h), as modes of any policy do */
};

struct moec_simulated_setup {
    const struct moec_recording *recording;
    const struct moec_simulated_model *model;
    const struct moec_simulated_device *device;
    struct moec_simulated_buffer buffer;
    struct moec_simulated_evict evict;
    struct moec_simulated_preload preload;
};

struct moec_simulated_counts {
    uint64_t asked; /* experts of all answers: hits, late and misses together */
    uint64_t hits, late, misses;
    uint64_t evictions;
    uint64_t preloads;   /* guesses that were given room */
    uint64_t useful;     /* of those: asked for before they were given up */
    uint64_t wasted;     /* given up before they were asked for */
    uint64_t read_bytes; /* of all reads that began */
    double stall_ns;     /* the computing thread waited for storage and checked what came */
    double compute_ns;
};

struct moec_simulated_result {
    struct moec_simulated_counts prefill, decode;
    double lifetime_tokens; /* mean time that evicted records had been in the buffer; NaN when none were */
    double tpot_ns_median, tpot_ns_p95, tpot_ns_mean; /* decode steps; NaN when there are none */
};

/* Runs it. `layers` (S) gets the counts of both phases by layer, NULL = not wanted. Errors: MOEC_ERR_BUDGET
 * for a buffer under the largest slot, MOEC_ERR_USAGE for a predictor
 * that the recording cannot feed, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_run(const struct moec_simulated_setup *setup,
                                                     struct moec_simulated_result *result,
                                                     struct moec_simulated_counts *layers,
                                                     struct moec_error *err);

/* Whether the recording and the model have what a predictor needs, for one layer ahead. */
bool moec_simulated_can_predict(const struct moec_recording *recording,
                                const struct moec_simulated_model *model,
                                const struct moec_predict_ops *predictor);

/* Keys that a buffer of this capacity is filled with before the first token: keys (S * E) receives them. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_warm_keys(const struct moec_simulated_model *model,
                                                           uint64_t capacity_bytes, uint32_t *keys,
                                                           uint32_t *n, struct moec_error *err);

#endif
