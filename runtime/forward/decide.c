#include "runtime/forward/decide.h"
#include "runtime/forward/router.h"

#include "formats/base/memory.h"
#include "runtime/forward/router_scores.h"
#include "runtime/policy/route_state.h"

#include <math.h>
#include <string.h>

#define N_VECTOR 4 /* scores, compared, shares, bias */

static bool has_precision(const struct moec_route *route)
{
    return route->precision.kind != MOEC_PRECISION_ONE;
}

uint64_t moec_decider_bytes(const struct moec_config *config, const struct moec_route *route,
                            uint32_t max_tokens)
{
    const uint64_t stride = moec_lanes_padded(config->n_expert), n_marks = has_precision(route) ? 2 : 1;
    return ((uint64_t)max_tokens + N_VECTOR) * stride * sizeof(float) +
           n_marks * max_tokens * config->top_k * sizeof(bool);
}

enum moec_status moec_decider_create(const struct moec_config *config, const struct moec_route *route,
                                     uint32_t max_tokens, struct moec_decider *decider,
                                     struct moec_error *err)
{
    const size_t stride = moec_lanes_padded(config->n_expert);
    *decider = (struct moec_decider){.route = route, .stride = stride};
    MOEC_TRY(moec_alloc_aligned((void **)&decider->logits, ((uint64_t)max_tokens + N_VECTOR) * stride,
                                sizeof(float), "scores of experts", err));
    decider->scores = decider->logits + max_tokens * stride;
    decider->compared = decider->scores + stride;
    decider->shares = decider->compared + stride;
    decider->bias = decider->shares + stride;
    const uint64_t n_pair = (uint64_t)max_tokens * config->top_k;
    enum moec_status status =
        moec_alloc((void **)&decider->skips, n_pair, sizeof *decider->skips, "skipped experts", err);
    if (status == MOEC_OK && has_precision(route))
        status = moec_alloc((void **)&decider->is_low, n_pair, sizeof *decider->is_low,
                            "precisions of experts", err);
    if (status != MOEC_OK)
        moec_decider_release(decider);
    return status;
}

void moec_decider_release(struct moec_decider *decider)
{
    free(decider->logits);
    free(decider->skips);
    free(decider->is_low);
    *decider = (struct moec_decider){0};
}

/* What a token of a sequence sees as resident. */
struct view {
    struct moec_residents residents;
    const struct moec_route_state *state;
    uint32_t layer; /* of the state */
};

static bool view_has(const struct moec_residents *self, uint32_t layer, uint32_t expert)
{
    const struct view *view = (const struct view *)self;
    (void)layer;
    return moec_route_state_has(view->state, view->layer, expert, false);
}

/* Fills what the router compares, and returns its range over the experts that may be chosen. */
static float compare(const struct moec_config *config, const struct moec_decider *decider,
                     const float *logits, const float *bias)
{
    const bool by_logits = bias == NULL && config->router_kind != MOEC_ROUTER_SIGMOID &&
                           config->router_kind != MOEC_ROUTER_ROOT_SOFTPLUS;
    float least = INFINITY, most = -INFINITY;
    for (uint32_t e = 0; e < config->n_expert; e++) {
        float value = by_logits ? logits[e] : decider->scores[e] + (bias != NULL ? bias[e] : 0);
        if (isnan(value))
            value = -INFINITY;
        decider->compared[e] = value;
        if (!isfinite(value))
            continue;
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    return most > least ? most - least : 0;
}

/* The layer's row of a table of records. */
static const uint64_t *bytes_of_layer(const struct moec_config *config, const uint64_t *record_bytes,
                                      uint32_t layer)
{
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    return record_bytes != NULL && ordinal >= 0 ? record_bytes + (size_t)ordinal * config->n_expert : NULL;
}

/* The token at `row` of the batch, `at` of its sequence's; `is_free` where it may take what its router would
 * not. */
static void decide_token(const struct moec_forward *forward, uint32_t layer, bool is_free,
                         const struct moec_sequence_rows *span, uint32_t at, uint32_t row,
                         const struct moec_routing *routing)
{
    static const bool none[MOEC_MAX_TOP_K] = {false};
    const struct moec_config *config = &forward->model->config;
    const struct moec_decider *decider = forward->decider;
    const float *logits = decider->logits + row * decider->stride;
    const struct moec_layer *weigher = &forward->model->layers[layer];
    const float *bias = weigher->router_choice_bias;
    const size_t first = (size_t)row * config->top_k;
    uint32_t *experts = routing->experts + first;
    float *weights = routing->weights + first;
    bool *skips = decider->skips + first;
    bool *is_low = decider->is_low != NULL ? decider->is_low + first : NULL;
    const struct moec_choice choice = is_free ? moec_route_choice(decider->route) : moec_choice_top_k;

    memcpy(decider->scores, logits, config->n_expert * sizeof(float));
    moec_router_score(config, forward->kernels, decider->scores);
    if (config->n_group > 0) {
        moec_router_group(config, decider->scores, bias, decider->bias);
        bias = decider->bias;
    }
    const float range = compare(config, decider, logits, bias);
    if (decider->route->kind == MOEC_ROUTE_CUMSUM) {
        memcpy(decider->shares, logits, config->n_expert * sizeof(float));
        moec_router_shares(config, forward->kernels, bias, decider->shares);
    }
    const struct view view = {{view_has}, span->route, span->route_layer};
    const struct moec_scored_token token = {
        .layer = layer,
        .n_expert = config->n_expert,
        .top_k = config->top_k,
        .scores = decider->scores,
        .bias = bias,
        .residents = &view.residents,
        .compared = decider->compared,
        .shares = decider->shares,
        .range = moec_route_state_range(span->route, span->route_layer, range)};
    memset(skips, 0, config->top_k * sizeof *skips);
    if (routing->margins != NULL)
        routing->margins[row] = moec_router_margin(&token);
    if (weigher->router_table.rows > 0)
        moec_router_by_token(forward, weigher, span->tokens[at], decider->scores, experts);
    else
        choice.choose(choice.context, &token, experts, skips);
    moec_router_weigh_layer(forward, weigher, decider->scores, experts, none, weights);
    if (is_low != NULL)
        memset(is_low, 0, config->top_k * sizeof *is_low);
    if (is_low != NULL && is_free)
        moec_precision_decide(&decider->route->precision, config->top_k, experts, weights, &view.residents,
                              layer, skips, is_low);
    for (uint32_t rank = 0; rank < config->top_k; rank++)
        weights[rank] = skips[rank] ? 0 : weights[rank];
    if (span->counts != NULL && config->expert_capacity > 0 && !skips[0])
        skips[0] = moec_capacity_take(span, config, experts[0], weights);
    const struct moec_route_taken taken = {
        .experts = experts,
        .weights = weights,
        .skips = skips,
        .is_low = is_low,
        .record_bytes = {bytes_of_layer(config, decider->record_bytes[0], layer),
                         bytes_of_layer(config, decider->record_bytes[1], layer)}};
    moec_route_state_take(span->route, span->route_layer, range, &taken);
}

void moec_decide(const struct moec_forward *forward, uint32_t layer, const struct moec_sequences *sequences,
                 const struct moec_routing *routing)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < sequences->n_spans; i++) {
        const struct moec_sequence_rows *span = &sequences->spans[i];
        for (uint32_t t = 0; t < span->n_rows; t++, row++)
            decide_token(forward, layer, t >= span->n_undecided, span, t, row, routing);
    }
}
