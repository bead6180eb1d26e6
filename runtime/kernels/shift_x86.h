/* Levels of shift-coded blocks (formats/codec/shift.h) in vectors of 32 bytes, for sets of AVX2. */
#ifndef MOEC_RUNTIME_SHIFT_X86_H
#define MOEC_RUNTIME_SHIFT_X86_H

#include "runtime/kernels/kernels_shape.h"

#include <immintrin.h>

/* Levels, and exclusive ors of columns for each half of a window, by bits a weight. */
static const int8_t shift_levels_2[64] = {MOEC_SHIFT_2_LEVELS}, shift_levels_3[64] = {MOEC_SHIFT_3_LEVELS},
                    shift_levels_4[128] = {MOEC_SHIFT_4_LEVELS};

INLINE __m256i shift_half_table(const uint32_t bits, const bool is_high)
{
    const __m128i two = is_high ? _mm_setr_epi8(MOEC_SHIFT_2_HIGH) : _mm_setr_epi8(MOEC_SHIFT_2_LOW);
    const __m128i three = is_high ? _mm_setr_epi8(MOEC_SHIFT_3_HIGH) : _mm_setr_epi8(MOEC_SHIFT_3_LOW);
    const __m128i four = is_high ? _mm_setr_epi8(MOEC_SHIFT_4_HIGH) : _mm_setr_epi8(MOEC_SHIFT_4_LOW);
    return _mm256_broadcastsi128_si256(bits == 2 ? two : bits == 3 ? three : four);
}

/* Windows of the weights whose coded bits and those of the bytes before them stand in pairs of bytes, four
 * weights a pair: of weights 0 and 1 of each in out[0], of 2 and 3 in out[1]. */
INLINE void shift_windows(__m256i pairs, __m256i out[2])
{
    const __m256i low = _mm256_set1_epi16(0x00ff), high = _mm256_set1_epi16((short)0xff00);
    out[0] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(pairs, 2), low),
                             _mm256_and_si256(_mm256_slli_epi16(pairs, 4), high));
    out[1] =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(pairs, 6), low), _mm256_and_si256(pairs, high));
}

/* The numbers made of windows. */
INLINE __m256i shift_places(const uint32_t bits, __m256i windows)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(windows, nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(windows, 4), nibble);
    return _mm256_xor_si256(_mm256_shuffle_epi8(shift_half_table(bits, false), low),
                            _mm256_shuffle_epi8(shift_half_table(bits, true), high));
}

INLINE __m256i shift_sixteen(const int8_t *levels)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)levels));
}

INLINE __m256i shift_of_64(const int8_t *levels, __m256i places)
{
    const __m256i by_16 = _mm256_slli_epi16(places, 3), by_32 = _mm256_slli_epi16(places, 2);
    const __m256i low = _mm256_blendv_epi8(_mm256_shuffle_epi8(shift_sixteen(levels), places),
                                           _mm256_shuffle_epi8(shift_sixteen(levels + 16), places), by_16);
    const __m256i high = _mm256_blendv_epi8(_mm256_shuffle_epi8(shift_sixteen(levels + 32), places),
                                            _mm256_shuffle_epi8(shift_sixteen(levels + 48), places), by_16);
    return _mm256_blendv_epi8(low, high, by_32);
}

/* Of 128 levels the upper half is the negated lower one from behind. */
INLINE __m256i shift_levels(const uint32_t bits, __m256i places)
{
    if (bits < 4)
        return shift_of_64(bits == 2 ? shift_levels_2 : shift_levels_3, places);
    const __m256i is_upper = _mm256_cmpgt_epi8(_mm256_setzero_si256(), _mm256_slli_epi16(places, 1));
    const __m256i mirrored = _mm256_xor_si256(places, _mm256_and_si256(is_upper, _mm256_set1_epi8(127)));
    return _mm256_sub_epi8(_mm256_xor_si256(shift_of_64(shift_levels_4, mirrored), is_upper), is_upper);
}

/* A block's bytes of coded bits, each behind the one before it: `before` is that of the first. */
INLINE __m128i shift_pairs(const uint8_t *coded, uint32_t before)
{
    int64_t here;
    memcpy(&here, coded, sizeof here);
    return _mm_unpacklo_epi8(_mm_cvtsi64_si128((int64_t)((uint64_t)here << 8 | before)),
                             _mm_cvtsi64_si128(here));
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
INLINE __m256i shift_block_levels(const uint32_t bits, const uint8_t *at, uint32_t before)
{
    __m256i pairs = _mm256_castsi128_si256(shift_pairs(at + moec_shift_free_bytes(bits), before)), windows[2];
    shift_windows(pairs, windows);
    const __m128i first = _mm256_castsi256_si128(windows[0]), second = _mm256_castsi256_si128(windows[1]);
    __m256i places = shift_places(
        bits, _mm256_set_m128i(_mm_unpackhi_epi16(first, second), _mm_unpacklo_epi16(first, second)));
    if (bits == 3) {
        uint32_t above;
        memcpy(&above, at, sizeof above);
        places = _mm256_or_si256(places, spread(above, 32));
    }
    if (bits == 4) {
        int64_t above;
        memcpy(&above, at, sizeof above);
        const __m256i twice = _mm256_srlv_epi64(_mm256_set1_epi64x(above), _mm256_setr_epi64x(0, 2, 4, 6));
        const __m256i two = _mm256_and_si256(twice, _mm256_set1_epi8(3));
        places = _mm256_or_si256(places, _mm256_slli_epi16(two, 5));
    }
    return shift_levels(bits, places);
}

#endif
