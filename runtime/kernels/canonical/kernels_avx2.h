/* The kernels of AVX2, FMA and F16C, where 16 lanes are two registers: compiled once for these (kernels_avx2.c), and
 * once with GFNI besides (kernels_avx2_gfni.c), which makes marks of shift codes in fewer operations. */
#ifndef MOEC_RUNTIME_KERNELS_AVX2_H
#define MOEC_RUNTIME_KERNELS_AVX2_H

#include "runtime/kernels/kernels.h"
#include "runtime/kernels/lanes/lanes_avx2.h"
#include "runtime/kernels/lanes/shift_x86.h"

#define SUM_VECTORS    1
#define ROWS_AT_ONCE   4
#define CODE_ROWS      4
#define FEW_ROWS       2
#define FEW_TOKENS     3
#define SET_LIFTS      0
#define SET_BLOCKS     4
#define SET_CONTIGUOUS 0
#define SET_ACROSS     0

typedef __m256 trellis_table;

/* ---- decoding ---- */

/* Fused (INT4, INT5, INT6, INT8): weight = code * first + second with first = scale, second = -zero * scale.
 * A code less its zero has 9 bits and an F16 scale 11, so products are exact and one fused operation gives
 * what the definition gives in two. Scales of scales have 19 bits, so there first = scale, second = zero, and
 * the definition is followed. INT1: first is the weight of code 0, second that of code 2. INT2: first is the
 * table of the four weights; INT3: first that of codes 0..3, second that of 4..7. Dictionaries of INT4: first
 * is the table of codes 0..7, second that of 8..15. */
struct decoder {
    __m256 first;
    __m256 second;
    const float *levels; /* of a dictionary of INT8, which is looked up in memory; first = scale */
};

INLINE bool dtype_has_table(const int dtype)
{
    return PLAIN(dtype) == MOEC_DTYPE_INT1 || PLAIN(dtype) == MOEC_DTYPE_INT2 ||
           PLAIN(dtype) == MOEC_DTYPE_INT3;
}

INLINE bool decoder_needs_regular(const int dtype)
{
    return dtype == MOEC_DTYPE_INT4 || dtype == MOEC_DTYPE_INT5 || dtype == MOEC_DTYPE_INT6 ||
           dtype == MOEC_DTYPE_INT8;
}

INLINE struct decoder decoder_make(const int dtype, float scale, float zero)
{
    __m256 factor = _mm256_set1_ps(scale);
    __m256 origin = _mm256_set1_ps(zero);
    if (!dtype_has_table(dtype))
        return (struct decoder){.first = factor, .second = origin};
    if (PLAIN(dtype) == MOEC_DTYPE_INT1)
        return (struct decoder){.first = _mm256_mul_ps(_mm256_sub_ps(_mm256_setzero_ps(), origin), factor),
                                .second = _mm256_mul_ps(_mm256_sub_ps(_mm256_set1_ps(2), origin), factor)};
    const __m256 codes = _mm256_setr_ps(0, 1, 2, 3, 0, 1, 2, 3), upper = _mm256_set1_ps(4.0f);
    return (struct decoder){.first = _mm256_mul_ps(_mm256_sub_ps(codes, origin), factor),
                            .second =
                                _mm256_mul_ps(_mm256_sub_ps(_mm256_add_ps(codes, upper), origin), factor)};
}

INLINE struct decoder decoder_of_levels(const int dtype, float scale, const float *levels)
{
    const __m256 factor = _mm256_set1_ps(scale);
    switch (dtype) {
    case MOEC_DTYPE_INT2 | DICTIONARY:
    case MOEC_DTYPE_INT3 | DICTIONARY: { /* four levels at a time, in both halves */
        const __m128 lower = _mm_loadu_ps(levels);
        const __m128 upper = dtype == (MOEC_DTYPE_INT3 | DICTIONARY) ? _mm_loadu_ps(levels + 4) : lower;
        return (struct decoder){.first = _mm256_mul_ps(_mm256_set_m128(lower, lower), factor),
                                .second = _mm256_mul_ps(_mm256_set_m128(upper, upper), factor)};
    }
    case MOEC_DTYPE_INT4 | DICTIONARY:
        return (struct decoder){.first = _mm256_mul_ps(_mm256_loadu_ps(levels), factor),
                                .second = _mm256_mul_ps(_mm256_loadu_ps(levels + 8), factor)};
    default:
        return (struct decoder){.first = factor, .levels = levels};
    }
}

