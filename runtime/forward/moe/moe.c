/* Pairs (token, rank) are sorted by key = expert + form x n_expert, by counting, and skipped ones have no
 * place. A group is one expert that is waited for and the next ones for as long as they are ready. A job's
 * pairs move on block by block, so blocks must come in increasing order. Every expert that was expected is
 * either released or cancelled, in case of an error too. */
#include "runtime/forward/moe/moe.h"

#include "runtime/forward/context/activation.h"
#include "runtime/forward/context/backend.h"
#include "runtime/forward/context/linear.h"
#include "runtime/forward/context/steps.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/moe/mlp.h"
#include "runtime/forward/moe/router_answer.h"
#include "runtime/forward/moe/sparsity.h"

#include <math.h>
#include <string.h>

/* The tokens at work, and those whose outputs stand first in the two buffers: the block's, unless a trace
 * wants all rows kept. */
struct block {
    uint32_t first;
    uint32_t n;
    uint32_t first_ranked;
    uint32_t first_shared;
};

/* Which choices no expert computes, and in which form the others are taken. */
struct choices {
    bool has_passed;        /* choices of weight 0 or less ask for no expert (moec_config_has_passed) */
    const float *counted;   /* count_weights */
    const bool *skips;      /* (T, k) of a pass that decides, else NULL: experts that it skips */
    const bool *is_low;     /* (T, k) of one that decides about precision, else NULL: taken in form 1 */
    const bool *only_shown; /* (n_expert) of a hook that wants nothing computed, else NULL */
};

/* Which rows a trace asks for. */
struct kept {
    bool any;
    bool input;
    bool router_input;
    bool ranks;
    bool shared;
};

/* The rows that the layer makes: the trace's where it asks for them, else scratch. */
struct made {
    struct moec_moe_inputs inputs;
    float *ranks;
    float *rank_norms; /* NULL unless asked for */
    float *shared;
    struct kept kept;
};

/* What one MoE layer works with. */
struct moe {
    const struct moec_forward *forward;
    const struct moec_layer *weights;
    uint32_t layer;
    const struct moec_mlp_batch *batch;
    struct moec_routing routing; /* arrays as those of `made` */
    struct block block;
    struct choices choices;
    struct made made;
};

/* What is added up for a token. */
struct outputs {
    const float *const *ranks; /* (top_k) rows */
    const float *weights;      /* (top_k) */
    const float *shared;       /* or NULL */
};

static void combine(const struct moec_forward *forward, const struct moec_layer *layer,
                    struct outputs outputs, float *sum, float *hidden)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_kernels *kernels = forward->kernels;
    const float *weights = outputs.weights;
    memset(sum, 0, config->n_embd * sizeof(float));
    for (uint32_t rank = 0; rank < config->top_k; rank++)
        kernels->add_scaled(moec_config_passed_give_input(config) ? fabsf(weights[rank]) : weights[rank],
                            outputs.ranks[rank], config->n_embd, sum);
    if (layer->expert_post_norm != NULL)
        kernels->rms_norm(sum, layer->expert_post_norm, (float)config->rms_eps, config->n_embd, sum);
    if (config->mlp.joins_late) {
        memcpy(hidden + moec_forward_late(config), sum, config->n_embd * sizeof(float));
        if (outputs.shared != NULL)
            kernels->add(outputs.shared, config->n_embd, hidden);
        return;
    }
    if (outputs.shared != NULL)
        kernels->add(outputs.shared, config->n_embd, sum);
    moec_forward_add(forward, layer->mlp_post_norm, sum, hidden);
    moec_forward_scale_layer(forward, layer, 1, hidden);
}

void moec_forward_combine(const struct moec_forward *forward, uint32_t layer,
                          const float *const *rank_outputs, const float *weights, const float *shared_output,
                          float *hidden)
{
    combine(forward, &forward->model->layers[layer], (struct outputs){rank_outputs, weights, shared_output},
            moec_forward_scratch(forward)->threads[0].row, hidden);
}

