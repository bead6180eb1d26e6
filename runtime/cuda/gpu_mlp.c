/* MLPs and MoE layers on a GPU: dense MLPs, routers' logits, routed and shared experts, and their sum. */
#include "runtime/cuda/gpu_pass.h"
#include "runtime/forward/context/activation.h"
#include "runtime/forward/context/sequences.h"
#include "runtime/forward/moe/sparsity.h"

#include <math.h>
#include <string.h>

uint64_t moec_gpu_mlp_staging_bytes(const struct moec_config *config, uint32_t n_tok)
{
    const uint64_t m = n_tok, pairs = m * config->top_k;
    const uint64_t n_job = config->n_expert < MOEC_HELD_EXPERTS ? config->n_expert : MOEC_HELD_EXPERTS;
    const uint64_t experts = moec_gpu_staging_piece_bytes(pairs * sizeof(uint32_t)) +
                             moec_gpu_staging_piece_bytes(n_job * sizeof(struct moec_cuda_mlp_job)) +
                             moec_gpu_staging_piece_bytes(pairs * sizeof(float));
    return experts + moec_gpu_staging_piece_bytes(pairs * sizeof(float)) +
           2 * moec_gpu_staging_piece_bytes(m * sizeof(float));
}

/* ---- MLPs ---- */

/* Jobs of one MLP's shape, n_jobs > 0, with their pairs one behind the other; `piece` is where they are put
 * together. */
struct batch {
    const struct moec_mlp *mlp;
    const struct moec_cuda_mlp_job *piece;
    uint32_t n_jobs;
    struct moec_cuda_pairs pairs;
    struct moec_cuda_filtered filtered;
    const float *x;
    uint32_t n_x; /* rows of x that pairs read, or more */
    float *out;
};

static enum moec_status send_mlps(struct moec_gpu_backend *b, const struct batch *batch,
                                  struct moec_cuda_mlp *step, struct moec_error *err)
{
    const struct moec_cuda_mlp_job *piece = batch->piece, *last = &piece[batch->n_jobs - 1];
    const void *jobs = NULL;
    uint32_t most = 0;
    for (uint32_t j = 0; j < batch->n_jobs; j++)
        most = piece[j].n > most ? piece[j].n : most;
    const bool is_few = last->first + last->n <= moec_gpu_partial_rows(b->config, b->max_tokens);
    MOEC_TRY(moec_gpu_staging_send(&b->staging, piece, batch->n_jobs * sizeof *piece, &jobs, err));
    *step = (struct moec_cuda_mlp){
        .jobs = {.each = jobs, .n = batch->n_jobs, .most = most},
        .pairs = {.list = batch->pairs.list, .per_row = batch->pairs.per_row},
        .filtered = {.limits = batch->filtered.limits,
                     .n_active = batch->filtered.n_active,
                     .ups = batch->filtered.ups},
        .shape = {.n_ff = batch->mlp->up.rows,
                  .n_embd = b->config->n_embd,
                  .activation = batch->mlp->activation},
        .x = {.first = batch->x, .stride = b->strides.row, .rounded = b->rounded.rows, .n = batch->n_x},
        .h = {.first = b->room.mlp.h, .stride = b->strides.h},
        .partials = is_few ? b->room.mlp.partials : NULL,
        .out = {.first = batch->out, .stride = b->strides.row}};
    return MOEC_OK;
}

static enum moec_status run_mlps(struct moec_gpu_backend *b, const struct batch *batch,
                                 struct moec_error *err)
{
    struct moec_cuda_mlp step;
    MOEC_TRY(send_mlps(b, batch, &step, err));
    b->kernels->mlp(b->stream, &step);
    return moec_gpu_check(b, err);
}

static struct moec_cuda_mlp_job job_of(const struct moec_mlp *mlp, uint32_t first, uint32_t n)
{
    return (struct moec_cuda_mlp_job){.gate.matrix = moec_gpu_matrix(&mlp->gate),
                                      .up.matrix = moec_gpu_matrix(&mlp->up),
                                      .down.matrix = moec_gpu_matrix(&mlp->down),
                                      .places = mlp->places,
                                      .first = first,
                                      .n = n};
}

/* The biases of a layer's MLP, or of one of its experts. */
static void add_biases(const struct moec_gpu_backend *b, uint32_t layer, uint32_t expert,
                       struct moec_cuda_mlp_job *job)
{
    const struct moec_gpu_biases *biases = &b->model->biases[layer];
    const float **places[] = {&job->gate.bias, &job->up.bias, &job->down.bias};
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
        if (biases->at[p] != NULL)
            *places[p] = biases->at[p] + expert * biases->stride[p];
}

