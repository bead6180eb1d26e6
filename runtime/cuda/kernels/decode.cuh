/* Codes into weights in registers, the same values as formats/codec. A thread of a half warp takes two
 * weights of each block of 32: those that the layouts put into one byte or word of it, lane and lane + 16. */
#ifndef MOEC_RUNTIME_CUDA_DECODE_CUH
#define MOEC_RUNTIME_CUDA_DECODE_CUH

#include "formats/base/half.h"
#include "formats/codec/levels.h"
#include "formats/codec/shift_levels.h"
#include "runtime/cuda/blocks/dialect.h"
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/cuda/kernels/lanes.cuh"

#define MOEC_CUDA_WEIGHTS 32 /* of a block: MOEC_CODEC_BLOCK */

#define OUTLIER_SPAN   128 /* MOEC_CODEC_OUTLIER_SPAN */
#define OUTLIER_BLOCKS (OUTLIER_SPAN / MOEC_CUDA_WEIGHTS)
#define NO_GROUP       0xffffffffu

__device__ static const float gaussian2[] = {MOEC_LEVELS_GAUSSIAN2};
__device__ static const float gaussian3[] = {MOEC_LEVELS_GAUSSIAN3};
__device__ static const float gaussian4[] = {MOEC_LEVELS_GAUSSIAN4};
__device__ static const float gaussian8[] = {MOEC_LEVELS_GAUSSIAN8};
__device__ static const float logarithmic2[] = {MOEC_LEVELS_LOGARITHMIC2};
__device__ static const float logarithmic3[] = {MOEC_LEVELS_LOGARITHMIC3};
__device__ static const float logarithmic4[] = {MOEC_LEVELS_LOGARITHMIC4};
__device__ static const float logarithmic8[] = {MOEC_LEVELS_LOGARITHMIC8};
__device__ static const float mxfp4_levels[] = {MOEC_LEVELS_MXFP4};
__device__ static const float trellis_levels[] = {MOEC_LEVELS_TRELLIS};
__device__ static const int8_t shift2[] = {MOEC_SHIFT_2_LEVELS};
__device__ static const int8_t shift3[] = {MOEC_SHIFT_3_LEVELS};
__device__ static const int8_t shift4[] = {MOEC_SHIFT_4_LEVELS};

/* A row as a thread reads it. */
struct coded_row {
    const uint8_t *bytes;
    const uint8_t *block_row; /* of MXFP4_DOWN: the first of the 32 rows that share scales */
    float factor;             /* nested: what the bytes of groups are multiplied with; paths: the scale */
    uint32_t group; /* whose scale and zero stand below, of the thread's first weight and its second */
    float scale[2];
    int zero[2];
};

__device__ static __forceinline__ uint32_t load_u16(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8;
}

__device__ static __forceinline__ uint32_t load_u32(const uint8_t *at)
{
    return load_u16(at) | load_u16(at + 2) << 16;
}

/* The value of F16's bits, which is exact. */
__device__ static __forceinline__ float half_value(uint32_t bits)
{
#if defined(__CUDACC__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)bits));
    return value;
#else
    return moec_f16_to_f32((uint16_t)bits);
#endif
}

__device__ static __forceinline__ float load_f16(const uint8_t *at)
{
    return half_value(load_u16(at));
}

template <int CODEC> struct codec_traits {
    static constexpr bool is_float =
        CODEC == MOEC_CUDA_F32 || CODEC == MOEC_CUDA_F16 || CODEC == MOEC_CUDA_BF16;
    static constexpr bool has_levels = CODEC >= MOEC_CUDA_LEVELS2 && CODEC <= MOEC_CUDA_LEVELS8;
    static constexpr bool is_mxfp4 = CODEC == MOEC_CUDA_MXFP4 || CODEC == MOEC_CUDA_MXFP4_DOWN;
    static constexpr bool is_shift = CODEC >= MOEC_CUDA_SHIFT2 && CODEC <= MOEC_CUDA_SHIFT4;
    static constexpr uint32_t bits = is_shift                  ? 2 + CODEC - MOEC_CUDA_SHIFT2
                                     : CODEC == MOEC_CUDA_INT1 ? 1
                                     : CODEC == MOEC_CUDA_INT2 || CODEC == MOEC_CUDA_LEVELS2 ? 2
                                     : CODEC == MOEC_CUDA_INT3 || CODEC == MOEC_CUDA_LEVELS3 ? 3
                                     : CODEC == MOEC_CUDA_INT5                               ? 5
                                     : CODEC == MOEC_CUDA_INT6                               ? 6
                                     : CODEC == MOEC_CUDA_INT8 || CODEC == MOEC_CUDA_LEVELS8 ? 8
                                                                                             : 4;
};

