/* Keys that are present, a heap for each layer: by how much their uses count, then by the last use, the
 * smallest on top. Policies whose order within a layer does not depend on which layer is at work keep their
 * keys in these, so that a victim is found without a look at all of them (internal to runtime/policy). */
#ifndef MOEC_RUNTIME_KEY_HEAPS_H
#define MOEC_RUNTIME_KEY_HEAPS_H

#include "runtime/policy/evict/evict.h"

/* A change of a present key's is followed by moec_key_heaps_settle. */
struct moec_key_use {
    uint64_t count;
    uint64_t last; /* clock of the last use */
};

/* In memory that the policy gives. */
struct moec_key_heaps {
    uint32_t n_layer, n_expert;
    struct moec_key_use *uses; /* (n_key) of absent keys too */
    uint32_t *sizes;           /* (n_layer) of the heaps */
    uint32_t *keys;            /* (n_layer, n_expert), the smallest first */
    uint32_t *places;          /* (n_key) where a present key stands in its layer's heap */
};

uint64_t moec_key_heaps_bytes(uint32_t n_key);
/* Empty, in zeroed memory of so many bytes, aligned for uint64_t. */
struct moec_key_heaps moec_key_heaps_make(void *memory, uint32_t n_layer, uint32_t n_expert);

void moec_key_heaps_add(struct moec_key_heaps *heaps, uint32_t key);    /* absent -> present */
void moec_key_heaps_remove(struct moec_key_heaps *heaps, uint32_t key); /* present -> absent */
/* Whether a key is present. */
bool moec_key_heaps_has(const struct moec_key_heaps *heaps, uint32_t key);
/* Moves a present key whose use has changed to where it belongs. */
void moec_key_heaps_settle(struct moec_key_heaps *heaps, uint32_t key);
/* The order of two keys. */
bool moec_key_heaps_is_before(const struct moec_key_heaps *heaps, uint32_t a, uint32_t b);
/* The smallest key of a layer that may be given up, or MOEC_EVICT_NONE. */
uint32_t moec_key_heaps_smallest(const struct moec_key_heaps *heaps, uint32_t layer,
                                 moec_evictable_fn *evictable, void *context);

#endif