/* One MLP with the biases of a request, which is NULL without: of a shared expert. A dense MLP counts as
 * expert 0 of its layer. */
static enum moec_status run_one(struct moec_gpu_backend *b, const struct moec_mlp *mlp,
                                const struct moec_expert_request *request, const float *x, uint32_t n_tok,
                                struct moec_error *err)
{
    struct moec_cuda_mlp_job *piece = NULL;
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_staging_piece_bytes(sizeof *piece), err));
    piece = moec_gpu_staging_take(&b->staging, sizeof *piece);
    *piece = job_of(mlp, 0, n_tok);
    if (request != NULL)
        add_biases(b, request->layer, request->expert, piece);
    const struct batch batch = {.mlp = mlp,
                                .piece = piece,
                                .n_jobs = 1,
                                .pairs.per_row = 1,
                                .x = x,
                                .n_x = n_tok,
                                .out = b->room.mlp.shared};
    return run_mlps(b, &batch, err);
}

enum moec_status moec_gpu_run_expert(struct moec_gpu_backend *b, struct moec_expert_request request,
                                     const struct moec_mlp *mlp, uint32_t n_tok, const float *x,
                                     struct moec_error *err)
{
    return run_one(b, mlp, &request, x, n_tok, err);
}

enum moec_status moec_gpu_dense(struct moec_backend *self, uint32_t layer, uint32_t n_tok, float *hidden,
                                struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    moec_gpu_norm(b, weights->mlp_norm, n_tok, hidden, b->room.inputs.normed);
    const struct moec_expert_request all = moec_expert_request_of(layer, 0);
    MOEC_TRY(run_one(b, &weights->dense, &all, b->room.inputs.normed, n_tok, err));
    moec_gpu_add_update(b, weights->mlp_post_norm, n_tok, b->room.mlp.shared, hidden);
    if (b->config->mlp.joins_late) { /* what the experts of the layer before gave */
        moec_gpu_add(b, n_tok, hidden + moec_forward_late(b->config), 0, hidden);
        moec_gpu_clear_late(b, n_tok, hidden);
    }
    moec_gpu_scale_layer(b, layer, n_tok, hidden);
    return moec_gpu_check(b, err);
}

/* ---- routers ---- */

enum moec_status moec_gpu_norm_inputs(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                      const float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    if (weights->router_norm != NULL) {
        moec_gpu_norm(b, weights->router_norm, n_tok, hidden, b->room.inputs.normed);
        moec_gpu_norm(b, weights->expert_norm, n_tok, hidden, b->room.inputs.experts);
        moec_gpu_norm(b, weights->mlp_norm, n_tok, hidden, b->room.inputs.shared);
    } else {
        moec_gpu_norm(b, weights->mlp_norm, n_tok, hidden, b->room.inputs.normed);
    }
    return moec_gpu_check(b, err);
}

/* What a vector makes of rows: a product with one row of floats. */
static void multiply_vector(const struct moec_gpu_backend *b, const float *vector, uint32_t n_tok,
                            const float *x, float *out)
{
    const struct moec_matrix matrix = {.codec = {.dtype = MOEC_DTYPE_F32},
                                       .rows = 1,
                                       .columns = b->config->n_embd,
                                       .stride_bytes = b->config->n_embd * sizeof(float),
                                       .data = (const uint8_t *)vector};
    moec_gpu_multiply_canonical(b, &matrix, n_tok, moec_gpu_rows(x, b->strides.row), moec_gpu_rows(out, 1));
}

