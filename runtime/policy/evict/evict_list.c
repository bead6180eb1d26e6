/* One list serves both: to FIFO a use changes nothing. To LRU a key that was prefetched and not used is the
 * oldest. */
#include "formats/base/memory.h"
#include "runtime/policy/evict/key_list.h"

struct lru {
    struct moec_evict base;
    struct moec_key_list list; /* least recently used first */
    struct moec_key_link links[];
};

static uint64_t lru_state_bytes(uint32_t n_key)
{
    return sizeof(struct lru) + (uint64_t)n_key * sizeof(struct moec_key_link);
}

static enum moec_status create(const struct moec_evict_ops *ops, const struct moec_evict_setup *setup,
                               struct moec_evict **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, lru_state_bytes(setup->n_layer * setup->n_expert), 1, "eviction", err));
    struct lru *lru = memory;
    lru->base.ops = ops;
    lru->list = moec_key_list_empty();
    *out = &lru->base;
    return MOEC_OK;
}

static enum moec_status lru_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                   struct moec_error *err)
{
    return create(&moec_evict_lru, setup, out, err);
}

static enum moec_status fifo_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                    struct moec_error *err)
{
    return create(&moec_evict_fifo, setup, out, err);
}

static void lru_destroy(struct moec_evict *self)
{
    free(self);
}

static void lru_inserted(struct moec_evict *self, uint32_t key)
{
    struct lru *lru = (struct lru *)self;
    moec_key_list_append(&lru->list, lru->links, key);
}

/* Never used so far: what was guessed wrongly goes first. */
static void lru_prefetched(struct moec_evict *self, uint32_t key)
{
    struct lru *lru = (struct lru *)self;
    moec_key_list_prepend(&lru->list, lru->links, key);
}

static void lru_removed(struct moec_evict *self, uint32_t key)
{
    struct lru *lru = (struct lru *)self;
    moec_key_list_remove(&lru->list, lru->links, key);
}

static void lru_used(struct moec_evict *self, uint32_t key)
{
    lru_removed(self, key);
    lru_inserted(self, key);
}

/* The place in the queue is that of the arrival. */
static void fifo_used(struct moec_evict *self, uint32_t key)
{
    (void)self;
    (void)key;
}

static uint32_t lru_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    const struct lru *lru = (const struct lru *)self;
    return moec_key_list_oldest(&lru->list, lru->links, evictable, context);
}

const struct moec_evict_ops moec_evict_lru = {.name = "lru",
                                              .state_bytes = lru_state_bytes,
                                              .create = lru_create,
                                              .destroy = lru_destroy,
                                              .inserted = lru_inserted,
                                              .prefetched = lru_prefetched,
                                              .used = lru_used,
                                              .removed = lru_removed,
                                              .victim = lru_victim};

const struct moec_evict_ops moec_evict_fifo = {.name = "fifo",
                                               .state_bytes = lru_state_bytes,
                                               .create = fifo_create,
                                               .destroy = lru_destroy,
                                               .inserted = lru_inserted,
                                               .used = fifo_used,
                                               .removed = lru_removed,
                                               .victim = lru_victim};
