/* Invariants, under the lock:
 *  - resident entries (loading, ready) form a list in the order of their offsets and do not overlap;
 *  - used_bytes is the sum of their slots; the policy knows exactly the resident keys;
 *  - an entry with pins > 0, or loading, is neither moved nor evicted. */
#include "runtime/expert_cache.h"

#include "formats/memory.h"
#include "runtime/storage.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define NONE 0xffffffffu

enum state { ABSENT = 0, LOADING, READY };

struct entry {
    uint64_t offset;     /* in the arena */
    uint64_t slot_bytes; /* record rounded up to MOEC_CACHE_UNIT_BYTES; set once */
    uint32_t previous;   /* neighbours by offset */
    uint32_t next;
    uint32_t pins;
    uint8_t state;
};

struct moec_expert_cache {
    struct moec_experts experts; /* first: the source */
    const struct moec_bundle *bundle;
    uint32_t copy;
    uint32_t n_expert;
    uint32_t n_layer;                      /* MoE layers */
    int32_t *ordinals;                     /* (config.n_layer): MoE ordinal or -1, owned */
    struct moec_record_layout layouts[17]; /* by bits */
    struct moec_storage *storage;
    struct moec_evict *policy;
    struct moec_cache_counters *counters; /* (n_layer), owned */
    struct entry *entries;                /* (n_layer, n_expert), owned */
    uint8_t *arena;                       /* owned */
    uint64_t arena_bytes;
    uint64_t used_bytes;
    uint32_t first; /* entry with the lowest offset */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an entry was released, loaded or dropped */
};

