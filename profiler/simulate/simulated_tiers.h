/* Simulated runs with three tiers: a pool of experts in a GPU's memory over a buffer in pinned memory over
 * storage, as runtime/cuda/gpu_experts.h has them, and the ways in which others hand experts to a GPU, which
 * the evaluations of HOBBIT, Fate and FloE compare with.
 *
 * Pool and buffer are two residencies of the runtime's policy code, asked in the runtime's order: the buffer
 * hears only of what the pool misses. The pool starts empty, the buffer with the likeliest experts. Copies
 * pass the bus one after the other; what is demanded goes before guesses that have not begun, and these are
 * taken back when the router has answered without them. The device computes experts in the order of
 * runtime/policy/schedule/read_order.h.
 *
 * Where records have one size, hits and misses without guesses are those of a run on the same routing;
 * records of several sizes may leave gaps in a real pool that are not counted here. Thread rule: as
 * profiler/simulate/simulated_run.h. */
#ifndef MOEC_PROFILER_SIMULATED_TIERS_H
#define MOEC_PROFILER_SIMULATED_TIERS_H

#include "profiler/simulate/simulated_run.h"

enum moec_tiers_mode {
    MOEC_TIERS_ON_DEMAND,   /* copied when the router asks, and not kept */
    MOEC_TIERS_LAYER_WISE,  /* all of the next layer are copied while this one computes, and none is kept */
    MOEC_TIERS_CACHE,       /* copied when the router asks, and kept by the eviction */
    MOEC_TIERS_PRELOAD,     /* the same, and the next layer's predicted experts are copied ahead */
    MOEC_TIERS_COOPERATIVE, /* as CACHE, but what the processor would be done with earlier is computed there
                             */
    MOEC_TIERS_RESIDENT,    /* all in the device's memory */
    MOEC_TIERS_MODES,
};

/* "on-demand", .. in that order, and what compares with it in the three papers' evaluations. */
const char *moec_tiers_mode_name(enum moec_tiers_mode mode);
const char *moec_tiers_mode_words(enum moec_tiers_mode mode);
/* Errors: MOEC_ERR_USAGE for a name that there is not. */
MOEC_WARN_UNUSED enum moec_status moec_tiers_mode_find(const char *name, enum moec_tiers_mode *mode,
                                                       struct moec_error *err);

/* The device's part of the clock; storage and the processor are a struct moec_simulated_device. Arrays are
 * owned. */
struct moec_simulated_gpu {
    double *copy_ns;        /* (S, E): of a record from pinned memory */
    double *compute_ns;     /* (S, E): the expert for one token */
    double gap_ns;          /* before each MoE layer's answer, and after the last: the rest of a token */
    double ns_per_position; /* of a token, for each token of the context */
    double answer_ns;       /* more for each layer whose experts the processor computes too */
};

/* Times of a described device. Errors: MOEC_ERR_USAGE where it has no section of a GPU, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_gpu_make(const struct moec_gpu_description *gpu,
                                                          const struct moec_simulated_model *model,
                                                          const struct moec_simulated_model *described,
                                                          struct moec_simulated_gpu *out,
                                                          struct moec_error *err);
void moec_simulated_gpu_release(struct moec_simulated_gpu *gpu);

/* Of MOEC_TIERS_PRELOAD. */
struct moec_tiers_preload {
    const struct moec_predict_ops *predictor;
    uint32_t count; /* guesses a layer; 0: the model's top-k */
};

struct moec_simulated_tiers_setup {
    const struct moec_recording *recording;
    const struct moec_simulated_model *model;
    const struct moec_simulated_device *device; /* storage, and the processor's experts */
    const struct moec_simulated_gpu *gpu;
    enum moec_tiers_mode mode;
    struct {
        uint64_t pool_bytes, buffer_bytes; /* each at least the largest slot */
    } room;
    struct moec_simulated_evict evict; /* of both */
    struct moec_tiers_preload preload;
};

struct moec_tiers_counts {
    uint64_t asked; /* experts of all answers: those that follow together, but for `computed_there` */
    uint64_t hits, late, misses; /* of the pool */
    uint64_t buffer_hits;        /* of the misses: in pinned memory, or on their way there */
    uint64_t computed_there;     /* of the misses: by the processor */
    uint64_t prefetches, useful; /* that were copied or begun, and those of them that were asked for */
    uint64_t copied_bytes, read_bytes;
    double stall_ns;   /* the device waited */
    double compute_ns; /* of the device */
};

struct moec_tiers_result {
    struct moec_tiers_counts prefill, decode;
    double tpot_ns_median, tpot_ns_p95, tpot_ns_mean; /* decode steps; NaN when there are none */
    /* max(computing, copied bytes over the bus, read bytes from storage) of the decode steps, a token: what
     * no order of the same work can be faster than. NaN likewise. */
    double floor_ns;
};

/* Runs it. Errors: MOEC_ERR_BUDGET for a pool or buffer under the largest slot, MOEC_ERR_USAGE for a
 * predictor that the recording cannot feed, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_tiers(const struct moec_simulated_tiers_setup *setup,
                                                       struct moec_tiers_result *result,
                                                       struct moec_error *err);

#endif
