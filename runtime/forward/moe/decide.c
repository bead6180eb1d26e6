/* For each token in turn: score, choose by its logical cache, weigh, skip, decide precisions, lower by the
 * block, pass identities, fill capacities, take. Taking comes last, as it changes what the next token sees.
 * What the choice itself dropped is kept apart. Only that drops an identity, whatever precisions say later.
 * A decision by the buffer is made once for a position: from a replay or an earlier run of it the same is
 * taken again. */
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/moe/router_rules.h"

#include "formats/base/memory.h"
#include "formats/model/neighbors.h"
#include "runtime/forward/moe/router_scores.h"
#include "runtime/policy/decide/decision_log.h"
#include "runtime/policy/decide/route_state.h"

#include <math.h>
#include <string.h>

#define N_VECTOR 4 /* scores, compared, shares, bias */

uint64_t moec_decider_bytes(const struct moec_config *config, const struct moec_route *route,
                            uint32_t max_tokens)
{
    const uint64_t stride = moec_lanes_padded(moec_config_choices(config)),
                   n_marks = moec_route_takes_low(route) ? 2 : 1;
    return ((uint64_t)max_tokens + N_VECTOR) * stride * sizeof(float) +
           n_marks * max_tokens * config->top_k * sizeof(bool) +
           (moec_route_looks_at_buffer(route) ? config->n_expert * sizeof(bool) : 0);
}

enum moec_status moec_decider_create(const struct moec_config *config, const struct moec_route *route,
                                     uint32_t max_tokens, struct moec_decider *decider,
                                     struct moec_error *err)
{
    const size_t stride = moec_lanes_padded(moec_config_choices(config));
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
    if (status == MOEC_OK && moec_route_takes_low(route))
        status = moec_alloc((void **)&decider->is_low, n_pair, sizeof *decider->is_low,
                            "precisions of experts", err);
    if (status == MOEC_OK && moec_route_looks_at_buffer(route))
        status = moec_alloc((void **)&decider->is_asked, config->n_expert, sizeof *decider->is_asked,
                            "experts of a batch", err);
    if (status != MOEC_OK)
        moec_decider_release(decider);
    return status;
}

void moec_decider_release(struct moec_decider *decider)
{
    free(decider->logits);
    free(decider->skips);
    free(decider->is_low);
    free(decider->is_asked);
    *decider = (struct moec_decider){0};
}

/* What a token of a sequence sees as resident: numbers past the experts ask for nothing, as if they were. */
struct view {
    struct moec_residents residents;
    const struct moec_route_state *state;
    uint32_t layer; /* of the state */
};

static bool view_has(const struct moec_residents *self, uint32_t layer, uint32_t expert)
{
    const struct view *view = (const struct view *)self;
    (void)layer;
    return expert >= view->state->n_expert || moec_route_state_has(view->state, view->layer, expert, false);
}

/* What of it is there when a precision is decided: what is foreseen is on its way. */
struct predicted {
    struct moec_residents residents;
    const struct moec_residents *others;
    const uint64_t *words; /* of the token; NULL = all experts are */
};

static bool predicted_has(const struct moec_residents *self, uint32_t layer, uint32_t expert)
{
    const struct predicted *predicted = (const struct predicted *)self;
    return predicted->words == NULL || predicted->others->has(predicted->others, layer, expert) ||
           (predicted->words[expert / 64] >> expert % 64 & 1) != 0;
}

/* The same of the expert buffer, whose answer is another one at another time. */
struct buffer_view {
    struct moec_residents residents;
    const struct moec_forward *forward;
};

static bool buffer_has(const struct moec_residents *self, uint32_t layer, uint32_t expert)
{
    const struct moec_forward *forward = ((const struct buffer_view *)self)->forward;
    struct moec_experts *source = forward->experts;
    return expert >= forward->model->config.n_expert || forward->decider->is_asked[expert] ||
           source->ops->ready == NULL || source->ops->ready(source, moec_expert_request_of(layer, expert));
}

/* The layer's row of a table of records. */
static const uint64_t *bytes_of_layer(const struct moec_config *config, const uint64_t *record_bytes,
                                      uint32_t layer)
{
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    return record_bytes != NULL && ordinal >= 0 ? record_bytes + (size_t)ordinal * config->n_expert : NULL;
}

/* A token of a batch, and what is known of it before it chooses. */
struct row {
    const struct moec_sequence_rows *span;
    uint32_t at;  /* of its sequence's rows */
    uint32_t row; /* of the batch's */
    uint32_t route_layer;
    const float *logits;
    float range;
    struct view view;
    struct moec_scored_token token;
};

