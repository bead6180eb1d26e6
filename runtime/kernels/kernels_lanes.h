/* The kernels written once for all vector instruction sets, over a vector of MOEC_LANES floats.
 *
 * A set (runtime/kernels/kernels_avx2.c, ...) defines the type `lanes` and the primitives below, then
 * includes this file, which defines the kernels and LANES_KERNELS(name), their table. Arguments called nt,
 * nv, nr and dtype are constants after inlining. The set also chooses the shapes SUM_VECTORS and
 * ROWS_AT_ONCE.
 *
 * lanes_zero, lanes_set, lanes_load, lanes_store, lanes_add, lanes_sub, lanes_mul, lanes_div, lanes_fma
 *
 * lanes_max(a, b), lanes_min(a, b): a if it is greater (less) than b, else b
 *
 * lanes_load_some(p, n): the first n floats, then zeros; 0 < n < 16, nothing past n is read
 *
 * lanes_store_some(p, n, v): the first n lanes; nothing past n is written
 *
 * lanes_keep(v, n, other): the first n lanes of v, then those of other; 0 < n <= 16
 *
 * lanes_sum, lanes_top: the tree of dot with +, and with lanes_max(upper, lower)
 *
 * lanes_power(p, biased): p * 2^floor(n / 2) * 2^ceil(n / 2), where n = bits(biased) - bits(EXP_ROUND)
 *
 * lanes_cut(v, x, limit): 0 where x < limit, else v
 *
 * decoder_make(dtype, scale, zero), decoder_of_levels(dtype, scale, levels),
 * decode_block(dtype, bytes, decoders, out): 32 stored weights to out[0] by decoders[0] and to out[1] by
 * decoders[UPPER(dtype)]
 *
 * decoder_needs_regular(dtype): the decoder gives the exact bits only for scales that are finite and above 0
 *
 * dot_tile: see dot_slice below */
#ifndef MOEC_RUNTIME_KERNELS_LANES_H
#define MOEC_RUNTIME_KERNELS_LANES_H

#include "formats/base/half.h"
#include "formats/codec/dictionary.h"
#include "runtime/kernels/kernels_x86.h"

#include <math.h>

#define SPAN MOEC_CODEC_OUTLIER_SPAN /* weights decoded at once where a row is not kept in registers */

/* ---- dot of decoded rows ---- */

/* n_tok tokens against a slice, in tiles of at most DOT_TOKENS tokens.
 * dot_tile(nt, x, x_stride, slice, first, last, acc, y, y_stride): lanes start at 0 when `first`, else where
 * acc[token][row] has them, and go back there or, when `last`, down the tree to y[token * y_stride + row]. */
INLINE void dot_slice(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *slice,
                      const bool first, const bool last, float (*acc)[DOT_ROWS][LANES], float *y,
                      size_t y_stride)
{
    const bool whole = first && last; /* acc is then scratch of one tile */
    uint32_t t = 0;
    for (; n_tok - t == 3 || n_tok - t > 4; t += 3)
        dot_tile(3, x + t * x_stride, x_stride, slice, first, last, whole ? acc : acc + t, y + t * y_stride,
                 y_stride);
    for (; n_tok - t > 1; t += 2)
        dot_tile(2, x + t * x_stride, x_stride, slice, first, last, whole ? acc : acc + t, y + t * y_stride,
                 y_stride);
    if (t < n_tok)
        dot_tile(1, x + t * x_stride, x_stride, slice, first, last, whole ? acc : acc + t, y + t * y_stride,
                 y_stride);
}

/* Slice of rows too long for the first-level cache. Long rows tend to lie a power of two apart, where their
 * lines fall on few places of that cache, so a slice that many tokens will use is copied together. */
INLINE struct slice cut_slice(const struct slice *rows, size_t at, size_t k, bool copy,
                              float packed[DOT_ROWS][DOT_DEPTH])
{
    struct slice slice = {.k = k};
    for (int r = 0; r < DOT_ROWS; r++) {
        slice.w[r] = rows->w[r] + at;
        if (copy) {
            for (size_t i = 0; i < k; i += LANES)
                lanes_store(packed[r] + i, lanes_load(slice.w[r] + i));
            slice.w[r] = packed[r];
        }
    }
    return slice;
}

/* At most DOT_CUT tokens against rows that are cut along k. */
static void dot_cut(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows, float *y,
                    size_t y_stride)
{
    float acc[DOT_CUT][DOT_ROWS][LANES], packed[DOT_ROWS][DOT_DEPTH];
    const bool copy = n_tok > 2 * DOT_TOKENS;
    size_t at = DOT_DEPTH;
    struct slice slice = cut_slice(rows, 0, DOT_DEPTH, copy, packed);
    dot_slice(x, x_stride, n_tok, &slice, true, false, acc, y, y_stride);
    for (; rows->k - at > DOT_DEPTH; at += DOT_DEPTH) {
        slice = cut_slice(rows, at, DOT_DEPTH, copy, packed);
        dot_slice(x + at, x_stride, n_tok, &slice, false, false, acc, y, y_stride);
    }
    slice = cut_slice(rows, at, rows->k - at, copy, packed);
    dot_slice(x + at, x_stride, n_tok, &slice, false, true, acc, y, y_stride);
}

