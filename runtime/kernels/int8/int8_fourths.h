/* Products of one token with rows of shift codes on AVX2, two rows in the halves of a register: part of
 * runtime/kernels/int8/int8_dot.h.
 *
 * Decoding gives weights 4 i + j by j. For one token it costs less to put its numbers into that order once than to
 * put each row's levels into theirs: 2 of 17 operations for 32 weights. */
#ifndef MOEC_RUNTIME_INT8_FOURTHS_H
#define MOEC_RUNTIME_INT8_FOURTHS_H

#include "runtime/kernels/int8/int8_shift_avx2.h"

#define FOURTHS_SPANS 128 /* longer rows are multiplied in their own order */

/* Of blocks 2 u and 2 u + 1 of a span, numbers 4 i + j as of[u][j][i]. */
struct fourths {
    _Alignas(16) int8_t of[2][4][16];
};

INLINE void fourths_of(const struct moec_int8_span *x, struct fourths *out)
{
    const __m128i by_four = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    UNROLL
    for (int u = 0; u < 2; u++) {
        __m128i v[4];
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int8_t *at = x->q + 64 * (i % 2) + 32 * u + 16 * (i / 2);
            v[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)at), by_four);
        }
        const __m128i low01 = _mm_unpacklo_epi32(v[0], v[1]), high01 = _mm_unpackhi_epi32(v[0], v[1]);
        const __m128i low23 = _mm_unpacklo_epi32(v[2], v[3]), high23 = _mm_unpackhi_epi32(v[2], v[3]);
        __m128i *of = (__m128i *)out->of[u];
        _mm_store_si128(of, _mm_unpacklo_epi64(low01, low23));
        _mm_store_si128(of + 1, _mm_unpackhi_epi64(low01, low23));
        _mm_store_si128(of + 2, _mm_unpacklo_epi64(high01, high23));
        _mm_store_si128(of + 3, _mm_unpackhi_epi64(high01, high23));
    }
}

/* `sums` of two rows and the products of two blocks each, which stand at a and b. `before` is what goes before
 * them, and then they themselves. */
INLINE __m256i fourths_dot(const uint32_t bits, __m256i sums, const uint8_t *a, const uint8_t *b,
                           const int8_t (*q)[16], struct shift_stream *before)
{
    const struct shift_stream here = shift_stream(shift_coded(bits, a, b));
    __m256i marks[4];
    shift_marks(bits, here, shift_behind(here, *before, 1), marks);
    *before = here;
    if (bits > 2)
        shift_add_free(bits, shift_free(bits, a, b), marks);
    UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i four = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)q[j]));
        sums = shift_dot_of(bits, sums, marks[j], four);
    }
    return sums;
}

/* `sum` and the products of one span with four rows, which stand at at[r]. */
INLINE fours fourths_span(const uint32_t bits, const uint8_t *const at[ROWS_AT_ONCE], const struct fourths *x,
                          float scale, fours scales, struct shift_stream before[2], fours sum)
{
    const size_t two = 2 * moec_shift_block_bytes(bits);
    __m256i products[2];
    UNROLL
    for (int p = 0; p < 2; p++) {
        const uint8_t *a = at[2 * p], *b = at[2 * p + 1];
        const __m256i first = fourths_dot(bits, _mm256_setzero_si256(), a, b, x->of[0], &before[p]);
        products[p] = fourths_dot(bits, first, a + two, b + two, x->of[1], &before[p]);
    }
    __m256i two_by_two = _mm256_hadd_epi32(products[0], products[1]); /* rows 0 and 2, then 1 and 3 */
    two_by_two = _mm256_hadd_epi32(two_by_two, two_by_two);
    const __m128i totals =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(two_by_two), _mm256_extracti128_si256(two_by_two, 1));
    return fours_fma(fours_fma(_mm_cvtepi32_ps(totals), scales, fours_set(0)), fours_set(scale), sum);
}

/* Products of one token with four rows. */
INLINE fours fourths_one(const uint32_t bits, const struct plan *plan, const struct dot_rows *rows,
                         const struct moec_int8_span *x, const struct fourths *turned)
{
    const fours scales = fours_load(rows->factors);
    struct shift_stream before[2] = {0};
    fours sum = fours_set(0);
    size_t o = 0;
    for (size_t s = 0; s < plan->whole; s++, o += plan->span_bytes) {
        const uint8_t *at[ROWS_AT_ONCE];
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            at[r] = rows->bytes[r] + o;
            ask_line_soon(rows->later[r] + o);
        }
        sum = fourths_span(bits, at, turned + s, x[s].scale, scales, before, sum);
    }
    if (plan->tail_bytes > 0) {
        uint8_t tails[ROWS_AT_ONCE][BEFORE + SPAN];
        const uint8_t *at[ROWS_AT_ONCE];
        for (int r = 0; r < ROWS_AT_ONCE; r++)
            at[r] = tail_copied(SHIFT + (int)bits, plan, rows->bytes[r] + o, o == 0, tails[r]);
        sum = fourths_span(bits, at, turned + plan->whole, x[plan->whole].scale, scales, before, sum);
    }
    return sum;
}

/* Products of one token with all rows that are chosen; false where they are too long. */
INLINE bool fourths_alone(const uint32_t bits, const struct moec_matrix *matrix, const struct plan *plan,
                          const struct chosen *chosen, const struct moec_int8_span *x, float *y)
{
    const size_t spans = moec_int8_spans(matrix->columns);
    const uint32_t gap = (chosen->n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    struct fourths turned[FOURTHS_SPANS];
    if (spans > FOURTHS_SPANS)
        return false;
    for (size_t s = 0; s < spans; s++)
        fourths_of(x + s, turned + s);
    for (uint32_t i = 0; i < gap; i++) {
        struct dot_rows rows;
        float four[ROWS_AT_ONCE];
        rows_open(matrix, plan, chosen, i, gap, &rows);
        fours_store(four, fourths_one(bits, plan, &rows, x, turned));
        for (uint32_t r = 0; r < ROWS_AT_ONCE && i + r * gap < chosen->n; r++)
            y[i + r * gap] = four[r];
    }
    return true;
}

#endif
