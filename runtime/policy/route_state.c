#include "runtime/policy/route_state.h"

#include "formats/base/memory.h"

#include <string.h>

uint64_t moec_route_state_bytes(const struct moec_config *config, const struct moec_route *route,
                                uint32_t n_layer, uint32_t n_context)
{
    const uint64_t of_layer = route->n_slots * sizeof(uint16_t) + config->n_expert * sizeof(bool) +
                              2 * sizeof(uint32_t) + sizeof(float);
    const uint64_t of_position = config->top_k * sizeof(uint16_t) + sizeof(float);
    return n_layer * (of_layer + n_context * of_position);
}

enum moec_status moec_route_state_create(const struct moec_config *config, const struct moec_route *route,
                                         uint32_t n_layer, uint32_t n_context, struct moec_route_state *state,
                                         struct moec_error *err)
{
    const char *what = "a logical cache of experts";
    const uint64_t n_position = (uint64_t)n_layer * n_context;
    *state = (struct moec_route_state){.n_layer = n_layer,
                                       .n_expert = config->n_expert,
                                       .n_slots = route->n_slots,
                                       .top_k = config->top_k,
                                       .n_context = n_context};
    enum moec_status status = moec_alloc((void **)&state->recent, (uint64_t)n_layer * route->n_slots + 1,
                                         sizeof *state->recent, what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&state->n_recent, n_layer, sizeof *state->n_recent, what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&state->is_there, (uint64_t)n_layer * config->n_expert, sizeof(bool),
                            what, err);
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
    return status;
}

void moec_route_state_release(struct moec_route_state *state)
{
    free(state->recent);
    free(state->n_recent);
    free(state->is_there);
    free(state->range_sum);
    free(state->n_done);
    free(state->touched);
    free(state->ranges);
    *state = (struct moec_route_state){0};
}

void moec_route_state_reset(struct moec_route_state *state, uint32_t layer)
{
    state->n_recent[layer] = 0;
    state->range_sum[layer] = 0;
    state->n_done[layer] = 0;
    memset(state->is_there + (size_t)layer * state->n_expert, 0, state->n_expert * sizeof(bool));
}

static void touch(struct moec_route_state *state, uint32_t layer, uint32_t expert)
{
    uint16_t *recent = state->recent + (size_t)layer * state->n_slots;
    bool *is_there = state->is_there + (size_t)layer * state->n_expert;
    uint32_t at = 0;
    if (state->n_slots == 0)
        return;
    if (is_there[expert]) {
        while (recent[at] != expert)
            at++;
    } else if (state->n_recent[layer] < state->n_slots) {
        at = state->n_recent[layer]++;
    } else {
        at = state->n_slots - 1;
        is_there[recent[at]] = false;
    }
    memmove(recent + 1, recent, at * sizeof *recent);
    recent[0] = (uint16_t)expert;
    is_there[expert] = true;
}

static uint16_t *touched_at(const struct moec_route_state *state, uint32_t layer, uint32_t position)
{
    return state->touched + ((size_t)layer * state->n_context + position) * state->top_k;
}

void moec_route_state_truncate(struct moec_route_state *state, uint32_t first_layer, uint32_t n)
{
    for (uint32_t layer = first_layer; layer < state->n_layer; layer++) {
        if (state->n_done[layer] <= n)
            continue;
        moec_route_state_reset(state, layer);
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t *touched = touched_at(state, layer, i);
            for (uint32_t rank = 0; rank < state->top_k && touched[rank] != MOEC_ROUTE_NO_EXPERT; rank++)
                touch(state, layer, touched[rank]);
            state->range_sum[layer] += state->ranges[(size_t)layer * state->n_context + i];
        }
        state->n_done[layer] = n;
    }
}

void moec_route_state_copy(struct moec_route_state *to, const struct moec_route_state *from)
{
    const size_t k = from->top_k;
    for (uint32_t layer = 0; layer < from->n_layer; layer++) {
        const uint32_t n = from->n_done[layer];
        memcpy(to->recent + (size_t)layer * to->n_slots, from->recent + (size_t)layer * from->n_slots,
               from->n_recent[layer] * sizeof *from->recent);
        if (from->n_context == 0 || to->n_context == 0 || n == 0)
            continue;
        memcpy(touched_at(to, layer, 0), touched_at(from, layer, 0), n * k * sizeof *from->touched);
        memcpy(to->ranges + (size_t)layer * to->n_context, from->ranges + (size_t)layer * from->n_context,
               n * sizeof *from->ranges);
    }
    memcpy(to->n_recent, from->n_recent, from->n_layer * sizeof *from->n_recent);
    memcpy(to->is_there, from->is_there, (size_t)from->n_layer * from->n_expert * sizeof(bool));
    memcpy(to->range_sum, from->range_sum, from->n_layer * sizeof *from->range_sum);
    memcpy(to->n_done, from->n_done, from->n_layer * sizeof *from->n_done);
}

float moec_route_state_range(const struct moec_route_state *state, uint32_t layer, float range)
{
    return (state->range_sum[layer] + range) / (float)(state->n_done[layer] + 1);
}

/* Ranks that touch, in order: falling weight comes last, at equal weights the lower index. */
static uint32_t order_of(const struct moec_route_state *state, const uint32_t *experts, const float *weights,
                         const bool *skips, uint16_t *order)
{
    uint32_t n = 0;
    float held[MOEC_MAX_TOP_K];
    for (uint32_t rank = 0; rank < state->top_k; rank++) {
        if (skips[rank])
            continue;
        uint32_t at = n++;
        for (; at > 0 && (weights[rank] < held[at - 1] ||
                          (weights[rank] == held[at - 1] && experts[rank] > order[at - 1]));
             at--) {
            order[at] = order[at - 1];
            held[at] = held[at - 1];
        }
        order[at] = (uint16_t)experts[rank];
        held[at] = weights[rank];
    }
    return n;
}

void moec_route_state_take(struct moec_route_state *state, uint32_t layer, float range,
                           const uint32_t *experts, const float *weights, const bool *skips)
{
    uint16_t order[MOEC_MAX_TOP_K];
    const uint32_t n = order_of(state, experts, weights, skips, order);
    const uint32_t position = state->n_done[layer]++;
    for (uint32_t i = 0; i < n; i++)
        state->counts.n_missed += !moec_route_state_has(state, layer, order[i]);
    state->counts.n_taken += n;
    for (uint32_t i = 0; i < n; i++)
        touch(state, layer, order[i]);
    state->range_sum[layer] += range;
    if (state->n_context == 0)
        return;
    uint16_t *touched = touched_at(state, layer, position);
    for (uint32_t i = 0; i < state->top_k; i++)
        touched[i] = i < n ? order[i] : MOEC_ROUTE_NO_EXPERT;
    state->ranges[(size_t)layer * state->n_context + position] = range;
}