static uint64_t slot_bytes(uint64_t n_bytes)
{
    return (n_bytes + MOEC_CACHE_UNIT_BYTES - 1) / MOEC_CACHE_UNIT_BYTES * MOEC_CACHE_UNIT_BYTES;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* --- sizes -------------------------------------------------------------------------------------------------
 */

struct moec_record_sizes moec_record_sizes_of(const struct moec_bundle *bundle, uint32_t copy)
{
    struct moec_record_sizes sizes = {0};
    uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    for (uint32_t ordinal = 0; ordinal < n_layer && n_expert > 0; ordinal++) {
        uint64_t layer_bytes = 0;
        for (uint32_t expert = 0; expert < n_expert; expert++) {
            uint64_t slot = slot_bytes(moec_bundle_record(bundle, copy, ordinal, expert)->n_bytes);
            sizes.largest_bytes = slot > sizes.largest_bytes ? slot : sizes.largest_bytes;
            layer_bytes += slot;
        }
        sizes.all_bytes += layer_bytes;
        sizes.token_bytes += (bundle->config.top_k * layer_bytes + n_expert - 1) / n_expert;
    }
    return sizes;
}

uint64_t moec_expert_cache_table_bytes(const struct moec_bundle *bundle, const struct moec_evict_ops *policy)
{
    uint32_t n_layer = moec_config_moe_count(&bundle->config);
    uint64_t n_key = (uint64_t)n_layer * bundle->config.n_expert;
    return sizeof(struct moec_expert_cache) + n_key * sizeof(struct entry) +
           n_layer * sizeof(struct moec_cache_counters) + bundle->config.n_layer * sizeof(int32_t) +
           (policy != NULL ? policy : &moec_evict_lru)->state_bytes((uint32_t)n_key) +
           moec_storage_bytes(bundle);
}

/* Records that one session may hold without ever waiting for room. With equal sizes every hole has room for
 * one; with mixed sizes h held records can cut the arena into h + 1 parts, of which one must have room for
 * the largest. */
static uint32_t records_held(uint64_t arena_bytes, uint64_t largest, bool equal_sizes, uint32_t n_sessions)
{
    uint64_t fit = largest > 0 ? arena_bytes / largest : 0;
    uint64_t held = (equal_sizes ? fit : (fit + 1) / 2) / n_sessions;
    return held < 1 ? 1 : held > UINT32_MAX ? UINT32_MAX : (uint32_t)held;
}

/* --- the arena ---------------------------------------------------------------------------------------------
 */

static bool is_movable(const struct entry *entry)
{
    return entry->state == READY && entry->pins == 0;
}

static uint64_t end_of(const struct moec_expert_cache *cache, uint32_t key)
{
    return key == NONE ? 0 : cache->entries[key].offset + cache->entries[key].slot_bytes;
}

static uint64_t start_of(const struct moec_expert_cache *cache, uint32_t key)
{
    return key == NONE ? cache->arena_bytes : cache->entries[key].offset;
}

static uint32_t next_of(const struct moec_expert_cache *cache, uint32_t key)
{
    return key == NONE ? cache->first : cache->entries[key].next;
}

static void link_after(struct moec_expert_cache *cache, uint32_t previous, uint32_t key)
{
    struct entry *entry = &cache->entries[key];
    entry->previous = previous;
    entry->next = next_of(cache, previous);
    if (previous == NONE)
        cache->first = key;
    else
        cache->entries[previous].next = key;
    if (entry->next != NONE)
        cache->entries[entry->next].previous = key;
    cache->used_bytes += entry->slot_bytes;
}

static void unlink_entry(struct moec_expert_cache *cache, uint32_t key)
{
    const struct entry *entry = &cache->entries[key];
    if (entry->previous == NONE)
        cache->first = entry->next;
    else
        cache->entries[entry->previous].next = entry->next;
    if (entry->next != NONE)
        cache->entries[entry->next].previous = entry->previous;
    cache->used_bytes -= entry->slot_bytes;
}

/* Smallest hole of at least n bytes: the entry before it in *previous (NONE = start of the arena). */
static bool find_hole(const struct moec_expert_cache *cache, uint64_t n, uint32_t *previous)
{
    uint64_t best = UINT64_MAX;
    uint32_t at = NONE;
    do {
        uint32_t next = next_of(cache, at);
        uint64_t hole = start_of(cache, next) - end_of(cache, at);
        if (hole >= n && hole < best) {
            best = hole;
            *previous = at;
        }
        at = next;
    } while (at != NONE);
    return best != UINT64_MAX;
}

/* Entries after `before` up to and including `last` slide down; the hole behind `last` takes all space
 * between. */
struct run {
    uint32_t before;
    uint32_t last;
    uint64_t moved_bytes;
};

/* Among runs of movable entries with holes of at least n bytes in all, the one that moves the fewest bytes. A
 * window over the list: its right end advances over every entry, its left end as far as the holes still
 * suffice. */
static bool find_run(const struct moec_expert_cache *cache, uint64_t n, struct run *best)
{
    struct run run = {.before = NONE, .last = NONE};
    uint64_t holes = start_of(cache, cache->first);
    best->moved_bytes = UINT64_MAX;
    for (uint32_t at = cache->first; at != NONE; at = cache->entries[at].next) {
        const struct entry *entry = &cache->entries[at];
        uint64_t hole = start_of(cache, entry->next) - end_of(cache, at);
        if (!is_movable(entry)) {
            run = (struct run){.before = at, .last = at};
            holes = hole;
            continue;
        }
        run.last = at;
        run.moved_bytes += entry->slot_bytes;
        holes += hole;
        while (run.before != run.last) {
            uint32_t second = next_of(cache, run.before);
            uint64_t left_hole = start_of(cache, second) - end_of(cache, run.before);
            if (holes - left_hole < n)
                break;
            holes -= left_hole;
            run.moved_bytes -= cache->entries[second].slot_bytes;
            run.before = second;
        }
        if (holes >= n && run.moved_bytes < best->moved_bytes)
            *best = run;
    }
    return best->moved_bytes != UINT64_MAX;
}

static void slide(struct moec_expert_cache *cache, const struct run *run)
{
    for (uint32_t at = run->before; at != run->last;) {
        uint64_t offset = end_of(cache, at);
        at = next_of(cache, at);
        struct entry *entry = &cache->entries[at];
        if (entry->offset != offset)
            memmove(cache->arena + offset, cache->arena + entry->offset, entry->slot_bytes);
        entry->offset = offset;
    }
}

/* --- residency ---------------------------------------------------------------------------------------------
 */

static bool is_evictable(void *context, uint32_t key)
{
    const struct moec_expert_cache *cache = context;
    return is_movable(&cache->entries[key]);
}

static void drop(struct moec_expert_cache *cache, uint32_t key)
{
    cache->policy->ops->removed(cache->policy, key);
    unlink_entry(cache, key);
    cache->entries[key].state = ABSENT;
}

/* Makes room for an absent entry and links it in as loading. False when pinned and loading entries are in the
 * way. */
static bool place(struct moec_expert_cache *cache, uint32_t key)
{
    struct entry *entry = &cache->entries[key];
    struct moec_cache_counters *counters = &cache->counters[key / cache->n_expert];
    uint32_t previous = NONE;
    struct run run;
    if (cache->policy->ops->wanted != NULL)
        cache->policy->ops->wanted(cache->policy, key);
    for (;;) {
        if (cache->arena_bytes - cache->used_bytes >= entry->slot_bytes) {
            if (find_hole(cache, entry->slot_bytes, &previous))
                break;
            if (find_run(cache, entry->slot_bytes, &run)) {
                slide(cache, &run);
                counters->moved_bytes += run.moved_bytes;
                previous = run.last;
                break;
            }
        }
        uint32_t victim = cache->policy->ops->victim(cache->policy, is_evictable, cache);
        if (victim == MOEC_EVICT_NONE)
            return false;
        cache->counters[victim / cache->n_expert].evictions++;
        drop(cache, victim);
    }
    entry->offset = end_of(cache, previous);
    entry->state = LOADING;
    link_after(cache, previous, key);
    cache->policy->ops->inserted(cache->policy, key);
    return true;
}

/* Reads a placed entry with the lock released meanwhile; on failure the entry is absent again. */
static enum moec_status load(struct moec_expert_cache *cache, uint32_t key, struct moec_error *err)
{
    struct entry *entry = &cache->entries[key];
    uint32_t ordinal = key / cache->n_expert, expert = key % cache->n_expert;
    struct moec_cache_counters *counters = &cache->counters[ordinal];
    uint8_t *buffer = cache->arena + entry->offset;
    (void)pthread_mutex_unlock(&cache->lock);
    uint64_t start = now_ns();
    enum moec_status status = moec_storage_read(cache->storage, ordinal, expert, buffer, err);
    uint64_t elapsed = now_ns() - start;
    (void)pthread_mutex_lock(&cache->lock);
    counters->misses++;
    counters->read_ns += elapsed;
    if (status == MOEC_OK) {
        counters->read_bytes += moec_bundle_record(cache->bundle, cache->copy, ordinal, expert)->n_bytes;
        entry->state = READY;
    } else {
        drop(cache, key);
    }
    (void)pthread_cond_broadcast(&cache->changed);
    return status;
}

/* --- the source --------------------------------------------------------------------------------------------
 */

static enum moec_status find_key(const struct moec_expert_cache *cache, uint32_t layer, uint32_t expert,
                                 uint32_t *key, struct moec_error *err)
{
    if (layer >= cache->bundle->config.n_layer || cache->ordinals[layer] < 0 || expert >= cache->n_expert)
        return moec_fail(err, MOEC_ERR_USAGE, "there is no layer %u expert %u in '%s'", layer, expert,
                         cache->bundle->file.path);
    *key = (uint32_t)cache->ordinals[layer] * cache->n_expert + expert;
    return MOEC_OK;
}

static enum moec_status cache_acquire(struct moec_experts *self, uint32_t layer, uint32_t expert,
                                      struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    enum moec_status status = MOEC_OK;
    uint32_t key = 0;
    bool was_loading = false, was_read = false;
    MOEC_TRY(find_key(cache, layer, expert, &key, err));
    struct entry *entry = &cache->entries[key];
    struct moec_cache_counters *counters = &cache->counters[key / cache->n_expert];
    (void)pthread_mutex_lock(&cache->lock);
    if (cache->policy->ops->reached != NULL)
        cache->policy->ops->reached(cache->policy, key / cache->n_expert);
    while (entry->state != READY) {
        if (entry->state == ABSENT && place(cache, key)) {
            MOEC_TRY_OUT(load(cache, key, err));
            was_read = true;
        } else {
            was_loading = was_loading || entry->state == LOADING;
            (void)pthread_cond_wait(&cache->changed, &cache->lock);
        }
    }
    entry->pins++;
    if (!was_read) {
        cache->policy->ops->used(cache->policy, key);
        *(was_loading ? &counters->late : &counters->hits) += 1;
    }
    uint32_t bits = moec_bundle_record(cache->bundle, cache->copy, key / cache->n_expert, expert)->bits;
    moec_record_bind(&cache->layouts[bits], cache->arena + entry->offset, mlp);
out:
    (void)pthread_mutex_unlock(&cache->lock);
    return status;
}

static void cache_release(struct moec_experts *self, uint32_t layer, uint32_t expert)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    uint32_t key = 0;
    if (find_key(cache, layer, expert, &key, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&cache->lock);
    struct entry *entry = &cache->entries[key];
    if (entry->pins > 0 && --entry->pins == 0)
        (void)pthread_cond_broadcast(&cache->changed);
    (void)pthread_mutex_unlock(&cache->lock);
}

static bool cache_ready(struct moec_experts *self, uint32_t layer, uint32_t expert)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    uint32_t key = 0;
    if (find_key(cache, layer, expert, &key, NULL) != MOEC_OK)
        return false;
    (void)pthread_mutex_lock(&cache->lock);
    bool ready = cache->entries[key].state == READY;
    (void)pthread_mutex_unlock(&cache->lock);
    return ready;
}