static struct moec_moe_inputs inputs_of(const struct moec_forward *forward,
                                        const struct moec_mlp_trace *trace)
{
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const struct moec_config *config = &forward->model->config;
    float *experts = trace->input != NULL ? trace->input : scratch->normed;
    float *router = trace->gate_input != NULL ? trace->gate_input : scratch->moe.rows.router_input;
    if (config->router.scales_input)
        return (struct moec_moe_inputs){.router = router, .experts = experts, .shared = router};
    if (!config->mlp.own_norms)
        return (struct moec_moe_inputs){experts, experts, experts};
    return (struct moec_moe_inputs){
        .router = router, .experts = experts, .shared = scratch->moe.rows.shared_input};
}

/* Whether a trace (NULL: no) asks for rows. */
static bool looks(const struct moec_mlp_trace *trace)
{
    return trace != NULL &&
           (trace->input != NULL || trace->gate_input != NULL || trace->rank_outputs != NULL ||
            trace->rank_norms != NULL || trace->shared_output != NULL);
}

static struct moe moe_make(const struct moec_forward *forward, const struct moec_layer *weights,
                           uint32_t layer, const struct moec_mlp_batch *batch)
{
    static const struct moec_mlp_trace no_trace = {0};
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const struct moec_mlp_trace *t = batch->trace != NULL ? batch->trace : &no_trace;
    const bool decides = moec_router_decides(forward, batch->sequences);
    return (struct moe){
        .forward = forward,
        .weights = weights,
        .layer = layer,
        .batch = batch,
        .routing = {.experts = t->experts != NULL ? t->experts : scratch->moe.choices.experts,
                    .weights = t->weights != NULL ? t->weights : scratch->moe.choices.weights,
                    .margins = t->margins,
                    .ranges = t->ranges,
                    .shared_gate = scratch->moe.choices.shared_gate},
        .choices = {.has_passed =
                        forward->model->config.n_identity > 0 ||
                        (batch->sequences != NULL && forward->model->config.router.expert_capacity > 0),
                    .skips = decides ? forward->decider->skips : NULL,
                    .is_low = decides ? forward->decider->is_low : NULL,
                    .only_shown = forward->inputs != NULL ? forward->inputs->only_shown : NULL},
        .made = {.inputs = inputs_of(forward, t),
                 .ranks = t->rank_outputs != NULL ? t->rank_outputs : scratch->moe.rows.ranks,
                 .rank_norms = t->rank_norms,
                 .shared = t->shared_output != NULL ? t->shared_output : scratch->moe.rows.shared,
                 .kept = {.any = looks(t),
                          .input = t->input != NULL,
                          .router_input = t->gate_input != NULL,
                          .ranks = t->rank_outputs != NULL,
                          .shared = t->shared_output != NULL}},
    };
}

static bool passes_by(const struct moe *moe, uint32_t pair)
{
    return (moe->choices.has_passed && moec_capacity_was_full(moe->routing.weights[pair])) ||
           (moe->choices.skips != NULL && moe->choices.skips[pair]) ||
           (moe->choices.only_shown != NULL && !moe->choices.only_shown[moe->routing.experts[pair]]);
}

/* What a pair gives that no expert computes: the input, where such pairs give that, else 0. */
static void fill_passed(const struct moe *moe, uint32_t pair, float *output)
{
    const struct moec_config *config = &moe->forward->model->config;
    const size_t stride = moec_forward_scratch(moe->forward)->stride;
    if (moe->choices.has_passed && moe->routing.weights[pair] < 0)
        memcpy(output, moe->made.inputs.experts + pair / config->top_k * stride, stride * sizeof(float));
    else
        memset(output, 0, stride * sizeof(float));
}

/* The expert of a pair, as answers name it in its form. */
static uint32_t active_of(const struct moe *moe, uint32_t pair)
{
    const bool is_low = moe->choices.is_low != NULL && moe->choices.is_low[pair];
    return moe->routing.experts[pair] + (is_low ? moe->forward->model->config.n_expert : 0);
}

/* And back: what is asked of the source. */
static struct moec_expert_request request_of(const struct moe *moe, uint32_t active)
{
    const uint32_t n_expert = moe->forward->model->config.n_expert;
    return (struct moec_expert_request){
        .layer = moe->layer, .expert = active % n_expert, .form = active / n_expert};
}

