/* A state cannot go back: to forget positions it is emptied, and what each kept position took is taken again
 * from `touched`. Experts are touched by rising weight, so the heaviest is the most recent. is_there repeats
 * what `recent` says, for one look. Only set_there and tell_all change the counts of the shared cache, so
 * each expert held counts once. */
#include "runtime/policy/decide/route_state.h"

#include "formats/base/memory.h"

#include <string.h>

uint64_t moec_route_state_bytes(const struct moec_config *config, const struct moec_route *route,
                                uint32_t n_layer, uint32_t n_context)
{
    const uint64_t of_layer = ((uint64_t)route->n_slots + route->n_low_slots) * sizeof(uint16_t) +
                              2 * (config->n_expert * sizeof(bool) + sizeof(uint32_t)) + sizeof(uint32_t) +
                              sizeof(float);
    const uint64_t of_position = config->top_k * sizeof(uint16_t) + sizeof(float);
    const uint64_t counts =
        route->prefill.kind != MOEC_PREFILL_SAME ? moec_popularity_bytes(n_layer, config->n_expert) : 0;
    const uint64_t of_block = route->precision.block_tokens > 0 ? config->n_expert : 0;
    return n_layer * (of_layer + of_block + n_context * of_position) + counts;
}

static enum moec_status create_pool(struct moec_route_pool *pool, uint32_t n_layer, uint32_t n_expert,
                                    struct moec_error *err)
{
    const char *what = "a logical cache of experts";
    MOEC_TRY(moec_alloc((void **)&pool->recent, (uint64_t)n_layer * pool->n_slots + 1, sizeof *pool->recent,
                        what, err));
    MOEC_TRY(moec_alloc((void **)&pool->n_recent, n_layer, sizeof *pool->n_recent, what, err));
    return moec_alloc((void **)&pool->is_there, (uint64_t)n_layer * n_expert, sizeof(bool), what, err);
}

enum moec_status moec_route_state_create(const struct moec_config *config, const struct moec_route *route,
                                         uint32_t n_layer, uint32_t n_context, struct moec_route_state *state,
                                         struct moec_error *err)
{
    const char *what = "a logical cache of experts";
    const uint64_t n_position = (uint64_t)n_layer * n_context;
    *state =
        (struct moec_route_state){.n_layer = n_layer,
                                  .n_expert = config->n_expert,
                                  .top_k = config->top_k,
                                  .n_context = n_context,
                                  .initial = route->initial,
                                  .block_tokens = route->precision.block_tokens,
                                  .pools = {{.n_slots = route->n_slots}, {.n_slots = route->n_low_slots}}};
    enum moec_status status = create_pool(&state->pools[0], n_layer, config->n_expert, err);
    if (status == MOEC_OK)
        status = create_pool(&state->pools[1], n_layer, config->n_expert, err);
    if (status == MOEC_OK)
        status = moec_popularity_create(&route->prefill, n_layer, config->n_expert, &state->popularity, err);
    if (status == MOEC_OK && state->block_tokens > 0)
        status = moec_alloc((void **)&state->block, (uint64_t)n_layer * config->n_expert,
                            sizeof *state->block, what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&state->range_sum, n_layer, sizeof(float), what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&state->n_done, n_layer, sizeof *state->n_done, what, err);
    if (status == MOEC_OK && n_context > 0)
        status = moec_alloc((void **)&state->touched, n_position * config->top_k, sizeof *state->touched,
                            what, err);
    if (status == MOEC_OK && n_context > 0)
        status = moec_alloc((void **)&state->ranges, n_position, sizeof(float), what, err);
    if (status != MOEC_OK)
        moec_route_state_release(state);
    for (uint32_t layer = 0; status == MOEC_OK && layer < n_layer; layer++)
        moec_route_state_reset(state, layer);
    return status;
}

static void tell_shared(const struct moec_route_state *state, size_t pool, uint32_t layer, uint32_t expert,
                        bool holds)
{
    const struct moec_logical_cache *shared = state->shared;
    if (shared != NULL && pool < shared->n_form)
        moec_logical_cache_count(
            shared,
            ((state->first_ordinal + layer) * shared->n_form + (uint32_t)pool) * state->n_expert + expert,
            holds);
}

