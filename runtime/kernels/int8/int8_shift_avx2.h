/* Shift codes of the int8 arithmetic of AVX2: codes of a span, products of two rows at once, and of four rows side by
 * side. Part of runtime/kernels/int8/int8_avx2.h. */
#ifndef MOEC_RUNTIME_INT8_INT8_SHIFT_AVX2_H
#define MOEC_RUNTIME_INT8_INT8_SHIFT_AVX2_H

#include "runtime/kernels/lanes/shift_x86.h"

/* 16 bytes at each of two places. */
INLINE __m256i shift_both(const uint8_t *a, const uint8_t *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                   _mm_loadu_si128((const __m128i *)b), 1);
}

/* The coded bytes of two blocks at `a`, and of two at `b` in the upper half. */
INLINE __m256i shift_coded(const uint32_t bits, const uint8_t *a, const uint8_t *b)
{
    if (bits == 2)
        return shift_both(a, b);
    if (bits == 3)
        return _mm256_blend_epi32(shift_both(a + 4, b + 4), shift_both(a + 8, b + 8), 0xcc);
    return _mm256_unpackhi_epi64(shift_both(a, b), shift_both(a + 16, b + 16));
}

/* Their bytes of free bits: of 4 bits those of both blocks behind each other, of 3 bits the first and the last four. */
INLINE __m256i shift_free(const uint32_t bits, const uint8_t *a, const uint8_t *b)
{
    return bits == 3 ? shift_both(a, b) : _mm256_unpacklo_epi64(shift_both(a, b), shift_both(a + 16, b + 16));
}

/* The marks of weights 4 i + j with their free bits, i counting the coded bytes of two blocks in each half. */
INLINE void shift_add_free(const uint32_t bits, __m256i free_bits, __m256i marks[4])
{
    const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 12, 12, 13, 13, 14, 14, 15, 15);
    const __m128i by_two = _mm_setr_epi8(0, 4, 0, 4, 0, 4, 0, 4, 8, 12, 8, 12, 8, 12, 8, 12);
    const __m256i by_byte = _mm256_shuffle_epi8(free_bits, _mm256_broadcastsi128_si256(twice));
    UNROLL
    for (int j = 0; j < 4; j++) {
        if (bits == 3) {
            marks[j] = shift_with_free(marks[j], by_byte, _mm256_slli_epi16(_mm256_set1_epi16(0x1001), j));
            continue;
        }
        /* The two bits of a byte's weight are pushed up to its highest, further those that stand lower. */
        const __m128i places = _mm_add_epi8(by_two, _mm_set1_epi8((char)j));
        const __m256i bytes = _mm256_shuffle_epi8(free_bits, _mm256_broadcastsi128_si256(places));
        const __m256i highest = _mm256_mullo_epi16(bytes, _mm256_set1_epi64x(0x0001000400100040));
        marks[j] = shift_with_two_free(marks[j],
                                       _mm256_and_si256(_mm256_srli_epi16(highest, 6), _mm256_set1_epi8(3)));
    }
}

/* ---- codes of a span ---- */

/* The last of the eight bytes in front of a span, or of zeros, as the last of sixteen. */
INLINE __m256i shift_front(const uint8_t *bytes, const bool is_first)
{
    const int64_t eight = is_first ? 0 : eight_at(bytes - BEFORE);
    return _mm256_castsi128_si256(_mm_set1_epi64x(eight));
}

