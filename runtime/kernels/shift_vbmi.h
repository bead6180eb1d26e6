/* Levels of shift-coded blocks (formats/codec/shift.h) with AVX-512 VBMI and GFNI: eight windows are cut out of
 * 64 bits at once, and one operation makes the number of each. */
#ifndef MOEC_RUNTIME_SHIFT_VBMI_H
#define MOEC_RUNTIME_SHIFT_VBMI_H

#include "runtime/kernels/kernels_shape.h"

#include <immintrin.h>

static const int8_t shift_levels_2[64] = {MOEC_SHIFT_2_LEVELS}, shift_levels_3[64] = {MOEC_SHIFT_3_LEVELS},
                    shift_levels_4[128] = {MOEC_SHIFT_4_LEVELS};

INLINE long long shift_rows(const uint32_t bits)
{
    return (long long)(bits == 2 ? MOEC_SHIFT_2_ROWS : bits == 3 ? MOEC_SHIFT_3_ROWS : MOEC_SHIFT_4_ROWS);
}

/* Where free bits stand in the numbers of levels. */
INLINE char shift_free_mask(const uint32_t bits)
{
    return bits == 3 ? 0x20 : 0x60;
}

INLINE __m512i shift_levels(const uint32_t bits, __m512i places)
{
    if (bits == 4)
        return _mm512_permutex2var_epi8(_mm512_loadu_si512(shift_levels_4), places,
                                        _mm512_loadu_si512(shift_levels_4 + 64));
    return _mm512_permutexvar_epi8(places, _mm512_loadu_si512(bits == 2 ? shift_levels_2 : shift_levels_3));
}

/* The 32 levels of the block at `at`, behind the byte `before`. */
INLINE __m256i shift_block_levels(const uint32_t bits, const uint8_t *at, uint32_t before)
{
    const __m256i three = _mm256_setr_epi64x(0x020100, 0x040302, 0x060504, 0x080706);
    const __m256i cuts = _mm256_set1_epi64x(0x100e0c0a08060402);
    int64_t here, above = 0;
    memcpy(&here, at + moec_shift_free_bytes(bits), sizeof here);
    memcpy(&above, at, bits == 3 ? 4 : 8);
    const __m128i nine =
        _mm_set_epi64x((int64_t)((uint64_t)here >> 56), (int64_t)((uint64_t)here << 8 | before));
    const __m256i parts = _mm256_permutexvar_epi8(three, _mm256_castsi128_si256(nine));
    const __m256i windows = _mm256_multishift_epi64_epi8(cuts, parts);
    __m256i places = _mm256_gf2p8affine_epi64_epi8(windows, _mm256_set1_epi64x(shift_rows(bits)), 0);
    if (bits > 2) {
        const __m256i in_turn = _mm256_setr_epi64x(0x020100fffefdfcfb, 0x0a09080706050403, 0x1211100f0e0d0c0b,
                                                   0x1a19181716151413);
        const __m256i by_byte = _mm256_set1_epi64x(0x332b231b130b03fb);
        const __m256i by_two = _mm256_add_epi8(
            by_byte, _mm256_setr_epi64x(0, 0x0202020202020202, 0x0404040404040404, 0x0606060606060606));
        const __m256i cut =
            _mm256_multishift_epi64_epi8(bits == 3 ? in_turn : by_two, _mm256_set1_epi64x(above));
        places = _mm256_ternarylogic_epi32(_mm256_set1_epi8(shift_free_mask(bits)), cut, places, 0xca);
    }
    return _mm512_castsi512_si256(shift_levels(bits, _mm512_castsi256_si512(places)));
}

/* Of four blocks one behind the other, which bytes each eight weights of the first or the second halves are
 * made from: bytes of coded bits, the last three of which windows have; and of free bits. The bytes of first
 * halves are counted from the one in front of the blocks. */
