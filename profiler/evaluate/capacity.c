#include "profiler/evaluate/capacity.h"

#include "formats/base/memory.h"

#include <string.h>

enum moec_status moec_capacities_create(const struct moec_config *config, uint32_t n_room,
                                        struct moec_capacities *capacities, struct moec_error *err)
{
    *capacities = (struct moec_capacities){.n_expert = config->n_expert};
    const char *what = "tokens of experts";
    if (config->expert_capacity == 0)
        return MOEC_OK;
    enum moec_status status =
        moec_alloc((void **)&capacities->spans, n_room, sizeof *capacities->spans, what, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&capacities->counts, (uint64_t)n_room * config->n_expert,
                            sizeof *capacities->counts, what, err);
    capacities->batch.spans = capacities->spans;
    if (status != MOEC_OK)
        moec_capacities_release(capacities);
    return status;
}

void moec_capacities_release(struct moec_capacities *capacities)
{
    free(capacities->spans);
    free(capacities->counts);
    *capacities = (struct moec_capacities){0};
}

void moec_capacities_clear(struct moec_capacities *capacities)
{
    capacities->batch.n_spans = 0;
}

void moec_capacities_add(struct moec_capacities *capacities, uint32_t n_rows)
{
    if (capacities->spans == NULL)
        return;
    const uint32_t i = capacities->batch.n_spans++;
    uint32_t *counts = capacities->counts + (size_t)i * capacities->n_expert;
    memset(counts, 0, capacities->n_expert * sizeof *counts);
    capacities->spans[i] = (struct moec_capacity_span){.n_rows = n_rows, .counts = counts};
}
