#include "formats/model/plan.h"

#include "formats/base/memory.h"

#include <string.h>

uint32_t moec_plan_dense_count(const struct moec_config *config)
{
    uint32_t n = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at);)
        n++;
    return n;
}

enum moec_status moec_plan_create(struct moec_plan *plan, const struct moec_config *config,
                                  struct moec_error *err)
{
    *plan = (struct moec_plan){.n_layer = moec_config_moe_count(config),
                               .n_expert = config->n_expert,
                               .n_dense = moec_plan_dense_count(config)};
    MOEC_TRY(
        moec_alloc((void **)&plan->experts, moec_plan_count(plan), sizeof *plan->experts, "a plan", err));
    MOEC_TRY(moec_alloc((void **)&plan->dense, (uint64_t)plan->n_dense + 1, 1, "a plan", err));
    moec_plan_fill(plan, 16);
    return MOEC_OK;
}

void moec_plan_release(struct moec_plan *plan)
{
    free(plan->experts);
    free(plan->dense);
    *plan = (struct moec_plan){0};
}

void moec_plan_fill(struct moec_plan *plan, uint32_t number)
{
    for (size_t i = 0; i < moec_plan_count(plan); i++)
        plan->experts[i] = moec_variant_uniform(number);
}

void moec_plan_copy(struct moec_plan *to, const struct moec_plan *from)
{
    memcpy(to->experts, from->experts, moec_plan_count(from) * sizeof *from->experts);
    memcpy(to->dense, from->dense, from->n_dense);
    to->dense_bits = from->dense_bits;
}
