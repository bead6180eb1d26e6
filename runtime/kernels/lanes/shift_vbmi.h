/* Levels of shift-coded blocks (formats/codec/shift.h) with AVX-512 VBMI and GFNI: eight windows are cut out of
 * 64 bits at once, and one operation makes the number of each. */
#ifndef MOEC_RUNTIME_SHIFT_VBMI_H
#define MOEC_RUNTIME_SHIFT_VBMI_H

#include "runtime/kernels/lanes/kernels_shape.h"

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

/* The 32 levels of the block at `at`, behind the eight bytes `front`. */
INLINE __m256i shift_block_levels(const uint32_t bits, const uint8_t *at, const uint8_t *front)
{
    const __m256i three = _mm256_setr_epi64x(0x020100, 0x040302, 0x060504, 0x080706);
    const __m256i cuts = _mm256_set1_epi64x(0x100e0c0a08060402);
    int64_t here, above = 0;
    memcpy(&here, at + moec_shift_free_bytes(bits), sizeof here);
    memcpy(&above, at, bits == 3 ? 4 : 8);
    const __m128i nine =
        _mm_set_epi64x((int64_t)((uint64_t)here >> 56), (int64_t)((uint64_t)here << 8 | front[7]));
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

/* Which bytes each eight weights are made from, counted from the byte in front of their blocks: three that their
 * windows lie in, and of 3 bits that of their free bits. Of four blocks the first or the second halves; and
 * two blocks, in order. */
/* clang-format off */
static const uint8_t shift_parts_2_0[64] = {
    0, 1, 2, 0, 0, 0, 0, 0, 2, 3, 4, 0, 0, 0, 0, 0,
    8, 9, 10, 0, 0, 0, 0, 0, 10, 11, 12, 0, 0, 0, 0, 0,
    16, 17, 18, 0, 0, 0, 0, 0, 18, 19, 20, 0, 0, 0, 0, 0,
    24, 25, 26, 0, 0, 0, 0, 0, 26, 27, 28, 0, 0, 0, 0, 0};
static const uint8_t shift_parts_2_1[64] = {
    4, 5, 6, 0, 0, 0, 0, 0, 6, 7, 8, 0, 0, 0, 0, 0,
    12, 13, 14, 0, 0, 0, 0, 0, 14, 15, 16, 0, 0, 0, 0, 0,
    20, 21, 22, 0, 0, 0, 0, 0, 22, 23, 24, 0, 0, 0, 0, 0,
    28, 29, 30, 0, 0, 0, 0, 0, 30, 31, 32, 0, 0, 0, 0, 0};
static const uint8_t shift_parts_3_0[64] = {
    0, 5, 6, 1, 0, 0, 0, 0, 6, 7, 8, 2, 0, 0, 0, 0,
    12, 17, 18, 13, 0, 0, 0, 0, 18, 19, 20, 14, 0, 0, 0, 0,
    24, 29, 30, 25, 0, 0, 0, 0, 30, 31, 32, 26, 0, 0, 0, 0,
    36, 41, 42, 37, 0, 0, 0, 0, 42, 43, 44, 38, 0, 0, 0, 0};
static const uint8_t shift_parts_3_1[64] = {
    8, 9, 10, 3, 0, 0, 0, 0, 10, 11, 12, 4, 0, 0, 0, 0,
    20, 21, 22, 15, 0, 0, 0, 0, 22, 23, 24, 16, 0, 0, 0, 0,
    32, 33, 34, 27, 0, 0, 0, 0, 34, 35, 36, 28, 0, 0, 0, 0,
    44, 45, 46, 39, 0, 0, 0, 0, 46, 47, 48, 40, 0, 0, 0, 0};
static const uint8_t shift_parts_4_0[64] = {
    0, 9, 10, 0, 0, 0, 0, 0, 10, 11, 12, 0, 0, 0, 0, 0,
    16, 25, 26, 0, 0, 0, 0, 0, 26, 27, 28, 0, 0, 0, 0, 0,
    32, 41, 42, 0, 0, 0, 0, 0, 42, 43, 44, 0, 0, 0, 0, 0,
    48, 57, 58, 0, 0, 0, 0, 0, 58, 59, 60, 0, 0, 0, 0, 0};
static const uint8_t shift_pair_2[64] = {
    0, 1, 2, 0, 0, 0, 0, 0, 2, 3, 4, 0, 0, 0, 0, 0,
    4, 5, 6, 0, 0, 0, 0, 0, 6, 7, 8, 0, 0, 0, 0, 0,
    8, 9, 10, 0, 0, 0, 0, 0, 10, 11, 12, 0, 0, 0, 0, 0,
    12, 13, 14, 0, 0, 0, 0, 0, 14, 15, 16, 0, 0, 0, 0, 0};
static const uint8_t shift_pair_3[64] = {
    0, 5, 6, 1, 0, 0, 0, 0, 6, 7, 8, 2, 0, 0, 0, 0,
    8, 9, 10, 3, 0, 0, 0, 0, 10, 11, 12, 4, 0, 0, 0, 0,
    12, 17, 18, 13, 0, 0, 0, 0, 18, 19, 20, 14, 0, 0, 0, 0,
    20, 21, 22, 15, 0, 0, 0, 0, 22, 23, 24, 16, 0, 0, 0, 0};
static const uint8_t shift_pair_4[64] = {
    0, 9, 10, 0, 0, 0, 0, 0, 10, 11, 12, 0, 0, 0, 0, 0,
    12, 13, 14, 0, 0, 0, 0, 0, 14, 15, 16, 0, 0, 0, 0, 0,
    16, 25, 26, 0, 0, 0, 0, 0, 26, 27, 28, 0, 0, 0, 0, 0,
    28, 29, 30, 0, 0, 0, 0, 0, 30, 31, 32, 0, 0, 0, 0, 0};
static const uint8_t shift_pair_free[64] = {
    1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8,
    1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8,
    17, 18, 19, 20, 21, 22, 23, 24, 17, 18, 19, 20, 21, 22, 23, 24,
    17, 18, 19, 20, 21, 22, 23, 24, 17, 18, 19, 20, 21, 22, 23, 24};
/* clang-format on */

#define SHIFT_CUTS 0x100e0c0a08060402 /* where windows begin in the three bytes */
#define SHIFT_FREE 0x1a19181716151413 /* and free bits, for bit 5, in the one behind them */

/* The numbers of levels of the weights whose three bytes each stand in `parts`; of 4 bits without free bits. */
INLINE __m512i shift_places(const uint32_t bits, __m512i parts)
{
    const __m512i windows = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(SHIFT_CUTS), parts);
    const __m512i places = _mm512_gf2p8affine_epi64_epi8(windows, _mm512_set1_epi64(shift_rows(bits)), 0);
    if (bits != 3)
        return places;
    const __m512i above = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(SHIFT_FREE), parts);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x20), above, places, 0xca);
}

