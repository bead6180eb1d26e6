/* The int8 arithmetic's primitives on AVX-512 F, BW, DQ, VL, VBMI and VNNI, for products of registers
 * (int8_avx512_vnni.c) and of tiles (int8_avx512_amx.c), which define ROWS_OF_TILE and TILE_OFFSET. */
#ifndef MOEC_RUNTIME_INT8_AVX512_H
#define MOEC_RUNTIME_INT8_AVX512_H

#include "runtime/kernels/int8.h"
#include "runtime/kernels/lanes/fours_x86.h"
#include "runtime/kernels/lanes/lanes_avx512.h"
#include "runtime/kernels/lanes/shift_vbmi.h"

#define OFFSET(dtype) 0
/* Products of whole bytes with q are within 64 * 255 * 127. */
#define MIXES_HALVES(dtype) ((dtype) == MOEC_DTYPE_INT4)

typedef __m512i words;

struct codes {
    words half[2];
};

INLINE words words_load(const void *at)
{
    return _mm512_loadu_si512(at);
}

INLINE void words_store(void *at, words w)
{
    _mm512_storeu_si512(at, w);
}

INLINE words words_zero(void)
{
    return _mm512_setzero_si512();
}

INLINE words words_set(int32_t value)
{
    return _mm512_set1_epi32(value);
}

INLINE words words_and(words a, words b)
{
    return _mm512_and_si512(a, b);
}

INLINE words words_or(words a, words b)
{
    return _mm512_or_si512(a, b);
}

INLINE words words_sub(words a, words b)
{
    return _mm512_sub_epi32(a, b);
}

INLINE words words_top(words a, words b)
{
    return _mm512_max_epi32(a, b);
}

INLINE words words_up(words w, const int bits)
{
    return _mm512_slli_epi32(w, (unsigned)bits);
}

INLINE words words_down(words w, const int bits)
{
    return _mm512_srai_epi32(w, (unsigned)bits);
}

INLINE void words_store_low_bytes(void *at, words w)
{
    _mm_storeu_si128(at, _mm512_cvtepi32_epi8(w));
}

INLINE words words_of_lanes(lanes v)
{
    return _mm512_cvtps_epi32(v);
}

INLINE lanes lanes_of_words(words w)
{
    return _mm512_cvtepi32_ps(w);
}

INLINE words lanes_as_words(lanes v)
{
    return _mm512_castps_si512(v);
}

INLINE lanes words_as_lanes(words w)
{
    return _mm512_castsi512_ps(w);
}

INLINE lanes lanes_of_packed(const uint8_t *at, size_t n, const uint32_t bits)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i place = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)bits));
    const __m512i byte = _mm512_srli_epi32(place, 3), next = _mm512_add_epi32(byte, _mm512_set1_epi32(1));
    const __m512i pair = _mm512_or_si512(_mm512_or_si512(byte, _mm512_slli_epi32(next, 8)),
                                         _mm512_set1_epi32((int)0x80800000)); /* and two zeros */
    const __m128i packed = _mm_maskz_loadu_epi8(first_lanes((n * bits + 7) / 8), at);
    const __m512i pairs = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(packed), pair);
    const __m512i low = _mm512_srlv_epi32(pairs, _mm512_and_si512(place, _mm512_set1_epi32(7)));
    return _mm512_cvtepi32_ps(_mm512_and_si512(low, _mm512_set1_epi32((1 << bits) - 1)));
}

INLINE void words_quads(const words w[4], words out[4])
{
    const words low01 = _mm512_unpacklo_epi8(w[0], w[1]), high01 = _mm512_unpackhi_epi8(w[0], w[1]);
    const words low23 = _mm512_unpacklo_epi8(w[2], w[3]), high23 = _mm512_unpackhi_epi8(w[2], w[3]);
    out[0] = _mm512_unpacklo_epi16(low01, low23);
    out[1] = _mm512_unpackhi_epi16(low01, low23);
    out[2] = _mm512_unpacklo_epi16(high01, high23);
    out[3] = _mm512_unpackhi_epi16(high01, high23);
}

/* Which of four each lane takes. */
INLINE words spread_places(const int per_span)
{
    const words by_four = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return per_span == 4 ? by_four : per_span == 2 ? _mm512_srli_epi32(by_four, 1) : _mm512_setzero_si512();
}

