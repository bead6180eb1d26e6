/* Products with one token, for which reading weights is all that takes time: four neighbouring lanes of a dot
 * product are one thread, so that a thread's codes of a block of 32 weights are one word and a warp's are
 * eight rows' pieces of 16 bytes. Each lane is still one chain of fused multiply-adds in increasing order,
 * and the tree adds 16 lanes as lanes.cuh does, the first half of it between four threads and the second half
 * within one.
 *
 * The words of MOEC_CUDA_AHEAD blocks are asked for before any is used. A code becomes a float without a
 * conversion: as the highest bits of the fraction of a number between 1 and 2, from which 1 and the zero
 * point, scaled likewise, are taken, which is exact. Codecs without words are read lane by lane, as in
 * decode.cuh. */
#ifndef MOEC_RUNTIME_CUDA_QUADS_CUH
#define MOEC_RUNTIME_CUDA_QUADS_CUH

#include "runtime/cuda/kernels/products.cuh"

#define MOEC_CUDA_QUAD  4                                  /* lanes of a thread, and threads of a row */
#define MOEC_CUDA_QUADS (MOEC_CUDA_BLOCK / MOEC_CUDA_QUAD) /* rows of a block */
#define MOEC_CUDA_AHEAD 4

__device__ static __forceinline__ uint32_t quad_of_block()
{
    return threadIdx.x / MOEC_CUDA_QUAD;
}

/* The first lane of the thread. */
__device__ static __forceinline__ uint32_t lane_of_quad()
{
    return threadIdx.x % MOEC_CUDA_QUAD * MOEC_CUDA_QUAD;
}

