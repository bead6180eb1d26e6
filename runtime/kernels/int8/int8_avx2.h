/* The int8 arithmetic on AVX2, FMA and F16C, where 64 bytes are two registers: compiled once for these (int8_avx2.c),
 * and once with GFNI and AVX-VNNI besides (int8_avx2_vnni.c). */
#ifndef MOEC_RUNTIME_INT8_AVX2_H
#define MOEC_RUNTIME_INT8_AVX2_H

#include "runtime/kernels/int8.h"
#include "runtime/kernels/lanes/fours_x86.h"
#include "runtime/kernels/lanes/lanes_avx2.h"

#define ROWS_OF_TILE       2
#define MANY_TOKENS        11
#define TILE_OFFSET(dtype) OFFSET(dtype)
/* Sums of two products are kept in 16 bits, which codes of eight bits without a sign would overflow. */
#define IS_WIDE(dtype)      ((dtype) == MOEC_DTYPE_INT8 || IS_PATH(dtype))
#define OFFSET(dtype)       (IS_WIDE(dtype) ? 128 : 0)
#define MIXES_HALVES(dtype) ((void)(dtype), false)

typedef struct {
    __m256i low;
    __m256i high;
} words;

struct codes {
    words half[2];
};

INLINE words words_load(const void *at)
{
    return (words){_mm256_loadu_si256(at), _mm256_loadu_si256((const __m256i *)at + 1)};
}

INLINE void words_store(void *at, words w)
{
    _mm256_storeu_si256(at, w.low);
    _mm256_storeu_si256((__m256i *)at + 1, w.high);
}

INLINE words words_zero(void)
{
    return (words){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

INLINE words words_set(int32_t value)
{
    return (words){_mm256_set1_epi32(value), _mm256_set1_epi32(value)};
}

#define WORDWISE(name, instruction)                                                                          \
    INLINE words name(words a, words b)                                                                      \
    {                                                                                                        \
        return (words){instruction(a.low, b.low), instruction(a.high, b.high)};                              \
    }
WORDWISE(words_and, _mm256_and_si256)
WORDWISE(words_or, _mm256_or_si256)
WORDWISE(words_sub, _mm256_sub_epi32)
WORDWISE(words_top, _mm256_max_epi32)
WORDWISE(unpack_low_bytes, _mm256_unpacklo_epi8)
WORDWISE(unpack_high_bytes, _mm256_unpackhi_epi8)
WORDWISE(unpack_low_pairs, _mm256_unpacklo_epi16)
WORDWISE(unpack_high_pairs, _mm256_unpackhi_epi16)
WORDWISE(words_add, _mm256_add_epi32)
WORDWISE(unpack_low_words, _mm256_unpacklo_epi32)
WORDWISE(unpack_high_words, _mm256_unpackhi_epi32)
WORDWISE(unpack_low_twos, _mm256_unpacklo_epi64)
WORDWISE(unpack_high_twos, _mm256_unpackhi_epi64)

INLINE words words_up(words w, const int bits)
{
    return (words){_mm256_slli_epi32(w.low, bits), _mm256_slli_epi32(w.high, bits)};
}

INLINE words words_down(words w, const int bits)
{
    return (words){_mm256_srai_epi32(w.low, bits), _mm256_srai_epi32(w.high, bits)};
}

INLINE void words_store_low_bytes(void *at, words w)
{
    const __m256i low = _mm256_set1_epi32(255);
    const __m256i pairs = _mm256_packus_epi32(_mm256_and_si256(w.low, low), _mm256_and_si256(w.high, low));
    const __m256i bytes =
        _mm256_packus_epi16(pairs, pairs); /* of 128-bit halves: 0..3, 8..11 and 4..7, 12..15 */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
    _mm_storeu_si128(at, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, order)));
}

INLINE words words_of_lanes(lanes v)
{
    return (words){_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)};
}

INLINE lanes lanes_of_words(words w)
{
    return (lanes){_mm256_cvtepi32_ps(w.low), _mm256_cvtepi32_ps(w.high)};
}

INLINE words lanes_as_words(lanes v)
{
    return (words){_mm256_castps_si256(v.low), _mm256_castps_si256(v.high)};
}

