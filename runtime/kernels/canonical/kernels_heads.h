/* Keys and values of several heads, of the kernels that are written once for all vector instruction sets: a
 * few queries against CODE_ROWS positions at a time, whole rows from beginning to end, so that memory is read
 * as it lies. Part of runtime/kernels/canonical/kernels_lanes.h, which says what a set defines. */
#ifndef MOEC_RUNTIME_KERNELS_HEADS_H
#define MOEC_RUNTIME_KERNELS_HEADS_H

#include "runtime/kernels/canonical/kernels_rows.h"

/* What is asked for beside a row lies so many bytes behind it at least, and CODE_ROWS rows. */
#define HEADS_AHEAD 16384

/* From a row to the one that is asked for beside it. */
INLINE size_t heads_ahead(const struct moec_heads *heads)
{
    return (CODE_ROWS + HEADS_AHEAD / heads->stride_bytes) * heads->stride_bytes;
}

/* The kind of codes that heads are kept as. */
#define HEADS_INT8 (SET_LIFTS ? MOEC_DTYPE_INT8 | LIFTED : MOEC_DTYPE_INT8)

/* From a head to the next in a row. */
INLINE size_t head_bytes(const int dtype, const struct moec_heads *heads)
{
    const size_t scale_bytes = dtype_is_float(dtype) ? 0 : sizeof(uint16_t);
    return heads->dim / BLOCK * (block_bytes(dtype) + scale_bytes);
}

/* What the blocks of STRIP * BLOCK columns of nr rows of codes are decoded with: each has a scale. */
struct head_scales {
    float scales[CODE_ROWS][STRIP], origins[CODE_ROWS][STRIP];
};

/* Those of n blocks, whose scales in the first row stand at `stored`. */
INLINE void convert_scales(const int nr, const int dtype, const uint8_t *stored, size_t stride, size_t n,
                           struct head_scales *out)
{
    const lanes zero = lanes_set(symmetric_zero(dtype));
    UNROLL
    for (int r = 0; r < nr; r++) {
        const lanes scales = lanes_of_halves(stored + (size_t)r * stride, n);
        lanes_store(out->scales[r], scales);
        if (decoder_needs_regular(dtype))
            lanes_store(out->origins[r], lanes_sub(lanes_zero(), lanes_mul(zero, scales)));
    }
}

/* At the first column `at` of a strip of rows of `dim` numbers, of which the first stands at `rows`. */
INLINE void begin_strip(const int nr, const int dtype, const uint8_t *rows, size_t stride, uint32_t dim,
                        uint32_t at, struct head_scales *out)
{
    const size_t left = (dim - at) / BLOCK;
    if (!dtype_is_float(dtype) && at % (STRIP * BLOCK) == 0)
        convert_scales(nr, dtype, rows + dim + at / BLOCK * sizeof(uint16_t), stride,
                       left < STRIP ? left : STRIP, out);
}

/* A block of row r whose first column is `at`. */
INLINE void decode_head(const int dtype, const uint8_t *block, const struct head_scales *scales, const int r,
                        uint32_t at, lanes out[2])
{
    const size_t b = at / BLOCK % STRIP;
    struct decoder decoders[2] = {0};
    if (!dtype_is_float(dtype))
        decoders[0] =
            decoder_make(dtype, scales->scales[r][b],
                         decoder_needs_regular(dtype) ? scales->origins[r][b] : symmetric_zero(dtype));
    decode_block(dtype, block, decoders, out);
}

INLINE void ask_block(const int dtype, const uint8_t *block)
{
    UNROLL
    for (size_t at = 0; at < block_bytes(dtype); at += LINE)
        ask_line(block + at);
}

INLINE void sum_of_rows(const int nr, const lanes sums[static CODE_ROWS], float *y)
{
#if SET_CONTIGUOUS
    if (nr == CODE_ROWS) {
        lanes_sum_rows(sums, y);
        return;
    }
#endif
    UNROLL
    for (int r = 0; r < nr; r++)
        y[r] = lanes_sum(sums[r]);
}

/* nr rows of a head against a query; the rows that come later are asked for beside them. */
INLINE void dot_head(const int nr, const int dtype, const bool asks, const uint8_t *rows, size_t stride,
                     size_t ahead, uint32_t dim, const float *x, float *y)
{
    const uint8_t *first = rows;
    struct head_scales scales;
    lanes sums[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < nr; r++)
        sums[r] = lanes_zero();
    for (uint32_t at = 0; at < dim; at += BLOCK, rows += block_bytes(dtype)) {
        begin_strip(nr, dtype, first, stride, dim, at, &scales);
        const lanes x0 = lanes_load(x + at), x1 = lanes_load(x + at + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const uint8_t *block = rows + (size_t)r * stride;
            if (asks)
                ask_block(dtype, block + ahead);
            decode_head(dtype, block, &scales, r, at, w);
            sums[r] = lanes_fma(x0, w[0], sums[r]);
            sums[r] = lanes_fma(x1, w[1], sums[r]);
        }
    }
    sum_of_rows(nr, sums, y);
}