/* The tree over lanes of four threads: every thread has the sum. */
__device__ static __forceinline__ float quad_sum(const float lanes[MOEC_CUDA_QUAD])
{
    const uint32_t mask = 0xfu << (threadIdx.x & 28u);
    float sums[MOEC_CUDA_QUAD];
#pragma unroll
    for (int i = 0; i < MOEC_CUDA_QUAD; i++) {
        sums[i] = lanes[i] + __shfl_xor_sync(mask, lanes[i], 2); /* s[i] + s[i + 8] */
        sums[i] = sums[i] + __shfl_xor_sync(mask, sums[i], 1);   /* and 4 */
    }
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/* ---- words ---- */

template <int CODEC> struct quad_traits {
    static constexpr bool is_half = CODEC == MOEC_CUDA_F16 || CODEC == MOEC_CUDA_BF16;
    static constexpr bool is_int = CODEC == MOEC_CUDA_INT1 || CODEC == MOEC_CUDA_INT2 ||
                                   CODEC == MOEC_CUDA_INT3 || CODEC == MOEC_CUDA_INT4 ||
                                   CODEC == MOEC_CUDA_INT8;
    static constexpr bool has_words = is_half || is_int;
    static constexpr int n_words = is_half ? 4 : CODEC == MOEC_CUDA_INT3 || CODEC == MOEC_CUDA_INT8 ? 2 : 1;
};

/* A thread's part of a block: what memory has of it, and how it is read. */
template <int CODEC> struct quad_block {
    uint32_t words[quad_traits<CODEC>::n_words];
    float origin[2], step[2]; /* of integers: weight = (1 + code / 2^bits - origin) * step; of one bit the
                                 fraction has a code of 0 or 1, half of what it is */
};

/* Four bytes at a multiple of ALIGNMENT: 4 or 2. */
template <int ALIGNMENT> __device__ static __forceinline__ uint32_t load_word(const uint8_t *at)
{
    if (ALIGNMENT == 4)
        return *(const uint32_t *)at;
    return (uint32_t)((const uint16_t *)at)[0] | (uint32_t)((const uint16_t *)at)[1] << 16;
}

/* What addresses of a matrix's rows are multiples of; 1: they are not read by words. Rows of one scale each
 * are often 2 bytes longer than a multiple of 4. */
__device__ static __forceinline__ uint32_t alignment_of(const struct moec_cuda_matrix &matrix)
{
    const uint32_t low = (uint32_t)((uintptr_t)matrix.data | matrix.stride_bytes) & 3u;
    if (matrix.groups.scales % 2 != 0 || low % 2 != 0)
        return 1;
    return low == 0 ? 4 : 2;
}

/* Scale and origin of a group, for one half of a block. */
template <int CODEC>
__device__ static __forceinline__ void load_scale(const struct moec_cuda_matrix &matrix,
                                                  const struct coded_row &row, uint32_t group, int half,
                                                  struct quad_block<CODEC> &quad)
{
    constexpr int bits = (int)codec_traits<CODEC>::bits;
    constexpr float unit = (float)(1 << bits);
    const uint8_t *scales = row.bytes + matrix.groups.scales;
    const float scale = matrix.groups.is_nested ? (float)scales[2 + group] * row.factor
                                                : half_value(*(const uint16_t *)(scales + 2 * (size_t)group));
    quad.step[half] = scale * (bits == 1 ? 4 : unit);
    quad.origin[half] = bits == 1                 ? 1.25f
                        : matrix.groups.has_zeros ? 1 + (float)zero_of<CODEC>(matrix, row, group) * (1 / unit)
                                                  : 1.5f;
}

template <int CODEC>
__device__ static __forceinline__ void load_scales(const struct moec_cuda_matrix &matrix,
                                                   const struct coded_row &row, uint32_t block,
                                                   struct quad_block<CODEC> &quad)
{
    const uint32_t first = (block * MOEC_CUDA_WEIGHTS) >> matrix.groups.shift;
    load_scale<CODEC>(matrix, row, first, 0, quad);
    if (matrix.groups.shift < 5) { /* two groups of 16 */
        load_scale<CODEC>(matrix, row, first + 1, 1, quad);
        return;
    }
    quad.step[1] = quad.step[0];
    quad.origin[1] = quad.origin[0];
}

/* Bytes of a block's codes. */
template <int CODEC> __device__ static constexpr uint32_t block_bytes()
{
    return quad_traits<CODEC>::is_half ? 2 * MOEC_CUDA_WEIGHTS : 4 * codec_traits<CODEC>::bits;
}

/* Words of a whole block whose codes are at `at`. */
template <int CODEC, int ALIGNMENT>
__device__ static __forceinline__ void load_codes_of_quad(const uint8_t *at, uint32_t lane,
                                                          struct quad_block<CODEC> &quad)
{
    constexpr int last = quad_traits<CODEC>::n_words - 1;
    if (quad_traits<CODEC>::is_half) {
#pragma unroll
        for (int i = 0; i <= last; i++)
            quad.words[i] = load_word<ALIGNMENT>(at + 2 * lane + (i / 2) * (2 * MOEC_CUDA_LANES) + i % 2 * 4);
    } else if (CODEC == MOEC_CUDA_INT8) {
        quad.words[0] = load_word<ALIGNMENT>(at + lane);
        quad.words[last] = load_word<ALIGNMENT>(at + lane + MOEC_CUDA_LANES);
    } else if (CODEC == MOEC_CUDA_INT4) {
        quad.words[0] = load_word<ALIGNMENT>(at + lane);
    } else if (CODEC == MOEC_CUDA_INT1) {
        quad.words[0] = load_word<ALIGNMENT>(at) >> lane;
    } else {
        quad.words[0] = load_word<ALIGNMENT>(at + lane % 8) >> lane / 8 * 2;
        if (CODEC == MOEC_CUDA_INT3)
            quad.words[last] = load_word<ALIGNMENT>(at + 8) >> lane;
    }
}

/* ---- weights ---- */

/* `word`'s bits from `from` on, `bits` of them, to the bits from `to` on, which `under` has not. */
__device__ static __forceinline__ uint32_t put_bits(uint32_t word, int from, int bits, int to, uint32_t under)
{
    const uint32_t moved = from > to ? word >> (from - to) : word << (to - from), mask = ((1u << bits) - 1)
                                                                                         << to;
#if defined(__CUDACC__)
    uint32_t put; /* in one instruction, which the compiler makes two of for the sake of a register */
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(put) : "r"(moved), "r"(mask), "r"(under));
    return put;
#else
    return (moved & mask) | under;
#endif
}

