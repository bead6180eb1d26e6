/* The rules of a router for one token, whoever applies them: the router itself, or choices that look at a
 * logical cache (internal to runtime/ and to those who record routers). */
#ifndef MOEC_RUNTIME_ROUTER_RULES_H
#define MOEC_RUNTIME_ROUTER_RULES_H

#include "runtime/forward/context/context.h"

/* Where the answers for a batch go. */
struct moec_routing {
    uint32_t *experts; /* (T, k) */
    float *weights;    /* (T, k); 0 or less of a choice that asks for nothing (moec_config_has_passed) */
    float *margins;    /* (T) or NULL: what the router compares, of rank k minus rank k + 1 (0 without one) */
    float *ranges;     /* (T) or NULL: of what the router compares, as moec_router_compare */
    float *shared_gate; /* (T) factor of the shared expert; filled when the layer has one */
};

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

#endif
