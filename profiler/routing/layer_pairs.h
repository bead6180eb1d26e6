/* Neighbouring MoE layers of one sweep: what each layer's router read and chose for all tokens of the
 * windows, beside what the layer before it read and chose. Predictors of the next layer learn and are judged
 * on that.
 *
 * Letters: T tokens that the layer's stack reads, k top-k. Memory: the inputs of two layers, the choices of
 * three. Thread rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_LAYER_PAIRS_H
#define MOEC_PROFILER_LAYER_PAIRS_H

#include "profiler/evaluate/sweep.h"
#include "runtime/forward/pass/forward.h"

/* One MoE layer. */
struct moec_layer_side {
    uint32_t ordinal;  /* MoE ordinal */
    uint32_t n_token;  /* T, in the order of the windows */
    float *inputs;     /* (T, stride): of the router, or of the experts; zeros from n_embd on */
    uint32_t *experts; /* (T, k): as the router answered */
    float *weights;    /* (T, k): as applied; 0 of a choice that asks for no expert */
};

struct moec_layer_pair {
    const struct moec_forward *forward; /* between two batches */
    const struct moec_windows *windows; /* those that were run */
    const struct moec_layer_side *from, *to;
    const struct moec_layer_side
        *before;   /* the layer before `from`, its inputs gone; NULL in a stack's first */
    size_t stride; /* floats of a row of inputs */
};

struct moec_layer_pairs_hooks {
    /* All tokens have passed both layers. Errors stop the sweep. */
    enum moec_status (*pair)(void *context, const struct moec_layer_pair *pair, struct moec_error *err);
    /* Called with the share of the sweep that is done; other than MOEC_OK stops. NULL allowed. */
    enum moec_status (*worked)(void *context, double share, struct moec_error *err);
    void *context;
};

struct moec_layer_pairs_job {
    struct moec_swept of;
    const struct moec_kernels *kernels;
    int n_threads;       /* as moec_pool_make */
    uint32_t n_spare;    /* floats behind the inputs of a token that the caller may fill */
    bool of_experts;     /* inputs are those of the experts, where the router reads another */
    uint64_t work_bytes; /* of what is kept; windows beyond are left out; 0 = no bound */
    struct moec_layer_pairs_hooks hooks;
};

/* Tokens of windows first .. first + n - 1 that a stack reads: where in T window `first + n` begins. */
uint32_t moec_layer_pairs_tokens(const struct moec_windows *windows, enum moec_stack stack, uint32_t first,
                                 uint32_t n);

/* Whether a choice asks for an expert. */
static inline bool moec_layer_side_chose(const struct moec_layer_side *side, size_t choice, uint32_t n_expert)
{
    return side->experts[choice] < n_expert && side->weights[choice] != 0;
}

/* Errors: MOEC_ERR_UNSUPPORTED where no stack has two MoE layers, MOEC_ERR_BUDGET where the memory has not
 * room for two windows, those of the expert source, of sweeps and of the job's functions. */
MOEC_WARN_UNUSED enum moec_status moec_layer_pairs_run(const struct moec_layer_pairs_job *job,
                                                       struct moec_error *err);

#endif