/* clang-format off */
static const uint8_t shift_coded_2_0[64] = {
    0, 1, 2, 0, 0, 0, 0, 0, 2, 3, 4, 0, 0, 0, 0, 0,
    8, 9, 10, 0, 0, 0, 0, 0, 10, 11, 12, 0, 0, 0, 0, 0,
    16, 17, 18, 0, 0, 0, 0, 0, 18, 19, 20, 0, 0, 0, 0, 0,
    24, 25, 26, 0, 0, 0, 0, 0, 26, 27, 28, 0, 0, 0, 0, 0};
static const uint8_t shift_coded_2_1[64] = {
    3, 4, 5, 0, 0, 0, 0, 0, 5, 6, 7, 0, 0, 0, 0, 0,
    11, 12, 13, 0, 0, 0, 0, 0, 13, 14, 15, 0, 0, 0, 0, 0,
    19, 20, 21, 0, 0, 0, 0, 0, 21, 22, 23, 0, 0, 0, 0, 0,
    27, 28, 29, 0, 0, 0, 0, 0, 29, 30, 31, 0, 0, 0, 0, 0};
static const uint8_t shift_coded_3_0[64] = {
    0, 5, 6, 0, 0, 0, 0, 0, 6, 7, 8, 0, 0, 0, 0, 0,
    12, 17, 18, 0, 0, 0, 0, 0, 18, 19, 20, 0, 0, 0, 0, 0,
    24, 29, 30, 0, 0, 0, 0, 0, 30, 31, 32, 0, 0, 0, 0, 0,
    36, 41, 42, 0, 0, 0, 0, 0, 42, 43, 44, 0, 0, 0, 0, 0};
static const uint8_t shift_free_3_0[64] = {
    1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
    13, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0,
    25, 0, 0, 0, 0, 0, 0, 0, 26, 0, 0, 0, 0, 0, 0, 0,
    37, 0, 0, 0, 0, 0, 0, 0, 38, 0, 0, 0, 0, 0, 0, 0};
static const uint8_t shift_coded_3_1[64] = {
    7, 8, 9, 0, 0, 0, 0, 0, 9, 10, 11, 0, 0, 0, 0, 0,
    19, 20, 21, 0, 0, 0, 0, 0, 21, 22, 23, 0, 0, 0, 0, 0,
    31, 32, 33, 0, 0, 0, 0, 0, 33, 34, 35, 0, 0, 0, 0, 0,
    43, 44, 45, 0, 0, 0, 0, 0, 45, 46, 47, 0, 0, 0, 0, 0};
static const uint8_t shift_free_3_1[64] = {
    2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
    14, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0, 0, 0, 0, 0,
    26, 0, 0, 0, 0, 0, 0, 0, 27, 0, 0, 0, 0, 0, 0, 0,
    38, 0, 0, 0, 0, 0, 0, 0, 39, 0, 0, 0, 0, 0, 0, 0};
static const uint8_t shift_coded_4_0[64] = {
    0, 9, 10, 0, 0, 0, 0, 0, 10, 11, 12, 0, 0, 0, 0, 0,
    16, 25, 26, 0, 0, 0, 0, 0, 26, 27, 28, 0, 0, 0, 0, 0,
    32, 41, 42, 0, 0, 0, 0, 0, 42, 43, 44, 0, 0, 0, 0, 0,
    48, 57, 58, 0, 0, 0, 0, 0, 58, 59, 60, 0, 0, 0, 0, 0};
static const uint8_t shift_free_4_0[64] = {
    1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8,
    17, 18, 19, 20, 21, 22, 23, 24, 17, 18, 19, 20, 21, 22, 23, 24,
    33, 34, 35, 36, 37, 38, 39, 40, 33, 34, 35, 36, 37, 38, 39, 40,
    49, 50, 51, 52, 53, 54, 55, 56, 49, 50, 51, 52, 53, 54, 55, 56};
