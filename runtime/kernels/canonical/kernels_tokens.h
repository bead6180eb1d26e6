/* Some tokens against encoded rows, of the kernels that are written once for all vector instruction sets:
 * parts of rows are decoded into the first-level cache, where all tokens are multiplied with them. Part of
 * runtime/kernels/canonical/kernels_lanes.h. */
#ifndef MOEC_RUNTIME_KERNELS_TOKENS_H
#define MOEC_RUNTIME_KERNELS_TOKENS_H

#include "runtime/kernels/canonical/kernels_bands.h"
#include "runtime/kernels/canonical/kernels_few.h"

_Static_assert(DOT_DEPTH == PART * BLOCK && DOT_ROWS % CODE_ROWS == 0,
               "what stands in the first-level cache are parts");
_Static_assert(FEW_TOKENS <= MOEC_FEW_TOKENS, "the room of sums that are added has rows for few tokens");

/* At most DOT_CUT tokens against rows i .. i + n - 1, n <= DOT_ROWS; zeros stand for missing ones. */
static void dot_decoded(struct decoding *decoding, uint32_t i, uint32_t n, const float *x, size_t x_stride,
                        uint32_t n_tok, float *y, size_t y_stride)
{
    struct waiting waiting;
    struct packed packed;
    const size_t padded = moec_lanes_padded(decoding->matrix->columns);
    if (n < DOT_ROWS)
        memset(&packed, 0, sizeof packed);
    for (size_t at = 0, k; at < padded; at += k) {
        k = padded - at < DOT_DEPTH ? padded - at : DOT_DEPTH;
        const size_t b = at / BLOCK, end = (at + k + BLOCK - 1) / BLOCK;
        for (uint32_t r = 0; r < n; r += CODE_ROWS) {
            const struct part part = {i + r, n - r < CODE_ROWS ? n - r : CODE_ROWS, b, end};
            part_of_any(decoding, &part, packed.w[r]);
        }
        dot_packed(x + at, x_stride, n_tok, &packed, k, at == 0, at + k == padded, &waiting, y, y_stride);
    }
}

static void dot_tokens(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                       size_t x_stride, uint32_t n_tok, float *room, float *y, size_t y_stride)
{
    const size_t padded = moec_lanes_padded(matrix->columns);
    if (n_tok == 1) {
        dot_encoded(matrix, first, n_rows, x, y);
        return;
    }
    if (dot_few(matrix, first, n_rows, x, x_stride, n_tok, y, y_stride))
        return;
    if (!moec_kernels_decode_parts(matrix->codec)) {
        decode_rows(matrix, first, n_rows, room, padded);
        dot(x, x_stride, n_tok, room, padded, n_rows, matrix->columns, y, y_stride);
        return;
    }
    for (uint32_t t = 0, n; t < n_tok; t += n, x += n * x_stride, y += n * y_stride) {
        struct decoding decoding = decoding_of(matrix, first, n_rows, 0);
        n = n_tok - t < DOT_CUT ? n_tok - t : DOT_CUT;
        for (uint32_t r = 0; r < n_rows; r += DOT_ROWS) {
            float out[DOT_CUT][DOT_ROWS];
            if (n_rows - r >= DOT_ROWS) {
                dot_decoded(&decoding, r, DOT_ROWS, x, x_stride, n, y + r, y_stride);
                continue;
            }
            dot_decoded(&decoding, r, n_rows - r, x, x_stride, n, out[0], DOT_ROWS);
            for (uint32_t i = 0; i < n; i++)
                memcpy(y + i * y_stride + r, out[i], (n_rows - r) * sizeof out[i][0]);
        }
    }
}

/* One token, or few if rows are of such a kind. */
static bool sum_in_registers(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                             const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    if (n_tok != 1)
        return sum_chunk_few(matrix, first, n_rows, h, h_stride, n_tok, y, y_stride);
    sum_chunk_encoded(matrix, first, n_rows, h, y);
    return true;
}

static void sum_chunk_tokens(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                             const float *h, size_t h_stride, uint32_t n_tok, bool adds, float *room,
                             float *y, size_t y_stride)
{
    struct banding banding;
    struct summed_part summed;
    const size_t columns = matrix->columns, padded = moec_lanes_padded(columns);
    if (n_tok <= MOEC_FEW_TOKENS && sum_in_registers(matrix, first, n_rows, h, h_stride, n_tok,
                                                     adds ? room : y, adds ? padded : y_stride)) {
        for (uint32_t t = 0; adds && t < n_tok; t++)
            add(room + t * padded, columns, y + t * y_stride);
        return;
    }
    const bool is_down = matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN;
    if (!is_down && !moec_kernels_decode_parts(matrix->codec)) {
        decode_rows(matrix, first, n_rows, room, padded);
        sum_decoded(h, h_stride, n_tok, room, padded, n_rows, matrix->columns, adds, y, y_stride);
        return;
    }
    if (!is_down)
        bands_open(matrix, first, n_rows, &banding);
    for (size_t c = 0; c < columns; c += SUM_WIDTH) {
        const size_t width = columns - c < SUM_WIDTH ? columns - c : SUM_WIDTH, b = c / BLOCK,
                     end = (c + width + BLOCK - 1) / BLOCK;
        if (is_down)
            down_decode_blocks(matrix, first, n_rows, b, end, summed.w[0], SUM_WIDTH);
        else
            band_of_any(&banding, b, end, summed.w[0]);
        sum_columns(h, h_stride, n_tok, summed.w[0], SUM_WIDTH, n_rows, width, adds, y + c, y_stride);
    }
}

#endif
