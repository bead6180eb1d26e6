/* Rounding, and products of few tokens, of the int8 arithmetic: part of runtime/kernels/int8/int8_set.h. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_DOT_H
#define MOEC_RUNTIME_KERNELS_INT8_DOT_H

#include "runtime/kernels/int8/int8_lanes.h"

static void round_span(const float *x, struct moec_int8_span *span)
{
    lanes top = lanes_zero();
    for (int i = 0; i < SPAN; i += LANES)
        top = magnitudes_top(top, lanes_load(x + i));
    const float most = magnitude_of(top);
    const lanes inverse = lanes_set(inverse_of(most));
    span->scale = most / 127.0f;
    for (int block = 0; block < SPAN / BLOCK; block++) {
        for (int half = 0; half < 2; half++) {
            words_store_low_bytes(span->q + 64 * half + 16 * block,
                                  rounded(lanes_load(x + BLOCK * block + LANES * half), inverse));
        }
    }
    words sums = words_zero();
    for (int half = 0; half < 2; half++)
        sums = words_sum_quads(sums, words_load(span->q + 64 * half));
    words_store(span->sums, words_by_fours((const words[4]){sums, sums, sums, sums}));
}

static void round_all(const float *x, size_t n, struct moec_int8_span *spans)
{
    size_t at = 0;
    for (; n - at >= SPAN; at += SPAN)
        round_span(x + at, spans++);
    if (at < n) {
        float padded[SPAN] = {0};
        memcpy(padded, x + at, (n - at) * sizeof *x);
        round_span(padded, spans);
    }
}

#define ROWS_AT_ONCE 4

/* Rows that lie apart, each of a stream that goes on behind it: see kernels_shape.h. */
struct dot_rows {
    const uint8_t *bytes[ROWS_AT_ONCE];
    const uint8_t *later[ROWS_AT_ONCE]; /* the row that each stream comes to */
    float factors[ROWS_AT_ONCE];
};

/* Scales and zeros of 16 groups of four rows, from a multiple of 16 on, or 16 times those of a row without
 * groups: of group 4 l + k those of row r stand at [k][4 l + r]. */
struct strip {
    float scales[4][LANES], zeros[4][LANES];
};

INLINE void strip_store(const lanes of_rows[4], float out[4][LANES])
{
    lanes by_group[4];
    lanes_by_fours(of_rows, by_group);
    UNROLL
    for (int k = 0; k < 4; k++)
        lanes_store(out[k], by_group[k]);
}

INLINE void strip_fill(const int dtype, const bool has_zeros, const struct plan *plan,
                       const struct dot_rows *rows, size_t g, struct strip *strip)
{
    lanes scales[ROWS_AT_ONCE], zeros[ROWS_AT_ONCE];
    UNROLL
    for (int r = 0; r < ROWS_AT_ONCE; r++) {
        const uint8_t *row = rows->bytes[r];
        scales[r] =
            plan->group == 0 ? lanes_set(rows->factors[r]) : scales_at(plan, row, rows->factors[r], g);
        zeros[r] = !has_zeros         ? lanes_zero()
                   : plan->group == 0 ? lanes_set((float)row_zero(dtype, plan, row))
                                      : zeros_at(dtype, plan, row, g);
    }
    strip_store(scales, strip->scales);
    if (has_zeros)
        strip_store(zeros, strip->zeros);
}

/* Four rows' scales or zeros of group g of a strip. */
INLINE fours strip_at(const float part[4][LANES], size_t g)
{
    return fours_load(part[g % 4] + g / 4 * 4);
}

/* Products of a row's codes and a token's span, in 32-bit integers that are still to be added up. */
INLINE words row_products(const int dtype, words start, struct codes codes, const struct moec_int8_span *span)
{
    const words first = words_dot(dtype, start, codes.half[0], words_load(span->q));
    return words_dot(dtype, first, codes.half[1], words_load(span->q + 64));
}

/* `sum` and the products of a span of four rows, whose scales are those of the strip from group g on. */
INLINE fours dot_span(const int dtype, const bool has_zeros, int per_span, const struct strip *strip,
                      size_t g, const words products[ROWS_AT_ONCE], const struct moec_int8_span *span,
                      fours sum)
{
    const words sums = words_load(span->sums);
    words whole = words_by_fours(products);
    if (!has_zeros && OFFSET(dtype) == 0)
        whole = words_sub(whole, words_up(sums, (int)bits_of(dtype) - 1));
    const lanes exact = lanes_of_words(whole), of_zeros = lanes_of_words(words_sub(words_zero(), sums));
    fours of[4]; /* blocks, then groups: sums of integers that floats hold exactly */
    UNROLL
    for (int b = 0; b < 4; b++) {
        of[b] = lanes_four(exact, b);
        if (has_zeros)
            of[b] = fours_fma(strip_at(strip->zeros, g + (size_t)(b * per_span / 4)), lanes_four(of_zeros, b),
                              of[b]);
    }
    if (per_span < 4) {
        of[0] = of[0] + of[1];
        of[1] = of[2] + of[3];
    }
    if (per_span == 1)
        of[0] = of[0] + of[1];
    fours p = fours_fma(of[0], strip_at(strip->scales, g), fours_set(0));
    if (per_span > 1)
        p = fours_fma(of[1], strip_at(strip->scales, g + 1), p);
    if (per_span > 2) {
        p = fours_fma(of[2], strip_at(strip->scales, g + 2), p);
        p = fours_fma(of[3], strip_at(strip->scales, g + 3), p);
    }
    return fours_fma(p, fours_set(span->scale), sum);
}

