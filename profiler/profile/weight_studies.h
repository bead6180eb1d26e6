/* Studies of weights and ranks: what the model loses when one kind of weights, one layer, one rank or small
 * activations are given up, everything else being the original's.
 *
 * Each costs evaluations of the whole model, so each is measured only where it is asked for:
 *   projections  one projection of all experts at each bitwidth (FloE, Fig. 3(b))
 *   layers       all experts of one layer at each bitwidth
 *   dense        experts alone against all weights at each bitwidth (EdgeMoE, Fig. 6)
 *   quantizers   linear and HQQ, both schemes, group sizes, for the whole model at each bitwidth
 *   ranks        the expert at each rank dropped or replaced (cache-conditional experts, Fig. 2)
 *   choices      every expert in the place of a token's last one (the same, Fig. 11)
 *   sparsity     small activations taken as zero (FloE, Fig. 3(a); CATS, CHESS)
 *
 * and, as moec_profile_measures.projections asks, one projection of one expert against the baseline. All add
 * studies to the profile (formats/profile/PROFILE.md) and count into its cost. */
#ifndef MOEC_PROFILER_WEIGHT_STUDIES_H
#define MOEC_PROFILER_WEIGHT_STUDIES_H

#include "profiler/profile/profile_options.h"

enum moec_weight_study {
    MOEC_WEIGHT_STUDY_PROJECTIONS,
    MOEC_WEIGHT_STUDY_LAYERS,
    MOEC_WEIGHT_STUDY_DENSE,
    MOEC_WEIGHT_STUDY_QUANTIZERS,
    MOEC_WEIGHT_STUDY_RANKS,
    MOEC_WEIGHT_STUDY_SPARSITY,
    MOEC_WEIGHT_STUDY_CHOICES,
    MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS,
    MOEC_WEIGHT_STUDY_COUNT
};

/* Its name on the command line. */
const char *moec_weight_study_name(enum moec_weight_study study);
/* The group of its studies in a profile. */
const char *moec_weight_study_group(enum moec_weight_study study);

/* Reads "ranks,dense" (or the groups in a profile, "rank,dense"), "all" or "none" into a set of 1 << study;
 * choices and --projections are no part of "all". Errors: MOEC_ERR_USAGE naming the word and those expected.
 */
MOEC_WARN_UNUSED enum moec_status moec_weight_studies_parse(const char *list, uint32_t *studies,
                                                            struct moec_error *err);

/* Whether the options ask for it. */
bool moec_weight_study_wanted(enum moec_weight_study study, const struct moec_profile_options *options);

/* The expected cost of a study, in passes, on windows of options->data.seq_len_tokens; for
 * MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS what it costs at most. */
double moec_weight_study_passes(enum moec_weight_study study, const struct moec_config *config,
                                const struct moec_profile_options *options);

/* Bytes that the studies hold beside models, hidden states and expert variants, for a plan of memory. */
uint64_t moec_weight_studies_bytes(const struct moec_profile *profile,
                                   const struct moec_profile_options *options);

/* Measures the studies of job->options after everything else is measured, and adds them to the profile. */
struct moec_profile_job;
MOEC_WARN_UNUSED enum moec_status moec_weight_studies_run(struct moec_profile_job *job,
                                                          struct moec_error *err);

/* Removes studies that make no sense for this model, and reports why to the options' progress. */
void moec_weight_studies_limit(const struct moec_config *config, struct moec_profile_options *options);

#endif
