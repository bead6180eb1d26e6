/* How an expert cache is made, filled and freed. */
#include "runtime/experts/expert_cache_internal.h"

#include "formats/base/bytes.h"
#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

/* ---- sizes ---- */

struct moec_record_sizes moec_record_sizes_of(const struct moec_bundle *bundle, uint32_t copy)
{
    struct moec_record_sizes sizes = {0};
    uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    const uint32_t n_encoder = moec_config_moe_encoder_count(&bundle->config);
    for (uint32_t ordinal = 0; ordinal < n_layer && n_expert > 0; ordinal++) {
        uint64_t layer_bytes = 0;
        for (uint32_t expert = 0; expert < n_expert; expert++) {
            uint64_t slot = moec_record_slot_bytes(bundle, copy, ordinal, expert);
            sizes.largest_bytes = slot > sizes.largest_bytes ? slot : sizes.largest_bytes;
            layer_bytes += slot;
        }
        sizes.all_bytes += layer_bytes;
        if (ordinal >= n_encoder)
            sizes.token_bytes += (bundle->config.top_k * layer_bytes + n_expert - 1) / n_expert;
    }
    return sizes;
}

enum moec_status moec_record_logical_room(const struct moec_bundle *bundle,
                                          const struct moec_logical_cache *logical, const uint32_t *copies,
                                          struct moec_logical_room *room, struct moec_error *err)
{
    const uint32_t n_form = logical->n_form, n_expert = logical->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, (uint64_t)logical->n_layer * n_form * n_expert, sizeof(uint64_t),
                        "sizes of records", err));
    uint64_t *slot_bytes = memory;
    for (uint32_t i = 0; i < logical->n_layer * n_form; i++)
        for (uint32_t expert = 0; expert < n_expert; expert++)
            slot_bytes[(size_t)i * n_expert + expert] =
                moec_record_slot_bytes(bundle, copies[i % n_form], i / n_form, expert);
    *room = moec_logical_cache_room(logical, slot_bytes);
    free(slot_bytes);
    return MOEC_OK;
}

static uint32_t depth_of(const struct moec_expert_cache_options *options)
{
    const uint32_t depth = options->records.io.depth;
    return depth > 0 && depth < MOEC_CACHE_DEPTH ? depth : MOEC_CACHE_DEPTH;
}

static const struct moec_evict_ops *policy_of(const struct moec_expert_cache_options *options)
{
    return options->keeps.policy != NULL ? options->keeps.policy : &moec_evict_lru;
}

static struct moec_preload_setup preload_setup(const struct moec_bundle *bundle,
                                               const struct moec_expert_cache_options *options)
{
    const struct moec_config *config = &bundle->config;
    return (struct moec_preload_setup){.predictor = options->preload.predictor,
                                       .model = {.n_layer = moec_config_moe_count(config),
                                                 .n_encoder = moec_config_moe_encoder_count(config),
                                                 .n_expert = config->n_expert,
                                                 .top_k = config->top_k,
                                                 .paths = &bundle->paths},
                                       .bounds = {.ahead = options->preload.ahead,
                                                  .count = options->preload.count,
                                                  .is_tried = true,
                                                  .handling_ns = MOEC_PRELOAD_HANDLING_NS},
                                       .n_form = 1 + options->records.n_beside,
                                       .precision = options->preload.precision};
}

static bool prefetches(const struct moec_expert_cache_options *options)
{
    return options->preload.predictor != NULL && options->preload.predictor != &moec_predict_none;
}

uint64_t moec_expert_cache_table_bytes(const struct moec_bundle *bundle,
                                       const struct moec_expert_cache_options *options)
{
    const struct moec_preload_setup setup = preload_setup(bundle, options);
    const uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    const uint32_t n_form = 1 + options->records.n_beside, n_key = n_layer * n_form * n_expert;
    return sizeof(struct moec_expert_cache) + 2 * n_form * n_expert * sizeof(bool) +
           n_key * (sizeof(uint64_t) + sizeof(struct moec_cache_entry) + sizeof(struct moec_key_link)) +
           n_layer * n_form * sizeof(struct moec_cache_counters) + bundle->config.n_layer * sizeof(int32_t) +
           moec_residency_state_bytes(n_key, policy_of(options)) + moec_arena_table_bytes(n_key) +
           (options->buffer.low_pool_bytes > 0
                ? policy_of(options)->state_bytes(n_key) + moec_arena_table_bytes(n_key) + MOEC_PAGE_BYTES
                : 0) +
           n_form * moec_storage_bytes(bundle) + moec_reader_bytes(depth_of(options)) + MOEC_LOADER_BYTES +
           (prefetches(options) ? moec_preload_state_bytes(&setup) : 0) +
           moec_units_table_bytes(bundle, options);
}

