/* Products and MLPs in the arithmetic bf16. */
#include "runtime/cuda/kernels/bf16.cuh"
#include "runtime/cuda/kernels/bf16.h"
#include "runtime/cuda/kernels/neurons.cuh"
#include "runtime/cuda/kernels/sinks.cuh"

/* Up to which tiles are of few tokens, and of some, so that less of them is empty. */
#define FEW_TOKENS  16u
#define SOME_TOKENS 64u

/* Two blocks of 128 threads on a multiprocessor: 255 registers for each thread. */
#define BLOCKS_AT_ONCE 2

/* ---- inputs ---- */

struct rounding {
    const float *x;
    size_t x_stride;
    uint32_t n_tok, n;
    uint16_t *out;
};

/* Two floats, a thread. */
__global__ static void round_kernel(struct rounding rounding)
{
    const uint32_t i = (blockIdx.y * MOEC_CUDA_BLOCK + threadIdx.x) * 2;
    const float *x = rounding.x + blockIdx.x * rounding.x_stride;
    uint16_t *out = rounding.out + blockIdx.x * moec_cuda_rounded_stride(rounding.n);
    if (i >= rounding.n)
        return;
    *(uint32_t *)(void *)(out + i) = bf16_word(x[i], i + 1 < rounding.n ? x[i + 1] : 0);
}

static void round_inputs(struct moec_gpu_stream *stream, const struct rounding &rounding)
{
    const dim3 grid(rounding.n_tok, moec_cuda_blocks(rounding.n, 2 * MOEC_CUDA_BLOCK));
    MOEC_CUDA_LAUNCH(round_kernel, grid, stream, rounding);
}

/* ---- products ---- */

template <class SHAPE>
__global__ static void __launch_bounds__(MOEC_CUDA_BLOCK, BLOCKS_AT_ONCE)
    product_kernel(struct moec_cuda_product product)
{
    MOEC_CUDA_SHARED(uint32_t, input_words, 2 * SHAPE::input_words);
    MOEC_CUDA_SHARED(uint32_t, weight_words, 2 * SHAPE::weight_words);
    const uint32_t row = blockIdx.x * SHAPE::rows, token = blockIdx.y * SHAPE::tokens;
    struct bf16_inputs<SHAPE> inputs;
    struct coded_pieces<bf16_rows<SHAPE, 1>> weights;
    struct bf16_sums<SHAPE> sums;
#pragma unroll
    for (uint32_t i = 0; i < SHAPE::n_copy; i++) {
        const uint32_t t = token + token_of_copy<SHAPE>(i);
        inputs.rows[i] = t < product.n_tok ? t : MOEC_CUDA_NO_ROW;
    }
    inputs.first = product.rounded;
    inputs.stride = (uint32_t)moec_cuda_rounded_stride(product.matrix.columns);
    inputs.n = product.matrix.columns;
    weights.matrices[0] = &product.matrix;
    weights.layout.first = product.first_row + row;
    multiply<SHAPE, false>(weights, inputs, input_words, weight_words, sums);
#pragma unroll
    for (uint32_t tile = 0; tile < SHAPE::token_tiles; tile++) {
        keep_sums<SHAPE>(sums, tile, weight_words);
#pragma unroll 1
        for (uint32_t i = 0; i < SHAPE::row_tiles * 4; i++) {
            const uint32_t r = row + row_of_sum<SHAPE>(i / 4, i), t = token + token_of_sum<SHAPE>(tile, i);
            float value = kept_sum(weight_words, i);
            if (r >= product.n_rows || t >= product.n_tok)
                continue;
            if (product.y.bias != NULL)
                value = value + product.y.bias[r];
            sink_output(product, value, row_of(product.y.rows, t) + r);
        }
    }
}

template <class SHAPE>
static void launch_product(struct moec_gpu_stream *stream, const struct moec_cuda_product &product)
{
    const dim3 grid(moec_cuda_blocks(product.n_rows, SHAPE::rows),
                    moec_cuda_blocks(product.n_tok, SHAPE::tokens));
    MOEC_CUDA_LAUNCH((product_kernel<SHAPE>), grid, stream, product);
}

extern "C" void moec_cuda_bf16_product(struct moec_gpu_stream *stream,
                                       const struct moec_cuda_product *product)
{
    round_inputs(stream, {product->x.first, product->x.stride, product->n_tok, product->matrix.columns,
                          product->rounded});
    if (product->n_tok <= FEW_TOKENS)
        launch_product<bf16_few>(stream, *product);
    else if (product->n_tok <= SOME_TOKENS)
        launch_product<bf16_some>(stream, *product);
    else
        launch_product<bf16_many>(stream, *product);
}

/* ---- MLPs ---- */

/* Activations in `h`: rows of as many bytes as the canonical arithmetic's. */
__device__ static __forceinline__ uint16_t *activations_of(const struct moec_cuda_mlp &mlp,
                                                           const struct moec_cuda_mlp_job &job, uint32_t row)
{
    return (uint16_t *)(void *)(mlp.h.first + (job.first + row) * mlp.h.stride);
}

/* Half the rows of a tile are of the gate and half of the up projection, in turns of 8, so that a thread has
 * both products of a neuron. Without a gate its half is zeros. */
