/* One token against encoded rows, of the kernels that are written once for all vector instruction sets: dots
 * and weighted sums straight from codes. Part of runtime/kernels/canonical/kernels_lanes.h, which says what a set
 * defines. */
#ifndef MOEC_RUNTIME_KERNELS_ENCODED_H
#define MOEC_RUNTIME_KERNELS_ENCODED_H

#include "runtime/kernels/canonical/kernels_parts.h"

#include "runtime/kernels/canonical/kernels_contiguous.h"

#include <math.h>

/* Whether dot and weighted sum decode a row span by span: where it has outliers, and where blocks have two
 * groups, for which a loop of their own, as fast as it would be, is too much code. */
INLINE bool goes_by_spans(const int dtype, const struct layout *layout)
{
    return (dtype & HALVES) || ((dtype & DICTIONARY) && layout->n_outlier > 0);
}

/* One span of a row with its outlier; zeros past the row's end. */
INLINE void decode_span(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                        const uint8_t *row, size_t span, float w[static SPAN])
{
    const size_t first = span * (SPAN / BLOCK), all = layout->blocks + (layout->tail > 0);
    const float factor = row_factor(dtype, layout, row);
    NO_UNROLL
    for (size_t i = 0; i < SPAN / BLOCK; i++) {
        const size_t b = first + i;
        lanes out[2] = {lanes_zero(), lanes_zero()};
        if (b < all) {
            struct decoder decoders[2];
            const uint8_t *bytes = row + b * block_bytes(dtype);
            decoders_at(dtype, layout, row, factor, b / layout->per_group, decoders);
            decode_block(dtype, bytes, decoders, out);
            if (b == layout->blocks) /* a file may have any codes past the end of a row */
                keep_tail(layout->tail, out);
        }
        lanes_store(w + i * BLOCK, out[0]);
        lanes_store(w + i * BLOCK + LANES, out[1]);
    }
    if ((dtype & DICTIONARY) && layout->n_outlier > 0) {
        const struct outlier outlier = outlier_at(layout, row, span);
        if (outlier.place < SPAN && span * SPAN + outlier.place < matrix->columns)
            w[outlier.place] = outlier.value;
    }
}

INLINE float dot_by_spans(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                          uint32_t row, const float *x)
{
    float w[SPAN];
    lanes sum = lanes_zero();
    for (size_t span = 0, at = 0; at < matrix->columns; span++, at += SPAN) {
        const size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        decode_span(dtype, matrix, layout, row_at(matrix, row), span, w);
        for (size_t i = 0; i < count; i += LANES)
            sum = lanes_fma(lanes_load(x + at + i), lanes_load(w + i), sum);
    }
    return lanes_sum(sum);
}

INLINE void sum_by_spans(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                         uint32_t row, float h, bool fresh, float *y)
{
    float w[SPAN];
    const lanes factor = lanes_set(h);
    for (size_t span = 0, at = 0; at < matrix->columns; span++, at += SPAN) {
        const size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        decode_span(dtype, matrix, layout, row_at(matrix, row), span, w);
        for (size_t i = 0; i < count; i += LANES) {
            const size_t n = count - i < LANES ? count - i : LANES;
            const lanes before = fresh       ? lanes_zero()
                                 : n < LANES ? lanes_load_some(y + at + i, n)
                                             : lanes_load(y + at + i);
            const lanes sum = lanes_fma(factor, lanes_load(w + i), before);
            if (n < LANES)
                lanes_store_some(y + at + i, n, sum);
            else
                lanes_store(y + at + i, sum);
        }
    }
}

static float dot_defined(const struct moec_matrix *matrix, uint32_t row, const float *x)
{
    float w[SPAN];
    lanes sum = lanes_zero();
    for (size_t at = 0; at < matrix->columns; at += SPAN) {
        size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        memset(w, 0, sizeof w);
        moec_codec_decode_span(matrix->codec, row_at(matrix, row), matrix->columns, at, count, w);
        for (size_t i = 0; i < count; i += LANES)
            sum = lanes_fma(lanes_load(x + at + i), lanes_load(w + i), sum);
    }
    return lanes_sum(sum);
}

/* Rows number i, i + gap and on of those chosen against x, n of them, n <= nr, weights in registers only.
 * Each is asked for by one before it of its stream. */