/* Records that one session may hold without ever waiting for room. With equal sizes every hole has room for
 * one; with mixed sizes h held records can cut the arena into h + 1 parts, of which one must have room for
 * the largest. */
static uint32_t records_held(uint64_t buffer_bytes, uint64_t largest, bool equal_sizes, uint32_t n_sessions)
{
    uint64_t fit = largest > 0 ? buffer_bytes / largest : 0;
    uint64_t held = (equal_sizes ? fit : (fit + 1) / 2) / n_sessions;
    return held < 1 ? 1 : held > UINT32_MAX ? UINT32_MAX : (uint32_t)held;
}

/* ---- creation ---- */

static enum moec_status create_tables(struct moec_expert_cache *cache, struct moec_error *err)
{
    const struct moec_config *config = &cache->bundle->config;
    static const char what[] = "expert cache";
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, config->n_layer, sizeof *cache->ordinals, what, err));
    cache->ordinals = memory;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        cache->ordinals[layer] = moec_config_moe_ordinal(config, layer);
    MOEC_TRY(
        moec_alloc(&memory, (uint64_t)cache->n_layer * cache->n_form, sizeof *cache->counters, what, err));
    cache->counters = memory;
    const uint64_t n_layer_key = (uint64_t)cache->n_form * cache->n_expert;
    MOEC_TRY(moec_alloc(&memory, n_layer_key, sizeof *cache->was_present, what, err));
    cache->was_present = memory;
    MOEC_TRY(moec_alloc(&memory, n_layer_key, sizeof *cache->is_ready, what, err));
    cache->is_ready = memory;
    MOEC_TRY(moec_alloc(&memory, n_layer_key, sizeof *cache->turns, what, err));
    cache->turns = memory;
    MOEC_TRY(moec_alloc(&memory, cache->n_key, sizeof *cache->slot_bytes, what, err));
    cache->slot_bytes = memory;
    for (uint32_t key = 0; key < cache->n_key; key++)
        cache->slot_bytes[key] = moec_storage_slot_bytes(
            moec_cache_storage(cache, key), moec_cache_ordinal(cache, key), moec_cache_expert(cache, key));
    return moec_cache_entries_create(cache, err);
}

/* Of form 0's pool, or of the one buffer. */
static uint64_t high_bytes_of(const struct moec_expert_cache *cache)
{
    return cache->buffer_bytes - cache->options.buffer.low_pool_bytes;
}

/* As large as it may grow to, and shrunk before anything is in it. */
static enum moec_status create_growing(struct moec_expert_cache *cache, uint64_t *n_bytes,
                                       struct moec_error *err)
{
    uint64_t moved_bytes = 0;
    *n_bytes = cache->most_bytes;
    MOEC_TRY(moec_arena_create(cache->slot_bytes, cache->n_key, *n_bytes, &cache->arenas[0], err));
    (void)moec_arena_shrink(cache->arenas[0], cache->buffer_bytes, &moved_bytes);
    return MOEC_OK;
}

