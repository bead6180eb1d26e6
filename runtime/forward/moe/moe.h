/* The experts' half of a MoE layer: router, routed experts from their source, shared expert, weighted sum
 * (part of runtime/forward/pass/forward.h).
 *
 * Experts are acquired in the order that their source wants, as many together as the source lets be held and
 * has ready. When all that a batch needs are held at once, it is computed block by block of tokens, so that a
 * block's expert outputs are summed while they are still in the cache; otherwise outputs of the whole batch
 * wait for the last expert. Each expert is acquired once either way, and the bits are the same. */
#ifndef MOEC_RUNTIME_MOE_H
#define MOEC_RUNTIME_MOE_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/sequences.h"

/* A record of what a MoE layer did. Arrays are the caller's; NULL members are not filled. T = n_tok, k
 * = top_k. */
struct moec_mlp_trace {
    uint32_t *experts;    /* (T, k): chosen experts in order of choice */
    float *weights;       /* (T, k): gate weights as applied; 0 or less of a choice that asks for none */
    float *margins;       /* (T): what the router compares (its probability), of rank k minus rank k + 1 */
    float *ranges;        /* (T): the largest of what the router compares minus the smallest */
    float *input;         /* (T, stride): normed input of router and experts, or of experts alone where the
                             model has own_norms or router_scales_input */
    float *gate_input;    /* (T, stride): that of the router, only looked at where it is another */
    float *rank_outputs;  /* (T, k, stride): unweighted output of each chosen expert */
    float *rank_norms;    /* (T, k): Euclidean norms of those outputs */
    float *shared_output; /* (T, stride): shared expert's output times its gate, and normed where it has a
                             norm after it, or the bypass's; zero rows without either */
};

/* moec_forward_mlp for a layer with experts, whose `weights` are held; the batch's rows are within the
 * forward pass's limit. */
MOEC_WARN_UNUSED enum moec_status moec_moe_run(const struct moec_forward *forward,
                                               const struct moec_layer *weights, uint32_t layer,
                                               const struct moec_mlp_batch *batch, struct moec_error *err);

/* out = tanh(bypass . input) for n_tok rows (n_tok, stride), padded with zeros. */
void moec_moe_bypass(const struct moec_forward *forward, const struct moec_layer *weights, uint32_t n_tok,
                     const float *input, float *out);

/* The sum that ends a MoE layer for one token: hidden += (w_0 y_0, then fma in rank order, shared output
 * last), by way of the layer's norms after it and the model's residual scale, then times the layer's factor.
 * `rank_outputs` are k pointers to rows; `shared_output` may be NULL for models without a shared expert. */
void moec_forward_combine(const struct moec_forward *forward, uint32_t layer,
                          const float *const *rank_outputs, const float *weights, const float *shared_output,
                          float *hidden);

#endif
