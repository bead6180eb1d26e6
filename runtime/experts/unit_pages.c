#include "runtime/experts/unit_pages.h"

#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"
#include "runtime/experts/expert_cache_internal.h"

#include <string.h>
#include <unistd.h>

static uint64_t whole_pages(uint64_t n_bytes)
{
    return (n_bytes + MOEC_PAGE_BYTES - 1) / MOEC_PAGE_BYTES * MOEC_PAGE_BYTES;
}

static uint32_t words_of(uint64_t slot_bytes)
{
    return (uint32_t)((slot_bytes / MOEC_PAGE_BYTES + 63) / 64);
}

uint64_t moec_unit_pages_table_bytes(uint32_t n_key, uint64_t slot_bytes)
{
    return sizeof(struct moec_unit_pages) +
           n_key * (words_of(slot_bytes) * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint64_t));
}

static uint64_t up_bytes_of(const struct moec_expert_cache *cache, uint32_t key)
{
    return whole_pages(moec_storage_up_place_of(cache->storages[0], moec_cache_ordinal(cache, key),
                                                moec_cache_expert(cache, key))
                           .n_bytes);
}

/* The most that an up section takes; 0 where slots are not of one size and of whole pages. */
static uint64_t largest_up_bytes(const struct moec_expert_cache *cache)
{
    uint64_t largest = 0;
    for (uint32_t key = 0; key < cache->n_key; key++) {
        const uint64_t n = up_bytes_of(cache, key);
        if (cache->slot_bytes[key] != cache->slot_bytes[0] || cache->slot_bytes[key] % MOEC_PAGE_BYTES != 0)
            return 0;
        largest = n > largest ? n : largest;
    }
    return largest < cache->slot_bytes[0] && sysconf(_SC_PAGESIZE) == (long)MOEC_PAGE_BYTES ? largest : 0;
}

/* How many whole records fit beside the up sections of a layer; 0 where too few do. */
static uint32_t records_beside(const struct moec_expert_cache *cache, uint64_t up_bytes)
{
    const struct moec_expert_cache_options *options = &cache->options;
    const uint64_t least = options->least_bytes > 0 && options->least_bytes < cache->buffer_bytes
                               ? options->least_bytes
                               : cache->buffer_bytes;
    const uint64_t layer = cache->n_expert * up_bytes;
    const uint64_t n = least > layer ? (least - layer) / (cache->slot_bytes[0] - up_bytes) : 0;
    return n < cache->bundle->config.top_k ? 0 : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

enum moec_status moec_unit_pages_create(const struct moec_expert_cache *cache, struct moec_unit_pages **out,
                                        struct moec_error *err)
{
    static const char what[] = "pages of experts";
    const uint64_t up_bytes = largest_up_bytes(cache), slot = cache->slot_bytes[0];
    const uint32_t max_held = up_bytes > 0 ? records_beside(cache, up_bytes) : 0;
    enum moec_status status = MOEC_OK;
    struct moec_unit_pages *pages = NULL;
    *out = NULL;
    if (max_held == 0 || !cache->keeps_expected || cache->buffer_bytes / slot >= cache->n_key)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&pages, 1, sizeof *pages, what, err));
    const uint64_t fit = cache->buffer_bytes / up_bytes + MOEC_CACHE_DEPTH;
    pages->n_words = words_of(slot);
    pages->arena_bytes = (fit < cache->n_key ? fit : cache->n_key) * slot;
    pages->limit_bytes = cache->buffer_bytes;
    pages->max_held = max_held;
    MOEC_TRY_OUT(moec_alloc((void **)&pages->taken, (uint64_t)cache->n_key * pages->n_words,
                            sizeof *pages->taken, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&pages->n_taken, cache->n_key, sizeof *pages->n_taken, what, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&pages->least_bytes, cache->n_key, sizeof *pages->least_bytes, what, err));
    for (uint32_t key = 0; key < cache->n_key; key++)
        pages->least_bytes[key] = up_bytes;
    *out = pages;
    pages = NULL;
out:
    moec_unit_pages_free(pages);
    return status;
}

void moec_unit_pages_free(struct moec_unit_pages *pages)
{
    if (pages == NULL)
        return;
    free(pages->taken);
    free(pages->n_taken);
    free(pages->least_bytes);
    free(pages);
}

void moec_unit_pages_begin(struct moec_expert_cache *cache)
{
    const struct moec_unit_pages *pages = cache->units->pages;
    if (pages != NULL)
        moec_give_back_memory(moec_arena_bytes(cache->arena), 0, pages->arena_bytes);
}

/* Marks pages first .. end - 1 of a key as taken, or only counts those that are not. */
static uint32_t mark(struct moec_unit_pages *pages, uint32_t key, uint64_t first, uint64_t end, bool takes)
{
    uint64_t *taken = pages->taken + (size_t)key * pages->n_words;
    uint32_t n = 0;
    for (uint64_t page = first; page < end; page++) {
        const uint64_t bit = (uint64_t)1 << (page % 64);
        n += (taken[page / 64] & bit) == 0;
        taken[page / 64] |= takes ? bit : 0;
    }
    return n;
}

/* Gives experts up until n more bytes fit; whether they do. */
static bool make_room(struct moec_expert_cache *cache, uint64_t n_bytes)
{
    const struct moec_unit_pages *pages = cache->units->pages;
    while (pages->used_bytes + n_bytes > pages->limit_bytes)
        if (!moec_residency_shrink(cache->residency))
            return false;
    return true;
}

bool moec_unit_pages_take(struct moec_expert_cache *cache, uint32_t key, uint64_t from, uint64_t n_bytes)
{
    struct moec_unit_pages *pages = cache->units->pages;
    if (pages == NULL || n_bytes == 0)
        return true;
    const uint64_t first = from / MOEC_PAGE_BYTES, end = (from + n_bytes - 1) / MOEC_PAGE_BYTES + 1;
    const uint32_t visit = cache->units->entries[key].visit;
    /* What is demanded always fits (records_beside), unless reads of experts that have left are still in
     * flight. */
    (void)make_room(cache, mark(pages, key, first, end, false) * MOEC_PAGE_BYTES);
    if (visit != cache->units->entries[key].visit)
        return false;
    const uint32_t n = mark(pages, key, first, end, true);
    pages->n_taken[key] += n;
    pages->used_bytes += n * MOEC_PAGE_BYTES;
    return true;
}

void moec_unit_pages_release(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_unit_pages *pages = cache->units->pages;
    if (pages == NULL || pages->n_taken[key] == 0)
        return;
    uint8_t *arena = moec_arena_bytes(cache->arena);
    const uint64_t from = (uint64_t)(moec_arena_slot(cache->arena, key) - arena);
    moec_give_back_memory(arena, from, from + cache->slot_bytes[key]);
    memset(pages->taken + (size_t)key * pages->n_words, 0, pages->n_words * sizeof *pages->taken);
    pages->used_bytes -= pages->n_taken[key] * MOEC_PAGE_BYTES;
    pages->n_taken[key] = 0;
}

bool moec_unit_pages_limit(struct moec_expert_cache *cache, uint64_t n_bytes)
{
    cache->units->pages->limit_bytes = n_bytes;
    return make_room(cache, 0);
}
