/* Where a pass decides, tiles of tokens only keep their logits, and the choices follow one after the other.
 * Scores are made in place of the logits, so what compares logits comes before. Where inputs are scaled, the
 * experts read the state times the weight, and the weight becomes 1. Sums over a batch are made tile by
 * tile, then of tiles in order, so threads do not change them. */
#include "runtime/forward/moe/router.h"

#include "formats/model/neighbors.h"
#include "runtime/forward/context/backend.h"
#include "runtime/forward/context/steps.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/moe/router_scores.h"
#include "runtime/policy/decide/choice.h"

#include <string.h>

struct router {
    const struct moec_forward *forward;
    const struct moec_layer *layer;
    uint32_t layer_index;
    const struct moec_mlp_batch *batch;
    const struct moec_moe_inputs *inputs;
    const struct moec_routing *routing;
    const struct moec_backend_scores *scores; /* a backend's, or NULL */
    bool decides;                             /* the choice comes when all tokens are scored */
};

/* logits[t][e] for a tile of the batch's tokens, without bias. */
static void multiply(const struct moec_forward *forward, const struct moec_matrix *matrix, uint32_t n_tok,
                     const float *x, const struct moec_router_scratch *scratch)
{
    const struct moec_kernels *kernels = forward->kernels;
    size_t stride = moec_forward_scratch(forward)->stride;
    size_t logits_stride = moec_lanes_padded(moec_config_choices(&forward->model->config));
    for (uint32_t row = 0; row < matrix->rows; row += MOEC_ROUTER_ROWS) {
        uint32_t n_rows = moec_min_u32(MOEC_ROUTER_ROWS, matrix->rows - row);
        kernels->dot_tokens(matrix, row, n_rows, x, stride, n_tok, scratch->weights, scratch->logits + row,
                            logits_stride);
    }
}

/* Whose logits are wanted, and those that a backend has made of the batch, or NULL. */
struct scoring {
    const struct moec_forward *forward;
    const struct moec_layer *layer;
    const struct moec_backend_scores *scores;
};

/* logits[t][e] for tokens first .. first + n_tok - 1 of the batch, whose inputs x are. */
static void fill_logits(struct scoring scoring, uint32_t first, uint32_t n_tok, const float *x,
                        const struct moec_router_scratch *scratch)
{
    const struct moec_forward *forward = scoring.forward;
    const struct moec_layer *layer = scoring.layer;
    const struct moec_backend_scores *scores = scoring.scores;
    size_t logits_stride = moec_lanes_padded(moec_config_choices(&forward->model->config));
    if (scores == NULL)
        multiply(forward, &layer->router, n_tok, x, scratch);
    for (uint32_t t = 0; t < n_tok && scores != NULL; t++)
        memcpy(scratch->logits + t * logits_stride, scores->logits + (first + t) * scores->logits_stride,
               layer->router.rows * sizeof(float));
    for (uint32_t t = 0; t < n_tok && layer->router_bias != NULL; t++)
        forward->kernels->add(layer->router_bias, layer->router.rows, scratch->logits + t * logits_stride);
}

/* The sequence of a row of the batch, which becomes that of the sequence. */
static const struct moec_sequence_rows *span_of(const struct moec_sequences *sequences, uint32_t *row)
{
    const struct moec_sequence_rows *span = sequences->spans;
    for (; *row >= span->n_rows; span++)
        *row -= span->n_rows;
    return span;
}

static uint32_t token_of(const struct moec_sequences *sequences, uint32_t row)
{
    const struct moec_sequence_rows *span = span_of(sequences, &row);
    return span->tokens[row];
}