template <class SHAPE>
__global__ static void __launch_bounds__(MOEC_CUDA_BLOCK, BLOCKS_AT_ONCE)
    activate_kernel(struct moec_cuda_mlp mlp)
{
    MOEC_CUDA_SHARED(uint32_t, input_words, 2 * SHAPE::input_words);
    MOEC_CUDA_SHARED(uint32_t, weight_words, 2 * SHAPE::weight_words);
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t neuron = blockIdx.x * (SHAPE::rows / 2), first = blockIdx.y * SHAPE::tokens;
    if (first >= job.n)
        return;
    struct bf16_inputs<SHAPE> inputs;
    struct coded_pieces<bf16_rows<SHAPE, 2>> weights;
    struct bf16_sums<SHAPE> sums;
#pragma unroll
    for (uint32_t i = 0; i < SHAPE::n_copy; i++) {
        const uint32_t row = first + token_of_copy<SHAPE>(i);
        inputs.rows[i] = row < job.n ? pair_of(mlp, job, row) / mlp.pairs.per_row : MOEC_CUDA_NO_ROW;
    }
    inputs.first = mlp.x.rounded;
    inputs.stride = (uint32_t)moec_cuda_rounded_stride(mlp.shape.n_embd);
    inputs.n = mlp.shape.n_embd;
    weights.matrices[0] = &job.gate.matrix;
    weights.matrices[1] = &job.up.matrix;
    weights.layout.first = neuron;
    multiply<SHAPE, false>(weights, inputs, input_words, weight_words, sums);
#pragma unroll
    for (uint32_t tile = 0; tile < SHAPE::token_tiles; tile++) {
        keep_sums<SHAPE>(sums, tile, weight_words);
#pragma unroll 1
        for (uint32_t i = 0; i < SHAPE::row_tiles * 2; i++) {
            const uint32_t gate = i / 4 * 8 + i % 4; /* the up product is in the next fragment */
            const uint32_t tile_row = row_of_sum<SHAPE>(gate / 4, i),
                           n = neuron + tile_row / 16 * 8 + tile_row % 8,
                           row = first + token_of_sum<SHAPE>(tile, i);
            if (n < mlp.shape.n_ff && row < job.n)
                activations_of(mlp, job, row)[n] = moec_f32_to_bf16(neuron_of(
                    mlp, job, row, n, false, kept_sum(weight_words, gate + 4), kept_sum(weight_words, gate)));
        }
    }
}

template <class SHAPE>
__global__ static void __launch_bounds__(MOEC_CUDA_BLOCK, BLOCKS_AT_ONCE) sum_kernel(struct moec_cuda_mlp mlp)
{
    MOEC_CUDA_SHARED(uint32_t, input_words, 2 * SHAPE::input_words);
    MOEC_CUDA_SHARED(uint32_t, weight_words, 2 * SHAPE::weight_words);
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t column = blockIdx.x * SHAPE::rows, first = blockIdx.y * SHAPE::tokens;
    const uint32_t padded = (mlp.shape.n_embd + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    if (first >= job.n)
        return;
    struct bf16_inputs<SHAPE> inputs;
    struct coded_pieces<bf16_columns<SHAPE>> weights;
    struct bf16_sums<SHAPE> sums;
#pragma unroll
    for (uint32_t i = 0; i < SHAPE::n_copy; i++) {
        const uint32_t row = first + token_of_copy<SHAPE>(i);
        inputs.rows[i] = row < job.n ? job.first + row : MOEC_CUDA_NO_ROW;
    }
    inputs.first = (const uint16_t *)(const void *)mlp.h.first;
    inputs.stride = (uint32_t)(mlp.h.stride * 2);
    inputs.n = mlp.shape.n_ff;
    weights.matrices[0] = &job.down.matrix;
    weights.layout.first_block = column / MOEC_CUDA_WEIGHTS;
    multiply<SHAPE, true>(weights, inputs, input_words, weight_words, sums);
#pragma unroll
    for (uint32_t tile = 0; tile < SHAPE::token_tiles; tile++) {
        keep_sums<SHAPE>(sums, tile, weight_words);
#pragma unroll 1
        for (uint32_t i = 0; i < SHAPE::row_tiles * 4; i++) {
            const uint32_t c = column + row_of_sum<SHAPE>(i / 4, i),
                           row = first + token_of_sum<SHAPE>(tile, i);
            float value = kept_sum(weight_words, i);
            if (row >= job.n || c >= padded)
                continue;
            if (job.down.bias != NULL && c < mlp.shape.n_embd)
                value = value + job.down.bias[c];
            output_of(mlp, job, row)[c] = c < mlp.shape.n_embd ? value : 0;
        }
    }
}

template <class SHAPE> static void launch_mlp(struct moec_gpu_stream *stream, const struct moec_cuda_mlp &mlp)
{
    const uint32_t n_token_blocks = moec_cuda_blocks(mlp.jobs.most, SHAPE::tokens);
    const dim3 neurons(moec_cuda_blocks(mlp.shape.n_ff, SHAPE::rows / 2), n_token_blocks, mlp.jobs.n);
    const dim3 columns(moec_cuda_blocks(mlp.shape.n_embd, SHAPE::rows), n_token_blocks, mlp.jobs.n);
    MOEC_CUDA_LAUNCH((activate_kernel<SHAPE>), neurons, stream, mlp);
    MOEC_CUDA_LAUNCH((sum_kernel<SHAPE>), columns, stream, mlp);
}

extern "C" void moec_cuda_bf16_mlp(struct moec_gpu_stream *stream, const struct moec_cuda_mlp *mlp)
{
    round_inputs(stream, {mlp->x.first, mlp->x.stride, mlp->x.n, mlp->shape.n_embd, mlp->x.rounded});
    const uint64_t mean = (uint64_t)mlp->x.n * mlp->pairs.per_row / mlp->jobs.n;
    if (mlp->jobs.most <= FEW_TOKENS)
        launch_mlp<bf16_few>(stream, *mlp);
    else if (mlp->jobs.most <= SOME_TOKENS || mean <= SOME_TOKENS)
        launch_mlp<bf16_some>(stream, *mlp);
    else
        launch_mlp<bf16_many>(stream, *mlp);
}
