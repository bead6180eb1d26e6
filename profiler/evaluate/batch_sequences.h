/* What a MoE layer is told of the sequences of one batch, each from its first token on
 * (runtime/forward/context/sequences.h): counts of the tokens that experts were sent, where a model limits
 * them, the tokens themselves, where layers route by them, and logical caches, where the forward pass
 * decides. Without any nothing is kept and nothing costs anything. Thread rule: one thread at a time. */
#ifndef MOEC_PROFILER_BATCH_SEQUENCES_H
#define MOEC_PROFILER_BATCH_SEQUENCES_H

#include "formats/model/config.h"
#include "profiler/evaluate/cache_replay.h"
#include "runtime/forward/context/sequences.h"
#include "runtime/policy/decide/route_state.h"

struct moec_batch_sequences {
    struct moec_sequences batch;
    struct moec_sequence_rows *spans; /* (n_room), owned; NULL without any of them */
    uint32_t *counts;                 /* (n_room, n_expert), owned; NULL without limits */
    struct moec_route_state *routes;  /* (n_room) of one layer each, owned; NULL without */
    const struct moec_route *route;   /* borrowed */
    uint32_t n_expert, n_room;
    uint32_t ordinal; /* of the MoE layer at work */

    /* Where logical caches are replayed: */
    uint32_t n_rows;                  /* of the batch */
    uint16_t *touched;                /* (max_rows, top_k), owned, and */
    float *ranges;                    /* (max_rows), owned: lent to `routes` */
    struct moec_cache_replay *replay; /* owned; NULL where they are not */
};

/* Room for batches of up to n_room sequences; `route` NULL: nothing is decided. */
MOEC_WARN_UNUSED enum moec_status moec_batch_sequences_create(const struct moec_config *config,
                                                              uint32_t n_room, const struct moec_route *route,
                                                              struct moec_batch_sequences *sequences,
                                                              struct moec_error *err);
void moec_batch_sequences_release(struct moec_batch_sequences *sequences);

/* From now on what logical caches did can be replayed; batches have at most max_rows tokens. Does nothing
 * without a route. */
MOEC_WARN_UNUSED enum moec_status moec_batch_sequences_keep(struct moec_batch_sequences *sequences,
                                                            const struct moec_config *config,
                                                            uint32_t max_rows, struct moec_error *err);

/* A batch without sequences, and one more in it, of n_rows tokens (borrowed until the batch was used), of
 * which the first n_prompt are a prompt's. */
void moec_batch_sequences_clear(struct moec_batch_sequences *sequences);

/* The MoE layer (ordinal) that the sequences added from now on begin in; 0 at first. */
static inline void moec_batch_sequences_set_layer(struct moec_batch_sequences *sequences, uint32_t ordinal)
{
    sequences->ordinal = ordinal;
}
void moec_batch_sequences_add(struct moec_batch_sequences *sequences, const uint32_t *tokens, uint32_t n_rows,
                              uint32_t n_prompt);

/* Replays the batch, whose layer is done; once for each batch. Does nothing where nothing is kept. */
void moec_batch_sequences_replay(struct moec_batch_sequences *sequences);

/* What was decided in all batches so far. */
struct moec_route_counts moec_batch_sequences_route_counts(const struct moec_batch_sequences *sequences);

/* What moec_forward_mlp is given for the batch that was made, for one layer: made again before the next one.
 * NULL where nothing is kept. */
static inline const struct moec_sequences *
moec_batch_sequences_batch(const struct moec_batch_sequences *sequences)
{
    return sequences->spans != NULL ? &sequences->batch : NULL;
}

/* Whether a traced choice reached no expert: that was full, or the choice is one that gives its input. */
static inline bool moec_choice_is_passed(const struct moec_config *config, float weight)
{
    return moec_config_has_passed(config) && moec_capacity_was_full(weight);
}

#endif