INLINE words words_spread(const int32_t *at, words places)
{
    const __m128i four = _mm_loadu_si128((const __m128i *)at);
    return _mm512_permutexvar_epi32(places, _mm512_castsi128_si512(four));
}

INLINE lanes lanes_spread(lanes v, words places)
{
    return _mm512_permutexvar_ps(places, v);
}

INLINE void blocks_store(const lanes f[4], float *out)
{
    const __m512 a = _mm512_shuffle_f32x4(f[0], f[1], 0x44), b = _mm512_shuffle_f32x4(f[2], f[3], 0x44);
    const __m512 c = _mm512_shuffle_f32x4(f[0], f[1], 0xee), d = _mm512_shuffle_f32x4(f[2], f[3], 0xee);
    _mm512_storeu_ps(out, _mm512_shuffle_f32x4(a, b, 0x88));
    _mm512_storeu_ps(out + BLOCK, _mm512_shuffle_f32x4(a, b, 0xdd));
    _mm512_storeu_ps(out + 2 * BLOCK, _mm512_shuffle_f32x4(c, d, 0x88));
    _mm512_storeu_ps(out + 3 * BLOCK, _mm512_shuffle_f32x4(c, d, 0xdd));
}

INLINE words words_dot(const int dtype, words sums, words codes, words q)
{
    (void)dtype;
    return _mm512_dpbusd_epi32(sums, codes, q);
}

/* Of each 128 bits the lower half of a and the upper half of b, plus the others. */
INLINE words twos_added(words a, words b)
{
    const __m512d as = _mm512_castsi512_pd(a), bs = _mm512_castsi512_pd(b);
    return _mm512_add_epi32(_mm512_mask_blend_epi64(0xaa, a, b),
                            _mm512_castpd_si512(_mm512_shuffle_pd(as, bs, 0x55)));
}

/* A blend takes any port of a shuffle's two. */
INLINE words words_by_fours(const words w[4])
{
    const __m512 low = _mm512_castsi512_ps(twos_added(w[0], w[1]));
    const __m512 high = _mm512_castsi512_ps(twos_added(w[2], w[3]));
    return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
                            _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xdd)));
}

