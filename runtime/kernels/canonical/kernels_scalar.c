/* The definition of the canonical arithmetic (D1): plain loops, 16 lanes as an array. Slow and meant to be
 * read; every other set is tested against it bit for bit. */
#include "formats/base/half.h"
#include "formats/base/sanitizers.h"
#include "runtime/kernels/kernels.h"

#include <math.h>
#include <string.h>

#define LANES MOEC_LANES

/* fmaf is a call of libm where the compiler may not use the instruction. So the loops of products are compiled
 * for processors that have it too, and the one that fits is taken when the program starts. Bits are the same.
 * Sanitizers are not ready so early. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !MOEC_HAS_ASAN && !MOEC_HAS_TSAN && !MOEC_HAS_UBSAN
#define WITH_FMA __attribute__((target_clones("fma", "default")))
#else
#define WITH_FMA
#endif

static float tree_sum(const float lanes[static LANES])
{
    float s[LANES];
    memcpy(s, lanes, sizeof s);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            s[i] = s[i] + s[i + width];
    return s[0];
}

/* Decodes the block of MOEC_CODEC_BLOCK weights that starts at `first`; zeros past the row's end. */
static void decode_block(const struct moec_matrix *matrix, uint32_t row, size_t first,
                         float out[static MOEC_CODEC_BLOCK])
{
    size_t left = matrix->columns - first;
    size_t count = left < MOEC_CODEC_BLOCK ? left : MOEC_CODEC_BLOCK;
    memset(out + count, 0, (MOEC_CODEC_BLOCK - count) * sizeof *out);
    moec_matrix_decode_span(matrix, row, first, count, out);
}

static void decode_rows(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, float *out,
                        size_t stride)
{
    size_t n = matrix->columns, padded = moec_lanes_padded(n);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *row = out + r * stride;
        moec_matrix_decode_span(matrix, first + r, 0, n, row);
        memset(row + n, 0, (padded - n) * sizeof *row);
    }
}

WITH_FMA static void dot(const float *x, size_t x_stride, uint32_t n_tok, const float *w, size_t w_stride,
                         uint32_t n_rows, uint32_t k, float *y, size_t y_stride)
{
    size_t padded = moec_lanes_padded(k);
    for (uint32_t t = 0; t < n_tok; t++) {
        for (uint32_t r = 0; r < n_rows; r++) {
            float lanes[LANES] = {0};
            for (size_t i = 0; i < padded; i++)
                lanes[i % LANES] = fmaf(x[t * x_stride + i], w[r * w_stride + i], lanes[i % LANES]);
            y[t * y_stride + r] = tree_sum(lanes);
        }
    }
}

WITH_FMA static void dot_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                                 const float *x, float *y)
{
    size_t padded = moec_lanes_padded(matrix->columns);
    for (uint32_t r = 0; r < n_rows; r++) {
        float lanes[LANES] = {0};
        for (size_t at = 0; at < padded; at += MOEC_CODEC_BLOCK) {
            float w[MOEC_CODEC_BLOCK];
            size_t count = padded - at < MOEC_CODEC_BLOCK ? padded - at : MOEC_CODEC_BLOCK;
            decode_block(matrix, first + r, at, w);
            for (size_t i = 0; i < count; i++)
                lanes[i % LANES] = fmaf(x[at + i], w[i], lanes[i % LANES]);
        }
        y[r] = tree_sum(lanes);
    }
}

static void dot_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                     const float *x, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        dot_encoded(matrix, first + some[i], 1, x, y + i);
}

WITH_FMA static void sum_chunk(const float *h, size_t h_stride, uint32_t n_tok, const float *w,
                               size_t w_stride, uint32_t n_rows, uint32_t columns, float *y, size_t y_stride)
{
    for (uint32_t t = 0; t < n_tok; t++) {
        float *out = y + t * y_stride;
        memset(out, 0, columns * sizeof *out);
        for (uint32_t n = 0; n < n_rows; n++)
            for (uint32_t c = 0; c < columns; c++)
                out[c] = fmaf(h[t * h_stride + n], w[n * w_stride + c], out[c]);
    }
}