/* Counting sort of (token, rank) pairs by expert and form, tokens increasing. Returns the number in use. */
static uint32_t group_pairs(const struct moe *moe)
{
    struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    const struct moec_config *config = &moe->forward->model->config;
    const uint32_t n_key = (moe->choices.is_low != NULL ? MOEC_MOE_FORMS : 1) * config->n_expert;
    uint32_t n_pairs = moe->batch->n_tok * config->top_k;
    uint32_t *start = scratch->moe.groups.expert_start;
    memset(start, 0, (n_key + 2) * sizeof(uint32_t));
    for (uint32_t p = 0; p < n_pairs; p++)
        start[active_of(moe, p) + 2] += passes_by(moe, p) ? 0 : 1;
    uint32_t n_active = 0;
    for (uint32_t e = 0; e < n_key; e++) {
        if (start[e + 2] > 0)
            scratch->moe.groups.active[n_active++] = e;
        start[e + 2] += start[e + 1];
    }
    for (uint32_t i = 0; i < n_active; i++)
        scratch->moe.groups.n_takers[i] =
            start[scratch->moe.groups.active[i] + 2] - start[scratch->moe.groups.active[i] + 1];
    for (uint32_t p = 0; p < n_pairs; p++)
        if (!passes_by(moe, p))
            scratch->moe.groups.pairs[start[active_of(moe, p) + 1]++] = p;
    return n_active;
}

static void set_block(struct moe *moe, uint32_t first, uint32_t n)
{
    moe->block.first = first;
    moe->block.n = n;
    moe->block.first_ranked = moe->made.kept.ranks ? 0 : first;
    moe->block.first_shared = moe->made.kept.shared ? 0 : first;
}

/* Moves a job on to its expert's pairs in the block; blocks come in increasing order. */
static void advance_job(const struct moe *moe, uint32_t active, struct moec_mlp_job *job)
{
    const struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    uint32_t k = moe->forward->model->config.top_k;
    const uint32_t *end = scratch->moe.groups.pairs + scratch->moe.groups.expert_start[active + 1];
    uint32_t block_end = (moe->block.first + moe->block.n) * k;
    job->pairs.list += job->pairs.n;
    job->up += job->up != NULL ? (size_t)job->pairs.n * job->mlp.up.rows : 0;
    job->pairs.per_row = k;
    job->pairs.first = moe->block.first_ranked * k;
    job->pairs.weights = moe->routing.weights;
    job->input = moe->made.inputs.experts;
    job->out = moe->made.ranks;
    for (job->pairs.n = 0; job->pairs.list + job->pairs.n < end && job->pairs.list[job->pairs.n] < block_end;)
        job->pairs.n++;
}

static struct moec_mlp_job shared_job(const struct moe *moe)
{
    size_t stride = moec_forward_scratch(moe->forward)->stride;
    return (struct moec_mlp_job){.mlp = moe->weights->shared,
                                 .pairs = {.n = moe->block.n, .per_row = 1},
                                 .input = moe->made.inputs.shared + moe->block.first * stride,
                                 .out = moe->made.shared +
                                        (moe->block.first - moe->block.first_shared) * stride};
}

static void store_tanh(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                       uint32_t row, uint32_t n, const float *y)
{
    moec_linear_tanh(linear, 1, y, n, part->out + token * part->out_stride + row);
}

void moec_moe_bypass(const struct moec_forward *forward, const struct moec_layer *weights, uint32_t n_tok,
                     const float *input, float *out)
{
    const struct moec_linear_part bypass = {.matrix = &weights->bypass, .sink = store_tanh, .out = out};
    moec_linear_run_one(forward, &bypass, n_tok, input);
}

/* The weights with which the experts' outputs count: 0 where a choice asks for none, whatever the token is
 * given then. */
static const float *count_weights(const struct moe *moe)
{
    const struct moec_config *config = &moe->forward->model->config;
    float *counted = moec_forward_scratch(moe->forward)->moe.choices.counted;
    if (!moe->choices.has_passed || !moec_config_passed_give_input(config))
        return moe->routing.weights;
    for (uint32_t p = 0; p < moe->batch->n_tok * config->top_k; p++)
        counted[p] = moec_capacity_was_full(moe->routing.weights[p]) ? 0 : moe->routing.weights[p];
    return counted;
}