INLINE __m256 weights_of(const int dtype, __m256i codes, const struct decoder *decoder)
{
    const __m256 values = _mm256_cvtepi32_ps(codes);
    if (decoder_needs_regular(dtype))
        return _mm256_fmadd_ps(values, decoder->first, decoder->second);
    return _mm256_mul_ps(_mm256_sub_ps(values, decoder->second), decoder->first);
}

/* The tables, of the two halves of a block, are looked up with the low two bits of each lane. */
INLINE void decode_int2(const uint8_t *bytes, __m256 lower, __m256 upper, lanes out[2])
{
    __m256i v = eight_bytes(bytes);
    out[0] = (lanes){_mm256_permutevar_ps(lower, v), _mm256_permutevar_ps(lower, _mm256_srli_epi32(v, 2))};
    out[1] = (lanes){_mm256_permutevar_ps(upper, _mm256_srli_epi32(v, 4)),
                     _mm256_permutevar_ps(upper, _mm256_srli_epi32(v, 6))};
}

/* Takes b where bit i of `bits` is set, i = from, from - 1, ... counted down from the sign bit. */
INLINE __m256 choose(__m256 a, __m256 b, __m256i bits, const int from)
{
    __m256i shifts =
        _mm256_sub_epi32(_mm256_set1_epi32(31 - from), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_sllv_epi32(bits, shifts)));
}

INLINE void decode_int1(const uint8_t *bytes, const struct decoder *lower, const struct decoder *upper,
                        lanes out[2])
{
    int32_t all;
    memcpy(&all, bytes, sizeof all);
    const __m256i bits = _mm256_set1_epi32(all);
    out[0] =
        (lanes){choose(lower->first, lower->second, bits, 0), choose(lower->first, lower->second, bits, 8)};
    out[1] =
        (lanes){choose(upper->first, upper->second, bits, 16), choose(upper->first, upper->second, bits, 24)};
}

INLINE void decode_int3(const uint8_t *bytes, const struct decoder *lower, const struct decoder *upper,
                        lanes out[2])
{
    int32_t high_bits;
    memcpy(&high_bits, bytes + 8, sizeof high_bits);
    __m256i bits = _mm256_set1_epi32(high_bits);
    lanes a[2], b[2];
    decode_int2(bytes, lower->first, upper->first, a);
    decode_int2(bytes, lower->second, upper->second, b);
    out[0] = (lanes){choose(a[0].low, b[0].low, bits, 0), choose(a[0].high, b[0].high, bits, 8)};
    out[1] = (lanes){choose(a[1].low, b[1].low, bits, 16), choose(a[1].high, b[1].high, bits, 24)};
}

/* Eight codes at a time; the first four bits of all, of which INT5 and INT6 have more. */
INLINE void four_bit_codes(const uint8_t *bytes, __m256i codes[4])
{
    const __m256i low_bits = _mm256_set1_epi32(15), a = eight_bytes(bytes), b = eight_bytes(bytes + 8);
    codes[0] = _mm256_and_si256(a, low_bits);
    codes[1] = _mm256_and_si256(b, low_bits);
    codes[2] = _mm256_srli_epi32(a, 4);
    codes[3] = _mm256_srli_epi32(b, 4);
}

/* Bit 4 of code i of eight is bit i of a byte. */
INLINE void add_fifth_bits(const uint8_t *bytes, __m256i codes[4])
{
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), fifth = _mm256_set1_epi32(16);
    UNROLL
    for (int i = 0; i < 4; i++) {
        const __m256i bits = _mm256_srlv_epi32(_mm256_set1_epi32(bytes[i] << 4), places);
        codes[i] = _mm256_or_si256(codes[i], _mm256_and_si256(bits, fifth));
    }
}

/* Bits 4 and 5 lie as the codes of INT2 do. */
INLINE void add_upper_bits(const uint8_t *bytes, __m256i codes[4])
{
    const __m256i upper = _mm256_set1_epi32(48), v = eight_bytes(bytes);
    codes[0] = _mm256_or_si256(codes[0], _mm256_and_si256(_mm256_slli_epi32(v, 4), upper));
    codes[1] = _mm256_or_si256(codes[1], _mm256_and_si256(_mm256_slli_epi32(v, 2), upper));
    codes[2] = _mm256_or_si256(codes[2], _mm256_and_si256(v, upper));
    codes[3] = _mm256_or_si256(codes[3], _mm256_and_si256(_mm256_srli_epi32(v, 2), upper));
}