/* y += h[r] * row r of a head, nr rows in order; the sums start at 0 when `fresh`. */
INLINE void sum_head(const int nr, const int dtype, const bool asks, const uint8_t *rows, size_t stride,
                     size_t ahead, uint32_t dim, const float *h, bool fresh, float *y)
{
    const uint8_t *first = rows;
    struct head_scales scales;
    lanes factors[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < nr; r++)
        factors[r] = lanes_set(h[r]);
    for (uint32_t at = 0; at < dim; at += BLOCK, rows += block_bytes(dtype)) {
        begin_strip(nr, dtype, first, stride, dim, at, &scales);
        lanes sum0 = fresh ? lanes_zero() : lanes_load(y + at);
        lanes sum1 = fresh ? lanes_zero() : lanes_load(y + at + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const uint8_t *block = rows + (size_t)r * stride;
            if (asks)
                ask_block(dtype, block + ahead);
            decode_head(dtype, block, &scales, r, at, w);
            sum0 = lanes_fma(factors[r], w[0], sum0);
            sum1 = lanes_fma(factors[r], w[1], sum1);
        }
        lanes_store(y + at, sum0);
        lanes_store(y + at + LANES, sum1);
    }
}

/* Rows r .. r + nr - 1 of all heads against all queries. */
INLINE void dot_rows_of_heads(const int nr, const int dtype, const struct moec_heads *heads, uint32_t r,
                              const float *x, float *y, size_t y_stride)
{
    const size_t stride = heads->stride_bytes, ahead = heads_ahead(heads);
    const size_t step = head_bytes(dtype, heads);
    const uint8_t *rows = heads->rows + r * stride;
    for (uint32_t head = 0; head < heads->n_heads; head++, rows += step) {
        dot_head(nr, dtype, true, rows, stride, ahead, heads->dim, x, y + r);
        x += heads->dim, y += y_stride;
        for (uint32_t q = 1; q < heads->n_queries; q++, x += heads->dim, y += y_stride)
            dot_head(nr, dtype, false, rows, stride, ahead, heads->dim, x, y + r);
    }
}

INLINE void sum_rows_of_heads(const int nr, const int dtype, const struct moec_heads *heads, uint32_t r,
                              const float *h, size_t h_stride, float *y)
{
    const size_t stride = heads->stride_bytes, ahead = heads_ahead(heads);
    const size_t step = head_bytes(dtype, heads);
    const uint8_t *rows = heads->rows + r * stride;
    for (uint32_t head = 0; head < heads->n_heads; head++, rows += step) {
        sum_head(nr, dtype, true, rows, stride, ahead, heads->dim, h + r, r == 0, y);
        h += h_stride, y += heads->dim;
        for (uint32_t q = 1; q < heads->n_queries; q++, h += h_stride, y += heads->dim)
            sum_head(nr, dtype, false, rows, stride, ahead, heads->dim, h + r, r == 0, y);
    }
}

INLINE void dot_heads_of(const int dtype, const struct moec_heads *heads, uint32_t n_rows, const float *x,
                         float *y, size_t y_stride)
{
    uint32_t r = 0;
    for (; n_rows - r >= CODE_ROWS; r += CODE_ROWS)
        dot_rows_of_heads(CODE_ROWS, dtype, heads, r, x, y, y_stride);
    for (; r < n_rows; r++)
        dot_rows_of_heads(1, dtype, heads, r, x, y, y_stride);
}

INLINE void sum_heads_of(const int dtype, const struct moec_heads *heads, uint32_t n_rows, const float *h,
                         size_t h_stride, float *y)
{
    uint32_t r = 0;
    for (; n_rows - r >= CODE_ROWS; r += CODE_ROWS)
        sum_rows_of_heads(CODE_ROWS, dtype, heads, r, h, h_stride, y);
    for (; r < n_rows; r++)
        sum_rows_of_heads(1, dtype, heads, r, h, h_stride, y);
}

static void dot_heads(const struct moec_heads *heads, uint32_t n_rows, const float *x, float *y,
                      size_t y_stride)
{
    switch (heads->codec.dtype) {
    case MOEC_DTYPE_INT8:
        dot_heads_of(HEADS_INT8, heads, n_rows, x, y, y_stride);
        break;
    case MOEC_DTYPE_F16:
        dot_heads_of(MOEC_DTYPE_F16, heads, n_rows, x, y, y_stride);
        break;
    default:
        dot_heads_of(MOEC_DTYPE_F32, heads, n_rows, x, y, y_stride);
        break;
    }
}

static void sum_heads(const struct moec_heads *heads, uint32_t n_rows, const float *h, size_t h_stride,
                      float *y)
{
    switch (heads->codec.dtype) {
    case MOEC_DTYPE_INT8:
        sum_heads_of(HEADS_INT8, heads, n_rows, h, h_stride, y);
        break;
    case MOEC_DTYPE_F16:
        sum_heads_of(MOEC_DTYPE_F16, heads, n_rows, h, h_stride, y);
        break;
    default:
        sum_heads_of(MOEC_DTYPE_F32, heads, n_rows, h, h_stride, y);
        break;
    }
}

#endif
