/* The int8 arithmetic on AVX-512 with VBMI and VNNI: Ice Lake, Zen 4 and later. */
#include "runtime/kernels/int8.h"

#if defined(__x86_64__)
#define ROWS_OF_TILE       8
#define MANY_TOKENS        9
#define TILE_OFFSET(dtype) ((void)(dtype), 0)
#include "runtime/kernels/int8/int8_avx512.h"
#include "runtime/kernels/int8/int8_set.h"

static const struct moec_int8_kernels kernels = INT8_KERNELS("avx512-vnni");

const struct moec_int8_kernels *moec_int8_kernels_avx512_vnni(void)
{
    return &kernels;
}

void moec_int8_vnni_round(const float *x, size_t n, struct moec_int8_span *spans)
{
    kernels.round(x, n, spans);
}

void moec_int8_vnni_dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                        uint32_t n_rows, const struct moec_int8_span *const *x, uint32_t n_tok, float *y,
                        size_t y_stride)
{
    kernels.dot(matrix, first, some, n_rows, x, n_tok, y, y_stride);
}

void moec_int8_vnni_sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                              uint32_t n_rows, const float *h, size_t h_stride, uint32_t n_tok, float *y,
                              size_t y_stride)
{
    kernels.sum_chunk(matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
}
#else
const struct moec_int8_kernels *moec_int8_kernels_avx512_vnni(void)
{
    return NULL;
}
#endif
