/* How well each predictor of the runtime names the experts of the next MoE layer: the very code that preloads
 * by it (runtime/policy/predict/predict.h) is asked for every token of the windows, one at a time as while decoding,
 * and what it names first is counted beside what the next layer's router then chooses.
 *
 * Recall at a width n: of the experts that were chosen, the share among the first n guesses. Precision: of
 * the first n guesses, the share that was chosen (FloE, Fig. 4). Widths are k, k + 1 and 2k. First MoE layers
 * of a stack, which have none before them, do not count.
 *
 * Thread rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_PREDICTOR_STUDY_H
#define MOEC_PROFILER_PREDICTOR_STUDY_H

#include "formats/tables/expert_predictor.h"
#include "profiler/common/progress.h"
#include "profiler/evaluate/windows.h"
#include "profiler/routing/study_share.h"
#include "runtime/forward/pass/forward.h"
#include "runtime/policy/predict/predict.h"

#define MOEC_STUDY_WIDTHS     3u
#define MOEC_STUDY_PREDICTORS 5u

/* Which predictors, in this order. */
enum moec_studied {
    MOEC_STUDIED_FREQUENCY,
    MOEC_STUDIED_PATH,
    MOEC_STUDIED_GATE,
    MOEC_STUDIED_PATH_GATE,
    MOEC_STUDIED_LEARNED,
};

struct moec_studied_predictor {
    const struct moec_predict_ops *ops; /* NULL: the bundle has not what it needs */
    struct moec_study_share recall[MOEC_STUDY_WIDTHS], precision[MOEC_STUDY_WIDTHS];
    double *layer_recall, *layer_precision; /* (S, MOEC_STUDY_WIDTHS): NaN in a stack's first layer; owned */
};

struct moec_predictor_study {
    uint32_t n_layer, top_k; /* S, k */
    uint32_t n_window;       /* that were counted */
    uint64_t n_token;
    uint32_t widths[MOEC_STUDY_WIDTHS];
    struct moec_studied_predictor predictors[MOEC_STUDY_PREDICTORS];
    /* Recall of the learned predictor minus that of the gate, paired; NaN without one of them. */
    struct moec_study_share gain[MOEC_STUDY_WIDTHS];
    double *cosine; /* (S): mean similarity of what this layer's router and the one before it read; owned */
};

struct moec_predictor_study_job {
    const struct moec_model *model; /* all borrowed */
    struct moec_experts *experts;
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
    const struct moec_windows *windows;
    const struct moec_path_table *paths;           /* n_layer 0 = none */
    const struct moec_expert_predictor *predictor; /* n_layer 0 = none */
    uint64_t work_bytes;                           /* as moec_layer_pairs_run */
};

/* Released with moec_predictor_study_release, after an error too. Errors: those of moec_layer_pairs_run, what
 * `progress` (may be NULL) answers; its amounts are shares of 1. */
MOEC_WARN_UNUSED enum moec_status moec_predictor_study_run(const struct moec_predictor_study_job *job,
                                                           const struct moec_progress *progress,
                                                           struct moec_predictor_study *out,
                                                           struct moec_error *err);
void moec_predictor_study_release(struct moec_predictor_study *study);

#endif