/* Two pools stand in one piece of memory, each at a page's start. */
static enum moec_status create_arenas(struct moec_expert_cache *cache, uint64_t *n_bytes,
                                      struct moec_error *err)
{
    const struct moec_unit_frames *frames = moec_cache_frames(cache);
    const uint64_t *slot_bytes = frames != NULL ? frames->slot_bytes : cache->slot_bytes;
    const uint64_t high = frames != NULL ? frames->up_bytes : high_bytes_of(cache),
                   low = cache->options.buffer.low_pool_bytes, from = moec_align_up(high, MOEC_PAGE_BYTES);
    void *memory = NULL;
    *n_bytes = low > 0 ? from + low : high;
    if (low == 0 && cache->most_bytes > high && frames == NULL)
        return create_growing(cache, n_bytes, err);
    if (low == 0)
        return moec_arena_create(slot_bytes, cache->n_key, high, &cache->arenas[0], err);
    MOEC_TRY(moec_alloc_pages(&memory, *n_bytes, "expert buffer", err));
    cache->pool_memory = memory;
    MOEC_TRY(moec_arena_create_within(slot_bytes, cache->n_key, memory, high, &cache->arenas[0], err));
    return moec_arena_create_within(slot_bytes, cache->n_key, cache->pool_memory + from, low,
                                    &cache->arenas[1], err);
}

/* Frequencies come from the bundle's path table, where there is one. */
static enum moec_status create_residency(struct moec_expert_cache *cache, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_path_table *paths = &cache->bundle->paths;
    const struct moec_unit_frames *frames = moec_cache_frames(cache);
    struct moec_residency_setup setup = {
        .shape = {.n_layer = cache->n_layer,
                  .n_encoder = moec_config_moe_encoder_count(&cache->bundle->config),
                  .n_shallow = paths->n_shallow,
                  .top_k = cache->bundle->config.top_k,
                  .n_expert = cache->n_expert,
                  .n_form = cache->n_form},
        .pools = {.slot_bytes = frames != NULL ? frames->slot_bytes : cache->slot_bytes,
                  .capacity_bytes = frames != NULL ? frames->up_bytes : high_bytes_of(cache),
                  .low_capacity_bytes = cache->options.buffer.low_pool_bytes},
        .policy = {.ops = policy_of(&cache->options), .weights = cache->options.keeps.weights},
        .logical = cache->options.keeps.logical,
        .evicted = {.call = moec_cache_evicted, .context = cache}};
    void *memory = NULL;
    if (paths->n_layer == cache->n_layer && paths->n_expert == cache->n_expert) {
        MOEC_TRY_OUT(moec_alloc(&memory, cache->n_key, sizeof(float), "expert frequencies", err));
        moec_residency_frequencies(paths, cache->n_form, memory);
        setup.policy.frequency = memory;
    }
    MOEC_TRY_OUT(moec_residency_create(&setup, &cache->residency, err));
out:
    free(memory);
    return status;
}

static bool view_is_present(void *context, uint32_t key)
{
    const struct moec_expert_cache *cache = context;
    return moec_residency_hint(cache->residency, key);
}

static uint64_t view_n_bytes_of(void *context, uint32_t key)
{
    const struct moec_expert_cache *cache = context;
    return (cache->units == NULL ? moec_storage_place_of : moec_storage_up_place_of)(
               moec_cache_storage(cache, key), moec_cache_ordinal(cache, key), moec_cache_expert(cache, key))
        .n_bytes;
}

/* What the arena has when it was shrunk as far as it may be. */
static uint64_t least_bytes_of(const struct moec_expert_cache *cache)
{
    const uint64_t least = cache->options.buffer.least_bytes;
    return least > 0 && least < cache->buffer_bytes ? least : cache->buffer_bytes;
}

/* Nothing is prefetched where everything stays anyway. */
static enum moec_status create_preload(struct moec_expert_cache *cache, uint64_t all_bytes,
                                       struct moec_error *err)
{
    struct moec_preload_setup setup = preload_setup(cache->bundle, &cache->options);
    setup.view = (struct moec_preload_view){
        .is_present = view_is_present, .n_bytes_of = view_n_bytes_of, .context = cache};
    cache->options.preload.reads_on = cache->options.preload.reads_on && least_bytes_of(cache) < all_bytes;
    cache->prompt_prefetch =
        (struct moec_prompt_prefetch){.setup = {.n_layer = setup.model.n_layer,
                                                .n_encoder = setup.model.n_encoder,
                                                .n_expert = setup.model.n_expert,
                                                .n_form = setup.n_form,
                                                .top_k = setup.model.top_k,
                                                .paths = setup.model.paths},
                                      .view = {.is_present = view_is_present, .context = cache}};
    if (prefetches(&cache->options) && least_bytes_of(cache) < all_bytes) {
        MOEC_TRY(moec_preload_create(&setup, &cache->preload, err));
        cache->experts.wants_choices = true;
        cache->experts.wants_next_gate = cache->options.preload.predictor->needs_next_gate;
        cache->experts.wants_next_learned = cache->options.preload.predictor->needs_learned;
    }
    return MOEC_OK;
}