INLINE struct codes shift_codes(const uint32_t bits, const uint8_t *bytes, const bool is_first)
{
    const uint8_t *second = bytes + 2 * moec_shift_block_bytes(bits);
    const __m256i here = shift_coded(bits, bytes, second);
    const __m256i fronts = _mm256_permute2x128_si256(shift_front(bytes, is_first), here, 0x20);
    __m256i marks[4], of[4];
    shift_marks(bits, shift_stream(here), shift_stream(_mm256_alignr_epi8(here, fronts, 15)), marks);
    if (bits > 2)
        shift_add_free(bits, shift_free(bits, bytes, second), marks);
    UNROLL
    for (int j = 0; j < 4; j++)
        marks[j] = shift_lifted(bits, marks[j]);
    const __m256i low01 = _mm256_unpacklo_epi8(marks[0], marks[1]),
                  low23 = _mm256_unpacklo_epi8(marks[2], marks[3]);
    const __m256i high01 = _mm256_unpackhi_epi8(marks[0], marks[1]),
                  high23 = _mm256_unpackhi_epi8(marks[2], marks[3]);
    of[0] = _mm256_unpacklo_epi16(low01, low23); /* first halves of blocks 0 and 2, then second ones */
    of[1] = _mm256_unpackhi_epi16(low01, low23);
    of[2] = _mm256_unpacklo_epi16(high01, high23); /* of blocks 1 and 3 */
    of[3] = _mm256_unpackhi_epi16(high01, high23);
    struct codes codes;
    UNROLL
    for (int half = 0; half < 2; half++)
        codes.half[half] = (words){_mm256_permute2x128_si256(of[half], of[half + 2], 0x20),
                                   _mm256_permute2x128_si256(of[half], of[half + 2], 0x31)};
    return codes;
}

/* ---- products ---- */

/* `sums` and products of the levels of marks with q. */
INLINE __m256i shift_dot_of(const uint32_t bits, __m256i sums, __m256i marks, __m256i q)
{
    return sizes_dot_of(sums, shift_found(bits, true, marks), shift_signed(bits, marks, q));
}

/* A span of four rows side by side. Bytes 4 i + r of of[g] have of row r the coded byte 4 (g % 2) + i of block g / 2, in
 * the upper half of block g / 2 + 2; byte 4 i + r of out[j] made of it that row's weight 16 (g % 2) + 4 i + j. */
struct shift_quad {
    struct shift_stream of[4], front;
    __m256i free_bits
        [4]; /* of 3 bits [0] and [3] have those of blocks 0 and 1; of 4 bits bytes 0 to 3 of block 0 come
                           * first, then 4 to 7; those of blocks 2 and 3 stand in the upper halves */
};

/* Sixteen bytes of four rows in each half. */
INLINE void shift_mix(const __m256i rows[4], __m256i out[4])
{
    const __m256i low01 = _mm256_unpacklo_epi8(rows[0], rows[1]),
                  low23 = _mm256_unpacklo_epi8(rows[2], rows[3]);
    const __m256i high01 = _mm256_unpackhi_epi8(rows[0], rows[1]),
                  high23 = _mm256_unpackhi_epi8(rows[2], rows[3]);
    out[0] = _mm256_unpacklo_epi16(low01, low23);
    out[1] = _mm256_unpackhi_epi16(low01, low23);
    out[2] = _mm256_unpacklo_epi16(high01, high23);
    out[3] = _mm256_unpackhi_epi16(high01, high23);
}

INLINE struct shift_quad shift_quad_open(const uint32_t bits, const uint8_t *const at[4], const bool is_first)
{
    const size_t two = 2 * moec_shift_block_bytes(bits);
    struct shift_quad quad = {.free_bits = {_mm256_setzero_si256()}};
    __m256i rows[4], mixed[4];
    uint32_t front = 0;
    for (int r = 0; r < 4 && !is_first; r++)
        front |= (uint32_t)at[r][-1] << (8 * r);
    UNROLL
    for (int r = 0; r < 4; r++)
        rows[r] = shift_coded(bits, at[r], at[r] + two);
    shift_mix(rows, mixed);
    UNROLL
    for (int g = 0; g < 4; g++)
        quad.of[g] = shift_stream(mixed[g]);
    quad.front = shift_stream(
        _mm256_permute2x128_si256(_mm256_castsi128_si256(_mm_set1_epi32((int)front)), mixed[3], 0x20));
    if (bits == 2)
        return quad;
    UNROLL
    for (int r = 0; r < 4; r++)
        rows[r] = shift_free(bits, at[r], at[r] + two);
    shift_mix(rows, quad.free_bits);
    return quad;
}