static void show_layer(const struct moe *moe)
{
    const uint32_t top_k = moe->forward->model->config.top_k;
    const struct moec_inputs_hook *hook = moe->forward->inputs;
    const struct moec_expert_inputs inputs = {.forward = moe->forward,
                                              .layer = moe->layer,
                                              .expert = MOEC_EXPERT_ALL,
                                              .rows = {.n_pair = moe->batch->n_tok * top_k,
                                                       .top_k = top_k,
                                                       .normed = moe->made.inputs.experts,
                                                       .weights = moe->choices.counted}};
    hook->take_expert(hook->context, &inputs);
}

static void show_experts(const struct moe *moe, const uint32_t *active, uint32_t n_held)
{
    const struct moec_inputs_hook *hook = moe->forward->inputs;
    const struct moec_mlp_job *jobs = moec_forward_scratch(moe->forward)->moe.held.jobs;
    for (uint32_t j = 0; j < n_held; j++) {
        const struct moec_expert_inputs inputs = {.forward = moe->forward,
                                                  .layer = moe->layer,
                                                  .expert = request_of(moe, active[j]).expert,
                                                  .mlp = &jobs[j].mlp,
                                                  .rows = {.pairs = jobs[j].pairs.list,
                                                           .n_pair = jobs[j].pairs.n,
                                                           .top_k = moe->forward->model->config.top_k,
                                                           .normed = moe->made.inputs.experts,
                                                           .weights = moe->choices.counted}};
        if (inputs.rows.n_pair > 0)
            hook->take_expert(hook->context, &inputs);
    }
}

/* The held experts whose weights are in the backend's memory there, while the process computes the others. */
static enum moec_status run_on_backend(const struct moe *moe, uint32_t n_held, struct moec_error *err)
{
    struct moec_mlp_job *jobs = moec_forward_scratch(moe->forward)->moe.held.jobs;
    struct moec_backend *backend = moe->forward->backend;
    struct moec_experts *source = moe->forward->experts;
    uint32_t n_there = 0;
    for (uint32_t j = 0; j < n_held; j++) {
        const struct moec_mlp_job job = jobs[j];
        if (source->ops->is_here != NULL && source->ops->is_here(source, job.request))
            continue;
        jobs[j] = jobs[n_there];
        jobs[n_there++] = job;
    }
    if (backend->ops->leave_out != NULL)
        MOEC_TRY(backend->ops->leave_out(backend, moe->forward->sparsity, err));
    MOEC_TRY(backend->ops->experts(backend, jobs, n_there, err));
    moec_mlp_run(moe->forward, jobs + n_there, n_held - n_there);
    for (uint32_t j = n_there; j < n_held; j++)
        MOEC_TRY(backend->ops->give(backend, jobs[j].pairs.list, jobs[j].pairs.n, moe->made.ranks, err));
    return MOEC_OK;
}

/* Computes the block's rows of the held experts active[0..n_held-1], and of the shared expert when it is due.
 */
static enum moec_status run_held(const struct moe *moe, const uint32_t *active, uint32_t n_held,
                                 bool with_shared, struct moec_error *err)
{
    struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    struct moec_backend *backend = moe->forward->backend;
    uint32_t n_jobs = n_held;
    for (uint32_t j = 0; j < n_held; j++)
        advance_job(moe, active[j], &scratch->moe.held.jobs[j]);
    if (backend != NULL) {
        if (with_shared && moe->weights->has_shared)
            MOEC_TRY(backend->ops->shared(backend, moe->layer, moe->block.n, err));
        return run_on_backend(moe, n_held, err);
    }
    if (moe->choices.only_shown != NULL) {
        show_experts(moe, active, n_held);
        return MOEC_OK;
    }
    const struct moec_mlp_job shared = shared_job(moe);
    const bool has_bypass = moe->weights->bypass.rows > 0;
    if (with_shared && moe->weights->has_shared && !has_bypass)
        scratch->moe.held.jobs[n_jobs++] = shared;
    const struct moec_inputs_hook *hook = moe->forward->inputs;
    moec_mlp_run(moe->forward, scratch->moe.held.jobs, n_jobs);
    if (with_shared && has_bypass)
        moec_moe_bypass(moe->forward, moe->weights, moe->block.n, shared.input, shared.out);
    if (hook != NULL && hook->take_expert != NULL)
        show_experts(moe, active, n_held);
    return MOEC_OK;
}

