/* A whole set of the int8 arithmetic, from the primitives that runtime/kernels/int8/int8_lanes.h names and the set
 * has defined: INT8_KERNELS(name) is its table. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_SET_H
#define MOEC_RUNTIME_KERNELS_INT8_SET_H

#include "runtime/kernels/int8/int8_dot.h"
#include "runtime/kernels/int8/int8_sum.h"
#include "runtime/kernels/int8/int8_tiles.h"

static void dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride)
{
    const struct chosen chosen = {first, n_rows, some};
    if (n_tok == 1)
        dot_alone_any(matrix, &chosen, x[0], y);
    else
        dot_together_any(matrix, &chosen, x, n_tok, y, y_stride);
}

static void sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                      const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    if (n_rows == 0) {
        for (uint32_t t = 0; t < n_tok; t++)
            memset(y + t * y_stride, 0, matrix->columns * sizeof *y);
        return;
    }
    sum_all_any(matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
}

#include "runtime/kernels/int8/int8_tsan.h"

#endif
