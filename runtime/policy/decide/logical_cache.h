/* What the logical caches of an engine's sequences (runtime/policy/decide/route_state.h) hold together: for each
 * expert, in each form, how many of them have it. An expert buffer with room for all of it keeps it before
 * anything else, so that what is logically present is in memory (runtime/policy/schedule/residency.h). No result
 * depends on these counts; they affect only what is read.
 *
 * Keys are those of the residency: (MoE ordinal x n_form + form) x n_expert + expert. Thread rule: the counts
 * from any thread, the rest is immutable after creation. */
#ifndef MOEC_RUNTIME_LOGICAL_CACHE_H
#define MOEC_RUNTIME_LOGICAL_CACHE_H

#include "formats/base/error.h"

#include <stdatomic.h>
#include <stdint.h>

struct moec_logical_cache {
    uint32_t n_layer, n_form, n_expert;
    uint32_t n_slots[2];    /* experts of a layer that all sequences together hold at most, in form 0 and in
                             * each other form; at most n_expert */
    atomic_uint *n_holders; /* (n_layer, n_form, n_expert), owned */
};

/* Bytes of the counts, for a budget. */
static inline uint64_t moec_logical_cache_bytes(uint32_t n_layer, uint32_t n_form, uint32_t n_expert)
{
    return sizeof(struct moec_logical_cache) + (uint64_t)n_layer * n_form * n_expert * sizeof(atomic_uint);
}

/* What the logical caches of sequences are of. */
struct moec_logical_shape {
    uint32_t n_layer, n_form, n_expert;
    uint32_t n_slots[2]; /* one sequence's, of the high copies and the low ones */
};

/* Nobody holds anything. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_logical_cache_create(const struct moec_logical_shape *shape,
                                                            uint32_t n_sequence,
                                                            struct moec_logical_cache **out,
                                                            struct moec_error *err);
void moec_logical_cache_free(struct moec_logical_cache *cache); /* NULL-safe */

/* One sequence more or less holds the key. */
static inline void moec_logical_cache_count(const struct moec_logical_cache *cache, uint32_t key, bool holds)
{
    if (holds)
        (void)atomic_fetch_add_explicit(&cache->n_holders[key], 1, memory_order_relaxed);
    else
        (void)atomic_fetch_sub_explicit(&cache->n_holders[key], 1, memory_order_relaxed);
}

static inline bool moec_logical_cache_has(const struct moec_logical_cache *cache, uint32_t key)
{
    return atomic_load_explicit(&cache->n_holders[key], memory_order_relaxed) > 0;
}

/* What a buffer needs for it. */
struct moec_logical_room {
    uint64_t held_bytes;    /* of what is held, whichever experts these are: the largest of each layer */
    uint64_t passing_bytes; /* beside it, of what a layer's batch may ask for and nobody holds after it: at
                             * most the rest of one layer */
};

/* slot_bytes (n_layer, n_form, n_expert). */
struct moec_logical_room moec_logical_cache_room(const struct moec_logical_cache *cache,
                                                 const uint64_t *slot_bytes);

#endif
