/* moec_gpu_answer is where a pass waits for the device. Only after it may staged tables be overwritten,
 * answers be read and counts of active neurons be taken over. */
#include "runtime/cuda/gpu_pass.h"

#include "runtime/cuda/kernels/cuda_matrix.h"
#include "runtime/forward/context/activation.h"
#include "runtime/forward/moe/sparsity.h"

struct moec_cuda_matrix moec_gpu_matrix(const struct moec_matrix *matrix)
{
    return moec_cuda_matrix_make(matrix, matrix->data);
}

void moec_gpu_norm(const struct moec_gpu_backend *b, const float *weight, uint32_t n_tok, const float *x,
                   float *out)
{
    const bool has_bias = b->config->layer_norm && weight != NULL;
    const struct moec_cuda_norm step = {
        .x = moec_gpu_rows(x, b->strides.row),
        .out = moec_gpu_rows(out, b->strides.row),
        .n_tok = n_tok,
        .parts = {.n_part = 1, .n = b->config->n_embd},
        .by = {.weight = weight,
               .bias = has_bias ? weight + moec_lanes_padded(b->config->n_embd) : NULL,
               .eps = (float)b->config->rms_eps},
        .padded = (uint32_t)b->strides.row};
    b->kernels->norm(b->stream, &step);
}

void moec_gpu_norm_parts(const struct moec_gpu_backend *b, const float *weight, float eps, uint32_t n_tok,
                         struct moec_gpu_parts parts, struct moec_cuda_rows x)
{
    const struct moec_cuda_norm norm = {.x = x,
                                        .out = x,
                                        .n_tok = n_tok,
                                        .parts = {.n_part = parts.n_part, .n = parts.n},
                                        .by = {.weight = weight, .eps = eps}};
    b->kernels->norm(b->stream, &norm);
}

void moec_gpu_pad(const struct moec_gpu_backend *b, uint32_t n_tok, uint32_t n, struct moec_cuda_rows x)
{
    const struct moec_cuda_norm copy = {.x = x,
                                        .out = x,
                                        .n_tok = n_tok,
                                        .parts = {.n_part = 1, .n = n},
                                        .padded = (uint32_t)moec_lanes_padded(n)};
    if (n % MOEC_LANES != 0)
        b->kernels->norm(b->stream, &copy);
}

void moec_gpu_multiply(const struct moec_gpu_backend *b, struct moec_gpu_dense dense, uint32_t n_tok,
                       struct moec_cuda_rows x, struct moec_cuda_rows y, enum moec_cuda_sink sink)
{
    const struct moec_cuda_product step = {
        .matrix = moec_gpu_matrix(dense.matrix),
        .n_rows = dense.matrix->rows,
        .n_tok = n_tok,
        .x = {.first = x.first, .stride = x.stride},
        .y = {.bias = dense.bias, .rows = y, .sink = (uint8_t)sink, .cap = 1},
        .rounded = b->rounded.rows};
    b->kernels->product(b->stream, &step);
}

void moec_gpu_multiply_canonical(const struct moec_gpu_backend *b, const struct moec_matrix *matrix,
                                 uint32_t n_tok, struct moec_cuda_rows x, struct moec_cuda_rows y)
{
    const struct moec_cuda_product step = {.matrix = moec_gpu_matrix(matrix),
                                           .n_rows = matrix->rows,
                                           .n_tok = n_tok,
                                           .x = {.first = x.first, .stride = x.stride},
                                           .y = {.rows = y, .sink = MOEC_CUDA_STORE}};
    b->kernels->product(b->stream, &step);
}

void moec_gpu_add(const struct moec_gpu_backend *b, uint32_t n_tok, const float *x, float scale, float *y)
{
    const struct moec_cuda_addition step = {.x = moec_gpu_rows(x, b->strides.row),
                                            .y = moec_gpu_rows(y, b->strides.row),
                                            .n_tok = n_tok,
                                            .n = b->config->n_embd,
                                            .scale = scale};
    b->kernels->addition(b->stream, &step);
}

