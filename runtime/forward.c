#include "runtime/forward.h"

#include "runtime/linear.h"
#include "runtime/mlp.h"
#include "runtime/router.h"
#include "runtime/scratch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

size_t moec_forward_stride(const struct moec_config *config)
{
    return moec_lanes_padded(config->n_embd);
}

uint64_t moec_forward_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads)
{
    return moec_scratch_bytes(config, max_tokens, moec_pool_make(n_threads).n_threads);
}

enum moec_status moec_forward_init(struct moec_forward *forward, const struct moec_model *model,
                                   const struct moec_kernels *kernels, int n_threads,
                                   struct moec_experts *experts, uint32_t max_tokens, struct moec_error *err)
{
    if (max_tokens == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "a forward pass needs room for at least one token");
    if (max_tokens > MOEC_MAX_POSITIONS)
        return moec_fail(err, MOEC_ERR_LIMIT, "a batch of %" PRIu32 " tokens is over the limit of %u",
                         max_tokens, MOEC_MAX_POSITIONS);
    *forward = (struct moec_forward){.model = model,
                                     .kernels = kernels,
                                     .pool = moec_pool_make(n_threads),
                                     .experts = experts,
                                     .max_tokens = max_tokens};
    struct moec_scratch *scratch = NULL;
    MOEC_TRY(moec_scratch_create(&model->config, max_tokens, forward->pool.n_threads, &scratch, err));
    forward->scratch = scratch;
    forward->scratch_bytes = moec_scratch_bytes(&model->config, max_tokens, forward->pool.n_threads);
    return MOEC_OK;
}

void moec_forward_release(struct moec_forward *forward)
{
    free(forward->scratch);
    forward->scratch = NULL;
    forward->scratch_bytes = 0;
}

enum moec_status moec_forward_check(const struct moec_forward *forward, uint32_t n_tok,
                                    struct moec_error *err)
{
    if (n_tok > forward->max_tokens)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a batch of %" PRIu32 " tokens is over the %" PRIu32 " made room for", n_tok,
                         forward->max_tokens);
    return MOEC_OK;
}

void moec_forward_run(const struct moec_forward *forward, size_t n_items, uint64_t work,
                      moec_parallel_body *body, void *context)
{
    if (n_items > 1 && work >= moec_forward_scratch(forward)->shared_work_min) {
        moec_parallel_for(&forward->pool, n_items, body, context);
        return;
    }
    for (size_t item = 0; item < n_items; item++)
        body(context, item, 0);
}

void moec_forward_norm(const struct moec_forward *forward, const float *weight, uint32_t n_tok,
                       const float *hidden, float *out)
{
    const struct moec_config *config = &forward->model->config;
    size_t stride = moec_forward_scratch(forward)->stride;
    for (uint32_t t = 0; t < n_tok; t++, hidden += stride, out += stride) {
        forward->kernels->rms_norm(hidden, weight, (float)config->rms_eps, config->n_embd, out);
        memset(out + config->n_embd, 0, (stride - config->n_embd) * sizeof(float));
    }
}

/* One tile of rows of a step that treats each row alone. */
struct rows {
    struct moec_forward *forward;
    uint32_t n_tok;
    const uint32_t *tokens;
    const float *input;
    const float *weight;
    float *out;
};

static uint32_t tile_count(uint32_t n_tok)
{
    return (n_tok + MOEC_TILE_TOKENS - 1) / MOEC_TILE_TOKENS;
}

static void embed_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct rows *rows = context;
    size_t stride = moec_forward_scratch(rows->forward)->stride;
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, rows->n_tok - first);
    for (uint32_t t = first; t < end; t++)
        rows->forward->kernels->decode_rows(&rows->forward->model->embedding, rows->tokens[t], 1,
                                            rows->out + t * stride, stride);
}

enum moec_status moec_forward_embed(struct moec_forward *forward, const uint32_t *tokens, uint32_t n_tok,
                                    float *hidden, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_config *config = &forward->model->config;
    for (uint32_t t = 0; t < n_tok; t++) {
        if (tokens[t] >= config->n_vocab)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "token id %" PRIu32 " is outside the vocabulary of %" PRIu32
                             ", does the text belong to "
                             "another tokenizer?",
                             tokens[t], config->n_vocab);
    }
    struct rows rows = {.forward = forward, .n_tok = n_tok, .tokens = tokens, .out = hidden};
    moec_forward_run(forward, tile_count(n_tok), (uint64_t)n_tok * config->n_embd, embed_tile, &rows);
    return MOEC_OK;
}

static void norm_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct rows *rows = context;
    size_t at = item * MOEC_TILE_TOKENS * moec_forward_scratch(rows->forward)->stride;
    uint32_t n = moec_min_u32(MOEC_TILE_TOKENS, rows->n_tok - (uint32_t)item * MOEC_TILE_TOKENS);
    moec_forward_norm(rows->forward, rows->weight, n, rows->input + at, rows->out + at);
}

