/* The whole of `moec profile`: from a checkpoint and data to a profile in memory.
 *
 * In order: read and draw windows, evaluate the original, trace and study its routing (router_study.h,
 * path_study.h), evaluate whole models at one bitwidth each, measure or estimate the sensitivity of every
 * expert, measure the studies asked for (weight_studies.h). The same inputs give the same profile at any
 * number of threads and ranks, with any instruction set and any working memory, except that MOEC_SENSITIVITY_AUTO
 * chooses by measured time; the profile says what it chose. */
#ifndef MOEC_PROFILER_PROFILE_RUN_H
#define MOEC_PROFILER_PROFILE_RUN_H

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

/* Fills `profile` (released by the caller). The digest of a large checkpoint takes long and has a progress of
 * its own: call moec_checkpoint_digest before to show it. On failure `profile` is empty. Errors:
 * MOEC_ERR_USAGE (options), MOEC_ERR_UNSUPPORTED (no tokenizer), MOEC_ERR_LIMIT (windows longer than the
 * model's context, too little data), MOEC_ERR_MISMATCH (the journal of another job), MOEC_ERR_BUDGET
 * (memory_bytes is too little, itemised), MOEC_ERR_MISMATCH (profiler/evaluate/chance.h), what `progress`
 * answers when it stops the run, and those of every part. After a failure the journal holds what was
 * finished. */
MOEC_WARN_UNUSED enum moec_status moec_profile_run(struct moec_checkpoint *checkpoint,
                                                   const struct moec_profile_options *options,
                                                   struct moec_profile *profile, struct moec_error *err);

/* What a run with these options is going to take, before it is made. */
struct moec_profile_forecast {
    uint32_t n_window, n_part[MOEC_PART_COUNT];
    uint32_t n_phase;
    struct {
        const char *name;
        double passes;
    } phases[MOEC_PROFILE_MAX_PHASES]; /* (n_phase), those that cost something */
    double exact_passes, fast_passes;  /* single experts either way; 0 where they are not asked for */
    bool is_exact;                     /* which of the two the phases have */
    double seconds_per_pass;           /* of a few windows of the original on this machine, by the clock, */
    double core_seconds_per_pass;      /* and by what processors spent on it */
    uint64_t memory_bytes;             /* about the peak of the process; 0 where it has no limit */
    uint64_t memory_limit_bytes;       /* which it does not pass; 0 = none */
    uint64_t profile_bytes;            /* of the file, at most; the journal beside it grows to as much */
    uint64_t spill_bytes;              /* hidden states that do not fit, in a temporary file */
};

/* Reads the data, plans the memory and times the original on a few windows; nothing is measured or written.
 * Errors: those of moec_profile_run that are known by then. */
MOEC_WARN_UNUSED enum moec_status moec_profile_foresee(struct moec_checkpoint *checkpoint,
                                                       const struct moec_profile_options *options,
                                                       struct moec_profile_forecast *forecast,
                                                       struct moec_error *err);

/* The windows that a run with these options is going to draw, by part: reads the data. Errors: those of
 * moec_profile_run that are known by then. */
MOEC_WARN_UNUSED enum moec_status moec_profile_count_parts(struct moec_checkpoint *checkpoint,
                                                           const struct moec_profile_options *options,
                                                           uint32_t n_part[static MOEC_PART_COUNT],
                                                           struct moec_error *err);

/* The line of a job's description that names the task, with everything that its text depends on. */
void moec_profile_describe_task(const struct moec_task *task, struct moec_job_text *text);

#endif
