/* The router of a MoE layer: which experts a token takes and with which weight (internal to runtime/).
 *
 * Logits are the router's product with the normed input, which a backend computes where the pass has one
 * (runtime/forward/backend.h; `inputs` are then not touched), plus its bias. Two steps follow: scores and, of
 * what is chosen, weights (runtime/forward/router_scores.h), and between them the choice
 * (runtime/policy/decide/choice.h), which a layer's table makes where it routes by token. With top-1 and a limited
 * capacity, tokens that find their expert full get weight 0. */
#ifndef MOEC_RUNTIME_ROUTER_H
#define MOEC_RUNTIME_ROUTER_H

#include "runtime/forward/context.h"
#include "runtime/forward/sequences.h"

/* Where the answers for a batch go. */
struct moec_routing {
    uint32_t *experts; /* (T, k) */
    float *weights;    /* (T, k); 0 or less of a choice that asks for nothing (moec_config_has_passed) */
    float *margins;    /* (T) or NULL: what the router compares, of rank k minus rank k + 1 (0 without one) */
    float *ranges;     /* (T) or NULL: of what the router compares, as moec_router_compare */
    float *shared_gate; /* (T) factor of the shared expert; filled when the layer has one */
};

/* What router, routed experts and shared expert read, (T, S) each: the normed hidden state, by norms of their
 * own in models that have such, else one array; experts that read it times the router's weight have theirs.
 */
struct moec_moe_inputs {
    float *router, *experts, *shared;
};

/* Whether the batch's tokens choose one after the other (runtime/forward/decide.h). */
static inline bool moec_router_decides(const struct moec_forward *forward,
                                       const struct moec_sequences *sequences)
{
    return forward->decider != NULL && sequences != NULL && sequences->n_spans > 0 &&
           sequences->spans[0].route != NULL;
}

/* By how much the router prefers its last expert to the first that it leaves, in what it compares. */
float moec_router_margin(const struct moec_scored_token *token);

/* What the router compares, as routes see it (runtime/policy/decide/route.h): its logits where it compares by
 * softmax alone, which is when this is true; else score and choice bias. */
bool moec_router_compares_logits(const struct moec_config *config, const struct moec_layer *layer);

/* compared[e] = values[e] + bias[e] (NULL = none), -INFINITY for NaN; `compared` may be NULL. Returns the
 * largest of them minus the smallest, experts that may not be chosen left out. */
float moec_router_compare(const struct moec_config *config, const float *values, const float *bias,
                          float *compared);

/* Weights (top_k) of the chosen experts in this layer: moec_router_weigh, then the layer's factor of each. */
void moec_router_weigh_layer(const struct moec_forward *forward, const struct moec_layer *layer,
                             const float *scores, const uint32_t *experts, const bool *skips, float *weights);

/* Marks chosen numbers past the experts (n_identity), once weights are taken: these ask for nothing, so that
 * all behind the router sees a weight of 0 or less (moec_config_has_passed) and the number of expert 0. */
void moec_router_pass(const struct moec_config *config, uint32_t *experts, float *weights);

/* What a layer that routes by token (router_table) sends one to: experts (top_k), by falling score, ties to
 * the lower index. */
void moec_router_by_token(const struct moec_forward *forward, const struct moec_layer *layer, uint32_t token,
                          const float *scores, uint32_t *experts);

/* Norms the batch into `inputs` and routes it by the choice of `forward`. Margins are the router's own,
 * whatever is chosen. Errors: a backend's. */
MOEC_WARN_UNUSED enum moec_status moec_router_run(const struct moec_forward *forward, uint32_t layer,
                                                  uint32_t n_tok, const float *hidden,
                                                  const struct moec_moe_inputs *inputs,
                                                  const struct moec_sequences *sequences,
                                                  const struct moec_routing *routing, struct moec_error *err);

/* What another layer's router says of these inputs, `normed` (T, S): its shares (moec_router_shares) summed
 * over the tokens, in a fixed order. sums: (tiles of MOEC_ROUTER_TOKENS, moec_config_choices padded to
 * lanes), of which the first row holds the answer. logits (moec_config_choices): those of a single token, or
 * NULL. */
MOEC_WARN_UNUSED enum moec_status moec_router_preview(const struct moec_forward *forward, uint32_t layer,
                                                      uint32_t n_tok, const float *normed, float *sums,
                                                      float *logits, struct moec_error *err);

#endif