static void dot_whole(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows, float *y,
                      size_t y_stride)
{
    float acc[DOT_TOKENS][DOT_ROWS][LANES];
    dot_slice(x, x_stride, n_tok, rows, true, true, acc, y, y_stride);
}

/* All tokens against DOT_ROWS rows. */
static void dot_eight_rows(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows,
                           float *y, size_t y_stride)
{
    if (rows->k <= DOT_DEPTH) {
        dot_whole(x, x_stride, n_tok, rows, y, y_stride);
        return;
    }
    for (uint32_t t = 0; t < n_tok; t += DOT_CUT)
        dot_cut(x + t * x_stride, x_stride, n_tok - t < DOT_CUT ? n_tok - t : DOT_CUT, rows, y + t * y_stride,
                y_stride);
}

/* A last group of fewer than DOT_ROWS rows:
 * its last row stands for the missing ones, whose results are dropped. */
static void dot_last_rows(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows,
                          uint32_t n_rows, float *y, size_t y_stride)
{
    float out[DOT_CUT][DOT_ROWS];
    for (uint32_t t = 0; t < n_tok; t += DOT_CUT) {
        uint32_t tokens = n_tok - t < DOT_CUT ? n_tok - t : DOT_CUT;
        dot_eight_rows(x + t * x_stride, x_stride, tokens, rows, out[0], DOT_ROWS);
        for (uint32_t i = 0; i < tokens; i++)
            memcpy(y + (t + i) * y_stride, out[i], n_rows * sizeof out[i][0]);
    }
}

/* Asks for the rows that come next while many tokens still use the present ones. */
INLINE void prefetch_rows(const float *rows, size_t row_stride)
{
    const size_t floats_per_line = 16;
    for (size_t i = 0; i < DOT_ROWS * row_stride; i += floats_per_line)
        _mm_prefetch((const char *)(rows + i), _MM_HINT_T1);
}

static void dot(const float *x, size_t x_stride, uint32_t n_tok, const float *w, size_t w_stride,
                uint32_t n_rows, uint32_t k, float *y, size_t y_stride)
{
    const size_t padded = moec_lanes_padded(k);
    /* as many tokens as stay in the second-level cache while the rows pass */
    const uint32_t cached_floats = 1u << 15, fit = padded > 0 ? cached_floats / (uint32_t)padded : n_tok;
    const uint32_t at_once = fit > DOT_CUT ? fit / DOT_CUT * DOT_CUT : DOT_CUT;
    for (uint32_t t = 0; t < n_tok; t += at_once) {
        const float *x_rows = x + t * x_stride;
        float *y_rows = y + t * y_stride;
        uint32_t tokens = n_tok - t < at_once ? n_tok - t : at_once;
        for (uint32_t r = 0; r < n_rows; r += DOT_ROWS) {
            uint32_t left = n_rows - r;
            struct slice rows = {.k = padded};
            for (uint32_t i = 0; i < DOT_ROWS; i++)
                rows.w[i] = w + (r + (i < left ? i : left - 1)) * w_stride;
            if (tokens > 4 * DOT_TOKENS && left >= 2 * DOT_ROWS && w_stride <= DOT_DEPTH)
                prefetch_rows(rows.w[0] + DOT_ROWS * w_stride, w_stride);
            if (left >= DOT_ROWS)
                dot_eight_rows(x_rows, x_stride, tokens, &rows, y_rows + r, y_stride);
            else
                dot_last_rows(x_rows, x_stride, tokens, &rows, left, y_rows + r, y_stride);
        }
    }
}

/* ---- weighted sum of decoded rows ---- */

/* nt tokens by nv vectors of columns, of which the first `columns` are stored. */
INLINE void sum_tile(const int nt, const int nv, const float *h, size_t h_stride, const float *w,
                     size_t w_stride, uint32_t n_rows, size_t columns, float *y, size_t y_stride)
{
    lanes sums[12];
    UNROLL
    for (int i = 0; i < nt * nv; i++)
        sums[i] = lanes_zero();
    for (uint32_t n = 0; n < n_rows; n++) {
        lanes weights[4];
        UNROLL
        for (int v = 0; v < nv; v++)
            weights[v] = lanes_load(w + n * w_stride + v * LANES);
        UNROLL
        for (int t = 0; t < nt; t++) {
            lanes factor = lanes_set(h[(size_t)t * h_stride + n]);
            UNROLL
            for (int v = 0; v < nv; v++)
                sums[t * nv + v] = lanes_fma(factor, weights[v], sums[t * nv + v]);
        }
    }
    UNROLL
    for (int t = 0; t < nt; t++) {
        UNROLL
        for (int v = 0; v < nv; v++) {
            size_t at = (size_t)v * LANES;
            float *out = y + (size_t)t * y_stride + at;
            if (columns >= at + LANES)
                lanes_store(out, sums[t * nv + v]);
            else
                lanes_store_some(out, columns - at, sums[t * nv + v]);
        }
    }
}

/* All tokens, SUM_TOKENS at a time, for nv vectors of columns. Rows far apart fall on few lines of the
 * first-level cache, so for many tokens the strip is copied together first. */