static void measure_ranks(const struct moe *moe, uint32_t token, const float *const *outputs)
{
    const struct moec_config *config = &moe->forward->model->config;
    for (uint32_t rank = 0; rank < config->top_k; rank++) {
        float square = 0;
        moe->forward->kernels->dot(outputs[rank], config->n_embd, 1, outputs[rank], config->n_embd, 1,
                                   config->n_embd, &square, 1);
        moe->made.rank_norms[(size_t)token * config->top_k + rank] = sqrtf(square);
    }
}

/* A token's outputs by rank, those of no expert filled, and their norms where they are asked for. */
static void finish_ranks(const struct moe *moe, uint32_t token, const float **outputs)
{
    const uint32_t k = moe->forward->model->config.top_k;
    const size_t stride = moec_forward_scratch(moe->forward)->stride;
    for (uint32_t rank = 0; rank < k; rank++) {
        float *output = moe->made.ranks + ((size_t)(token - moe->block.first_ranked) * k + rank) * stride;
        if (passes_by(moe, token * k + rank))
            fill_passed(moe, token * k + rank, output);
        outputs[rank] = output;
    }
    if (moe->made.rank_norms != NULL)
        measure_ranks(moe, token, outputs);
}

/* The shared expert's output for a token as it is added; NULL without one. */
static float *finish_shared(const struct moe *moe, uint32_t token)
{
    const struct moec_forward *forward = moe->forward;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    if (!moe->weights->has_shared)
        return NULL;
    float *shared = moe->made.shared + (token - moe->block.first_shared) * scratch->stride;
    moec_scale_lanes(shared, scratch->stride, scratch->moe.choices.shared_gate[token]);
    if (moe->weights->shared_post_norm != NULL)
        forward->kernels->rms_norm(shared, moe->weights->shared_post_norm,
                                   (float)forward->model->config.rms_eps, forward->model->config.n_embd,
                                   shared);
    return shared;
}

static void combine_tile(void *context, size_t item, int thread)
{
    const struct moe *moe = context;
    const struct moec_forward *forward = moe->forward;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    uint32_t first = moe->block.first + (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, moe->block.first + moe->block.n - first);
    for (uint32_t t = first; t < end; t++) {
        const float *outputs[MOEC_MAX_TOP_K];
        finish_ranks(moe, t, outputs);
        const float *shared = finish_shared(moe, t);
        combine(forward, moe->weights,
                (struct outputs){outputs, moe->routing.weights + (size_t)t * forward->model->config.top_k,
                                 shared},
                scratch->threads[thread].row, moe->batch->hidden + t * scratch->stride);
    }
}

struct shown {
    const struct moe *moe;
    struct moec_backend_rows rows;
};

/* A backend leaves open what stands behind the embedding's floats in rows that only it reads. */
static void pad_rows(const struct moec_forward *forward, float *rows, uint32_t first, uint32_t n)
{
    const size_t stride = moec_forward_scratch(forward)->stride, used = forward->model->config.n_embd;
    for (uint32_t i = first; rows != NULL && i < first + n; i++)
        memset(rows + i * stride + used, 0, (stride - used) * sizeof *rows);
}

/* What a backend shows of a tile of tokens, as the trace wants it. */
static void show_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct shown *shown = context;
    const struct moe *moe = shown->moe;
    const uint32_t k = moe->forward->model->config.top_k;
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, moe->batch->n_tok - first);
    pad_rows(moe->forward, shown->rows.router_input, first, end - first);
    pad_rows(moe->forward, shown->rows.expert_input, first, end - first);
    pad_rows(moe->forward, shown->rows.ranks, first * k, (end - first) * k);
    pad_rows(moe->forward, shown->rows.shared, first, end - first);
    for (uint32_t t = first; t < end; t++) {
        const float *outputs[MOEC_MAX_TOP_K];
        if (moe->made.kept.ranks || moe->made.rank_norms != NULL)
            finish_ranks(moe, t, outputs);
        if (moe->made.kept.shared)
            (void)finish_shared(moe, t);
    }
}

