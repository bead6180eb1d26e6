/* ARC over the whole buffer. Records differ in size, so the capacity c, which the paper knows, is the largest
 * number of keys that were present at once so far. */
#include "formats/base/memory.h"
#include "runtime/policy/evict/arc.h"

struct arc {
    struct moec_evict base;
    struct moec_arc all;
    struct moec_arc_keys keys;    /* behind the links */
    struct moec_key_link links[]; /* (n_key) */
};

static uint64_t arc_state_bytes(uint32_t n_key)
{
    return sizeof(struct arc) + (uint64_t)n_key * (sizeof(struct moec_key_link) + 1);
}

static enum moec_status arc_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                   struct moec_error *err)
{
    const uint32_t n_key = setup->n_layer * setup->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, arc_state_bytes(n_key), 1, "eviction", err));
    struct arc *arc = memory;
    arc->base.ops = &moec_evict_arc;
    arc->keys = (struct moec_arc_keys){(uint8_t *)(arc->links + n_key), arc->links};
    moec_arc_init(&arc->all);
    *out = &arc->base;
    return MOEC_OK;
}

static void arc_destroy(struct moec_evict *self)
{
    free(self);
}

static void arc_wanted(struct moec_evict *self, uint32_t key)
{
    struct arc *arc = (struct arc *)self;
    moec_arc_wanted(&arc->all, &arc->keys, key);
}

static void arc_inserted(struct moec_evict *self, uint32_t key)
{
    struct arc *arc = (struct arc *)self;
    moec_arc_inserted(&arc->all, &arc->keys, key);
    const uint32_t n = moec_arc_present(&arc->all);
    arc->all.capacity = n > arc->all.capacity ? n : arc->all.capacity;
}

static void arc_used(struct moec_evict *self, uint32_t key)
{
    struct arc *arc = (struct arc *)self;
    moec_arc_used(&arc->all, &arc->keys, key);
}

static void arc_removed(struct moec_evict *self, uint32_t key)
{
    struct arc *arc = (struct arc *)self;
    moec_arc_removed(&arc->all, &arc->keys, key);
}

static uint32_t arc_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    const struct arc *arc = (const struct arc *)self;
    return moec_arc_victim(&arc->all, &arc->keys, evictable, context);
}

const struct moec_evict_ops moec_evict_arc = {.name = "arc",
                                              .state_bytes = arc_state_bytes,
                                              .create = arc_create,
                                              .destroy = arc_destroy,
                                              .wanted = arc_wanted,
                                              .inserted = arc_inserted,
                                              .used = arc_used,
                                              .removed = arc_removed,
                                              .victim = arc_victim};
