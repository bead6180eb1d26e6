/* How large activations inside experts are: their distribution for each expert and projection, from which
 * thresholds for a wanted sparsity follow (FloE, Fig. 2 and eq. 6).
 *
 * Three kinds, named by the projection: act(gate . x) with the model's own activation, up . x, and what the
 * down projection reads. Magnitudes are counted in 128 bins an octave, so that one layer's experts fit in
 * memory whatever the number of tokens; counts and means do not depend on threads, counts not on order.
 * Thread rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_ACTIVATIONS_H
#define MOEC_PROFILER_ACTIVATIONS_H

#include "profiler/evaluate/sweep.h"
#include "runtime/forward/pass/forward.h"

struct moec_activations;

/* For the layers of `forward`'s model, one at a time, with weights from `experts`; both borrowed until free.
 */
MOEC_WARN_UNUSED enum moec_status moec_activations_create(const struct moec_forward *forward,
                                                          struct moec_experts *experts,
                                                          struct moec_activations **out,
                                                          struct moec_error *err);
void moec_activations_free(struct moec_activations *activations);

/* Forgets all counts: the next tokens are those of another layer. */
void moec_activations_clear(struct moec_activations *activations);

/* Counts the activations of n_tok tokens (a batch of the forward at most) of one model layer in the experts
 * that they chose: normed inputs (n_tok, moec_forward_stride), and choices.
 * Errors: those of the expert source. */
MOEC_WARN_UNUSED enum moec_status moec_activations_add(struct moec_activations *activations, uint32_t layer,
                                                       uint32_t n_tok, const float *input,
                                                       const struct moec_token_choices *choices,
                                                       struct moec_error *err);

/* From now on activations of the gate are counted times these: (E, n_ff) BF16 from +0 on, borrowed; NULL: as
 * they are, as in the beginning. */
void moec_activations_scale_gate(struct moec_activations *activations, const uint16_t *scales);

/* Means of |up . x| of an expert's neurons over its tokens, (n_ff) into `out`; 0 for an expert without
 * tokens. Tokens are added in order. */
void moec_activations_up_means(const struct moec_activations *activations, uint32_t expert, double *out);

/* From now on |up . x| of the first n_token tokens of each expert of a layer is kept. Errors:
 * MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_activations_keep_up(struct moec_activations *activations,
                                                           uint32_t n_token, struct moec_error *err);

/* Of the kept tokens of an expert: adds the neurons, but the last, whose |up . x| reaches the threshold, and
 * those of them whose next neuron's does not. */
void moec_activations_count_turns(const struct moec_activations *activations, uint32_t expert,
                                  float threshold, uint64_t *n_active, uint64_t *n_turn);

/* Magnitude that the share `q` (0..1) of the expert's activations stays under, to within a bin; 0 for an
 * expert without tokens. */
double moec_activations_quantile(const struct moec_activations *activations, uint32_t expert,
                                 enum moec_projection projection, double q);

/* The same over all experts of the layer. */
double moec_activations_layer_quantile(const struct moec_activations *activations,
                                       enum moec_projection projection, double q);

/* Tokens that an expert was given. */
uint64_t moec_activations_tokens(const struct moec_activations *activations, uint32_t expert);

/* Bytes of the counts and means of a layer. */
uint64_t moec_activations_bytes(const struct moec_config *config);

/* All that was done so far. */
uint64_t moec_activations_multiply_adds(const struct moec_activations *activations);

#endif
