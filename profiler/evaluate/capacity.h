/* What a MoE layer is told of the sequences of one batch, each from its first token on
 * (runtime/forward/expert_capacity.h): counts of the tokens that experts were sent, where a model limits
 * them, and logical caches, where the forward pass decides. Without either nothing is kept and nothing costs
 * anything. Thread rule: one thread at a time. */
#ifndef MOEC_PROFILER_CAPACITY_H
#define MOEC_PROFILER_CAPACITY_H

#include "formats/model/config.h"
#include "runtime/forward/expert_capacity.h"
#include "runtime/policy/route_state.h"

struct moec_capacities {
    struct moec_capacity batch;
    struct moec_capacity_span *spans; /* (n_room), owned; NULL without limits and routes */
    uint32_t *counts;                 /* (n_room, n_expert), owned; NULL without limits */
    struct moec_route_state *routes;  /* (n_room) of one layer each, owned; NULL without */
    const struct moec_route *route;   /* borrowed */
    uint32_t n_expert, n_room;
};

/* Room for batches of up to n_room sequences; `route` NULL: nothing is decided. */
MOEC_WARN_UNUSED enum moec_status moec_capacities_create(const struct moec_config *config, uint32_t n_room,
                                                         const struct moec_route *route,
                                                         struct moec_capacities *capacities,
                                                         struct moec_error *err);
void moec_capacities_release(struct moec_capacities *capacities);

/* A batch without sequences, and one more in it, of n_rows tokens, of which the first n_prompt are a
 * prompt's. */
void moec_capacities_clear(struct moec_capacities *capacities);
void moec_capacities_add(struct moec_capacities *capacities, uint32_t n_rows, uint32_t n_prompt);

/* Experts taken, and those that were missing in the logical caches, by all batches so far. */
struct moec_route_counts moec_capacities_route_counts(const struct moec_capacities *capacities);

/* What moec_forward_mlp is given for the batch that was made, for one layer: made again before the next one.
 * NULL without limits and routes. */
static inline const struct moec_capacity *moec_capacities_batch(const struct moec_capacities *capacities)
{
    return capacities->spans != NULL ? &capacities->batch : NULL;
}

/* Whether a traced choice came to nothing because the expert was full. */
static inline bool moec_capacity_was_full(const struct moec_config *config, float weight)
{
    return config->expert_capacity > 0 && weight == 0;
}

#endif
