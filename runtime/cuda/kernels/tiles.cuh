/* Products with many tokens, for which multiplying takes the time: a block of threads has
 * MOEC_CUDA_TILE_TOKENS tokens, each of its half warps MOEC_CUDA_TILE_OWN of them, and what they multiply
 * with comes from shared memory, where weights are decoded once for all (pieces.cuh). One barrier for each
 * step suffices: a step is multiplied out of one half of shared memory while the next one comes to the other.
 *
 * Dots: a thread has one lane of MOEC_CUDA_TILE_ROWS times MOEC_CUDA_TILE_OWN dot products, its inputs in
 * registers. Chains and tree are those of lanes.cuh.
 *
 * Weighted sums: a thread has eight columns of MOEC_CUDA_TILE_OWN tokens, each a chain over the rows of a
 * chunk of 64, and what chunks before made of it; the tokens' factors are in shared memory too.
 *
 * All threads of a block take part, to the end; half warps without tokens do not multiply. */
#ifndef MOEC_RUNTIME_CUDA_TILES_CUH
#define MOEC_RUNTIME_CUDA_TILES_CUH

#include "runtime/cuda/kernels/pieces.cuh"

#define MOEC_CUDA_TILE_OWN    8 /* tokens of a half warp */
#define MOEC_CUDA_TILE_TOKENS (MOEC_CUDA_HALVES * MOEC_CUDA_TILE_OWN)

/* MLPs of many rows (internal to runtime/cuda/kernels: callers launch moec_cuda_mlp_run): the jobs that have
 * more than MOEC_CUDA_MLP_SOME of them, and nothing of the others. */
#define MOEC_CUDA_MLP_SOME 16u
void moec_cuda_mlp_tiles(struct moec_gpu_stream *stream, const struct moec_cuda_mlp &mlp);

/* Two blocks of 128 threads on a multiprocessor: 255 registers for each thread. */
#define MOEC_CUDA_TILES_AT_ONCE 2

/* Four neighbours in shared memory, at a multiple of four. */
template <typename SHARED>
__device__ static __forceinline__ void put_four(const float values[4], uint32_t at, SHARED &shared)
{
#if defined(__CUDACC__)
    *(float4 *)&shared[at] = make_float4(values[0], values[1], values[2], values[3]);
#else
    for (uint32_t i = 0; i < 4; i++)
        shared[at + i] = values[i];
#endif
}

template <typename SHARED>
__device__ static __forceinline__ void get_four(SHARED &shared, uint32_t at, float values[4])
{
#if defined(__CUDACC__)
    const float4 all = *(const float4 *)&shared[at];
    values[0] = all.x;
    values[1] = all.y;
    values[2] = all.z;
    values[3] = all.w;
#else
    for (uint32_t i = 0; i < 4; i++)
        values[i] = shared[at + i];
#endif
}

/* ---- dots ---- */

#define MOEC_CUDA_TILE_ROWS   16
#define MOEC_CUDA_TILE_BLOCKS 2 /* of 32 columns, in a step */
#define MOEC_CUDA_TILE_FLOATS (MOEC_CUDA_TILE_BLOCKS * MOEC_CUDA_TILE_ROWS * MOEC_CUDA_WEIGHTS) /* of one */

/* Rows side by side; the two weights of a lane stand side by side too. */
struct tile_rows {
    static constexpr uint32_t n_own =
        MOEC_CUDA_TILE_ROWS * MOEC_CUDA_TILE_BLOCKS * MOEC_CUDA_QUAD / MOEC_CUDA_BLOCK;
    static constexpr uint32_t n_matrix = 1;
    uint32_t first;

    __device__ __forceinline__ struct coded_piece piece(uint32_t i, uint32_t step,
                                                        const struct moec_cuda_matrix &matrix) const
    {
        const uint32_t own = (i * MOEC_CUDA_BLOCK + threadIdx.x) / MOEC_CUDA_QUAD;
        const uint32_t row = own % MOEC_CUDA_TILE_ROWS, which = own / MOEC_CUDA_TILE_ROWS;
        const uint32_t block = step * MOEC_CUDA_TILE_BLOCKS + which;
        return {first + row, block, own * MOEC_CUDA_WEIGHTS,
                first + row < matrix.rows && block * MOEC_CUDA_WEIGHTS < matrix.columns};
    }

