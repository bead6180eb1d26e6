/* Routing of a model on windows: which experts every token chose, with what weight, in every MoE layer.
 *
 * T tokens of all windows (last ones too, but for those of an encoder-decoder model), S MoE layers, E
 * experts, k top-k. A token has MOEC_PROFILE_NO_EXPERT in layers of the stack that does not read it and where
 * its expert was full. Gate weights are kept as F16 (relative error 2^-11), means are computed from the F32
 * weights, as sums of windows' sums. Thread rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_ROUTING_H
#define MOEC_PROFILER_ROUTING_H

#include "profiler/common/progress.h"
#include "profiler/evaluate/rank_windows.h"
#include "profiler/routing/router_study.h"
#include "runtime/forward/pass/forward.h"

/* The caller's arrays and results. */
struct moec_routing {
    uint16_t *experts;                   /* (T, S, k): in order of weight */
    uint16_t *weights;                   /* (T, S, k): F16 bits */
    uint64_t *activations;               /* (S, E): tokens that chose the expert */
    double *mean_gate_weight;            /* (S, E): over those tokens; 0 when none */
    struct moec_router_results *results; /* what else is to be measured, made by the caller; NULL = nothing */
    /* Set where not NULL, and then the caller's: the final hidden states of whole windows, those of sources
     * first; of this rank's windows alone. */
    struct moec_states *hidden;
    uint64_t multiply_adds;   /* set: all that was done, by all ranks */
    struct moec_ranks *ranks; /* that share the windows and call together; borrowed, NULL = none do */
};

/* A model, and what runs it. Borrowed. */
struct moec_runner {
    const struct moec_model *model;
    struct moec_experts *experts;
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
};

/* Runs the windows through all layers (not the head) with whatever the experts answer. Errors: those of the
 * expert source, MOEC_ERR_FORMAT when gate weights are not finite, what `progress` (may be NULL) answers. */
MOEC_WARN_UNUSED enum moec_status
moec_routing_run(const struct moec_runner *runner, const struct moec_windows *windows,
                 struct moec_routing *routing, const struct moec_progress *progress, struct moec_error *err);

#endif
