/* What is missing is expected first; only then is time spent on predictions. Gates are computed one layer
 * ahead after the other, each only if the source wants it; a trace gets all. Where the next choice is known
 * to a decider, experts that it will not take get their score negated. They stay in the list, and predictors
 * leave them out. */
#include "runtime/forward/moe/router_answer.h"

#include "formats/model/neighbors.h"
#include "runtime/forward/context/learned_predictor.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/policy/predict/scored.h"

#include <string.h>

/* The last layer's choices, where they are of the same rows. */
static void add_choices(const struct moec_forward *forward, const struct moec_routed *routed,
                        struct moec_router_answer *answer)
{
    const struct moec_last_choices *last = &moec_forward_scratch(forward)->moe.last;
    const uint32_t before = moec_config_moe_layer_before(&forward->model->config, routed->layer);
    answer->choices.experts = routed->routing->experts;
    answer->choices.weights = routed->counted;
    answer->choices.is_low = routed->is_low;
    if (forward->kept_logits != NULL) {
        answer->logits.rows = forward->kept_logits;
        answer->logits.n = moec_config_choices(&forward->model->config);
        answer->logits.stride = (uint32_t)moec_lanes_padded(answer->logits.n);
    }
    if (before != MOEC_NO_LAYER && last->n_tok == routed->batch->n_tok && last->layer == before &&
        last->hidden == routed->batch->hidden) {
        answer->last.experts = last->experts;
        answer->last.weights = last->weights;
    }
}

static void keep_choices(const struct moec_forward *forward, const struct moec_routed *routed)
{
    struct moec_last_choices *last = &moec_forward_scratch(forward)->moe.last;
    const size_t n = (size_t)routed->batch->n_tok * forward->model->config.top_k;
    memcpy(last->experts, routed->routing->experts, n * sizeof *last->experts);
    memcpy(last->weights, routed->counted, n * sizeof *last->weights);
    last->layer = routed->layer;
    last->n_tok = routed->batch->n_tok;
    last->hidden = routed->batch->hidden;
}

/* How many experts of the next layer an answer names. */
static uint32_t named_experts(const struct moec_config *config, uint32_t n_tok)
{
    return n_tok == 1 ? moec_predicted_experts(config->top_k, config->n_expert) : config->n_expert;
}

/* The MoE layer `ahead` of one, where the stack has it. */
static uint32_t moe_layer_ahead(const struct moec_config *config, uint32_t layer, uint32_t ahead)
{
    for (; ahead > 0 && layer != MOEC_NO_LAYER; ahead--)
        layer = moec_config_moe_layer_after(config, layer);
    return layer;
}

/* The sequence of a single token that will decide about a layer by its logical cache, so that what it will
 * take can be foretold. */
static const struct moec_sequence_rows *deciding_token(const struct moec_forward *forward,
                                                       const struct moec_routed *routed, uint32_t layer)
{
    if (routed->batch->n_tok != 1 || !moec_router_decides(forward, routed->batch->sequences) ||
        moec_route_looks_at_buffer(forward->decider->route) ||
        moec_config_layer(&forward->model->config, layer)->routes_by_token)
        return NULL;
    const struct moec_sequence_rows *span = routed->batch->sequences->spans;
    while (span->n_rows == 0)
        span++;
    return span->decides.n_prompt > 0 && forward->decider->route->decode_only ? NULL : span;
}