    template <typename SHARED>
    __device__ static __forceinline__ void put(const float w[2][MOEC_CUDA_QUAD], uint32_t at, SHARED &shared)
    {
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_QUAD; i += 2) {
            const float four[4] = {w[0][i], w[1][i], w[0][i + 1], w[1][i + 1]};
            put_four(four, at + 2 * (lane_of_quad() + i), shared);
        }
    }

    template <typename SHARED>
    __device__ static __forceinline__ void put_two(const float low[2], const float high[2], uint32_t lane,
                                                   uint32_t at, SHARED &shared)
    {
        const float four[4] = {low[0], low[1], high[0], high[1]};
        put_four(four, at + 2 * lane, shared);
    }
};

/* A thread's inputs of a block of columns. */
struct tile_inputs {
    float at[MOEC_CUDA_TILE_OWN][2];
};

__device__ static __forceinline__ bool has_second_half(uint32_t columns, uint32_t block)
{
    return columns > block * MOEC_CUDA_WEIGHTS + MOEC_CUDA_LANES;
}

/* Zeros of a block behind the last. */
__device__ static __forceinline__ void load_inputs(const struct token_rows<MOEC_CUDA_TILE_OWN> &x,
                                                   uint32_t columns, uint32_t block,
                                                   struct tile_inputs &inputs)
{
    const uint32_t at = block * MOEC_CUDA_WEIGHTS + lane_of_half();
    const bool has_first = block * MOEC_CUDA_WEIGHTS < columns, has_second = has_second_half(columns, block);
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++) {
        inputs.at[t][0] = has_first ? x.at[t][at] : 0;
        inputs.at[t][1] = has_second ? x.at[t][at + MOEC_CUDA_LANES] : 0;
    }
}

template <typename SHARED>
__device__ static __forceinline__ void multiply_block(SHARED &weights, uint32_t from, bool has_second,
                                                      const struct tile_inputs &x,
                                                      float acc[MOEC_CUDA_TILE_ROWS * MOEC_CUDA_TILE_OWN])
{
#pragma unroll
    for (uint32_t r = 0; r < MOEC_CUDA_TILE_ROWS; r++) {
        const uint32_t at = from + r * MOEC_CUDA_WEIGHTS + 2 * lane_of_half();
#if defined(__CUDACC__)
        const float2 both = *(const float2 *)&weights[at];
        const float w0 = both.x, w1 = both.y;
#else
        const float w0 = weights[at], w1 = weights[at + 1];
#endif
#pragma unroll
        for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++) {
            float &sum = acc[r * MOEC_CUDA_TILE_OWN + t];
            sum = fmaf(x.at[t][0], w0, sum);
            if (has_second)
                sum = fmaf(x.at[t][1], w1, sum);
        }
    }
}

/* sums[t] = dot(x.at[t], row first + lane_of_half()): what a lane has of the tile, of whatever value where
 * the matrix has no such row. `weights`: 2 MOEC_CUDA_TILE_FLOATS floats of shared memory. */
template <typename SHARED>
__device__ static __forceinline__ void dot_tile(const struct moec_cuda_matrix &matrix, uint32_t first,
                                                const struct token_rows<MOEC_CUDA_TILE_OWN> &x,
                                                bool has_tokens, SHARED &weights,
                                                float sums[MOEC_CUDA_TILE_OWN])
{
    const uint32_t n_blocks = moec_cuda_blocks(matrix.columns, MOEC_CUDA_WEIGHTS),
                   n_steps = moec_cuda_blocks(n_blocks, MOEC_CUDA_TILE_BLOCKS);
    struct coded_pieces<tile_rows> pieces;
    float acc[MOEC_CUDA_TILE_ROWS * MOEC_CUDA_TILE_OWN];
    struct tile_inputs now, coming;
    pieces.matrices[0] = &matrix;
    pieces.layout = {first};
#pragma unroll
    for (uint32_t i = 0; i < MOEC_CUDA_TILE_ROWS * MOEC_CUDA_TILE_OWN; i++)
        acc[i] = 0;
    load_inputs(x, matrix.columns, 0, now);
#pragma unroll 1
    for (uint32_t next = 0; next <= n_steps; next++) { /* the step that comes, behind the one at work */
        if (next < n_steps)
            load_pieces(pieces, next);
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_TILE_BLOCKS && next > 0 && has_tokens; i++) {
            const uint32_t block = (next - 1) * MOEC_CUDA_TILE_BLOCKS + i;
            load_inputs(x, matrix.columns, block + 1, coming);
            if (block < n_blocks)
                multiply_block(weights,
                               (next - 1) % 2 * MOEC_CUDA_TILE_FLOATS +
                                   i * MOEC_CUDA_TILE_ROWS * MOEC_CUDA_WEIGHTS,
                               has_second_half(matrix.columns, block), now, acc);
            now = coming;
        }
        if (next < n_steps)
            put_pieces(pieces, next, next % 2 * MOEC_CUDA_TILE_FLOATS, weights);
        __syncthreads();
    }
    lanes_sums<MOEC_CUDA_TILE_ROWS * MOEC_CUDA_TILE_OWN>(acc);
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++)
        sums[t] = acc[t];
}