INLINE void dot_rows(const int nr, const int dtype, const struct moec_matrix *matrix,
                     const struct layout *layout, const struct chosen *chosen, uint32_t i, uint32_t gap,
                     uint32_t n, const float *x, float *y)
{
    struct decoder decoders[CODE_ROWS][2] = {0};
    struct rows rows;
    struct strip strip = {0};
    size_t first_group = 0;
    lanes sums[CODE_ROWS], w[2];
    const struct streams ahead = streams_of(nr, matrix, layout, chosen, i, gap);
    rows_open_apart(nr, dtype, matrix, layout, chosen, i, gap, &rows);
    UNROLL
    for (int r = 0; r < nr; r++)
        sums[r] = lanes_zero();
    while (next_strip(nr, dtype, layout, &rows, &first_group, &strip)) {
        size_t g = 0, left = 1;
        for (size_t b = strip.b; b < strip.end; b++) {
            if (--left == 0) {
                UNROLL
                for (int r = 0; r < nr; r++)
                    decoders[r][0] = rows_decoder(dtype, layout, &rows, r, g);
                left = layout->per_group;
                g++;
            }
            streams_ask(nr, dtype, layout, &ahead, b);
            lanes x0 = lanes_load(x + b * BLOCK), x1 = lanes_load(x + b * BLOCK + LANES);
            UNROLL
            for (int r = 0; r < nr; r++) {
                decode_block(dtype, rows.bytes[r] + b * block_bytes(dtype), decoders[r], w);
                sums[r] = lanes_fma(x0, w[0], sums[r]);
                sums[r] = lanes_fma(x1, w[1], sums[r]);
            }
        }
    }
    if (layout->tail > 0) {
        const size_t at = layout->blocks * BLOCK;
        UNROLL
        for (int r = 0; r < nr; r++) {
            decoders_at(dtype, layout, rows.bytes[r], rows.factors[r], layout->groups - 1, decoders[r]);
            decode_tail(dtype, rows.bytes[r] + layout->blocks * block_bytes(dtype), decoders[r], layout->tail,
                        w);
            sums[r] = lanes_fma(lanes_load(x + at), w[0], sums[r]);
            if (layout->tail > LANES)
                sums[r] = lanes_fma(lanes_load(x + at + LANES), w[1], sums[r]);
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        if (row_is_regular(dtype, layout, rows.bytes[r]))
            y[i + r * gap] = lanes_sum(sums[r]);
        else
            y[i + r * gap] = dot_defined(matrix, chosen_row(chosen, i + r * gap), x);
    }
}

/* Rows number i .. i + CODE_ROWS - 1 that are not regular, by the definition. */
INLINE void dot_irregular(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                          const struct chosen *chosen, uint32_t i, const float *x, float *y)
{
    for (uint32_t r = i; decoder_needs_regular(dtype) && r < i + CODE_ROWS; r++)
        if (!row_is_regular(dtype, layout, row_at(matrix, chosen_row(chosen, r))))
            y[r] = dot_defined(matrix, chosen_row(chosen, r), x);
}

/* Rows at work are far from each other, so that each is read on where the one before it ended. */
INLINE void dot_all(const int dtype, const struct moec_matrix *matrix, const struct chosen *chosen,
                    const float *x, float *y)
{
    struct layout layout = layout_of(dtype, matrix);
    const uint32_t n_rows = chosen->n, gap = n_rows / CODE_ROWS;
    uint32_t r = 0;
    if (goes_by_spans(dtype, &layout)) {
        for (; r < n_rows; r++)
            y[r] = dot_by_spans(dtype, matrix, &layout, chosen_row(chosen, r), x);
        return;
    }
    while (n_rows - r >= CODE_ROWS && contiguous_dot(dtype, matrix, &layout, chosen, r, x, y + r)) {
        dot_irregular(dtype, matrix, &layout, chosen, r, x, y);
        r += CODE_ROWS;
    }
    for (; r < gap; r++)
        dot_rows(CODE_ROWS, dtype, matrix, &layout, chosen, r, gap, CODE_ROWS, x, y);
    r = gap * CODE_ROWS;
    if (n_rows - r > CODE_ROWS / 2)
        dot_rows(CODE_ROWS, dtype, matrix, &layout, chosen, r, 1, n_rows - r, x, y);
    else if (n_rows - r > 1)
        dot_rows(CODE_ROWS / 2, dtype, matrix, &layout, chosen, r, 1, n_rows - r, x, y);
    else if (r < n_rows)
        dot_rows(1, dtype, matrix, &layout, chosen, r, 1, 1, x, y);
}

#define KIND_DOT(name, kind)                                                                                 \
    static NEVER_INLINE void dot_##name(const struct moec_matrix *matrix, const struct chosen *chosen,       \
                                        const float *x, float *y)                                            \
    {                                                                                                        \
        dot_all(kind, matrix, chosen, x, y);                                                                 \
    }
