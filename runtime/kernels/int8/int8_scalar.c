/* The definition of the int8 arithmetic (runtime/kernels/int8.h) in plain loops: slow and meant to be read;
 * the other sets are tested against it bit for bit. */
#include "runtime/kernels/int8.h"

#include "formats/base/half.h"
#include "formats/codec/shift.h"
#include "formats/codec/trellis.h"

#include <math.h>
#include <string.h>

#define LANES MOEC_LANES
#define SPAN  MOEC_INT8_SPAN
#define BLOCK MOEC_CODEC_BLOCK

/* The largest |v|, as bits: those of NaN are above those of infinity. */
static float largest(const float *v, size_t n)
{
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = moec_f32_bits(v[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    return moec_f32_from_bits(top);
}

static float inverse_of(float largest)
{
    return largest > MOEC_INT8_SMALL ? 127.0f / largest : 0.0f;
}

static int8_t rounded(float v, float inverse)
{
    v = v * inverse;
    v = v < 127.0f ? v : 127.0f; /* NaN too */
    v = v > -127.0f ? v : -127.0f;
    return (int8_t)lrintf(v);
}

static void round_span(const float *x, size_t n, struct moec_int8_span *span)
{
    const float top = largest(x, n), inverse = inverse_of(top);
    memset(span, 0, sizeof *span);
    span->scale = top / 127.0f;
    for (size_t i = 0; i < n; i++) {
        const size_t block = i / BLOCK, half = i % BLOCK / 16, at = i % 16;
        const int8_t q = rounded(x[i], inverse);
        span->q[64 * half + 16 * block + at] = q;
        for (size_t r = 0; r < 4; r++)
            span->sums[4 * block + r] += q;
    }
}

static void round_all(const float *x, size_t n, struct moec_int8_span *spans)
{
    for (size_t at = 0; at < n; at += SPAN)
        round_span(x + at, n - at < SPAN ? n - at : SPAN, spans++);
}

/* Codes, scales and zeros of one row, a block at a time. */
struct row {
    struct moec_codec codec;
    const uint8_t *bytes;
    size_t columns;
};

static uint32_t bits_at(const uint8_t *bytes, uint32_t bit, uint32_t n_bits)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < n_bits; i++)
        value |= (uint32_t)(bytes[(bit + i) / 8] >> ((bit + i) % 8) & 1) << i;
    return value;
}

/* Code i < 32 of a block (formats/codec/codec.h). */
static int32_t code_at(uint32_t bits, const uint8_t *block, uint32_t i)
{
    switch (bits) {
    case 2:
        return block[i % 8] >> (i / 8 * 2) & 3;
    case 3:
        return (block[i % 8] >> (i / 8 * 2) & 3) | (int32_t)bits_at(block + 8, i, 1) << 2;
    case 4:
        return block[i % 16] >> (i / 16 * 4) & 15;
    case 5:
        return (block[i % 16] >> (i / 16 * 4) & 15) | (int32_t)bits_at(block + 16, i, 1) << 4;
    case 6:
        return (block[i % 16] >> (i / 16 * 4) & 15) | (block[16 + i % 8] >> (i / 8 * 2) & 3) << 4;
    default:
        return block[i];
    }
}

static size_t group_of(const struct row *row, size_t column)
{
    return row->codec.group == 0 ? 0 : column / row->codec.group;
}

static float scale_of(const struct row *row, size_t group)
{
    const uint8_t *scales =
        row->bytes + (row->columns + BLOCK - 1) / BLOCK * (4 * (size_t)moec_codec_bits(row->codec));
    const bool is_past = group >= moec_codec_row_groups(row->codec, row->columns); /* the end: 0 */
    uint16_t half = 0;
    if (!moec_scheme_is_nested((enum moec_scheme)row->codec.scheme)) {
        if (!is_past)
            memcpy(&half, scales + 2 * group, sizeof half);
        return moec_f16_to_f32(half) *
               (row->codec.scheme == MOEC_SCHEME_TRELLIS ? MOEC_INT8_TRELLIS_STEP : 1.0f);
    }
    memcpy(&half, scales, sizeof half);
    return (is_past ? 0 : (float)scales[2 + group]) * (moec_f16_to_f32(half) * 0x1p-8f);
}

static int32_t zero_of(const struct row *row, size_t group)
{
    const enum moec_scheme scheme = (enum moec_scheme)row->codec.scheme;
    const uint32_t bits = moec_codec_bits(row->codec);
    const uint8_t *zeros = row->bytes + (row->columns + BLOCK - 1) / BLOCK * (4 * (size_t)bits) +
                           moec_codec_scales_bytes(row->codec, row->columns);
    if (!moec_scheme_has_zeros(scheme))
        return 1 << (bits - 1);
    if (group >= moec_codec_row_groups(row->codec, row->columns))
        return 0;
    return moec_scheme_is_nested(scheme) ? (int32_t)bits_at(zeros, (uint32_t)group * bits, bits)
                                         : zeros[group];
}

static struct row row_of(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t i)
{
    const uint32_t row = first + (some != NULL ? some[i] : i);
    return (struct row){matrix->codec, matrix->data + (size_t)row * matrix->stride_bytes, matrix->columns};
}