/* ---- weighted sums ---- */

#define MOEC_CUDA_SUM_STEP    16u                                          /* rows */
#define MOEC_CUDA_SUM_COLUMNS 128u                                         /* eight of each lane */
#define MOEC_CUDA_SUM_WEIGHTS (MOEC_CUDA_SUM_STEP * MOEC_CUDA_SUM_COLUMNS) /* floats of a step */
/* Factors of a row: eight threads that put four each touch all banks. */
#define MOEC_CUDA_SUM_PITCH   (MOEC_CUDA_TILE_TOKENS + 4)
#define MOEC_CUDA_SUM_FACTORS (MOEC_CUDA_SUM_STEP * MOEC_CUDA_SUM_PITCH)

/* Columns side by side; step after step 16 rows further. */
struct tile_columns {
    static constexpr uint32_t n_blocks = MOEC_CUDA_SUM_COLUMNS / MOEC_CUDA_WEIGHTS;
    static constexpr uint32_t n_own = MOEC_CUDA_SUM_STEP * n_blocks * MOEC_CUDA_QUAD / MOEC_CUDA_BLOCK;
    static constexpr uint32_t n_matrix = 1;
    uint32_t first_row, first_block;

    __device__ __forceinline__ struct coded_piece piece(uint32_t i, uint32_t step,
                                                        const struct moec_cuda_matrix &matrix) const
    {
        const uint32_t own = (i * MOEC_CUDA_BLOCK + threadIdx.x) / MOEC_CUDA_QUAD;
        const uint32_t row = first_row + step * MOEC_CUDA_SUM_STEP + own / n_blocks,
                       block = first_block + own % n_blocks;
        return {row, block, own * MOEC_CUDA_WEIGHTS,
                row < matrix.rows && block * MOEC_CUDA_WEIGHTS < matrix.columns};
    }

    template <typename SHARED>
    __device__ static __forceinline__ void put(const float w[2][MOEC_CUDA_QUAD], uint32_t at, SHARED &shared)
    {
        put_four(w[0], at + lane_of_quad(), shared);
        put_four(w[1], at + MOEC_CUDA_LANES + lane_of_quad(), shared);
    }

    template <typename SHARED>
    __device__ static __forceinline__ void put_two(const float low[2], const float high[2], uint32_t lane,
                                                   uint32_t at, SHARED &shared)
    {
        shared[at + lane] = low[0];
        shared[at + lane + 1] = high[0];
        shared[at + MOEC_CUDA_LANES + lane] = low[1];
        shared[at + MOEC_CUDA_LANES + lane + 1] = high[1];
    }
};

/* A thread's column i, of the tile's. */
__device__ static __forceinline__ uint32_t column_of_sum(uint32_t i)
{
    return i / 4 * (MOEC_CUDA_SUM_COLUMNS / 2) + lane_of_half() * 4 + i % 4;
}

struct tile_sums {
    float at[MOEC_CUDA_TILE_OWN][8]; /* of a token and a column */
};

__device__ static __forceinline__ void clear_sums(struct tile_sums &sums)
{
#pragma unroll
    for (uint32_t i = 0; i < MOEC_CUDA_TILE_OWN * 8; i++)
        sums.at[i / 8][i % 8] = 0;
}

/* A lane's row of a step: the factor of each token, zeros behind the last row. */
__device__ static __forceinline__ void load_factors(const struct token_rows<MOEC_CUDA_TILE_OWN> &h,
                                                    uint32_t n_rows, uint32_t step,
                                                    float factors[MOEC_CUDA_TILE_OWN])
{
    const uint32_t row = step * MOEC_CUDA_SUM_STEP + lane_of_half();
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++)
        factors[t] = row < n_rows ? h.at[t][row] : 0;
}

