/* One pass with insertion among the best. NaN counts as -infinity. Only a greater value goes before another,
 * so of equal ones the lower index is first. */
#include "runtime/policy/decide/choice.h"

#include <math.h>

void moec_choose_best(const struct moec_scored_token *token, uint32_t n_best, uint32_t *experts,
                      float *values)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < token->n_expert; e++) {
        float value = token->scores[e];
        if (token->bias != NULL)
            value += token->bias[e];
        if (isnan(value))
            value = -INFINITY;
        if (n == n_best && !(value > values[n - 1]))
            continue;
        uint32_t at = n < n_best ? n++ : n - 1;
        for (; at > 0 && value > values[at - 1]; at--) {
            experts[at] = experts[at - 1];
            values[at] = values[at - 1];
        }
        experts[at] = e;
        values[at] = value;
    }
}

static void top_k_choose(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                         bool *skips)
{
    float values[MOEC_MAX_TOP_K];
    (void)context;
    (void)skips;
    moec_choose_best(token, token->top_k, experts, values);
}

const struct moec_choice moec_choice_top_k = {.choose = top_k_choose};
