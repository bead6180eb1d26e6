#include "runtime/evict.h"

#include "formats/memory.h"

#define NONE MOEC_EVICT_NONE

/* A list through all present keys, least recently used first. */
struct link {
    uint32_t older;
    uint32_t newer;
};

struct lru {
    struct moec_evict base;
    uint32_t oldest;
    uint32_t newest;
    struct link links[];
};

static uint64_t lru_state_bytes(uint32_t n_key)
{
    return sizeof(struct lru) + (uint64_t)n_key * sizeof(struct link);
}

static enum moec_status lru_create(uint32_t n_key, struct moec_evict **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, lru_state_bytes(n_key), 1, "eviction policy", err));
    struct lru *lru = memory;
    lru->base.ops = &moec_evict_lru;
    lru->oldest = lru->newest = NONE;
    *out = &lru->base;
    return MOEC_OK;
}

static void lru_destroy(struct moec_evict *self)
{
    free(self);
}

static void lru_inserted(struct moec_evict *self, uint32_t key)
{
    struct lru *lru = (struct lru *)self;
    lru->links[key] = (struct link){.older = lru->newest, .newer = NONE};
    if (lru->newest != NONE)
        lru->links[lru->newest].newer = key;
    else
        lru->oldest = key;
    lru->newest = key;
}

static void lru_removed(struct moec_evict *self, uint32_t key)
{
    struct lru *lru = (struct lru *)self;
    struct link link = lru->links[key];
    if (link.older != NONE)
        lru->links[link.older].newer = link.newer;
    else
        lru->oldest = link.newer;
    if (link.newer != NONE)
        lru->links[link.newer].older = link.older;
    else
        lru->newest = link.older;
}

static void lru_used(struct moec_evict *self, uint32_t key)
{
    lru_removed(self, key);
    lru_inserted(self, key);
}

static uint32_t lru_victim(const struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    const struct lru *lru = (const struct lru *)self;
    uint32_t key = lru->oldest;
    while (key != NONE && !evictable(context, key))
        key = lru->links[key].newer;
    return key;
}

const struct moec_evict_ops moec_evict_lru = {.name = "lru",
                                              .state_bytes = lru_state_bytes,
                                              .create = lru_create,
                                              .destroy = lru_destroy,
                                              .inserted = lru_inserted,
                                              .used = lru_used,
                                              .removed = lru_removed,
                                              .victim = lru_victim};