/* What the router of the MoE layer `ahead` makes of this layer's input. */
static enum moec_status add_gate(const struct moec_forward *forward, const struct moec_routed *routed,
                                 uint32_t ahead, struct moec_router_answer *answer, struct moec_error *err)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const uint32_t n = named_experts(config, routed->batch->n_tok),
                   other = moe_layer_ahead(config, routed->layer, ahead);
    struct moec_scored_expert *gate = scratch->moe.gates.lists + (size_t)(ahead - 1) * config->n_expert;
    if (other == MOEC_NO_LAYER)
        return MOEC_OK;
    const struct moec_sequence_rows *deciding = deciding_token(forward, routed, other);
    float *logits = deciding != NULL ? forward->decider->logits : NULL;
    MOEC_TRY(moec_router_preview(
        forward, other, routed->batch->n_tok, routed->normed,
        (struct moec_router_preview){.sums = scratch->moe.gates.sums, .logits = logits}, err));
    for (uint32_t e = 0; e < config->n_expert; e++)
        gate[e] = (struct moec_scored_expert){e, scratch->moe.gates.sums[e]};
    moec_scored_order(gate, config->n_expert, n);
    if (deciding != NULL)
        moec_decide_foretell(forward, other, ahead, deciding, logits, gate, n);
    if (ahead == 1) {
        answer->next.gate.experts = gate;
        answer->next.gate.n = n;
    } else {
        answer->next.later[ahead - 2] = (struct moec_gate_list){gate, n};
    }
    return MOEC_OK;
}

static void add_next_learned(const struct moec_forward *forward, const struct moec_routed *routed,
                             struct moec_router_answer *answer)
{
    const struct moec_config *config = &forward->model->config;
    const uint32_t n = named_experts(config, routed->batch->n_tok);
    const int32_t ordinal = moec_config_moe_ordinal(config, routed->layer);
    if (!moec_learned_predictor_batch(forward->learned_predictor, forward->kernels, (uint32_t)ordinal,
                                      &(struct moec_predictor_batch){routed->batch->n_tok, routed->normed,
                                                                     moec_forward_scratch(forward)->stride,
                                                                     routed->routing->experts, config->top_k},
                                      n))
        return;
    answer->next.learned.experts = forward->learned_predictor->list;
    answer->next.learned.n = n;
}

/* In which copies a prompt takes the next layer's experts, where that is known. */
static void add_next_low(const struct moec_forward *forward, const struct moec_routed *routed,
                         struct moec_router_answer *answer)
{
    const struct moec_config *config = &forward->model->config;
    const uint32_t next = moe_layer_ahead(config, routed->layer, 1);
    if (next != MOEC_NO_LAYER)
        (void)moec_decide_forms(forward, routed->batch->sequences,
                                (uint32_t)moec_config_moe_ordinal(config, next), &answer->next.is_low);
}

/* Gates are asked one after the other, each when the source wants it; a trace is told all of them. */
static enum moec_status predict(const struct moec_forward *forward, const struct moec_routed *routed,
                                bool is_answer, struct moec_router_answer *answer, struct moec_error *err)
{
    struct moec_experts *source = forward->experts;
    const bool has_trace = forward->trace != NULL, may_prefetch = is_answer && source->ops->prefetch != NULL;
    uint32_t n_gate = 0;
    for (uint32_t ahead = 1; has_trace && ahead <= MOEC_GATES_AHEAD; ahead++, n_gate++)
        MOEC_TRY(add_gate(forward, routed, ahead, answer, err));
    if (forward->learned_predictor != NULL && has_trace)
        add_next_learned(forward, routed, answer);
    for (uint32_t ahead = 1; may_prefetch && ahead <= MOEC_GATES_AHEAD; ahead++) {
        if (!source->ops->wants_prefetch(source, ahead))
            return MOEC_OK;
        if (source->wants_next_gate && ahead > n_gate)
            MOEC_TRY(add_gate(forward, routed, ahead, answer, err));
        if (forward->learned_predictor != NULL && !has_trace && ahead == 1 && source->wants_next_learned)
            add_next_learned(forward, routed, answer);
        source->ops->prefetch(source, answer, ahead);
    }
    return MOEC_OK;
}