/* ---- codes ---- */

/* Codes `lane` and `lane` + 16 of a block (formats/codec/codec.h has the layouts). */
template <uint32_t BITS>
__device__ static __forceinline__ void load_codes(const uint8_t *block, uint32_t lane, int codes[2])
{
    uint32_t low = 0, high = 0;
    if (BITS == 8) {
        low = block[lane];
        high = block[lane + 16];
    } else if (BITS >= 4) {
        low = block[lane] & 15u;
        high = block[lane] >> 4;
    } else if (BITS == 1) {
        const uint32_t bits = load_u32(block) >> lane;
        low = (bits & 1u) << 1;
        high = (bits >> 16 & 1u) << 1;
    } else {
        const uint32_t pairs = (uint32_t)block[lane % 8] >> lane / 8 * 2;
        low = pairs & 3u;
        high = pairs >> 4 & 3u;
    }
    if (BITS == 3 || BITS == 5) {
        const uint32_t bits = load_u32(block + (BITS == 3 ? 8 : 16)) >> lane, place = BITS - 1;
        low |= (bits & 1u) << place;
        high |= (bits >> 16 & 1u) << place;
    }
    if (BITS == 6) {
        const uint32_t pairs = (uint32_t)block[16 + lane % 8] >> lane / 8 * 2;
        low |= (pairs & 3u) << 4;
        high |= (pairs >> 4 & 3u) << 4;
    }
    codes[0] = (int)low;
    codes[1] = (int)high;
}

template <uint32_t BITS> __device__ static __forceinline__ const float *levels_of(bool is_logarithmic)
{
    switch (BITS) {
    case 2:
        return is_logarithmic ? logarithmic2 : gaussian2;
    case 3:
        return is_logarithmic ? logarithmic3 : gaussian3;
    case 4:
        return is_logarithmic ? logarithmic4 : gaussian4;
    default:
        return is_logarithmic ? logarithmic8 : gaussian8;
    }
}

/* ---- scales and zeros ---- */

/* 2^(byte - 127). */
__device__ static __forceinline__ float mxfp4_scale(uint32_t byte)
{
    return moec_f32_from_bits(byte << 23 | (uint32_t)(byte == 0) << 22);
}

template <int CODEC>
__device__ static __forceinline__ float scale_of(const struct moec_cuda_matrix &matrix,
                                                 const struct coded_row &row, uint32_t group)
{
    const uint8_t *scales = row.bytes + matrix.groups.scales;
    return matrix.groups.is_nested ? (float)scales[2 + group] * row.factor
                                   : load_f16(scales + 2 * (size_t)group);
}

template <int CODEC>
__device__ static __forceinline__ int zero_of(const struct moec_cuda_matrix &matrix,
                                              const struct coded_row &row, uint32_t group)
{
    const uint32_t bits = codec_traits<CODEC>::bits;
    const uint8_t *zeros = row.bytes + matrix.groups.zeros;
    if (!matrix.groups.has_zeros)
        return 1 << (bits - 1);
    if (!matrix.groups.is_nested)
        return zeros[group];
    const uint32_t shift = group * bits % 8;
    zeros += group * bits / 8;
    const uint32_t pair = shift + bits > 8 ? load_u16(zeros) : zeros[0];
    return (int)(pair >> shift & ((1u << bits) - 1));
}

template <int CODEC>
__device__ static __forceinline__ struct coded_row row_begin(const struct moec_cuda_matrix &matrix,
                                                             uint32_t row)
{
    struct coded_row begun;
    begun.bytes = matrix.data + row * matrix.stride_bytes;
    begun.block_row = matrix.data + (row - row % MOEC_CUDA_WEIGHTS) * matrix.stride_bytes;
    begun.group = NO_GROUP;
    begun.factor = 0;
    if (CODEC == MOEC_CUDA_TRELLIS || codec_traits<CODEC>::is_shift)
        begun.factor = load_f16(begun.bytes + matrix.groups.scales);
    else if (matrix.groups.is_nested)
        begun.factor = load_f16(begun.bytes + matrix.groups.scales) * 0x1p-8f;
    return begun;
}

/* Scales and zeros of the thread's weights of a block, unless they stand there. A block of two groups of 16
 * may lack the second, when the row ends before. */
