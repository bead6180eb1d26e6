/* ARC, adaptive replacement (N. Megiddo and D. Modha, FAST 2003): keys used once and keys used again in two
 * lists, with the keys that each lately gave up remembered beside them; a wish for one of those moves the
 * share of the buffer, p, towards its list.
 *
 * Records differ in size, so the capacity c, which the paper knows, is the largest number of keys that were
 * present at once so far. Where the list that the rule names has nothing to give up (its keys are in use),
 * the other one does. */
#include "formats/base/memory.h"
#include "runtime/policy/key_list.h"

enum place { NOWHERE = 0, ONCE, AGAIN, ONCE_GONE, AGAIN_GONE, N_PLACE };

struct arc {
    struct moec_evict base;
    uint32_t capacity;                   /* c */
    uint32_t share;                      /* p: keys that the list ONCE may keep */
    bool again_wanted;                   /* the key that room is made for was given up by AGAIN */
    struct moec_key_list lists[N_PLACE]; /* T1, T2, B1, B2 of the paper, oldest first */
    uint8_t *places;                     /* (n_key) enum place; behind the links */
    struct moec_key_link links[];        /* (n_key) */
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
    MOEC_TRY(moec_alloc(&memory, arc_state_bytes(n_key), 1, "eviction policy", err));
    struct arc *arc = memory;
    arc->base.ops = &moec_evict_arc;
    arc->places = (uint8_t *)(arc->links + n_key);
    for (size_t i = 0; i < N_PLACE; i++)
        arc->lists[i] = moec_key_list_empty();
    *out = &arc->base;
    return MOEC_OK;
}

static void arc_destroy(struct moec_evict *self)
{
    free(self);
}

static void move(struct arc *arc, uint32_t key, enum place to)
{
    if (arc->places[key] != NOWHERE)
        moec_key_list_remove(&arc->lists[arc->places[key]], arc->links, key);
    if (to != NOWHERE)
        moec_key_list_append(&arc->lists[to], arc->links, key);
    arc->places[key] = (uint8_t)to;
}

static uint32_t ratio(uint32_t a, uint32_t b)
{
    return a > b ? a / b : 1;
}

static void arc_wanted(struct moec_evict *self, uint32_t key)
{
    struct arc *arc = (struct arc *)self;
    const uint32_t n_once = arc->lists[ONCE_GONE].n, n_again = arc->lists[AGAIN_GONE].n;
    arc->again_wanted = arc->places[key] == AGAIN_GONE;
    if (arc->places[key] == ONCE_GONE) {
        const uint32_t step = ratio(n_again, n_once);
        arc->share = arc->capacity - arc->share > step ? arc->share + step : arc->capacity;
    } else if (arc->places[key] == AGAIN_GONE) {
        const uint32_t step = ratio(n_once, n_again);
        arc->share = arc->share > step ? arc->share - step : 0;
    }
}

static void arc_inserted(struct moec_evict *self, uint32_t key)
{
    struct arc *arc = (struct arc *)self;
    move(arc, key, arc->places[key] == NOWHERE ? ONCE : AGAIN);
    const uint32_t n = arc->lists[ONCE].n + arc->lists[AGAIN].n;
    arc->capacity = n > arc->capacity ? n : arc->capacity;
}

static void arc_used(struct moec_evict *self, uint32_t key)
{
    move((struct arc *)self, key, AGAIN);
}

/* Remembers at most c keys beside ONCE's, and 2c in all. */
static void forget(struct arc *arc)
{
    struct moec_key_list *lists = arc->lists;
    while (lists[ONCE_GONE].n > 0 && lists[ONCE].n + lists[ONCE_GONE].n > arc->capacity)
        move(arc, lists[ONCE_GONE].oldest, NOWHERE);
    while (lists[AGAIN_GONE].n > 0 &&
           lists[ONCE].n + lists[AGAIN].n + lists[ONCE_GONE].n + lists[AGAIN_GONE].n > 2 * arc->capacity)
        move(arc, lists[AGAIN_GONE].oldest, NOWHERE);
}

static void arc_removed(struct moec_evict *self, uint32_t key)
{
    struct arc *arc = (struct arc *)self;
    move(arc, key, arc->places[key] == ONCE ? ONCE_GONE : AGAIN_GONE);
    forget(arc);
}

static uint32_t arc_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    struct arc *arc = (struct arc *)self;
    const uint32_t n_once = arc->lists[ONCE].n;
    const bool once = n_once > 0 && (n_once > arc->share || (arc->again_wanted && n_once == arc->share));
    const struct moec_key_list *first = &arc->lists[once ? ONCE : AGAIN];
    const struct moec_key_list *second = &arc->lists[once ? AGAIN : ONCE];
    const uint32_t key = moec_key_list_oldest(first, arc->links, evictable, context);
    return key != MOEC_EVICT_NONE ? key : moec_key_list_oldest(second, arc->links, evictable, context);
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
