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
    const uint32_t *pairs;
    const float *limits; /* of rows, where filters have scales */
    uint32_t *n_active;  /* of jobs, where neurons are counted */
    const float *ups;    /* of rows, where they were computed already */
    uint32_t pairs_per_row;
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
    *step = (struct moec_cuda_mlp){.jobs = jobs,
                                   .pairs = batch->pairs,
                                   .n_jobs = batch->n_jobs,
                                   .most = most,
                                   .limits = batch->limits,
                                   .n_active = batch->n_active,
                                   .ups = batch->ups,
                                   .n_ff = batch->mlp->up.rows,
                                   .n_embd = b->config->n_embd,
                                   .pairs_per_row = batch->pairs_per_row,
                                   .activation = batch->mlp->activation,
                                   .x = batch->x,
                                   .x_stride = b->stride,
                                   .h = b->room.h,
                                   .h_stride = b->h_stride,
                                   .partials = is_few ? b->room.partials : NULL,
                                   .out = batch->out,
                                   .out_stride = b->stride,
                                   .rounded = b->rounded,
                                   .n_x = batch->n_x};
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
    return (struct moec_cuda_mlp_job){.gate = moec_gpu_matrix(&mlp->gate),
                                      .up = moec_gpu_matrix(&mlp->up),
                                      .down = moec_gpu_matrix(&mlp->down),
                                      .places = mlp->places,
                                      .first = first,
                                      .n = n};
}

/* The biases of a layer's MLP, or of one of its experts. */
static void add_biases(const struct moec_gpu_backend *b, uint32_t layer, uint32_t expert,
                       struct moec_cuda_mlp_job *job)
{
    const struct moec_gpu_biases *biases = &b->model->biases[layer];
    const float **places[] = {&job->gate_bias, &job->up_bias, &job->down_bias};
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
                                .pairs_per_row = 1,
                                .x = x,
                                .n_x = n_tok,
                                .out = b->room.shared};
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
    moec_gpu_norm(b, weights->mlp_norm, n_tok, hidden, b->room.normed);
    const struct moec_expert_request all = moec_expert_request_of(layer, 0);
    MOEC_TRY(run_one(b, &weights->dense, &all, b->room.normed, n_tok, err));
    moec_gpu_add_update(b, weights->mlp_post_norm, n_tok, b->room.shared, hidden);
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
        moec_gpu_norm(b, weights->router_norm, n_tok, hidden, b->room.normed);
        moec_gpu_norm(b, weights->expert_norm, n_tok, hidden, b->room.expert_input);
        moec_gpu_norm(b, weights->mlp_norm, n_tok, hidden, b->room.shared_input);
    } else {
        moec_gpu_norm(b, weights->mlp_norm, n_tok, hidden, b->room.normed);
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
    moec_gpu_multiply_canonical(b, &matrix, n_tok, moec_gpu_rows(x, b->stride), moec_gpu_rows(out, 1));
}

enum moec_status moec_gpu_score(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                struct moec_backend_scores *out, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    float *shared = b->room.logits + n_tok * b->logits_stride;
    const bool has_gate = weights->shared_expert_gate != NULL;
    const uint64_t n_floats = n_tok * b->logits_stride + (has_gate ? n_tok : 0);
    moec_gpu_multiply_canonical(b, &weights->router, n_tok, moec_gpu_rows(b->room.normed, b->stride),
                                moec_gpu_rows(b->room.logits, b->logits_stride));
    if (has_gate)
        multiply_vector(b, weights->shared_expert_gate, n_tok, b->room.shared_input, shared);
    const bool gives_inputs = b->cooperates && n_tok <= MOEC_COOPERATION_TOKENS;
    float *inputs = b->answers + moec_gpu_answer_floats(b->config, b->max_tokens) + MOEC_GPU_COUNTED;
    if (gives_inputs)
        MOEC_TRY(b->ops->copy(b->gpu, b->stream,
                              (struct moec_gpu_move){MOEC_GPU_TO_HOST, inputs, b->room.expert_input,
                                                     n_tok * b->stride * sizeof(float)},
                              err));
    MOEC_TRY(moec_gpu_answer(b, n_floats, err));
    *out = (struct moec_backend_scores){.logits = b->answers,
                                        .logits_stride = b->logits_stride,
                                        .inputs = gives_inputs ? inputs : NULL,
                                        .shared = has_gate ? b->answers + n_tok * b->logits_stride : NULL};
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
    MOEC_TRY(b->ops->copy(b->gpu, b->stream,
                          (struct moec_gpu_move){MOEC_GPU_WITHIN, b->room.expert_input, b->room.normed,
                                                 n_tok * b->stride * sizeof(float)},
                          err));
    const struct moec_cuda_scaling step = {.x = moec_gpu_rows(b->room.expert_input, b->stride),
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
    job->has_filter = filter->is_on;
    job->filter_at = (uint8_t)filter->at;
    job->threshold = filter->threshold;
    if (filter->scales != NULL) /* of UP: filters at the gate that have scales stay on the CPU */
        job->scales =
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
        for (uint32_t i = 0; i < jobs[j].n; i++)
            *next++ = moec_mlp_limit(&jobs[j].mlp.filter, jobs[j].weights[jobs[j].pairs[i]]);
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
    if (n_jobs > MOEC_GPU_COUNTED - b->n_counted)
        MOEC_TRY(moec_gpu_answer(b, 0, err));
    *out = b->room.n_active + b->n_counted;
    for (uint32_t j = 0; j < n_jobs; j++)
        b->counted[b->n_counted++] =
            (struct moec_gpu_counted){jobs[j].mlp, (uint64_t)jobs[j].n * jobs[j].mlp.up.rows};
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
        piece[j] = job_of(&jobs[j].mlp, first, jobs[j].n);
        add_biases(b, jobs[j].request.layer, jobs[j].request.expert, &piece[j]);
        add_filter(b, &jobs[j].mlp.filter, &piece[j]);
        memcpy(pairs + first, jobs[j].pairs, jobs[j].n * sizeof *pairs);
        for (uint32_t i = 0; i < jobs[j].n; i++) {
            const uint32_t row = jobs[j].pairs[i] / jobs->pairs_per_row;
            n_x = row < n_x ? n_x : row + 1;
        }
        first += jobs[j].n;
    }
    MOEC_TRY(moec_gpu_staging_send(&b->staging, pairs, pair_bytes, &device_pairs, err));
    *batch = (struct batch){.mlp = &jobs->mlp,
                            .piece = piece,
                            .n_jobs = n_jobs,
                            .pairs = device_pairs,
                            .pairs_per_row = jobs->pairs_per_row,
                            .x = b->room.expert_input,
                            .n_x = n_x,
                            .out = b->room.ranks};
    return send_limits(b, jobs, n_jobs, n_pairs, &batch->limits, err);
}

