/* Eviction policies: tables of functions, one policy a file (D9). The expert cache of the runtime and the
 * cache simulator run the same code.
 *
 * A policy sees keys, key = MoE ordinal x n_expert + expert, and keeps what it needs for each. It never sees
 * bytes: the cache asks for victims until a record fits. Thread rule: the caller's lock covers every call on
 * one instance. */
#ifndef MOEC_RUNTIME_EVICT_H
#define MOEC_RUNTIME_EVICT_H

#include "formats/error.h"

#include <stddef.h>

#define MOEC_EVICT_NONE 0xffffffffu

/* First member of every policy's state. */
struct moec_evict {
    const struct moec_evict_ops *ops;
};

/* Whether the cache may give up this key now (it is resident and nobody uses it). */
typedef bool moec_evictable_fn(void *context, uint32_t key);

struct moec_evict_ops {
    const char *name;
    /* Bytes of state for n_key keys, for a budget. */
    uint64_t (*state_bytes)(uint32_t n_key);
    /* Everything absent. Owned by the caller, released with destroy. */
    enum moec_status (*create)(uint32_t n_key, struct moec_evict **out, struct moec_error *err);
    void (*destroy)(struct moec_evict *self); /* NULL-safe */

    void (*inserted)(struct moec_evict *self, uint32_t key); /* absent -> present; counts as a use */
    void (*used)(struct moec_evict *self, uint32_t key);     /* present */
    void (*removed)(struct moec_evict *self, uint32_t key);  /* present -> absent */

    /* The key to give up next among those present that `evictable` accepts, or MOEC_EVICT_NONE. Does not
     * remove it. */
    uint32_t (*victim)(const struct moec_evict *self, moec_evictable_fn *evictable, void *context);
};

/* Least recently used first. */
extern const struct moec_evict_ops moec_evict_lru;

#endif
