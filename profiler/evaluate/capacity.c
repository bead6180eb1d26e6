#include "profiler/evaluate/capacity.h"

#include "formats/base/memory.h"

#include <string.h>

static enum moec_status create_routes(const struct moec_config *config, struct moec_capacities *capacities,
                                      struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)&capacities->routes, capacities->n_room, sizeof *capacities->routes,
                        "logical caches", err));
    for (uint32_t i = 0; i < capacities->n_room; i++)
        MOEC_TRY(moec_route_state_create(config, capacities->route, 1, 0, &capacities->routes[i], err));
    return MOEC_OK;
}

enum moec_status moec_capacities_create(const struct moec_config *config, uint32_t n_room,
                                        const struct moec_route *route, struct moec_capacities *capacities,
                                        struct moec_error *err)
{
    *capacities = (struct moec_capacities){.n_expert = config->n_expert, .n_room = n_room, .route = route};
    const char *what = "tokens of experts";
    if (config->expert_capacity == 0 && route == NULL)
        return MOEC_OK;
    enum moec_status status =
        moec_alloc((void **)&capacities->spans, n_room, sizeof *capacities->spans, what, err);
    if (status == MOEC_OK && config->expert_capacity > 0)
        status = moec_alloc((void **)&capacities->counts, (uint64_t)n_room * config->n_expert,
                            sizeof *capacities->counts, what, err);
    if (status == MOEC_OK && route != NULL)
        status = create_routes(config, capacities, err);
    capacities->batch.spans = capacities->spans;
    if (status != MOEC_OK)
        moec_capacities_release(capacities);
    return status;
}

void moec_capacities_release(struct moec_capacities *capacities)
{
    for (uint32_t i = 0; capacities->routes != NULL && i < capacities->n_room; i++)
        moec_route_state_release(&capacities->routes[i]);
    free(capacities->routes);
    free(capacities->spans);
    free(capacities->counts);
    *capacities = (struct moec_capacities){0};
}

void moec_capacities_clear(struct moec_capacities *capacities)
{
    capacities->batch.n_spans = 0;
}

void moec_capacities_add(struct moec_capacities *capacities, uint32_t n_rows, uint32_t n_prompt)
{
    if (capacities->spans == NULL)
        return;
    const uint32_t i = capacities->batch.n_spans++;
    struct moec_capacity_span *span = &capacities->spans[i];
    *span = (struct moec_capacity_span){.n_rows = n_rows};
    if (capacities->counts != NULL) {
        span->counts = capacities->counts + (size_t)i * capacities->n_expert;
        memset(span->counts, 0, capacities->n_expert * sizeof *span->counts);
    }
    if (capacities->routes != NULL) {
        span->route = &capacities->routes[i];
        moec_route_state_reset(span->route, 0);
        if (capacities->route->decode_only)
            span->n_undecided = n_prompt < n_rows ? n_prompt : n_rows;
    }
}

struct moec_route_counts moec_capacities_route_counts(const struct moec_capacities *capacities)
{
    struct moec_route_counts all = {0};
    for (uint32_t i = 0; capacities->routes != NULL && i < capacities->n_room; i++) {
        all.n_taken += capacities->routes[i].counts.n_taken;
        all.n_missed += capacities->routes[i].counts.n_missed;
    }
    return all;
}