static void norm_batch(struct moec_forward *forward, const float *weight, uint32_t n_tok, const float *hidden,
                       float *out)
{
    struct rows rows = {.forward = forward, .n_tok = n_tok, .input = hidden, .weight = weight, .out = out};
    moec_forward_run(forward, tile_count(n_tok), (uint64_t)n_tok * forward->model->config.n_embd, norm_tile,
                     &rows);
}

enum moec_status moec_forward_head(struct moec_forward *forward, uint32_t n_tok, const float *hidden,
                                   float *logits, size_t logits_stride, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_model *model = forward->model;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    norm_batch(forward, model->final_norm, n_tok, hidden, scratch->normed);
    struct moec_linear head = {
        .forward = forward, .x = scratch->normed, .x_stride = scratch->stride, .n_tok = n_tok, .n_parts = 1};
    head.parts[0] = (struct moec_linear_part){&model->head, NULL, moec_linear_store, logits, logits_stride};
    moec_linear_run(&head);
    return MOEC_OK;
}

void moec_forward_expert(struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                         const float *input, float *out)
{
    struct moec_mlp_job job = {.mlp = *mlp, .pairs_per_row = 1, .n = n_tok, .input = input, .out = out};
    moec_mlp_run(forward, &job, 1);
}

static void combine(const struct moec_forward *forward, const float *const *rank_outputs,
                    const float *weights, const float *shared_output, float *sum, float *hidden)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_kernels *kernels = forward->kernels;
    memset(sum, 0, config->n_embd * sizeof(float));
    for (uint32_t rank = 0; rank < config->top_k; rank++)
        kernels->add_scaled(weights[rank], rank_outputs[rank], config->n_embd, sum);
    if (shared_output != NULL)
        kernels->add(shared_output, config->n_embd, sum);
    kernels->add(sum, config->n_embd, hidden);
}

void moec_forward_combine(struct moec_forward *forward, const float *const *rank_outputs,
                          const float *weights, const float *shared_output, float *hidden)
{
    combine(forward, rank_outputs, weights, shared_output, moec_forward_scratch(forward)->threads[0].row,
            hidden);
}

/* What one MoE layer works with; arrays are the trace's where it asks for them, else scratch. */
struct moe {
    struct moec_forward *forward;
    const struct moec_layer *weights;
    uint32_t layer;
    uint32_t n_tok;
    struct moec_routing routing;
    float *normed;
    float *rank_outputs;
    float *shared_output;
    float *hidden;
};

static struct moe moe_make(struct moec_forward *forward, uint32_t layer, uint32_t n_tok, float *hidden,
                           const struct moec_mlp_trace *trace)
{
    static const struct moec_mlp_trace no_trace = {0};
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const struct moec_mlp_trace *t = trace != NULL ? trace : &no_trace;
    return (struct moe){
        .forward = forward,
        .weights = &forward->model->layers[layer],
        .layer = layer,
        .n_tok = n_tok,
        .routing = {.experts = t->experts != NULL ? t->experts : scratch->experts,
                    .weights = t->weights != NULL ? t->weights : scratch->weights,
                    .margins = t->margins,
                    .shared_gate = scratch->shared_gate},
        .normed = t->input != NULL ? t->input : scratch->normed,
        .rank_outputs = t->rank_outputs != NULL ? t->rank_outputs : scratch->rank_outputs,
        .shared_output = t->shared_output != NULL ? t->shared_output : scratch->shared_output,
        .hidden = hidden,
    };
}

/* Counting sort of (token, rank) pairs by expert, tokens increasing. Returns the number of experts in use. */
static uint32_t group_pairs(const struct moe *moe)
{
    struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    const struct moec_config *config = &moe->forward->model->config;
    uint32_t n_pairs = moe->n_tok * config->top_k;
    uint32_t *start = scratch->expert_start;
    memset(start, 0, (config->n_expert + 2) * sizeof(uint32_t));
    for (uint32_t p = 0; p < n_pairs; p++)
        start[moe->routing.experts[p] + 2]++;
    uint32_t n_active = 0;
    for (uint32_t e = 0; e < config->n_expert; e++) {
        if (start[e + 2] > 0)
            scratch->active[n_active++] = e;
        start[e + 2] += start[e + 1];
    }
    for (uint32_t p = 0; p < n_pairs; p++)
        scratch->pairs[start[moe->routing.experts[p] + 1]++] = p;
    return n_active;
}

static struct moec_mlp_job shared_job(const struct moe *moe)
{
    return (struct moec_mlp_job){.mlp = moe->weights->shared,
                                 .pairs_per_row = 1,
                                 .n = moe->n_tok,
                                 .input = moe->normed,
                                 .out = moe->shared_output};
}