enum moec_status moec_gpu_score(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                struct moec_backend_scores *out, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    float *shared = b->room.logits + n_tok * b->strides.logits;
    const bool has_gate = weights->shared_expert_gate != NULL;
    const uint64_t n_floats = n_tok * b->strides.logits + (has_gate ? n_tok : 0);
    moec_gpu_multiply_canonical(b, &weights->router, n_tok,
                                moec_gpu_rows(b->room.inputs.normed, b->strides.row),
                                moec_gpu_rows(b->room.logits, b->strides.logits));
    if (has_gate)
        multiply_vector(b, weights->shared_expert_gate, n_tok, b->room.inputs.shared, shared);
    const bool gives_inputs = b->cooperates && n_tok <= MOEC_COOPERATION_TOKENS;
    float *inputs = b->memory.answers + moec_gpu_answer_floats(b->config, b->max_tokens) + MOEC_GPU_COUNTED;
    if (gives_inputs)
        MOEC_TRY(b->ops->copy(b->gpu, b->stream,
                              (struct moec_gpu_move){MOEC_GPU_TO_HOST, inputs, b->room.inputs.experts,
                                                     n_tok * b->strides.row * sizeof(float)},
                              err));
    MOEC_TRY(moec_gpu_answer(b, n_floats, err));
    *out = (struct moec_backend_scores){.logits = b->memory.answers,
                                        .logits_stride = b->strides.logits,
                                        .inputs = gives_inputs ? inputs : NULL,
                                        .shared =
                                            has_gate ? b->memory.answers + n_tok * b->strides.logits : NULL};
    return MOEC_OK;
}

enum moec_status moec_gpu_scale(struct moec_backend *self, uint32_t n_tok, const float *factors,
                                struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const uint64_t n_bytes = n_tok * sizeof *factors;
    const void *device = NULL;
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_staging_piece_bytes(n_bytes), err));
    MOEC_TRY(moec_gpu_staging_put(&b->staging, factors, n_bytes, &device, err));
    MOEC_TRY(
        b->ops->copy(b->gpu, b->stream,
                     (struct moec_gpu_move){MOEC_GPU_WITHIN, b->room.inputs.experts, b->room.inputs.normed,
                                            n_tok * b->strides.row * sizeof(float)},
                     err));
    const struct moec_cuda_scaling step = {.x = moec_gpu_rows(b->room.inputs.experts, b->strides.row),
                                           .n_tok = n_tok,
                                           .n = b->config->n_embd,
                                           .factors = device};
    b->kernels->scaling(b->stream, &step);
    return moec_gpu_check(b, err);
}

/* ---- experts ---- */

/* What a sparsity leaves out of an expert. */
static void add_filter(const struct moec_gpu_backend *b, const struct moec_mlp_filter *filter,
                       struct moec_cuda_mlp_job *job)
{
    uint64_t n_scale = 0;
    job->filter.is_set = filter->is_on;
    job->filter.at = (uint8_t)filter->at;
    job->filter.threshold = filter->threshold;
    if (filter->scales != NULL) /* of UP: filters at the gate that have scales stay on the CPU */
        job->filter.scales =
            b->model->scales + (filter->scales - moec_sparsity_scales(b->model->sparsity, &n_scale));
}

/* Thresholds of the rows, where they depend on what their outputs count. */
static enum moec_status send_limits(struct moec_gpu_backend *b, const struct moec_mlp_job *jobs,
                                    uint32_t n_jobs, uint32_t n_pairs, const float **out,
                                    struct moec_error *err)
{
    const uint64_t n_bytes = n_pairs * sizeof(float);
    const void *device = NULL;
    if (!jobs->mlp.filter.is_on || jobs->mlp.filter.scales == NULL)
        return MOEC_OK;
    float *limits = moec_gpu_staging_take(&b->staging, n_bytes), *next = limits;
    for (uint32_t j = 0; j < n_jobs; j++)
        for (uint32_t i = 0; i < jobs[j].pairs.n; i++)
            *next++ = moec_mlp_limit(&jobs[j].mlp.filter, jobs[j].pairs.weights[jobs[j].pairs.list[i]]);
    MOEC_TRY(moec_gpu_staging_send(&b->staging, limits, n_bytes, &device, err));
    *out = device;
    return MOEC_OK;
}

/* Where the device counts the neurons that stay; waits for earlier counts where there is no more room. */
static enum moec_status begin_count(struct moec_gpu_backend *b, const struct moec_mlp_job *jobs,
                                    uint32_t n_jobs, uint32_t **out, struct moec_error *err)
{
    if (b->model->sparsity == NULL || !jobs->mlp.filter.is_on)
        return MOEC_OK;
    if (n_jobs > MOEC_GPU_COUNTED - b->counted.n)
        MOEC_TRY(moec_gpu_answer(b, 0, err));
    *out = b->room.mlp.n_active + b->counted.n;
    for (uint32_t j = 0; j < n_jobs; j++)
        b->counted.of[b->counted.n++] =
            (struct moec_gpu_counted){jobs[j].mlp, (uint64_t)jobs[j].pairs.n * jobs[j].mlp.up.rows};
    return MOEC_OK;
}