INLINE void sum_strip(const int nv, const float *h, size_t h_stride, uint32_t n_tok, const float *w,
                      size_t w_stride, uint32_t n_rows, size_t columns, float *y, size_t y_stride)
{
    float strip[MOEC_SUM_CHUNK * SUM_VECTORS * LANES];
    if (n_tok > SUM_TOKENS) {
        for (uint32_t n = 0; n < n_rows; n++) {
            UNROLL
            for (int v = 0; v < nv; v++)
                lanes_store(strip + ((size_t)n * (size_t)nv + (size_t)v) * LANES,
                            lanes_load(w + n * w_stride + v * LANES));
        }
        w = strip;
        w_stride = (size_t)nv * LANES;
    }
    for (uint32_t t = 0; t < n_tok; t += SUM_TOKENS)
        sum_tile(SUM_TOKENS, nv, h + t * h_stride, h_stride, w, w_stride, n_rows, columns, y + t * y_stride,
                 y_stride);
}

/* The last nt tokens, all columns. */
INLINE void sum_rest(const int nt, const int nv, const float *h, size_t h_stride, const float *w,
                     size_t w_stride, uint32_t n_rows, size_t columns, float *y, size_t y_stride)
{
    size_t c = 0, width = (size_t)nv * LANES;
    for (; c + width <= columns; c += width)
        sum_tile(nt, nv, h, h_stride, w + c, w_stride, n_rows, width, y + c, y_stride);
    for (; c < columns; c += LANES)
        sum_tile(nt, 1, h, h_stride, w + c, w_stride, n_rows, columns - c, y + c, y_stride);
}

static void sum_chunk(const float *h, size_t h_stride, uint32_t n_tok, const float *w, size_t w_stride,
                      uint32_t n_rows, uint32_t columns, float *y, size_t y_stride)
{
    const size_t width = SUM_VECTORS * LANES;
    uint32_t whole = n_tok / SUM_TOKENS * SUM_TOKENS;
    if (whole > 0) {
        size_t c = 0;
        for (; c + width <= columns; c += width)
            sum_strip(SUM_VECTORS, h, h_stride, whole, w + c, w_stride, n_rows, width, y + c, y_stride);
        for (; c < columns; c += LANES)
            sum_strip(1, h, h_stride, whole, w + c, w_stride, n_rows, columns - c, y + c, y_stride);
    }
    h += whole * h_stride;
    y += whole * y_stride;
    switch (n_tok - whole) {
    case 1:
        sum_rest(1, 4, h, h_stride, w, w_stride, n_rows, columns, y, y_stride);
        break;
    case 2:
        sum_rest(2, 2, h, h_stride, w, w_stride, n_rows, columns, y, y_stride);
        break;
    case 3:
        sum_rest(3, SUM_VECTORS, h, h_stride, w, w_stride, n_rows, columns, y, y_stride);
        break;
    case 4:
        sum_rest(4, SUM_VECTORS, h, h_stride, w, w_stride, n_rows, columns, y, y_stride);
        break;
    case 5:
        sum_rest(5, SUM_VECTORS, h, h_stride, w, w_stride, n_rows, columns, y, y_stride);
        break;
    default:
        break;
    }
}

/* ---- encoded rows ---- */

INLINE size_t block_bytes(const int dtype)
{
    switch (PLAIN(dtype)) {
    case MOEC_DTYPE_F32:
        return 4 * BLOCK;
    case MOEC_DTYPE_F16:
    case MOEC_DTYPE_BF16:
        return 2 * BLOCK;
    case MOEC_DTYPE_INT2:
        return 8;
    case MOEC_DTYPE_INT3:
        return 12;
    case MOEC_DTYPE_INT4:
        return 16;
    case MOEC_DTYPE_INT5:
        return 20;
    case MOEC_DTYPE_INT6:
        return 24;
    default:
        return BLOCK;
    }
}

INLINE bool dtype_is_float(const int dtype)
{
    return dtype == MOEC_DTYPE_F32 || dtype == MOEC_DTYPE_F16 || dtype == MOEC_DTYPE_BF16;
}

/* Where the parts of a matrix's rows lie. */
struct layout {
    size_t blocks;    /* whole blocks */
    size_t tail;      /* weights in an incomplete last block */
    size_t per_group; /* blocks that share their decoders */
    size_t groups;
    size_t scales; /* offset in a row */
    size_t zeros;  /* the same */
    bool is_nested;
    bool symmetric;
    const float *levels; /* of a dictionary */
    size_t n_outlier;    /* 0: rows have none */
};

INLINE struct layout layout_of(const int dtype, const struct moec_matrix *matrix)
{
    const enum moec_scheme scheme = (enum moec_scheme)matrix->codec.scheme;
    size_t n = matrix->columns, blocks = n / BLOCK, tail = n % BLOCK, all = blocks + (tail > 0);
    struct layout layout = {.blocks = blocks, .tail = tail, .per_group = all};
    if (dtype_is_float(dtype))
        return layout;
    if (dtype & HALVES)
        layout.per_group = 1;
    else if (matrix->codec.group != 0)
        layout.per_group = matrix->codec.group / BLOCK;
    layout.groups = moec_codec_row_groups(matrix->codec, n);
    layout.scales = all * block_bytes(dtype);
    layout.zeros = layout.scales + moec_codec_scales_bytes(matrix->codec, n);
    if (dtype & DICTIONARY) {
        layout.levels = moec_dictionary_levels(scheme, (uint32_t)block_bytes(dtype) / 4);
        layout.n_outlier = moec_codec_row_outliers(matrix->codec, n);
    }
    layout.is_nested = moec_scheme_is_nested(scheme);
    layout.symmetric = !moec_scheme_has_zeros(scheme);
    return layout;
}