#define CASE_DOT(name, kind)                                                                                 \
    case kind:                                                                                               \
        dot_##name(matrix, chosen, x, y);                                                                    \
        break
EACH_KIND(KIND_DOT)

static void dot_chosen(const struct moec_matrix *matrix, const struct chosen *chosen, const float *x,
                       float *y)
{
    if (chosen->n == 0)
        return;
    switch (kind_of(matrix->codec)) {
        EACH_KIND(CASE_DOT)
    default:
        break;
    }
}

static void dot_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                        float *y)
{
    const struct chosen chosen = {first, n_rows, NULL};
    if (path_of(matrix->codec) != 0)
        trellis_dot(matrix, &chosen, x, y);
    else if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        down_dot(matrix, first, NULL, n_rows, x, y);
    else
        dot_chosen(matrix, &chosen, x, y);
}

static void dot_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                     const float *x, float *y)
{
    const struct chosen chosen = {first, n, some};
    if (path_of(matrix->codec) != 0) {
        trellis_dot(matrix, &chosen, x, y);
        return;
    }
    if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN) {
        down_dot(matrix, first, some, n, x, y);
        return;
    }
    dot_chosen(matrix, &chosen, x, y);
}

/* y += h[r] * row i + r of those chosen, for nr rows in order; the sums start at 0 when `fresh`. `apart` is
 * whether rows do not follow each other: what is asked for ahead differs, and both in one loop would not find
 * registers. */
INLINE void sum_rows(const int nr, const int dtype, const bool apart, const struct moec_matrix *matrix,
                     const struct layout *layout, const struct chosen *chosen, uint32_t i, const float *h,
                     bool fresh, float *y)
{
    struct decoder decoders[CODE_ROWS][2] = {0};
    struct rows rows;
    struct strip strip = {0};
    size_t first_group = 0;
    lanes factors[CODE_ROWS], w[2];
    struct ahead ahead =
        ahead_of_ways(nr, sum_ways(nr, dtype), matrix, chosen, i + sum_ahead(dtype, layout, chosen));
    struct region region = region_of(nr, matrix, layout, chosen->first + i);
    rows_open(nr, dtype, matrix, layout, chosen, i, &rows);
    UNROLL
    for (int r = 0; r < nr; r++)
        factors[r] = lanes_set(h[r]);
    while (next_strip(nr, dtype, layout, &rows, &first_group, &strip)) {
        size_t g = 0, left = 1;
        for (size_t b = strip.b; b < strip.end; b++) {
            if (--left == 0) {
                UNROLL
                for (int r = 0; r < nr; r++)
                    decoders[r][0] = rows_decoder(dtype, layout, &rows, r, g);
                left = layout->per_group;
                g++;
            }
            if (apart)
                rows_ask_ways(nr, sum_ways(nr, dtype), matrix, layout, chosen, &ahead);
            else
                region_ask(&region);
            float *out = y + b * BLOCK;
            lanes sum0 = fresh ? lanes_zero() : lanes_load(out);
            lanes sum1 = fresh ? lanes_zero() : lanes_load(out + LANES);
            UNROLL
            for (int r = 0; r < nr; r++) {
                decode_block(dtype, rows.bytes[r] + b * block_bytes(dtype), decoders[r], w);
                sum0 = lanes_fma(factors[r], w[0], sum0);
                sum1 = lanes_fma(factors[r], w[1], sum1);
            }
            lanes_store(out, sum0);
            lanes_store(out + LANES, sum1);
        }
    }
    if (layout->tail > 0) {
        float out[BLOCK] = {0};
        if (!fresh)
            memcpy(out, y + layout->blocks * BLOCK, layout->tail * sizeof *out);
        lanes sum0 = lanes_load(out), sum1 = lanes_load(out + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            decoders_at(dtype, layout, rows.bytes[r], rows.factors[r], layout->groups - 1, decoders[r]);
            decode_tail(dtype, rows.bytes[r] + layout->blocks * block_bytes(dtype), decoders[r], layout->tail,
                        w);
            sum0 = lanes_fma(factors[r], w[0], sum0);
            sum1 = lanes_fma(factors[r], w[1], sum1);
        }
        lanes_store(out, sum0);
        lanes_store(out + LANES, sum1);
        memcpy(y + layout->blocks * BLOCK, out, layout->tail * sizeof *out);
    }
}