/* A batch of routed experts, whose pairs and limits are on their way: n_pairs > 0. */
static enum moec_status begin_experts(struct moec_gpu_backend *b, const struct moec_mlp_job *jobs,
                                      uint32_t n_jobs, uint32_t n_pairs, struct batch *batch,
                                      struct moec_error *err)
{
    const uint64_t pair_bytes = n_pairs * sizeof(uint32_t),
                   job_bytes = n_jobs * sizeof(struct moec_cuda_mlp_job);
    const void *device_pairs = NULL;
    uint32_t first = 0, n_x = 0;
    MOEC_TRY(moec_gpu_staging_begin(
        &b->staging, 2 * moec_gpu_staging_piece_bytes(pair_bytes) + moec_gpu_staging_piece_bytes(job_bytes),
        err));
    uint32_t *pairs = moec_gpu_staging_take(&b->staging, pair_bytes);
    struct moec_cuda_mlp_job *piece = moec_gpu_staging_take(&b->staging, job_bytes);
    for (uint32_t j = 0; j < n_jobs; j++) {
        piece[j] = job_of(&jobs[j].mlp, first, jobs[j].pairs.n);
        add_biases(b, jobs[j].request.layer, jobs[j].request.expert, &piece[j]);
        add_filter(b, &jobs[j].mlp.filter, &piece[j]);
        memcpy(pairs + first, jobs[j].pairs.list, jobs[j].pairs.n * sizeof *pairs);
        for (uint32_t i = 0; i < jobs[j].pairs.n; i++) {
            const uint32_t row = jobs[j].pairs.list[i] / jobs->pairs.per_row;
            n_x = row < n_x ? n_x : row + 1;
        }
        first += jobs[j].pairs.n;
    }
    MOEC_TRY(moec_gpu_staging_send(&b->staging, pairs, pair_bytes, &device_pairs, err));
    *batch = (struct batch){.mlp = &jobs->mlp,
                            .piece = piece,
                            .n_jobs = n_jobs,
                            .pairs = {.list = device_pairs, .per_row = jobs->pairs.per_row},
                            .x = b->room.inputs.experts,
                            .n_x = n_x,
                            .out = b->room.mlp.ranks};
    return send_limits(b, jobs, n_jobs, n_pairs, &batch->filtered.limits, err);
}

static uint32_t pairs_of(const struct moec_mlp_job *jobs, uint32_t n_jobs)
{
    uint32_t n_pairs = 0;
    for (uint32_t j = 0; j < n_jobs; j++)
        n_pairs += jobs[j].pairs.n;
    return n_pairs;
}

enum moec_status moec_gpu_run_experts(struct moec_backend *self, const struct moec_mlp_job *jobs,
                                      uint32_t n_jobs, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const uint32_t n_pairs = pairs_of(jobs, n_jobs);
    uint32_t *n_active = NULL;
    struct batch batch;
    if (n_pairs == 0)
        return MOEC_OK;
    MOEC_TRY(begin_count(b, jobs, n_jobs, &n_active, err));
    MOEC_TRY(begin_experts(b, jobs, n_jobs, n_pairs, &batch, err));
    batch.filtered.n_active = n_active;
    if (b->marked.n == n_jobs && b->marked.pairs == jobs->pairs.list)
        batch.filtered.ups = b->room.mlp.ups;
    b->marked.n = 0;
    return run_mlps(b, &batch, err);
}

/* Whether neurons of these jobs can be left out before they are read (MOEC_CUDA_FEW). */
static bool are_marked(const struct moec_mlp_job *jobs, uint32_t n_jobs)
{
    bool are = n_jobs > 0;
    for (uint32_t j = 0; j < n_jobs; j++)
        are = are && jobs[j].pairs.n > 0 && jobs[j].pairs.n <= MOEC_CUDA_FEW &&
              moec_mlp_leaves_out(&jobs[j].mlp);
    return are;
}

