/* What the studies of weights and ranks share (internal to profiler/). Thread rule: one thread. */
#ifndef MOEC_PROFILER_WEIGHT_STUDY_H
#define MOEC_PROFILER_WEIGHT_STUDY_H

#include "profiler/profile/loss_study.h"
#include "profiler/profile/profile_job.h"

#define MOEC_STUDY_RANK_ACTIONS    4
#define MOEC_STUDY_QUANTIZERS      30 /* quantizers x (group sizes, and all weights) */
#define MOEC_STUDY_SPARSITY_LEVELS 5
#define MOEC_STUDY_SPARSITY_KINDS  4 /* the projections, and the gate with a threshold for each neuron */

struct moec_weight_run {
    struct moec_profile_job *job;
    const char *phase;
    double total;                       /* passes expected of the phase */
    double done, now;                   /* passes of what has ended, and of what is at work */
    struct moec_progress progress;      /* passed on to the work; forwards to the job's */
    struct moec_measure measure;        /* (W), owned */
    double bits[MOEC_PROFILE_MAX_BITS]; /* uniform_bits of the profile, for axes */
};

/* The axis "bits" of studies of whole models: the profile's uniform_bits. Borrows from `run`. */
struct moec_study_axis moec_weight_run_bits(struct moec_weight_run *run);

/* One evaluation with what is assigned now; its loss becomes value `at`. `variation` may be NULL. */
MOEC_WARN_UNUSED enum moec_status moec_weight_run_measure(struct moec_weight_run *run,
                                                          const struct moec_scorer_variation *variation,
                                                          struct moec_loss_study *study, uint64_t at,
                                                          struct moec_error *err);

/* The same with every expert and the dense weights too at these bits, by the codec that the variants have. */
MOEC_WARN_UNUSED enum moec_status moec_weight_run_measure_all(struct moec_weight_run *run, uint32_t bits,
                                                              struct moec_loss_study *study, uint64_t at,
                                                              struct moec_error *err);

/* Another part of this phase has ended: the next report continues from its amount. */
void moec_weight_run_ended(struct moec_weight_run *run);

/* Every expert as in the checkpoint. */
MOEC_WARN_UNUSED enum moec_status moec_weight_run_restore(struct moec_weight_run *run,
                                                          struct moec_error *err);

/* Kinds that the study of sparsity measures: on a GPU there are no thresholds of neurons at the gate. */
uint32_t moec_sparsity_study_kinds(const struct moec_profile_options *options);

/* One function for each study: measures and adds. */
typedef enum moec_status moec_weight_study_fn(struct moec_weight_run *run, struct moec_error *err);
moec_weight_study_fn moec_projection_study_run, moec_expert_projection_study_run, moec_layer_study_run,
    moec_dense_study_run, moec_quantizer_study_run, moec_rank_study_run, moec_sparsity_study_run,
    moec_choice_study_run;

#endif