INLINE const uint8_t *row_at(const struct moec_matrix *matrix, uint32_t row)
{
    return matrix->data + (size_t)row * matrix->stride_bytes;
}

INLINE float f16_at(const uint8_t *at)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(at))));
}

INLINE bool scales_are_nested(const int dtype, const struct layout *layout)
{
    return (dtype & NESTED) || ((dtype & HALVES) && layout->is_nested);
}

/* What the bytes of a row's groups are multiplied with; nothing where groups have scales of their own. */
INLINE float row_factor(const int dtype, const struct layout *layout, const uint8_t *row)
{
    return scales_are_nested(dtype, layout) ? f16_at(row + layout->scales) * 0x1p-8f : 0;
}

INLINE uint8_t zero_at(const int dtype, const struct layout *layout, const uint8_t *row, size_t group)
{
    const uint32_t bits = (uint32_t)block_bytes(dtype) / 4;
    const uint8_t *zeros = row + layout->zeros;
    if (layout->symmetric)
        return (uint8_t)(1u << (bits - 1));
    if (!scales_are_nested(dtype, layout))
        return zeros[group];
    const uint32_t shift = (uint32_t)(group * bits % 8);
    zeros += group * bits / 8;
    uint32_t zero = (uint32_t)zeros[0] >> shift;
    if (8 % bits != 0 && shift + bits > 8)
        zero |= (uint32_t)zeros[1] << (8 - shift);
    return (uint8_t)(zero & ((1u << bits) - 1));
}

INLINE struct decoder decoder_of_group(const int dtype, const struct layout *layout, const uint8_t *row,
                                       float factor, size_t group)
{
    const uint8_t *scales = row + layout->scales;
    const float scale =
        scales_are_nested(dtype, layout) ? (float)scales[2 + group] * factor : f16_at(scales + 2 * group);
    if (dtype & DICTIONARY)
        return decoder_of_levels(dtype, scale, layout->levels);
    return decoder_make(dtype, scale, zero_at(dtype, layout, row, group));
}

/* Decoders of the blocks g * per_group and on. Of two groups in a block the last row's second may be absent.
 */
INLINE void decoders_at(const int dtype, const struct layout *layout, const uint8_t *row, float factor,
                        size_t g, struct decoder decoders[2])
{
    if (dtype_is_float(dtype)) {
        decoders[0] = (struct decoder){0};
    } else if (dtype & HALVES) {
        decoders[0] = decoder_of_group(dtype, layout, row, factor, 2 * g);
        decoders[1] = 2 * g + 1 < layout->groups ? decoder_of_group(dtype, layout, row, factor, 2 * g + 1)
                                                 : decoders[0];
    } else {
        decoders[0] = decoder_of_group(dtype, layout, row, factor, g);
    }
}

/* Whether every scale is finite and above 0. Fused decoding gives +0 where the definition has -0 for other
 * scales; such rows, which no quantiser of moec writes but for all-zero groups, take the definition's way. */
INLINE bool row_is_regular(const int dtype, const struct layout *layout, const uint8_t *row)
{
    if (!decoder_needs_regular(dtype))
        return true;
    uint16_t top = 0;
    for (size_t g = 0; g < layout->groups; g++) {
        uint16_t less_one = (uint16_t)(load_u16(row + layout->scales + 2 * g) - 1);
        top = less_one > top ? less_one : top;
    }
    return top < 0x7bff; /* 0x7c00 is infinity, 0x8000 and above are negative, 0 has wrapped around */
}

/* Outlier of a span of a row, and its place, which may lie outside the span. */
struct outlier {
    float value;
    size_t place;
};

INLINE struct outlier outlier_at(const struct layout *layout, const uint8_t *row, size_t span)
{
    const uint8_t *outliers = row + layout->scales + 2 * layout->groups;
    return (struct outlier){moec_f16_to_f32(load_u16(outliers + 2 * span)),
                            outliers[2 * layout->n_outlier + span]};
}

INLINE void keep_tail(size_t tail, lanes out[2])
{
    out[0] = lanes_keep(out[0], tail < LANES ? tail : LANES, lanes_zero());
    out[1] = tail > LANES ? lanes_keep(out[1], tail - LANES, lanes_zero()) : lanes_zero();
}

/* An incomplete last block: zeros past the row's end. */
INLINE void decode_tail(const int dtype, const uint8_t *bytes, const struct decoder *decoders, size_t tail,
                        lanes out[2])
{
    uint8_t padded[4 * BLOCK] = {0};
    if (dtype_is_float(dtype)) {
        memcpy(padded, bytes, tail * block_bytes(dtype) / BLOCK);
        bytes = padded;
    }
    decode_block(dtype, bytes, decoders, out);
    keep_tail(tail, out);
}