enum moec_status moec_gpu_mark(struct moec_backend *self, const struct moec_mlp_job *jobs, uint32_t n_jobs,
                               uint64_t *neurons, uint32_t n_words, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const uint32_t n_pairs = pairs_of(jobs, n_jobs), n_used = (jobs->mlp.up.rows + 63) / 64;
    const uint64_t n_bytes = (uint64_t)n_jobs * n_used * sizeof *neurons;
    struct batch batch;
    b->marked.n = 0;
    memset(neurons, 0xff, (size_t)n_jobs * n_words * sizeof *neurons);
    if (!are_marked(jobs, n_jobs) || n_pairs > moec_gpu_marked_rows(b->config, b->max_tokens))
        return MOEC_OK;
    struct moec_cuda_marking step = {
        .ups = b->room.mlp.ups, .marks = b->room.mlp.marks, .n_words = 2 * n_used};
    float *answer = b->memory.answers + moec_gpu_answer_floats(b->config, b->max_tokens) + MOEC_GPU_COUNTED +
                    MOEC_COOPERATION_TOKENS * b->strides.row;
    MOEC_TRY(begin_experts(b, jobs, n_jobs, n_pairs, &batch, err));
    MOEC_TRY(send_mlps(b, &batch, &step.mlp, err));
    MOEC_TRY(b->ops->clear(b->gpu, b->stream, b->room.mlp.marks, n_bytes, err));
    b->kernels->marking(b->stream, &step);
    MOEC_TRY(moec_gpu_check(b, err));
    MOEC_TRY(b->ops->copy(b->gpu, b->stream,
                          (struct moec_gpu_move){MOEC_GPU_TO_HOST, answer, b->room.mlp.marks, n_bytes}, err));
    MOEC_TRY(moec_gpu_answer(b, 0, err));
    for (uint32_t j = 0; j < n_jobs; j++)
        memcpy(neurons + (size_t)j * n_words, answer + (size_t)j * 2 * n_used, n_used * sizeof *neurons);
    b->marked.n = n_jobs;
    b->marked.pairs = jobs->pairs.list;
    return MOEC_OK;
}

enum moec_status moec_gpu_give(struct moec_backend *self, const uint32_t *pairs, uint32_t n,
                               const float *rows, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    for (uint32_t i = 0; i < n;
         i++) { /* the last layer's rows have been sent when this one's router answers */
        const size_t at = pairs[i] * b->strides.row, n_bytes = b->strides.row * sizeof(float);
        memcpy(b->memory.given + at, rows + at, n_bytes);
        MOEC_TRY(b->ops->copy(
            b->gpu, b->stream,
            (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, b->room.mlp.ranks + at, b->memory.given + at, n_bytes},
            err));
    }
    return MOEC_OK;
}

enum moec_status moec_gpu_shared(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                 struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    const float *x = b->room.inputs.shared;
    if (weights->bypass.rows == 0)
        return run_one(b, &weights->shared, NULL, x, n_tok, err);
    moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->bypass, NULL}, n_tok,
                      moec_gpu_rows(x, b->strides.row), moec_gpu_rows(b->room.mlp.shared, b->strides.row),
                      MOEC_CUDA_CAP); /* tanh */
    return moec_gpu_check(b, err);
}

/* ---- their sum ---- */

/* Outputs of pairs that no expert computed: zeros, or the input. */
static enum moec_status fill_passed(struct moec_gpu_backend *b, const struct moec_backend_sum *sum,
                                    struct moec_error *err)
{
    const uint64_t row_bytes = b->strides.row * sizeof(float), n_pairs = (uint64_t)sum->n_tok * sum->top_k;
    for (uint64_t p = 0; p < n_pairs; p++) {
        float *output = b->room.mlp.ranks + p * b->strides.row;
        const float *input = b->room.inputs.experts + p / sum->top_k * b->strides.row;
        if (sum->is_limited && sum->weights[p] < 0)
            MOEC_TRY(b->ops->copy(b->gpu, b->stream,
                                  (struct moec_gpu_move){MOEC_GPU_WITHIN, output, input, row_bytes}, err));
        else if ((sum->passes_by != NULL && sum->passes_by[p]) ||
                 (sum->is_limited && moec_capacity_was_full(sum->weights[p])))
            MOEC_TRY(b->ops->clear(b->gpu, b->stream, output, row_bytes, err));
    }
    return MOEC_OK;
}

/* Weights of the experts' outputs, and factors of the shared expert's. */
static enum moec_status send_weights(struct moec_gpu_backend *b, const struct moec_backend_sum *sum,
                                     bool has_shared, const void **weights, const void **factors,
                                     struct moec_error *err)
{
    const uint64_t n_pairs = (uint64_t)sum->n_tok * sum->top_k, factor_bytes = sum->n_tok * sizeof(float);
    float *piece = moec_gpu_staging_take(&b->staging, n_pairs * sizeof *piece);
    for (uint64_t p = 0; p < n_pairs; p++)
        piece[p] = moec_config_passed_give_input(b->config) ? fabsf(sum->weights[p]) : sum->weights[p];
    MOEC_TRY(moec_gpu_staging_send(&b->staging, piece, n_pairs * sizeof *piece, weights, err));
    if (!has_shared)
        return MOEC_OK;
    return moec_gpu_staging_put(&b->staging, sum->shared_factor, factor_bytes, factors, err);
}