/* The same of 4 bits with the free bits, which stand in 64 bits as codes of INT2: each eight weights' turned to bit 5. */
INLINE __m512i shift_with_free(__m512i places, __m512i turned)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x60), turned, places, 0xca);
}

/* Levels, plus 128. */
INLINE __m512i shift_lifted(const uint32_t bits, __m512i places)
{
    const __m512i lift = _mm512_set1_epi8((char)0x80);
    const int8_t *levels = bits == 2 ? shift_levels_2 : bits == 3 ? shift_levels_3 : shift_levels_4;
    const __m512i table = _mm512_xor_si512(_mm512_loadu_si512(levels), lift);
    if (bits < 4)
        return _mm512_permutexvar_epi8(places, table);
    return _mm512_permutex2var_epi8(table, places,
                                    _mm512_xor_si512(_mm512_loadu_si512(shift_levels_4 + 64), lift));
}

/* The levels, plus 128, of the four blocks at `bytes`, the first of a row or behind others: of their first halves,
 * then of their second halves. */
INLINE void shift_span_lifted(const uint32_t bits, const uint8_t *bytes, const bool is_first, __m512i out[2])
{
    const __mmask64 all = bits == 4 ? ~0ull : (1ull << (16 * bits + 1)) - 1,
                    there = is_first ? all & ~1ull : all;
    const __m512i loaded = _mm512_maskz_loadu_epi8(there, bytes - 1);
    const uint8_t *first = bits == 2 ? shift_parts_2_0 : bits == 3 ? shift_parts_3_0 : shift_parts_4_0;
    out[0] = shift_places(bits, _mm512_permutexvar_epi8(_mm512_loadu_si512(first), loaded));
    if (bits < 4) {
        const uint8_t *second = bits == 2 ? shift_parts_2_1 : shift_parts_3_1;
        out[1] = shift_places(bits, _mm512_permutexvar_epi8(_mm512_loadu_si512(second), loaded));
    } else {
        const __m512i whole = _mm512_loadu_si512(bytes), coded = _mm512_unpackhi_epi64(whole, whole);
        const __m512i cuts =
            _mm512_set4_epi64(0x38363432302e2c2a, 0x28262422201e1c1a, 0x38363432302e2c2a, 0x28262422201e1c1a);
        const __m512i windows = _mm512_multishift_epi64_epi8(cuts, coded);
        __asm__("" : "+r"(bytes)); /* which a load doubles, and a shuffle would otherwise */
        const __m512i above = _mm512_castpd_si512(_mm512_movedup_pd(_mm512_loadu_pd(bytes)));
        out[1] = _mm512_gf2p8affine_epi64_epi8(windows, _mm512_set1_epi64(shift_rows(bits)), 0);
        out[0] = shift_with_free(out[0], _mm512_rolv_epi64(above, _mm512_set4_epi64(3, 5, 3, 5)));
        out[1] = shift_with_free(out[1], _mm512_rolv_epi64(above, _mm512_set4_epi64(63, 1, 63, 1)));
    }
    out[0] = shift_lifted(bits, out[0]);
    out[1] = shift_lifted(bits, out[1]);
}