template <int CODEC>
__device__ static __forceinline__ void enter_block(const struct moec_cuda_matrix &matrix,
                                                   struct coded_row &row, uint32_t block)
{
    const uint32_t first = (block * MOEC_CUDA_WEIGHTS) >> matrix.groups.shift;
    uint32_t second = (block * MOEC_CUDA_WEIGHTS + MOEC_CUDA_LANES) >> matrix.groups.shift;
    if (first == row.group)
        return;
    second = second < matrix.groups.n ? second : first;
    row.group = first;
    row.scale[0] = row.scale[1] = scale_of<CODEC>(matrix, row, first);
    row.zero[0] = row.zero[1] = zero_of<CODEC>(matrix, row, first);
    if (second != first) {
        row.scale[1] = scale_of<CODEC>(matrix, row, second);
        row.zero[1] = zero_of<CODEC>(matrix, row, second);
    }
}

/* ---- blocks ---- */

template <int CODEC>
__device__ static __forceinline__ float load_float(const struct moec_cuda_matrix &matrix, const uint8_t *row,
                                                   uint32_t column)
{
    if (CODEC == MOEC_CUDA_F32) {
        const uint8_t *at = row + 4 * (size_t)column;
        return matrix.is_aligned ? *(const float *)at : moec_f32_from_bits(load_u32(at));
    }
    const uint8_t *at = row + 2 * (size_t)column;
    const uint16_t half = matrix.is_aligned ? *(const uint16_t *)at : (uint16_t)load_u16(at);
    return CODEC == MOEC_CUDA_F16 ? half_value(half) : moec_bf16_to_f32(half);
}

__device__ static __forceinline__ void load_trellis(const uint8_t *bytes, uint32_t block, uint32_t lane,
                                                    float scale, float out[2])
{
    const uint8_t *at = bytes + block * 8;
    const uint32_t coded = load_u32(at), free_bits = load_u32(at + 4),
                   before = block > 0 ? load_u32(at - 8) : 0;
    const uint64_t both = (uint64_t)coded << 32 | before; /* as moec_trellis_words */
    const uint32_t z1 = coded ^ (uint32_t)(both >> 31) ^ (uint32_t)(both >> 26);
    const uint32_t z0 = (uint32_t)(both >> 30) ^ (uint32_t)(both >> 28);
    for (uint32_t i = 0; i < 2; i++, lane += MOEC_CUDA_LANES)
        out[i] =
            trellis_levels[(free_bits >> lane & 1) << 2 | (z1 >> lane & 1) << 1 | (z0 >> lane & 1)] * scale;
}

/* Bit `bit` of the number made of a window, whose bits ROWS names, the lowest bit's in the highest byte. */
template <uint64_t ROWS>
__device__ static __forceinline__ uint32_t shift_place(uint32_t window, uint32_t n_bits)
{
    uint32_t place = 0;
    for (uint32_t bit = 0; bit < n_bits; bit++) {
        uint32_t parity = window & (uint32_t)(ROWS >> (56 - 8 * bit)) & 255u;
        parity ^= parity >> 4;
        place |= (0x6996u >> (parity & 15u) & 1u) << bit;
    }
    return place;
}

/* As moec_shift_level. */
template <uint32_t BITS>
__device__ static __forceinline__ float shift_level(const uint8_t *block, bool is_first, uint32_t i)
{
    const uint8_t *coded = block + (4 * BITS - 8) + i / 4;
    const uint32_t before = i >= 4 ? coded[-1] : is_first ? 0 : block[-1];
    const uint32_t window = ((uint32_t)coded[0] << 8 | before) >> (2 + i % 4 * 2) & 255u;
    if (BITS == 2)
        return shift2[shift_place<MOEC_SHIFT_2_ROWS>(window, 6)];
    if (BITS == 3)
        return shift3[((uint32_t)block[i / 8] >> i % 8 & 1u) << 5 |
                      shift_place<MOEC_SHIFT_3_ROWS>(window, 5)];
    return shift4[((uint32_t)block[i % 8] >> i / 8 * 2 & 3u) << 5 |
                  shift_place<MOEC_SHIFT_4_ROWS>(window, 5)];
}

/* An outlier takes the place of the weight that it stands for. */
__device__ static __forceinline__ void put_outlier(const struct moec_cuda_matrix &matrix, const uint8_t *row,
                                                   uint32_t block, uint32_t lane, float out[2])
{
    const uint32_t span = block / OUTLIER_BLOCKS, first = block % OUTLIER_BLOCKS * MOEC_CUDA_WEIGHTS + lane;
    const uint8_t *outliers = row + matrix.outliers.at;
    const uint32_t place = outliers[2 * matrix.outliers.n + span];
    if (place == first)
        out[0] = load_f16(outliers + 2 * span);
    if (place == first + MOEC_CUDA_LANES)
        out[1] = load_f16(outliers + 2 * span);
}

