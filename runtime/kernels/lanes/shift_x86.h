/* Levels of shift-coded blocks (formats/codec/shift.h) in vectors of 32 bytes, for sets of AVX2.
 *
 * A shuffle looks sixteen bytes up, and gives 0 where the highest bit of an index is set. A level's negative is a level,
 * so tables hold the upper half of the levels, and a weight has a *mark*: bits 0 to 3 and 7 are the place in half of a
 * table, bit 6 is set where the level is negated, bit 5 always, and of 4 bits bit 4 is set in the table's second half.
 * Marks follow from numbers of levels by exclusive ors, so the tables of numbers give marks at once. */
#ifndef MOEC_RUNTIME_SHIFT_X86_H
#define MOEC_RUNTIME_SHIFT_X86_H

#include "runtime/kernels/lanes/kernels_shape.h"

#include <immintrin.h>

static const int8_t shift_levels_2[64] = {MOEC_SHIFT_2_LEVELS}, shift_levels_3[64] = {MOEC_SHIFT_3_LEVELS},
                    shift_levels_4[128] = {MOEC_SHIFT_4_LEVELS};

#define SHIFT_MIRROR 0xcf /* what differs in the mark of the negated level */

typedef uint8_t shift_bytes __attribute__((vector_size(16)));

/* Marks, less what all have in common, of numbers without free bits. */
INLINE shift_bytes shift_marks_of(shift_bytes numbers)
{
    const shift_bytes is_upper = (shift_bytes)((numbers & 32) != 0), place = numbers ^ is_upper;
    return (place & 15) | (place & 16) << 3 | (is_upper & 0x40);
}

/* For each half of a window its part of a mark; the high half's has what all have in common. */
INLINE __m256i shift_half_marks(const uint32_t bits, const bool is_high)
{
    const shift_bytes two = is_high ? (shift_bytes){MOEC_SHIFT_2_HIGH} : (shift_bytes){MOEC_SHIFT_2_LOW};
    const shift_bytes three = is_high ? (shift_bytes){MOEC_SHIFT_3_HIGH} : (shift_bytes){MOEC_SHIFT_3_LOW};
    const shift_bytes four = is_high ? (shift_bytes){MOEC_SHIFT_4_HIGH} : (shift_bytes){MOEC_SHIFT_4_LOW};
    const uint8_t common = !is_high ? 0 : bits == 4 ? 0xff : 0xef;
    const shift_bytes marks = shift_marks_of(bits == 2 ? two : bits == 3 ? three : four) ^ common;
    return _mm256_broadcastsi128_si256((__m128i)marks);
}

/* Of 3 and 4 bits those of weights whose free bits are all 0. */
INLINE __m256i shift_marks(const uint32_t bits, __m256i windows)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(windows, nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(windows, 4), nibble);
    return _mm256_xor_si256(_mm256_shuffle_epi8(shift_half_marks(bits, false), low),
                            _mm256_shuffle_epi8(shift_half_marks(bits, true), high));
}

/* What differs in marks by the two free bits of 4 bits. */
INLINE __m256i shift_two_free(__m256i two)
{
    const __m128i by_bits = _mm_setr_epi8(0, 0x10, (char)(SHIFT_MIRROR ^ 0x10), (char)SHIFT_MIRROR, 0, 0, 0,
                                          0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(by_bits), two);
}

INLINE __m256i shift_sixteen(const int8_t *levels)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)levels));
}

INLINE __m256i shift_of_32(const int8_t *levels, __m256i marks)
{
    const __m256i others = _mm256_xor_si256(marks, _mm256_set1_epi8((char)0x80));
    return _mm256_or_si256(_mm256_shuffle_epi8(shift_sixteen(levels), marks),
                           _mm256_shuffle_epi8(shift_sixteen(levels + 16), others));
}

INLINE __m256i shift_levels(const uint32_t bits, __m256i marks)
{
    const int8_t *levels = bits == 2   ? shift_levels_2 + 32
                           : bits == 3 ? shift_levels_3 + 32
                                       : shift_levels_4 + 64;
    __m256i found = shift_of_32(levels, marks);
    if (bits == 4)
        found = _mm256_blendv_epi8(found, shift_of_32(levels + 32, marks), _mm256_slli_epi16(marks, 3));
    return _mm256_sign_epi8(found, _mm256_add_epi8(marks, marks));
}

/* Windows of weights from coded bits and those of the block before: in each 64 bits byte i is that of weight 4 i + j. */
INLINE __m256i shift_windows(__m256i coded, __m256i before, __m256i twice_j)
{
    const __m256i six = _mm256_set1_epi64x(6), down = _mm256_set1_epi64x(58);
    return _mm256_or_si256(_mm256_sllv_epi64(coded, _mm256_sub_epi64(six, twice_j)),
                           _mm256_srlv_epi64(before, _mm256_add_epi64(down, twice_j)));
}

INLINE int64_t eight_at(const uint8_t *at)
{
    int64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Byte i: `value` where bit i is set. */
INLINE __m256i spread(uint32_t bits, const char value)
{
    const __m256i places = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    const __m256i bytes = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                           2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), bytes);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(all, places), places),
                            _mm256_set1_epi8(value));
}

/* The 32 levels of the block at `at`. Free bits of one a weight are a word, of two stand as codes of INT2. */
INLINE __m256i shift_block_levels(const uint32_t bits, const uint8_t *at, const uint8_t *front)
{
    const __m256i coded = _mm256_set1_epi64x(eight_at(at + moec_shift_free_bytes(bits)));
    const __m256i windows =
        shift_windows(coded, _mm256_set1_epi64x(eight_at(front)), _mm256_setr_epi64x(0, 2, 4, 6));
    const __m256i by_halves = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    const __m128i in_order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256i marks = _mm256_permutevar8x32_epi32(shift_marks(bits, windows), by_halves);
    marks = _mm256_shuffle_epi8(marks, _mm256_broadcastsi128_si256(in_order));
    if (bits == 3) {
        uint32_t above;
        memcpy(&above, at, sizeof above);
        marks = _mm256_xor_si256(marks, spread(above, (char)SHIFT_MIRROR));
    }
    if (bits == 4) {
        const __m256i twice =
            _mm256_srlv_epi64(_mm256_set1_epi64x(eight_at(at)), _mm256_setr_epi64x(0, 2, 4, 6));
        marks = _mm256_xor_si256(marks, shift_two_free(_mm256_and_si256(twice, _mm256_set1_epi8(3))));
    }
    return shift_levels(bits, marks);
}

#endif
