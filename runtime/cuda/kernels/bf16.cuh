/* Tiles of the arithmetic bf16 (runtime/cuda/kernels/bf16.h): a block multiplies some tokens with some rows,
 * or with some columns of all rows, 32 places of k at a time, each warp a part of them. While a step is
 * multiplied, the next one's inputs come to shared memory by themselves and its codes to registers, out of
 * which they are decoded behind it; so one barrier for each step suffices.
 *
 * Rows of shared memory are 4 words longer than what they hold, so that eight of them, 16 bytes of each, lie
 * in different banks. */
#ifndef MOEC_RUNTIME_CUDA_BF16_CUH
#define MOEC_RUNTIME_CUDA_BF16_CUH

#include "runtime/cuda/kernels/mma.cuh"
#include "runtime/cuda/kernels/pieces.cuh"

#define MOEC_CUDA_BF16_STEP  MOEC_CUDA_WEIGHTS             /* places of k */
#define MOEC_CUDA_BF16_PITCH (MOEC_CUDA_BF16_STEP / 2 + 4) /* words of a row of them */

/* A tile: warps side by side over tokens and rows, and fragments of 16 tokens and of 8 rows of a warp. */
template <uint32_t TOKEN_WARPS, uint32_t ROW_WARPS, uint32_t TOKEN_TILES, uint32_t ROW_TILES>
struct bf16_shape {
    static_assert(TOKEN_WARPS * ROW_WARPS * MOEC_CUDA_WARP == MOEC_CUDA_BLOCK, "a block has so many warps");
    static constexpr uint32_t row_warps = ROW_WARPS, token_tiles = TOKEN_TILES, row_tiles = ROW_TILES;
    static constexpr uint32_t tokens = TOKEN_WARPS * TOKEN_TILES * 16, rows = ROW_WARPS * ROW_TILES * 8;
    static constexpr uint32_t n_copy = (tokens * 4 + MOEC_CUDA_BLOCK - 1) / MOEC_CUDA_BLOCK;
    static constexpr uint32_t n_own = rows * MOEC_CUDA_QUAD / MOEC_CUDA_BLOCK; /* pieces of 8 weights */
    static constexpr uint32_t column_pitch = rows / 2 + 4;
    static constexpr uint32_t input_words = tokens * MOEC_CUDA_BF16_PITCH;
    static constexpr uint32_t weight_words = rows * MOEC_CUDA_BF16_PITCH > MOEC_CUDA_BF16_STEP *column_pitch
                                                 ? rows *MOEC_CUDA_BF16_PITCH
                                                 : MOEC_CUDA_BF16_STEP *column_pitch;
    static_assert(rows % MOEC_CUDA_WEIGHTS == 0 && ROW_TILES % 2 == 0 && n_own % 2 == 0,
                  "columns come in blocks, fragments and matrices in pairs");
};

/* Many tokens, some and few. On the processor blocks are smaller; outputs are the same in any tile. */
#if defined(__CUDACC__)
typedef bf16_shape<2, 2, 4, 8> bf16_many;
typedef bf16_shape<1, 4, 4, 4> bf16_some;
typedef bf16_shape<1, 4, 1, 2> bf16_few;
#else
typedef bf16_shape<1, 2, 4, 4> bf16_many;
typedef bf16_shape<1, 2, 2, 2> bf16_some;
typedef bf16_shape<1, 2, 1, 2> bf16_few;
#endif

/* Sums of a thread: of fragment [token][row], as mma.cuh has them. */
template <class SHAPE> struct bf16_sums {
    float at[SHAPE::token_tiles][SHAPE::row_tiles][4];
};

template <class SHAPE> __device__ static __forceinline__ void clear_sums(struct bf16_sums<SHAPE> &sums)
{
#pragma unroll
    for (uint32_t i = 0; i < SHAPE::token_tiles * SHAPE::row_tiles * 4; i++)
        sums.at[i / 4 / SHAPE::row_tiles][i / 4 % SHAPE::row_tiles][i % 4] = 0;
}

/* Token and row, of the block's, of a thread's sum i, counted over fragments or within one. */
template <class SHAPE> __device__ static __forceinline__ uint32_t token_of_sum(uint32_t token, uint32_t i)
{
    const uint32_t warp = warp_of_block() / SHAPE::row_warps;
    return (warp * SHAPE::token_tiles + token) * 16 + lane_of_warp() / 4 + i / 2 % 2 * 8;
}

