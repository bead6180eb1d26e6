/* What the phases of a profile run share (internal to profiler/): profile_run.c opens it, each phase reads
 * what earlier ones left and fills its part of the profile. Thread rule: one thread. */
#ifndef MOEC_PROFILER_PROFILE_JOB_H
#define MOEC_PROFILER_PROFILE_JOB_H

#include "profiler/common/unit.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "profiler/profile/profile_options.h"
#include "profiler/profile/work_plan.h"
#include "profiler/sensitivity/subject.h"

struct moec_profile_job {
    struct moec_checkpoint *checkpoint;
    const struct moec_config *config;
    const struct moec_profile_options *options;
    struct moec_profile *profile;
    struct moec_tokenizer *tokenizer;
    struct moec_rows rows;
    struct moec_windows windows; /* that are measured: those that were drawn without the certificate part */
    uint64_t pass;               /* multiply-adds of one evaluation of all that were drawn */
    struct moec_windows sensitivity_windows; /* the first of them */
    struct moec_work_memory work;            /* of the windows */
    struct moec_work_plan plan;              /* empty without --work-memory */
    uint64_t dense_keep_bytes;               /* for dense weights in memory, moec_load_model; 0 = all */
    struct moec_model *model;
    struct moec_variants *variants;  /* a phase may assign as it likes; the next one assigns again */
    struct moec_scorer *scorer;      /* its reference is the original, once that is measured */
    uint64_t multiply_adds;          /* beside the scorer's */
    uint64_t repeated_multiply_adds; /* among the scorer's: of what this run had to do once more */
    struct moec_units *units;        /* finished work of this job, NULL when it is not kept */
    double seconds_per_multiply_add; /* pace of the original's evaluation */
};

/* The cost of the job so far: what an uninterrupted run would have done. */
uint64_t moec_job_multiply_adds(const struct moec_profile_job *job);

/* What sensitivities of the job's model are of, at the profile's bitwidths. */
struct moec_sensitivity_subject moec_job_subject(const struct moec_profile_job *job);

/* moec_scorer_run of the job's scorer as a unit of work: evaluates the model with the current assignment, or
 * takes the measure that an interrupted run left under `key`. */
MOEC_WARN_UNUSED enum moec_status moec_job_score(struct moec_profile_job *job, const char *key,
                                                 const struct moec_measure *measure, struct moec_error *err);
/* The same on the first n_window of the job's windows alone. */
MOEC_WARN_UNUSED enum moec_status moec_job_score_first(struct moec_profile_job *job, const char *key,
                                                       uint32_t n_window, const struct moec_measure *measure,
                                                       struct moec_error *err);

/* A phase whose results are studies, as one unit: runs it, or takes the studies that it left in the run
 * before. What it finishes on its way may be units of its own (moec_job_score). */
MOEC_WARN_UNUSED enum moec_status moec_job_studies(struct moec_profile_job *job, const char *key,
                                                   enum moec_status (*phase)(struct moec_profile_job *job,
                                                                             struct moec_error *err),
                                                   struct moec_error *err);

/* The original's routing with its studies, and its losses, in one pass; what the journal has of both is taken. */
MOEC_WARN_UNUSED enum moec_status moec_job_measure_original(struct moec_profile_job *job,
                                                            struct moec_error *err);

/* Decides whether sensitivities are measured or estimated, and notes it in the profile. Needs the routing. */
MOEC_WARN_UNUSED enum moec_status moec_job_choose_sensitivity(struct moec_profile_job *job,
                                                              struct moec_error *err);

/* Measures the sensitivities (profiler/sensitivity/sensitivity.h); the baseline is there. */
MOEC_WARN_UNUSED enum moec_status moec_job_measure_sensitivity(struct moec_profile_job *job,
                                                               struct moec_error *err);

/* Estimates the sensitivities (profiler/sensitivity/fast_sensitivity.h); the
 * baseline and the whole-model measurements are there. */
MOEC_WARN_UNUSED enum moec_status moec_job_estimate_sensitivity(struct moec_profile_job *job,
                                                                struct moec_error *err);

/* The job's progress for work that counts in units of its own: its whole is shown as `passes`. */
struct moec_job_progress {
    struct moec_progress progress;
    const struct moec_progress *outer;
    double passes;
};
const struct moec_progress *moec_job_progress_scale(const struct moec_profile_job *job, double passes,
                                                    struct moec_job_progress *scaled);

#endif