/* Fills the trace with what the backend has made. Pairs without an expert may give the input. */
static enum moec_status show_backend(const struct moe *moe, struct moec_error *err)
{
    struct moec_backend *backend = moe->forward->backend;
    const struct moec_config *config = &moe->forward->model->config;
    const bool ranks = moe->made.kept.ranks || moe->made.rank_norms != NULL;
    const bool is_other = moe->made.inputs.router != moe->made.inputs.experts;
    struct shown shown = {.moe = moe};
    shown.rows = (struct moec_backend_rows){
        .router_input = is_other && moe->made.kept.router_input ? moe->made.inputs.router : NULL,
        .expert_input =
            moe->made.kept.input || (ranks && moe->choices.has_passed) ? moe->made.inputs.experts : NULL,
        .ranks = ranks ? moe->made.ranks : NULL,
        .shared = moe->made.kept.shared && moe->weights->has_shared ? moe->made.shared : NULL};
    if (!moe->made.kept.any)
        return MOEC_OK;
    MOEC_TRY(backend->ops->show(backend, moe->batch->n_tok, &shown.rows, err));
    const uint64_t work = (uint64_t)moe->batch->n_tok * (config->top_k + 1) * config->n_embd;
    moec_forward_run(moe->forward, (moe->batch->n_tok + MOEC_TILE_TOKENS - 1) / MOEC_TILE_TOKENS, work,
                     show_tile, &shown);
    return MOEC_OK;
}

static enum moec_status combine_on_backend(const struct moe *moe, struct moec_error *err)
{
    struct moec_backend *backend = moe->forward->backend;
    const struct moec_backend_sum sum = {.n_tok = moe->batch->n_tok,
                                         .top_k = moe->forward->model->config.top_k,
                                         .weights = moe->routing.weights,
                                         .passes_by = moe->choices.skips,
                                         .is_limited = moe->choices.has_passed,
                                         .shared_factor = moe->routing.shared_gate};
    MOEC_TRY(show_backend(moe, err));
    return backend->ops->combine(backend, moe->layer, &sum, moe->batch->hidden, err);
}

static enum moec_status combine_block(struct moe *moe, struct moec_error *err)
{
    const struct moec_config *config = &moe->forward->model->config;
    if (moe->forward->backend != NULL)
        return combine_on_backend(moe, err);
    if (moe->choices.only_shown != NULL)
        return MOEC_OK;
    uint64_t work = (uint64_t)moe->block.n * (config->top_k + 2) * config->n_embd;
    moec_forward_run(moe->forward, (moe->block.n + MOEC_TILE_TOKENS - 1) / MOEC_TILE_TOKENS, work,
                     combine_tile, moe);
    return MOEC_OK;
}

/* A held expert's job with all of its tokens. */
static struct moec_mlp_job whole_job(const struct moe *moe, uint32_t active, uint32_t j)
{
    const struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    struct moec_mlp_job job = scratch->moe.held.jobs[j];
    job.pairs.n = scratch->moe.groups.expert_start[active + 1] - scratch->moe.groups.expert_start[active];
    job.pairs.per_row = moe->forward->model->config.top_k;
    job.pairs.weights = moe->routing.weights;
    job.input = moe->made.inputs.experts;
    return job;
}

/* Asks a source that gives parts for the neurons that the tokens of a held expert need; *n_kept counts the
 * rows whose up products are kept. */
static void need_neurons(const struct moe *moe, uint32_t active, uint32_t j, uint32_t *n_kept)
{
    struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    struct moec_experts *source = moe->forward->experts;
    const struct moec_mlp_job job = whole_job(moe, active, j);
    uint64_t *neurons = scratch->moe.held.marks + (size_t)j * scratch->moe.held.mark_words;
    float *up = NULL;
    if (moec_mlp_leaves_out(&job.mlp) && moec_mlp_mark_keeps(&job) &&
        *n_kept + job.pairs.n <= scratch->moe.held.n_kept_up) {
        up = scratch->moe.held.kept_up + (size_t)*n_kept * job.mlp.up.rows;
        *n_kept += job.pairs.n;
    }
    scratch->moe.held.jobs[j].up = up;
    scratch->moe.held.jobs[j].touches_all = moec_mlp_mark(moe->forward, &job, neurons, up);
    source->ops->need(source, request_of(moe, active), neurons, scratch->moe.held.jobs[j].touches_all);
}

