#include "formats/model/plan.h"

#include "formats/base/memory.h"

#include <string.h>

enum moec_status moec_plan_create(struct moec_plan *plan, const struct moec_config *config,
                                  struct moec_error *err)
{
    *plan = (struct moec_plan){.n_layer = moec_config_moe_count(config), .n_expert = config->n_expert};
    MOEC_TRY(
        moec_alloc((void **)&plan->experts, moec_plan_count(plan), sizeof *plan->experts, "a plan", err));
    moec_plan_fill(plan, 16);
    return MOEC_OK;
}

void moec_plan_release(struct moec_plan *plan)
{
    free(plan->experts);
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
    to->dense_bits = from->dense_bits;
}
