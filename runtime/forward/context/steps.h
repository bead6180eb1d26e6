/* What the steps of a forward pass have in common: their batch is checked, their work shared among the
 * threads, and most begin with a norm (internal to runtime/). */
#ifndef MOEC_RUNTIME_STEPS_H
#define MOEC_RUNTIME_STEPS_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/scratch.h"

/* Runs body over the items, on this thread alone where `work` multiply-adds are too few to share. Those are
 * counted (formats/base/work_tally.h); steps without products say how many numbers they pass. */
void moec_forward_run(const struct moec_forward *forward, size_t n_items, uint64_t work,
                      moec_parallel_body *body, void *context);

/* The kernel of that name, for rows that several tokens are multiplied with. */
void moec_forward_decode(const struct moec_kernels *kernels, const struct moec_matrix *matrix, uint32_t row,
                         uint32_t n_rows, float *weights, size_t stride);

/* MOEC_ERR_LIMIT when a batch is larger than the forward pass was made for. */
MOEC_WARN_UNUSED enum moec_status moec_forward_check(const struct moec_forward *forward, uint32_t n_tok,
                                                     struct moec_error *err);

/* out[t] = rms_norm(hidden[t]) * weight, or the LayerNorm of hidden[t] (layer_weights.h), both (n_tok, S),
 * padding zero; without a weight, which models without norms before have, a copy. On the calling thread. */
void moec_forward_norm(const struct moec_forward *forward, const float *weight, uint32_t n_tok,
                       const float *hidden, float *out);

/* The same, shared among the threads. */
void moec_forward_norm_batch(const struct moec_forward *forward, const float *weight, uint32_t n_tok,
                             const float *hidden, float *out);

/* What attention or an MLP gives to the hidden state, for one row: normed (post_norm not NULL) and scaled as
 * the model says, in place, then added to `hidden`. */
void moec_forward_add(const struct moec_forward *forward, const float *post_norm, float *update,
                      float *hidden);
/* The same for rows (n_tok, S), shared among the threads. */
void moec_forward_add_batch(const struct moec_forward *forward, const float *post_norm, uint32_t n_tok,
                            float *updates, float *hidden);
/* The factor that ends a layer, where there is one. */
void moec_forward_scale_layer(const struct moec_forward *forward, const struct moec_layer *layer,
                              uint32_t n_tok, float *hidden);
/* Whether what is added is the sum alone. */
bool moec_forward_adds_plainly(const struct moec_forward *forward, const float *post_norm);

/* Tiles of MOEC_TILE_TOKENS rows that n_tok rows are cut into. */
static inline uint32_t moec_tile_count(uint32_t n_tok)
{
    return (n_tok + MOEC_TILE_TOKENS - 1) / MOEC_TILE_TOKENS;
}

#endif