INLINE void decode_row(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                       uint32_t row, float *out)
{
    const uint8_t *bytes = row_at(matrix, row), *start = bytes;
    const float factor = row_factor(dtype, layout, start);
    struct decoder decoders[2];
    lanes w[2];
    size_t b = 0;
    if (!row_is_regular(dtype, layout, start)) {
        size_t n = matrix->columns;
        moec_codec_decode_row(matrix->codec, start, n, out);
        memset(out + n, 0, (moec_lanes_padded(n) - n) * sizeof *out);
        return;
    }
    for (size_t g = 0; b * BLOCK < matrix->columns; g++) {
        decoders_at(dtype, layout, start, factor, g, decoders);
        size_t end = layout->blocks - b < layout->per_group ? layout->blocks : b + layout->per_group;
        for (; b < end; b++, bytes += block_bytes(dtype)) {
            decode_block(dtype, bytes, decoders, w);
            lanes_store(out + b * BLOCK, w[0]);
            lanes_store(out + b * BLOCK + LANES, w[1]);
        }
        if (b == layout->blocks && b < (g + 1) * layout->per_group && layout->tail > 0) {
            decode_tail(dtype, bytes, decoders, layout->tail, w);
            lanes_store(out + b * BLOCK, w[0]);
            if (layout->tail > LANES)
                lanes_store(out + b * BLOCK + LANES, w[1]);
            return;
        }
    }
}

static void put_outliers(const struct moec_matrix *matrix, const struct layout *layout, uint32_t row,
                         float *out)
{
    for (size_t span = 0; span < layout->n_outlier; span++) {
        const struct outlier outlier = outlier_at(layout, row_at(matrix, row), span);
        if (outlier.place < SPAN && span * SPAN + outlier.place < matrix->columns)
            out[span * SPAN + outlier.place] = outlier.value;
    }
}

INLINE void decode_all(const int dtype, const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                       float *out, size_t stride)
{
    struct layout layout = layout_of(dtype, matrix);
    for (uint32_t r = 0; r < n_rows; r++) {
        decode_row(dtype, matrix, &layout, first + r, out + r * stride);
        if (dtype & DICTIONARY)
            put_outliers(matrix, &layout, first + r, out + r * stride);
    }
}

INLINE int kind_of(struct moec_codec codec)
{
    const enum moec_scheme scheme = (enum moec_scheme)codec.scheme;
    return codec.dtype | (moec_scheme_is_dictionary(scheme) ? DICTIONARY
                          : codec.group == 16               ? HALVES
                          : moec_scheme_is_nested(scheme)   ? NESTED
                                                            : 0);
}

#define OF_KIND(kind, function, ...)                                                                         \
    case kind:                                                                                               \
        function(kind, __VA_ARGS__);                                                                         \
        break;
#define OF_INTEGERS(flags, function, ...)                                                                    \
    OF_KIND(MOEC_DTYPE_INT2 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT3 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT4 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT5 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT6 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT8 | (flags), function, __VA_ARGS__)

/* Calls function(dtype, ...) with the matrix's dtype as a constant. */
#define WITH_DTYPE(codec, function, ...)                                                                     \
    switch (kind_of(codec)) {                                                                                \
        OF_KIND(MOEC_DTYPE_F32, function, __VA_ARGS__)                                                       \
        OF_KIND(MOEC_DTYPE_F16, function, __VA_ARGS__)                                                       \
        OF_KIND(MOEC_DTYPE_BF16, function, __VA_ARGS__)                                                      \
        OF_KIND(MOEC_DTYPE_INT2 | DICTIONARY, function, __VA_ARGS__)                                         \
        OF_KIND(MOEC_DTYPE_INT3 | DICTIONARY, function, __VA_ARGS__)                                         \
        OF_KIND(MOEC_DTYPE_INT4 | DICTIONARY, function, __VA_ARGS__)                                         \
        OF_KIND(MOEC_DTYPE_INT8 | DICTIONARY, function, __VA_ARGS__)                                         \
        OF_INTEGERS(NESTED, function, __VA_ARGS__)                                                           \
        OF_INTEGERS(HALVES, function, __VA_ARGS__)                                                           \
        OF_INTEGERS(0, function, __VA_ARGS__)                                                                \
    default:                                                                                                 \
        break;                                                                                               \
    }

static void decode_rows(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, float *out,
                        size_t stride){
    WITH_DTYPE(matrix->codec, decode_all, matrix, first, n_rows, out, stride)}