static struct row row_make(const struct moec_forward *forward, const struct moec_sequence_rows *span,
                           uint32_t at, uint32_t row)
{
    return (struct row){.span = span,
                        .at = at,
                        .row = row,
                        .route_layer = span->decides.layer,
                        .logits = forward->decider->logits + row * forward->decider->stride};
}

/* What a prior is a share of. */
static float range_of(const struct moec_route *route, const struct moec_config *config, uint32_t layer,
                      const struct row *row)
{
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    if (route->range == MOEC_ROUTE_RANGE_OWN)
        return row->range;
    if (route->range == MOEC_ROUTE_RANGE_CALIBRATED && ordinal >= 0)
        return route->ranges[ordinal];
    return moec_route_state_range(row->span->decides.route, row->route_layer, row->range);
}

/* Scores the token; row->token borrows the decider's arrays. */
static void score_row(const struct moec_forward *forward, uint32_t layer, struct row *row)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_decider *decider = forward->decider;
    const float *logits = row->logits;
    const struct moec_layer *weigher = &forward->model->layers[layer];
    const float *bias = weigher->router_choice_bias;
    memcpy(decider->scores, logits, moec_config_choices(config) * sizeof(float));
    moec_router_score(config, forward->kernels, decider->scores);
    if (config->router.n_group > 0) {
        moec_router_group(config, decider->scores, bias, decider->bias);
        bias = decider->bias;
    }
    row->range = moec_router_compares_logits(config, weigher)
                     ? moec_router_compare(config, logits, NULL, decider->compared)
                     : moec_router_compare(config, decider->scores, bias, decider->compared);
    if (decider->route->kind == MOEC_ROUTE_CUMSUM) {
        memcpy(decider->shares, logits, moec_config_choices(config) * sizeof(float));
        moec_router_shares(config, forward->kernels, bias, decider->shares);
    }
    row->view = (struct view){{view_has}, row->span->decides.route, row->route_layer};
    row->token =
        (struct moec_scored_token){.layer = layer,
                                   .n_expert = moec_config_choices(config),
                                   .top_k = config->top_k,
                                   .scores = decider->scores,
                                   .bias = bias,
                                   .residents = &row->view.residents,
                                   .ranked = {.compared = decider->compared,
                                              .shares = decider->shares,
                                              .range = range_of(decider->route, config, layer, row)}};
}

static void choose(const struct moec_forward *forward, const struct moec_choice *choice,
                   const struct row *row, uint32_t *experts, bool *skips)
{
    const struct moec_layer *weigher = &forward->model->layers[row->token.layer];
    if (weigher->router_table.rows > 0)
        moec_router_by_token(forward, weigher, row->span->tokens[row->at], row->token.scores, experts);
    else
        choice->choose(choice->context, &row->token, experts, skips);
}

/* The same with weights. What the choice drops is in `skips`; its weight is there for a later skip. */
static void choose_and_weigh(const struct moec_forward *forward, const struct moec_choice *choice,
                             const struct row *row, uint32_t *experts, float *weights, bool *skips)
{
    static const bool none[MOEC_MAX_TOP_K] = {false};
    const uint32_t layer = row->token.layer;
    choose(forward, choice, row, experts, skips);
    moec_router_weigh_layer(forward, &forward->model->layers[layer], forward->decider->scores, experts, none,
                            weights);
}

/* Decides in which precision a token takes what it has chosen: a prompt's as its block does. */
static void decide_precision(const struct moec_forward *forward, const struct row *row, bool is_prompt,
                             const struct moec_token_experts *token)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_precision *precision = &forward->decider->route->precision;
    const uint32_t layer = row->token.layer;
    const bool is_predicted = moec_config_moe_layer_before(config, layer) != MOEC_NO_LAYER &&
                              !moec_config_layer(config, layer)->routes_by_token;
    const struct predicted predicted = {.residents = {predicted_has},
                                        .others = &row->view.residents,
                                        .words = is_predicted && row->span->decides.predicted != NULL
                                                     ? row->span->decides.predicted +
                                                           row->at * moec_precision_predicted_words(config)
                                                     : NULL};
    moec_precision_decide(
        precision, token,
        precision->kind == MOEC_PRECISION_FATE ? &predicted.residents : &row->view.residents, layer,
        is_prompt ? moec_route_state_block(row->span->decides.route, row->route_layer) : NULL,
        config->n_expert);
}

/* Of the experts that a prompt's token takes, those that its block reads in a low copy. */
static void lower_unpopular(const struct row *row, const uint32_t *experts, const bool *skips, bool *is_low)
{
    for (uint32_t rank = 0; rank < row->token.top_k; rank++)
        is_low[rank] |= !skips[rank] && experts[rank] < row->span->decides.route->n_expert &&
                        moec_popularity_is_low(&row->span->decides.route->popularity,
                                               row->span->decides.layer, experts[rank]);
}

