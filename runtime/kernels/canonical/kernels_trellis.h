/* Rows whose codes are a path (formats/codec/trellis.h, shift.h), of the kernels that are written once for all
 * vector instruction sets, block by block: part of runtime/kernels/canonical/kernels_shift.h.
 *
 * A block of 32 weights of a trellis is two words. Which of the eight levels each weight has follows from bits
 * combined by exclusive or, those of many weights at a time; the levels of a row, times its scale, lie in a register. A
 * product of a level and an F16 scale is exact, so it does not matter that the definition multiplies each
 * weight. Of shift codes the levels are bytes, which a set makes of a block's windows. */
#ifndef MOEC_RUNTIME_KERNELS_TRELLIS_H
#define MOEC_RUNTIME_KERNELS_TRELLIS_H

#include "runtime/kernels/lanes/kernels_shape.h"

/* A row as it is read, from its first block on. */
struct trellis_row {
    const uint8_t *at;
    trellis_carry before;
    trellis_table table;
    float scale; /* of shift codes, and the BEFORE bytes in front of the block, zeros at the row's start */
    const uint8_t *front;
};

static const uint8_t nothing_before[BEFORE];

INLINE size_t path_block_bytes(const int path)
{
    return path == TRELLIS ? 8 : moec_shift_block_bytes((uint32_t)(path - SHIFT));
}

INLINE size_t trellis_blocks(const struct moec_matrix *matrix)
{
    return (matrix->columns + BLOCK - 1) / BLOCK;
}

INLINE struct trellis_row trellis_start(const int path, const struct moec_matrix *matrix, uint32_t row)
{
    const uint8_t *at = row_at(matrix, row);
    const float scale = f16_at(at + trellis_blocks(matrix) * path_block_bytes(path));
    struct trellis_row started = {
        .at = at, .before = trellis_begin(), .scale = scale, .front = nothing_before};
    if (path == TRELLIS)
        started.table = trellis_make(moec_trellis_levels, scale);
    return started;
}

INLINE void trellis_next(const int path, struct trellis_row *row, lanes out[2])
{
    if (path == TRELLIS)
        trellis_block(row->table, row->at, &row->before, out);
    else
        shift_block((uint32_t)(path - SHIFT), row->scale, row->at, row->front, out);
    row->at += path_block_bytes(path);
    row->front = row->at - BEFORE;
}

INLINE void path_decode_rows(const int path, const struct moec_matrix *matrix, uint32_t first,
                             uint32_t n_rows, float *out, size_t stride)
{
    const size_t blocks = matrix->columns / BLOCK, tail = matrix->columns % BLOCK;
    for (uint32_t r = 0; r < n_rows; r++) {
        struct trellis_row row = trellis_start(path, matrix, first + r);
        float *at = out + r * stride;
        lanes w[2];
        for (size_t b = 0; b < blocks; b++, at += BLOCK) {
            trellis_next(path, &row, w);
            lanes_store(at, w[0]);
            lanes_store(at + LANES, w[1]);
        }
        if (tail == 0)
            continue;
        trellis_next(path, &row, w);
        keep_tail(tail, w);
        lanes_store(at, w[0]);
        if (tail > LANES)
            lanes_store(at + LANES, w[1]);
    }
}

/* The rows that are asked for while those from `first` on are at work (AHEAD_BYTES); NULL past the end. */
INLINE const uint8_t *trellis_ahead(const struct moec_matrix *matrix, uint32_t first)
{
    const size_t ahead = AHEAD_BYTES / (matrix->stride_bytes + 1) + ROWS_AT_ONCE;
    return first + ahead + ROWS_AT_ONCE <= matrix->rows
               ? matrix->data + (first + ahead) * matrix->stride_bytes
               : NULL;
}