/* nr rows against x, weights in registers only. */
INLINE void dot_rows(const int dtype, const int nr, const struct moec_matrix *matrix,
                     const struct layout *layout, uint32_t row, const float *x, float *y)
{
    const uint8_t *bytes[ROWS_AT_ONCE];
    float row_factors[ROWS_AT_ONCE];
    struct decoder decoders[ROWS_AT_ONCE][2];
    lanes sums[ROWS_AT_ONCE], w[2];
    size_t b = 0;
    UNROLL
    for (int r = 0; r < nr; r++) {
        bytes[r] = row_at(matrix, row + (uint32_t)r);
        row_factors[r] = row_factor(dtype, layout, bytes[r]);
        sums[r] = lanes_zero();
    }
    for (size_t g = 0; b * BLOCK < matrix->columns; g++) {
        size_t end = layout->blocks - b < layout->per_group ? layout->blocks : b + layout->per_group;
        UNROLL
        for (int r = 0; r < nr; r++)
            decoders_at(dtype, layout, bytes[r], row_factors[r], g, decoders[r]);
        for (; b < end; b++) {
            lanes x0 = lanes_load(x + b * BLOCK), x1 = lanes_load(x + b * BLOCK + LANES);
            UNROLL
            for (int r = 0; r < nr; r++) {
                decode_block(dtype, bytes[r] + b * block_bytes(dtype), decoders[r], w);
                sums[r] = lanes_fma(x0, w[0], sums[r]);
                sums[r] = lanes_fma(x1, w[1], sums[r]);
            }
        }
        if (b == layout->blocks && b < (g + 1) * layout->per_group && layout->tail > 0) {
            UNROLL
            for (int r = 0; r < nr; r++) {
                decode_tail(dtype, bytes[r] + b * block_bytes(dtype), decoders[r], layout->tail, w);
                sums[r] = lanes_fma(lanes_load(x + b * BLOCK), w[0], sums[r]);
                if (layout->tail > LANES)
                    sums[r] = lanes_fma(lanes_load(x + b * BLOCK + LANES), w[1], sums[r]);
            }
            break;
        }
    }
    UNROLL
    for (int r = 0; r < nr; r++)
        y[r] = lanes_sum(sums[r]);
}

/* Whether dot and weighted sum decode a row span by span: where it has outliers, and where blocks have two
 * groups, for which a loop of their own, as fast as it would be, is too much code. */
INLINE bool goes_by_spans(const int dtype, const struct layout *layout)
{
    return (dtype & HALVES) || ((dtype & DICTIONARY) && layout->n_outlier > 0);
}

/* One span of a row with its outlier; zeros past the row's end. */
INLINE void decode_span(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                        const uint8_t *row, size_t span, float w[static SPAN])
{
    const size_t first = span * (SPAN / BLOCK), all = layout->blocks + (layout->tail > 0);
    const float factor = row_factor(dtype, layout, row);
    NO_UNROLL
    for (size_t i = 0; i < SPAN / BLOCK; i++) {
        const size_t b = first + i;
        lanes out[2] = {lanes_zero(), lanes_zero()};
        if (b < all) {
            struct decoder decoders[2];
            const uint8_t *bytes = row + b * block_bytes(dtype);
            decoders_at(dtype, layout, row, factor, b / layout->per_group, decoders);
            decode_block(dtype, bytes, decoders, out);
            if (b == layout->blocks) /* a file may have any codes past the end of a row */
                keep_tail(layout->tail, out);
        }
        lanes_store(w + i * BLOCK, out[0]);
        lanes_store(w + i * BLOCK + LANES, out[1]);
    }
    if ((dtype & DICTIONARY) && layout->n_outlier > 0) {
        const struct outlier outlier = outlier_at(layout, row, span);
        if (outlier.place < SPAN && span * SPAN + outlier.place < matrix->columns)
            w[outlier.place] = outlier.value;
    }
}

INLINE float dot_by_spans(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                          uint32_t row, const float *x)
{
    float w[SPAN];
    lanes sum = lanes_zero();
    for (size_t span = 0, at = 0; at < matrix->columns; span++, at += SPAN) {
        const size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        decode_span(dtype, matrix, layout, row_at(matrix, row), span, w);
        for (size_t i = 0; i < count; i += LANES)
            sum = lanes_fma(lanes_load(x + at + i), lanes_load(w + i), sum);
    }
    return lanes_sum(sum);
}

INLINE void sum_by_spans(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                         uint32_t row, float h, bool fresh, float *y)
{
    float w[SPAN];
    const lanes factor = lanes_set(h);
    for (size_t span = 0, at = 0; at < matrix->columns; span++, at += SPAN) {
        const size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        decode_span(dtype, matrix, layout, row_at(matrix, row), span, w);
        for (size_t i = 0; i < count; i += LANES) {
            const size_t n = count - i < LANES ? count - i : LANES;
            const lanes before = fresh       ? lanes_zero()
                                 : n < LANES ? lanes_load_some(y + at + i, n)
                                             : lanes_load(y + at + i);
            const lanes sum = lanes_fma(factor, lanes_load(w + i), before);
            if (n < LANES)
                lanes_store_some(y + at + i, n, sum);
            else
                lanes_store(y + at + i, sum);
        }
    }
}

static float dot_defined(const struct moec_matrix *matrix, uint32_t row, const float *x)
{
    float w[SPAN];
    lanes sum = lanes_zero();
    for (size_t at = 0; at < matrix->columns; at += SPAN) {
        size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        memset(w, 0, sizeof w);
        moec_codec_decode_span(matrix->codec, row_at(matrix, row), matrix->columns, at, count, w);
        for (size_t i = 0; i < count; i += LANES)
            sum = lanes_fma(lanes_load(x + at + i), lanes_load(w + i), sum);
    }
    return lanes_sum(sum);
}

