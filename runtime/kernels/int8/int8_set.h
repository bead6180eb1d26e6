/* A whole set of the int8 arithmetic, from the primitives that runtime/kernels/int8/int8_lanes.h names and the set
 * has defined: INT8_KERNELS(name) is its table. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_SET_H
#define MOEC_RUNTIME_KERNELS_INT8_SET_H

#include "runtime/kernels/int8/int8_dot.h"
#include "runtime/kernels/int8/int8_sum.h"
#include "runtime/kernels/int8/int8_tiles.h"

/* Apart from products of some tokens, beside which the compiler keeps less of this loop in registers: 1 % of
 * decoding at 4 bits. */
static NEVER_INLINE void dot_token(const struct moec_matrix *matrix, const struct chosen *chosen,
                                   const struct moec_int8_span *x, float *y)
{
    WITH_CODEC(dot_alone, matrix, chosen, x, y);
}

static NEVER_INLINE void dot_tokens(const struct moec_matrix *matrix, const struct chosen *chosen,
                                    const struct moec_int8_span *const *x, uint32_t n_tok, float *y,
                                    size_t y_stride)
{
    WITH_CODEC(dot_together, matrix, chosen, x, n_tok, y, y_stride);
}

static void dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride)
{
    const struct chosen chosen = {first, n_rows, some};
    if (n_tok == 1)
        dot_token(matrix, &chosen, x[0], y);
    else
        dot_tokens(matrix, &chosen, x, n_tok, y, y_stride);
}

static void sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                      const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    if (n_rows == 0) {
        for (uint32_t t = 0; t < n_tok; t++)
            memset(y + t * y_stride, 0, matrix->columns * sizeof *y);
        return;
    }
    if (path_of(matrix->codec) != 0)
        WITH_PATH(sum_all, matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride)
    else
        WITH_DTYPE(sum_all, matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride)
}

#include "runtime/kernels/int8/int8_tsan.h"

#endif