/* The levels, plus 128, of the two blocks at `bytes`, in order. */
INLINE __m512i shift_pair_lifted(const uint32_t bits, const uint8_t *bytes, const bool is_first)
{
    const __mmask64 all = (1ull << (8 * bits + 1)) - 1, there = is_first ? all & ~1ull : all;
    const __m512i loaded = _mm512_maskz_loadu_epi8(there, bytes - 1);
    const uint8_t *order = bits == 2 ? shift_pair_2 : bits == 3 ? shift_pair_3 : shift_pair_4;
    __m512i places = shift_places(bits, _mm512_permutexvar_epi8(_mm512_loadu_si512(order), loaded));
    if (bits == 4) {
        const __m512i above = _mm512_permutexvar_epi8(_mm512_loadu_si512(shift_pair_free), loaded);
        places = shift_with_free(places, _mm512_rolv_epi64(above, _mm512_set4_epi64(63, 1, 3, 5)));
    }
    return shift_lifted(bits, places);
}

/* Of four blocks the pairs of bytes that each four weights' windows lie in; of 4 bits counted from the blocks on, and
 * the first pair's first byte is that in front. And of 3 bits each byte of free bits four times. */
/* clang-format off */
static const uint8_t shift_words_2[64] = {
    0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8,
    8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 16,
    16, 17, 17, 18, 18, 19, 19, 20, 20, 21, 21, 22, 22, 23, 23, 24,
    24, 25, 25, 26, 26, 27, 27, 28, 28, 29, 29, 30, 30, 31, 31, 32};
static const uint8_t shift_words_3[64] = {
    0, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12,
    12, 17, 17, 18, 18, 19, 19, 20, 20, 21, 21, 22, 22, 23, 23, 24,
    24, 29, 29, 30, 30, 31, 31, 32, 32, 33, 33, 34, 34, 35, 35, 36,
    36, 41, 41, 42, 42, 43, 43, 44, 44, 45, 45, 46, 46, 47, 47, 48};
static const uint8_t shift_words_4[64] = {
    0, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15,
    15, 24, 24, 25, 25, 26, 26, 27, 27, 28, 28, 29, 29, 30, 30, 31,
    31, 40, 40, 41, 41, 42, 42, 43, 43, 44, 44, 45, 45, 46, 46, 47,
    47, 56, 56, 57, 57, 58, 58, 59, 59, 60, 60, 61, 61, 62, 62, 63};
static const uint8_t shift_free_words[64] = {
    1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4,
    13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 15, 16, 16, 16, 16,
    25, 25, 25, 25, 26, 26, 26, 26, 27, 27, 27, 27, 28, 28, 28, 28,
    37, 37, 37, 37, 38, 38, 38, 38, 39, 39, 39, 39, 40, 40, 40, 40};
/* clang-format on */

/* Four rows' bytes of free bits of 3 bits, side by side. */
INLINE __m512i shift_free_quads(const __m512i loaded[4])
{
    const __m512i bytes = _mm512_loadu_si512(shift_free_words);
    __m512i all = _mm512_permutexvar_epi8(bytes, loaded[0]);
    all = _mm512_mask_permutexvar_epi8(all, 0x2222222222222222, bytes, loaded[1]);
    all = _mm512_mask_permutexvar_epi8(all, 0x4444444444444444, bytes, loaded[2]);
    return _mm512_mask_permutexvar_epi8(all, 0x8888888888888888, bytes, loaded[3]);
}