/* Blocks of a trellis are a word of coded and one of free bits. */
static int32_t trellis_level_at(const struct row *row, size_t column)
{
    static const int32_t levels[MOEC_TRELLIS_LEVELS] = {MOEC_INT8_TRELLIS_LEVELS};
    const size_t block = column / BLOCK, i = column % BLOCK;
    uint32_t coded, upper, before = 0;
    memcpy(&coded, row->bytes + 8 * block, sizeof coded);
    memcpy(&upper, row->bytes + 8 * block + 4, sizeof upper);
    if (block > 0)
        memcpy(&before, row->bytes + 8 * (block - 1), sizeof before);
    const struct moec_trellis_words z = moec_trellis_words(coded, before);
    return levels[(upper >> i & 1) << 2 | (z.z1 >> i & 1) << 1 | (z.z0 >> i & 1)];
}

/* The code of a column less its zero. */
static int32_t level_at(const struct row *row, size_t column)
{
    if (row->codec.scheme == MOEC_SCHEME_TRELLIS)
        return trellis_level_at(row, column);
    if (row->codec.scheme == MOEC_SCHEME_SHIFT)
        return moec_shift_level(moec_codec_bits(row->codec), row->bytes, column);
    const uint32_t bits = moec_codec_bits(row->codec);
    return code_at(bits, row->bytes + column / BLOCK * (4 * (size_t)bits), column % BLOCK) -
           zero_of(row, group_of(row, column));
}

static size_t span_groups(const struct row *row)
{
    return row->codec.group == 0 ? 1 : SPAN / row->codec.group;
}

/* `sum` and the products of the span from column `at` on. */
static float dot_span(const struct row *row, size_t at, const struct moec_int8_span *x, float sum)
{
    const size_t groups = span_groups(row), width = SPAN / groups;
    int32_t products[SPAN / BLOCK] = {0};
    for (size_t i = 0; i < SPAN && at + i < row->columns; i++)
        products[i / width] +=
            x->q[64 * (i % BLOCK / 16) + 16 * (i / BLOCK) + i % 16] * level_at(row, at + i);
    float p = 0;
    for (size_t g = 0; g < groups; g++)
        p = fmaf((float)products[g], scale_of(row, group_of(row, at + g * width)), p);
    return fmaf(p, x->scale, sum);
}

static void dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct row row = row_of(matrix, first, some, i);
        for (uint32_t t = 0; t < n_tok; t++) {
            float sum = 0;
            for (size_t at = 0; at < row.columns; at += SPAN)
                sum = dot_span(&row, at, x[t] + at / SPAN, sum);
            y[t * y_stride + i] = sum;
        }
    }
}

/* Token t of a tile as a span. */
static struct moec_int8_span span_of(const struct moec_int8_tile *tile, uint32_t t)
{
    struct moec_int8_span span = {.scale = tile->scales[t]};
    for (size_t i = 0; i < SPAN; i++)
        span.q[64 * (i % BLOCK / 16) + 16 * (i / BLOCK) + i % 16] = tile->q[i / 4][t][i % 4];
    return span;
}

static void dot_tiles(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                      const struct moec_int8_tile *x, uint32_t n_tok, float *y, size_t y_stride)
{
    const size_t n_spans = moec_int8_spans(matrix->columns);
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct row row = row_of(matrix, first, NULL, i);
        for (uint32_t t = 0; t < n_tok; t++) {
            float sum = 0;
            for (size_t s = 0; s < n_spans; s++) {
                const struct moec_int8_span span = span_of(x + t / LANES * n_spans + s, t % LANES);
                sum = dot_span(&row, s * SPAN, &span, sum);
            }
            y[t * y_stride + i] = sum;
        }
    }
}

/* Columns of one group, of one token. */
static void sum_group(const struct row *rows, uint32_t n_rows, const float *h, size_t from, size_t to,
                      float *y)
{
    const size_t group = group_of(rows, from);
    float scaled[MOEC_SUM_CHUNK];
    for (uint32_t n = 0; n < n_rows; n++)
        scaled[n] = h[n] * scale_of(&rows[n], group);
    const float top = largest(scaled, n_rows), inverse = inverse_of(top), scale = top / 127.0f;
    for (size_t c = from; c < to; c++) {
        int32_t sum = 0;
        for (uint32_t n = 0; n < n_rows; n++)
            sum += rounded(scaled[n], inverse) * level_at(&rows[n], c);
        y[c] = (float)sum * scale;
    }
}

static void sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                      const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    const size_t columns = matrix->columns, width = matrix->codec.group == 0 ? columns : matrix->codec.group;
    struct row rows[MOEC_SUM_CHUNK];
    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = row_of(matrix, first, some, i);
    for (uint32_t t = 0; t < n_tok; t++, y += y_stride, h += h_stride) {
        if (n_rows == 0)
            memset(y, 0, columns * sizeof *y);
        for (size_t from = 0; n_rows > 0 && from < columns; from += width)
            sum_group(rows, n_rows, h, from, columns - from < width ? columns : from + width, y);
    }
}

const struct moec_int8_kernels moec_int8_kernels_scalar = {.name = "scalar",
                                                           .many_tokens = 5,
                                                           .round = round_all,
                                                           .dot = dot,
                                                           .dot_tiles = dot_tiles,
                                                           .sum_chunk = sum_chunk};