template <class SHAPE> __device__ static __forceinline__ uint32_t row_of_sum(uint32_t row, uint32_t i)
{
    const uint32_t warp = warp_of_block() % SHAPE::row_warps;
    return (warp * SHAPE::row_tiles + row) * 8 + lane_of_warp() % 4 * 2 + i % 2;
}

/* A thread's sums of one fragment of tokens go through shared memory, to be taken up one by one: i counts
 * rows of fragments, four sums each. Places are the thread's own. */
template <class SHAPE, typename WORDS>
__device__ static __forceinline__ void keep_sums(const struct bf16_sums<SHAPE> &sums, uint32_t token,
                                                 WORDS &words)
{
    static_assert(SHAPE::row_tiles * 4 * MOEC_CUDA_BLOCK <= 2 * SHAPE::weight_words, "they fit");
#pragma unroll
    for (uint32_t i = 0; i < SHAPE::row_tiles * 4; i++)
        words[i * MOEC_CUDA_BLOCK + threadIdx.x] = moec_f32_bits(sums.at[token][i / 4][i % 4]);
}

template <typename WORDS> __device__ static __forceinline__ float kept_sum(WORDS &words, uint32_t i)
{
    return moec_f32_from_bits(words[i * MOEC_CUDA_BLOCK + threadIdx.x]);
}

/* ---- inputs ---- */

#define MOEC_CUDA_NO_ROW 0xffffffffu

/* Rows of n BF16, and those that a thread copies pieces of; MOEC_CUDA_NO_ROW: zeros. */
template <class SHAPE> struct bf16_inputs {
    const uint16_t *first;
    uint32_t stride, n;
    uint32_t rows[SHAPE::n_copy];
};

/* The block's token whose row is copy i of a thread, or one past the tile's. */
template <class SHAPE> __device__ static __forceinline__ uint32_t token_of_copy(uint32_t i)
{
    return (i * MOEC_CUDA_BLOCK + threadIdx.x) / 4;
}

template <class SHAPE, typename WORDS>
__device__ static __forceinline__ void copy_inputs(const struct bf16_inputs<SHAPE> &inputs, uint32_t step,
                                                   WORDS &words)
{
    const uint32_t piece = threadIdx.x % 4, k = step * MOEC_CUDA_BF16_STEP + piece * 8;
    const uint32_t left = k < inputs.n ? inputs.n - k : 0, n_there = left < 8 ? left : 8;
#pragma unroll
    for (uint32_t i = 0; i < SHAPE::n_copy; i++) {
        const uint32_t token = token_of_copy<SHAPE>(i);
        const bool is_there = inputs.rows[i] != MOEC_CUDA_NO_ROW && n_there > 0;
        const size_t at = is_there ? (size_t)inputs.rows[i] * inputs.stride + k : 0;
        if (token < SHAPE::tokens)
            copy_eight(words, step % 2 * SHAPE::input_words + token * MOEC_CUDA_BF16_PITCH + piece * 4,
                       inputs.first + at, is_there ? n_there : 0);
    }
}

/* ---- weights ---- */

/* What layouts put: weights rounded, to their places of a block. */
struct rounded_weights {
    /* Those of a quad. */
    template <typename WORDS>
    __device__ static __forceinline__ void put(const float w[2][MOEC_CUDA_QUAD], uint32_t at, WORDS &words)
    {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t place = at + half * (MOEC_CUDA_LANES / 2) + lane_of_quad() / 2;
            const uint32_t low = bf16_word(w[half][0], w[half][1]), high = bf16_word(w[half][2], w[half][3]);
#if defined(__CUDACC__)
            *(uint2 *)&words[place] = make_uint2(low, high);
#else
            words[place] = low;
            words[place + 1] = high;
#endif
        }
    }

    template <typename WORDS>
    __device__ static __forceinline__ void put_two(const float low[2], const float high[2], uint32_t lane,
                                                   uint32_t at, WORDS &words)
    {
        words[at + lane / 2] = bf16_word(low[0], high[0]);
        words[at + MOEC_CUDA_LANES / 2 + lane / 2] = bf16_word(low[1], high[1]);
    }
};

/* Rows side by side, for dots: step after step a block further. Of two matrices, each has every other 8 rows
 * of the tile. */
template <class SHAPE, uint32_t MATRICES> struct bf16_rows : rounded_weights {
    static constexpr uint32_t n_own = SHAPE::n_own, n_matrix = MATRICES;
    uint32_t first; /* row of a matrix */

    __device__ __forceinline__ struct coded_piece piece(uint32_t i, uint32_t step,
                                                        const struct moec_cuda_matrix &matrix) const
    {
        const uint32_t which = i / (n_own / MATRICES), at = i % (n_own / MATRICES);
        const uint32_t own = (at * MOEC_CUDA_BLOCK + threadIdx.x) / MOEC_CUDA_QUAD;
        const uint32_t row = (own / 8 * MATRICES + which) * 8 + own % 8;
        return {first + own, step, row * MOEC_CUDA_BF16_PITCH, first + own < matrix.rows};
    }
};