/* Both steps for one token, from its logits. */
static void route(const struct router *router, const struct moec_router_scratch *scratch, uint32_t token,
                  float *logits)
{
    const struct moec_forward *forward = router->forward;
    const struct moec_config *config = &forward->model->config;
    const struct moec_routing *routing = router->routing;
    const struct moec_choice *choice = forward->choice != NULL ? forward->choice : &moec_choice_top_k;
    const uint32_t k = config->top_k;
    uint32_t *experts = routing->experts + (size_t)token * k;
    bool skips[MOEC_MAX_TOP_K] = {false};

    const bool by_logits = moec_router_compares_logits(config, router->layer);
    if (routing->ranges != NULL && by_logits)
        routing->ranges[token] = moec_router_compare(config, logits, NULL, NULL);
    moec_router_score(config, forward->kernels, logits);
    const float *bias = router->layer->router_choice_bias;
    if (config->router.n_group > 0) {
        moec_router_group(config, logits, bias, scratch->bias);
        bias = scratch->bias;
    }
    const struct moec_scored_token scored = {.layer = router->layer_index,
                                             .n_expert = moec_config_choices(config),
                                             .top_k = k,
                                             .scores = logits,
                                             .bias = bias,
                                             .residents = forward->residents};
    if (routing->ranges != NULL && !by_logits)
        routing->ranges[token] = moec_router_compare(config, logits, bias, NULL);
    if (routing->margins != NULL)
        routing->margins[token] = moec_router_margin(&scored);
    if (router->layer->router_table.rows > 0)
        moec_router_by_token(forward, router->layer, token_of(router->batch->sequences, token), logits,
                             experts);
    else
        choice->choose(choice->context, &scored, experts, skips);
    moec_router_weigh_layer(forward, router->layer, logits, experts, skips,
                            routing->weights + (size_t)token * k);
    moec_router_pass(config, experts, routing->weights + (size_t)token * k);
}

static float shared_factor(const struct router *router, uint32_t token, const float *x)
{
    const float *gate = router->layer->shared_expert_gate;
    size_t stride = moec_forward_scratch(router->forward)->stride;
    float v = 0;
    if (gate == NULL)
        return 1;
    if (router->scores != NULL)
        v = router->scores->shared[token];
    else
        router->forward->kernels->dot(x, stride, 1, gate, stride, 1, router->forward->model->config.n_embd,
                                      &v, 1);
    return 1.0f / (1.0f + moec_exp_f32(-v));
}

/* The inputs of tokens first .. first + n - 1, normed. */
static void norm_inputs(const struct router *router, uint32_t first, uint32_t n)
{
    const struct moec_layer *layer = router->layer;
    const struct moec_moe_inputs *inputs = router->inputs;
    const size_t at = first * moec_forward_scratch(router->forward)->stride;
    const float *hidden = router->batch->hidden + at;
    const bool has_own = layer->router_norm != NULL;
    moec_forward_norm(router->forward, has_own ? layer->router_norm : layer->mlp_norm, n, hidden,
                      inputs->router + at);
    if (!has_own)
        return;
    moec_forward_norm(router->forward, layer->expert_norm, n, hidden, inputs->experts + at);
    moec_forward_norm(router->forward, layer->mlp_norm, n, hidden, inputs->shared + at);
}

static void route_tile(void *context, size_t item, int thread)
{
    const struct router *router = context;
    const struct moec_scratch *scratch = moec_forward_scratch(router->forward);
    const struct moec_router_scratch *own = &scratch->threads[thread].router;
    size_t logits_stride = moec_lanes_padded(moec_config_choices(&router->forward->model->config));
    uint32_t first = (uint32_t)item * MOEC_ROUTER_TOKENS;
    uint32_t n = moec_min_u32(MOEC_ROUTER_TOKENS, router->batch->n_tok - first);
    const size_t at = first * scratch->stride;
    const struct moec_moe_inputs *inputs = router->inputs;
    if (router->scores == NULL)
        norm_inputs(router, first, n);
    fill_logits((struct scoring){router->forward, router->layer, router->scores}, first, n,
                inputs->router + at, own);
    if (router->forward->kept_logits != NULL)
        memcpy(router->forward->kept_logits + first * logits_stride, own->logits,
               n * logits_stride * sizeof(float));
    if (router->decides)
        memcpy(router->forward->decider->logits + first * logits_stride, own->logits,
               n * logits_stride * sizeof(float));
    for (uint32_t t = 0; t < n; t++) {
        if (!router->decides)
            route(router, own, first + t, own->logits + t * logits_stride);
        if (router->layer->has_shared)
            router->routing->shared_gate[first + t] =
                shared_factor(router, first + t, inputs->shared + at + t * scratch->stride);
    }
}