static const struct moec_experts_ops cache_ops = {
    .acquire = cache_acquire, .release = cache_release, .ready = cache_ready};

/* --- life --------------------------------------------------------------------------------------------------
 */

static enum moec_status create_tables(struct moec_expert_cache *cache, struct moec_error *err)
{
    const struct moec_config *config = &cache->bundle->config;
    uint64_t n_key = (uint64_t)cache->n_layer * cache->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, config->n_layer, sizeof *cache->ordinals, "expert cache", err));
    cache->ordinals = memory;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        cache->ordinals[layer] = moec_config_moe_ordinal(config, layer);
    MOEC_TRY(moec_alloc(&memory, cache->n_layer, sizeof *cache->counters, "expert cache", err));
    cache->counters = memory;
    MOEC_TRY(moec_alloc(&memory, n_key, sizeof *cache->entries, "expert cache", err));
    cache->entries = memory;
    for (uint32_t key = 0; key < n_key; key++)
        cache->entries[key].slot_bytes = slot_bytes(
            moec_bundle_record(cache->bundle, cache->copy, key / cache->n_expert, key % cache->n_expert)
                ->n_bytes);
    for (uint32_t bits = 0; bits <= 16; bits++)
        cache->layouts[bits] = moec_record_layout_make(config, cache->bundle->codecs[bits]);
    return MOEC_OK;
}

