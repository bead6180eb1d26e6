/* Levels of shift-coded blocks (formats/codec/shift.h) in vectors of 32 bytes, for sets of AVX2.
 *
 * A shuffle looks sixteen bytes up, and gives 0 where the highest bit of an index is set. A level's negative is a level,
 * so tables hold the upper half of the levels, and a weight has a *mark*: bits 0 to 3 and 7 are the place in half of a
 * table, bit 6 is set where the level is negated, and bits 4 and 5 are never both 0. Of 2 bits bit 4 is bit 7 again; of
 * 4 bits it is set in the table's second half. Marks follow from windows by exclusive ors, so tables of parts of
 * windows give marks at once.
 */
#ifndef MOEC_RUNTIME_SHIFT_X86_H
#define MOEC_RUNTIME_SHIFT_X86_H

#include "runtime/kernels/lanes/shift_parts.h"

#include <immintrin.h>

static const int8_t shift_levels_2[64] = {MOEC_SHIFT_2_LEVELS}, shift_levels_3[64] = {MOEC_SHIFT_3_LEVELS},
                    shift_levels_4[128] = {MOEC_SHIFT_4_LEVELS};

/* ---- marks ---- */

#if !defined(__GFNI__)
/* Marks, less what all have in common, of numbers without free bits. */
INLINE shift_bytes shift_marks_of(const uint32_t bits, shift_bytes numbers)
{
    const shift_bytes is_upper = (shift_bytes)((numbers & 32) != 0), place = numbers ^ is_upper;
    const shift_bytes marks = (place & 15) | (place & 16) << 3 | (is_upper & 0x40);
    return bits == 2 ? marks | (place & 16) : marks;
}
#endif

#if defined(__GFNI__)
/* Coded bytes as marks are made of them. */
struct shift_stream {
    __m256i bytes;
};

INLINE struct shift_stream shift_stream(__m256i bytes)
{
    return (struct shift_stream){bytes};
}

INLINE struct shift_stream shift_behind(struct shift_stream here, struct shift_stream earlier, const int n)
{
    return (struct shift_stream){n == 1 ? _mm256_alignr_epi8(here.bytes, earlier.bytes, 15)
                                        : _mm256_alignr_epi8(here.bytes, earlier.bytes, 12)};
}

/* A matrix over bits, whose byte 7 - i says which bits of a window bit i of a mark is an exclusive or of; `rows` are
 * those of numbers (shift_levels.h). */
INLINE uint64_t shift_mark_rows(const uint32_t bits)
{
    const uint64_t rows = bits == 2 ? MOEC_SHIFT_2_ROWS : bits == 3 ? MOEC_SHIFT_3_ROWS : MOEC_SHIFT_4_ROWS;
    const uint64_t upper = bits == 2 ? rows >> 16 & 0xff : 0, lowest = rows ^ upper * 0x0101010100000000;
    const uint64_t fifth = (rows >> 24 & 0xff) ^ upper;
    return (lowest & 0xffffffff00000000) | fifth | upper << 8 | (bits == 2 ? fifth << 24 : 0);
}

/* The exclusive or of what bits of bytes add, where bit 0 of bytes is bit `up` of a window; and of what all have in
 * common. */
INLINE __m256i shift_look(const uint32_t bits, __m256i bytes, const int up, const bool has_common)
{
    const uint64_t rows = shift_mark_rows(bits), each = 0x0101010101010101;
    const uint64_t matrix =
        up < 0 ? rows << -up & each * (0xffu << -up & 0xff) : rows >> up & each * (0xffu >> up);
    const __m256i all = _mm256_set1_epi64x((long long)matrix);
    if (!has_common)
        return _mm256_gf2p8affine_epi64_epi8(bytes, all, 0);
    return bits == 3 ? _mm256_gf2p8affine_epi64_epi8(bytes, all, 0xef)
                     : _mm256_gf2p8affine_epi64_epi8(bytes, all, 0xff);
}

