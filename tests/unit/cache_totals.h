/* What an expert cache has counted, of all its layers together. */
#ifndef MOEC_TESTS_CACHE_TOTALS_H
#define MOEC_TESTS_CACHE_TOTALS_H

#include "runtime/experts/expert_cache_internal.h"

static inline struct moec_cache_counters cache_totals(struct moec_expert_cache *cache)
{
    struct moec_cache_counters sum = {0};
    for (uint32_t ordinal = 0; ordinal < cache->n_layer; ordinal++) {
        const struct moec_cache_counters one = moec_expert_cache_layer_counters(cache, ordinal);
        moec_cache_counters_add(&sum, &one);
    }
    return sum;
}

/* Of one form alone. */
static inline struct moec_cache_counters cache_form_totals(struct moec_expert_cache *cache, uint32_t form)
{
    struct moec_cache_counters sum = {0};
    (void)pthread_mutex_lock(&cache->lock);
    for (uint32_t ordinal = 0; ordinal < cache->n_layer; ordinal++)
        moec_cache_counters_add(&sum, &cache->counters[ordinal * cache->n_form + form]);
    (void)pthread_mutex_unlock(&cache->lock);
    return sum;
}

#endif