/* Of everything that the pools hold. */
static void tell_all(const struct moec_route_state *state, bool holds)
{
    for (uint32_t layer = 0; state->shared != NULL && layer < state->n_layer; layer++)
        for (size_t i = 0; i < 2; i++) {
            const struct moec_route_pool *pool = &state->pools[i];
            for (uint32_t at = 0; at < pool->n_recent[layer]; at++)
                tell_shared(state, i, layer, pool->recent[(size_t)layer * pool->n_slots + at], holds);
        }
}

static void set_there(struct moec_route_state *state, size_t pool, uint32_t layer, uint32_t expert,
                      bool is_there)
{
    state->pools[pool].is_there[(size_t)layer * state->n_expert + expert] = is_there;
    tell_shared(state, pool, layer, expert, is_there);
}

static void clear(struct moec_route_state *state, uint32_t layer)
{
    for (size_t i = 0; i < 2; i++) {
        struct moec_route_pool *pool = &state->pools[i];
        const uint16_t *recent = pool->recent + (size_t)layer * pool->n_slots;
        for (uint32_t at = 0; at < pool->n_recent[layer]; at++)
            set_there(state, i, layer, recent[at], false);
        pool->n_recent[layer] = 0;
    }
}

void moec_route_state_share(struct moec_route_state *state, const struct moec_logical_cache *shared)
{
    state->shared = shared;
    tell_all(state, true);
}

void moec_route_state_release(struct moec_route_state *state)
{
    tell_all(state, false);
    for (size_t i = 0; i < 2; i++) {
        free(state->pools[i].recent);
        free(state->pools[i].n_recent);
        free(state->pools[i].is_there);
    }
    moec_popularity_release(&state->popularity);
    free(state->block);
    free(state->range_sum);
    free(state->n_done);
    if (!state->is_lent) {
        free(state->touched);
        free(state->ranges);
    }
    *state = (struct moec_route_state){0};
}

void moec_route_state_lend(struct moec_route_state *state, uint16_t *touched, float *ranges,
                           uint32_t n_context)
{
    state->touched = touched;
    state->ranges = ranges;
    state->n_context = n_context;
    state->is_lent = true;
}

/* `touched` as it is kept. */
static void touch(struct moec_route_state *state, uint32_t layer, uint32_t touched)
{
    const bool is_low = touched >= MOEC_ROUTE_LOW;
    struct moec_route_pool *pool = &state->pools[is_low];
    const uint32_t expert = touched % MOEC_ROUTE_LOW;
    uint16_t *recent = pool->recent + (size_t)layer * pool->n_slots;
    const bool was_there = moec_route_state_has(state, layer, expert, is_low);
    uint32_t at = 0;
    if (pool->n_slots == 0)
        return;
    if (was_there) {
        while (recent[at] != expert)
            at++;
    } else if (pool->n_recent[layer] < pool->n_slots) {
        at = pool->n_recent[layer]++;
    } else {
        at = pool->n_slots - 1;
        set_there(state, is_low, layer, recent[at], false);
    }
    memmove(recent + 1, recent, at * sizeof *recent);
    recent[0] = (uint16_t)expert;
    if (!was_there)
        set_there(state, is_low, layer, expert, true);
}

static void empty(struct moec_route_state *state, uint32_t layer)
{
    clear(state, layer);
    state->range_sum[layer] = 0;
    state->n_done[layer] = 0;
    const uint32_t n_first = state->initial != NULL ? state->pools[0].n_slots : 0;
    for (uint32_t i = n_first; i > 0; i--)
        touch(state, layer,
              state->initial[((size_t)state->first_ordinal + layer) * state->n_expert + i - 1].expert);
}

void moec_route_state_reset(struct moec_route_state *state, uint32_t layer)
{
    empty(state, layer);
    if (moec_popularity_is_on(&state->popularity))
        moec_popularity_reset(&state->popularity, layer, state->first_ordinal + layer);
}

