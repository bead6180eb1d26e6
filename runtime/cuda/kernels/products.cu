/* Products with dense matrices: dots, weighted sums, rows looked up. A few tokens go with a row four
 * threads; more share decoded weights, several rows and tokens a half warp. */
#include "runtime/cuda/kernels/bf16.h"
#include "runtime/cuda/kernels/quads.cuh"
#include "runtime/cuda/kernels/sinks.cuh"
#include "runtime/cuda/kernels/tiles.cuh"

#define FEW_TOKENS  2  /* up to which four threads have one token and one row */
#define SOME_TOKENS 16 /* up to which a half warp has several of both, without shared memory */
#define MANY_TOKENS 8
#define MANY_ROWS   4

/* ---- dots ---- */

template <uint32_t ROWS, uint32_t TOKENS>
__global__ static void product_kernel(struct moec_cuda_product product)
{
    const uint32_t row = (blockIdx.x * MOEC_CUDA_HALVES + half_of_block()) * ROWS,
                   token = blockIdx.y * TOKENS;
    const size_t batch = blockIdx.z;
    const uint32_t first_row = product.first_row + blockIdx.z * product.batch.row_step;
    if (row >= product.n_rows)
        return;
    uint32_t rows[ROWS];
    struct token_rows<TOKENS> x;
    float acc[ROWS][TOKENS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = first_row + (row + r < product.n_rows ? row + r : product.n_rows - 1);
#pragma unroll
    for (uint32_t t = 0; t < TOKENS; t++) {
        const uint32_t at = token + t < product.n_tok ? token + t : product.n_tok - 1;
        x.at[t] = product.x.first + batch * product.batch.x_step + at * product.x.stride;
    }
    dot_rows<ROWS, TOKENS>(product.matrix, rows, x, acc);
#pragma unroll
    for (uint32_t i = 0; i < ROWS * TOKENS; i++) {
        const uint32_t r = row + i / TOKENS, t = token + i % TOKENS;
        if (i % MOEC_CUDA_LANES != lane_of_half() || r >= product.n_rows || t >= product.n_tok)
            continue;
        const size_t at = batch * product.batch.y_step + r;
        float value = acc[i / TOKENS][i % TOKENS];
        if (product.y.bias != NULL)
            value = value + product.y.bias[at];
        sink_output(product, value, row_of(product.y.rows, t) + at);
    }
}

/* One token, a row four threads. */
__global__ static void vector_kernel(struct moec_cuda_product product)
{
    const uint32_t row = blockIdx.x * MOEC_CUDA_QUADS + quad_of_block(), token = blockIdx.y;
    const size_t batch = blockIdx.z, at = batch * product.batch.y_step + row;
    if (row >= product.n_rows)
        return;
    float value = dot_quad(product.matrix, product.first_row + blockIdx.z * product.batch.row_step + row,
                           product.x.first + batch * product.batch.x_step + token * product.x.stride);
    if (lane_of_quad() != 0)
        return;
    if (product.y.bias != NULL)
        value = value + product.y.bias[at];
    sink_output(product, value, row_of(product.y.rows, token) + at);
}

/* A tile of rows and tokens, a block. */
__global__ static void __launch_bounds__(MOEC_CUDA_BLOCK, MOEC_CUDA_TILES_AT_ONCE)
    tile_kernel(struct moec_cuda_product product)
{
    MOEC_CUDA_SHARED(float, weights, 2 * MOEC_CUDA_TILE_FLOATS);
    const uint32_t row = blockIdx.x * MOEC_CUDA_TILE_ROWS,
                   token = blockIdx.y * MOEC_CUDA_TILE_TOKENS + half_of_block() * MOEC_CUDA_TILE_OWN;
    const uint32_t first_row = product.first_row + blockIdx.z * product.batch.row_step;
    const size_t batch = blockIdx.z;
    struct token_rows<MOEC_CUDA_TILE_OWN> x;
    float sums[MOEC_CUDA_TILE_OWN];
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++) {
        const uint32_t at = token + t < product.n_tok ? token + t : product.n_tok - 1;
        x.at[t] = product.x.first + batch * product.batch.x_step + at * product.x.stride;
    }
    dot_tile(product.matrix, first_row + row, x, token < product.n_tok, weights, sums);
    const uint32_t r = row + lane_of_half();
    const size_t at = batch * product.batch.y_step + r;
    if (r >= product.n_rows)
        return;
    const float bias = product.y.bias != NULL ? product.y.bias[at] : 0;
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++)
        if (token + t < product.n_tok)
            sink_output(product, product.y.bias != NULL ? sums[t] + bias : sums[t],
                        row_of(product.y.rows, token + t) + at);
}

static uint32_t batches(uint32_t n)
{
    return n > 0 ? n : 1;
}

