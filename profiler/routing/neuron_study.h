/* Whether a layer's input tells which neurons of the next MoE layer's experts will be active (FloE,
 * section 3.3.2: the reuse-based predictor of sparsity inside experts; Fig. 4).
 *
 * At a sparsity s a neuron i of an expert is active for a token where |up_i . x| is at least the expert's
 * threshold, below which the share s of its up products lies. Predicted is the same with the input of the
 * layer before in place of x, either by the same threshold, as in the paper, or by one of the predicted
 * products' own, below which the same share lies: so many neurons are then predicted as are active. Recall is
 * the share of the active neurons that were predicted, precision the share of the predicted ones that are
 * active; at random both would be 1 - s.
 *
 * Counted are the experts that tokens really take, with at most MOEC_NEURON_TOKENS tokens of each, in equal
 * steps, whose thresholds are those of the counted tokens. Thread rule: one thread at a time; it parallelises
 * inside. */
#ifndef MOEC_PROFILER_NEURON_STUDY_H
#define MOEC_PROFILER_NEURON_STUDY_H

#include "profiler/common/progress.h"
#include "profiler/routing/study_share.h"
#include "runtime/forward/pass/forward.h"

#define MOEC_NEURON_LEVELS 5u  /* 0.5 to 0.9 */
#define MOEC_NEURON_TOKENS 64u /* of an expert */

enum moec_neuron_threshold { MOEC_NEURON_SAME, MOEC_NEURON_OWN, MOEC_NEURON_THRESHOLDS };

struct moec_neuron_study {
    uint32_t n_layer; /* S; 0: neurons of this model cannot be left out by their up products */
    double levels[MOEC_NEURON_LEVELS];
    struct moec_study_share recall[MOEC_NEURON_THRESHOLDS][MOEC_NEURON_LEVELS];
    struct moec_study_share precision[MOEC_NEURON_THRESHOLDS][MOEC_NEURON_LEVELS];
    /* (S, MOEC_NEURON_THRESHOLDS, MOEC_NEURON_LEVELS), NaN in a stack's first layer; owned, both in one. */
    double *layer_recall, *layer_precision;
};

struct moec_neuron_study_job {
    const struct moec_model *model; /* all borrowed */
    struct moec_experts *experts;
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
    const struct moec_windows *windows;
    uint64_t work_bytes; /* as moec_layer_pairs_run */
};

/* Released with moec_neuron_study_release, after an error too. Errors: those of moec_layer_pairs_run and of
 * the expert source, what `progress` (may be NULL) answers; its amounts are shares of 1. */
MOEC_WARN_UNUSED enum moec_status moec_neuron_study_run(const struct moec_neuron_study_job *job,
                                                        const struct moec_progress *progress,
                                                        struct moec_neuron_study *out,
                                                        struct moec_error *err);
void moec_neuron_study_release(struct moec_neuron_study *study);

#endif