static enum moec_status create_reader(struct moec_expert_cache *cache, uint64_t arena_bytes,
                                      struct moec_error *err)
{
    struct moec_record_io io = cache->options.records.io;
    io.depth = depth_of(&cache->options);
    MOEC_TRY(moec_record_reader_create(
        cache->bundle, cache->options.records.copy, &io,
        (struct moec_read_buffer){moec_arena_bytes(cache->arenas[0]), arena_bytes}, &cache->reader, err));
    cache->depth = cache->reader->depth < MOEC_CACHE_DEPTH ? cache->reader->depth : MOEC_CACHE_DEPTH;
    for (cache->n_free = 0; cache->n_free < cache->depth; cache->n_free++)
        cache->free_reads[cache->n_free] = &cache->reads[cache->n_free];
    return MOEC_OK;
}

static enum moec_status check_pool(uint64_t pool_bytes, uint64_t largest_bytes, const char *what,
                                   struct moec_error *err)
{
    if (pool_bytes >= largest_bytes)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "a pool of %" PRIu64 " bytes for %s-precision copies has no room for the largest copy "
                     "of an expert, which has %" PRIu64 " bytes",
                     pool_bytes, what, largest_bytes);
}

static enum moec_status check_buffer(const struct moec_expert_cache_options *options,
                                     const struct moec_record_sizes *sizes, struct moec_error *err)
{
    if (options->buffer.n_bytes < sizes->largest_bytes ||
        (options->buffer.least_bytes > 0 && options->buffer.least_bytes < sizes->largest_bytes))
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "an expert buffer of %" PRIu64 " bytes has no room for the largest expert's record "
                         "of %" PRIu64 " bytes",
                         options->buffer.least_bytes > 0 ? options->buffer.least_bytes
                                                         : options->buffer.n_bytes,
                         sizes->largest_bytes);
    if (options->keeps.is_resident && options->buffer.n_bytes < sizes->all_bytes)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "an expert buffer of %" PRIu64 " bytes has no room for all "
                         "experts, which take %" PRIu64 " bytes",
                         options->buffer.n_bytes, sizes->all_bytes);
    return MOEC_OK;
}

/* Puts what the buffer holds at first into the queue of the warm start. */
static enum moec_status fill(struct moec_expert_cache *cache, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, cache->n_key, sizeof(uint32_t), "warm start", err));
    uint32_t *keys = memory, n = 0;
    if (cache->options.keeps.is_warm)
        n = moec_residency_warm(cache->residency, keys);
    for (uint32_t key = 0; key < cache->n_key && cache->options.keeps.is_resident; key++)
        if (moec_cache_form(cache, key) == 0 && !moec_residency_is_present(cache->residency, key) &&
            moec_residency_prefetch(cache->residency, key))
            keys[n++] = key;
    for (uint32_t i = 0; i < n; i++)
        moec_cache_entry_bring(cache, keys[i], MOEC_CACHE_WARMING);
    free(memory);
    return MOEC_OK;
}

static enum moec_status create_forms(struct moec_expert_cache *cache, struct moec_error *err)
{
    const struct moec_expert_cache_options *options = &cache->options;
    cache->forms[0] = (struct moec_expert_form){.copy = options->records.copy};
    if (options->records.n_beside >= MOEC_CACHE_FORMS)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "experts are asked for in %" PRIu32 " forms (precisions) besides form 0, the limit "
                         "is %d",
                         options->records.n_beside, MOEC_CACHE_FORMS - 1);
    for (uint32_t form = 0; form < cache->n_form; form++) {
        if (form > 0)
            cache->forms[form] = options->records.beside[form - 1].form;
        if (cache->forms[form].pool != MOEC_POOL_HOST)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "there is no pool %d of experts in the host's memory, only pool 0",
                             (int)cache->forms[form].pool);
        const struct moec_storage_setup setup = {
            .bundle = cache->bundle,
            .copy = cache->forms[form].copy,
            .part = cache->forms[form].part,
            .part_crc32c = form > 0 ? options->records.beside[form - 1].part_crc32c : NULL};
        MOEC_TRY(moec_storage_create(&setup, &cache->storages[form], err));
    }
    cache->experts.n_form = cache->n_form;
    return MOEC_OK;
}