/* Tokens that find their expert full, one after the other. Traces keep the router's choice. */
static void fill_experts(const struct router *router, const struct moec_sequences *sequences)
{
    uint32_t token = 0;
    for (uint32_t i = 0; i < sequences->n_spans; i++) {
        const struct moec_sequence_rows *span = &sequences->spans[i];
        for (uint32_t end = token + span->n_rows; token < end; token++)
            (void)moec_capacity_take(span, &router->forward->model->config, router->routing->experts[token],
                                     &router->routing->weights[token]);
    }
}

/* Experts read the normed state times the router's weight. */
static void scale_inputs(const struct moec_forward *forward, uint32_t n_tok,
                         const struct moec_moe_inputs *inputs, const float *weights)
{
    const size_t stride = moec_forward_scratch(forward)->stride;
    for (uint32_t t = 0; t < n_tok; t++) {
        float *row = inputs->experts + t * stride;
        memcpy(row, inputs->router + t * stride, stride * sizeof *row);
        moec_scale_lanes(row, stride, weights[t]);
    }
}

struct preview {
    const struct moec_forward *forward;
    const struct moec_layer *layer;
    uint32_t n_tok;
    const float *normed;
    float *logits;                            /* (n_choice) of a single token, or NULL */
    float *sums;                              /* NULL where each token's best are wanted: */
    const struct moec_sequences *sequences;   /* to which they are told, so many */
    uint32_t n_best;                          /* of each */
    const struct moec_backend_scores *scores; /* a backend's, or NULL */
};

/* Names the best experts of a row's token, whose shares are given. */
static void name_best(const struct preview *preview, uint32_t row, const float *shares)
{
    uint32_t experts[MOEC_MAX_EXPERTS];
    float values[MOEC_MAX_EXPERTS];
    const struct moec_config *config = &preview->forward->model->config;
    const struct moec_scored_token token = {.n_expert = config->n_expert, .scores = shares};
    const struct moec_sequence_rows *span = span_of(preview->sequences, &row);
    const size_t n_word = moec_precision_predicted_words(config);
    uint64_t *words = span->decides.predicted + row * n_word;
    moec_choose_best(&token, preview->n_best, experts, values);
    memset(words, 0, n_word * sizeof *words);
    for (uint32_t i = 0; i < preview->n_best; i++)
        words[experts[i] / 64] |= (uint64_t)1 << experts[i] % 64;
}

static void preview_tile(void *context, size_t item, int thread)
{
    const struct preview *preview = context;
    const struct moec_scratch *scratch = moec_forward_scratch(preview->forward);
    const struct moec_router_scratch *own = &scratch->threads[thread].router;
    const uint32_t n_choice = moec_config_choices(&preview->forward->model->config);
    size_t logits_stride = moec_lanes_padded(n_choice);
    uint32_t first = (uint32_t)item * MOEC_ROUTER_TOKENS;
    uint32_t n = moec_min_u32(MOEC_ROUTER_TOKENS, preview->n_tok - first);
    float *sum = preview->sums != NULL ? preview->sums + item * logits_stride : NULL;
    fill_logits((struct scoring){preview->forward, preview->layer, preview->scores}, first, n,
                preview->normed + first * scratch->stride, own);
    if (sum != NULL)
        memset(sum, 0, n_choice * sizeof *sum);
    for (uint32_t t = 0; t < n; t++) {
        float *p = own->logits + t * logits_stride;
        if (preview->logits != NULL)
            memcpy(preview->logits, p, n_choice * sizeof *p);
        moec_router_shares(&preview->forward->model->config, preview->forward->kernels,
                           preview->layer->router_choice_bias, p);
        if (sum != NULL)
            preview->forward->kernels->add(p, n_choice, sum);
        else
            name_best(preview, first + t, p);
    }
}

static enum moec_status run_preview(struct preview *preview, uint32_t layer, struct moec_error *err)
{
    const struct moec_matrix *router = &preview->layer->router;
    struct moec_backend *backend = preview->forward->backend;
    struct moec_backend_scores scores;
    if (backend != NULL) {
        MOEC_TRY(backend->ops->score(backend, layer, preview->n_tok, &scores, err));
        preview->scores = &scores;
    }
    const size_t n_tiles = (preview->n_tok + MOEC_ROUTER_TOKENS - 1) / MOEC_ROUTER_TOKENS;
    const uint64_t work = (uint64_t)preview->n_tok * router->rows * router->columns;
    moec_forward_run(preview->forward, n_tiles, work, preview_tile, preview);
    preview->scores = NULL;
    return MOEC_OK;
}