INLINE void trellis_dot_rows(const int path, const int nr, const struct moec_matrix *matrix, uint32_t first,
                             const float *x, float *y)
{
    const size_t blocks = matrix->columns / BLOCK, tail = matrix->columns % BLOCK;
    struct trellis_row rows[ROWS_AT_ONCE];
    lanes sums[ROWS_AT_ONCE], w[2];
    UNROLL
    for (int r = 0; r < nr; r++) {
        rows[r] = trellis_start(path, matrix, first + (uint32_t)r);
        sums[r] = lanes_zero();
    }
    const uint8_t *ahead = trellis_ahead(matrix, first);
    const size_t line_blocks = LINE / path_block_bytes(path);
    for (size_t b = 0; b < blocks;) {
        if (ahead != NULL) {
            UNROLL
            for (int r = 0; r < nr; r++)
                ask_line(ahead + (size_t)r * matrix->stride_bytes);
            ahead += LINE;
        }
        for (const size_t end = blocks - b < line_blocks ? blocks : b + line_blocks; b < end;
             b++, x += BLOCK) {
            const lanes x0 = lanes_load(x), x1 = lanes_load(x + LANES);
            UNROLL
            for (int r = 0; r < nr; r++) {
                trellis_next(path, &rows[r], w);
                sums[r] = lanes_fma(x0, w[0], sums[r]);
                sums[r] = lanes_fma(x1, w[1], sums[r]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < nr; r++) {
        if (tail > 0) {
            trellis_next(path, &rows[r], w);
            keep_tail(tail, w);
            sums[r] = lanes_fma(lanes_load(x), w[0], sums[r]);
        }
        if (tail > LANES)
            sums[r] = lanes_fma(lanes_load(x + LANES), w[1], sums[r]);
        y[r] = lanes_sum(sums[r]);
    }
}

INLINE void path_dot(const int path, const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                     const float *x, float *y)
{
    uint32_t r = 0;
    for (; n_rows - r >= ROWS_AT_ONCE; r += ROWS_AT_ONCE)
        trellis_dot_rows(path, ROWS_AT_ONCE, matrix, first + r, x, y + r);
    for (; r < n_rows; r++)
        trellis_dot_rows(path, 1, matrix, first + r, x, y + r);
}

/* One block of nr rows, each times its factor, in order. */
INLINE void trellis_sum_block(const int path, const int nr, struct trellis_row rows[ROWS_AT_ONCE],
                              const lanes factors[ROWS_AT_ONCE], bool fresh, float *y)
{
    lanes sum0 = fresh ? lanes_zero() : lanes_load(y), sum1 = fresh ? lanes_zero() : lanes_load(y + LANES);
    lanes w[2];
    UNROLL
    for (int r = 0; r < nr; r++) {
        trellis_next(path, &rows[r], w);
        sum0 = lanes_fma(factors[r], w[0], sum0);
        sum1 = lanes_fma(factors[r], w[1], sum1);
    }
    lanes_store(y, sum0);
    lanes_store(y + LANES, sum1);
}

/* y += h[r] * row r for nr rows in order; the sums start at 0 when `fresh`. */
INLINE void trellis_sum_rows(const int path, const int nr, const struct moec_matrix *matrix, uint32_t first,
                             const float *h, bool fresh, float *y)
{
    const size_t blocks = matrix->columns / BLOCK, tail = matrix->columns % BLOCK;
    struct trellis_row rows[ROWS_AT_ONCE];
    lanes factors[ROWS_AT_ONCE];
    UNROLL
    for (int r = 0; r < nr; r++) {
        rows[r] = trellis_start(path, matrix, first + (uint32_t)r);
        factors[r] = lanes_set(h[r]);
    }
    for (size_t b = 0; b < blocks; b++, y += BLOCK)
        trellis_sum_block(path, nr, rows, factors, fresh, y);
    if (tail == 0)
        return;
    float last[BLOCK] = {0};
    if (!fresh)
        memcpy(last, y, tail * sizeof *y);
    trellis_sum_block(path, nr, rows, factors, fresh, last);
    memcpy(y, last, tail * sizeof *y);
}

INLINE void path_sum(const int path, const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                     const float *h, float *y)
{
    uint32_t r = 0;
    if (n_rows == 0)
        memset(y, 0, matrix->columns * sizeof *y);
    for (; n_rows - r >= ROWS_AT_ONCE; r += ROWS_AT_ONCE)
        trellis_sum_rows(path, ROWS_AT_ONCE, matrix, first + r, h + r, r == 0, y);
    for (; r < n_rows; r++)
        trellis_sum_rows(path, 1, matrix, first + r, h + r, r == 0, y);
}

#endif