/* The same of 4 bits: of bytes 0, 1, 4 and 5 of each block, and of the others. */
INLINE void shift_free_halves(const __m512i whole[4], __m512i out[2])
{
    const __m512i low = _mm512_unpacklo_epi8(whole[0], whole[1]),
                  high = _mm512_unpacklo_epi8(whole[2], whole[3]);
    const __m512i first = _mm512_unpacklo_epi16(low, high), second = _mm512_unpackhi_epi16(low, high);
    out[0] = _mm512_unpacklo_epi64(first, second);
    out[1] = _mm512_unpackhi_epi64(first, second);
}

/* Free bits of 3 bits for out[2 j + e] of shift_quad_lifted, turned to bit 5. */
INLINE __m512i shift_free_turned(__m512i quads, const int j, const int e)
{
    const __m512i four = j == 0   ? _mm512_shuffle_epi32(quads, _MM_PERM_AAAA)
                         : j == 1 ? _mm512_shuffle_epi32(quads, _MM_PERM_BBBB)
                         : j == 2 ? _mm512_shuffle_epi32(quads, _MM_PERM_CCCC)
                                  : _mm512_shuffle_epi32(quads, _MM_PERM_DDDD);
    return _mm512_rolv_epi32(four, e == 0 ? _mm512_set4_epi32(0, 1, 4, 5) : _mm512_set4_epi32(30, 31, 2, 3));
}

/* Four blocks of four rows each, of which shift_quad_lifted makes levels. */
struct shift_quad {
    __m512i pairs[4];     /* words: of rows 0 and 1, then 2 and 3, first halves of blocks, then second ones */
    __m512i free_bits[2]; /* of 3 and 4 bits */
};

INLINE struct shift_quad shift_quad_open(const uint32_t bits, const uint8_t *const at[4], const bool is_first)
{
    const __mmask64 all = bits == 4 ? 1 : (1ull << (16 * bits + 1)) - 1, there = is_first ? all & ~1ull : all;
    const __m512i order = _mm512_loadu_si512(bits == 2   ? shift_words_2
                                             : bits == 3 ? shift_words_3
                                                         : shift_words_4);
    struct shift_quad quad = {.free_bits = {_mm512_setzero_si512(), _mm512_setzero_si512()}};
    __m512i loaded[4], words[4];
    UNROLL
    for (int r = 0; r < 4; r++) {
        const __m512i behind = _mm512_maskz_loadu_epi8(there, at[r] - 1);
        loaded[r] = bits == 4 ? _mm512_loadu_si512(at[r]) : behind;
        words[r] = bits == 4 ? _mm512_mask_permutexvar_epi8(behind, ~1ull, order, loaded[r])
                             : _mm512_permutexvar_epi8(order, loaded[r]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        quad.pairs[i] = _mm512_unpacklo_epi16(words[2 * i], words[2 * i + 1]);
        quad.pairs[i + 2] = _mm512_unpackhi_epi16(words[2 * i], words[2 * i + 1]);
    }
    if (bits == 3)
        quad.free_bits[0] = shift_free_quads(loaded);
    if (bits == 4)
        shift_free_halves(loaded, quad.free_bits);
    return quad;
}

/* Levels, plus 128, of four rows side by side: bytes 4 k + r of lane b are those of row r and, of block b, weights 8 j +
 * 2 e, 8 j + 2 e + 1, 8 j + 2 e + 4 and 8 j + 2 e + 5. */
INLINE __m512i shift_quad_lifted(const uint32_t bits, const struct shift_quad *quad, const int j, const int e)
{
    const __m512i low = quad->pairs[j / 2 * 2], high = quad->pairs[j / 2 * 2 + 1];
    const __m512i parts = j % 2 == 0 ? _mm512_unpacklo_epi32(low, high) : _mm512_unpackhi_epi32(low, high);
    const __m512i cuts = _mm512_set1_epi64(e == 0 ? 0x3424140432221202 : 0x3828180836261606);
    const __m512i windows = _mm512_multishift_epi64_epi8(cuts, parts);
    __m512i places = _mm512_gf2p8affine_epi64_epi8(windows, _mm512_set1_epi64(shift_rows(bits)), 0);
    if (bits == 3) {
        const __m512i turned = shift_free_turned(quad->free_bits[0], j, e);
        places = _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x20), turned, places, 0xca);
    }
    if (bits == 4) {
        const __m512i turned = _mm512_rolv_epi32(quad->free_bits[e], _mm512_set1_epi32((5 - 2 * j) & 31));
        places = shift_with_free(places, turned);
    }
    return shift_lifted(bits, places);
}

#endif