INLINE lanes words_as_lanes(words w)
{
    return (lanes){_mm256_castsi256_ps(w.low), _mm256_castsi256_ps(w.high)};
}

/* Eight numbers from number `first` on, of packed bits that stand in both 128-bit halves. */
INLINE __m256i eight_packed(__m256i packed, const int first, const uint32_t bits)
{
    const __m256i lane =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    const __m256i place = _mm256_mullo_epi32(lane, _mm256_set1_epi32((int)bits));
    const __m256i byte = _mm256_srli_epi32(place, 3), next = _mm256_add_epi32(byte, _mm256_set1_epi32(1));
    const __m256i pair = _mm256_or_si256(_mm256_or_si256(byte, _mm256_slli_epi32(next, 8)),
                                         _mm256_set1_epi32((int)0x80800000)); /* and two zeros */
    const __m256i low =
        _mm256_srlv_epi32(_mm256_shuffle_epi8(packed, pair), _mm256_and_si256(place, _mm256_set1_epi32(7)));
    return _mm256_and_si256(low, _mm256_set1_epi32((1 << bits) - 1));
}

INLINE lanes lanes_of_packed(const uint8_t *at, size_t n, const uint32_t bits)
{
    uint8_t bytes[LANES] = {0};
    memcpy(bytes, at, (n * bits + 7) / 8);
    const __m256i packed = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
    return (lanes){_mm256_cvtepi32_ps(eight_packed(packed, 0, bits)),
                   _mm256_cvtepi32_ps(eight_packed(packed, 8, bits))};
}

INLINE void words_quads(const words w[4], words out[4])
{
    const words low01 = unpack_low_bytes(w[0], w[1]), high01 = unpack_high_bytes(w[0], w[1]);
    const words low23 = unpack_low_bytes(w[2], w[3]), high23 = unpack_high_bytes(w[2], w[3]);
    out[0] = unpack_low_pairs(low01, low23);
    out[1] = unpack_high_pairs(low01, low23);
    out[2] = unpack_low_pairs(high01, high23);
    out[3] = unpack_high_pairs(high01, high23);
}

/* Which of four each lane takes. */
INLINE words spread_places(const int per_span)
{
    const words by_four = {_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1),
                           _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3)};
    return per_span == 4   ? by_four
           : per_span == 2 ? (words){_mm256_srli_epi32(by_four.low, 1), _mm256_srli_epi32(by_four.high, 1)}
                           : words_zero();
}

INLINE words words_spread(const int32_t *at, words places)
{
    const __m256i four = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at));
    return (words){_mm256_permutevar8x32_epi32(four, places.low),
                   _mm256_permutevar8x32_epi32(four, places.high)};
}

INLINE lanes lanes_spread(lanes v, words places)
{
    return (lanes){_mm256_permutevar8x32_ps(v.low, places.low), _mm256_permutevar8x32_ps(v.low, places.high)};
}

INLINE void blocks_store(const lanes f[4], float *out)
{
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(f[0].low, f[1].low, 0x20));
    _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(f[2].low, f[3].low, 0x20));
    _mm256_storeu_ps(out + BLOCK, _mm256_permute2f128_ps(f[0].low, f[1].low, 0x31));
    _mm256_storeu_ps(out + BLOCK + 8, _mm256_permute2f128_ps(f[2].low, f[3].low, 0x31));
    _mm256_storeu_ps(out + 2 * BLOCK, _mm256_permute2f128_ps(f[0].high, f[1].high, 0x20));
    _mm256_storeu_ps(out + 2 * BLOCK + 8, _mm256_permute2f128_ps(f[2].high, f[3].high, 0x20));
    _mm256_storeu_ps(out + 3 * BLOCK, _mm256_permute2f128_ps(f[0].high, f[1].high, 0x31));
    _mm256_storeu_ps(out + 3 * BLOCK + 8, _mm256_permute2f128_ps(f[2].high, f[3].high, 0x31));
}

INLINE words words_by_fours(const words w[4])
{
    const words low = words_add(unpack_low_words(w[0], w[1]), unpack_high_words(w[0], w[1]));
    const words high = words_add(unpack_low_words(w[2], w[3]), unpack_high_words(w[2], w[3]));
    return words_add(unpack_low_twos(low, high), unpack_high_twos(low, high));
}

