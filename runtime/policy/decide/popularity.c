/* Keys are unique, so "the n least popular" is one set, whatever the order in which it is found. Where
 * nothing was counted, nothing is low. is_read begins a block as what the logical caches have, and tells
 * which token of the block reads first. */
#include "runtime/policy/decide/popularity.h"

#include "formats/base/memory.h"

#include <string.h>

#define ONE_TOKEN 65535u

uint64_t moec_popularity_bytes(uint32_t n_layer, uint32_t n_expert)
{
    return (uint64_t)n_layer * n_expert * (sizeof(uint64_t) + 3 * sizeof(bool));
}

enum moec_status moec_popularity_create(const struct moec_prefill *settings, uint32_t n_layer,
                                        uint32_t n_expert, struct moec_popularity *popularity,
                                        struct moec_error *err)
{
    const char *what = "counts of a prompt's experts";
    const uint64_t n = (uint64_t)n_layer * n_expert;
    *popularity = (struct moec_popularity){.settings = *settings, .n_layer = n_layer, .n_expert = n_expert};
    if (settings->kind == MOEC_PREFILL_SAME)
        return MOEC_OK;
    enum moec_status status =
        moec_alloc((void **)&popularity->counts, n, sizeof *popularity->counts, what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&popularity->is_low, n, sizeof(bool), what, err);
    for (size_t i = 0; status == MOEC_OK && i < 2; i++)
        status = moec_alloc((void **)&popularity->is_read[i], n, sizeof(bool), what, err);
    if (status != MOEC_OK)
        moec_popularity_release(popularity);
    return status;
}

void moec_popularity_release(struct moec_popularity *popularity)
{
    free(popularity->counts);
    free(popularity->is_low);
    free(popularity->is_read[0]);
    free(popularity->is_read[1]);
    *popularity = (struct moec_popularity){0};
}

void moec_popularity_reset(struct moec_popularity *popularity, uint32_t layer, uint32_t ordinal)
{
    const struct moec_prefill *settings = &popularity->settings;
    uint64_t *counts = popularity->counts + (size_t)layer * popularity->n_expert;
    memset(counts, 0, popularity->n_expert * sizeof *counts);
    memset(popularity->is_low + (size_t)layer * popularity->n_expert, 0, popularity->n_expert * sizeof(bool));
    if (settings->frequency == NULL || moec_prefill_looks_ahead(settings))
        return;
    const struct moec_path_value *frequency = settings->frequency + (size_t)ordinal * popularity->n_expert;
    for (uint32_t i = 0; i < popularity->n_expert; i++)
        counts[frequency[i].expert] = (uint64_t)settings->block_tokens * frequency[i].probability;
}

void moec_popularity_add(struct moec_popularity *popularity, uint32_t layer, uint32_t expert)
{
    popularity->counts[(size_t)layer * popularity->n_expert + expert] += ONE_TOKEN;
}

/* Counts with ties broken: of equal ones the lower index is greater. A sequence's tokens are fewer than 2^25
 * and experts fewer than 2^13, so that nothing overflows. */
static uint64_t key_of(const uint64_t *counts, uint32_t n_expert, uint32_t expert)
{
    return counts[expert] * n_expert + (n_expert - 1 - expert);
}

/* The n-th smallest key, bit by bit from the highest. */
static uint64_t nth_key(const uint64_t *counts, uint32_t n_expert, uint32_t n)
{
    uint64_t key = 0;
    for (unsigned bit = 64; bit-- > 0;) {
        const uint64_t trial = key | (uint64_t)1 << bit;
        uint32_t n_below = 0;
        for (uint32_t e = 0; e < n_expert; e++)
            n_below += key_of(counts, n_expert, e) < trial;
        if (n_below < n)
            key = trial;
    }
    return key;
}

void moec_popularity_begin(struct moec_popularity *popularity, uint32_t layer, const bool *has_high,
                           const bool *has_low)
{
    const uint32_t n_expert = popularity->n_expert;
    const size_t first = (size_t)layer * n_expert;
    const uint64_t *counts = popularity->counts + first;
    bool *is_low = popularity->is_low + first, is_known = false;
    const bool is_reversed = popularity->settings.kind == MOEC_PREFILL_POPULAR;
    const uint32_t n_low = (uint32_t)(popularity->settings.share * (float)n_expert);
    for (uint32_t e = 0; e < n_expert; e++)
        is_known |= counts[e] > 0;
    const uint32_t n_least = is_reversed ? n_expert - n_low : n_low;
    const uint64_t most = is_known && n_least > 0 ? nth_key(counts, n_expert, n_least) : 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        const bool is_unpopular = n_least > 0 && key_of(counts, n_expert, e) <= most;
        is_low[e] = is_known && is_unpopular != is_reversed && !has_high[e];
    }
    memcpy(popularity->is_read[0] + first, has_high, n_expert * sizeof(bool));
    memcpy(popularity->is_read[1] + first, has_low, n_expert * sizeof(bool));
}

bool moec_popularity_take(struct moec_popularity *popularity, uint32_t layer, uint32_t expert, bool is_low)
{
    bool *is_read = &popularity->is_read[is_low][(size_t)layer * popularity->n_expert + expert];
    const bool was_read = *is_read;
    *is_read = true;
    return was_read;
}

void moec_popularity_copy(struct moec_popularity *to, const struct moec_popularity *from)
{
    const size_t n = (size_t)from->n_layer * from->n_expert;
    memcpy(to->counts, from->counts, n * sizeof *from->counts);
    memcpy(to->is_low, from->is_low, n * sizeof(bool));
    memcpy(to->is_read[0], from->is_read[0], n * sizeof(bool));
    memcpy(to->is_read[1], from->is_read[1], n * sizeof(bool));
}
