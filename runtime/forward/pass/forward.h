/* The forward pass, layer by layer, over a batch of tokens that may belong to many sequences.
 *
 * Sessions drive it for prefill and decoding; the profiler drives it directly, so that it can stop between
 * layers, keep activations and share one sweep over the weights among many variants. All results are
 * canonical (D1): a token's values depend only on the tokens before it in its own sequence, never on the
 * batch it came in.
 *
 * Batch layout: `hidden` is (n_tok, n_embd) F32 with a row stride of moec_forward_stride(); rows of one
 * sequence are consecutive and described by a span (runtime/forward/context/span.h).
 * runtime/forward/context/context.h has what a pass works with, and the thread rule. */
#ifndef MOEC_RUNTIME_FORWARD_H
#define MOEC_RUNTIME_FORWARD_H

#include "runtime/forward/attention/attention.h"
#include "runtime/forward/context/context.h"
#include "runtime/forward/context/sequences.h"
#include "runtime/forward/context/working_memory.h"
#include "runtime/forward/moe/moe.h"
#include "runtime/kernels/draw.h"

/* hidden[t] = embedding row of tokens[t]. Errors: MOEC_ERR_LIMIT for an id outside the vocabulary. */
MOEC_WARN_UNUSED enum moec_status moec_forward_embed(const struct moec_forward *forward,
                                                     const uint32_t *tokens, uint32_t n_tok, float *hidden,
                                                     struct moec_error *err);

/* What decoders attend to: norm of the encoder's last hidden states. `encoded` may be `hidden`. */
MOEC_WARN_UNUSED enum moec_status moec_forward_encoded(const struct moec_forward *forward, uint32_t n_tok,
                                                       const float *hidden, float *encoded,
                                                       struct moec_error *err);

/* Several steps on the same rows: until they are let go, they are up to date after an update alone, and only
 * the steps write them. A device then keeps them in between. Errors: the device's, of the steps before. */
void moec_forward_hold(const struct moec_forward *forward, uint32_t n_tok, float *hidden);
MOEC_WARN_UNUSED enum moec_status moec_forward_update(const struct moec_forward *forward,
                                                      struct moec_error *err);
void moec_forward_let_go(const struct moec_forward *forward);

/* hidden += mlp(norm(hidden)): dense MLP, or router, experts (each acquired once for the whole batch, in
 * increasing index) and shared expert. A layer that routes by token needs sequences with tokens
 * (MOEC_ERR_USAGE). Errors of the expert source pass through. */
MOEC_WARN_UNUSED enum moec_status moec_forward_mlp(const struct moec_forward *forward, uint32_t layer,
                                                   const struct moec_mlp_batch *batch,
                                                   struct moec_error *err);

/* Output of one MLP for n_tok given inputs (n_tok, stride), unweighted: out (n_tok, stride). */
void moec_forward_expert(const struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                         const float *input, float *out);

/* The same of a routed expert in the form and at the weights that the forward's source answers with now,
 * where the forward computes. Errors: those of the source; the backend's. */
MOEC_WARN_UNUSED enum moec_status moec_forward_routed(const struct moec_forward *forward,
                                                      struct moec_expert_request request, uint32_t n_tok,
                                                      const float *input, float *out, struct moec_error *err);

/* The same of what stands beside a MoE layer's experts, a shared expert without its gate or a bypass; the
 * layer's weights are held. */
void moec_forward_shared(const struct moec_forward *forward, const struct moec_layer *layer, uint32_t n_tok,
                         const float *input, float *out);

/* What an MLP's down projection is given: row i at out + i * out_stride, one float for each neuron. */
void moec_forward_activations(const struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                              const float *input, float *out, size_t out_stride);

/* logits[t] = head . norm(hidden[t]) for n_tok rows: (n_tok, n_vocab) with row stride `logits_stride` floats.
 * In models that project the last hidden state that takes the place of the norm. */
MOEC_WARN_UNUSED enum moec_status moec_forward_head(const struct moec_forward *forward, uint32_t n_tok,
                                                    const float *hidden, float *logits, size_t logits_stride,
                                                    struct moec_error *err);

/* Whether the token after a row can be chosen where the forward computes, without its logits: with a backend
 * that chooses. Then, of one row, the choice that moert_sampler_next makes of its logits. */
bool moec_forward_chooses(const struct moec_forward *forward);
MOEC_WARN_UNUSED enum moec_status moec_forward_choose(const struct moec_forward *forward, const float *hidden,
                                                      const struct moec_draw *how, struct moec_chosen *chosen,
                                                      struct moec_error *err);

#endif
