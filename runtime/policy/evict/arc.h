/* ARC, adaptive replacement (N. Megiddo and D. Modha, FAST 2003), over the keys of one cache (internal to
 * runtime/policy): keys used once and keys used again in two lists, with the keys that each lately gave up
 * remembered beside them; a wish for one of those moves the share of the cache, p, towards its list.
 *
 * Where the list that the rule names has nothing to give up (its keys are in use), the other one does. Caches
 * may share links and places, as long as no key is in two of them. */
#ifndef MOEC_RUNTIME_ARC_H
#define MOEC_RUNTIME_ARC_H

#include "runtime/policy/evict/key_list.h"

enum moec_arc_place {
    MOEC_ARC_NOWHERE = 0,
    MOEC_ARC_ONCE,       /* T1 of the paper */
    MOEC_ARC_AGAIN,      /* T2 */
    MOEC_ARC_ONCE_GONE,  /* B1 */
    MOEC_ARC_AGAIN_GONE, /* B2 */
    MOEC_ARC_PLACES
};

/* Of all keys. */
struct moec_arc_keys {
    uint8_t *places;             /* (n_key) enum moec_arc_place */
    struct moec_key_link *links; /* (n_key) */
};

struct moec_arc {
    uint32_t capacity; /* c: keys that may be present, which who has it sets */
    uint32_t share;    /* p: keys that MOEC_ARC_ONCE may keep */
    bool again_wanted; /* the key that room is made for was given up by MOEC_ARC_AGAIN */
    struct moec_key_list lists[MOEC_ARC_PLACES]; /* oldest first */
};

/* Nothing is present. */
void moec_arc_init(struct moec_arc *arc);

/* Keys that are present. */
static inline uint32_t moec_arc_present(const struct moec_arc *arc)
{
    return arc->lists[MOEC_ARC_ONCE].n + arc->lists[MOEC_ARC_AGAIN].n;
}

/* What struct moec_evict_ops says of them. */
void moec_arc_wanted(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key);
void moec_arc_inserted(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key);
void moec_arc_used(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key);
void moec_arc_removed(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key);
uint32_t moec_arc_victim(const struct moec_arc *arc, const struct moec_arc_keys *keys,
                         moec_evictable_fn *evictable, void *context);

#endif