void moec_gpu_add_update(const struct moec_gpu_backend *b, const float *post_norm, uint32_t n_tok,
                         float *update, float *hidden)
{
    if (post_norm != NULL)
        moec_gpu_norm(b, post_norm, n_tok, update, update);
    moec_gpu_add(b, n_tok, update, b->config->scale.residual, hidden);
}

void moec_gpu_clear_late(const struct moec_gpu_backend *b, uint32_t n_tok, float *hidden)
{
    const struct moec_cuda_rows rows = moec_gpu_rows(hidden, b->strides.row);
    const struct moec_cuda_norm copy = {.x = rows,
                                        .out = rows,
                                        .n_tok = n_tok,
                                        .parts = {.n_part = 1, .n = b->config->n_embd},
                                        .padded = (uint32_t)b->strides.row};
    if (b->config->mlp.joins_late)
        b->kernels->norm(b->stream, &copy);
}

void moec_gpu_add_outputs(const struct moec_gpu_backend *b, struct moec_gpu_dense dense,
                          const float *post_norm, uint32_t n_tok, struct moec_cuda_rows x, float *hidden)
{
    const bool is_plain = post_norm == NULL && b->config->scale.residual == 0;
    moec_gpu_pad(b, n_tok, dense.matrix->columns, x);
    moec_gpu_multiply(b, dense, n_tok, x,
                      moec_gpu_rows(is_plain ? hidden : b->room.inputs.normed, b->strides.row),
                      is_plain ? MOEC_CUDA_ADD : MOEC_CUDA_STORE);
    if (!is_plain)
        moec_gpu_add_update(b, post_norm, n_tok, b->room.inputs.normed, hidden);
}

void moec_gpu_scale_layer(const struct moec_gpu_backend *b, uint32_t layer, uint32_t n_tok, float *hidden)
{
    const float *factor = b->model->model->layers[layer].layer_scale;
    if (factor == NULL)
        return;
    const struct moec_cuda_scaling step = {.x = moec_gpu_rows(hidden, b->strides.row),
                                           .n_tok = n_tok,
                                           .n = b->config->n_embd,
                                           .factor = factor[0]};
    b->kernels->scaling(b->stream, &step);
}

enum moec_status moec_gpu_answer(struct moec_gpu_backend *b, uint64_t n, struct moec_error *err)
{
    const uint64_t count_bytes = b->counted.n * sizeof(uint32_t);
    uint32_t *n_active = (uint32_t *)(b->memory.answers + moec_gpu_answer_floats(b->config, b->max_tokens));
    MOEC_TRY(moec_gpu_check(b, err));
    if (n > 0)
        MOEC_TRY(b->ops->copy(
            b->gpu, b->stream,
            (struct moec_gpu_move){MOEC_GPU_TO_HOST, b->memory.answers, b->room.logits, n * sizeof(float)},
            err));
    if (b->counted.n > 0) {
        MOEC_TRY(b->ops->copy(
            b->gpu, b->stream,
            (struct moec_gpu_move){MOEC_GPU_TO_HOST, n_active, b->room.mlp.n_active, count_bytes}, err));
        MOEC_TRY(b->ops->clear(b->gpu, b->stream, b->room.mlp.n_active, count_bytes, err));
    }
    MOEC_TRY(b->ops->finish(b->gpu, b->stream, err));
    moec_gpu_staging_clear(&b->staging);
    for (uint32_t i = 0; i < b->counted.n; i++) {
        const struct moec_gpu_counted *counted = &b->counted.of[i];
        moec_sparsity_count(b->model->sparsity, &counted->mlp, counted->n_neuron,
                            moec_mlp_leaves_out(&counted->mlp) ? n_active[i] : counted->n_neuron);
    }
    b->counted.n = 0;
    return MOEC_OK;
}