/* Of the forms from `first` to before `end` that are served. */
static struct moec_record_sizes sizes_of(const struct moec_expert_cache *cache, uint32_t first, uint32_t end)
{
    struct moec_record_sizes sizes = {0};
    for (uint32_t key = 0; key < cache->n_key; key++) {
        const uint64_t slot = cache->slot_bytes[key];
        if (moec_cache_form(cache, key) < first || moec_cache_form(cache, key) >= end)
            continue;
        sizes.largest_bytes = slot > sizes.largest_bytes ? slot : sizes.largest_bytes;
        sizes.all_bytes += slot;
    }
    return sizes;
}

/* Records that may be held within n_bytes for these forms. */
static uint32_t held_of_forms(const struct moec_expert_cache *cache, uint32_t first, uint32_t end,
                              uint64_t n_bytes)
{
    const struct moec_record_sizes sizes = sizes_of(cache, first, end);
    const uint64_t n_key = (uint64_t)cache->n_layer * (end - first) * cache->n_expert;
    const uint32_t n_sessions = cache->options.n_sessions > 0 ? cache->options.n_sessions : 1;
    return records_held(n_bytes, sizes.largest_bytes, sizes.all_bytes == sizes.largest_bytes * n_key,
                        n_sessions);
}

/* In whichever forms. */
static uint32_t max_held_of(const struct moec_expert_cache *cache)
{
    if (moec_cache_frames(cache) != NULL)
        return moec_cache_frames(cache)->max_held;
    if (cache->options.buffer.low_pool_bytes == 0)
        return held_of_forms(cache, 0, cache->n_form, least_bytes_of(cache));
    const uint32_t high = held_of_forms(cache, 0, 1, high_bytes_of(cache)),
                   low = held_of_forms(cache, 1, cache->n_form, cache->options.buffer.low_pool_bytes);
    return high < low ? high : low;
}

static enum moec_status check_pools(const struct moec_expert_cache *cache, struct moec_error *err)
{
    const struct moec_expert_cache_options *options = &cache->options;
    if (options->buffer.low_pool_bytes == 0)
        return MOEC_OK;
    if (options->records.n_beside != 1 || options->buffer.low_pool_bytes > cache->buffer_bytes ||
        (options->buffer.least_bytes > 0 && options->buffer.least_bytes < cache->buffer_bytes))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a pool of low-precision copies needs exactly one form (precision) of experts "
                         "besides form 0, and a buffer of fixed size that holds the pool");
    MOEC_TRY(check_pool(high_bytes_of(cache), sizes_of(cache, 0, 1).largest_bytes, "high", err));
    return check_pool(options->buffer.low_pool_bytes, sizes_of(cache, 1, 2).largest_bytes, "low", err);
}

static enum moec_status create_parts(struct moec_expert_cache *cache, struct moec_error *err)
{
    const struct moec_expert_cache_options *options = &cache->options;
    MOEC_TRY(create_forms(cache, err));
    MOEC_TRY(create_tables(cache, err));
    const struct moec_record_sizes sizes = sizes_of(cache, 0, cache->n_form);
    uint64_t arena_bytes = 0;
    MOEC_TRY(check_buffer(options, &sizes, err));
    cache->buffer_bytes =
        options->buffer.n_bytes < sizes.all_bytes ? options->buffer.n_bytes : sizes.all_bytes;
    cache->most_bytes =
        options->buffer.most_bytes < sizes.all_bytes ? options->buffer.most_bytes : sizes.all_bytes;
    cache->keeps_expected = options->n_sessions <= 1;
    MOEC_TRY(check_pools(cache, err));
    if (options->records.parts != NULL)
        MOEC_TRY(moec_units_create(cache, err));
    MOEC_TRY(create_residency(cache, err));
    MOEC_TRY(create_arenas(cache, &arena_bytes, err));
    MOEC_TRY(create_reader(cache, arena_bytes, err));
    MOEC_TRY(create_preload(cache, sizes.all_bytes, err));
    MOEC_TRY(fill(cache, err));
    cache->experts.ops = &moec_cache_ops;
    cache->experts.max_held = max_held_of(cache);
    return moec_loader_start(cache, err);
}