/* Weights `lane` and `lane` + 16 of a block, of which n are in the row: 0 past its end. */
template <int CODEC>
__device__ static __forceinline__ void decode_pair(const struct moec_cuda_matrix &matrix,
                                                   struct coded_row &row, uint32_t block, uint32_t n,
                                                   uint32_t lane, float out[2])
{
    typedef codec_traits<CODEC> traits;
    int codes[2];
    if (traits::is_float) {
        const uint32_t at = block * MOEC_CUDA_WEIGHTS + lane;
        out[0] = lane < n ? load_float<CODEC>(matrix, row.bytes, at) : 0;
        out[1] = lane + MOEC_CUDA_LANES < n ? load_float<CODEC>(matrix, row.bytes, at + MOEC_CUDA_LANES) : 0;
        return;
    }
    if (CODEC == MOEC_CUDA_TRELLIS) {
        load_trellis(row.bytes, block, lane, row.factor, out);
    } else if (traits::is_shift) {
        const uint8_t *at = row.bytes + (size_t)block * (4 * traits::bits);
        out[0] = shift_level<traits::bits>(at, block == 0, lane) * row.factor;
        out[1] = shift_level<traits::bits>(at, block == 0, lane + MOEC_CUDA_LANES) * row.factor;
    } else {
        load_codes<traits::bits>(row.bytes + (size_t)block * (4 * traits::bits), lane, codes);
        if (CODEC == MOEC_CUDA_MXFP4) {
            const float scale = mxfp4_scale(row.bytes[matrix.groups.scales + block]);
            out[0] = mxfp4_levels[codes[0]] * scale;
            out[1] = mxfp4_levels[codes[1]] * scale;
        } else if (CODEC == MOEC_CUDA_MXFP4_DOWN) {
            const uint8_t *scales = row.block_row + lane * matrix.stride_bytes + matrix.groups.scales + block;
            out[0] = mxfp4_levels[codes[0]] * mxfp4_scale(scales[0]);
            out[1] = mxfp4_levels[codes[1]] * mxfp4_scale(scales[MOEC_CUDA_LANES * matrix.stride_bytes]);
        } else {
            enter_block<CODEC>(matrix, row, block);
            for (int i = 0; i < 2; i++) {
                const float value = traits::has_levels
                                        ? levels_of<traits::bits>(matrix.groups.is_logarithmic)[codes[i]]
                                        : (float)(codes[i] - row.zero[i]);
                out[i] = value * row.scale[i];
            }
            if (traits::has_levels && matrix.outliers.n > 0)
                put_outlier(matrix, row.bytes, block, lane, out);
        }
    }
    out[0] = lane < n ? out[0] : 0;
    out[1] = lane + MOEC_CUDA_LANES < n ? out[1] : 0;
}

/* FOR_CODEC(codec, call): `call`, in which CODEC is the constant that `codec` has at run time. */
#define CASE_OF_CODEC(name, call)                                                                            \
    case name: {                                                                                             \
        constexpr int CODEC = name;                                                                          \
        call;                                                                                                \
        break;                                                                                               \
    }
#define FOR_CODEC(codec, call)                                                                               \
    switch (codec) {                                                                                         \
        CASE_OF_CODEC(MOEC_CUDA_F32, call)                                                                   \
        CASE_OF_CODEC(MOEC_CUDA_F16, call)                                                                   \
        CASE_OF_CODEC(MOEC_CUDA_BF16, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_INT1, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_INT2, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_INT3, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_INT4, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_INT5, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_INT6, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_INT8, call)                                                                  \
        CASE_OF_CODEC(MOEC_CUDA_LEVELS2, call)                                                               \
        CASE_OF_CODEC(MOEC_CUDA_LEVELS3, call)                                                               \
        CASE_OF_CODEC(MOEC_CUDA_LEVELS4, call)                                                               \
        CASE_OF_CODEC(MOEC_CUDA_LEVELS8, call)                                                               \
        CASE_OF_CODEC(MOEC_CUDA_TRELLIS, call)                                                               \
        CASE_OF_CODEC(MOEC_CUDA_SHIFT2, call)                                                                \
        CASE_OF_CODEC(MOEC_CUDA_SHIFT3, call)                                                                \
        CASE_OF_CODEC(MOEC_CUDA_SHIFT4, call)                                                                \
        CASE_OF_CODEC(MOEC_CUDA_MXFP4, call)                                                                 \
        CASE_OF_CODEC(MOEC_CUDA_MXFP4_DOWN, call)                                                            \
    }

#endif
