/* Products with many tokens, for which multiplying takes the time: the half warps of a block share rows, and
 * each has tokens of its own. Of every block of 32 columns the rows' weights are decoded once, into shared
 * memory, by all half warps together; then each multiplies them with its tokens' inputs, which are in
 * registers. Before a block of columns is multiplied, the next one's inputs are asked for, and its weights
 * are decoded behind it into the other half of shared memory, so that one barrier for each suffices.
 *
 * Lanes, chains and tree are those of lanes.cuh: a thread has one lane of MOEC_CUDA_TILE_ROWS times
 * MOEC_CUDA_TILE_TOKENS dot products. All threads of a block take part, to the end. */
#ifndef MOEC_RUNTIME_CUDA_TILES_CUH
#define MOEC_RUNTIME_CUDA_TILES_CUH

#include "runtime/cuda/kernels/products.cuh"

#define MOEC_CUDA_TILE_ROWS   8
#define MOEC_CUDA_TILE_TOKENS 8                                         /* of a half warp */
#define MOEC_CUDA_TILE_FLOATS (MOEC_CUDA_TILE_ROWS * MOEC_CUDA_WEIGHTS) /* of a block of columns */
/* Rows that a half warp decodes. */
#define MOEC_CUDA_TILE_OWN ((MOEC_CUDA_TILE_ROWS + MOEC_CUDA_HALVES - 1) / MOEC_CUDA_HALVES)

/* A thread's inputs of a block of columns. */
struct tile_inputs {
    float at[MOEC_CUDA_TILE_TOKENS][2];
};

__device__ static __forceinline__ bool has_second_half(uint32_t columns, uint32_t block)
{
    return columns > block * MOEC_CUDA_WEIGHTS + MOEC_CUDA_LANES;
}

__device__ static __forceinline__ void load_inputs(const struct token_rows<MOEC_CUDA_TILE_TOKENS> &x,
                                                   uint32_t columns, uint32_t block,
                                                   struct tile_inputs &inputs)
{
    const uint32_t at = block * MOEC_CUDA_WEIGHTS + lane_of_half();
    const bool has_second = has_second_half(columns, block);
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_TOKENS; t++) {
        inputs.at[t][0] = x.at[t][at];
        inputs.at[t][1] = has_second ? x.at[t][at + MOEC_CUDA_LANES] : 0;
    }
}

/* Where the two weights of a lane stand, of a row and of one of the two halves of shared memory. */
__device__ static __forceinline__ uint32_t place_of(uint32_t which, uint32_t row)
{
    return which * MOEC_CUDA_TILE_FLOATS + row * MOEC_CUDA_WEIGHTS + 2 * lane_of_half();
}

template <int CODEC, typename SHARED>
__device__ static __forceinline__ void decode_tile(const struct moec_cuda_matrix &matrix,
                                                   struct coded_row rows[MOEC_CUDA_TILE_OWN], uint32_t block,
                                                   SHARED &weights)
{
    const uint32_t left = matrix.columns - block * MOEC_CUDA_WEIGHTS;
    const uint32_t n = left < MOEC_CUDA_WEIGHTS ? left : MOEC_CUDA_WEIGHTS;
#pragma unroll
    for (uint32_t i = 0; i < MOEC_CUDA_TILE_OWN; i++) {
        const uint32_t at = place_of(block % 2, half_of_block() + i * MOEC_CUDA_HALVES);
        float w[2];
        decode_pair<CODEC>(matrix, rows[i], block, n, lane_of_half(), w);
        weights[at] = w[0];
        weights[at + 1] = w[1];
    }
}

template <typename SHARED>
__device__ static __forceinline__ void multiply_tile(SHARED &weights, uint32_t which, bool has_second,
                                                     const struct tile_inputs &x,
                                                     float acc[MOEC_CUDA_TILE_ROWS][MOEC_CUDA_TILE_TOKENS])
{
#pragma unroll
    for (uint32_t r = 0; r < MOEC_CUDA_TILE_ROWS; r++) {
        const uint32_t at = place_of(which, r);
#if defined(__CUDACC__)
        const float2 both = *(const float2 *)&weights[at];
        const float w0 = both.x, w1 = both.y;
#else
        const float w0 = weights[at], w1 = weights[at + 1];
#endif
#pragma unroll
        for (uint32_t t = 0; t < MOEC_CUDA_TILE_TOKENS; t++) {
            acc[r][t] = fmaf(x.at[t][0], w0, acc[r][t]);
            if (has_second)
                acc[r][t] = fmaf(x.at[t][1], w1, acc[r][t]);
        }
    }
}

/* acc[r][t] = dot(x.at[t], row first + r), the last row for those behind it, in every lane of the half warp.
 * `weights`: 2 MOEC_CUDA_TILE_FLOATS floats of shared memory. */
template <int CODEC, typename SHARED>
__device__ static __forceinline__ void
dot_tile(const struct moec_cuda_matrix &matrix, uint32_t first, uint32_t last,
         const struct token_rows<MOEC_CUDA_TILE_TOKENS> &x, SHARED &weights,
         float acc[MOEC_CUDA_TILE_ROWS][MOEC_CUDA_TILE_TOKENS])
{
    const uint32_t n_blocks = moec_cuda_blocks(matrix.columns, MOEC_CUDA_WEIGHTS);
    struct coded_row rows[MOEC_CUDA_TILE_OWN];
    struct tile_inputs now, next;
#pragma unroll
    for (uint32_t i = 0; i < MOEC_CUDA_TILE_OWN; i++) {
        const uint32_t row = first + half_of_block() + i * MOEC_CUDA_HALVES;
        rows[i] = row_begin<CODEC>(matrix, row < last ? row : last);
    }
    load_inputs(x, matrix.columns, 0, now);
    decode_tile<CODEC>(matrix, rows, 0, weights);
    __syncthreads();
    for (uint32_t block = 0; block < n_blocks; block++) {
        const bool has_next = block + 1 < n_blocks;
        if (has_next)
            load_inputs(x, matrix.columns, block + 1, next);
        multiply_tile(weights, block % 2, has_second_half(matrix.columns, block), now, acc);
        if (has_next)
            decode_tile<CODEC>(matrix, rows, block + 1, weights);
        __syncthreads();
        now = next;
    }
#pragma unroll
    for (uint32_t r = 0; r < MOEC_CUDA_TILE_ROWS; r++)
#pragma unroll
        for (uint32_t t = 0; t < MOEC_CUDA_TILE_TOKENS; t++)
            acc[r][t] = lanes_sum(acc[r][t]);
}

#endif
