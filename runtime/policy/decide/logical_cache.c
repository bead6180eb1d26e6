/* Room is a bound for all texts. In a layer and form at most n_slots x sequences experts are held, so the
 * largest records count, summed over layers. Of the others only one layer's are needed at once, so the
 * largest such sum counts. */
#include "runtime/policy/decide/logical_cache.h"

#include "formats/base/memory.h"

static uint32_t least(uint64_t a, uint32_t b)
{
    return a < b ? (uint32_t)a : b;
}

enum moec_status moec_logical_cache_create(const struct moec_logical_shape *shape, uint32_t n_sequence,
                                           struct moec_logical_cache **out, struct moec_error *err)
{
    const uint32_t n_expert = shape->n_expert;
    const char *what = "counts of logical caches";
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_logical_cache), what, err));
    struct moec_logical_cache *cache = memory;
    *cache =
        (struct moec_logical_cache){.n_layer = shape->n_layer,
                                    .n_form = shape->n_form,
                                    .n_expert = n_expert,
                                    .n_slots = {least((uint64_t)shape->n_slots[0] * n_sequence, n_expert),
                                                least((uint64_t)shape->n_slots[1] * n_sequence, n_expert)}};
    const enum moec_status status = moec_alloc(&memory, (uint64_t)shape->n_layer * shape->n_form * n_expert,
                                               sizeof *cache->n_holders, what, err);
    if (status != MOEC_OK) {
        moec_logical_cache_free(cache);
        return status;
    }
    cache->n_holders = memory;
    *out = cache;
    return MOEC_OK;
}

void moec_logical_cache_free(struct moec_logical_cache *cache)
{
    if (cache == NULL)
        return;
    free(cache->n_holders);
    free(cache);
}

/* Of one layer in one form: the n largest, and the others. */
static void add_largest(const uint64_t *slots, uint32_t n_expert, uint32_t n, uint64_t *largest,
                        uint64_t *others)
{
    for (uint32_t i = 0; i < n_expert; i++) {
        uint32_t n_before = 0;
        for (uint32_t j = 0; j < n_expert; j++)
            n_before += slots[j] > slots[i] || (slots[j] == slots[i] && j < i);
        *(n_before < n ? largest : others) += slots[i];
    }
}

struct moec_logical_room moec_logical_cache_room(const struct moec_logical_cache *cache,
                                                 const uint64_t *slot_bytes)
{
    struct moec_logical_room room = {0};
    for (uint32_t layer = 0; layer < cache->n_layer; layer++) {
        uint64_t others = 0;
        for (uint32_t form = 0; form < cache->n_form; form++)
            add_largest(slot_bytes + ((size_t)layer * cache->n_form + form) * cache->n_expert,
                        cache->n_expert, cache->n_slots[form > 0], &room.held_bytes, &others);
        room.passing_bytes = others > room.passing_bytes ? others : room.passing_bytes;
    }
    return room;
}
