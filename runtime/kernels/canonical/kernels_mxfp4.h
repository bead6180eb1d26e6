/* Rows of MXFP4 down projections, of the kernels that are written once for all vector instruction sets: 32
 * rows share a scale in each column (formats/codec/mxfp4.h). The scales of a strip of columns are converted
 * once for all rows of a block that are at work. Many tokens take such a strip of all rows of a chunk at
 * once, so that decoded weights stay in the first-level cache. Part of
 * runtime/kernels/canonical/kernels_encoded.h. */
#ifndef MOEC_RUNTIME_KERNELS_MXFP4_H
#define MOEC_RUNTIME_KERNELS_MXFP4_H

#include "formats/codec/mxfp4.h"
#include "runtime/kernels/lanes/kernels_shape.h"

#define DOWN_ROWS  MOEC_MXFP4_GROUP
#define DOWN_STRIP 16 /* blocks of columns */
#define DOWN_BYTES (BLOCK / 2)

/* Blocks [b, b + n) of columns, and the scales of the block of rows at work. */
struct down_strip {
    size_t b, n;
    float scales[DOWN_STRIP * BLOCK];
};

static void down_convert(const struct moec_matrix *matrix, uint32_t row, struct down_strip *strip)
{
    const uint8_t *at = row_at(matrix, row / DOWN_ROWS * DOWN_ROWS) + matrix->columns / 2 + strip->b;
    for (size_t r = 0; r < DOWN_ROWS; r++, at += matrix->stride_bytes)
        for (size_t i = 0; i < strip->n; i++)
            strip->scales[i * BLOCK + r] = moec_mxfp4_scale(at[i]);
}

INLINE struct decoder down_decoder(void)
{
    return decoder_of_levels(MOEC_DTYPE_INT4 | DICTIONARY, 1.0f, moec_mxfp4_levels);
}

/* Block i of the strip. */
INLINE void down_weights(const struct down_strip *strip, const uint8_t *row, size_t i,
                         const struct decoder *decoder, lanes w[2])
{
    const float *scales = strip->scales + i * BLOCK;
    decode_block(MOEC_DTYPE_INT4 | DICTIONARY, row + (strip->b + i) * DOWN_BYTES, decoder, w);
    w[0] = lanes_mul(w[0], lanes_load(scales));
    w[1] = lanes_mul(w[1], lanes_load(scales + LANES));
}

/* The next strip of those before block `end`. */
INLINE bool down_next(size_t end, struct down_strip *strip)
{
    strip->b += strip->n;
    strip->n = end - strip->b < DOWN_STRIP ? end - strip->b : DOWN_STRIP;
    return strip->n > 0;
}

/* Blocks [b, end) of columns of rows first .. first + n_rows - 1, to out (n_rows, stride). */
static void down_decode_blocks(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, size_t b,
                               size_t end, float *out, size_t stride)
{
    const struct decoder decoder = down_decoder();
    struct down_strip strip;
    strip.b = b;
    strip.n = 0;
    while (down_next(end, &strip)) {
        for (uint32_t r = 0; r < n_rows; r++) {
            float *at = out + r * stride + (strip.b - b) * BLOCK;
            if (r == 0 || (first + r) % DOWN_ROWS == 0)
                down_convert(matrix, first + r, &strip);
            for (size_t i = 0; i < strip.n; i++, at += BLOCK) {
                lanes w[2];
                down_weights(&strip, row_at(matrix, first + r), i, &decoder, w);
                lanes_store(at, w[0]);
                lanes_store(at + LANES, w[1]);
            }
        }
    }
}

/* y[i] of row first + i, or first + some[i]. */
static void down_dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                     const float *x, float *y)
{
    const struct decoder decoder = down_decoder();
    struct down_strip strip;
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t row = first + (some != NULL ? some[r] : r);
        lanes sum = lanes_zero();
        strip.b = strip.n = 0;
        while (down_next(matrix->columns / BLOCK, &strip)) {
            const float *at = x + strip.b * BLOCK;
            down_convert(matrix, row, &strip);
            for (size_t i = 0; i < strip.n; i++, at += BLOCK) {
                lanes w[2];
                down_weights(&strip, row_at(matrix, row), i, &decoder, w);
                sum = lanes_fma(lanes_load(at), w[0], sum);
                sum = lanes_fma(lanes_load(at + LANES), w[1], sum);
            }
        }
        y[r] = lanes_sum(sum);
    }
}

/* y += h[r] * rows[r] over the strip; the sums start at 0 when `fresh`. */
INLINE void down_sum_rows(const int nr, const struct down_strip *strip, const uint8_t *const *rows,
                          const struct decoder *decoder, const float *h, bool fresh, float *y)
{
    lanes factors[ROWS_AT_ONCE];
    UNROLL
    for (int r = 0; r < nr; r++)
        factors[r] = lanes_set(h[r]);
    y += strip->b * BLOCK;
    for (size_t i = 0; i < strip->n; i++, y += BLOCK) {
        lanes sum0 = fresh ? lanes_zero() : lanes_load(y);
        lanes sum1 = fresh ? lanes_zero() : lanes_load(y + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            lanes w[2];
            down_weights(strip, rows[r], i, decoder, w);
            sum0 = lanes_fma(factors[r], w[0], sum0);
            sum1 = lanes_fma(factors[r], w[1], sum1);
        }
        lanes_store(y, sum0);
        lanes_store(y + LANES, sum1);
    }
}

static void down_sum(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                     const float *h, float *y)
{
    const struct decoder decoder = down_decoder();
    struct down_strip strip;
    strip.b = strip.n = 0;
    if (n == 0)
        memset(y, 0, matrix->columns * sizeof *y);
    while (n > 0 && down_next(matrix->columns / BLOCK, &strip)) {
        uint32_t block = 0;
        for (uint32_t i = 0, step = 0; i < n; i += step) {
            const uint8_t *rows[ROWS_AT_ONCE];
            for (step = 0; step < ROWS_AT_ONCE && i + step < n; step++) {
                const uint32_t row = first + (some != NULL ? some[i + step] : i + step);
                if (step > 0 && row / DOWN_ROWS != block)
                    break;
                if (step == 0 && (i == 0 || row / DOWN_ROWS != block))
                    down_convert(matrix, row, &strip);
                block = row / DOWN_ROWS;
                rows[step] = row_at(matrix, row);
            }
            if (step == ROWS_AT_ONCE) {
                down_sum_rows(ROWS_AT_ONCE, &strip, rows, &decoder, h + i, i == 0, y);
                continue;
            }
            for (uint32_t r = 0; r < step; r++)
                down_sum_rows(1, &strip, rows + r, &decoder, h + i + r, i + r == 0, y);
        }
    }
}

#endif