/* hidden += the sum in steps, where norms stand between them. */
static void combine_normed(const struct moec_gpu_backend *b, const struct moec_layer *layer,
                           const struct moec_cuda_combination *whole, float *hidden)
{
    struct moec_cuda_combination sum = *whole;
    const struct moec_cuda_rows normed = moec_gpu_rows(b->room.inputs.normed, b->strides.row),
                                shared = moec_gpu_rows(b->room.mlp.shared, b->strides.row);
    const uint32_t n_tok = whole->n_tok, n = b->config->n_embd;
    const float eps = (float)b->config->rms_eps;
    sum.shared.outputs = NULL;
    sum.scale = 0;
    sum.adds = false;
    sum.out = normed;
    b->kernels->combination(b->stream, &sum);
    if (layer->expert_post_norm != NULL)
        moec_gpu_norm_parts(b, layer->expert_post_norm, eps, n_tok, (struct moec_gpu_parts){1, n}, normed);
    if (whole->shared.outputs != NULL) {
        const struct moec_cuda_scaling step = {
            .x = shared, .n_tok = n_tok, .n = n, .factors = whole->shared.factors};
        b->kernels->scaling(b->stream, &step);
        if (layer->shared_post_norm != NULL)
            moec_gpu_norm_parts(b, layer->shared_post_norm, eps, n_tok, (struct moec_gpu_parts){1, n},
                                shared);
        moec_gpu_add(b, n_tok, b->room.mlp.shared, 0, b->room.inputs.normed);
    }
    moec_gpu_add_update(b, layer->mlp_post_norm, n_tok, b->room.inputs.normed, hidden);
}

/* The experts' sum stays behind the hidden state, which the shared expert joins at once. */
static void combine_late(const struct moec_gpu_backend *b, const struct moec_cuda_combination *whole,
                         float *hidden)
{
    struct moec_cuda_combination sum = *whole;
    const struct moec_cuda_scaling step = {.x = moec_gpu_rows(b->room.mlp.shared, b->strides.row),
                                           .n_tok = whole->n_tok,
                                           .n = whole->n,
                                           .factors = whole->shared.factors};
    sum.shared.outputs = NULL;
    sum.scale = 0;
    sum.adds = false;
    sum.out = moec_gpu_rows(hidden + moec_forward_late(b->config), b->strides.row);
    b->kernels->combination(b->stream, &sum);
    if (whole->shared.outputs == NULL)
        return;
    b->kernels->scaling(b->stream, &step);
    moec_gpu_add(b, whole->n_tok, b->room.mlp.shared, 0, hidden);
}

enum moec_status moec_gpu_combine(struct moec_backend *self, uint32_t layer,
                                  const struct moec_backend_sum *sum, float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *of_layer = &b->model->layers[layer];
    const bool has_norms = of_layer->expert_post_norm != NULL || of_layer->shared_post_norm != NULL ||
                           of_layer->mlp_post_norm != NULL;
    const void *weights = NULL, *factors = NULL;
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_mlp_staging_bytes(b->config, sum->n_tok), err));
    MOEC_TRY(fill_passed(b, sum, err));
    MOEC_TRY(send_weights(b, sum, of_layer->has_shared, &weights, &factors, err));
    const struct moec_cuda_combination step = {
        .ranks = {.outputs = b->room.mlp.ranks, .weights = weights, .top_k = sum->top_k},
        .stride = b->strides.row,
        .shared = {.outputs = of_layer->has_shared ? b->room.mlp.shared : NULL, .factors = factors},
        .n_tok = sum->n_tok,
        .n = b->config->n_embd,
        .scale = b->config->scale.residual,
        .adds = true,
        .out = moec_gpu_rows(hidden, b->strides.row)};
    if (b->config->mlp.joins_late)
        combine_late(b, &step, hidden);
    else if (has_norms)
        combine_normed(b, of_layer, &step, hidden);
    else
        b->kernels->combination(b->stream, &step);
    moec_gpu_scale_layer(b, layer, sum->n_tok, hidden);
    return moec_gpu_check(b, err);
}
