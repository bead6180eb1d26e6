/* A whole set of the int8 arithmetic, from the primitives that runtime/kernels/int8_lanes.h names and the set
 * has defined: INT8_KERNELS(name) is its table. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_SET_H
#define MOEC_RUNTIME_KERNELS_INT8_SET_H

#include "runtime/kernels/int8_dot.h"
#include "runtime/kernels/int8_sum.h"
#include "runtime/kernels/int8_tiles.h"

static void dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride)
{
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS)
        dot_all(TRELLIS, false, matrix, first, some, n_rows, x, n_tok, y, y_stride);
    else if (moec_scheme_has_zeros((enum moec_scheme)matrix->codec.scheme))
        WITH_DTYPE(dot_all, true, matrix, first, some, n_rows, x, n_tok, y, y_stride)
    else
        WITH_DTYPE(dot_all, false, matrix, first, some, n_rows, x, n_tok, y, y_stride)
}

static void sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                      const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    if (n_rows == 0) {
        for (uint32_t t = 0; t < n_tok; t++)
            memset(y + t * y_stride, 0, matrix->columns * sizeof *y);
        return;
    }
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS)
        sum_all(TRELLIS, matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
    else
        WITH_DTYPE(sum_all, matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride)
}

#include "runtime/kernels/int8_watched.h"

#endif
