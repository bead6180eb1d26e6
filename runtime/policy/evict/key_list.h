/* Doubly linked lists of the keys of an eviction, oldest first (internal to runtime/). The links are
 * an array with one element for each key, so nothing is allocated, and a key is in at most one of the lists
 * that share the array. */
#ifndef MOEC_RUNTIME_KEY_LIST_H
#define MOEC_RUNTIME_KEY_LIST_H

#include "runtime/policy/evict/evict.h"

struct moec_key_link {
    uint32_t older;
    uint32_t newer;
};

struct moec_key_list {
    uint32_t oldest; /* MOEC_EVICT_NONE when empty */
    uint32_t newest;
    uint32_t n;
};

static inline struct moec_key_list moec_key_list_empty(void)
{
    return (struct moec_key_list){.oldest = MOEC_EVICT_NONE, .newest = MOEC_EVICT_NONE};
}

static inline void moec_key_list_append(struct moec_key_list *list, struct moec_key_link *links, uint32_t key)
{
    links[key] = (struct moec_key_link){.older = list->newest, .newer = MOEC_EVICT_NONE};
    if (list->newest != MOEC_EVICT_NONE)
        links[list->newest].newer = key;
    else
        list->oldest = key;
    list->newest = key;
    list->n++;
}

static inline void moec_key_list_prepend(struct moec_key_list *list, struct moec_key_link *links,
                                         uint32_t key)
{
    links[key] = (struct moec_key_link){.older = MOEC_EVICT_NONE, .newer = list->oldest};
    if (list->oldest != MOEC_EVICT_NONE)
        links[list->oldest].older = key;
    else
        list->newest = key;
    list->oldest = key;
    list->n++;
}

static inline void moec_key_list_remove(struct moec_key_list *list, struct moec_key_link *links, uint32_t key)
{
    const struct moec_key_link link = links[key];
    if (link.older != MOEC_EVICT_NONE)
        links[link.older].newer = link.newer;
    else
        list->oldest = link.newer;
    if (link.newer != MOEC_EVICT_NONE)
        links[link.newer].older = link.older;
    else
        list->newest = link.older;
    list->n--;
}

/* The oldest key that may be evicted, or MOEC_EVICT_NONE. */
static inline uint32_t moec_key_list_oldest(const struct moec_key_list *list,
                                            const struct moec_key_link *links, moec_evictable_fn *evictable,
                                            void *context)
{
    uint32_t key = list->oldest;
    while (key != MOEC_EVICT_NONE && !evictable(context, key))
        key = links[key].newer;
    return key;
}

#endif
