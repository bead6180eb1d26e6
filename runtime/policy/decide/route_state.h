/* What routing with a cache knows of a sequence: the logical cache of each MoE layer, the choices that made
 * it, and the router's average range.
 *
 * The logical cache stands for the experts that are in memory, and is a function of the tokens alone (D15):
 * in each layer the n_slots experts used last. A token sees the state before it; then the experts that it
 * takes become the most recent, the one of the highest weight last, at equal weights the lower index last.
 * Skipped experts and those that were full touch nothing. It is empty at first, or holds what was used most
 * in calibration. Low copies of experts
 * (runtime/policy/decide/precision.h) have a cache of the same kind beside it. Layers do not see each other,
 * so chunks, steps, beams and sweeps layer by layer agree bit for bit. Choices are kept for every position,
 * so that a sequence can be taken back. Thread rule: one thread at a time. */
#ifndef MOEC_RUNTIME_ROUTE_STATE_H
#define MOEC_RUNTIME_ROUTE_STATE_H

#include "runtime/policy/decide/logical_cache.h"
#include "runtime/policy/decide/popularity.h"
#include "runtime/policy/decide/route.h"

#define MOEC_ROUTE_NO_EXPERT UINT16_MAX
#define MOEC_ROUTE_LOW       0x8000u

/* Experts that tokens took, but for tokens of a prompt that is left to the router. */
struct moec_route_counts {
    uint64_t n_position;          /* of all layers together */
    uint64_t n_taken, n_missed;   /* all, and those that neither the logical cache nor a prompt's block had;
                                   * none where there is no such cache */
    uint64_t n_low, n_low_missed; /* of these, low copies */
    uint64_t n_skipped;           /* chosen, but not taken */
    uint64_t missed_bytes;        /* records of n_missed, where their sizes are known */
};

static inline void moec_route_counts_add(struct moec_route_counts *sum, const struct moec_route_counts *one)
{
    sum->n_position += one->n_position;
    sum->n_taken += one->n_taken;
    sum->n_missed += one->n_missed;
    sum->n_low += one->n_low;
    sum->n_low_missed += one->n_low_missed;
    sum->n_skipped += one->n_skipped;
    sum->missed_bytes += one->missed_bytes;
}

/* Bytes of missed records for each token of a model of so many MoE layers. */
static inline double moec_route_token_bytes(const struct moec_route_counts *counts, uint32_t n_layer)
{
    return counts->n_position > 0
               ? (double)counts->missed_bytes * (double)n_layer / (double)counts->n_position
               : 0;
}

/* The logical cache of one copy. */
struct moec_route_pool {
    uint32_t n_slots;   /* of a layer; 0 = there is none */
    uint16_t *recent;   /* (n_layer, n_slots), the most recent first, owned */
    uint32_t *n_recent; /* (n_layer), owned */
    bool *is_there;     /* (n_layer, n_expert), owned */
};

struct moec_route_state {
    uint32_t n_layer, n_expert, top_k;
    uint32_t n_context;                    /* positions that can be taken back; 0 = none can */
    const struct moec_path_value *initial; /* of struct moec_route */
    uint32_t first_ordinal; /* MoE ordinal of the first layer; changed before a reset where it is another */
    struct moec_route_pool pools[2];   /* of the assignment's records, and of low copies */
    struct moec_popularity popularity; /* where a prompt has its own precision */
    /* Of hobbit with blocks (runtime/policy/decide/precision.h): (n_layer, n_expert) enum moec_block_copy of the block
     * that the layer's next position is in, and which block that is of. NULL = none, owned. */
    uint8_t *block;
    uint32_t block_tokens;
    float *range_sum;  /* (n_layer), owned */
    uint32_t *n_done;  /* (n_layer): positions so far, owned */
    uint16_t *touched; /* (n_layer, n_context, top_k) in order of touching, owned or lent:
                                        * experts, those of the low pool + MOEC_ROUTE_LOW */
    float *ranges;     /* (n_layer, n_context), owned or lent */
    bool is_lent;
    const struct moec_logical_cache *shared; /* that is told what the pools hold; borrowed; NULL = none */
    struct moec_route_counts counts;         /* of the tokens so far, those taken back too */
};

/* Bytes of a state, for a budget. */
uint64_t moec_route_state_bytes(const struct moec_config *config, const struct moec_route *route,
                                uint32_t n_layer, uint32_t n_context);
MOEC_WARN_UNUSED enum moec_status moec_route_state_create(const struct moec_config *config,
                                                          const struct moec_route *route, uint32_t n_layer,
                                                          uint32_t n_context, struct moec_route_state *state,
                                                          struct moec_error *err);
void moec_route_state_release(struct moec_route_state *state);

/* A state made without a context keeps its positions, n_context of each layer, in arrays of the caller, as
 * `touched` and `ranges` say, until others are lent or the state is released. */
void moec_route_state_lend(struct moec_route_state *state, uint16_t *touched, float *ranges,
                           uint32_t n_context);

/* From now on, until it is released, the state's pools count in a cache of as many MoE layers, which has form
 * 0 for the first and, where there is one, form 1 for the second. */
void moec_route_state_share(struct moec_route_state *state, const struct moec_logical_cache *shared);

/* A layer is as at first; counts stay. */
void moec_route_state_reset(struct moec_route_state *state, uint32_t layer);

/* Layers from first_layer on go back to where n positions had passed; n_context is not 0. */
void moec_route_state_truncate(struct moec_route_state *state, uint32_t first_layer, uint32_t n);

/* `to`, of the same settings and at least as large a context, becomes what `from` is. */
void moec_route_state_copy(struct moec_route_state *to, const struct moec_route_state *from);

/* Whether a pool holds it: `is_low` asks for the low copy. */
static inline bool moec_route_state_has(const struct moec_route_state *state, uint32_t layer, uint32_t expert,
                                        bool is_low)
{
    return state->pools[is_low].is_there[(size_t)layer * state->n_expert + expert];
}

/* The average range of the layer's positions so far and of the next, whose own is given. */
float moec_route_state_range(const struct moec_route_state *state, uint32_t layer, float range);

/* What a position has taken: experts and weights (top_k), skips (top_k) of those that touch nothing. */
struct moec_route_taken {
    const uint32_t *experts;
    const float *weights;
    const bool *skips;
    const bool *is_low;              /* (top_k) in their low copies; NULL = none */
    uint32_t n_identity;             /* of the skips, those that give their input: they count as nothing */
    bool is_of_block;                /* a prompt's token: what its block has read is there for it */
    bool is_left_out;                /* a prompt's token that nothing is decided about: it is not counted */
    const uint64_t *record_bytes[2]; /* (n_expert) of the layer's records, high and low; NULL = unknown */
};

/* The next position of the layer is a prompt's, and may begin a block: only with a prefill. */
void moec_route_state_begin_prompt(struct moec_route_state *state, uint32_t layer);

/* The copies (n_expert) that the block of the layer's next position has of experts so far; NULL = no blocks. */
const uint8_t *moec_route_state_block(struct moec_route_state *state, uint32_t layer);

/* The next position of the layer has taken these. */
void moec_route_state_take(struct moec_route_state *state, uint32_t layer, float range,
                           const struct moec_route_taken *taken);

#endif
