/* A wish comes first: the key is then still in a list of those given up, and moves p by the ratio of both.
 * Insertion then puts it by its place: nowhere to once, anything else to again. A removal remembers it, and
 * forgets the oldest until |once| + |once gone| <= c and all four <= 2 c. */
#include "runtime/policy/evict/arc.h"

void moec_arc_init(struct moec_arc *arc)
{
    *arc = (struct moec_arc){0};
    for (size_t i = 0; i < MOEC_ARC_PLACES; i++)
        arc->lists[i] = moec_key_list_empty();
}

static void move(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key, enum moec_arc_place to)
{
    if (keys->places[key] != MOEC_ARC_NOWHERE)
        moec_key_list_remove(&arc->lists[keys->places[key]], keys->links, key);
    if (to != MOEC_ARC_NOWHERE)
        moec_key_list_append(&arc->lists[to], keys->links, key);
    keys->places[key] = (uint8_t)to;
}

static uint32_t ratio(uint32_t a, uint32_t b)
{
    return a > b ? a / b : 1;
}

void moec_arc_wanted(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key)
{
    const uint32_t n_once = arc->lists[MOEC_ARC_ONCE_GONE].n, n_again = arc->lists[MOEC_ARC_AGAIN_GONE].n;
    arc->again_wanted = keys->places[key] == MOEC_ARC_AGAIN_GONE;
    if (keys->places[key] == MOEC_ARC_ONCE_GONE) {
        const uint32_t step = ratio(n_again, n_once);
        arc->share = arc->capacity > arc->share && arc->capacity - arc->share > step ? arc->share + step
                                                                                     : arc->capacity;
    } else if (keys->places[key] == MOEC_ARC_AGAIN_GONE) {
        const uint32_t step = ratio(n_once, n_again);
        arc->share = arc->share > step ? arc->share - step : 0;
    }
}

void moec_arc_inserted(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key)
{
    move(arc, keys, key, keys->places[key] == MOEC_ARC_NOWHERE ? MOEC_ARC_ONCE : MOEC_ARC_AGAIN);
}

void moec_arc_used(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key)
{
    move(arc, keys, key, MOEC_ARC_AGAIN);
}

/* Remembers at most c keys beside those of MOEC_ARC_ONCE, and 2c in all. */
static void forget(struct moec_arc *arc, const struct moec_arc_keys *keys)
{
    struct moec_key_list *lists = arc->lists, *once = &lists[MOEC_ARC_ONCE_GONE],
                         *again = &lists[MOEC_ARC_AGAIN_GONE];
    while (once->n > 0 && lists[MOEC_ARC_ONCE].n + once->n > arc->capacity)
        move(arc, keys, once->oldest, MOEC_ARC_NOWHERE);
    while (again->n > 0 && moec_arc_present(arc) + once->n + again->n > 2 * arc->capacity)
        move(arc, keys, again->oldest, MOEC_ARC_NOWHERE);
}

void moec_arc_removed(struct moec_arc *arc, const struct moec_arc_keys *keys, uint32_t key)
{
    move(arc, keys, key, keys->places[key] == MOEC_ARC_ONCE ? MOEC_ARC_ONCE_GONE : MOEC_ARC_AGAIN_GONE);
    forget(arc, keys);
}

uint32_t moec_arc_victim(const struct moec_arc *arc, const struct moec_arc_keys *keys,
                         moec_evictable_fn *evictable, void *context)
{
    const uint32_t n_once = arc->lists[MOEC_ARC_ONCE].n;
    const bool once = n_once > 0 && (n_once > arc->share || (arc->again_wanted && n_once == arc->share));
    const struct moec_key_list *first = &arc->lists[once ? MOEC_ARC_ONCE : MOEC_ARC_AGAIN];
    const struct moec_key_list *second = &arc->lists[once ? MOEC_ARC_AGAIN : MOEC_ARC_ONCE];
    const uint32_t key = moec_key_list_oldest(first, keys->links, evictable, context);
    return key != MOEC_EVICT_NONE ? key : moec_key_list_oldest(second, keys->links, evictable, context);
}