INLINE void lanes_by_fours(const lanes v[4], lanes out[4])
{
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(v[0], v[1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(v[0], v[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(v[2], v[3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(v[2], v[3]));
    out[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
    out[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
    out[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
    out[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
}

INLINE fours lanes_four(lanes v, const int b)
{
    return b == 0   ? _mm512_castps512_ps128(v)
           : b == 1 ? _mm512_extractf32x4_ps(v, 1)
           : b == 2 ? _mm512_extractf32x4_ps(v, 2)
                    : _mm512_extractf32x4_ps(v, 3);
}

INLINE fours words_totals(const words w[4])
{
    const words by_fours = words_by_fours(w);
    const __m256i two =
        _mm256_add_epi32(_mm512_castsi512_si256(by_fours), _mm512_extracti64x4_epi64(by_fours, 1));
    return _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
}

INLINE words words_sum_quads(words sums, words q)
{
    return _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), q);
}

/* ---- codes ---- */

/* 16 bytes at each of four places. */
INLINE words four_times_16(const uint8_t *at, const size_t apart)
{
    words w = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)at));
    w = _mm512_inserti32x4(w, _mm_loadu_si128((const __m128i *)(at + apart)), 1);
    w = _mm512_inserti32x4(w, _mm_loadu_si128((const __m128i *)(at + 2 * apart)), 2);
    return _mm512_inserti32x4(w, _mm_loadu_si128((const __m128i *)(at + 3 * apart)), 3);
}

/* Codes of two bits, of which 8 bytes for each block stand at 64-bit integers 2 b and 2 b + 1. */
INLINE struct codes two_bits(words twice)
{
    const words mask = _mm512_set1_epi8(3);
    const words low = _mm512_setr_epi64(0, 2, 0, 2, 0, 2, 0, 2),
                high = _mm512_setr_epi64(4, 6, 4, 6, 4, 6, 4, 6);
    return (struct codes){{_mm512_and_si512(_mm512_srlv_epi64(twice, low), mask),
                           _mm512_and_si512(_mm512_srlv_epi64(twice, high), mask)}};
}

INLINE struct codes nibbles_of(words bytes)
{
    const words mask = _mm512_set1_epi8(15);
    return (struct codes){
        {_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask)}};
}

/* Bits 16 h + i of four words of 32 bits, which stand at the 128-bit places of `four`, times `value`. */
INLINE words high_bits(words four, const int half, const char value)
{
    const words of_byte = _mm512_set1_epi64((long long)0x8040201008040201u);
    const __m128i first = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i places = half == 0 ? first : _mm_add_epi8(first, _mm_set1_epi8(2));
    const words bytes = _mm512_shuffle_epi8(four, _mm512_broadcast_i32x4(places));
    return _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(bytes, of_byte), value);
}

INLINE words four_words(const uint8_t *at, const size_t apart)
{
    int32_t w[4];
    for (size_t i = 0; i < 4; i++)
        memcpy(&w[i], at + i * apart, sizeof w[i]);
    return _mm512_setr_epi32(w[0], 0, 0, 0, w[1], 0, 0, 0, w[2], 0, 0, 0, w[3], 0, 0, 0);
}

INLINE struct codes with_bits(struct codes codes, words four, const char value)
{
    codes.half[0] = _mm512_or_si512(codes.half[0], high_bits(four, 0, value));
    codes.half[1] = _mm512_or_si512(codes.half[1], high_bits(four, 1, value));
    return codes;
}

INLINE struct codes three_bits(const uint8_t *bytes)
{
    const words block = _mm512_maskz_loadu_epi8((1ull << 48) - 1, bytes);
    const words pairs = _mm512_setr_epi32(0, 1, 0, 1, 3, 4, 3, 4, 6, 7, 6, 7, 9, 10, 9, 10);
    const words tops = _mm512_setr_epi32(2, 2, 2, 2, 5, 5, 5, 5, 8, 8, 8, 8, 11, 11, 11, 11);
    return with_bits(two_bits(_mm512_permutexvar_epi32(pairs, block)), _mm512_permutexvar_epi32(tops, block),
                     4);
}

INLINE struct codes six_bits(const uint8_t *bytes)
{
    const words low = four_times_16(bytes, 24);
    int64_t w[4];
    for (size_t i = 0; i < 4; i++)
        memcpy(&w[i], bytes + 24 * i + 16, sizeof w[i]);
    const struct codes high = two_bits(_mm512_setr_epi64(w[0], w[0], w[1], w[1], w[2], w[2], w[3], w[3]));
    struct codes codes = nibbles_of(low);
    codes.half[0] = _mm512_or_si512(codes.half[0], _mm512_slli_epi16(high.half[0], 4));
    codes.half[1] = _mm512_or_si512(codes.half[1], _mm512_slli_epi16(high.half[1], 4));
    return codes;
}

/* Half `half` of the blocks of a span, from the coded bits of a block behind those of the one before, and
 * from a block. Each weight's seven coded bits and its free one are cut out as a byte. */
INLINE words trellis_codes_of(words coded, words blocks, const int half)
{
    const words places =
        _mm512_add_epi8(_mm512_set1_epi8((char)(16 * half)),
                        _mm512_broadcast_i32x4(
                            _mm_setr_epi8(26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41)));
    const __m128i levels = _mm_setr_epi8(MOEC_INT8_TRELLIS_LEVELS, MOEC_INT8_TRELLIS_LEVELS);
    const words table = _mm512_broadcast_i32x4(_mm_xor_si128(levels, _mm_set1_epi8((char)0x80)));
    const words seven = _mm512_multishift_epi64_epi8(places, coded);
    const words eighth = _mm512_multishift_epi64_epi8(_mm512_sub_epi8(places, _mm512_set1_epi8(1)), blocks);
    const words bits =
        _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x7f), seven, eighth, TAKE_SECOND_WHERE_SET);
    const words places_of_levels = _mm512_gf2p8affine_epi64_epi8(bits, _mm512_set1_epi64(TRELLIS_BITS), 0);
    return _mm512_shuffle_epi8(table, places_of_levels);
}

