/* The router of a MoE layer: which experts a token takes and with which weight (internal to runtime/).
 *
 * Logits are the router's product with the normed input, which a backend computes where the pass has one
 * (runtime/forward/context/backend.h; `inputs` are then not touched), plus its bias. Two steps follow: scores and, of
 * what is chosen, weights (runtime/forward/moe/router_scores.h), and between them the choice
 * (runtime/policy/decide/choice.h), which a layer's table makes where it routes by token. With top-1 and a limited
 * capacity, tokens that find their expert full get weight 0. */
#ifndef MOEC_RUNTIME_ROUTER_H
#define MOEC_RUNTIME_ROUTER_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/sequences.h"
#include "runtime/forward/moe/router_rules.h"

/* What router, routed experts and shared expert read, (T, S) each: the normed hidden state, by norms of their
 * own in models that have such, else one array; experts that read it times the router's weight have theirs.
 */
struct moec_moe_inputs {
    float *router, *experts, *shared;
};

/* Whether the batch's tokens choose one after the other (runtime/forward/moe/decide.h). */
static inline bool moec_router_decides(const struct moec_forward *forward,
                                       const struct moec_sequences *sequences)
{
    return forward->decider != NULL && sequences != NULL && sequences->n_spans > 0 &&
           sequences->spans[0].decides.route != NULL;
}

/* Norms the batch into `inputs` and routes it by the choice of `forward`; its trace is not looked at. Margins
 * are the router's own, whatever is chosen. Errors: a backend's. */
MOEC_WARN_UNUSED enum moec_status moec_router_run(const struct moec_forward *forward, uint32_t layer,
                                                  const struct moec_mlp_batch *batch,
                                                  const struct moec_moe_inputs *inputs,
                                                  const struct moec_routing *routing, struct moec_error *err);

/* What another layer's router says of rows. */
struct moec_router_preview {
    /* (tiles of MOEC_ROUTER_TOKENS, moec_config_choices padded to lanes): the first row has the answer. */
    float *sums;
    float *logits; /* (moec_config_choices): those of a single token, or NULL */
};

/* The shares (moec_router_shares) of these inputs, `normed` (T, S), summed over the tokens in a fixed order. */
MOEC_WARN_UNUSED enum moec_status moec_router_preview(const struct moec_forward *forward, uint32_t layer,
                                                      uint32_t n_tok, const float *normed,
                                                      struct moec_router_preview out, struct moec_error *err);

#endif