/* Code of the thread's lane i, in the first half of the block or the second, as 1 + code / 2^bits. */
template <int CODEC>
__device__ static __forceinline__ float fraction_of(const struct quad_block<CODEC> &quad, int i, int half)
{
    constexpr int bits = (int)codec_traits<CODEC>::bits, last = quad_traits<CODEC>::n_words - 1;
    const uint32_t one = 0x3f800000u;
    if (CODEC == MOEC_CUDA_INT8)
        return moec_f32_from_bits(put_bits(quad.words[half * last], 8 * i, 8, 23 - bits, one));
    if (CODEC == MOEC_CUDA_INT4)
        return moec_f32_from_bits(put_bits(quad.words[0], 8 * i + 4 * half, 4, 23 - bits, one));
    if (CODEC == MOEC_CUDA_INT1)
        return moec_f32_from_bits(put_bits(quad.words[0], i + 16 * half, 1, 22, one));
    const uint32_t low = put_bits(quad.words[0], 8 * i + 4 * half, 2, 23 - bits, one);
    return moec_f32_from_bits(CODEC == MOEC_CUDA_INT3 ? put_bits(quad.words[last], i + 16 * half, 1, 22, low)
                                                      : low);
}

/* Weights of the thread's lanes: w[half][i] is column `lane` + 16 half + i. */
template <int CODEC>
__device__ static __forceinline__ void decode_quad(const struct quad_block<CODEC> &quad,
                                                   float w[2][MOEC_CUDA_QUAD])
{
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < MOEC_CUDA_QUAD; i++) {
            const uint32_t word = quad.words[(2 * half + i / 2) % quad_traits<CODEC>::n_words];
            if (CODEC == MOEC_CUDA_BF16)
                w[half][i] = moec_f32_from_bits(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
            else if (CODEC == MOEC_CUDA_F16)
                w[half][i] = half_value(i % 2 == 0 ? word & 0xffffu : word >> 16);
            else
                w[half][i] = (fraction_of<CODEC>(quad, i, half) - quad.origin[half]) * quad.step[half];
        }
}

/* The same of any codec, and of a block that the row ends in after n weights. */
template <int CODEC>
__device__ static __forceinline__ void decode_lanes(const struct moec_cuda_matrix &matrix,
                                                    struct coded_row &row, uint32_t block, uint32_t n,
                                                    uint32_t lane, float w[2][MOEC_CUDA_QUAD])
{
#pragma unroll
    for (uint32_t i = 0; i < MOEC_CUDA_QUAD; i++) {
        float pair[2];
        decode_pair<CODEC>(matrix, row, block, n, lane + i, pair);
        w[0][i] = pair[0];
        w[1][i] = pair[1];
    }
}

/* ---- dots ---- */

/* Four floats of a row. */
__device__ static __forceinline__ void load_floats(const float *at, bool is_aligned,
                                                   float out[MOEC_CUDA_QUAD])
{
#if defined(__CUDACC__)
    if (is_aligned) {
        const float4 all = *(const float4 *)at;
        out[0] = all.x;
        out[1] = all.y;
        out[2] = all.z;
        out[3] = all.w;
        return;
    }
#else
    (void)is_aligned;
#endif
#pragma unroll
    for (int i = 0; i < MOEC_CUDA_QUAD; i++)
        out[i] = at[i];
}

__device__ static __forceinline__ void add_quad(const float *x, bool is_aligned, bool has_second,
                                                const float w[2][MOEC_CUDA_QUAD], float acc[MOEC_CUDA_QUAD])
{
    float values[MOEC_CUDA_QUAD];
    load_floats(x, is_aligned, values);
#pragma unroll
    for (int i = 0; i < MOEC_CUDA_QUAD; i++)
        acc[i] = fmaf(values[i], w[0][i], acc[i]);
    if (!has_second)
        return;
    load_floats(x + MOEC_CUDA_LANES, is_aligned, values);
#pragma unroll
    for (int i = 0; i < MOEC_CUDA_QUAD; i++)
        acc[i] = fmaf(values[i], w[1][i], acc[i]);
}

/* Whole blocks, as many as come MOEC_CUDA_AHEAD at a time; returns the one behind them. SPAN of them share a
 * scale: MOEC_CUDA_AHEAD, 2 or 1. */