/* The same of all held experts of a backend, which is asked once. */
static enum moec_status need_on_backend(const struct moe *moe, const uint32_t *active, uint32_t n_held,
                                        struct moec_error *err)
{
    struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    struct moec_backend *backend = moe->forward->backend;
    struct moec_experts *source = moe->forward->experts;
    if (backend == NULL || !source->gives_parts)
        return MOEC_OK;
    for (uint32_t j = 0; j < n_held; j++) {
        const struct moec_mlp_job job = whole_job(moe, active[j], j);
        scratch->moe.held.jobs[j].pairs.n = job.pairs.n;
        scratch->moe.held.jobs[j].pairs.per_row = job.pairs.per_row;
        scratch->moe.held.jobs[j].pairs.weights = job.pairs.weights;
    }
    const enum moec_status status = backend->ops->mark(
        backend, scratch->moe.held.jobs, n_held, scratch->moe.held.marks, scratch->moe.held.mark_words, err);
    for (uint32_t j = 0; j < n_held; j++) {
        scratch->moe.held.jobs[j].pairs.n = 0; /* as before: blocks follow */
        if (status == MOEC_OK)
            source->ops->need(source, request_of(moe, active[j]),
                              scratch->moe.held.marks + (size_t)j * scratch->moe.held.mark_words, false);
    }
    return status;
}

/* Acquires experts in the source's order from active[0] on, as many as may be held; `n_held` counts them in
 * case of an error too. */
static enum moec_status acquire_group(const struct moe *moe, const uint32_t *active, uint32_t n_active,
                                      uint32_t *n_held, struct moec_error *err)
{
    struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    struct moec_experts *source = moe->forward->experts;
    uint32_t max_held =
        moec_min_u32(source->max_held > 1 ? source->max_held : 1, scratch->moe.held.max_jobs - 1);
    uint32_t n_kept = 0;
    *n_held = 0;
    while (*n_held < n_active && *n_held < max_held) {
        const struct moec_expert_request request = request_of(moe, active[*n_held]);
        if (*n_held > 0 && source->ops->ready != NULL && !source->ops->ready(source, request))
            break;
        struct moec_mlp_job *job = &scratch->moe.held.jobs[*n_held];
        *job = (struct moec_mlp_job){.request = request,
                                     .pairs.list = scratch->moe.groups.pairs +
                                                   scratch->moe.groups.expert_start[active[*n_held]]};
        MOEC_TRY(source->ops->acquire(source, request, &job->mlp, err));
        moec_layer_expert_biases(moe->weights, request.expert, &job->mlp);
        if (moe->forward->sparsity != NULL)
            moec_sparsity_filter(moe->forward->sparsity, moe->layer, request.expert, &job->mlp);
        if (source->gives_parts && moe->forward->backend == NULL)
            need_neurons(moe, active[*n_held], *n_held, &n_kept);
        ++*n_held;
    }
    return MOEC_OK;
}

static enum moec_status await_neurons(const struct moe *moe, const uint32_t *active, uint32_t n_held,
                                      struct moec_error *err)
{
    const struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    struct moec_experts *source = moe->forward->experts;
    for (uint32_t j = 0; j < n_held && source->gives_parts; j++)
        MOEC_TRY(source->ops->await(source, request_of(moe, active[j]),
                                    scratch->moe.held.marks + (size_t)j * scratch->moe.held.mark_words,
                                    scratch->moe.held.jobs[j].touches_all, err));
    return MOEC_OK;
}

static void release_group(const struct moe *moe, const uint32_t *active, uint32_t n_held)
{
    struct moec_experts *source = moe->forward->experts;
    for (uint32_t j = 0; j < n_held; j++)
        source->ops->release(source, request_of(moe, active[j]));
}

/* With every expert held, or none needed: block by block, and on a backend, which has no such cache, at once.
 */
static enum moec_status run_blocks(struct moe *moe, const uint32_t *active, uint32_t n_held,
                                   struct moec_error *err)
{
    const struct moec_scratch *scratch = moec_forward_scratch(moe->forward);
    const uint32_t block = moe->forward->backend != NULL      ? moe->batch->n_tok
                           : scratch->test_hook.moe_block > 0 ? scratch->test_hook.moe_block
                                                              : scratch->moe.block;
    for (uint32_t first = 0; first < moe->batch->n_tok; first += block) {
        set_block(moe, first, moec_min_u32(block, moe->batch->n_tok - first));
        MOEC_TRY(run_held(moe, active, n_held, true, err));
        MOEC_TRY(combine_block(moe, err));
    }
    return MOEC_OK;
}

