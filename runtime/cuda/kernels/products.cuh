/* Products with encoded rows, for the kernels of dense matrices and of experts. */
#ifndef MOEC_RUNTIME_CUDA_PRODUCTS_CUH
#define MOEC_RUNTIME_CUDA_PRODUCTS_CUH

#include "runtime/cuda/kernels/decode.cuh"

/* Inputs of TOKENS tokens; a token past the end reads what the last one does. */
template <uint32_t TOKENS> struct token_rows {
    const float *at[TOKENS];
};

/* acc[r][t] += the lane's part of block `block`, of which n weights are in the row. Of a last block, weights
 * up to a multiple of 16 count, as zeros. */
template <int CODEC, uint32_t ROWS, uint32_t TOKENS>
__device__ static __forceinline__ void
add_block(const struct moec_cuda_matrix &matrix, struct coded_row rows[ROWS], uint32_t block, uint32_t n,
          uint32_t lane, const struct token_rows<TOKENS> &x, float acc[ROWS][TOKENS])
{
    const uint32_t at = block * MOEC_CUDA_WEIGHTS + lane;
    const bool has_second = n > MOEC_CUDA_LANES;
    float w[ROWS][2];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        decode_pair<CODEC>(matrix, rows[r], block, n, lane, w[r]);
#pragma unroll
    for (uint32_t t = 0; t < TOKENS; t++) {
        const float x0 = x.at[t][at], x1 = has_second ? x.at[t][at + MOEC_CUDA_LANES] : 0;
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            acc[r][t] = fmaf(x0, w[r][0], acc[r][t]);
            if (has_second)
                acc[r][t] = fmaf(x1, w[r][1], acc[r][t]);
        }
    }
}

/* acc[r][t] = dot(x.at[t], row first[r]), in every lane of the half warp; acc is all 0 at first. */
template <int CODEC, uint32_t ROWS, uint32_t TOKENS>
__device__ static __forceinline__ void
dot_rows_of(const struct moec_cuda_matrix &matrix, const uint32_t first[ROWS],
            const struct token_rows<TOKENS> &x, float acc[ROWS][TOKENS])
{
    const uint32_t lane = lane_of_half(), n_whole = matrix.columns / MOEC_CUDA_WEIGHTS;
    const uint32_t tail = matrix.columns % MOEC_CUDA_WEIGHTS;
    struct coded_row rows[ROWS];
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        rows[r] = row_begin<CODEC>(matrix, first[r]);
#pragma unroll(ROWS *TOKENS == 1 ? 4 : 1)
    for (uint32_t block = 0; block < n_whole; block++)
        add_block<CODEC, ROWS, TOKENS>(matrix, rows, block, MOEC_CUDA_WEIGHTS, lane, x, acc);
    if (tail > 0)
        add_block<CODEC, ROWS, TOKENS>(matrix, rows, n_whole, tail, lane, x, acc);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
#pragma unroll
        for (uint32_t t = 0; t < TOKENS; t++)
            acc[r][t] = lanes_sum(acc[r][t]);
}

template <uint32_t ROWS, uint32_t TOKENS>
__device__ static __forceinline__ void dot_rows(const struct moec_cuda_matrix &matrix,
                                                const uint32_t first[ROWS],
                                                const struct token_rows<TOKENS> &x, float acc[ROWS][TOKENS])
{
#pragma unroll
    for (uint32_t i = 0; i < ROWS * TOKENS; i++)
        acc[i / TOKENS][i % TOKENS] = 0;
    FOR_CODEC(matrix.codec, (dot_rows_of<CODEC, ROWS, TOKENS>(matrix, first, x, acc)))
}

/* Sums of two columns of a block, lane and lane + 16. */
template <uint32_t TOKENS> struct column_sums {
    float at[TOKENS][2];
};

/* Rows that a weighted sum runs over. */
struct summed_rows {
    uint32_t first, n;
    const float *bias; /* (columns), added to the first chunk's sum; or NULL */
};

/* One chunk: sums.at[t][i] = sum over n < n_rows of h.at[t][n] * the weight of row first + n. */
template <int CODEC, uint32_t TOKENS>
__device__ static __forceinline__ void
sum_chunk_of(const struct moec_cuda_matrix &matrix, uint32_t first, uint32_t n_rows, uint32_t block,
             const struct token_rows<TOKENS> &h, struct column_sums<TOKENS> &sums)
{
    const uint32_t left = matrix.columns - block * MOEC_CUDA_WEIGHTS, lane = lane_of_half();
    const uint32_t n = left < MOEC_CUDA_WEIGHTS ? left : MOEC_CUDA_WEIGHTS;
#pragma unroll
    for (uint32_t t = 0; t < TOKENS; t++)
        sums.at[t][0] = sums.at[t][1] = 0;
#pragma unroll(TOKENS == 1 ? 4 : 1)
    for (uint32_t i = 0; i < n_rows; i++) {
        float w[2];
        struct coded_row row = row_begin<CODEC>(matrix, first + i);
        decode_pair<CODEC>(matrix, row, block, n, lane, w);
#pragma unroll
        for (uint32_t t = 0; t < TOKENS; t++) {
            sums.at[t][0] = fmaf(h.at[t][i], w[0], sums.at[t][0]);
            sums.at[t][1] = fmaf(h.at[t][i], w[1], sums.at[t][1]);
        }
    }
}

/* Chunks in order: the first is the sum, the others are added to it. No rows sum to 0. */
template <int CODEC, uint32_t TOKENS>
__device__ static __forceinline__ void
sum_rows_of(const struct moec_cuda_matrix &matrix, const struct summed_rows &rows, uint32_t block,
            struct token_rows<TOKENS> h, struct column_sums<TOKENS> &sums)
{
    struct column_sums<TOKENS> chunk;
    for (uint32_t done = 0; done == 0 || done < rows.n; done += MOEC_CUDA_CHUNK) {
        const uint32_t n = rows.n - done < MOEC_CUDA_CHUNK ? rows.n - done : MOEC_CUDA_CHUNK;
        sum_chunk_of<CODEC, TOKENS>(matrix, rows.first + done, n, block, h, chunk);
#pragma unroll
        for (uint32_t i = 0; i < 2 * TOKENS; i++) {
            const uint32_t column = block * MOEC_CUDA_WEIGHTS + i % 2 * MOEC_CUDA_LANES + lane_of_half();
            float &sum = sums.at[i / 2][i % 2];
            sum = done == 0 ? chunk.at[i / 2][i % 2] : sum + chunk.at[i / 2][i % 2];
            if (done == 0 && rows.bias != NULL && column < matrix.columns)
                sum = sum + rows.bias[column];
        }
#pragma unroll
        for (uint32_t t = 0; t < TOKENS; t++)
            h.at[t] += n;
    }
}

template <uint32_t TOKENS>
__device__ static __forceinline__ void
sum_rows(const struct moec_cuda_matrix &matrix, const struct summed_rows &rows, uint32_t block,
         const struct token_rows<TOKENS> &h, struct column_sums<TOKENS> &sums)
{
    FOR_CODEC(matrix.codec, (sum_rows_of<CODEC, TOKENS>(matrix, rows, block, h, sums)))
}

#endif