/* y += h * row. */
WITH_FMA static void add_row(const struct moec_matrix *matrix, uint32_t row, float h, float *y)
{
    const size_t columns = matrix->columns;
    for (size_t at = 0; at < columns; at += MOEC_CODEC_BLOCK) {
        float w[MOEC_CODEC_BLOCK];
        size_t count = columns - at < MOEC_CODEC_BLOCK ? columns - at : MOEC_CODEC_BLOCK;
        decode_block(matrix, row, at, w);
        for (size_t c = 0; c < count; c++)
            y[at + c] = fmaf(h, w[c], y[at + c]);
    }
}

static void sum_chunk_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                              const float *h, float *y)
{
    memset(y, 0, matrix->columns * sizeof *y);
    for (uint32_t n = 0; n < n_rows; n++)
        add_row(matrix, first + n, h[n], y);
}

static void sum_chunk_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                           const float *h, float *y)
{
    memset(y, 0, matrix->columns * sizeof *y);
    for (uint32_t i = 0; i < n; i++)
        add_row(matrix, first + some[i], h[i], y);
}

static void dot_tokens(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                       size_t x_stride, uint32_t n_tok, float *room, float *y, size_t y_stride)
{
    (void)room;
    for (uint32_t t = 0; t < n_tok; t++)
        dot_encoded(matrix, first, n_rows, x + t * x_stride, y + t * y_stride);
}

WITH_FMA static void sum_chunk_tokens(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                                      const float *h, size_t h_stride, uint32_t n_tok, bool adds, float *room,
                                      float *y, size_t y_stride)
{
    (void)room;
    for (uint32_t t = 0; t < n_tok; t++, h += h_stride, y += y_stride) {
        for (size_t at = 0; at < matrix->columns; at += MOEC_CODEC_BLOCK) {
            float w[MOEC_CODEC_BLOCK], sums[MOEC_CODEC_BLOCK] = {0};
            for (uint32_t n = 0; n < n_rows; n++) {
                decode_block(matrix, first + n, at, w);
                for (size_t c = 0; c < MOEC_CODEC_BLOCK; c++)
                    sums[c] = fmaf(h[n], w[c], sums[c]);
            }
            for (size_t c = 0; c < MOEC_CODEC_BLOCK && at + c < matrix->columns; c++)
                y[at + c] = adds ? y[at + c] + sums[c] : sums[c];
        }
    }
}

static struct moec_matrix rows_of_head(const struct moec_heads *heads, uint32_t head, uint32_t n_rows)
{
    return (struct moec_matrix){.codec = heads->codec,
                                .rows = n_rows,
                                .columns = heads->dim,
                                .stride_bytes = heads->stride_bytes,
                                .data = heads->rows + head * moec_codec_row_bytes(heads->codec, heads->dim)};
}

static void dot_heads(const struct moec_heads *heads, uint32_t n_rows, const float *x, float *y,
                      size_t y_stride)
{
    for (uint32_t q = 0; q < heads->n_heads * heads->n_queries; q++) {
        const struct moec_matrix rows = rows_of_head(heads, q / heads->n_queries, n_rows);
        dot_encoded(&rows, 0, n_rows, x + (size_t)q * heads->dim, y + q * y_stride);
    }
}

static void sum_heads(const struct moec_heads *heads, uint32_t n_rows, const float *h, size_t h_stride,
                      float *y)
{
    for (uint32_t q = 0; q < heads->n_heads * heads->n_queries; q++) {
        const struct moec_matrix rows = rows_of_head(heads, q / heads->n_queries, n_rows);
        sum_chunk_encoded(&rows, 0, n_rows, h + q * h_stride, y + (size_t)q * heads->dim);
    }
}

static float within(float most, float x)
{
    return x > most ? most : x < -most ? -most : x;
}

static void round_f16(const float *x, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t half = moec_f32_to_f16(within(MOEC_F16_MOST, x[i]));
        memcpy(out + 2 * i, &half, sizeof half);
    }
}

