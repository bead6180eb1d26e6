/* How --work-memory is divided while a checkpoint is profiled or compiled.
 *
 * The process stays within work_bytes and the weights of the largest layer, whatever the model: the layer is
 * for the expert variants of the layer at work, so that a sweep over the weights encodes each expert once for
 * all batches of windows; the rest is for everything else. In order: what must be there (the process itself,
 * results, buffers), dense weights (all, or those of a layer at a time), activations of a batch, then
 * variants, hidden states of the windows and the rows of an exact sensitivity sweep share what is left.
 * States that do not fit spill (profiler/evaluate/states.h); sweeps work in groups of windows. Small models
 * have everything at once.
 *
 * No result depends on the plan. Thread rule: a pure function. */
#ifndef MOEC_PROFILER_WORK_PLAN_H
#define MOEC_PROFILER_WORK_PLAN_H

#include "formats/checkpoint/checkpoint.h"
#include "profiler/evaluate/windows.h"
#include "runtime/kernels/arithmetic.h"

/* What the process has, and what a job takes beside evaluations. */
struct moec_work_bytes {
    uint64_t work;     /* --work-memory */
    uint64_t base;     /* resident size of the process now */
    uint64_t result;   /* what the job fills while it runs */
    uint64_t exchange; /* what ranks tell each other (moec_ranks_buffer_bytes); 0 of a process alone */
};

/* What a job evaluates. */
struct moec_work_evaluations {
    uint32_t dense_bits;
    uint32_t n_models;    /* dense weights at once: 1, or 2 where the original's are compared with others */
    uint32_t n_passes;    /* forward passes with scratch of their own at once */
    uint32_t n_states;    /* hidden states of all windows at once */
    uint32_t n_reference; /* scorers that would rather keep the reference's probabilities */
    bool traces;          /* what layers do is traced, with the outputs of each rank */
    bool sweeps;          /* exact sensitivities are measured */
    enum moec_arithmetic arithmetic; /* of n_arithmetic of the passes; the others are canonical */
    uint32_t n_arithmetic;
};

struct moec_work_request {
    const struct moec_checkpoint *checkpoint;
    const struct moec_windows *windows; /* NULL: nothing is evaluated */
    struct moec_work_bytes bytes;
    int n_threads; /* as moec_pool_make */
    struct moec_work_evaluations evaluations;
    const char *folder; /* where states spill; NULL: they do not */
};

struct moec_work_plan {
    uint64_t limit_bytes; /* of everything */
    struct {
        uint64_t base_bytes;
        uint64_t result_bytes;
        uint64_t buffer_bytes; /* encoders, logits, chunks of the reference, exchange of ranks */
    } fixed;
    uint64_t dense_bytes;         /* to be kept of each model, for moec_load_model */
    uint64_t activation_bytes;    /* of batches */
    uint64_t cache_bytes;         /* of variants */
    uint64_t sweep_bytes;         /* work_bytes of a sensitivity sweep */
    uint64_t reference_bytes;     /* reference_limit_bytes of each scorer */
    struct moec_work_memory work; /* for the windows */
};

/* Errors: MOEC_ERR_BUDGET when the least of everything is more than there is, itemised;
 * those of the checkpoint. */
MOEC_WARN_UNUSED enum moec_status moec_work_plan_make(const struct moec_work_request *request,
                                                      struct moec_work_plan *plan, struct moec_error *err);

/* What a profile run does with its plan. */
struct moec_work_load {
    const uint32_t *bits; /* (n_bits) that experts are encoded at */
    uint32_t n_bits;
    const struct moec_windows
        *sensitivity_windows; /* NULL: single experts are neither measured nor estimated */
    bool is_exact;
};

/* About the peak of such a run: the process, results, dense weights, variants and buffers of encoders, and
 * beside the scorer whichever takes most, routing or single experts. What a plan allows and nobody fills is
 * not in it. Errors: those of the checkpoint. */
MOEC_WARN_UNUSED enum moec_status moec_work_plan_peak(const struct moec_work_request *request,
                                                      const struct moec_work_plan *plan,
                                                      const struct moec_work_load *load, uint64_t *n_bytes,
                                                      struct moec_error *err);

/* work_bytes where nobody says any: least_bytes, and every expert at every usual bitwidth besides, where all
 * of it takes at most half of what the system has to give (0: unknown). Each is then read and encoded once,
 * and the other half has room for the pages of the files. Where experts take little of least_bytes, it is
 * that. */
uint64_t moec_work_plan_default_bytes(const struct moec_checkpoint *checkpoint, uint64_t least_bytes,
                                      uint64_t available_bytes);

/* Weights of the largest layer as the checkpoint has them, experts included. */
uint64_t moec_work_plan_layer_bytes(const struct moec_checkpoint *checkpoint);

#endif
