/* How well routers predict from earlier positions of a token's way: a study beside that of routers
 * (profiler/routing/router_study.h), on its sample of tokens.
 *
 * predict/positions: recall of the activated experts among the first n = 1 .. E of those that a layer's
 * router prefers when it is fed with another vector than its own input, ties to the lower index:
 *
 *   what the same layer's attention reads              Fate Table 1, position 1
 *   the gate input of 1, 2, 3, 4 MoE layers before     position 2; HOBBIT 3.3, stacked gates
 *   what the attention of the MoE layer before reads   position 3
 *
 * predict/position_cosine: mean cosine similarity of the gate input and what attention reads, which is
 * normed, in this layer and in the MoE layer before.
 *
 * Layers of another stack are not before; what a layer has none of is NaN. Cosines are sums of windows' sums, in
 * order. Results are the same at any number of threads and ranks, and any batch size. Thread rule: one thread
 * at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_POSITION_STUDY_H
#define MOEC_PROFILER_POSITION_STUDY_H

#include "formats/profile/profile.h"
#include "profiler/evaluate/rank_windows.h"
#include "runtime/forward/pass/forward.h"

#define MOEC_POSITION_AHEAD  4                         /* MoE layers before, at most */
#define MOEC_POSITION_COUNT  (MOEC_POSITION_AHEAD + 2) /* attention here, gates before, attention before */
#define MOEC_POSITION_COSINE 2

struct moec_position_study;

/* A token of the sample in a batch. */
struct moec_position_sample {
    uint32_t sample; /* its number in the sample */
    uint32_t window; /* that it is of, among all */
    uint32_t row;    /* of the batch */
};

uint64_t moec_position_study_bytes(const struct moec_config *config, int n_threads, uint64_t n_sample,
                                   uint32_t max_tokens);
/* `forward` and `windows` are borrowed. */
MOEC_WARN_UNUSED enum moec_status moec_position_study_create(const struct moec_forward *forward,
                                                             const struct moec_rank_windows *windows,
                                                             uint64_t n_sample, uint32_t max_tokens,
                                                             struct moec_position_study **out,
                                                             struct moec_error *err);
void moec_position_study_free(struct moec_position_study *study);

/* Where a sweep leaves the hidden states of a batch before the layer's attention, (max_tokens, stride). */
float *moec_position_study_attention(struct moec_position_study *study);

/* Takes a batch's sampled tokens of one MoE layer: gate inputs (rows, stride) and choices (rows, k),
 * UINT32_MAX in place of one that was full. Layers come in order. */
void moec_position_study_batch(struct moec_position_study *study, uint32_t ordinal,
                               const struct moec_position_sample *samples, uint32_t n_sample,
                               const float *gate_input, const uint32_t *experts);

/* Together, after a layer's last batch: recall (MOEC_POSITION_COUNT, E) and cosine (MOEC_POSITION_COSINE), left
 * alone where there is none. Errors: a rank's failure, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_position_study_finish(struct moec_position_study *study,
                                                             uint32_t ordinal, double *recall, double *cosine,
                                                             struct moec_error *err);

/* Adds what was measured in all layers to a profile: recall (S, MOEC_POSITION_COUNT, E), cosine (S,
 * MOEC_POSITION_COSINE). */
MOEC_WARN_UNUSED enum moec_status moec_position_study_add(struct moec_profile *profile, const double *recall,
                                                          const double *cosine, struct moec_error *err);

uint64_t moec_position_study_multiply_adds(const struct moec_position_study *study);

#endif
