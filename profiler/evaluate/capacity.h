/* Counts of the tokens that experts were sent, where a model limits them (runtime/forward/forward.h, struct
 * moec_capacity): the sequences of one batch, each from its first token on. Of a model without limits nothing
 * is counted and nothing costs anything. Thread rule: one thread at a time. */
#ifndef MOEC_PROFILER_CAPACITY_H
#define MOEC_PROFILER_CAPACITY_H

#include "runtime/forward/forward.h"

struct moec_capacities {
    struct moec_capacity batch;
    struct moec_capacity_span *spans; /* (n_room), owned; NULL without limits */
    uint32_t *counts;                 /* (n_room, n_expert), owned */
    uint32_t n_expert;
};

/* Room for batches of up to n_room sequences. */
MOEC_WARN_UNUSED enum moec_status moec_capacities_create(const struct moec_config *config, uint32_t n_room,
                                                         struct moec_capacities *capacities,
                                                         struct moec_error *err);
void moec_capacities_release(struct moec_capacities *capacities);

/* A batch without sequences, and one more in it, of n_rows tokens. */
void moec_capacities_clear(struct moec_capacities *capacities);
void moec_capacities_add(struct moec_capacities *capacities, uint32_t n_rows);

/* moec_forward_mlp for one layer and the batch that was made: it may be made again afterwards, and must be
 * for the next layer. */
MOEC_WARN_UNUSED enum moec_status moec_capacities_mlp(struct moec_capacities *capacities,
                                                      struct moec_forward *forward, uint32_t layer,
                                                      uint32_t n_tok, float *hidden,
                                                      const struct moec_mlp_trace *trace,
                                                      struct moec_error *err);

/* Whether a traced choice came to nothing because the expert was full. */
static inline bool moec_capacity_was_full(const struct moec_config *config, float weight)
{
    return config->expert_capacity > 0 && weight == 0;
}

#endif