INLINE void lanes_by_fours(const lanes v[4], lanes out[4])
{
    words w[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        w[i] = lanes_as_words(v[i]);
    const words low01 = unpack_low_words(w[0], w[1]), high01 = unpack_high_words(w[0], w[1]);
    const words low23 = unpack_low_words(w[2], w[3]), high23 = unpack_high_words(w[2], w[3]);
    out[0] = words_as_lanes(unpack_low_twos(low01, low23));
    out[1] = words_as_lanes(unpack_high_twos(low01, low23));
    out[2] = words_as_lanes(unpack_low_twos(high01, high23));
    out[3] = words_as_lanes(unpack_high_twos(high01, high23));
}

INLINE fours lanes_four(lanes v, const int b)
{
    const __m256 half = b < 2 ? v.low : v.high;
    return b % 2 == 0 ? _mm256_castps256_ps128(half) : _mm256_extractf128_ps(half, 1);
}

/* 32-bit integers of `sums` plus four products each, of bytes without a sign. The pairs of products that are added in
 * 16 bits stay within 2 * 128 * 127. */
INLINE __m256i sizes_dot_of(__m256i sums, __m256i sizes, __m256i q)
{
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sums, sizes, q);
#else
    const __m256i pairs = _mm256_maddubs_epi16(sizes, q);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

INLINE __m256i dot_of(const int dtype, __m256i sums, __m256i codes, __m256i q)
{
    if (!IS_WIDE(dtype))
        return sizes_dot_of(sums, codes, q);
    const __m256i w = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
    return sizes_dot_of(sums, _mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
}

INLINE words words_dot(const int dtype, words sums, words codes, words q)
{
    return (words){dot_of(dtype, sums.low, codes.low, q.low), dot_of(dtype, sums.high, codes.high, q.high)};
}

INLINE fours words_totals(const words w[4])
{
    const words by_fours = words_by_fours(w);
    const __m256i two = _mm256_add_epi32(by_fours.low, by_fours.high);
    return _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1)));
}

INLINE words words_sum_quads(words sums, words q)
{
    const words ones = {_mm256_set1_epi8(1), _mm256_set1_epi8(1)};
    return words_dot(MOEC_DTYPE_INT2, sums, ones, q);
}

/* ---- codes ---- */

/* 16 bytes at each of two places. */
INLINE __m256i two_times_16(const uint8_t *at, const size_t apart)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at)),
                                   _mm_loadu_si128((const __m128i *)(at + apart)), 1);
}

/* 8 bytes at each of two places, twice each. */
INLINE __m256i two_times_8(const uint8_t *at, const size_t apart)
{
    int64_t w[2];
    memcpy(&w[0], at, sizeof w[0]);
    memcpy(&w[1], at + apart, sizeof w[1]);
    return _mm256_setr_epi64x(w[0], w[0], w[1], w[1]);
}

INLINE __m256i two_bits(__m256i twice, const int half)
{
    const __m256i shifts = half == 0 ? _mm256_setr_epi64x(0, 2, 0, 2) : _mm256_setr_epi64x(4, 6, 4, 6);
    return _mm256_and_si256(_mm256_srlv_epi64(twice, shifts), _mm256_set1_epi8(3));
}

INLINE __m256i four_bits(__m256i bytes, const int half)
{
    return _mm256_and_si256(half == 0 ? bytes : _mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
}

/* Bits 16 half + i of the words of 32 bits at two places, times `value`. */
INLINE __m256i high_bits(const uint8_t *at, const size_t apart, const int half, const char value)
{
    const __m256i of_byte = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m128i first = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i places = half == 0 ? first : _mm_add_epi8(first, _mm_set1_epi8(2));
    int32_t w[2];
    memcpy(&w[0], at, sizeof w[0]);
    memcpy(&w[1], at + apart, sizeof w[1]);
    const __m256i both = _mm256_setr_epi32(w[0], 0, 0, 0, w[1], 0, 0, 0);
    const __m256i bytes = _mm256_shuffle_epi8(both, _mm256_broadcastsi128_si256(places));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, of_byte), of_byte);
    return _mm256_and_si256(set, _mm256_set1_epi8(value));
}