/* Experts that were expected and will not be used. */
static void cancel(const struct moe *moe, const uint32_t *active, uint32_t n)
{
    struct moec_experts *source = moe->forward->experts;
    for (uint32_t j = 0; j < n && source->ops->cancel != NULL; j++)
        source->ops->cancel(source, request_of(moe, active[j]));
}

static enum moec_status run_experts(struct moe *moe, uint32_t n_active, struct moec_error *err)
{
    const uint32_t *active = moec_forward_scratch(moe->forward)->moe.groups.order;
    if (n_active == 0) /* no token asks for one; the shared expert is due all the same */
        return run_blocks(moe, active, 0, err);
    set_block(moe, 0, moe->batch->n_tok);
    for (uint32_t next = 0; next < n_active;) {
        uint32_t n_held = 0;
        enum moec_status status = acquire_group(moe, active + next, n_active - next, &n_held, err);
        const bool was_acquired = status == MOEC_OK;
        if (status == MOEC_OK)
            status = need_on_backend(moe, active + next, n_held, err);
        if (status == MOEC_OK)
            status = await_neurons(moe, active + next, n_held, err);
        if (status == MOEC_OK && n_held == n_active)
            status = run_blocks(moe, active, n_held, err);
        else if (status == MOEC_OK)
            status = run_held(moe, active + next, n_held, next == 0, err);
        release_group(moe, active + next, n_held);
        next += n_held;
        if (status != MOEC_OK) {
            next += was_acquired ? 0 : 1; /* that one is expected no more */
            cancel(moe, active + next, n_active - next);
            return status;
        }
        if (n_held == n_active)
            return MOEC_OK;
    }
    return combine_block(moe, err);
}

/* Errors: MOEC_ERR_UNSUPPORTED for what a backend does not show. */
static enum moec_status check_backend(const struct moe *moe, const struct moec_mlp_trace *trace,
                                      struct moec_error *err)
{
    const struct moec_forward *forward = moe->forward;
    const struct moec_backend *backend = forward->backend;
    if (backend == NULL || (!looks(trace) && forward->inputs == NULL) ||
        (backend->ops->show != NULL && forward->inputs == NULL))
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_UNSUPPORTED,
        "layer %u runs on a device, and moec can record a layer's inputs and outputs only on the CPU: leave "
        "out the device",
        moe->layer);
}

enum moec_status moec_moe_run(const struct moec_forward *forward, const struct moec_layer *weights,
                              uint32_t layer, const struct moec_mlp_batch *batch, struct moec_error *err)
{
    struct moe moe = moe_make(forward, weights, layer, batch);
    if (batch->n_tok == 0)
        return MOEC_OK;
    MOEC_TRY(check_backend(&moe, batch->trace, err));
    uint64_t begin_ns = moec_trace_now(forward->trace);
    MOEC_TRY(moec_router_run(forward, layer, batch, &moe.made.inputs, &moe.routing, err));
    uint32_t n_active = group_pairs(&moe);
    moe.choices.counted = count_weights(&moe);
    const struct moec_routed routed = {.layer = layer,
                                       .batch = batch,
                                       .normed = moe.made.inputs.router,
                                       .routing = &moe.routing,
                                       .counted = moe.choices.counted,
                                       .is_low = moe.choices.is_low,
                                       .n_active = n_active};
    moec_trace_compute(forward->trace, "router", layer, begin_ns);
    const enum moec_status status = moec_router_answer_send(forward, &routed, err);
    if (status != MOEC_OK) {
        cancel(&moe, moec_forward_scratch(forward)->moe.groups.order, n_active);
        return status;
    }
    if (forward->inputs != NULL && forward->inputs->take_expert != NULL)
        show_layer(&moe);
    begin_ns = moec_trace_now(forward->trace);
    MOEC_TRY(run_experts(&moe, n_active, err));
    moec_trace_compute(forward->trace, "experts", layer, begin_ns);
    if (!moe.weights->has_shared && moe.made.kept.shared)
        memset(moe.made.shared, 0,
               batch->n_tok * moec_forward_stride(&forward->model->config) * sizeof(float));
    return MOEC_OK;
}
