/* Trains a learned predictor of experts (formats/tables/expert_predictor.h) on a sweep over windows, with the
 * weights that the expert source answers: a bundle's own, so that what it learns is what will run.
 *
 * Layer by layer (profiler/routing/layer_pairs.h): what this layer's router reads and chooses on one side,
 * what the next layer's chooses on the other. The last eighth of the windows is kept apart: it says when a
 * fit stops, and whether hidden units are worth their bytes. Results are the same at any number of threads.
 * Thread rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_COMPILER_PREDICTOR_TRAIN_H
#define MOEC_COMPILER_PREDICTOR_TRAIN_H

#include "formats/tables/expert_predictor.h"
#include "profiler/common/progress.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/pass/forward.h"

/* Of the bundle, that a predictor may take at most. */
#define MOEC_PREDICTOR_SHARE 0.02

struct moec_predictor_job {
    const struct moec_model *model; /* all borrowed */
    struct moec_experts *experts;
    const struct moec_kernels *kernels;
    int n_threads;                      /* as moec_pool_make */
    const struct moec_windows *windows; /* to learn from */
    uint64_t most_bytes;                /* of the section; one layer alone is fitted where it is less */
    uint64_t work_bytes;                /* of examples in memory: windows beyond are left out */
    uint64_t seed;
};

/* Errors: MOEC_ERR_LIMIT (too few tokens), those of moec_layer_pairs_run,
 * those of the expert source and of sweeps, what `progress` answers. On failure `out` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_predictor_train(const struct moec_predictor_job *job,
                                                       const struct moec_progress *progress,
                                                       struct moec_expert_predictor *out,
                                                       struct moec_error *err);

#endif