/* Tells the batch's sequences which experts the next MoE layer's router prefers for these inputs, where
 * precisions go by it. */
static enum moec_status hint(const struct router *router, struct moec_error *err)
{
    const struct moec_forward *forward = router->forward;
    const struct moec_config *config = &forward->model->config;
    const struct moec_precision *precision = &forward->decider->route->precision;
    const uint32_t next = moec_config_moe_layer_after(config, router->layer_index);
    if (precision->kind != MOEC_PRECISION_FATE || next == MOEC_NO_LAYER ||
        moec_config_layer(config, next)->routes_by_token)
        return MOEC_OK;
    struct preview preview = {.forward = forward,
                              .layer = &forward->model->layers[next],
                              .n_tok = router->batch->n_tok,
                              .normed = router->inputs->router,
                              .sequences = router->batch->sequences,
                              .n_best = moec_precision_width(precision, config)};
    return run_preview(&preview, next, err);
}

enum moec_status moec_router_run(const struct moec_forward *forward, uint32_t layer,
                                 const struct moec_mlp_batch *batch, const struct moec_moe_inputs *inputs,
                                 const struct moec_routing *routing, struct moec_error *err)
{
    const uint32_t n_tok = batch->n_tok;
    const struct moec_sequences *sequences = batch->sequences;
    const struct moec_layer *weights = &forward->model->layers[layer];
    const bool decides = moec_router_decides(forward, sequences);
    struct moec_backend *backend = forward->backend;
    struct moec_backend_scores scores;
    struct router router = {forward, weights, layer, batch, inputs, routing, NULL, decides};
    if (backend != NULL) {
        MOEC_TRY(backend->ops->norm(backend, layer, n_tok, batch->hidden, err));
        MOEC_TRY(backend->ops->score(backend, layer, n_tok, &scores, err));
        router.scores = &scores;
        if (scores.inputs != NULL)
            memcpy(inputs->experts, scores.inputs,
                   n_tok * moec_forward_scratch(forward)->stride * sizeof *inputs->experts);
    }
    size_t n_tiles = (n_tok + MOEC_ROUTER_TOKENS - 1) / MOEC_ROUTER_TOKENS;
    uint64_t work = (uint64_t)n_tok * weights->router.rows * weights->router.columns;
    moec_forward_run(forward, n_tiles, work, route_tile, &router);
    if (decides) {
        moec_decide(forward, layer, sequences, routing);
        MOEC_TRY(hint(&router, err));
    } else if (sequences != NULL && forward->model->config.router.expert_capacity > 0)
        fill_experts(&router, sequences);
    if (!forward->model->config.router.scales_input)
        return MOEC_OK;
    if (backend != NULL)
        MOEC_TRY(backend->ops->scale(backend, n_tok, routing->weights, err));
    else
        scale_inputs(forward, n_tok, inputs, routing->weights);
    for (uint32_t t = 0; t < n_tok; t++) /* with top-1 */
        routing->weights[t] = 1;
    return MOEC_OK;
}

enum moec_status moec_router_preview(const struct moec_forward *forward, uint32_t layer, uint32_t n_tok,
                                     const float *normed, struct moec_router_preview out,
                                     struct moec_error *err)
{
    const struct moec_layer *weights = &forward->model->layers[layer];
    const uint32_t n_choice = weights->router.rows;
    struct preview preview = {.forward = forward,
                              .layer = weights,
                              .n_tok = n_tok,
                              .normed = normed,
                              .logits = out.logits,
                              .sums = out.sums};
    MOEC_TRY(run_preview(&preview, layer, err));
    for (size_t tile = 1; tile * MOEC_ROUTER_TOKENS < n_tok; tile++)
        forward->kernels->add(out.sums + tile * moec_lanes_padded(n_choice), n_choice, out.sums);
    return MOEC_OK;
}
