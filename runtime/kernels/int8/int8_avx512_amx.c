/* The int8 arithmetic with tiles of AMX for many tokens, beside AVX-512 with VBMI and VNNI: Sapphire Rapids
 * and later. */
#include "runtime/kernels/int8.h"

#if defined(__x86_64__)
#define ROWS_OF_TILE       16
#define MANY_TOKENS        5
#define TILE_OFFSET(dtype) (1 << (bits_of(dtype) - 1))
#define HAS_TILES
#include "runtime/kernels/int8/int8_avx512.h"
#include "runtime/kernels/int8/int8_sum_amx.h"

static void round_all(const float *x, size_t n, struct moec_int8_span *spans)
{
    moec_int8_vnni_round(x, n, spans);
}

static void dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride)
{
    moec_int8_vnni_dot(matrix, first, some, n_rows, x, n_tok, y, y_stride);
}

static void sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                      const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    if (n_tok < MANY_TOKENS || n_rows == 0)
        moec_int8_vnni_sum_chunk(matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
    else
        sum_all_any(matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
}

#include "runtime/kernels/int8/int8_tsan.h"

static const struct moec_int8_kernels kernels = INT8_KERNELS("avx512-amx");

const struct moec_int8_kernels *moec_int8_kernels_avx512_amx(void)
{
    return &kernels;
}
#else
const struct moec_int8_kernels *moec_int8_kernels_avx512_amx(void)
{
    return NULL;
}
#endif