/* Asks for span s of the rows that come later and for its share of what else they have, each line once. */
INLINE void rows_ask(const struct plan *plan, const struct dot_rows *rows, size_t s)
{
    const size_t step = plan->step;
    for (size_t at = (s * step + LINE - 1) / LINE * LINE; at < (s + 1) * step; at += LINE) {
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++)
            ask_line_soon(rows->later[r] + at);
    }
}

/* Where span s of four rows stands, of an incomplete one a copy; fills the strip where group g begins one. */
INLINE void span_open(const int dtype, const bool has_zeros, const struct plan *plan,
                      const struct dot_rows *rows, size_t s, size_t g, struct strip *strip,
                      uint8_t tails[ROWS_AT_ONCE][BEFORE + SPAN], const uint8_t *at[ROWS_AT_ONCE])
{
    UNROLL
    for (int r = 0; r < ROWS_AT_ONCE; r++)
        at[r] = rows->bytes[r] + s * plan->span_bytes;
    for (int r = 0; r < ROWS_AT_ONCE && s == plan->whole; r++)
        at[r] = tail_copied(dtype, plan, at[r], s == 0, tails[r]);
    rows_ask(plan, rows, s);
    if (g % LANES == 0 && (s == 0 || plan->group != 0))
        strip_fill(dtype, has_zeros, plan, rows, g, strip);
}

/* Products of one token with four rows. */
INLINE fours dot_one(const int dtype, const bool has_zeros, const struct plan *plan,
                     const struct dot_rows *rows, const struct moec_int8_span *x)
{
    const size_t spans = plan->whole + (plan->tail_bytes > 0);
    const int per_span = IS_PATH(dtype) ? 1 : plan->per_span;
    const size_t step = plan->group == 0 ? 0 : (size_t)per_span;
    struct strip strip;
    fours sum = fours_set(0);
    for (size_t s = 0, g = 0; s < spans; s++, g += step) {
        uint8_t tails[ROWS_AT_ONCE][BEFORE + SPAN];
        const uint8_t *at[ROWS_AT_ONCE];
        words products[ROWS_AT_ONCE];
        span_open(dtype, has_zeros, plan, rows, s, g, &strip, tails, at);
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++)
            products[r] = row_products(dtype, words_zero(), codes_at(dtype, at[r], s == 0), x + s);
        sum = dot_span(dtype, has_zeros, per_span, &strip, g % LANES, products, x + s, sum);
    }
    return sum;
}

/* `sum` and the products of one token's span with four rows of one scale each, which stand at at[r]. */
INLINE fours path_span(const int dtype, const uint8_t *const at[ROWS_AT_ONCE], bool is_first,
                       const struct moec_int8_span *x, fours scales, fours sum)
{
    words start = words_zero(), products[ROWS_AT_ONCE];
    if (OFFSET(dtype) == 0) /* of each block the sum stands four times */
        start = words_up(words_sub(start, words_load(x->sums)), (int)bits_of(dtype) - 3);
    UNROLL
    for (int r = 0; r < ROWS_AT_ONCE; r++)
        products[r] = row_products(dtype, start, codes_at(dtype, at[r], is_first), x);
    const fours p = fours_fma(words_totals(products), scales, fours_set(0));
    return fours_fma(p, fours_set(x->scale), sum);
}

/* The same of whole rows. */
INLINE fours path_one(const int dtype, const struct plan *plan, const struct dot_rows *rows,
                      const struct moec_int8_span *x)
{
    const fours scales = fours_load(rows->factors);
    fours sum = fours_set(0);
    size_t o = 0;
    for (size_t s = 0; s < plan->whole; s++, o += plan->span_bytes) {
        const uint8_t *at[ROWS_AT_ONCE];
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            at[r] = rows->bytes[r] + o;
            ask_line_soon(rows->later[r] + o);
        }
        sum = path_span(dtype, at, s == 0, x + s, scales, sum);
    }
    if (plan->tail_bytes > 0) {
        uint8_t tails[ROWS_AT_ONCE][BEFORE + SPAN];
        const uint8_t *at[ROWS_AT_ONCE];
        for (int r = 0; r < ROWS_AT_ONCE; r++)
            at[r] = tail_copied(dtype, plan, rows->bytes[r] + o, o == 0, tails[r]);
        sum = path_span(dtype, at, o == 0, x + plan->whole, scales, sum);
    }
    return sum;
}