/* Frequencies come from the bundle's path table, where there is one. */
static enum moec_status create_policy(struct moec_expert_cache *cache, const struct moec_evict_ops *policy,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_path_table *paths = &cache->bundle->paths;
    struct moec_evict_setup setup = {.n_layer = cache->n_layer, .n_expert = cache->n_expert};
    void *memory = NULL;
    if (paths->n_layer == cache->n_layer && paths->n_expert == cache->n_expert) {
        const size_t n_key = (size_t)cache->n_layer * cache->n_expert;
        MOEC_TRY_OUT(moec_alloc(&memory, n_key, sizeof(float), "expert frequencies", err));
        float *frequency = memory;
        for (size_t i = 0; i < n_key; i++)
            frequency[i / cache->n_expert * cache->n_expert + paths->frequency[i].expert] =
                (float)paths->frequency[i].probability / 65535.0f;
        setup.frequency = frequency;
    }
    MOEC_TRY_OUT(policy->create(&setup, &cache->policy, err));
out:
    free(memory);
    return status;
}

enum moec_status moec_expert_cache_create(const struct moec_bundle *bundle,
                                          const struct moec_expert_cache_options *options,
                                          struct moec_expert_cache **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_expert_cache), "expert cache", err));
    struct moec_expert_cache *cache = memory;
    const struct moec_evict_ops *policy = options->policy != NULL ? options->policy : &moec_evict_lru;
    uint32_t n_sessions = options->n_sessions > 0 ? options->n_sessions : 1;
    (void)pthread_mutex_init(&cache->lock, NULL);
    (void)pthread_cond_init(&cache->changed, NULL);
    cache->bundle = bundle;
    cache->copy = options->copy;
    cache->n_expert = bundle->config.n_expert;
    cache->n_layer = moec_config_moe_count(&bundle->config);
    cache->first = NONE;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_storage_create(bundle, options->copy, &cache->storage, err));
    struct moec_record_sizes sizes = moec_record_sizes_of(bundle, options->copy);
    if (options->buffer_bytes < sizes.largest_bytes) {
        status =
            moec_fail(err, MOEC_ERR_BUDGET,
                      "an expert buffer of %" PRIu64 " bytes has no room for the largest record of %" PRIu64,
                      options->buffer_bytes, sizes.largest_bytes);
        goto out;
    }
    MOEC_TRY_OUT(create_tables(cache, err));
    MOEC_TRY_OUT(create_policy(cache, policy, err));
    cache->arena_bytes = options->buffer_bytes / MOEC_CACHE_UNIT_BYTES * MOEC_CACHE_UNIT_BYTES;
    if (cache->arena_bytes > sizes.all_bytes)
        cache->arena_bytes = sizes.all_bytes;
    MOEC_TRY_OUT(moec_alloc_aligned(&memory, cache->arena_bytes, 1, "expert buffer", err));
    cache->arena = memory;
    bool equal_sizes = sizes.all_bytes == sizes.largest_bytes * cache->n_layer * cache->n_expert;
    cache->experts.ops = &cache_ops;
    cache->experts.max_held = records_held(cache->arena_bytes, sizes.largest_bytes, equal_sizes, n_sessions);
    *out = cache;
    cache = NULL;
