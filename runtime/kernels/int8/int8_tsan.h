/* The table of a set of the int8 arithmetic whose functions are round_all, dot, dot_tiles and sum_chunk;
 * under ThreadSanitizer what they read and write is told, as runtime/kernels/canonical/kernels_tsan.h does. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_TSAN_H
#define MOEC_RUNTIME_KERNELS_INT8_TSAN_H

#include "runtime/kernels/int8.h"

#if defined(MOEC_KERNELS_TSAN)
#define INT8_KERNEL(name) tsan_##name

void __tsan_read_range(void *first, unsigned long n_bytes);
void __tsan_write_range(void *first, unsigned long n_bytes);

static void tell_rows(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++)
        __tsan_read_range((void *)(uintptr_t)row_at(matrix, first + (some != NULL ? some[i] : i)),
                          moec_codec_row_bytes(matrix->codec, matrix->columns));
}

static void tsan_round_all(const float *x, size_t n, struct moec_int8_span *spans)
{
    __tsan_read_range((void *)(uintptr_t)x, n * sizeof *x);
    __tsan_write_range(spans, moec_int8_spans(n) * sizeof *spans);
    round_all(x, n, spans);
}

static void tsan_dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                     const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride)
{
    tell_rows(matrix, first, some, n_rows);
    for (uint32_t t = 0; t < n_tok; t++) {
        __tsan_read_range((void *)(uintptr_t)x[t], moec_int8_spans(matrix->columns) * sizeof *x[t]);
        __tsan_write_range(y + t * y_stride, n_rows * sizeof *y);
    }
    dot(matrix, first, some, n_rows, x, n_tok, y, y_stride);
}

static void tsan_dot_tiles(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                           const struct moec_int8_tile *x, uint32_t n_tok, float *y, size_t y_stride)
{
    tell_rows(matrix, first, NULL, n_rows);
    __tsan_read_range((void *)(uintptr_t)x,
                      moec_int8_tiles(n_tok, moec_int8_spans(matrix->columns)) * sizeof *x);
    for (uint32_t t = 0; t < n_tok; t++)
        __tsan_write_range(y + t * y_stride, n_rows * sizeof *y);
    dot_tiles(matrix, first, n_rows, x, n_tok, y, y_stride);
}

static void tsan_sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                           uint32_t n_rows, const float *h, size_t h_stride, uint32_t n_tok, float *y,
                           size_t y_stride)
{
    tell_rows(matrix, first, some, n_rows);
    for (uint32_t t = 0; t < n_tok; t++) {
        __tsan_read_range((void *)(uintptr_t)(h + t * h_stride), n_rows * sizeof *h);
        __tsan_write_range(y + t * y_stride, matrix->columns * sizeof *y);
    }
    sum_chunk(matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
}
#else
#define INT8_KERNEL(name) name
#endif

#define INT8_KERNELS(set_name)                                                                               \
    {                                                                                                        \
        .name = (set_name), .many_tokens = MANY_TOKENS, .round = INT8_KERNEL(round_all),                     \
        .dot = INT8_KERNEL(dot), .dot_tiles = INT8_KERNEL(dot_tiles), .sum_chunk = INT8_KERNEL(sum_chunk)    \
    }

#endif