/* The same of n tokens, at most MOEC_INT8_FEW: out[t][r]. Codes are taken apart once for all of them. */
INLINE void dot_few(const int dtype, const bool has_zeros, const struct plan *plan,
                    const struct dot_rows *rows, const struct moec_int8_span *const *x, uint32_t n,
                    float out[MOEC_INT8_FEW][ROWS_AT_ONCE])
{
    const size_t spans = plan->whole + (plan->tail_bytes > 0);
    const int per_span = IS_PATH(dtype) ? 1 : plan->per_span;
    const size_t step = plan->group == 0 ? 0 : (size_t)per_span;
    struct strip strip;
    fours sums[MOEC_INT8_FEW];
    for (uint32_t t = 0; t < n; t++)
        sums[t] = fours_set(0);
    for (size_t s = 0, g = 0; s < spans; s++, g += step) {
        uint8_t tails[ROWS_AT_ONCE][BEFORE + SPAN];
        const uint8_t *at[ROWS_AT_ONCE];
        struct codes codes[ROWS_AT_ONCE];
        span_open(dtype, has_zeros, plan, rows, s, g, &strip, tails, at);
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++)
            codes[r] = codes_at(dtype, at[r], s == 0);
        NO_UNROLL
        for (uint32_t t = 0; t < n; t++) {
            words products[ROWS_AT_ONCE];
            UNROLL
            for (int r = 0; r < ROWS_AT_ONCE; r++)
                products[r] = row_products(dtype, words_zero(), codes[r], x[t] + s);
            sums[t] = dot_span(dtype, has_zeros, per_span, &strip, g % LANES, products, x[t] + s, sums[t]);
        }
    }
    for (uint32_t t = 0; t < n; t++)
        fours_store(out[t], sums[t]);
}

/* Opens rows number i, i + gap and on of those chosen; the last stands for missing ones. */
INLINE void rows_open(const struct moec_matrix *matrix, const struct plan *plan, const struct chosen *chosen,
                      uint32_t i, uint32_t gap, struct dot_rows *rows)
{
    const uint32_t n = chosen->n, ahead = STREAM_BYTES / (uint32_t)(plan->row_bytes + 1) + 1;
    uint32_t later = stream_later(chosen, i, gap, ahead);
    for (uint32_t r = 0; r < ROWS_AT_ONCE; r++, i += gap, later += gap) {
        rows->bytes[r] = row_at(matrix, chosen_row(chosen, i < n ? i : n - 1));
        rows->later[r] = row_at(matrix, stream_row(chosen, matrix->rows, later));
        rows->factors[r] = row_factor(plan, rows->bytes[r]);
    }
}

#if defined(HAS_FOURTHS)
#include "runtime/kernels/int8/int8_fourths.h"
#endif

/* Products of one token with all rows that are chosen. */
INLINE void dot_alone(const int dtype, const bool has_zeros, const struct moec_matrix *matrix,
                      const struct chosen *chosen, const struct moec_int8_span *x, float *y)
{
    const struct plan plan = plan_of(matrix);
    const uint32_t gap = (chosen->n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
#if defined(HAS_FOURTHS)
    if (dtype > SHIFT && fourths_alone((uint32_t)(dtype - SHIFT), matrix, &plan, chosen, x, y))
        return;
#endif
    for (uint32_t i = 0; i < gap; i++) {
        struct dot_rows rows;
        float four[ROWS_AT_ONCE];
        rows_open(matrix, &plan, chosen, i, gap, &rows);
        if (IS_PATH(dtype))
            fours_store(four, path_one(dtype, &plan, &rows, x));
        else
            fours_store(four, dot_one(dtype, has_zeros, &plan, &rows, x));
        for (uint32_t r = 0; r < ROWS_AT_ONCE && i + r * gap < chosen->n; r++)
            y[i + r * gap] = four[r];
    }
}

FOR_ANY_CODEC(dot_alone,
              (const struct moec_matrix *matrix, const struct chosen *chosen, const struct moec_int8_span *x,
               float *y),
              (matrix, chosen, x, y))

/* The same of n_tok tokens, whose groups take the same rows one after the other. */
INLINE void dot_together(const int dtype, const bool has_zeros, const struct moec_matrix *matrix,
                         const struct chosen *chosen, const struct moec_int8_span *const *x, uint32_t n_tok,
                         float *y, size_t y_stride)
{
    const struct plan plan = plan_of(matrix);
    const uint32_t gap = (chosen->n + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    for (uint32_t i = 0; i < gap; i++) {
        struct dot_rows rows;
        rows_open(matrix, &plan, chosen, i, gap, &rows);
        for (uint32_t t = 0, n = 0; t < n_tok; t += n) {
            float few[MOEC_INT8_FEW][ROWS_AT_ONCE];
            n = n_tok - t < MOEC_INT8_FEW ? n_tok - t : MOEC_INT8_FEW;
            dot_few(dtype, has_zeros, &plan, &rows, x + t, n, few);
            for (uint32_t k = 0; k < n; k++)
                for (uint32_t r = 0; r < ROWS_AT_ONCE && i + r * gap < chosen->n; r++)
                    y[(t + k) * y_stride + i + r * gap] = few[k][r];
        }
    }
}

FOR_ANY_CODEC(dot_together,
              (const struct moec_matrix *matrix, const struct chosen *chosen,
               const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride),
              (matrix, chosen, x, n_tok, y, y_stride))

#endif