template <typename SHARED>
__device__ static __forceinline__ void put_factors(const float factors[MOEC_CUDA_TILE_OWN], uint32_t which,
                                                   SHARED &shared)
{
    const uint32_t at = which * MOEC_CUDA_SUM_FACTORS + lane_of_half() * MOEC_CUDA_SUM_PITCH +
                        half_of_block() * MOEC_CUDA_TILE_OWN;
    put_four(factors, at, shared);
    put_four(factors + 4, at + 4, shared);
}

/* n rows of a step. */
template <typename WEIGHTS, typename FACTORS>
__device__ static __forceinline__ void multiply_rows(WEIGHTS &weights, FACTORS &factors, uint32_t which,
                                                     uint32_t n, struct tile_sums &chunk)
{
#pragma unroll 4
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t from = which * MOEC_CUDA_SUM_WEIGHTS + i * MOEC_CUDA_SUM_COLUMNS;
        const uint32_t token =
            which * MOEC_CUDA_SUM_FACTORS + i * MOEC_CUDA_SUM_PITCH + half_of_block() * MOEC_CUDA_TILE_OWN;
        float w[8], h[MOEC_CUDA_TILE_OWN];
        get_four(weights, from + column_of_sum(0), w);
        get_four(weights, from + column_of_sum(4), w + 4);
        get_four(factors, token, h);
        get_four(factors, token + 4, h + 4);
#pragma unroll
        for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++)
#pragma unroll
            for (uint32_t c = 0; c < 8; c++)
                chunk.at[t][c] = fmaf(h[t], w[c], chunk.at[t][c]);
    }
}

/* The first chunk is the sum, to which the bias is added; the others are added to it. */
__device__ static __forceinline__ void add_chunk(const struct tile_sums &chunk, bool is_first,
                                                 const float *bias, uint32_t first_column, uint32_t columns,
                                                 struct tile_sums &sums)
{
#pragma unroll
    for (uint32_t c = 0; c < 8; c++) {
        const uint32_t column = first_column + column_of_sum(c);
        const bool has_bias = is_first && bias != NULL && column < columns;
        const float added = has_bias ? bias[column] : 0;
#pragma unroll
        for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++) {
            float &sum = sums.at[t][c];
            sum = is_first ? chunk.at[t][c] : sum + chunk.at[t][c];
            sum = has_bias ? sum + added : sum;
        }
    }
}

/* Sums over rows of h.at[t] times the row, for the tile's columns from a block on. Shared memory: 2
 * MOEC_CUDA_SUM_WEIGHTS and 2 MOEC_CUDA_SUM_FACTORS floats. */
template <typename WEIGHTS, typename FACTORS>
__device__ static __forceinline__ void
sum_tile(const struct moec_cuda_matrix &matrix, const struct summed_rows &rows, uint32_t first_block,
         const struct token_rows<MOEC_CUDA_TILE_OWN> &h, bool has_tokens, WEIGHTS &weights, FACTORS &factors,
         struct tile_sums &sums)
{
    constexpr uint32_t n_in_chunk = MOEC_CUDA_CHUNK / MOEC_CUDA_SUM_STEP;
    const uint32_t n_steps = moec_cuda_blocks(rows.n, MOEC_CUDA_SUM_STEP);
    struct coded_pieces<tile_columns> pieces;
    struct tile_sums chunk;
    float coming[MOEC_CUDA_TILE_OWN];
    pieces.matrices[0] = &matrix;
    pieces.layout = {rows.first, first_block};
    clear_sums(sums);
    clear_sums(chunk);
#pragma unroll 1
    for (uint32_t next = 0; next <= n_steps; next++) { /* the step that comes, behind the one at work */
        if (next < n_steps) {
            load_pieces(pieces, next);
            load_factors(h, rows.n, next, coming);
        }
        if (next > 0 && has_tokens) {
            const uint32_t left = rows.n - (next - 1) * MOEC_CUDA_SUM_STEP;
            multiply_rows(weights, factors, (next - 1) % 2,
                          left < MOEC_CUDA_SUM_STEP ? left : MOEC_CUDA_SUM_STEP, chunk);
            if (next % n_in_chunk == 0 || next == n_steps) {
                add_chunk(chunk, next <= n_in_chunk, rows.bias, first_block * MOEC_CUDA_WEIGHTS,
                          matrix.columns, sums);
                clear_sums(chunk);
            }
        }
        if (next < n_steps) {
            put_pieces(pieces, next, next % 2 * MOEC_CUDA_SUM_WEIGHTS, weights);
            put_factors(coming, next % 2, factors);
        }
        __syncthreads();
    }
}

#endif