enum moec_status moec_expert_cache_create(const struct moec_bundle *bundle,
                                          const struct moec_expert_cache_options *options,
                                          struct moec_expert_cache **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_expert_cache), "expert cache", err));
    struct moec_expert_cache *cache = memory;
    (void)pthread_mutex_init(&cache->lock, NULL);
    (void)pthread_cond_init(&cache->changed, NULL);
    (void)pthread_cond_init(&cache->work, NULL);
    cache->bundle = bundle;
    cache->options = *options;
    cache->n_expert = bundle->config.n_expert;
    cache->n_form = 1 + options->records.n_beside;
    cache->n_layer = moec_config_moe_count(&bundle->config);
    cache->n_key = cache->n_layer * cache->n_form * cache->n_expert;
    cache->is_prefetched_out = true;
    const enum moec_status status = create_parts(cache, err);
    if (status != MOEC_OK) {
        moec_expert_cache_free(cache);
        return status;
    }
    if (options->keeps.is_resident)
        moec_expert_cache_wait_warm(cache);
    *out = cache;
    return MOEC_OK;
}

void moec_expert_cache_free(struct moec_expert_cache *cache)
{
    if (cache == NULL)
        return;
    moec_loader_stop(cache);
    if (cache->reader != NULL)
        cache->reader->ops->destroy(cache->reader);
    moec_preload_free(cache->preload);
    for (int pool = 0; pool < 2; pool++)
        moec_arena_free(cache->arenas[pool]);
    free(cache->pool_memory);
    moec_residency_free(cache->residency);
    for (uint32_t form = 0; form < MOEC_CACHE_FORMS; form++)
        moec_storage_free(cache->storages[form]);
    free(cache->ordinals);
    free(cache->counters);
    free(cache->was_present);
    free(cache->is_ready);
    free(cache->turns);
    free(cache->slot_bytes);
    moec_cache_entries_free(cache);
    moec_units_free(cache);
    (void)pthread_cond_destroy(&cache->changed);
    (void)pthread_cond_destroy(&cache->work);
    (void)pthread_mutex_destroy(&cache->lock);
    free(cache);
}

static bool is_warming(const struct moec_expert_cache *cache)
{
    bool is_flying = false;
    for (uint32_t i = 0; i < cache->depth; i++)
        is_flying = is_flying || (cache->reads[i].is_flying &&
                                  cache->entries[cache->reads[i].read.tag].kind == MOEC_CACHE_WARMING);
    return is_flying || cache->lists[MOEC_CACHE_WARMING].n > 0;
}

void moec_expert_cache_wait_warm(struct moec_expert_cache *cache)
{
    (void)pthread_mutex_lock(&cache->lock);
    cache->n_hurried++;
    while (is_warming(cache)) {
        moec_loader_notify(cache);
        cache->n_sleeping++;
        (void)pthread_cond_wait(&cache->changed, &cache->lock);
        cache->n_sleeping--;
    }
    cache->n_hurried--;
    (void)pthread_mutex_unlock(&cache->lock);
}

/* ---- what can be seen of it ---- */

struct moec_experts *moec_expert_cache_experts(struct moec_expert_cache *cache)
{
    return &cache->experts;
}

uint8_t *moec_expert_cache_memory(const struct moec_expert_cache *cache)
{
    return moec_arena_bytes(cache->arenas[0]);
}

uint64_t moec_expert_cache_buffer_bytes(const struct moec_expert_cache *cache)
{
    return cache->buffer_bytes;
}

bool moec_expert_cache_keeps_logical(struct moec_expert_cache *cache)
{
    (void)pthread_mutex_lock(&cache->lock);
    const bool keeps = moec_residency_keeps_logical(cache->residency);
    (void)pthread_mutex_unlock(&cache->lock);
    return keeps;
}

const char *moec_expert_cache_reader_description(const struct moec_expert_cache *cache)
{
    return cache->reader->description;
}