/* Half `half` of the codes of two blocks. */
INLINE __m256i codes_of_two(const int dtype, const uint8_t *bytes, const int half)
{
    switch (dtype) {
    case MOEC_DTYPE_INT2:
        return two_bits(two_times_8(bytes, 8), half);
    case MOEC_DTYPE_INT3:
        return _mm256_or_si256(two_bits(two_times_8(bytes, 12), half), high_bits(bytes + 8, 12, half, 4));
    case MOEC_DTYPE_INT4:
        return four_bits(two_times_16(bytes, 16), half);
    case MOEC_DTYPE_INT5:
        return _mm256_or_si256(four_bits(two_times_16(bytes, 20), half), high_bits(bytes + 16, 20, half, 16));
    case MOEC_DTYPE_INT6:
        return _mm256_or_si256(four_bits(two_times_16(bytes, 24), half),
                               _mm256_slli_epi16(two_bits(two_times_8(bytes + 16, 24), half), 4));
    default:
        return two_times_16(bytes + 16 * half, 32);
    }
}

INLINE struct codes nibbles_of(words bytes)
{
    return (struct codes){{{four_bits(bytes.low, 0), four_bits(bytes.high, 0)},
                           {four_bits(bytes.low, 1), four_bits(bytes.high, 1)}}};
}

/* Half `half` of two blocks, from the bits of their levels. */
INLINE __m256i trellis_codes_of(const struct trellis_bits bits[2], const int half)
{
    const __m128i levels = _mm_setr_epi8(MOEC_INT8_TRELLIS_LEVELS, MOEC_INT8_TRELLIS_LEVELS);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_xor_si128(levels, _mm_set1_epi8((char)0x80)));
    __m256i places = high_bits((const uint8_t *)&bits->words.z0, sizeof *bits, half, 1);
    places = _mm256_or_si256(places, high_bits((const uint8_t *)&bits->words.z1, sizeof *bits, half, 2));
    places = _mm256_or_si256(places, high_bits((const uint8_t *)&bits->upper, sizeof *bits, half, 4));
    return _mm256_shuffle_epi8(table, places);
}

INLINE struct codes trellis_codes(const uint8_t *bytes, const bool is_first)
{
    struct trellis_bits bits[4];
    uint32_t before = 0;
    if (!is_first)
        memcpy(&before, bytes - BEFORE, sizeof before);
    for (int b = 0; b < 4; b++)
        bits[b] = trellis_bits_at(bytes + 8 * b, &before);
    return (struct codes){{{trellis_codes_of(bits, 0), trellis_codes_of(bits + 2, 0)},
                           {trellis_codes_of(bits, 1), trellis_codes_of(bits + 2, 1)}}};
}

#include "runtime/kernels/int8/int8_shift_avx2.h"

#define HAS_FOURTHS

INLINE struct codes codes_at(const int dtype, const uint8_t *bytes, const bool is_first)
{
    if (dtype == TRELLIS)
        return trellis_codes(bytes, is_first);
    if (IS_PATH(dtype))
        return shift_codes((uint32_t)(dtype - SHIFT), bytes, is_first);
    const size_t two = dtype == MOEC_DTYPE_INT2   ? 16
                       : dtype == MOEC_DTYPE_INT3 ? 24
                       : dtype == MOEC_DTYPE_INT4 ? 32
                       : dtype == MOEC_DTYPE_INT5 ? 40
                       : dtype == MOEC_DTYPE_INT6 ? 48
                                                  : 64; /* bytes of two blocks */
    return (struct codes){{{codes_of_two(dtype, bytes, 0), codes_of_two(dtype, bytes + two, 0)},
                           {codes_of_two(dtype, bytes, 1), codes_of_two(dtype, bytes + two, 1)}}};
}

INLINE void codes_store(struct codes codes, const int less, uint8_t *at)
{
    (void)less; /* is 0 here */
    const words first = codes.half[0], second = codes.half[1];
    words_store(at, (words){_mm256_permute2x128_si256(first.low, second.low, 0x20),
                            _mm256_permute2x128_si256(first.low, second.low, 0x31)});
    words_store(at + 64, (words){_mm256_permute2x128_si256(first.high, second.high, 0x20),
                                 _mm256_permute2x128_si256(first.high, second.high, 0x31)});
}

#include "runtime/kernels/int8/int8_set.h"

#endif
