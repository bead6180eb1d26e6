/* Thresholds of activation sparsity from a sweep over windows (FloE, eq. 6 and 11): how large activations are
 * in each expert, layer by layer, with the weights that the expert source answers. Every token is passed on
 * as the dense model computes it. Thread rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_THRESHOLDS_H
#define MOEC_PROFILER_THRESHOLDS_H

#include "formats/tables/sparsity_table.h"
#include "profiler/common/progress.h"
#include "profiler/evaluate/sweep.h"
#include "profiler/profile/activations.h"

/* Experts that were given fewer tokens take the thresholds of their layer. */
#define MOEC_THRESHOLD_TOKENS 32

/* Of each expert, whose up products are kept until its thresholds are known. */
#define MOEC_TURNOVER_TOKENS 32

struct moec_thresholds_hooks {
    /* All tokens have passed the MoE layer of this ordinal. */
    void (*layer_done)(void *context, uint32_t ordinal, const struct moec_activations *activations);
    /* Called with the multiply-adds so far; other than MOEC_OK stops. NULL allowed. */
    enum moec_status (*worked)(void *context, uint64_t multiply_adds, struct moec_error *err);
    void *context;
};

struct moec_thresholds_job {
    struct moec_swept of;
    const struct moec_kernels *kernels;
    int n_threads;       /* as moec_pool_make */
    bool finds_turnover; /* of a table, where neurons are ordered */
    bool at_gate;        /* of a table: thresholds of |act(gate . x)| */
    /* (MoE layers, E, n_ff) BF16: the gate's activations count times these; NULL */
    const uint16_t *gate_scales;
    struct moec_thresholds_hooks hooks;
};

/* `multiply_adds` is what it took. Errors: those of the expert source and of sweeps. */
MOEC_WARN_UNUSED enum moec_status moec_thresholds_sweep(const struct moec_thresholds_job *job,
                                                        uint64_t *multiply_adds, struct moec_error *err);

/* Fills a table's thresholds of |up . x|, its n_token and, where asked for, its turnover from a sweep;
 * hooks of `job` are not used. Progress is in shares of 1. */
MOEC_WARN_UNUSED enum moec_status moec_thresholds_fill(const struct moec_thresholds_job *job,
                                                       const struct moec_progress *progress,
                                                       struct moec_sparsity_table *table,
                                                       struct moec_error *err);

#endif