template <int CODEC, int ALIGNMENT, int SPAN>
__device__ static __forceinline__ uint32_t add_blocks_ahead(const struct moec_cuda_matrix &matrix,
                                                            const struct coded_row &row, const float *x,
                                                            float acc[MOEC_CUDA_QUAD])
{
    const uint32_t lane = lane_of_quad(), n_whole = matrix.columns / MOEC_CUDA_WEIGHTS;
    const bool is_aligned = ((uintptr_t)x & 15u) == 0;
    const uint8_t *codes = row.bytes;
    uint32_t block = 0;
    for (x += lane; block + MOEC_CUDA_AHEAD <= n_whole; block += MOEC_CUDA_AHEAD) {
        struct quad_block<CODEC> quads[MOEC_CUDA_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_AHEAD; i++)
            load_codes_of_quad<CODEC, ALIGNMENT>(codes + i * block_bytes<CODEC>(), lane, quads[i]);
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_AHEAD && quad_traits<CODEC>::is_int; i++) {
            if (i % SPAN == 0) {
                load_scales<CODEC>(matrix, row, block + i, quads[i]);
                continue;
            }
            quads[i].step[0] = quads[i].step[1] = quads[i - 1].step[0];
            quads[i].origin[0] = quads[i].origin[1] = quads[i - 1].origin[0];
        }
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_AHEAD; i++) {
            float w[2][MOEC_CUDA_QUAD];
            decode_quad<CODEC>(quads[i], w);
            add_quad(x + i * MOEC_CUDA_WEIGHTS, is_aligned, true, w, acc);
        }
        codes += MOEC_CUDA_AHEAD * block_bytes<CODEC>();
        x += MOEC_CUDA_AHEAD * MOEC_CUDA_WEIGHTS;
    }
    return block;
}

template <int CODEC, int ALIGNMENT>
__device__ static __forceinline__ uint32_t add_aligned_blocks(const struct moec_cuda_matrix &matrix,
                                                              const struct coded_row &row, const float *x,
                                                              float acc[MOEC_CUDA_QUAD])
{
    if (quad_traits<CODEC>::is_half || matrix.groups.shift >= 7)
        return add_blocks_ahead<CODEC, ALIGNMENT, MOEC_CUDA_AHEAD>(matrix, row, x, acc);
    if (matrix.groups.shift == 6)
        return add_blocks_ahead<CODEC, ALIGNMENT, 2>(matrix, row, x, acc);
    return add_blocks_ahead<CODEC, ALIGNMENT, 1>(matrix, row, x, acc);
}

template <int CODEC>
__device__ static __forceinline__ float dot_quad_of(const struct moec_cuda_matrix &matrix, uint32_t index,
                                                    const float *x)
{
    const uint32_t lane = lane_of_quad(), n_blocks = moec_cuda_blocks(matrix.columns, MOEC_CUDA_WEIGHTS);
    const bool is_aligned = ((uintptr_t)x & 15u) == 0;
    struct coded_row row = row_begin<CODEC>(matrix, index);
    float acc[MOEC_CUDA_QUAD] = {0, 0, 0, 0};
    uint32_t block = 0;
    if constexpr (quad_traits<CODEC>::has_words) {
        const uint32_t alignment = alignment_of(matrix);
        if (alignment == 4)
            block = add_aligned_blocks<CODEC, 4>(matrix, row, x, acc);
        else if (alignment == 2)
            block = add_aligned_blocks<CODEC, 2>(matrix, row, x, acc);
    }
    for (; block < n_blocks; block++) {
        const uint32_t left = matrix.columns - block * MOEC_CUDA_WEIGHTS;
        const uint32_t n = left < MOEC_CUDA_WEIGHTS ? left : MOEC_CUDA_WEIGHTS;
        float w[2][MOEC_CUDA_QUAD];
        decode_lanes<CODEC>(matrix, row, block, n, lane, w);
        add_quad(x + block * MOEC_CUDA_WEIGHTS + lane, is_aligned, n > MOEC_CUDA_LANES, w, acc);
    }
    return quad_sum(acc);
}

/* dot(x, row `index`), in each of the four threads. */
__device__ static __forceinline__ float dot_quad(const struct moec_cuda_matrix &matrix, uint32_t index,
                                                 const float *x)
{
    float sum = 0;
    FOR_CODEC(matrix.codec, (sum = dot_quad_of<CODEC>(matrix, index, x)))
    return sum;
}

