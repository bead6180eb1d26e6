/* What a router's answer gives the source of the experts, in addition to the experts that are needed
 * (internal to runtime/): struct moec_router_answer of runtime/seam/experts.h.
 *
 * Choices of one MoE layer are kept in scratch until the next one, so that an answer can carry both. They
 * belong to the rows that they were made for: what has other rows, another layer before it or a new batch in
 * between starts with none. */
#ifndef MOEC_RUNTIME_ROUTER_ANSWER_H
#define MOEC_RUNTIME_ROUTER_ANSWER_H

#include "runtime/forward/moe/router.h"

/* One layer's routing of a batch, as moec_router_run left it. */
struct moec_routed {
    uint32_t layer;
    const struct moec_mlp_batch *batch; /* its `hidden` identifies it; not read */
    const float *normed;                /* (T, S) the router's input */
    const struct moec_routing *routing;
    const float *counted; /* (T, k): the routing's weights, 0 of choices that ask for none */
    const bool *is_low;   /* (T, k) taken in form 1; NULL = none */
    uint32_t n_active;    /* of scratch->active */
};

/* Passes the answer to the source, with as much as it asks for, and all of it to the trace. Errors: a
 * backend's, after which the source expects the experts nevertheless. */
MOEC_WARN_UNUSED enum moec_status moec_router_answer_send(const struct moec_forward *forward,
                                                          const struct moec_routed *routed,
                                                          struct moec_error *err);

/* A batch of these tokens is about to pass the layers: tells the source how many they are, and which experts
 * the layers that route by token will ask for. `sequences`, whose layer at work says nothing here, decide
 * about them; NULL = none do. */
void moec_router_look_ahead(const struct moec_forward *forward, const struct moec_sequences *sequences,
                            const uint32_t *tokens, uint32_t n_tok);

/* A new batch begins: choices that were kept belong to none of its rows. */
void moec_router_answer_reset(const struct moec_forward *forward);

#endif