/* Choices that give their input ask for nothing: no copy of them is low, and only those that the choice
 * itself drops, before precisions are decided, count nothing. Returns how many there are. */
static uint32_t pass_identities(const struct moec_config *config, const bool *is_dropped, uint32_t *experts,
                                float *weights, bool *skips, bool *is_low)
{
    uint32_t n = 0;
    for (uint32_t rank = 0; rank < config->top_k; rank++) {
        const bool is_identity = experts[rank] >= config->n_expert;
        skips[rank] = is_identity ? is_dropped[rank] : skips[rank];
        if (skips[rank])
            weights[rank] = 0;
        if (!is_identity)
            continue;
        skips[rank] = true;
        if (is_low != NULL)
            is_low[rank] = false;
        n++;
    }
    moec_router_pass(config, experts, weights);
    return n;
}

/* `taken` but for the sizes of records. */
static void take(const struct moec_forward *forward, const struct row *row, struct moec_route_taken taken)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_decider *decider = forward->decider;
    for (size_t form = 0; form < 2; form++)
        taken.record_bytes[form] = bytes_of_layer(config, decider->record_bytes[form], row->token.layer);
    moec_route_state_take(row->span->decides.route, row->span->decides.layer, row->range, &taken);
}

/* In which precision a token takes its experts by what the buffer holds, unless it is known: from a replay,
 * or from an earlier time that the position ran. */
static void look_at_buffer(const struct moec_forward *forward, uint32_t layer, const struct row *row,
                           bool is_free, const struct moec_token_experts *token)
{
    bool *skips = token->skips, *is_low = token->is_low;
    const struct moec_decider *decider = forward->decider;
    const struct moec_config *config = &forward->model->config;
    const struct moec_sequence_rows *span = row->span;
    const uint32_t position = span->decides.first_position + row->at;
    const uint8_t *known = moec_decision_log_find(span->decides.log, position, span->decides.layer);
    const struct buffer_view view = {{buffer_has}, forward};
    if (known == NULL && is_free)
        moec_precision_decide(&decider->route->precision, token, &view.residents, layer, NULL, 0);
    uint8_t *noted =
        known == NULL ? moec_decision_log_at(span->decides.log, position, span->decides.layer) : NULL;
    for (uint32_t rank = 0; rank < config->top_k; rank++) {
        if (known != NULL) {
            skips[rank] = known[rank] == MOEC_DECIDED_SKIPPED;
            is_low[rank] = known[rank] == MOEC_DECIDED_LOW;
        } else {
            noted[rank] = skips[rank]    ? MOEC_DECIDED_SKIPPED
                          : is_low[rank] ? MOEC_DECIDED_LOW
                                         : MOEC_DECIDED_HIGH;
        }
        if (!skips[rank] && !is_low[rank] && token->experts[rank] < config->n_expert)
            decider->is_asked[token->experts[rank]] = true;
    }
}

static void decide_token(const struct moec_forward *forward, uint32_t layer,
                         const struct moec_sequence_rows *span, uint32_t at, uint32_t row_of_batch,
                         const struct moec_routing *routing)
{
    bool is_dropped[MOEC_MAX_TOP_K];
    const struct moec_config *config = &forward->model->config;
    const struct moec_decider *decider = forward->decider;
    const struct moec_route *route = decider->route;
    const size_t first = (size_t)row_of_batch * config->top_k;
    const bool is_prompt = at < span->decides.n_prompt, is_free = !(is_prompt && route->decode_only),
               is_of_block = is_prompt && is_free && route->prefill.kind != MOEC_PREFILL_SAME;
    uint32_t *experts = routing->experts + first;
    float *weights = routing->weights + first;
    bool *skips = decider->skips + first;
    bool *is_low = decider->is_low != NULL ? decider->is_low + first : NULL;
    const struct moec_token_experts token = {config->top_k, experts, weights, skips, is_low};
    const struct moec_choice choice = is_free ? moec_route_choice(route) : moec_choice_top_k;
    struct row row = row_make(forward, span, at, row_of_batch);
    score_row(forward, layer, &row);
    memset(skips, 0, config->top_k * sizeof *skips);
    if (routing->ranges != NULL)
        routing->ranges[row.row] = row.range;
    if (routing->margins != NULL)
        routing->margins[row.row] = moec_router_margin(&row.token);
    choose_and_weigh(forward, &choice, &row, experts, weights, skips);
    memcpy(is_dropped, skips, config->top_k * sizeof *skips);
    if (is_free)
        moec_route_skip(route, &row.token, experts, weights, skips);
    if (is_low != NULL)
        memset(is_low, 0, config->top_k * sizeof *is_low);
    if (moec_route_looks_at_buffer(route))
        look_at_buffer(forward, layer, &row, is_free, &token);
    else if (route->precision.kind != MOEC_PRECISION_ONE && is_free)
        decide_precision(forward, &row, is_prompt, &token);
    if (is_of_block) {
        moec_route_state_begin_prompt(span->decides.route, span->decides.layer);
        lower_unpopular(&row, experts, skips, is_low);
    }
    const uint32_t n_identity = pass_identities(config, is_dropped, experts, weights, skips, is_low);
    if (span->counts != NULL && config->router.expert_capacity > 0 && !skips[0])
        skips[0] = moec_capacity_take(span, config, experts[0], weights);
    take(forward, &row,
         (struct moec_route_taken){.experts = experts,
                                   .weights = weights,
                                   .skips = skips,
                                   .is_low = is_low,
                                   .n_identity = n_identity,
                                   .is_of_block = is_of_block,
                                   .is_left_out = !is_free});
}