/* Columns side by side, for weighted sums: step after step 32 rows further. */
template <class SHAPE> struct bf16_columns : rounded_weights {
    static constexpr uint32_t n_own = SHAPE::n_own, n_matrix = 1;
    uint32_t first_block;

    __device__ __forceinline__ struct coded_piece piece(uint32_t i, uint32_t step,
                                                        const struct moec_cuda_matrix &matrix) const
    {
        constexpr uint32_t n_blocks = SHAPE::rows / MOEC_CUDA_WEIGHTS;
        const uint32_t own = (i * MOEC_CUDA_BLOCK + threadIdx.x) / MOEC_CUDA_QUAD;
        const uint32_t k = own / n_blocks, row = step * MOEC_CUDA_BF16_STEP + k,
                       block = first_block + own % n_blocks;
        return {row, block, k * SHAPE::column_pitch + own % n_blocks * (MOEC_CUDA_WEIGHTS / 2),
                row < matrix.rows && block * MOEC_CUDA_WEIGHTS < matrix.columns};
    }
};

/* ---- tiles ---- */

template <class SHAPE, bool BY_COLUMNS, typename INPUTS, typename WEIGHTS>
__device__ static __forceinline__ void multiply_step(INPUTS &inputs, WEIGHTS &weights, uint32_t which,
                                                     struct bf16_sums<SHAPE> &sums)
{
    const uint32_t token = warp_of_block() / SHAPE::row_warps * (SHAPE::token_tiles * 16),
                   row = warp_of_block() % SHAPE::row_warps * (SHAPE::row_tiles * 8);
    const uint32_t x = which * SHAPE::input_words, w = which * SHAPE::weight_words;
#pragma unroll
    for (uint32_t k = 0; k < MOEC_CUDA_BF16_STEP; k += 16) {
        uint32_t a[SHAPE::token_tiles][4];
#pragma unroll
        for (uint32_t t = 0; t < SHAPE::token_tiles; t++)
            load_inputs_of(inputs, x + (token + t * 16) * MOEC_CUDA_BF16_PITCH + k / 2, MOEC_CUDA_BF16_PITCH,
                           a[t]);
#pragma unroll
        for (uint32_t r = 0; r < SHAPE::row_tiles; r += 2) {
            uint32_t b[4];
            if (BY_COLUMNS)
                load_weights_by_columns(weights, w + k * SHAPE::column_pitch + (row + r * 8) / 2,
                                        SHAPE::column_pitch, b);
            else
                load_weights_by_rows(weights, w + (row + r * 8) * MOEC_CUDA_BF16_PITCH + k / 2,
                                     MOEC_CUDA_BF16_PITCH, b);
#pragma unroll
            for (uint32_t t = 0; t < SHAPE::token_tiles; t++) {
                multiply_add(a[t], b, sums.at[t][r]);
                multiply_add(a[t], b + 2, sums.at[t][r + 1]);
            }
        }
    }
}

/* Sums over the places of the inputs. Shared memory: twice the shape's words of inputs and of weights. */
template <class SHAPE, bool BY_COLUMNS, class LAYOUT, typename INPUT_WORDS, typename WEIGHT_WORDS>
__device__ static __forceinline__ void
multiply(struct coded_pieces<LAYOUT> &weights, const struct bf16_inputs<SHAPE> &inputs,
         INPUT_WORDS &input_words, WEIGHT_WORDS &weight_words, struct bf16_sums<SHAPE> &sums)
{
    const uint32_t n_steps = moec_cuda_blocks(inputs.n, MOEC_CUDA_BF16_STEP);
    clear_sums<SHAPE>(sums);
#pragma unroll 1
    for (uint32_t next = 0; next <= n_steps; next++) { /* the step that comes, behind the one at work */
        if (next < n_steps) {
            copy_inputs<SHAPE>(inputs, next, input_words);
            load_pieces(weights, next);
        }
        if (next > 0)
            multiply_step<SHAPE, BY_COLUMNS>(input_words, weight_words, (next - 1) % 2, sums);
        if (next < n_steps)
            put_pieces(weights, next, next % 2 * SHAPE::weight_words, weight_words);
        copies_finish();
        __syncthreads();
    }
}

#endif
