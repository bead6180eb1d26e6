/* Four blocks of shift codes of a row at once, for the canonical kernels of AVX2.
 *
 * A float of 32768 + level + 128 has that level in its second byte (LIFTED), so bytes become floats by unpacking them
 * with zeros and with the exponent. Unpacking works within halves of a register; so that floats come out in the order
 * of their columns, the lower halves have the coded bytes with an even number, the upper halves the others. */
#ifndef MOEC_RUNTIME_CANONICAL_SHIFT_AVX2_H
#define MOEC_RUNTIME_CANONICAL_SHIFT_AVX2_H

#include "runtime/kernels/lanes/lanes_avx2.h"
#include "runtime/kernels/lanes/shift_x86.h"

/* Levels, plus 128, of a block each: bytes 4 e + k of the lower half are those of weights 8 e + k, of the upper half
 * those of weights 8 e + 4 + k. */
struct shift_levels {
    __m256i of[SET_BLOCKS];
};

INLINE __m256i shift_load(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

INLINE __m256i shift_twice(const uint8_t *at)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)at));
}

/* The coded bytes of four blocks: in the lower half those with an even number, in the upper half the others. */
INLINE __m256i shift_coded_apart(const uint32_t bits, const uint8_t *at)
{
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i in_halves = _mm256_broadcastsi128_si256(apart);
    if (bits == 2)
        return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(shift_load(at), in_halves), 0xd8);
    if (bits == 3) { /* blocks 0 and 1, then 3 and 2 */
        const __m128i turned = _mm_setr_epi8(8, 10, 12, 14, 0, 2, 4, 6, 9, 11, 13, 15, 1, 3, 5, 7);
        const __m256i others = _mm256_permute4x64_epi64(shift_load(at + 16), 0x30);
        const __m256i coded = _mm256_blend_epi32(shift_load(at + 4), others, 0x3c);
        return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(coded, _mm256_set_m128i(turned, apart)), 0xd8);
    }
    const __m256i coded = _mm256_unpackhi_epi64(shift_load(at), shift_load(at + 32));
    return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(coded, in_halves),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The bytes before each of these; what goes before the blocks is the last byte of `front`. */
INLINE __m256i shift_before(__m256i apart, __m128i front)
{
    const __m256i turned = _mm256_permute2x128_si256(apart, apart, 1);
    return _mm256_blend_epi32(_mm256_alignr_epi8(turned, _mm256_castsi128_si256(front), 15), turned, 0xf0);
}

/* The marks of 3 bits with the free bits of four blocks, of which byte e has those of coded bytes 2 e and 2 e + 1. */
INLINE void shift_add_free(const uint8_t *at, __m256i marks[4])
{
    const __m256 first = _mm256_castsi256_ps(shift_twice(at)),
                 second = _mm256_castsi256_ps(shift_twice(at + 24));
    const __m256i free_bits = _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xcc));
    const __m256i of_first = _mm256_set_m128i(_mm_set1_epi8(16), _mm_set1_epi8(1));
    UNROLL
    for (int j = 0; j < 4; j++)
        marks[j] = shift_with_free(marks[j], free_bits, _mm256_slli_epi16(of_first, j));
}

/* Of 4 bits: the two free bits of each weight of block b, in the order of its levels. */
INLINE __m256i shift_two_free_of(const uint8_t *at, const int b)
{
    const __m256i all = _mm256_unpacklo_epi64(shift_load(at), shift_load(at + 32)); /* of blocks 0, 2, 1, 3 */
    const int first = b / 2 * 2 + b % 2 * 4;
    const __m256i of_block =
        _mm256_setr_epi32(first, first, first, first, first + 1, first + 1, first + 1, first + 1);
    const __m256i four = _mm256_permutevar8x32_epi32(all, of_block);
    return _mm256_and_si256(_mm256_srlv_epi32(four, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6)),
                            _mm256_set1_epi8(3));
}

INLINE struct shift_levels shift_open(const uint32_t bits, const uint8_t *at, const bool is_first)
{
    static const uint8_t nothing[16];
    const __m256i here = shift_coded_apart(bits, at);
    const __m128i front = _mm_loadu_si128((const __m128i *)(is_first ? nothing : at - sizeof nothing));
    __m256i marks[4];
    shift_marks(bits, shift_stream(here), shift_stream(shift_before(here, front)), marks);
    if (bits == 3)
        shift_add_free(at, marks);
    const __m256i low01 = _mm256_unpacklo_epi8(marks[0], marks[1]),
                  low23 = _mm256_unpacklo_epi8(marks[2], marks[3]);
    const __m256i high01 = _mm256_unpackhi_epi8(marks[0], marks[1]),
                  high23 = _mm256_unpackhi_epi8(marks[2], marks[3]);
    struct shift_levels levels = {{_mm256_unpacklo_epi16(low01, low23), _mm256_unpackhi_epi16(low01, low23),
                                   _mm256_unpacklo_epi16(high01, high23),
                                   _mm256_unpackhi_epi16(high01, high23)}};
    UNROLL
    for (int b = 0; b < SET_BLOCKS; b++) {
        if (bits == 4)
            levels.of[b] = shift_with_two_free(levels.of[b], shift_two_free_of(at, b));
        levels.of[b] = shift_lifted(bits, levels.of[b]);
    }
    return levels;
}

/* Weights 16 k to 16 k + 15. */
INLINE lanes shift_lanes(const struct shift_levels *levels, const int k, const struct decoder *decoder)
{
    const __m256i none = _mm256_setzero_si256(), exponent = _mm256_set1_epi16(0x4700), of = levels->of[k / 2];
    const __m256i pairs = k % 2 == 0 ? _mm256_unpacklo_epi8(none, of) : _mm256_unpackhi_epi8(none, of);
    const __m256 low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(pairs, exponent)),
                 high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(pairs, exponent));
    return (lanes){_mm256_fmadd_ps(low, decoder->first, decoder->second),
                   _mm256_fmadd_ps(high, decoder->first, decoder->second)};
}

INLINE struct decoder shift_decoder(float scale)
{
    return decoder_make(MOEC_DTYPE_INT8 | LIFTED, scale, 0 - (LIFT + 128) * scale);
}

#endif