/* Counts what the router chooses for the whole prompt, whose rows from `first_row` on are all there. */
static void survey(const struct moec_forward *forward, uint32_t layer, const struct moec_sequence_rows *span,
                   uint32_t first_row)
{
    uint32_t experts[MOEC_MAX_TOP_K];
    bool skips[MOEC_MAX_TOP_K];
    for (uint32_t t = 0; t < span->decides.n_prompt; t++) {
        struct row row = row_make(forward, span, t, first_row + t);
        score_row(forward, layer, &row);
        choose(forward, &moec_choice_top_k, &row, experts, skips);
        for (uint32_t rank = 0; rank < row.token.top_k; rank++)
            if (experts[rank] < span->decides.route->n_expert)
                moec_popularity_add(&span->decides.route->popularity, span->decides.layer, experts[rank]);
    }
}

void moec_decide(const struct moec_forward *forward, uint32_t layer, const struct moec_sequences *sequences,
                 const struct moec_routing *routing)
{
    const struct moec_route *route = forward->decider->route;
    uint32_t row = 0;
    if (forward->decider->is_asked != NULL)
        memset(forward->decider->is_asked, 0, forward->model->config.n_expert * sizeof(bool));
    for (uint32_t i = 0; i < sequences->n_spans; i++) {
        const struct moec_sequence_rows *span = &sequences->spans[i];
        if (moec_prefill_looks_ahead(&route->prefill) && !route->decode_only &&
            span->decides.route->n_done[span->decides.layer] == 0)
            survey(forward, layer, span, row);
        for (uint32_t t = 0; t < span->n_rows; t++, row++)
            decide_token(forward, layer, span, t, row, routing);
    }
}

bool moec_decide_forms(const struct moec_forward *forward, const struct moec_sequences *sequences,
                       uint32_t ordinal, const bool **is_low)
{
    const struct moec_route *route = forward->decider != NULL ? forward->decider->route : NULL;
    *is_low = NULL;
    if (route == NULL || sequences == NULL || route->prefill.kind == MOEC_PREFILL_SAME || route->decode_only)
        return true;
    const struct moec_sequence_rows *span = sequences->spans;
    if (sequences->n_spans > 1 || moec_prefill_looks_ahead(&route->prefill))
        return false;
    if (span->decides.n_prompt == 0)
        return true;
    moec_route_state_begin_prompt(span->decides.route, ordinal);
    *is_low = span->decides.route->popularity.is_low + (size_t)ordinal * span->decides.route->n_expert;
    return true;
}

void moec_decide_foretell(const struct moec_forward *forward, uint32_t layer, uint32_t ahead,
                          const struct moec_sequence_rows *span, const float *logits,
                          struct moec_scored_expert *gate, uint32_t n)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_choice choice = moec_route_choice(forward->decider->route);
    uint32_t experts[MOEC_MAX_TOP_K];
    float weights[MOEC_MAX_TOP_K];
    bool skips[MOEC_MAX_TOP_K] = {false}, is_taken[MOEC_MAX_EXPERTS] = {false};
    struct row row = {.span = span, .route_layer = span->decides.layer + ahead, .logits = logits};
    score_row(forward, layer, &row);
    choose_and_weigh(forward, &choice, &row, experts, weights, skips);
    moec_route_skip(forward->decider->route, &row.token, experts, weights, skips);
    for (uint32_t rank = 0; rank < config->top_k; rank++)
        if (experts[rank] < config->n_expert)
            is_taken[experts[rank]] = !skips[rank];
    for (uint32_t i = 0; i < n; i++)
        gate[i].score = is_taken[gate[i].expert] ? gate[i].score : -gate[i].score;
}