INLINE void decode_even_steps(const int dtype, const uint8_t *bytes, const struct decoder *decoders,
                              lanes out[2])
{
    const struct decoder *lower = &decoders[0], *upper = &decoders[UPPER(dtype)];
    __m256i codes[4];
    if (PLAIN(dtype) == MOEC_DTYPE_INT8) {
        UNROLL
        for (int i = 0; i < 4; i++)
            codes[i] = eight_bytes(bytes + (size_t)8 * (size_t)i);
    } else {
        four_bit_codes(bytes, codes);
    }
    if (PLAIN(dtype) == MOEC_DTYPE_INT5)
        add_fifth_bits(bytes + 16, codes);
    if (PLAIN(dtype) == MOEC_DTYPE_INT6)
        add_upper_bits(bytes + 16, codes);
    out[0] = (lanes){weights_of(dtype, codes[0], lower), weights_of(dtype, codes[1], lower)};
    out[1] = (lanes){weights_of(dtype, codes[2], upper), weights_of(dtype, codes[3], upper)};
}

/* Bit 3 of a code chooses between the two tables. */
INLINE __m256 level_of(__m256i codes, const struct decoder *decoder)
{
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(decoder->first, codes),
                            _mm256_permutevar8x32_ps(decoder->second, codes),
                            _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}

INLINE void decode_levels4(const uint8_t *bytes, const struct decoder *decoder, lanes out[2])
{
    const __m256i a = eight_bytes(bytes), b = eight_bytes(bytes + 8);
    out[0] = (lanes){level_of(a, decoder), level_of(b, decoder)};
    out[1] = (lanes){level_of(_mm256_srli_epi32(a, 4), decoder), level_of(_mm256_srli_epi32(b, 4), decoder)};
}

INLINE __m256 gathered(const uint8_t *bytes, const struct decoder *decoder)
{
    return _mm256_mul_ps(_mm256_i32gather_ps(decoder->levels, eight_bytes(bytes), 4), decoder->first);
}

/* A BF16 is the upper half of an F32; a shuffle within the halves of a register puts eight of them there. */
INLINE __m256 from_bf16(const uint8_t *bytes)
{
    const __m256i picks = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8,
                                           9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(eight_halves(bytes)), picks));
}

INLINE void decode_block(const int dtype, const uint8_t *bytes, const struct decoder *decoders, lanes out[2])
{
    const struct decoder *decoder = &decoders[0], *upper = &decoders[UPPER(dtype)];
    switch (dtype) {
    case MOEC_DTYPE_F32:
        out[0] = lanes_load((const float *)(const void *)bytes);
        out[1] = lanes_load((const float *)(const void *)(bytes + 64));
        break;
    case MOEC_DTYPE_F16:
        out[0] = (lanes){_mm256_cvtph_ps(eight_halves(bytes)), _mm256_cvtph_ps(eight_halves(bytes + 16))};
        out[1] =
            (lanes){_mm256_cvtph_ps(eight_halves(bytes + 32)), _mm256_cvtph_ps(eight_halves(bytes + 48))};
        break;
    case MOEC_DTYPE_BF16:
        out[0] = (lanes){from_bf16(bytes), from_bf16(bytes + 16)};
        out[1] = (lanes){from_bf16(bytes + 32), from_bf16(bytes + 48)};
        break;
    case MOEC_DTYPE_INT4 | DICTIONARY:
        decode_levels4(bytes, decoder, out);
        break;
    case MOEC_DTYPE_INT8 | DICTIONARY:
        out[0] = (lanes){gathered(bytes, decoder), gathered(bytes + 8, decoder)};
        out[1] = (lanes){gathered(bytes + 16, decoder), gathered(bytes + 24, decoder)};
        break;
    default:
        if (PLAIN(dtype) == MOEC_DTYPE_INT1)
            decode_int1(bytes, decoder, upper, out);
        else if (PLAIN(dtype) == MOEC_DTYPE_INT2)
            decode_int2(bytes, decoder->first, upper->first, out);
        else if (PLAIN(dtype) == MOEC_DTYPE_INT3)
            decode_int3(bytes, decoder, upper, out);
        else
            decode_even_steps(dtype, bytes, decoders, out);
        break;
    }
}

INLINE __m256 trellis_make(const float levels[static 8], float scale)
{
    return _mm256_mul_ps(_mm256_loadu_ps(levels), _mm256_set1_ps(scale));
}

INLINE __m256 trellis_eight(__m256 table, __m128i levels)
{
    return _mm256_permutevar8x32_ps(table, _mm256_cvtepu8_epi32(levels));
}

typedef uint32_t trellis_carry;

INLINE trellis_carry trellis_begin(void)
{
    return 0;
}

