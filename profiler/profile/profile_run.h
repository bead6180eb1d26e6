/* The whole of `moec profile`: from a checkpoint and data to a profile in memory.
 *
 * In order: read and draw windows, evaluate the original, trace and study its routing (router_study.h,
 * path_study.h), evaluate whole models at one bitwidth each, measure or estimate the sensitivity of every
 * expert, measure the studies asked for (weight_studies.h). The same inputs give the same profile at any
 * number of threads and ranks, with any instruction set and any working memory, except that MOEC_SENSITIVITY_AUTO
 * chooses by measured time; the profile says what it chose. */
#ifndef MOEC_PROFILER_PROFILE_RUN_H
#define MOEC_PROFILER_PROFILE_RUN_H

#include "profiler/profile/profile_options.h"

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
MOEC_WARN_UNUSED enum moec_status moec_profile_estimate(struct moec_checkpoint *checkpoint,
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
