/* What a profile run is asked for (profiler/profile/profile_run.h). Plain data; pointers are borrowed. */
#ifndef MOEC_PROFILER_PROFILE_OPTIONS_H
#define MOEC_PROFILER_PROFILE_OPTIONS_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/profile/profile.h"
#include "profiler/common/unit.h"
#include "profiler/evaluate/parts.h"
#include "profiler/tasks/task.h"
#include "runtime/cuda/gpu_place.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/kernels/kernels.h"

/* What changes a measurement must also be named in describe_job (profile_run.c): a journal is only resumed by
 * the same job. What only says which measurements are made (studies) need not be. */
#define MOEC_DEFAULT_SENSITIVITY_WINDOWS 64
#define MOEC_PROFILE_MAX_PHASES          8

struct moec_profile_options {
    struct moec_task task;
    const char *data_path;
    uint32_t seq_len_tokens;
    struct moec_part_request parts; /* windows to draw; min_part_windows is MOEC_MIN_PART_WINDOWS */
    uint64_t seed;
    /* (n_bits) of 1, 2, 3, 4, 5, 6, 8, 16, in any order, each once; the baseline's may be among them. */
    const uint32_t *bits;
    uint32_t n_bits;
    uint32_t baseline_bits; /* 4 or 16 */
    enum moec_quantizer quantizer;
    enum moec_scheme scheme;
    bool any_scheme;                        /* for MOEC_QUANTIZER_AUTO: choose among both schemes */
    uint32_t group;                         /* 0 (channel), 32, 64, 128 */
    enum moec_sensitivity_mode sensitivity; /* NONE: `bits` may be empty, and are of whole models only */
    /* Windows that single experts are measured on, the first of the search part: 0 =
     * MOEC_DEFAULT_SENSITIVITY_WINDOWS. */
    uint32_t n_sensitivity_window;
    double time_limit_seconds; /* of the exact sweep, for AUTO */
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
    /* Of all evaluations but the original's, which losses are relative to, and the routing's. */
    enum moec_arithmetic arithmetic;
    /* Ranks that share the windows and run together, with the same options: borrowed, NULL = this process is
     * alone. The first one's journal is the only one; all have the whole profile. */
    struct moec_ranks *ranks;
    struct moec_gpu_place *place; /* passes compute there; borrowed, NULL = in the process's memory */
    /* What the process may take, beside the weights of the largest layer (profiler/profile/work_plan.h). 0 =
     * no plan: the next two bound what they say, and nothing else is bounded. */
    uint64_t memory_bytes;
    uint64_t work_bytes;      /* activations of the sweep; 0 = 1 GiB */
    uint64_t cache_bytes;     /* encoded experts; 0 = all of them */
    const char *spill_folder; /* for hidden states that do not fit into memory; NULL = they stay in memory */
    bool goes_on_by_chance;   /* where the original predicts the text no better than chance */
    const struct moec_progress *progress; /* may be NULL; phases: original, routing, evaluation, quantizers,
                                           * sensitivity or local errors, names of studies */
    uint32_t studies; /* of weights and ranks: a set of 1 << enum moec_weight_study; 0 = none */
    bool projections; /* one projection of every expert alone, too */
    /* Finished work is kept in this file while the run lasts (profiler/common/unit.h); NULL = nowhere. The
     * caller removes it when it has written the profile. */
    const char *journal_path;
    enum moec_units_mode journal_mode;
};

#endif