void moec_route_state_begin_prompt(struct moec_route_state *state, uint32_t layer)
{
    const size_t first = (size_t)layer * state->n_expert;
    if (state->n_done[layer] % state->popularity.settings.block_tokens == 0)
        moec_popularity_begin(&state->popularity, layer, state->pools[0].is_there + first,
                              state->pools[1].is_there + first);
}

const uint8_t *moec_route_state_block(struct moec_route_state *state, uint32_t layer)
{
    if (state->block == NULL)
        return NULL;
    uint8_t *block = state->block + (size_t)layer * state->n_expert;
    if (state->n_done[layer] % state->block_tokens == 0)
        memset(block, MOEC_BLOCK_NONE, state->n_expert);
    return block;
}

/* The first that takes an expert decides for the block. */
static void note_block(struct moec_route_state *state, uint32_t layer, uint32_t touched)
{
    if (state->block == NULL)
        return;
    uint8_t *copy = &state->block[(size_t)layer * state->n_expert + touched % MOEC_ROUTE_LOW];
    if (*copy == MOEC_BLOCK_NONE)
        *copy = touched >= MOEC_ROUTE_LOW ? MOEC_BLOCK_LOW : MOEC_BLOCK_HIGH;
}

static uint16_t *touched_at(const struct moec_route_state *state, uint32_t layer, uint32_t position)
{
    return state->touched + ((size_t)layer * state->n_context + position) * state->top_k;
}

/* What a position took is taken again. */
static void repeat(struct moec_route_state *state, uint32_t layer, uint32_t position)
{
    const uint16_t *touched = touched_at(state, layer, position);
    struct moec_popularity *popularity = &state->popularity;
    const bool has_blocks = popularity->settings.kind == MOEC_PREFILL_UNPOPULAR;
    if (has_blocks)
        moec_route_state_begin_prompt(state, layer);
    (void)moec_route_state_block(state, layer);
    for (uint32_t rank = 0; rank < state->top_k && touched[rank] != MOEC_ROUTE_NO_EXPERT; rank++) {
        const uint32_t expert = touched[rank] % MOEC_ROUTE_LOW;
        touch(state, layer, touched[rank]);
        note_block(state, layer, touched[rank]);
        if (has_blocks) {
            (void)moec_popularity_take(popularity, layer, expert, touched[rank] >= MOEC_ROUTE_LOW);
            moec_popularity_add(popularity, layer, expert);
        }
    }
    state->range_sum[layer] += state->ranges[(size_t)layer * state->n_context + position];
    state->n_done[layer]++;
}

void moec_route_state_truncate(struct moec_route_state *state, uint32_t first_layer, uint32_t n)
{
    for (uint32_t layer = first_layer; layer < state->n_layer; layer++) {
        if (state->n_done[layer] <= n)
            continue;
        /* What is known of a whole prompt holds for its beginning too. */
        if (n > 0 && moec_prefill_looks_ahead(&state->popularity.settings))
            empty(state, layer);
        else
            moec_route_state_reset(state, layer);
        for (uint32_t i = 0; i < n; i++)
            repeat(state, layer, i);
    }
}

static void copy_pool(struct moec_route_pool *to, const struct moec_route_pool *from, uint32_t n_layer,
                      uint32_t n_expert)
{
    memcpy(to->recent, from->recent, (size_t)n_layer * from->n_slots * sizeof *from->recent);
    memcpy(to->n_recent, from->n_recent, n_layer * sizeof *from->n_recent);
    memcpy(to->is_there, from->is_there, (size_t)n_layer * n_expert * sizeof(bool));
}