static uint32_t pairs_of(const struct moec_mlp_job *jobs, uint32_t n_jobs)
{
    uint32_t n_pairs = 0;
    for (uint32_t j = 0; j < n_jobs; j++)
        n_pairs += jobs[j].n;
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
    batch.n_active = n_active;
    if (b->n_marked == n_jobs && b->marked == jobs->pairs)
        batch.ups = b->room.ups;
    b->n_marked = 0;
    return run_mlps(b, &batch, err);
}

/* Whether neurons of these jobs can be left out before they are read (MOEC_CUDA_FEW). */
static bool are_marked(const struct moec_mlp_job *jobs, uint32_t n_jobs)
{
    bool are = n_jobs > 0;
    for (uint32_t j = 0; j < n_jobs; j++)
        are = are && jobs[j].n > 0 && jobs[j].n <= MOEC_CUDA_FEW && moec_mlp_leaves_out(&jobs[j].mlp);
    return are;
}

enum moec_status moec_gpu_mark(struct moec_backend *self, const struct moec_mlp_job *jobs, uint32_t n_jobs,
                               uint64_t *neurons, uint32_t n_words, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const uint32_t n_pairs = pairs_of(jobs, n_jobs), n_used = (jobs->mlp.up.rows + 63) / 64;
    const uint64_t n_bytes = (uint64_t)n_jobs * n_used * sizeof *neurons;
    struct batch batch;
    b->n_marked = 0;
    memset(neurons, 0xff, (size_t)n_jobs * n_words * sizeof *neurons);
    if (!are_marked(jobs, n_jobs) || n_pairs > moec_gpu_marked_rows(b->config, b->max_tokens))
        return MOEC_OK;
    struct moec_cuda_marking step = {.ups = b->room.ups, .marks = b->room.marks, .n_words = 2 * n_used};
    float *answer = b->answers + moec_gpu_answer_floats(b->config, b->max_tokens) + MOEC_GPU_COUNTED +
                    MOEC_COOPERATION_TOKENS * b->stride;
    MOEC_TRY(begin_experts(b, jobs, n_jobs, n_pairs, &batch, err));
    MOEC_TRY(send_mlps(b, &batch, &step.mlp, err));
    MOEC_TRY(b->ops->clear(b->gpu, b->stream, b->room.marks, n_bytes, err));
    b->kernels->marking(b->stream, &step);
    MOEC_TRY(moec_gpu_check(b, err));
    MOEC_TRY(b->ops->copy(b->gpu, b->stream,
                          (struct moec_gpu_move){MOEC_GPU_TO_HOST, answer, b->room.marks, n_bytes}, err));
    MOEC_TRY(moec_gpu_answer(b, 0, err));
    for (uint32_t j = 0; j < n_jobs; j++)
        memcpy(neurons + (size_t)j * n_words, answer + (size_t)j * 2 * n_used, n_used * sizeof *neurons);
    b->n_marked = n_jobs;
    b->marked = jobs->pairs;
    return MOEC_OK;
}