static struct moec_mlp_job expert_job(const struct moe *moe, uint32_t expert)
{
    const struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    return (struct moec_mlp_job){.pairs = scratch->pairs + scratch->expert_start[expert],
                                 .pairs_per_row = moe->forward->model->config.top_k,
                                 .n = scratch->expert_start[expert + 1] - scratch->expert_start[expert],
                                 .input = moe->normed,
                                 .out = moe->rank_outputs};
}

/* Experts in increasing order, as many together as the source lets be held and has ready; the shared expert
 * goes with the first of them. */
static enum moec_status run_experts(const struct moe *moe, uint32_t n_active, struct moec_error *err)
{
    struct moec_forward *forward = moe->forward;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    struct moec_experts *source = forward->experts;
    const struct moec_experts_ops *ops = source->ops;
    uint32_t max_held = moec_min_u32(source->max_held > 1 ? source->max_held : 1, MOEC_HELD_EXPERTS);
    if (ops->expect != NULL)
        ops->expect(source, moe->layer, scratch->active, n_active);
    enum moec_status status = MOEC_OK;
    bool shared_due = moe->weights->has_shared;
    for (uint32_t next = 0; next < n_active && status == MOEC_OK;) {
        uint32_t first = next;
        uint32_t n_jobs = 0;
        while (next < n_active && next - first < max_held) {
            uint32_t expert = scratch->active[next];
            if (next > first && ops->ready != NULL && !ops->ready(source, moe->layer, expert))
                break;
            scratch->jobs[n_jobs] = expert_job(moe, expert);
            status = ops->acquire(source, moe->layer, expert, &scratch->jobs[n_jobs].mlp, err);
            if (status != MOEC_OK)
                break;
            n_jobs++;
            next++;
        }
        if (status == MOEC_OK && shared_due)
            scratch->jobs[n_jobs++] = shared_job(moe);
        shared_due = false;
        if (status == MOEC_OK)
            moec_mlp_run(forward, scratch->jobs, n_jobs);
        for (uint32_t held = first; held < next; held++)
            ops->release(source, moe->layer, scratch->active[held]);
    }
    return status;
}

static void combine_tile(void *context, size_t item, int thread)
{
    const struct moe *moe = context;
    struct moec_forward *forward = moe->forward;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const struct moec_config *config = &forward->model->config;
    size_t stride = scratch->stride;
    uint32_t k = config->top_k;
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, moe->n_tok - first);
    for (uint32_t t = first; t < end; t++) {
        const float *outputs[MOEC_MAX_TOP_K];
        for (uint32_t rank = 0; rank < k; rank++)
            outputs[rank] = moe->rank_outputs + ((size_t)t * k + rank) * stride;
        float *shared = NULL;
        if (moe->weights->has_shared) {
            shared = moe->shared_output + t * stride;
            moec_scale_lanes(shared, stride, scratch->shared_gate[t]);
        }
        combine(forward, outputs, moe->routing.weights + (size_t)t * k, shared, scratch->threads[thread].row,
                moe->hidden + t * stride);
    }
}

static enum moec_status run_moe(struct moe *moe, const struct moec_mlp_trace *trace, struct moec_error *err)
{
    struct moec_forward *forward = moe->forward;
    const struct moec_config *config = &forward->model->config;
    moec_router_run(forward, moe->weights, moe->n_tok, moe->hidden, moe->normed, &moe->routing);
    uint32_t n_active = group_pairs(moe);
    MOEC_TRY(run_experts(moe, n_active, err));
    uint64_t work = (uint64_t)moe->n_tok * (config->top_k + 2) * config->n_embd;
    moec_forward_run(forward, tile_count(moe->n_tok), work, combine_tile, moe);
    if (!moe->weights->has_shared && trace != NULL && trace->shared_output != NULL)
        memset(trace->shared_output, 0, moe->n_tok * moec_forward_stride(config) * sizeof(float));
    return MOEC_OK;
}

enum moec_status moec_forward_mlp(struct moec_forward *forward, uint32_t layer, uint32_t n_tok, float *hidden,
                                  const struct moec_mlp_trace *trace, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    struct moe moe = moe_make(forward, layer, n_tok, hidden, trace);
    if (moe.weights->is_moe)
        return run_moe(&moe, trace, err);

    norm_batch(forward, moe.weights->mlp_norm, n_tok, hidden, moe.normed);
    moec_forward_expert(forward, &moe.weights->dense, n_tok, moe.normed, scratch->shared_output);
    for (uint32_t t = 0; t < n_tok; t++)
        forward->kernels->add(scratch->shared_output + t * scratch->stride, forward->model->config.n_embd,
                              hidden + t * scratch->stride);
    return MOEC_OK;
}