void moec_route_state_copy(struct moec_route_state *to, const struct moec_route_state *from)
{
    const size_t k = from->top_k;
    tell_all(to, false);
    for (size_t i = 0; i < 2; i++)
        copy_pool(&to->pools[i], &from->pools[i], from->n_layer, from->n_expert);
    tell_all(to, true);
    if (moec_popularity_is_on(&from->popularity))
        moec_popularity_copy(&to->popularity, &from->popularity);
    if (from->block != NULL)
        memcpy(to->block, from->block, (size_t)from->n_layer * from->n_expert * sizeof *from->block);
    for (uint32_t layer = 0; layer < from->n_layer; layer++) {
        const uint32_t n = from->n_done[layer];
        if (from->n_context == 0 || to->n_context == 0 || n == 0)
            continue;
        memcpy(touched_at(to, layer, 0), touched_at(from, layer, 0), n * k * sizeof *from->touched);
        memcpy(to->ranges + (size_t)layer * to->n_context, from->ranges + (size_t)layer * from->n_context,
               n * sizeof *from->ranges);
    }
    memcpy(to->range_sum, from->range_sum, from->n_layer * sizeof *from->range_sum);
    memcpy(to->n_done, from->n_done, from->n_layer * sizeof *from->n_done);
}

float moec_route_state_range(const struct moec_route_state *state, uint32_t layer, float range)
{
    return (state->range_sum[layer] + range) / (float)(state->n_done[layer] + 1);
}

/* Ranks that touch, in order: falling weight comes last, at equal weights the lower index. */
static uint32_t order_of(const struct moec_route_state *state, const struct moec_route_taken *taken,
                         uint32_t *order)
{
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < state->top_k; rank++) {
        if (taken->skips[rank])
            continue;
        uint32_t at = n++;
        for (; at > 0; at--) {
            const uint32_t before = order[at - 1];
            if (!(taken->weights[rank] < taken->weights[before] ||
                  (taken->weights[rank] == taken->weights[before] &&
                   taken->experts[rank] > taken->experts[before])))
                break;
            order[at] = before;
        }
        order[at] = rank;
    }
    return n;
}

static void count(struct moec_route_state *state, uint32_t layer, const struct moec_route_taken *taken,
                  uint32_t rank)
{
    struct moec_route_counts *counts = &state->counts;
    const bool is_low = taken->is_low != NULL && taken->is_low[rank];
    const uint32_t expert = taken->experts[rank];
    const uint64_t *bytes = taken->record_bytes[is_low];
    counts->n_taken++;
    counts->n_low += is_low;
    const bool is_there = taken->is_of_block ? moec_popularity_take(&state->popularity, layer, expert, is_low)
                                             : moec_route_state_has(state, layer, expert, is_low);
    if (is_there || state->pools[0].n_slots == 0) /* without a cache nothing misses it */
        return;
    counts->n_missed++;
    counts->n_low_missed += is_low;
    counts->missed_bytes += bytes != NULL ? bytes[expert] : 0;
}

void moec_route_state_take(struct moec_route_state *state, uint32_t layer, float range,
                           const struct moec_route_taken *taken)
{
    uint32_t order[MOEC_MAX_TOP_K];
    uint16_t touched[MOEC_MAX_TOP_K];
    const uint32_t n = order_of(state, taken, order);
    (void)moec_route_state_block(state, layer);
    const uint32_t position = state->n_done[layer]++;
    if (!taken->is_left_out) {
        state->counts.n_position++;
        state->counts.n_skipped += state->top_k - n - taken->n_identity;
        for (uint32_t i = 0; i < n; i++)
            count(state, layer, taken, order[i]);
    }
    for (uint32_t i = 0; i < state->top_k; i++) {
        const bool is_low = i < n && taken->is_low != NULL && taken->is_low[order[i]];
        touched[i] = i < n ? (uint16_t)(taken->experts[order[i]] + (is_low ? MOEC_ROUTE_LOW : 0))
                           : MOEC_ROUTE_NO_EXPERT;
        if (i < n) {
            touch(state, layer, touched[i]);
            note_block(state, layer, touched[i]);
        }
        if (i < n && state->popularity.settings.kind == MOEC_PREFILL_UNPOPULAR)
            moec_popularity_add(&state->popularity, layer, taken->experts[order[i]]);
    }
    state->range_sum[layer] += range;
    if (state->n_context == 0)
        return;
    memcpy(touched_at(state, layer, position), touched, state->top_k * sizeof *touched);
    state->ranges[(size_t)layer * state->n_context + position] = range;
}