extern "C" void moec_cuda_product_run(struct moec_gpu_stream *stream, const struct moec_cuda_product *product)
{
    if (product->n_rows == 0 || product->n_tok == 0)
        return;
    if (product->rounded != NULL) {
        moec_cuda_bf16_product(stream, product);
        return;
    }
    const uint32_t n_batch = batches(product->batch.n);
    if (product->n_tok <= FEW_TOKENS) {
        const dim3 grid(moec_cuda_blocks(product->n_rows, MOEC_CUDA_QUADS), product->n_tok, n_batch);
        MOEC_CUDA_LAUNCH(vector_kernel, grid, stream, *product);
        return;
    }
    if (product->n_tok <= SOME_TOKENS) {
        const dim3 grid(moec_cuda_blocks(product->n_rows, MOEC_CUDA_HALVES * MANY_ROWS),
                        moec_cuda_blocks(product->n_tok, MANY_TOKENS), n_batch);
        MOEC_CUDA_LAUNCH((product_kernel<MANY_ROWS, MANY_TOKENS>), grid, stream, *product);
        return;
    }
    const dim3 grid(moec_cuda_blocks(product->n_rows, MOEC_CUDA_TILE_ROWS),
                    moec_cuda_blocks(product->n_tok, MOEC_CUDA_TILE_TOKENS), n_batch);
    MOEC_CUDA_LAUNCH(tile_kernel, grid, stream, *product);
}

/* ---- weighted sums ---- */

template <uint32_t TOKENS> __global__ static void sum_kernel(struct moec_cuda_sum sum)
{
    const uint32_t block = blockIdx.x * MOEC_CUDA_HALVES + half_of_block(), token = blockIdx.y * TOKENS;
    const size_t batch = blockIdx.z;
    const uint32_t n_blocks = moec_cuda_blocks(sum.matrix.columns, MOEC_CUDA_WEIGHTS);
    if (block >= n_blocks)
        return;
    struct token_rows<TOKENS> h;
    struct column_sums<TOKENS> sums;
#pragma unroll
    for (uint32_t t = 0; t < TOKENS; t++) {
        const uint32_t at = token + t < sum.n_tok ? token + t : sum.n_tok - 1;
        h.at[t] = sum.h.first + batch * sum.batch.x_step + at * sum.h.stride;
    }
    const struct summed_rows rows = {sum.first_row + blockIdx.z * sum.batch.row_step, sum.n_rows, NULL};
    sum_rows<TOKENS>(sum.matrix, rows, block, h, sums);
#pragma unroll
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t column = block * MOEC_CUDA_WEIGHTS + i * MOEC_CUDA_LANES + lane_of_half();
            if (token + t < sum.n_tok && column < sum.matrix.columns)
                row_of(sum.y, token + t)[batch * sum.batch.y_step + column] = sums.at[t][i];
        }
}

extern "C" void moec_cuda_sum_run(struct moec_gpu_stream *stream, const struct moec_cuda_sum *sum)
{
    const uint32_t n_blocks = moec_cuda_blocks(sum->matrix.columns, MOEC_CUDA_WEIGHTS * MOEC_CUDA_HALVES);
    const uint32_t n_batch = batches(sum->batch.n);
    if (sum->n_tok == 0 || n_blocks == 0)
        return;
    if (sum->n_tok <= FEW_TOKENS)
        MOEC_CUDA_LAUNCH((sum_kernel<1>), dim3(n_blocks, sum->n_tok, n_batch), stream, *sum);
    else
        MOEC_CUDA_LAUNCH((sum_kernel<MANY_TOKENS>),
                         dim3(n_blocks, moec_cuda_blocks(sum->n_tok, MANY_TOKENS), n_batch), stream, *sum);
}

/* ---- rows as floats ---- */

template <int CODEC>
__device__ static void look_up(const struct moec_cuda_matrix &matrix, uint32_t id, uint32_t block,
                               float out[2])
{
    const uint32_t left = matrix.columns - block * MOEC_CUDA_WEIGHTS;
    const uint32_t n = left < MOEC_CUDA_WEIGHTS ? left : MOEC_CUDA_WEIGHTS;
    struct coded_row row = row_begin<CODEC>(matrix, id);
    decode_pair<CODEC>(matrix, row, block, n, lane_of_half(), out);
}

__global__ static void lookup_kernel(struct moec_cuda_lookup lookup)
{
    const uint32_t columns = lookup.matrix.columns,
                   padded = (columns + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    const uint32_t block = blockIdx.y * MOEC_CUDA_HALVES + half_of_block();
    if (block >= moec_cuda_blocks(columns, MOEC_CUDA_WEIGHTS))
        return;
    float w[2];
    float *out = row_of(lookup.out, blockIdx.x);
    const uint32_t token = lookup.ids[blockIdx.x];
    const bool is_first = token < lookup.n_first;
    const struct moec_cuda_matrix &matrix = is_first ? lookup.matrix : lookup.rest;
    const uint32_t id = is_first ? token : token - lookup.n_first;
    FOR_CODEC(matrix.codec, look_up<CODEC>(matrix, id, block, w))
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t column = block * MOEC_CUDA_WEIGHTS + i * MOEC_CUDA_LANES + lane_of_half();
        if (column < padded)
            out[column] = lookup.scale != 0 ? w[i] * lookup.scale : w[i];
    }
}

extern "C" void moec_cuda_lookup_run(struct moec_gpu_stream *stream, const struct moec_cuda_lookup *lookup)
{
    const uint32_t n_blocks = moec_cuda_blocks(lookup->matrix.columns, MOEC_CUDA_WEIGHTS * MOEC_CUDA_HALVES);
    if (lookup->n == 0 || n_blocks == 0)
        return;
    MOEC_CUDA_LAUNCH(lookup_kernel, dim3(lookup->n, n_blocks), stream, *lookup);
}