/* Free bits of group g for the marks out[j]: of 3 bits in bits j and 4 + j of each byte, of 4 bits apart. */
INLINE __m256i shift_quad_free(const uint32_t bits, const struct shift_quad *quad, const int g, const int j)
{
    if (bits == 3) {
        const __m256i of_block = quad->free_bits[g / 2 * 3];
        return g % 2 == 0 ? _mm256_unpacklo_epi32(of_block, of_block)
                          : _mm256_unpackhi_epi32(of_block, of_block);
    }
    const __m256i first = quad->free_bits[g / 2 * 2], second = quad->free_bits[g / 2 * 2 + 1];
    const __m256i both = j < 2 ? _mm256_unpacklo_epi32(first, second) : _mm256_unpackhi_epi32(first, second);
    const __m256i twice = j % 2 == 0 ? _mm256_unpacklo_epi64(both, both) : _mm256_unpackhi_epi64(both, both);
    const __m256i places = _mm256_setr_epi32(0, 0, 2, 2, 0, 0, 2, 2);
    const __m256i bits_there =
        _mm256_srlv_epi32(twice, _mm256_add_epi32(places, _mm256_set1_epi32(g % 2 * 4)));
    return _mm256_and_si256(bits_there, _mm256_set1_epi8(3));
}

INLINE void shift_quad_marks(const uint32_t bits, const struct shift_quad *quad, const int g, __m256i out[4])
{
    const struct shift_stream here = quad->of[g], earlier = g == 0 ? quad->front : quad->of[g - 1];
    const __m256i lowest = _mm256_set1_epi64x(0x1010101001010101);
    shift_marks(bits, here, shift_behind(here, earlier, 4), out);
    UNROLL
    for (int j = 0; j < 4 && bits > 2; j++) {
        const __m256i free_bits = shift_quad_free(bits, quad, g, j);
        out[j] = bits == 3 ? shift_with_free(out[j], free_bits, _mm256_slli_epi16(lowest, j))
                           : shift_with_two_free(out[j], free_bits);
    }
}

#define HAS_QUADS

/* Of words 2 g and 2 g + 1 the halves are those of out[0] to out[3] of group g. */
INLINE void shift_quads(const uint32_t bits, const uint8_t *const at[4], const bool is_first, words out[8])
{
    const struct shift_quad quad = shift_quad_open(bits, at, is_first);
    UNROLL
    for (int g = 0; g < 4; g++) {
        __m256i marks[4];
        shift_quad_marks(bits, &quad, g, marks);
        UNROLL
        for (int i = 0; i < 2; i++)
            out[2 * g + i] = (words){shift_lifted(bits, marks[2 * i]), shift_lifted(bits, marks[2 * i + 1])};
    }
}

INLINE void shift_quads_products(const uint32_t bits, const uint8_t *const at[4], const bool is_first,
                                 words q, words sums[8])
{
    const struct shift_quad quad = shift_quad_open(bits, at, is_first);
    UNROLL
    for (int g = 0; g < 4; g++) {
        __m256i marks[4];
        shift_quad_marks(bits, &quad, g, marks);
        UNROLL
        for (int i = 0; i < 2; i++) {
            words *sum = &sums[2 * g + i];
            *sum = (words){shift_dot_of(bits, sum->low, marks[2 * i], q.low),
                           shift_dot_of(bits, sum->high, marks[2 * i + 1], q.low)};
        }
    }
}

/* Each group's four are transposed, which puts its columns side by side; blocks 0 and 2 then join blocks 1 and 3. */
INLINE void shift_quads_order(words sums[8])
{
    __m256i of[4][4];
    UNROLL
    for (int g = 0; g < 4; g++) {
        const words two = sums[2 * g], others = sums[2 * g + 1];
        const __m256i low01 = _mm256_unpacklo_epi32(two.low, two.high),
                      high01 = _mm256_unpackhi_epi32(two.low, two.high);
        const __m256i low23 = _mm256_unpacklo_epi32(others.low, others.high),
                      high23 = _mm256_unpackhi_epi32(others.low, others.high);
        of[g][0] = _mm256_unpacklo_epi64(low01, low23);
        of[g][1] = _mm256_unpackhi_epi64(low01, low23);
        of[g][2] = _mm256_unpacklo_epi64(high01, high23);
        of[g][3] = _mm256_unpackhi_epi64(high01, high23);
    }
    UNROLL
    for (int i = 0; i < 8; i++)
        sums[i] = (words){_mm256_permute2x128_si256(of[i / 4][i % 4], of[i / 4 + 2][i % 4], 0x20),
                          _mm256_permute2x128_si256(of[i / 4][i % 4], of[i / 4 + 2][i % 4], 0x31)};
}

#endif