INLINE struct codes trellis_codes(const uint8_t *bytes, const bool is_first)
{
    const __mmask16 there = is_first ? 0x3fc : 0x3ff;
    const words four = _mm512_maskz_loadu_epi32(there, bytes - BEFORE); /* blocks, behind the one before */
    const words coded =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 2, 0, 2, 2, 4, 2, 4, 4, 6, 4, 6, 6, 8, 6, 8), four);
    const words blocks =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7, 8, 9, 8, 9), four);
    return (struct codes){{trellis_codes_of(coded, blocks, 0), trellis_codes_of(coded, blocks, 1)}};
}

INLINE struct codes shift_codes(const uint32_t bits, const uint8_t *bytes, const bool is_first)
{
    struct codes codes;
    shift_span_lifted(bits, bytes, is_first, codes.half);
    return codes;
}

/* ---- shift codes of four rows ---- */

#define HAS_QUADS

INLINE void shift_quads(const uint32_t bits, const uint8_t *const at[4], const bool is_first, words out[8])
{
    const struct shift_quad quad = shift_quad_open(bits, at, is_first);
    UNROLL
    for (int i = 0; i < 8; i++)
        out[i] = shift_quad_lifted(bits, &quad, i / 2, i % 2);
}

/* sums[i] += products of these levels and q. */
INLINE void shift_quads_products(const uint32_t bits, const uint8_t *const at[4], const bool is_first,
                                 words q, words sums[8])
{
    const struct shift_quad quad = shift_quad_open(bits, at, is_first);
    UNROLL
    for (int i = 0; i < 8; i++)
        sums[i] = words_dot(SHIFT, sums[i], shift_quad_lifted(bits, &quad, i / 2, i % 2), q);
}

INLINE void shift_quads_order(words sums[8])
{
    UNROLL
    for (int j = 0; j < 8; j += 2) {
        const words low = _mm512_unpacklo_epi64(sums[j], sums[j + 1]);
        sums[j + 1] = _mm512_unpackhi_epi64(sums[j], sums[j + 1]);
        sums[j] = low;
    }
}

INLINE struct codes codes_at(const int dtype, const uint8_t *bytes, const bool is_first)
{
    switch (dtype) {
    case SHIFT + 2:
    case SHIFT + 3:
    case SHIFT + 4:
        return shift_codes((uint32_t)(dtype - SHIFT), bytes, is_first);
    case TRELLIS:
        return trellis_codes(bytes, is_first);
    case MOEC_DTYPE_INT2: {
        const words twice = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
        const __m256i blocks = _mm256_loadu_si256((const __m256i *)bytes);
        return two_bits(_mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(blocks)));
    }
    case MOEC_DTYPE_INT3:
        return three_bits(bytes);
    case MOEC_DTYPE_INT4:
        return nibbles_of(words_load(bytes));
    case MOEC_DTYPE_INT5:
        return with_bits(nibbles_of(four_times_16(bytes, 20)), four_words(bytes + 16, 20), 16);
    case MOEC_DTYPE_INT6:
        return six_bits(bytes);
    default: {
        const words low = words_load(bytes), high = words_load(bytes + 64);
        return (struct codes){{_mm512_shuffle_i64x2(low, high, 0x88), _mm512_shuffle_i64x2(low, high, 0xdd)}};
    }
    }
}

/* Both halves' quarters in turn. */
INLINE void codes_store(struct codes codes, const int less, uint8_t *at)
{
    const words low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const words high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const words bytes = _mm512_set1_epi8((char)less);
    words_store(at, _mm512_sub_epi8(_mm512_permutex2var_epi64(codes.half[0], low, codes.half[1]), bytes));
    words_store(at + 64,
                _mm512_sub_epi8(_mm512_permutex2var_epi64(codes.half[0], high, codes.half[1]), bytes));
}

/* What the set with tiles takes of the other. */
void moec_int8_vnni_round(const float *x, size_t n, struct moec_int8_span *spans);
void moec_int8_vnni_dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                        uint32_t n_rows, const struct moec_int8_span *const *x, uint32_t n_tok, float *y,
                        size_t y_stride);
void moec_int8_vnni_sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                              uint32_t n_rows, const float *h, size_t h_stride, uint32_t n_tok, float *y,
                              size_t y_stride);

#include "runtime/kernels/int8/int8_lanes.h"

#endif
