/* How large the outputs of the up projections are: quantiles of |up_i . x| for every expert (FloE, Fig. 2 and
 * 3, eq. 6: the threshold for a wanted sparsity is a quantile).
 *
 * Values: all neurons i of the expert and a sample of the tokens x that chose it, at most
 * MOEC_UP_MAX_TOKENS tokens and about MOEC_UP_VALUES values for each expert, spread over the windows: with
 * W windows, every ceil(W / tokens)-th one (another residue for every expert) gives up to tokens / W, at
 * least 1, of those of its tokens that chose the expert, which follow one another there from a place that a
 * generator chooses. The sample depends on windows and routing alone. Quantiles as
 * profiler/common/quantiles.h.
 *
 * Ranks that share the windows exchange their values of a layer and share its experts, whose quantiles they find.
 *
 * Memory: the values of one layer. Thread rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_UP_STUDY_H
#define MOEC_PROFILER_UP_STUDY_H

#include "profiler/evaluate/rank_windows.h"
#include "runtime/forward/pass/forward.h"
#include "runtime/kernels/kernels.h"
#include "runtime/seam/experts.h"
#include "runtime/threads/parallel.h"

#define MOEC_UP_MAX_TOKENS 64
#define MOEC_UP_MIN_TOKENS 8
#define MOEC_UP_VALUES     65536
#define MOEC_UP_QUANTILES  11

extern const double moec_up_quantiles[MOEC_UP_QUANTILES];

struct moec_up_study;

/* Bytes that a study takes. */
uint64_t moec_up_study_bytes(const struct moec_config *config, int n_threads);

/* With the forward's kernels and threads. Everything is borrowed until free. found (S, E, MOEC_UP_QUANTILES)
 * receives the quantiles of each layer, NaN for experts that no token chose. */
MOEC_WARN_UNUSED enum moec_status moec_up_study_create(const struct moec_forward *forward,
                                                       struct moec_experts *experts,
                                                       const struct moec_rank_windows *windows, double *found,
                                                       struct moec_up_study **out, struct moec_error *err);
void moec_up_study_free(struct moec_up_study *study);

/* Takes some of this rank's windows in one MoE layer: their tokens' choices (rows, k) and normed
 * inputs (rows, stride). All windows of a layer come, in order, before those of the next.
 * Errors of the expert source. */
MOEC_WARN_UNUSED enum moec_status moec_up_study_windows(struct moec_up_study *study, uint32_t ordinal,
                                                        struct moec_window_range windows,
                                                        const uint32_t *experts, const float *input,
                                                        struct moec_error *err);

/* Together, after the last window of a layer. Errors: a rank's failure, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_up_study_finish(struct moec_up_study *study, uint32_t ordinal,
                                                       struct moec_error *err);

/* All that was done so far. */
uint64_t moec_up_study_multiply_adds(const struct moec_up_study *study);

#endif
