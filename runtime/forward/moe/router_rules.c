/* A choice past the last expert gives the input. It becomes expert 0 with its weight negated, which no other
 * choice has, and whoever reads weights asks for the sign. NaN compares as -infinity, and a range is that of
 * the finite values. */
#include "runtime/forward/moe/router_rules.h"

#include "runtime/forward/moe/router_scores.h"

#include <math.h>

float moec_router_margin(const struct moec_scored_token *token)
{
    uint32_t experts[MOEC_MAX_TOP_K + 1];
    float values[MOEC_MAX_TOP_K + 1];
    const uint32_t k = token->top_k;
    const bool is_all = k == token->n_expert;
    moec_choose_best(token, is_all ? k : k + 1, experts, values);
    return values[k - 1] - (is_all || !isfinite(values[k]) ? 0 : values[k]);
}

void moec_router_weigh_layer(const struct moec_forward *forward, const struct moec_layer *layer,
                             const float *scores, const uint32_t *experts, const bool *skips, float *weights)
{
    const struct moec_config *config = &forward->model->config;
    moec_router_weigh(config, forward->kernels, scores, experts, skips, weights);
    for (uint32_t rank = 0; layer->router_expert_scale != NULL && rank < config->top_k; rank++)
        weights[rank] *= layer->router_expert_scale[experts[rank]];
}

void moec_router_pass(const struct moec_config *config, uint32_t *experts, float *weights)
{
    for (uint32_t rank = 0; config->n_identity > 0 && rank < config->top_k; rank++) {
        if (experts[rank] < config->n_expert)
            continue;
        experts[rank] = 0;
        weights[rank] = -weights[rank];
    }
}

/* The experts of a row's token by the layer's table, the highest score first, ties to the lower index. */
void moec_router_by_token(const struct moec_forward *forward, const struct moec_layer *layer, uint32_t token,
                          const float *scores, uint32_t *experts)
{
    const uint32_t k = layer->router_table.columns;
    float row[MOEC_MAX_TOP_K + MOEC_LANES];
    forward->kernels->decode_rows(&layer->router_table, token, 1, row, moec_lanes_padded(k));
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t expert = (uint32_t)row[i];
        uint32_t at = i;
        for (; at > 0 && (scores[experts[at - 1]] < scores[expert] ||
                          (scores[experts[at - 1]] == scores[expert] && experts[at - 1] > expert));
             at--)
            experts[at] = experts[at - 1];
        experts[at] = expert;
    }
}

bool moec_router_compares_logits(const struct moec_config *config, const struct moec_layer *layer)
{
    return layer->router_choice_bias == NULL && config->router.n_group == 0 &&
           config->router.kind != MOEC_ROUTER_SIGMOID && config->router.kind != MOEC_ROUTER_ROOT_SOFTPLUS;
}

float moec_router_compare(const struct moec_config *config, const float *values, const float *bias,
                          float *compared)
{
    float least = INFINITY, most = -INFINITY;
    for (uint32_t e = 0; e < moec_config_choices(config); e++) {
        float value = values[e] + (bias != NULL ? bias[e] : 0);
        if (isnan(value))
            value = -INFINITY;
        if (compared != NULL)
            compared[e] = value;
        if (!isfinite(value))
            continue;
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    return most > least ? most - least : 0;
}