INLINE __m256i shift_window_marks(const uint32_t bits, __m256i windows)
{
    return shift_look(bits, windows, 0, true);
}

/* Marks of the weights 4 i + j of byte i of the coded bits, in out[j]; `before` are the bytes before each. Of 3 and 4
 * bits those of weights whose free bits are all 0. */
INLINE void shift_marks(const uint32_t bits, struct shift_stream here, struct shift_stream before,
                        __m256i out[4])
{
    UNROLL
    for (int j = 0; j < 3; j++)
        out[j] = _mm256_xor_si256(shift_look(bits, here.bytes, 6 - 2 * j, true),
                                  shift_look(bits, before.bytes, -2 - 2 * j, false));
    out[3] = shift_window_marks(bits, here.bytes);
}
#else
/* By nibble its part of a mark. Each mark has one part with bits 6 and 7 of its window, to which that in common is
 * added. */
INLINE __m256i shift_part(const uint32_t bits, const enum shift_part part)
{
    const shift_bytes low = shift_marks_of(bits, shift_low_half(bits)),
                      high = shift_marks_of(bits, shift_high_half(bits));
    const bool has_common = part == SHIFT_UPPER || part == SHIFT_NEWEST;
    const uint8_t common = !has_common ? 0 : bits == 3 ? 0xef : 0xff;
    return _mm256_broadcastsi128_si256((__m128i)(shift_part_of(part, low, high) ^ common));
}

/* Coded bytes as marks are made of them: nibbles, each in a byte. */
struct shift_stream {
    __m256i low, high;
};

INLINE struct shift_stream shift_stream(__m256i bytes)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    return (struct shift_stream){_mm256_and_si256(bytes, nibble),
                                 _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble)};
}

/* In each half what stands n bytes, 1 or 4, before `here`, behind the end of `earlier`. */
INLINE struct shift_stream shift_behind(struct shift_stream here, struct shift_stream earlier, const int n)
{
    return n == 1 ? (struct shift_stream){_mm256_alignr_epi8(here.low, earlier.low, 15),
                                          _mm256_alignr_epi8(here.high, earlier.high, 15)}
                  : (struct shift_stream){_mm256_alignr_epi8(here.low, earlier.low, 12),
                                          _mm256_alignr_epi8(here.high, earlier.high, 12)};
}

INLINE __m256i shift_look(const uint32_t bits, const enum shift_part part, __m256i nibbles)
{
    return _mm256_shuffle_epi8(shift_part(bits, part), nibbles);
}

INLINE __m256i shift_window_marks(const uint32_t bits, __m256i windows)
{
    const struct shift_stream halves = shift_stream(windows);
    return _mm256_xor_si256(shift_look(bits, SHIFT_LOWER, halves.low),
                            shift_look(bits, SHIFT_UPPER, halves.high));
}

/* Marks of the weights 4 i + j of byte i of the coded bits, in out[j]; `before` are the bytes before each. Of 3 and 4
 * bits those of weights whose free bits are all 0. */
INLINE void shift_marks(const uint32_t bits, struct shift_stream here, struct shift_stream before,
                        __m256i out[4])
{
    out[0] = _mm256_xor_si256(_mm256_xor_si256(shift_look(bits, SHIFT_NEWEST, here.low),
                                               shift_look(bits, SHIFT_MIDDLE, before.high)),
                              shift_look(bits, SHIFT_OLDEST, before.low));
    out[1] =
        _mm256_xor_si256(shift_look(bits, SHIFT_UPPER, here.low), shift_look(bits, SHIFT_LOWER, before.high));
    out[2] = _mm256_xor_si256(
        _mm256_xor_si256(shift_look(bits, SHIFT_NEWEST, here.high), shift_look(bits, SHIFT_MIDDLE, here.low)),
        shift_look(bits, SHIFT_OLDEST, before.high));
    out[3] =
        _mm256_xor_si256(shift_look(bits, SHIFT_UPPER, here.high), shift_look(bits, SHIFT_LOWER, here.low));
}
#endif

