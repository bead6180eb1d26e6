/* What routing with a cache knows of a sequence: the logical cache of each MoE layer, the choices that made
 * it, and the router's average range.
 *
 * The logical cache stands for the experts that are in memory, and is a function of the tokens alone (D15):
 * in each layer the n_slots experts used last. A token sees the state before it; then the experts that it
 * takes become the most recent, the one of the highest weight last, at equal weights the lower index last.
 * Skipped experts and those that were full touch nothing. It is empty at first. Layers do not see each other,
 * so chunks, steps, beams and sweeps layer by layer agree bit for bit. Choices are kept for every position,
 * so that a sequence can be taken back. Thread rule: one thread at a time. */
#ifndef MOEC_RUNTIME_ROUTE_STATE_H
#define MOEC_RUNTIME_ROUTE_STATE_H

#include "runtime/policy/route.h"

#define MOEC_ROUTE_NO_EXPERT UINT16_MAX

/* Experts that tokens took: all, and those that the logical cache had not. */
struct moec_route_counts {
    uint64_t n_taken, n_missed;
};

struct moec_route_state {
    uint32_t n_layer, n_expert, n_slots, top_k;
    uint32_t n_context;              /* positions that can be taken back; 0 = none can */
    uint16_t *recent;                /* (n_layer, n_slots), the most recent first, owned */
    uint32_t *n_recent;              /* (n_layer), owned */
    bool *is_there;                  /* (n_layer, n_expert), owned */
    float *range_sum;                /* (n_layer), owned */
    uint32_t *n_done;                /* (n_layer): positions so far, owned */
    uint16_t *touched;               /* (n_layer, n_context, top_k) in order of touching, owned */
    float *ranges;                   /* (n_layer, n_context), owned */
    struct moec_route_counts counts; /* of the tokens so far, those taken back too */
};

/* Bytes of a state, for a budget. */
uint64_t moec_route_state_bytes(const struct moec_config *config, const struct moec_route *route,
                                uint32_t n_layer, uint32_t n_context);
MOEC_WARN_UNUSED enum moec_status moec_route_state_create(const struct moec_config *config,
                                                          const struct moec_route *route, uint32_t n_layer,
                                                          uint32_t n_context, struct moec_route_state *state,
                                                          struct moec_error *err);
void moec_route_state_release(struct moec_route_state *state);

/* Empties a layer, or all; counts stay. */
void moec_route_state_reset(struct moec_route_state *state, uint32_t layer);

/* Layers from first_layer on go back to where n positions had passed; n_context is not 0. */
void moec_route_state_truncate(struct moec_route_state *state, uint32_t first_layer, uint32_t n);

/* `to`, of the same settings and at least as large a context, becomes what `from` is. */
void moec_route_state_copy(struct moec_route_state *to, const struct moec_route_state *from);

static inline bool moec_route_state_has(const struct moec_route_state *state, uint32_t layer, uint32_t expert)
{
    return state->is_there[(size_t)layer * state->n_expert + expert];
}

/* The average range of the layer's positions so far and of the next, whose own is given. */
float moec_route_state_range(const struct moec_route_state *state, uint32_t layer, float range);

/* The next position has taken these experts (top_k), NULL where all it did is pass; skips (top_k) names those
 * that touch nothing. */
void moec_route_state_take(struct moec_route_state *state, uint32_t layer, float range,
                           const uint32_t *experts, const float *weights, const bool *skips);

#endif