out:
    moec_expert_cache_free(cache);
    return status;
}

void moec_expert_cache_free(struct moec_expert_cache *cache)
{
    if (cache == NULL)
        return;
    if (cache->policy != NULL)
        cache->policy->ops->destroy(cache->policy);
    moec_storage_free(cache->storage);
    free(cache->ordinals);
    free(cache->counters);
    free(cache->entries);
    free(cache->arena);
    (void)pthread_cond_destroy(&cache->changed);
    (void)pthread_mutex_destroy(&cache->lock);
    free(cache);
}

struct moec_experts *moec_expert_cache_experts(struct moec_expert_cache *cache)
{
    return &cache->experts;
}

uint64_t moec_expert_cache_buffer_bytes(const struct moec_expert_cache *cache)
{
    return cache->arena_bytes;
}

struct moec_cache_counters moec_expert_cache_layer_counters(struct moec_expert_cache *cache, uint32_t ordinal)
{
    (void)pthread_mutex_lock(&cache->lock);
    struct moec_cache_counters counters = cache->counters[ordinal];
    (void)pthread_mutex_unlock(&cache->lock);
    return counters;
}

struct moec_cache_counters moec_expert_cache_counters(struct moec_expert_cache *cache)
{
    struct moec_cache_counters sum = {0};
    for (uint32_t ordinal = 0; ordinal < cache->n_layer; ordinal++) {
        struct moec_cache_counters one = moec_expert_cache_layer_counters(cache, ordinal);
        sum.hits += one.hits;
        sum.late += one.late;
        sum.misses += one.misses;
        sum.evictions += one.evictions;
        sum.read_bytes += one.read_bytes;
        sum.read_ns += one.read_ns;
        sum.moved_bytes += one.moved_bytes;
    }
    return sum;
}