INLINE void trellis_block(__m256 table, const uint8_t *at, trellis_carry *before, lanes out[2])
{
    const struct trellis_bits bits = trellis_bits_at(at, before);
    const __m256i levels = _mm256_or_si256(
        _mm256_or_si256(spread(bits.words.z0, 1), spread(bits.words.z1, 2)), spread(bits.upper, 4));
    const __m128i low = _mm256_castsi256_si128(levels), high = _mm256_extracti128_si256(levels, 1);
    out[0] = (lanes){trellis_eight(table, low), trellis_eight(table, _mm_srli_si128(low, 8))};
    out[1] = (lanes){trellis_eight(table, high), trellis_eight(table, _mm_srli_si128(high, 8))};
}

INLINE lanes lanes_of_levels(__m128i levels, __m256 scale)
{
    const __m256i low = _mm256_cvtepi8_epi32(levels), high = _mm256_cvtepi8_epi32(_mm_srli_si128(levels, 8));
    return (lanes){_mm256_mul_ps(_mm256_cvtepi32_ps(low), scale),
                   _mm256_mul_ps(_mm256_cvtepi32_ps(high), scale)};
}

INLINE void shift_block(const uint32_t bits, float scale, const uint8_t *at, const uint8_t *front,
                        lanes out[2])
{
    const __m256i levels = shift_block_levels(bits, at, front);
    out[0] = lanes_of_levels(_mm256_castsi256_si128(levels), _mm256_set1_ps(scale));
    out[1] = lanes_of_levels(_mm256_extracti128_si256(levels, 1), _mm256_set1_ps(scale));
}

/* ---- tile of dot ---- */

/* A load that happens once: the empty statement hides where the value came from, or GCC would load it anew
 * for each of two uses, and a tile has no load to spare. */
INLINE __m256 load_once(const float *p)
{
    __m256 v = _mm256_loadu_ps(p);
    __asm__("" : "+x"(v));
    return v;
}

/* 3 tokens by 2 rows: 12 accumulators hide the latency of a fused operation, and the two halves one after the
 * other need 10 loads for 12 fused operations and 16 registers. */
INLINE void dot_tile(const int nt, const float *x, size_t x_stride, const struct slice *slice,
                     const bool first, const bool last, float acc[][DOT_ROWS][LANES], float *y,
                     size_t y_stride)
{
    const int nr = nt == 1 ? 4 : 2, n = nt * nr;
    __m256 eighths[DOT_TOKENS][DOT_ROWS];
    NO_UNROLL
    for (int row = 0; row < DOT_ROWS; row += nr) {
        const float *w[4];
        lanes sums[2 * DOT_TOKENS];
        UNROLL
        for (int r = 0; r < nr; r++)
            w[r] = slice->w[row + r];
        UNROLL
        for (int i = 0; i < n; i++)
            sums[i] = first ? lanes_zero() : lanes_load(acc[i % nt][row + i / nt]);
        for (size_t k = 0; k < slice->k; k += LANES) {
            __m256 tokens[DOT_TOKENS], weights = _mm256_setzero_ps();
            UNROLL
            for (int t = 0; t < nt; t++)
                tokens[t] = load_once(x + (size_t)t * x_stride + k);
            UNROLL
            for (int i = 0; i < n; i++) {
                if (i % nt == 0)
                    weights = load_once(w[i / nt] + k);
                sums[i].low = _mm256_fmadd_ps(tokens[i % nt], weights, sums[i].low);
            }
            UNROLL
            for (int t = 0; t < nt; t++)
                tokens[t] = load_once(x + (size_t)t * x_stride + k + 8);
            UNROLL
            for (int i = 0; i < n; i++) {
                if (i % nt == 0)
                    weights = load_once(w[i / nt] + k + 8);
                sums[i].high = _mm256_fmadd_ps(tokens[i % nt], weights, sums[i].high);
            }
        }
        UNROLL
        for (int i = 0; i < n; i++) {
            if (last)
                eighths[i % nt][row + i / nt] = halves_added(sums[i]);
            else
                lanes_store(acc[i % nt][row + i / nt], sums[i]);
        }
    }
    for (int t = 0; t < nt && last; t++)
        _mm256_storeu_ps(y + (size_t)t * y_stride, tree_of_eight(eighths[t]));
}

INLINE void lanes_sum_rows(const lanes v[static CODE_ROWS], float y[static CODE_ROWS])
{
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++)
        y[r] = lanes_sum(v[r]);
}

#include "runtime/kernels/canonical/shift_avx2.h"

#include "runtime/kernels/canonical/kernels_lanes.h"

#endif
