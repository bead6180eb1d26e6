/* What an expert cache has counted. */
#include "runtime/experts/expert_cache_internal.h"

/* With the lock held. */
static struct moec_cache_counters counters_of(const struct moec_expert_cache *cache, uint32_t ordinal,
                                              uint32_t form)
{
    const struct moec_cache_entry *entries = &cache->entries[moec_cache_key(cache, ordinal, form, 0)];
    struct moec_cache_counters counters = cache->counters[ordinal * cache->n_form + form];
    for (uint32_t expert = 0; expert < cache->n_expert; expert++)
        counters.wasted_preloads += entries[expert].is_prefetched;
    return counters;
}

struct moec_cache_counters moec_expert_cache_layer_counters(struct moec_expert_cache *cache, uint32_t ordinal)
{
    struct moec_cache_counters sum = {0};
    (void)pthread_mutex_lock(&cache->lock);
    for (uint32_t form = 0; form < cache->n_form; form++) {
        const struct moec_cache_counters one = counters_of(cache, ordinal, form);
        moec_cache_counters_add(&sum, &one);
    }
    (void)pthread_mutex_unlock(&cache->lock);
    return sum;
}

void moec_cache_counters_add(struct moec_cache_counters *sum, const struct moec_cache_counters *one)
{
    sum->hits += one->hits;
    sum->late += one->late;
    sum->misses += one->misses;
    sum->useful_preloads += one->useful_preloads;
    sum->wasted_preloads += one->wasted_preloads;
    sum->evictions += one->evictions;
    sum->n_reads += one->n_reads;
    sum->read_bytes += one->read_bytes;
    sum->unit_bytes += one->unit_bytes;
    sum->preload_bytes += one->preload_bytes;
    sum->read_ns += one->read_ns;
    sum->busy_ns += one->busy_ns;
    sum->stall_ns += one->stall_ns;
    sum->moved_bytes += one->moved_bytes;
}