enum moec_status moec_router_answer_send(const struct moec_forward *forward, const struct moec_routed *routed,
                                         struct moec_error *err)
{
    struct moec_experts *source = forward->experts;
    const struct moec_config *config = &forward->model->config;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    struct moec_router_answer answer = {
        .layer = routed->layer,
        .n_tok = routed->batch->n_tok,
        .active = {.list = scratch->moe.groups.active,
                   .n = routed->n_active,
                   .n_takers = routed->batch->n_tok > 1 ? scratch->moe.groups.n_takers : NULL,
                   .order = scratch->moe.groups.order}};
    if (routed->batch->n_tok > 1)
        add_next_low(forward, routed, &answer);
    memcpy(scratch->moe.groups.order, scratch->moe.groups.active,
           routed->n_active * sizeof *scratch->moe.groups.order);
    const bool has_trace = forward->trace != NULL, is_expected = source->ops->expect != NULL;
    const bool wants_choices = has_trace || (is_expected && source->wants_choices);
    if (wants_choices)
        add_choices(forward, routed, &answer);
    else
        moec_router_answer_reset(forward);
    const uint64_t answered_ns = moec_trace_now(forward->trace);
    const bool is_answer = is_expected && answer.active.n > 0;
    /* What is missing begins to be read before time is spent on what may be. */
    if (is_answer)
        source->ops->expect(source, &answer);
    MOEC_TRY(predict(forward, routed, is_answer, &answer, err));
    moec_trace_answer(forward->trace, &answer, config->top_k, answered_ns);
    if (wants_choices)
        keep_choices(forward, routed);
    return MOEC_OK;
}

void moec_router_answer_reset(const struct moec_forward *forward)
{
    moec_forward_scratch(forward)->moe.last.n_tok = 0;
}

/* Experts of a layer that the tokens take, increasing; returns how many. */
static uint32_t list_experts(const struct moec_forward *forward, const struct moec_layer *layer,
                             const uint32_t *tokens, uint32_t n_tok, uint32_t *experts)
{
    const uint32_t n_expert = forward->model->config.n_expert, k = layer->router_table.columns;
    uint32_t *is_taken = moec_forward_scratch(forward)->moe.groups.expert_start, n = 0;
    float row[MOEC_MAX_TOP_K + MOEC_LANES];
    memset(is_taken, 0, n_expert * sizeof *is_taken);
    for (uint32_t t = 0; t < n_tok; t++) {
        forward->kernels->decode_rows(&layer->router_table, tokens[t], 1, row, moec_lanes_padded(k));
        for (uint32_t i = 0; i < k; i++)
            is_taken[(uint32_t)row[i]] = 1;
    }
    for (uint32_t e = 0; e < n_expert; e++)
        if (is_taken[e] != 0)
            experts[n++] = e;
    return n;
}

/* Says to the source which MoE layer of the decoder's the tokens come to first. */
static void begin_prompt(const struct moec_forward *forward, const struct moec_sequences *sequences,
                         uint32_t n_tok)
{
    struct moec_experts *source = forward->experts;
    const struct moec_config *config = &forward->model->config;
    const uint32_t first = moec_config_moe_encoder_count(config);
    const bool *is_low = NULL;
    if (source->ops->begin_prompt != NULL && n_tok > 1 && first < moec_config_moe_count(config) &&
        moec_decide_forms(forward, sequences, first, &is_low))
        source->ops->begin_prompt(source, moec_config_moe_layer(config, first), n_tok, is_low);
}

void moec_router_look_ahead(const struct moec_forward *forward, const struct moec_sequences *sequences,
                            const uint32_t *tokens, uint32_t n_tok)
{
    struct moec_experts *source = forward->experts;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const struct moec_config *config = &forward->model->config;
    begin_prompt(forward, sequences, n_tok);
    if (source->ops->hint == NULL || n_tok == 0 || !moec_config_routes_by_token(config))
        return;
    for (uint32_t at = 0; at < config->n_layer; at++) {
        const struct moec_layer *layer = &forward->model->layers[at];
        if (!moec_config_layer(config, at)->routes_by_token)
            continue;
        const uint32_t n = list_experts(forward, layer, tokens, n_tok, scratch->moe.groups.active);
        source->ops->hint(source, at, scratch->moe.groups.active, n);
    }
}