enum moec_status moec_gpu_give(struct moec_backend *self, const uint32_t *pairs, uint32_t n,
                               const float *rows, struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    for (uint32_t i = 0; i < n;
         i++) { /* the last layer's rows have been sent when this one's router answers */
        const size_t at = pairs[i] * b->stride, n_bytes = b->stride * sizeof(float);
        memcpy(b->given + at, rows + at, n_bytes);
        MOEC_TRY(b->ops->copy(
            b->gpu, b->stream,
            (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, b->room.ranks + at, b->given + at, n_bytes}, err));
    }
    return MOEC_OK;
}

enum moec_status moec_gpu_shared(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                 struct moec_error *err)
{
    struct moec_gpu_backend *b = moec_gpu_backend_self(self);
    const struct moec_layer *weights = &b->model->layers[layer];
    const float *x = b->room.shared_input;
    if (weights->bypass.rows == 0)
        return run_one(b, &weights->shared, NULL, x, n_tok, err);
    moec_gpu_multiply(b, (struct moec_gpu_dense){&weights->bypass, NULL}, n_tok, moec_gpu_rows(x, b->stride),
                      moec_gpu_rows(b->room.shared, b->stride), MOEC_CUDA_CAP); /* tanh */
    return moec_gpu_check(b, err);
}

/* ---- their sum ---- */

/* Outputs of pairs that no expert computed: zeros, or the input. */
static enum moec_status fill_passed(struct moec_gpu_backend *b, const struct moec_backend_sum *sum,
                                    struct moec_error *err)
{
    const uint64_t row_bytes = b->stride * sizeof(float), n_pairs = (uint64_t)sum->n_tok * sum->top_k;
    for (uint64_t p = 0; p < n_pairs; p++) {
        float *output = b->room.ranks + p * b->stride;
        const float *input = b->room.expert_input + p / sum->top_k * b->stride;
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
    const struct moec_cuda_rows normed = moec_gpu_rows(b->room.normed, b->stride),
                                shared = moec_gpu_rows(b->room.shared, b->stride);
    const uint32_t n_tok = whole->n_tok, n = b->config->n_embd;
    const float eps = (float)b->config->rms_eps;
    sum.shared = NULL;
    sum.scale = 0;
    sum.adds = false;
    sum.out = normed;
    b->kernels->combination(b->stream, &sum);
    if (layer->expert_post_norm != NULL)
        moec_gpu_norm_parts(b, layer->expert_post_norm, eps, n_tok, (struct moec_gpu_parts){1, n}, normed);
    if (whole->shared != NULL) {
        const struct moec_cuda_scaling step = {
            .x = shared, .n_tok = n_tok, .n = n, .factors = whole->shared_factors};
        b->kernels->scaling(b->stream, &step);
        if (layer->shared_post_norm != NULL)
            moec_gpu_norm_parts(b, layer->shared_post_norm, eps, n_tok, (struct moec_gpu_parts){1, n},
                                shared);
        moec_gpu_add(b, n_tok, b->room.shared, 0, b->room.normed);
    }
    moec_gpu_add_update(b, layer->mlp_post_norm, n_tok, b->room.normed, hidden);
}

/* The experts' sum stays behind the hidden state, which the shared expert joins at once. */
static void combine_late(const struct moec_gpu_backend *b, const struct moec_cuda_combination *whole,
                         float *hidden)
{
    struct moec_cuda_combination sum = *whole;
    const struct moec_cuda_scaling step = {.x = moec_gpu_rows(b->room.shared, b->stride),
                                           .n_tok = whole->n_tok,
                                           .n = whole->n,
                                           .factors = whole->shared_factors};
    sum.shared = NULL;
    sum.scale = 0;
    sum.adds = false;
    sum.out = moec_gpu_rows(hidden + moec_forward_late(b->config), b->stride);
    b->kernels->combination(b->stream, &sum);
    if (whole->shared == NULL)
        return;
    b->kernels->scaling(b->stream, &step);
    moec_gpu_add(b, whole->n_tok, b->room.shared, 0, hidden);
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
    const struct moec_cuda_combination step = {.outputs = b->room.ranks,
                                               .stride = b->stride,
                                               .weights = weights,
                                               .shared = of_layer->has_shared ? b->room.shared : NULL,
                                               .shared_factors = factors,
                                               .n_tok = sum->n_tok,
                                               .top_k = sum->top_k,
                                               .n = b->config->n_embd,
                                               .scale = b->config->scale.residual,
                                               .adds = true,
                                               .out = moec_gpu_rows(hidden, b->stride)};
    if (b->config->mlp.joins_late)
        combine_late(b, &step, hidden);
    else if (has_norms)
        combine_normed(b, of_layer, &step, hidden);
    else
        b->kernels->combination(b->stream, &step);
    moec_gpu_scale_layer(b, layer, sum->n_tok, hidden);
    return moec_gpu_check(b, err);
}