/* ---- weighted sums ---- */

/* Sums of a thread's columns of a block: at[half][i] of column `lane` + 16 half + i. */
struct quad_sums {
    float at[2][MOEC_CUDA_QUAD];
};

__device__ static __forceinline__ void add_weighted(float factor, const float w[2][MOEC_CUDA_QUAD],
                                                    struct quad_sums &sums)
{
#pragma unroll
    for (int i = 0; i < 2 * MOEC_CUDA_QUAD; i++)
        sums.at[i / MOEC_CUDA_QUAD][i % MOEC_CUDA_QUAD] =
            fmaf(factor, w[i / MOEC_CUDA_QUAD][i % MOEC_CUDA_QUAD],
                 sums.at[i / MOEC_CUDA_QUAD][i % MOEC_CUDA_QUAD]);
}

template <int CODEC, int ALIGNMENT>
__device__ static __forceinline__ void load_quad(const struct moec_cuda_matrix &matrix, uint32_t index,
                                                 uint32_t block, uint32_t lane,
                                                 struct quad_block<CODEC> &quad)
{
    const struct coded_row row = row_begin<CODEC>(matrix, index);
    load_codes_of_quad<CODEC, ALIGNMENT>(row.bytes + (size_t)block * block_bytes<CODEC>(), lane, quad);
    if (quad_traits<CODEC>::is_int)
        load_scales<CODEC>(matrix, row, block, quad);
}

/* Rows from 0 on, as many as come MOEC_CUDA_AHEAD at a time, of a whole block; returns the one behind them.
 */
template <int CODEC, int ALIGNMENT>
__device__ static __forceinline__ uint32_t sum_rows_ahead(const struct moec_cuda_matrix &matrix,
                                                          uint32_t first, uint32_t n_rows, uint32_t block,
                                                          const float *h, struct quad_sums &sums)
{
    const uint32_t lane = lane_of_quad();
    uint32_t r = 0;
    for (; r + MOEC_CUDA_AHEAD <= n_rows; r += MOEC_CUDA_AHEAD) {
        struct quad_block<CODEC> quads[MOEC_CUDA_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_AHEAD; i++)
            load_quad<CODEC, ALIGNMENT>(matrix, first + r + i, block, lane, quads[i]);
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_AHEAD; i++) {
            float w[2][MOEC_CUDA_QUAD];
            decode_quad<CODEC>(quads[i], w);
            add_weighted(h[r + i], w, sums);
        }
    }
    return r;
}

/* Rows of a chunk, of at most 64: bit r of the two words says that h[r] is not 0. The same in the threads of
 * a quad. */
__device__ static __forceinline__ void find_rows(const float *h, uint32_t n_rows, uint32_t bits[2])
{
    const uint32_t mask = 0xfu << (threadIdx.x & 28u), quarter = threadIdx.x % MOEC_CUDA_QUAD,
                   from = quarter * (MOEC_CUDA_CHUNK / MOEC_CUDA_QUAD);
    uint32_t own = 0;
#pragma unroll
    for (uint32_t i = 0; i < MOEC_CUDA_CHUNK / MOEC_CUDA_QUAD; i++)
        own |= (uint32_t)(from + i < n_rows && h[from + i] != 0) << i;
    own <<= quarter % 2 * (MOEC_CUDA_CHUNK / MOEC_CUDA_QUAD);
    own |= __shfl_xor_sync(mask, own, 1);
    const uint32_t other = __shfl_xor_sync(mask, own, 2);
    bits[0] = quarter < 2 ? own : other;
    bits[1] = quarter < 2 ? other : own;
}

__device__ static __forceinline__ uint32_t lowest_bit(uint32_t bits)
{
#if defined(__CUDACC__)
    return (uint32_t)__ffs((int)bits) - 1;
#else
    return (uint32_t)__builtin_ctz(bits);
#endif
}

/* Which rows of a matrix a sum is over: n from `first` on, or those that stand at places[0 .. n - 1]. With
 * `skips`, rows whose factor is 0 are not read, without which there are no places. */
struct quad_rows {
    uint32_t first, n;
    const uint32_t *places;
    bool skips;
};