static void sum_defined(const struct moec_matrix *matrix, uint32_t row, float h, bool fresh, float *y)
{
    float w[SPAN];
    for (size_t at = 0; at < matrix->columns; at += SPAN) {
        size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        moec_codec_decode_span(matrix->codec, row_at(matrix, row), matrix->columns, at, count, w);
        for (size_t i = 0; i < count; i++)
            y[at + i] = fmaf(h, w[i], fresh ? 0.0f : y[at + i]);
    }
}

/* nr rows as sum_rows, by the definition where one is not regular. */
INLINE void sum_rows_of_any(const int nr, const int dtype, const struct moec_matrix *matrix,
                            const struct layout *layout, const struct chosen *chosen, uint32_t i,
                            const float *h, float *y)
{
    bool regular = true;
    for (uint32_t r = i; r < i + (uint32_t)nr; r++)
        regular = regular && row_is_regular(dtype, layout, row_at(matrix, chosen_row(chosen, r)));
    const bool is_whole = nr == CODE_ROWS, apart = chosen->some != NULL || !layout->rows_follow;
    if (regular && is_whole && contiguous_sum(dtype, matrix, layout, chosen, i, h, y))
        return;
    if (regular && is_whole && apart)
        sum_rows(nr, dtype, true, matrix, layout, chosen, i, h + i, i == 0, y);
    else if (regular)
        sum_rows(nr, dtype, false, matrix, layout, chosen, i, h + i, i == 0, y);
    for (uint32_t r = i; r < i + (uint32_t)nr && !regular; r++)
        sum_defined(matrix, chosen_row(chosen, r), h[r], r == 0, y);
}

INLINE void sum_all(const int dtype, const struct moec_matrix *matrix, const struct chosen *chosen,
                    const float *h, float *y)
{
    struct layout layout = layout_of(dtype, matrix);
    const uint32_t n_rows = chosen->n;
    uint32_t r = 0;
    if (goes_by_spans(dtype, &layout)) {
        for (; r < n_rows; r++)
            sum_by_spans(dtype, matrix, &layout, chosen_row(chosen, r), h[r], r == 0, y);
        return;
    }
    for (; n_rows - r >= CODE_ROWS; r += CODE_ROWS)
        sum_rows_of_any(CODE_ROWS, dtype, matrix, &layout, chosen, r, h, y);
    for (; r < n_rows; r++)
        sum_rows_of_any(1, dtype, matrix, &layout, chosen, r, h, y);
}

#define KIND_SUM(name, kind)                                                                                 \
    static NEVER_INLINE void sum_##name(const struct moec_matrix *matrix, const struct chosen *chosen,       \
                                        const float *h, float *y)                                            \
    {                                                                                                        \
        sum_all(kind, matrix, chosen, h, y);                                                                 \
    }
#define CASE_SUM(name, kind)                                                                                 \
    case kind:                                                                                               \
        sum_##name(matrix, chosen, h, y);                                                                    \
        break
EACH_KIND(KIND_SUM)

static void sum_chosen(const struct moec_matrix *matrix, const struct chosen *chosen, const float *h,
                       float *y)
{
    if (chosen->n == 0) {
        memset(y, 0, matrix->columns * sizeof *y);
        return;
    }
    switch (kind_of(matrix->codec)) {
        EACH_KIND(CASE_SUM)
    default:
        break;
    }
}

static void sum_chunk_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                              const float *h, float *y)
{
    const struct chosen chosen = {first, n_rows, NULL};
    if (path_of(matrix->codec) != 0)
        trellis_sum(matrix, &chosen, h, y);
    else if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        down_sum(matrix, first, NULL, n_rows, h, y);
    else
        sum_chosen(matrix, &chosen, h, y);
}

static void sum_chunk_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                           const float *h, float *y)
{
    const struct chosen chosen = {first, n, some};
    if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN) {
        down_sum(matrix, first, some, n, h, y);
        return;
    }
    if (path_of(matrix->codec) != 0 && n > 0)
        trellis_sum(matrix, &chosen, h, y);
    else
        sum_chosen(matrix, &chosen, h, y);
}

#endif