static const uint8_t shift_coded_4_1[64] = {
    11, 12, 13, 0, 0, 0, 0, 0, 13, 14, 15, 0, 0, 0, 0, 0,
    27, 28, 29, 0, 0, 0, 0, 0, 29, 30, 31, 0, 0, 0, 0, 0,
    43, 44, 45, 0, 0, 0, 0, 0, 45, 46, 47, 0, 0, 0, 0, 0,
    59, 60, 61, 0, 0, 0, 0, 0, 61, 62, 63, 0, 0, 0, 0, 0};
static const uint8_t shift_free_4_1[64] = {
    0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7,
    16, 17, 18, 19, 20, 21, 22, 23, 16, 17, 18, 19, 20, 21, 22, 23,
    32, 33, 34, 35, 36, 37, 38, 39, 32, 33, 34, 35, 36, 37, 38, 39,
    48, 49, 50, 51, 52, 53, 54, 55, 48, 49, 50, 51, 52, 53, 54, 55};
static const uint8_t shift_cuts_4_0[64] = {
    59, 3, 11, 19, 27, 35, 43, 51, 61, 5, 13, 21, 29, 37, 45, 53,
    59, 3, 11, 19, 27, 35, 43, 51, 61, 5, 13, 21, 29, 37, 45, 53,
    59, 3, 11, 19, 27, 35, 43, 51, 61, 5, 13, 21, 29, 37, 45, 53,
    59, 3, 11, 19, 27, 35, 43, 51, 61, 5, 13, 21, 29, 37, 45, 53};
static const uint8_t shift_cuts_4_1[64] = {
    63, 7, 15, 23, 31, 39, 47, 55, 1, 9, 17, 25, 33, 41, 49, 57,
    63, 7, 15, 23, 31, 39, 47, 55, 1, 9, 17, 25, 33, 41, 49, 57,
    63, 7, 15, 23, 31, 39, 47, 55, 1, 9, 17, 25, 33, 41, 49, 57,
    63, 7, 15, 23, 31, 39, 47, 55, 1, 9, 17, 25, 33, 41, 49, 57};
/* clang-format on */

/* Half `half` of the levels of the four blocks at `bytes`, the first of a row or behind others. */
INLINE __m512i shift_span_levels(const uint32_t bits, const uint8_t *bytes, const bool is_first,
                                 const int half)
{
    static const uint8_t *const coded_places[3][2] = {{shift_coded_2_0, shift_coded_2_1},
                                                      {shift_coded_3_0, shift_coded_3_1},
                                                      {shift_coded_4_0, shift_coded_4_1}};
    static const uint8_t *const free_places[2][2] = {{shift_free_3_0, shift_free_3_1},
                                                     {shift_free_4_0, shift_free_4_1}};
    const __mmask64 there = (bits == 4 ? ~0ull : (1ull << (16 * bits + (half == 0))) - 1) &
                            (half == 0 && is_first ? ~1ull : ~0ull);
    const __m512i loaded = _mm512_maskz_loadu_epi8(there, bytes - (half == 0));
    const __m512i parts = _mm512_permutexvar_epi8(_mm512_loadu_si512(coded_places[bits - 2][half]), loaded);
    const __m512i windows = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x100e0c0a08060402), parts);
    __m512i places = _mm512_gf2p8affine_epi64_epi8(windows, _mm512_set1_epi64(shift_rows(bits)), 0);
    if (bits > 2) {
        const __m512i above =
            _mm512_permutexvar_epi8(_mm512_loadu_si512(free_places[bits - 3][half]), loaded);
        const __m512i cuts = bits == 3 ? _mm512_set1_epi64(0x020100fffefdfcfb)
                                       : _mm512_loadu_si512(half == 0 ? shift_cuts_4_0 : shift_cuts_4_1);
        places = _mm512_ternarylogic_epi32(_mm512_set1_epi8(shift_free_mask(bits)),
                                           _mm512_multishift_epi64_epi8(cuts, above), places, 0xca);
    }
    return shift_levels(bits, places);
}

#endif