__device__ static __forceinline__ uint32_t row_of(const struct quad_rows &rows, uint32_t r)
{
    return rows.places != NULL ? rows.places[r] : rows.first + r;
}

/* Rows of which `bits` has a bit, from `from` on, MOEC_CUDA_AHEAD at a time, of a whole block. */
template <int CODEC, int ALIGNMENT>
__device__ static __forceinline__ void
sum_found_rows(const struct moec_cuda_matrix &matrix, const struct quad_rows &rows, uint32_t from,
               uint32_t bits, uint32_t block, const float *h, struct quad_sums &sums)
{
    while (bits != 0) {
        struct quad_block<CODEC> quads[MOEC_CUDA_AHEAD];
        float factors[MOEC_CUDA_AHEAD];
        bool is_there[MOEC_CUDA_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_AHEAD; i++) {
            is_there[i] = bits != 0;
            if (!is_there[i])
                continue;
            const uint32_t r = from + lowest_bit(bits);
            bits &= bits - 1;
            factors[i] = h[r];
            load_quad<CODEC, ALIGNMENT>(matrix, row_of(rows, r), block, lane_of_quad(), quads[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < MOEC_CUDA_AHEAD; i++) {
            float w[2][MOEC_CUDA_QUAD];
            if (!is_there[i])
                continue;
            decode_quad<CODEC>(quads[i], w);
            add_weighted(factors[i], w, sums);
        }
    }
}

/* A whole block's columns, as far as they are summed by words; returns the row behind. */
template <int CODEC, int ALIGNMENT>
__device__ static __forceinline__ uint32_t sum_aligned_rows(const struct moec_cuda_matrix &matrix,
                                                            const struct quad_rows &rows, uint32_t block,
                                                            const float *h, struct quad_sums &sums)
{
    uint32_t bits[2];
    if (!rows.skips)
        return sum_rows_ahead<CODEC, ALIGNMENT>(matrix, rows.first, rows.n, block, h, sums);
    find_rows(h, rows.n, bits);
    sum_found_rows<CODEC, ALIGNMENT>(matrix, rows, 0, bits[0], block, h, sums);
    sum_found_rows<CODEC, ALIGNMENT>(matrix, rows, 32, bits[1], block, h, sums);
    return rows.n;
}

template <int CODEC>
__device__ static __forceinline__ void sum_quad_of(const struct moec_cuda_matrix &matrix,
                                                   const struct quad_rows &rows, uint32_t block,
                                                   const float *h, struct quad_sums &sums)
{
    const uint32_t left = matrix.columns - block * MOEC_CUDA_WEIGHTS, lane = lane_of_quad();
    const uint32_t n = left < MOEC_CUDA_WEIGHTS ? left : MOEC_CUDA_WEIGHTS;
    uint32_t r = 0;
#pragma unroll
    for (int i = 0; i < 2 * MOEC_CUDA_QUAD; i++)
        sums.at[i / MOEC_CUDA_QUAD][i % MOEC_CUDA_QUAD] = 0;
    if constexpr (quad_traits<CODEC>::has_words) {
        const uint32_t alignment = n == MOEC_CUDA_WEIGHTS ? alignment_of(matrix) : 1;
        if (alignment == 4)
            r = sum_aligned_rows<CODEC, 4>(matrix, rows, block, h, sums);
        else if (alignment == 2)
            r = sum_aligned_rows<CODEC, 2>(matrix, rows, block, h, sums);
    }
    for (; r < rows.n; r++) {
        float w[2][MOEC_CUDA_QUAD];
        if (rows.skips && h[r] == 0)
            continue;
        struct coded_row row = row_begin<CODEC>(matrix, row_of(rows, r));
        decode_lanes<CODEC>(matrix, row, block, n, lane, w);
        add_weighted(h[r], w, sums);
    }
}

/* One chunk of a block's columns: the sum over r < rows.n of h[r] times a row. */
__device__ static __forceinline__ void sum_quad(const struct moec_cuda_matrix &matrix,
                                                const struct quad_rows &rows, uint32_t block, const float *h,
                                                struct quad_sums &sums)
{
    FOR_CODEC(matrix.codec, (sum_quad_of<CODEC>(matrix, rows, block, h, sums)))
}

#endif
