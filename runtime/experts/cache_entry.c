/* The only file that writes an entry's state, list and slot. Each function is one edge of the picture in the
 * header, so an invariant can be checked edge by edge. A slot that becomes free or is unpinned no longer
 * blocks the move that waited for it. */
#include "runtime/experts/cache_entry.h"

#include "formats/base/memory.h"
#include "runtime/experts/expert_cache_internal.h"

enum moec_status moec_cache_entries_create(struct moec_expert_cache *cache, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, cache->n_key, sizeof *cache->links, "expert cache", err));
    cache->links = memory;
    MOEC_TRY(moec_alloc(&memory, cache->n_key, sizeof *cache->entries, "expert cache", err));
    cache->entries = memory;
    for (uint32_t key = 0; key < cache->n_key; key++)
        cache->entries[key].list = MOEC_CACHE_NO_LIST;
    for (int list = 0; list < MOEC_CACHE_N_LIST; list++)
        cache->lists[list] = moec_key_list_empty();
    return MOEC_OK;
}

void moec_cache_entries_free(struct moec_expert_cache *cache)
{
    free(cache->links);
    free(cache->entries);
}

/* ---- queues and slots ---- */

static void enlist(struct moec_expert_cache *cache, uint32_t key, enum moec_cache_list list)
{
    cache->entries[key].list = (uint8_t)list;
    moec_key_list_append(&cache->lists[list], cache->links, key);
}

static void delist(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    if (entry->list != MOEC_CACHE_NO_LIST)
        moec_key_list_remove(&cache->lists[entry->list], cache->links, key);
    entry->list = MOEC_CACHE_NO_LIST;
}

static void queue(struct moec_expert_cache *cache, uint32_t key, enum moec_cache_list list)
{
    cache->entries[key].state = MOEC_CACHE_QUEUED;
    enlist(cache, key, list);
}

static void free_slot(struct moec_expert_cache *cache, uint32_t key)
{
    if (!moec_arena_has(moec_cache_arena(cache, key), key))
        return;
    moec_units_forget(cache, key);
    moec_arena_remove(moec_cache_arena(cache, key), key);
    cache->is_blocked = false;
}

static void unpin(struct moec_expert_cache *cache, uint32_t key)
{
    moec_arena_unpin(moec_cache_arena(cache, key), key);
    cache->is_blocked = false;
}

static void count_wasted_prefetch(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    moec_cache_counters_of(cache, key)->wasted_preloads += entry->is_prefetched;
    entry->is_prefetched = false;
}

/* ---- coming and going ---- */

void moec_cache_entry_wait(struct moec_expert_cache *cache, uint32_t key)
{
    enlist(cache, key, MOEC_CACHE_WAITING);
}

void moec_cache_entry_stop_waiting(struct moec_expert_cache *cache, uint32_t key)
{
    delist(cache, key);
}

void moec_cache_entry_bring(struct moec_expert_cache *cache, uint32_t key, enum moec_cache_list list)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    delist(cache, key);
    entry->tries = 0;
    entry->is_prefetched = list == MOEC_CACHE_PREFETCHED;
    if (entry->state == MOEC_CACHE_READING)
        entry->is_doomed = false;
    else
        queue(cache, key, list);
}

void moec_cache_entry_ask(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    moec_cache_counters_of(cache, key)->useful_preloads += entry->is_prefetched;
    entry->is_prefetched = false;
    if (entry->list == MOEC_CACHE_PREFETCHED || entry->list == MOEC_CACHE_WARMING) {
        delist(cache, key);
        enlist(cache, key, MOEC_CACHE_DEMANDED);
    }
}

void moec_cache_entry_leave(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    count_wasted_prefetch(cache, key);
    delist(cache, key);
    if (entry->state == MOEC_CACHE_READING) {
        entry->is_doomed = true;
        return;
    }
    entry->state = MOEC_CACHE_ABSENT;
    free_slot(cache, key);
}

/* ---- reading ---- */

void moec_cache_entry_begin(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    moec_arena_pin(moec_cache_arena(cache, key), key);
    entry->kind = entry->list;
    delist(cache, key);
    entry->state = MOEC_CACHE_READING;
}

/* The read has ended without bytes that anybody may use. */
static void become_absent(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    count_wasted_prefetch(cache, key);
    free_slot(cache, key);
    entry->state = MOEC_CACHE_ABSENT;
    entry->is_doomed = false;
}

void moec_cache_entry_take_back(struct moec_expert_cache *cache, uint32_t key)
{
    unpin(cache, key);
    become_absent(cache, key);
}

enum moec_cache_end moec_cache_entry_end(struct moec_expert_cache *cache, uint32_t key, bool is_good,
                                         int problem)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    unpin(cache, key);
    if (entry->is_doomed) {
        become_absent(cache, key);
        return MOEC_CACHE_END_GONE;
    }
    if (is_good) {
        entry->state = MOEC_CACHE_READY;
        return MOEC_CACHE_END_READY;
    }
    if (!moec_cache_is_demanded(entry)) {
        become_absent(cache, key);
        return MOEC_CACHE_END_LOST;
    }
    if (++entry->tries < MOEC_RECORD_TRIES) {
        queue(cache, key, MOEC_CACHE_DEMANDED);
        return MOEC_CACHE_END_AGAIN;
    }
    free_slot(cache, key);
    entry->state = MOEC_CACHE_FAILED;
    entry->problem = problem;
    return MOEC_CACHE_END_FAILED;
}

void moec_cache_entry_retry(struct moec_expert_cache *cache, uint32_t key)
{
    cache->entries[key].tries = 0;
    queue(cache, key, MOEC_CACHE_DEMANDED);
}

/* ---- being used ---- */

void moec_cache_entry_hold(struct moec_expert_cache *cache, uint32_t key)
{
    cache->entries[key].held++;
    moec_arena_pin(moec_cache_arena(cache, key), key);
}

void moec_cache_entry_release(struct moec_expert_cache *cache, uint32_t key)
{
    cache->entries[key].held--;
    unpin(cache, key);
}
