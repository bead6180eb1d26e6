/* uses, sizes, keys and places are one block of memory. The place of a key that is not present is stale, so
 * both directions are compared to find out. Whoever changes a key's use must settle it. A step costs the
 * logarithm of a layer's keys, but a victim may cost all of them where few may be given up. */
#include "runtime/policy/evict/key_heaps.h"

uint64_t moec_key_heaps_bytes(uint32_t n_key)
{
    return (uint64_t)n_key * (sizeof(struct moec_key_use) + 3 * sizeof(uint32_t));
}

struct moec_key_heaps moec_key_heaps_make(void *memory, uint32_t n_layer, uint32_t n_expert)
{
    const size_t n_key = (size_t)n_layer * n_expert;
    struct moec_key_use *uses = memory;
    uint32_t *sizes = (uint32_t *)(uses + n_key);
    return (struct moec_key_heaps){.n_layer = n_layer,
                                   .n_expert = n_expert,
                                   .uses = uses,
                                   .sizes = sizes,
                                   .keys = sizes + n_layer,
                                   .places = sizes + n_layer + n_key};
}

bool moec_key_heaps_is_before(const struct moec_key_heaps *heaps, uint32_t a, uint32_t b)
{
    const struct moec_key_use *ours = &heaps->uses[a], *theirs = &heaps->uses[b];
    return ours->count < theirs->count || (ours->count == theirs->count && ours->last < theirs->last);
}

static void put(struct moec_key_heaps *heaps, uint32_t *heap, uint32_t at, uint32_t key)
{
    heap[at] = key;
    heaps->places[key] = at;
}

static uint32_t *heap_of(struct moec_key_heaps *heaps, uint32_t key, uint32_t **size)
{
    const uint32_t layer = key / heaps->n_expert;
    *size = &heaps->sizes[layer];
    return heaps->keys + (size_t)layer * heaps->n_expert;
}

void moec_key_heaps_settle(struct moec_key_heaps *heaps, uint32_t key)
{
    uint32_t *size = NULL, *heap = heap_of(heaps, key, &size);
    uint32_t at = heaps->places[key];
    while (at > 0 && moec_key_heaps_is_before(heaps, key, heap[(at - 1) / 2])) {
        put(heaps, heap, at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (uint32_t child = 2 * at + 1; child < *size; child = 2 * at + 1) {
        if (child + 1 < *size && moec_key_heaps_is_before(heaps, heap[child + 1], heap[child]))
            child++;
        if (!moec_key_heaps_is_before(heaps, heap[child], key))
            break;
        put(heaps, heap, at, heap[child]);
        at = child;
    }
    put(heaps, heap, at, key);
}

void moec_key_heaps_add(struct moec_key_heaps *heaps, uint32_t key)
{
    uint32_t *size = NULL, *heap = heap_of(heaps, key, &size);
    put(heaps, heap, (*size)++, key);
    moec_key_heaps_settle(heaps, key);
}

void moec_key_heaps_remove(struct moec_key_heaps *heaps, uint32_t key)
{
    uint32_t *size = NULL, *heap = heap_of(heaps, key, &size);
    const uint32_t last = heap[--*size], at = heaps->places[key];
    if (last == key)
        return;
    put(heaps, heap, at, last);
    moec_key_heaps_settle(heaps, last);
}

bool moec_key_heaps_has(const struct moec_key_heaps *heaps, uint32_t key)
{
    const uint32_t layer = key / heaps->n_expert, place = heaps->places[key];
    return place < heaps->sizes[layer] && heaps->keys[(size_t)layer * heaps->n_expert + place] == key;
}

/* Under a key that may not be given up stand two heaps more, and nothing under one that is larger than the
 * best so far is smaller. Depth first, in the order of the places. */
uint32_t moec_key_heaps_smallest(const struct moec_key_heaps *heaps, uint32_t layer,
                                 moec_evictable_fn *evictable, void *context)
{
    const uint32_t *heap = heaps->keys + (size_t)layer * heaps->n_expert;
    const uint32_t n = heaps->sizes[layer];
    uint32_t best = MOEC_EVICT_NONE;
    for (uint64_t at = 1; n > 0;) { /* places from 1, so that a child is 2 at or 2 at + 1 */
        const uint32_t key = heap[at - 1];
        const bool is_cut = best != MOEC_EVICT_NONE && !moec_key_heaps_is_before(heaps, key, best);
        const bool is_found = !is_cut && evictable(context, key);
        best = is_found ? key : best;
        if (!is_cut && !is_found && 2 * at <= n) {
            at *= 2;
            continue;
        }
        while (at > 1 && (at % 2 == 1 || at == n)) /* no place to the right of it under the same one */
            at /= 2;
        if (at == 1)
            return best;
        at++;
    }
    return best;
}