/* n numbers of a group to the codes of a block and their scale. */
static void round_group(const float *x, size_t n, uint8_t codes[static MOEC_CODEC_BLOCK], uint8_t *stored)
{
    float largest = 0;
    bool has_nan = false;
    for (size_t i = 0; i < n; i++) {
        const float size = fabsf(within(MOEC_INT8_MOST, x[i]));
        has_nan = has_nan || isnan(size);
        largest = size > largest ? size : largest;
    }
    const uint16_t half = moec_f32_to_f16(has_nan ? NAN : largest / 127);
    const float scale = moec_f16_to_f32(half);
    memcpy(stored, &half, sizeof half);
    for (size_t i = 0; i < MOEC_CODEC_BLOCK; i++) {
        const float q = i < n && scale > 0 ? rintf(within(MOEC_INT8_MOST, x[i]) / scale) : 0;
        codes[i] = (uint8_t)(128 + (int)(q > 127 ? 127 : q < -128 ? -128 : q));
    }
}

static void round_int8(const float *x, size_t n, uint8_t *out)
{
    const size_t n_groups = (n + MOEC_CODEC_BLOCK - 1) / MOEC_CODEC_BLOCK;
    for (size_t g = 0, at = 0; g < n_groups; g++, at += MOEC_CODEC_BLOCK) {
        const size_t count = n - at < MOEC_CODEC_BLOCK ? n - at : MOEC_CODEC_BLOCK;
        round_group(x + at, count, out + at, out + n_groups * MOEC_CODEC_BLOCK + 2 * g);
    }
}

static void add(const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] + x[i];
}

static void add_scaled(float scale, const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(scale, x[i], y[i]);
}

static void silu_mul(const float *gate, const float *up, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = moec_silu_f32(gate[i]) * up[i];
}

static float exp_sum(const float *x, float shift, size_t n, float *out)
{
    float lanes[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        out[i] = moec_exp_f32(x[i] - shift);
        lanes[i % LANES] = lanes[i % LANES] + out[i];
    }
    return tree_sum(lanes);
}

static float greater(float a, float b)
{
    return a > b ? a : b;
}

static float max(const float *x, size_t n)
{
    float s[LANES];
    for (int i = 0; i < LANES; i++)
        s[i] = -INFINITY;
    for (size_t i = 0; i < n; i++)
        s[i % LANES] = greater(x[i], s[i % LANES]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            s[i] = greater(s[i + width], s[i]);
    return s[0];
}

static void rms_norm(const float *x, const float *weight, float eps, size_t n, float *out)
{
    float lanes[LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
    float inverse = 1.0f / sqrtf(tree_sum(lanes) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * inverse * weight[i];
}

WITH_FMA static uint64_t multiply_adds(uint64_t n)
{
    float lanes[LANES] = {0};
    for (uint64_t step = 0; step < n; step++)
        for (int i = 0; i < LANES; i++)
            lanes[i] = fmaf(lanes[i], 0.5f, 0.25f);
    return tree_sum(lanes) > LANES ? 0 : n * LANES;
}

const struct moec_kernels moec_kernels_scalar = {
    .name = "scalar",
    .decode_rows = decode_rows,
    .dot = dot,
    .dot_encoded = dot_encoded,
    .dot_some = dot_some,
    .dot_tokens = dot_tokens,
    .sum_chunk = sum_chunk,
    .sum_chunk_encoded = sum_chunk_encoded,
    .sum_chunk_some = sum_chunk_some,
    .sum_chunk_tokens = sum_chunk_tokens,
    .dot_heads = dot_heads,
    .sum_heads = sum_heads,
    .round_f16 = round_f16,
    .round_int8 = round_int8,
    .multiply_adds = multiply_adds,
    .add = add,
    .add_scaled = add_scaled,
    .silu_mul = silu_mul,
    .exp_sum = exp_sum,
    .max = max,
    .rms_norm = rms_norm,
};
