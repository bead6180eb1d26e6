/* What a profile run is asked for (profiler/profile/profile_run.h). Plain data; pointers are borrowed. */
#ifndef MOEC_PROFILER_PROFILE_OPTIONS_H
#define MOEC_PROFILER_PROFILE_OPTIONS_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/profile/profile.h"
#include "profiler/common/unit.h"
#include "profiler/evaluate/parts.h"
#include "profiler/evaluate/pass_means.h"
#include "profiler/tasks/task.h"
#include "runtime/cuda/gpu_place.h"

/* What changes a measurement must also be named in describe_job (profile_run.c): a journal is only resumed by
 * the same job. What only says which measurements are made (studies) need not be. */
#define MOEC_DEFAULT_SENSITIVITY_WINDOWS 64
#define MOEC_PROFILE_MAX_PHASES          8

/* The text, and windows of it. */
struct moec_profile_data {
    struct moec_task task;
    const char *path; /* NULL: none is given */
    uint32_t seq_len_tokens;
    struct moec_part_request parts; /* windows to draw; min_part_windows is MOEC_MIN_PART_WINDOWS */
    uint64_t seed;
    bool goes_on_by_chance; /* where the original predicts the text no better than chance */
};

/* The codes that experts are measured in. */
struct moec_profile_codes {
    /* (n_bits) of 1, 2, 3, 4, 5, 6, 8, 16, in any order, each once; the baseline's may be among them. */
    const uint32_t *bits;
    uint32_t n_bits;
    uint32_t baseline_bits; /* 4 or 16 */
    enum moec_quantizer quantizer;
    enum moec_scheme scheme;
    bool any_scheme; /* for MOEC_QUANTIZER_AUTO: choose among both schemes */
    uint32_t group;  /* 0 (channel), 16, 32, 64, 128 */
};

/* What is measured. */
struct moec_profile_measures {
    enum moec_sensitivity_mode sensitivity; /* NONE: `bits` may be empty, and are of whole models only */
    /* Windows that single experts are measured on, the first of the search part: 0 =
     * MOEC_DEFAULT_SENSITIVITY_WINDOWS. */
    uint32_t n_sensitivity_window;
    double time_limit_seconds; /* of the exact sweep, for AUTO */
    bool projections;          /* one projection of every expert alone, too */
    uint32_t studies;          /* of weights and ranks: a set of 1 << enum moec_weight_study; 0 = none */
};

/* What the process may take, beside the weights of the largest layer (profiler/profile/work_plan.h). */
struct moec_profile_memory {
    uint64_t limit_bytes;     /* 0 = no plan: the next two bound what they say, and nothing else is bounded */
    uint64_t work_bytes;      /* activations of the sweep; 0 = 1 GiB */
    uint64_t cache_bytes;     /* encoded experts; 0 = all of them */
    const char *spill_folder; /* for hidden states that do not fit into memory; NULL = they stay in memory */
    struct moec_gpu_place *place; /* passes compute there; borrowed, NULL = in the process's memory */
};

/* Finished work is kept in this file while the run lasts (profiler/common/unit.h). The caller removes it when
 * it has written the profile. */
struct moec_profile_journal {
    const char *path; /* NULL = nowhere */
    enum moec_units_mode mode;
};

struct moec_profile_options {
    struct moec_profile_data data;
    struct moec_profile_codes codes;
    struct moec_profile_measures measures;
    /* The arithmetic is that of all evaluations but the original's, which losses are relative to, and the
     * routing's. Ranks run together, with the same options; the first one's journal is the only one; all have
     * the whole profile. */
    struct moec_pass_means by;
    struct moec_profile_memory memory;
    struct moec_profile_journal journal;
    const struct moec_progress *progress; /* may be NULL; phases: original, routing, evaluation, quantizers,
                                           * sensitivity or local errors, names of studies */
};

#endif
