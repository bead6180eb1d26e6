/* Keys and values of several heads, of the kernels that are written once for all vector instruction sets: a
 * few queries against CODE_ROWS positions at a time, whole rows from beginning to end, so that memory is read
 * as it lies. Part of runtime/kernels/kernels_lanes.h, which says what a set defines. */
#ifndef MOEC_RUNTIME_KERNELS_HEADS_H
#define MOEC_RUNTIME_KERNELS_HEADS_H

#include "runtime/kernels/kernels_rows.h"

/* What is asked for beside a row lies so many bytes behind it at least, and CODE_ROWS rows. */
#define HEADS_AHEAD 16384

/* From a row to the one that is asked for beside it. */
INLINE size_t heads_ahead(const struct moec_heads *heads)
{
    return (CODE_ROWS + HEADS_AHEAD / heads->stride_bytes) * heads->stride_bytes;
}

INLINE void ask_block(const int dtype, const uint8_t *block)
{
    UNROLL
    for (size_t at = 0; at < block_bytes(dtype); at += LINE)
        ask_line(block + at);
}

INLINE void sum_of_rows(const int nr, const lanes sums[static CODE_ROWS], float *y)
{
#if SET_NEAR
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
    const struct decoder none[2] = {0};
    lanes sums[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < nr; r++)
        sums[r] = lanes_zero();
    for (uint32_t at = 0; at < dim; at += BLOCK, rows += block_bytes(dtype)) {
        const lanes x0 = lanes_load(x + at), x1 = lanes_load(x + at + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const uint8_t *block = rows + (size_t)r * stride;
            if (asks)
                ask_block(dtype, block + ahead);
            decode_block(dtype, block, none, w);
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
    const struct decoder none[2] = {0};
    lanes factors[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < nr; r++)
        factors[r] = lanes_set(h[r]);
    for (uint32_t at = 0; at < dim; at += BLOCK, rows += block_bytes(dtype)) {
        lanes sum0 = fresh ? lanes_zero() : lanes_load(y + at);
        lanes sum1 = fresh ? lanes_zero() : lanes_load(y + at + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const uint8_t *block = rows + (size_t)r * stride;
            if (asks)
                ask_block(dtype, block + ahead);
            decode_block(dtype, block, none, w);
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
    const size_t step = heads->dim / BLOCK * block_bytes(dtype);
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
    const size_t step = heads->dim / BLOCK * block_bytes(dtype);
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
    if (heads->is_f16)
        dot_heads_of(MOEC_DTYPE_F16, heads, n_rows, x, y, y_stride);
    else
        dot_heads_of(MOEC_DTYPE_F32, heads, n_rows, x, y, y_stride);
}

static void sum_heads(const struct moec_heads *heads, uint32_t n_rows, const float *h, size_t h_stride,
                      float *y)
{
    if (heads->is_f16)
        sum_heads_of(MOEC_DTYPE_F16, heads, n_rows, h, h_stride, y);
    else
        sum_heads_of(MOEC_DTYPE_F32, heads, n_rows, h, h_stride, y);
}

#endif