INLINE void dot_all(const int dtype, const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                    const float *x, float *y)
{
    struct layout layout = layout_of(dtype, matrix);
    uint32_t r = 0;
    if (goes_by_spans(dtype, &layout)) {
        for (; r < n_rows; r++)
            y[r] = dot_by_spans(dtype, matrix, &layout, first + r, x);
        return;
    }
    for (; n_rows - r >= ROWS_AT_ONCE; r += ROWS_AT_ONCE)
        dot_rows(dtype, ROWS_AT_ONCE, matrix, &layout, first + r, x, y + r);
    for (; r < n_rows; r++)
        dot_rows(dtype, 1, matrix, &layout, first + r, x, y + r);
    for (r = 0; decoder_needs_regular(dtype) && r < n_rows; r++)
        if (!row_is_regular(dtype, &layout, row_at(matrix, first + r)))
            y[r] = dot_defined(matrix, first + r, x);
}

static void dot_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                        float *y){WITH_DTYPE(matrix->codec, dot_all, matrix, first, n_rows, x, y)}

/* y += h[r] * row r for nr rows in order; the sums start at 0 when `fresh`. */
INLINE void sum_rows(const int dtype, const int nr, const struct moec_matrix *matrix,
                     const struct layout *layout, uint32_t row, const float *h, bool fresh, float *y)
{
    struct decoder decoders[ROWS_AT_ONCE][2];
    const uint8_t *bytes[ROWS_AT_ONCE];
    float row_factors[ROWS_AT_ONCE];
    lanes factors[ROWS_AT_ONCE], w[2];
    size_t b = 0;
    UNROLL
    for (int r = 0; r < nr; r++) {
        bytes[r] = row_at(matrix, row + (uint32_t)r);
        row_factors[r] = row_factor(dtype, layout, bytes[r]);
        factors[r] = lanes_set(h[r]);
    }
    for (size_t g = 0; b * BLOCK < matrix->columns; g++) {
        size_t end = layout->blocks - b < layout->per_group ? layout->blocks : b + layout->per_group;
        UNROLL
        for (int r = 0; r < nr; r++)
            decoders_at(dtype, layout, bytes[r], row_factors[r], g, decoders[r]);
        for (; b < end; b++) {
            float *out = y + b * BLOCK;
            lanes sum0 = fresh ? lanes_zero() : lanes_load(out);
            lanes sum1 = fresh ? lanes_zero() : lanes_load(out + LANES);
            UNROLL
            for (int r = 0; r < nr; r++) {
                decode_block(dtype, bytes[r] + b * block_bytes(dtype), decoders[r], w);
                sum0 = lanes_fma(factors[r], w[0], sum0);
                sum1 = lanes_fma(factors[r], w[1], sum1);
            }
            lanes_store(out, sum0);
            lanes_store(out + LANES, sum1);
        }
        if (b == layout->blocks && b < (g + 1) * layout->per_group && layout->tail > 0) {
            float out[BLOCK] = {0};
            if (!fresh)
                memcpy(out, y + b * BLOCK, layout->tail * sizeof *out);
            lanes sum0 = lanes_load(out), sum1 = lanes_load(out + LANES);
            UNROLL
            for (int r = 0; r < nr; r++) {
                decode_tail(dtype, bytes[r] + b * block_bytes(dtype), decoders[r], layout->tail, w);
                sum0 = lanes_fma(factors[r], w[0], sum0);
                sum1 = lanes_fma(factors[r], w[1], sum1);
            }
            lanes_store(out, sum0);
            lanes_store(out + LANES, sum1);
            memcpy(y + b * BLOCK, out, layout->tail * sizeof *out);
            break;
        }
    }
}

static void sum_defined(const struct moec_matrix *matrix, uint32_t row, float h, bool fresh, float *y)
{
    float w[SPAN];
    for (size_t at = 0; at < matrix->columns; at += SPAN) {
        size_t count = matrix->columns - at < SPAN ? matrix->columns - at : SPAN;
        moec_codec_decode_span(matrix->codec, row_at(matrix, row), matrix->columns, at, count, w);
        for (size_t i = 0; i < count; i++)
            y[at + i] = fmaf(h, w[i], fresh ? 0.0f : y[at + i]);
    }
}

INLINE void sum_all(const int dtype, const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                    const float *h, float *y)
{
    struct layout layout = layout_of(dtype, matrix);
    uint32_t r = 0;
    if (n_rows == 0)
        memset(y, 0, matrix->columns * sizeof *y);
    if (goes_by_spans(dtype, &layout)) {
        for (; r < n_rows; r++)
            sum_by_spans(dtype, matrix, &layout, first + r, h[r], r == 0, y);
        return;
    }
    while (r < n_rows) {
        bool regular = true;
        uint32_t at_once = n_rows - r >= ROWS_AT_ONCE ? ROWS_AT_ONCE : 1;
        for (uint32_t i = 0; i < at_once; i++)
            regular = regular && row_is_regular(dtype, &layout, row_at(matrix, first + r + i));
        if (!regular)
            for (uint32_t i = 0; i < at_once; i++)
                sum_defined(matrix, first + r + i, h[r + i], r + i == 0, y);
        else if (at_once == ROWS_AT_ONCE)
            sum_rows(dtype, ROWS_AT_ONCE, matrix, &layout, first + r, h + r, r == 0, y);
        else
            sum_rows(dtype, 1, matrix, &layout, first + r, h + r, r == 0, y);
        r += at_once;
    }
}