/* The marks with the free bits of 3 bits, of each weight a bit of `masks` in `free_bits`. */
INLINE __m256i shift_with_free(__m256i marks, __m256i free_bits, __m256i masks)
{
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(free_bits, masks), masks);
    return _mm256_xor_si256(marks, is_set);
}

/* The marks with the two free bits of 4 bits. */
INLINE __m256i shift_with_two_free(__m256i marks, __m256i two)
{
    const __m128i by_bits =
        _mm_setr_epi8(0, 0x10, (char)0xdf, (char)0xcf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm256_xor_si256(marks, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(by_bits), two));
}

/* ---- levels ---- */

/* Sixteen levels, plus 128, or without their signs. */
INLINE __m256i shift_sixteen(const int8_t *levels, const bool are_sizes)
{
    const __m128i of = _mm_loadu_si128((const __m128i *)levels);
    return _mm256_broadcastsi128_si256(are_sizes ? _mm_abs_epi8(of)
                                                 : _mm_xor_si128(of, _mm_set1_epi8((char)0x80)));
}

INLINE __m256i shift_of_32(const int8_t *levels, const bool are_sizes, __m256i marks)
{
    const __m256i others = _mm256_xor_si256(marks, _mm256_set1_epi8((char)0x80));
    return _mm256_or_si256(_mm256_shuffle_epi8(shift_sixteen(levels, are_sizes), marks),
                           _mm256_shuffle_epi8(shift_sixteen(levels + 16, are_sizes), others));
}

/* Before they are negated. */
INLINE __m256i shift_found(const uint32_t bits, const bool are_sizes, __m256i marks)
{
    const int8_t *levels = bits == 2   ? shift_levels_2 + 32
                           : bits == 3 ? shift_levels_3 + 32
                                       : shift_levels_4 + 64;
    const __m256i found = shift_of_32(levels, are_sizes, marks);
    if (bits < 4)
        return found;
    return _mm256_blendv_epi8(found, shift_of_32(levels + 32, are_sizes, marks), _mm256_slli_epi16(marks, 3));
}

/* Levels, plus 128: negating a byte of 128 + level gives 128 - level. */
INLINE __m256i shift_lifted(const uint32_t bits, __m256i marks)
{
    return _mm256_sign_epi8(shift_found(bits, false, marks), _mm256_add_epi8(marks, marks));
}

/* `q`, negated where a level is below 0. Of the upper halves of the tables only 2 bits' first level is below 0, whose
 * mark has a place of 0: taking 1 off twice the place borrows from the sign there, and nowhere else. */
INLINE __m256i shift_signed(const uint32_t bits, __m256i marks, __m256i q)
{
    const __m256i twice = _mm256_add_epi8(marks, marks);
    return _mm256_sign_epi8(q, bits == 2 ? _mm256_add_epi8(twice, _mm256_set1_epi8(-0x41)) : twice);
}

/* ---- one block ---- */

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
    __m256i marks = _mm256_permutevar8x32_epi32(shift_window_marks(bits, windows), by_halves);
    marks = _mm256_shuffle_epi8(marks, _mm256_broadcastsi128_si256(in_order));
    if (bits == 3) {
        uint32_t above;
        memcpy(&above, at, sizeof above);
        marks = _mm256_xor_si256(marks, spread(above, -1));
    }
    if (bits == 4) {
        const __m256i twice =
            _mm256_srlv_epi64(_mm256_set1_epi64x(eight_at(at)), _mm256_setr_epi64x(0, 2, 4, 6));
        marks = shift_with_two_free(marks, _mm256_and_si256(twice, _mm256_set1_epi8(3)));
    }
    return _mm256_xor_si256(shift_lifted(bits, marks), _mm256_set1_epi8((char)0x80));
}

#endif