static void sum_chunk_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                              const float *h,
                              float *y){WITH_DTYPE(matrix->codec, sum_all, matrix, first, n_rows, h, y)}

/* ---- element by element ---- */

INLINE lanes lanes_exp(lanes x)
{
    lanes one = lanes_set(1.0f);
    lanes y = lanes_min(lanes_set(EXP_HIGH), x);
    y = lanes_max(lanes_set(EXP_LOW), y);
    lanes biased = lanes_fma(y, lanes_set(EXP_LOG2_E), lanes_set(EXP_ROUND));
    lanes minus_n = lanes_sub(lanes_set(EXP_ROUND), biased);
    lanes r = lanes_fma(minus_n, lanes_set(EXP_LN2_HIGH), y);
    r = lanes_fma(minus_n, lanes_set(EXP_LN2_LOW), r);
    lanes p = lanes_set(EXP_C6);
    p = lanes_fma(p, r, lanes_set(EXP_C5));
    p = lanes_fma(p, r, lanes_set(EXP_C4));
    p = lanes_fma(p, r, lanes_set(EXP_C3));
    p = lanes_fma(p, r, lanes_set(EXP_C2));
    p = lanes_fma(p, r, one);
    p = lanes_fma(p, r, one);
    return lanes_cut(lanes_power(p, biased), x, EXP_LOW);
}

INLINE lanes lanes_silu_mul(lanes gate, lanes up)
{
    lanes weight = lanes_add(lanes_set(1.0f), lanes_exp(lanes_sub(lanes_zero(), gate)));
    return lanes_mul(lanes_div(gate, weight), up);
}

static void add(const float *x, size_t n, float *y)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(y + i, lanes_add(lanes_load(y + i), lanes_load(x + i)));
    if (i < n)
        lanes_store_some(y + i, n - i,
                         lanes_add(lanes_load_some(y + i, n - i), lanes_load_some(x + i, n - i)));
}

static void add_scaled(float scale, const float *x, size_t n, float *y)
{
    lanes factor = lanes_set(scale);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(y + i, lanes_fma(factor, lanes_load(x + i), lanes_load(y + i)));
    if (i < n)
        lanes_store_some(y + i, n - i,
                         lanes_fma(factor, lanes_load_some(x + i, n - i), lanes_load_some(y + i, n - i)));
}

static void silu_mul(const float *gate, const float *up, size_t n, float *out)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_silu_mul(lanes_load(gate + i), lanes_load(up + i)));
    if (i < n)
        lanes_store_some(out + i, n - i,
                         lanes_silu_mul(lanes_load_some(gate + i, n - i), lanes_load_some(up + i, n - i)));
}

static float exp_sum(const float *x, float shift, size_t n, float *out)
{
    lanes shifts = lanes_set(shift), sum = lanes_zero();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes value = lanes_exp(lanes_sub(lanes_load(x + i), shifts));
        lanes_store(out + i, value);
        sum = lanes_add(sum, value);
    }
    if (i < n) {
        lanes value = lanes_exp(lanes_sub(lanes_load_some(x + i, n - i), shifts));
        lanes_store_some(out + i, n - i, value);
        sum = lanes_add(sum, lanes_keep(value, n - i, lanes_zero()));
    }
    return lanes_sum(sum);
}

static float max(const float *x, size_t n)
{
    const lanes least = lanes_set(-INFINITY);
    lanes top = least;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        top = lanes_max(lanes_load(x + i), top);
    if (i < n)
        top = lanes_max(lanes_keep(lanes_load_some(x + i, n - i), n - i, least), top);
    return lanes_top(top);
}

static void rms_norm(const float *x, const float *weight, float eps, size_t n, float *out)
{
    lanes squares = lanes_zero();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes value = lanes_load(x + i);
        squares = lanes_fma(value, value, squares);
    }
    if (i < n) {
        lanes value = lanes_load_some(x + i, n - i);
        squares = lanes_fma(value, value, squares);
    }
    lanes inverse = lanes_set(1.0f / sqrtf(lanes_sum(squares) / (float)n + eps));
    for (i = 0; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_mul(lanes_mul(lanes_load(x + i), inverse), lanes_load(weight + i)));
    if (i < n)
        lanes_store_some(
            out + i, n - i,
            lanes_mul(lanes_mul(lanes_load_some(x + i, n - i), inverse), lanes_load_some(weight + i, n - i)));
}

#include "runtime/kernels/kernels_watched.h"

#define LANES_KERNELS(set_name)                                                                              \
    {                                                                                                        \
        .name = (set_name), .decode_rows = KERNEL(decode_rows), .dot = KERNEL(dot),                          \
        .dot_encoded = KERNEL(dot_encoded), .sum_chunk = KERNEL(sum_chunk),                                  \
        .sum_chunk_encoded = KERNEL(sum_chunk_encoded), .add = KERNEL(add),                                  \
        .add_scaled = KERNEL(add_scaled), .silu_mul = KERNEL(silu_mul), .exp_sum = KERNEL(exp_sum),          \
        .max = KERNEL(max), .rms_norm = KERNEL(rms_norm),                                                    \
    }

#endif
