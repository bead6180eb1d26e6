/* Encoded rows, of the kernels that are written once for all vector instruction sets: where the parts of a
 * row lie, decoding, and dots and weighted sums straight from codes. Part of runtime/kernels/kernels_lanes.h,
 * which says what a set defines. */
#ifndef MOEC_RUNTIME_KERNELS_ENCODED_H
#define MOEC_RUNTIME_KERNELS_ENCODED_H

#include "formats/base/half.h"
#include "formats/codec/dictionary.h"
#include "runtime/kernels/kernels_mxfp4.h"
#include "runtime/kernels/kernels_shape.h"
#include "runtime/kernels/kernels_trellis.h"

#include <math.h>

#define SPAN MOEC_CODEC_OUTLIER_SPAN /* weights decoded at once where a row is not kept in registers */

INLINE size_t block_bytes(const int dtype)
{
    switch (PLAIN(dtype)) {
    case MOEC_DTYPE_F32:
        return 4 * BLOCK;
    case MOEC_DTYPE_F16:
    case MOEC_DTYPE_BF16:
        return 2 * BLOCK;
    case MOEC_DTYPE_INT1:
        return 4;
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

#define STRIP 16 /* groups whose scales are converted together */

/* Where the parts of a matrix's rows lie. */
struct layout {
    size_t blocks;    /* whole blocks */
    size_t tail;      /* weights in an incomplete last block */
    size_t per_group; /* blocks that share their decoders */
    size_t groups;
    uint32_t lines;      /* of a row */
    uint32_t pace;       /* lines of a row for each of its blocks, in 1 / WHOLE_LINE */
    uint32_t ahead_rows; /* how far ahead rows are asked for */
    size_t scales;       /* offset in a row */
    size_t zeros;        /* the same */
    bool is_nested;
    bool symmetric;
    bool is_mxfp4;
    const float *levels; /* of a dictionary, or of MXFP4 */
    size_t n_outlier;    /* 0: rows have none */
};

INLINE struct layout layout_of(const int dtype, const struct moec_matrix *matrix)
{
    const enum moec_scheme scheme = (enum moec_scheme)matrix->codec.scheme;
    size_t n = matrix->columns, blocks = n / BLOCK, tail = n % BLOCK, all = blocks + (tail > 0);
    struct layout layout = {.blocks = blocks, .tail = tail, .per_group = all};
    layout.lines = (uint32_t)((moec_codec_row_bytes(matrix->codec, n) + LINE - 1) / LINE);
    layout.pace = blocks > 0 ? (uint32_t)((layout.lines * WHOLE_LINE + blocks - 1) / blocks) : 0;
    layout.ahead_rows = AHEAD_BYTES / (layout.lines * LINE + 1) + 1;
    if (layout.ahead_rows < CODE_ROWS)
        layout.ahead_rows = CODE_ROWS;
    if (dtype_is_float(dtype))
        return layout;
    if (dtype & HALVES)
        layout.per_group = 1;
    else if (matrix->codec.group != 0)
        layout.per_group = matrix->codec.group / BLOCK;
    layout.groups = moec_codec_row_groups(matrix->codec, n);
    layout.scales = all * block_bytes(dtype);
    layout.zeros = layout.scales + moec_codec_scales_bytes(matrix->codec, n);
    if ((dtype & DICTIONARY) && matrix->codec.dtype == MOEC_DTYPE_MXFP4) {
        layout.is_mxfp4 = true;
        layout.levels = moec_mxfp4_levels;
        layout.per_group = 1;
    } else if (dtype & DICTIONARY) {
        layout.levels = moec_dictionary_levels(scheme, (uint32_t)block_bytes(dtype) / 4);
        layout.n_outlier = moec_codec_row_outliers(matrix->codec, n);
    }
    layout.is_nested = moec_scheme_is_nested(scheme);
    layout.symmetric = !moec_scheme_has_zeros(scheme);
    return layout;
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

/* The zero of symmetric codes, as they are read. */
INLINE float symmetric_zero(const int dtype)
{
    return (float)(1u << (block_bytes(dtype) / 4 - 1)) + ((dtype & LIFTED) ? LIFT : 0);
}

INLINE struct decoder decoder_of_group(const int dtype, const struct layout *layout, const uint8_t *row,
                                       float factor, size_t group)
{
    const uint8_t *scales = row + layout->scales;
    const float scale = scales_are_nested(dtype, layout)           ? (float)scales[2 + group] * factor
                        : (dtype & DICTIONARY) && layout->is_mxfp4 ? moec_mxfp4_scale(scales[group])
                                                                   : f16_at(scales + 2 * group);
    if (dtype & DICTIONARY)
        return decoder_of_levels(dtype, scale, layout->levels);
    const float zero = (dtype & LIFTED) ? symmetric_zero(dtype) : zero_at(dtype, layout, row, group);
    return decoder_make(dtype, scale, decoder_needs_regular(dtype) ? 0 - zero * scale : zero);
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

/* Asks for a row that will be decoded later, if there is one. */
INLINE void ask_row(const struct moec_matrix *matrix, const struct layout *layout, uint32_t row)
{
    if (row >= matrix->rows)
        return;
    const uint8_t *at = row_at(matrix, row);
    for (uint32_t line = 0; line < layout->lines; line++)
        ask_line(at + (size_t)line * LINE);
}

INLINE void decode_all(const int dtype, const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                       float *out, size_t stride)
{
    struct layout layout = layout_of(dtype, matrix);
    for (uint32_t r = 0; r < n_rows; r++) {
        ask_row(matrix, &layout, first + r + layout.ahead_rows);
        decode_row(dtype, matrix, &layout, first + r, out + r * stride);
        if (dtype & DICTIONARY)
            put_outliers(matrix, &layout, first + r, out + r * stride);
    }
}

INLINE int kind_of(struct moec_codec codec)
{
    const enum moec_scheme scheme = (enum moec_scheme)codec.scheme;
    if (codec.dtype == MOEC_DTYPE_MXFP4)
        return MOEC_DTYPE_INT4 | DICTIONARY;
    return codec.dtype |
           (moec_scheme_is_dictionary(scheme)                                               ? DICTIONARY
            : codec.group == 16                                                             ? HALVES
            : moec_scheme_is_nested(scheme)                                                 ? NESTED
            : SET_LIFTS && codec.dtype == MOEC_DTYPE_INT8 && !moec_scheme_has_zeros(scheme) ? LIFTED
                                                                                            : 0);
}

#define OF_KIND(kind, function, ...)                                                                         \
    case kind:                                                                                               \
        function(kind, __VA_ARGS__);                                                                         \
        break;
#define OF_INTEGERS(flags, function, ...)                                                                    \
    OF_KIND(MOEC_DTYPE_INT1 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT2 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT3 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT4 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT5 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT6 | (flags), function, __VA_ARGS__)                                                \
    OF_KIND(MOEC_DTYPE_INT8 | (flags), function, __VA_ARGS__)

#if SET_LIFTS
#define OF_LIFTED(function, ...) OF_KIND(MOEC_DTYPE_INT8 | LIFTED, function, __VA_ARGS__)
#else
#define OF_LIFTED(function, ...)
#endif

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
        OF_LIFTED(function, __VA_ARGS__)                                                                     \
    default:                                                                                                 \
        break;                                                                                               \
    }

static void decode_rows(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, float *out,
                        size_t stride)
{
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS) {
        trellis_decode_rows(matrix, first, n_rows, out, stride);
        return;
    }
    if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN) {
        down_decode_rows(matrix, first, n_rows, out, stride);
        return;
    }
    WITH_DTYPE(matrix->codec, decode_all, matrix, first, n_rows, out, stride)
}

/* Which rows of a matrix a call is for: first, first + 1 and on, or first + some[0], first + some[1] and on.
 */
struct chosen {
    uint32_t first, n;
    const uint8_t *some; /* (n) rising, or NULL */
};

INLINE uint32_t chosen_row(const struct chosen *chosen, uint32_t i)
{
    return chosen->first + (chosen->some != NULL ? chosen->some[i] : i);
}

/* Rows that are asked for while others are at work: as many lines with each block as keep the pace, in turn
 * of AHEAD_WAYS rows, which are numbered as those chosen and lie `gap` apart. */
struct ahead {
    const uint8_t *at[AHEAD_WAYS]; /* the lines that come next */
    uint32_t left;                 /* lines of each of these rows from there on */
    uint32_t row, end;             /* of the rows behind them the first, and where these end */
    uint32_t gap, last;            /* no row lies behind the last */
    uint32_t due;                  /* lines still to be asked for, in 1 / WHOLE_LINE */
};

/* Rows at work, and what their groups' codes are decoded with. */
struct rows {
    const uint8_t *bytes[CODE_ROWS];
    struct ahead ahead;
    float factors[CODE_ROWS];
    float scales[CODE_ROWS][STRIP], origins[CODE_ROWS][STRIP];
};

/* Rows number i .. i + nr - 1 of those chosen; the last stands for missing ones. */
INLINE void rows_open(const int nr, const int dtype, const struct moec_matrix *matrix,
                      const struct layout *layout, const struct chosen *chosen, uint32_t i, struct rows *rows)
{
    const uint32_t last = chosen->n - 1;
    UNROLL
    for (int r = 0; r < nr; r++) {
        const uint32_t at = i + (uint32_t)r;
        rows->bytes[r] = row_at(matrix, chosen_row(chosen, at < last ? at : last));
        rows->factors[r] = row_factor(dtype, layout, rows->bytes[r]);
    }
    /* Rows that follow each other go on behind the last one: the next call's. */
    struct ahead *ahead = &rows->ahead;
    *ahead = (struct ahead){.gap = nr > AHEAD_WAYS ? (uint32_t)nr / AHEAD_WAYS : 1};
    ahead->last = chosen->some != NULL ? last : matrix->rows - chosen->first - 1;
    ahead->row = i + (chosen->some != NULL ? CODE_ROWS : layout->ahead_rows);
    ahead->end = ahead->row + (ahead->row <= ahead->last ? ahead->gap : 0);
}

/* Asks for what lies ahead, before a block of nr rows. */
INLINE void rows_ask(const int nr, const struct moec_matrix *matrix, const struct layout *layout,
                     const struct chosen *chosen, struct ahead *ahead)
{
    const int ways = nr < AHEAD_WAYS ? nr : AHEAD_WAYS;
    ahead->due += (uint32_t)nr * layout->pace;
    while (ahead->due >= (uint32_t)ways * WHOLE_LINE) {
        ahead->due -= (uint32_t)ways * WHOLE_LINE;
        if (ahead->left == 0) {
            if (ahead->row == ahead->end)
                return;
            UNROLL
            for (int w = 0; w < ways; w++) {
                const uint32_t row = ahead->row + (uint32_t)w * ahead->gap;
                ahead->at[w] = row_at(matrix, chosen_row(chosen, row < ahead->last ? row : ahead->last));
            }
            ahead->row++;
            ahead->left = layout->lines;
        }
        UNROLL
        for (int w = 0; w < ways; w++) {
            ask_line(ahead->at[w]);
            ahead->at[w] += LINE;
        }
        ahead->left--;
    }
}

/* Zeros of n groups from g on, which is a multiple of STRIP: they begin with a byte. */
INLINE lanes packed_zeros(const int dtype, const struct layout *layout, const uint8_t *row, size_t g,
                          size_t n)
{
    const size_t bits = block_bytes(dtype) / 4;
    uint8_t packed[2 * STRIP] = {0}, zeros[STRIP];
    if (n == STRIP)
        memcpy(packed, row + layout->zeros + g * bits / 8, STRIP * bits / 8);
    else
        memcpy(packed, row + layout->zeros + g * bits / 8, (n * bits + 7) / 8);
    UNROLL
    for (size_t i = 0; i < STRIP; i++)
        zeros[i] =
            (uint8_t)((uint32_t)load_u16(packed + i * bits / 8) >> (i * bits % 8) & ((1u << bits) - 1));
    return lanes_of_bytes(zeros, STRIP);
}

/* Converts the scales and zeros of the strip that begins with group g. */
INLINE void rows_convert(const int nr, const int dtype, const struct layout *layout, size_t g,
                         struct rows *rows)
{
    const size_t n = layout->groups - g < STRIP ? layout->groups - g : STRIP;
    for (int r = 0; r < nr; r++) {
        const uint8_t *row = rows->bytes[r], *scales = row + layout->scales;
        if ((dtype & DICTIONARY) && layout->is_mxfp4) {
            for (size_t i = 0; i < n; i++)
                rows->scales[r][i] = moec_mxfp4_scale(scales[g + i]);
            continue;
        }
        lanes scale = (dtype & NESTED)
                          ? lanes_mul(lanes_of_bytes(scales + 2 + g, n), lanes_set(rows->factors[r]))
                          : lanes_of_halves(scales + 2 * g, n);
        lanes_store(rows->scales[r], scale);
        if ((dtype & DICTIONARY) || (layout->symmetric && !decoder_needs_regular(dtype)))
            continue;
        lanes origin = layout->symmetric  ? lanes_set(symmetric_zero(dtype))
                       : (dtype & NESTED) ? packed_zeros(dtype, layout, row, g, n)
                                          : lanes_of_bytes(row + layout->zeros + g, n);
        if (decoder_needs_regular(dtype))
            origin = lanes_sub(lanes_zero(), lanes_mul(origin, scale));
        lanes_store(rows->origins[r], origin);
    }
}

/* Decoder of group g of the strip that is converted, of row r. */
INLINE struct decoder rows_decoder(const int dtype, const struct layout *layout, const struct rows *rows,
                                   const int r, size_t g)
{
    if (dtype_is_float(dtype))
        return (struct decoder){0};
    const float scale = rows->scales[r][g];
    if (dtype & DICTIONARY)
        return decoder_of_levels(dtype, scale, layout->levels);
    if (layout->symmetric && !decoder_needs_regular(dtype)) /* a constant, which spares an operation */
        return decoder_make(dtype, scale, symmetric_zero(dtype));
    return decoder_make(dtype, scale, rows->origins[r][g]);
}

/* Blocks [b, end) of rows, whose scales are converted. */
struct strip {
    size_t b, end;
};

/* Moves on to the next strip and converts its scales; false after the last. */
INLINE bool next_strip(const int nr, const int dtype, const struct layout *layout, struct rows *rows,
                       size_t *first_group, struct strip *strip)
{
    if (strip->end == layout->blocks)
        return false;
    const size_t most = STRIP * layout->per_group;
    strip->b = strip->end;
    strip->end = layout->blocks - strip->b < most ? layout->blocks : strip->b + most;
    if (!dtype_is_float(dtype))
        rows_convert(nr, dtype, layout, *first_group, rows);
    *first_group += STRIP;
    return true;
}

/* Rows number i .. i + n - 1 of those chosen against x, n <= nr, weights in registers only. */
INLINE void dot_rows(const int nr, const int dtype, const struct moec_matrix *matrix,
                     const struct layout *layout, const struct chosen *chosen, uint32_t i, uint32_t n,
                     const float *x, float *y)
{
    struct decoder decoders[CODE_ROWS][2];
    struct rows rows;
    struct strip strip = {0};
    size_t first_group = 0;
    lanes sums[CODE_ROWS], w[2];
    rows_open(nr, dtype, matrix, layout, chosen, i, &rows);
    UNROLL
    for (int r = 0; r < nr; r++)
        sums[r] = lanes_zero();
    while (next_strip(nr, dtype, layout, &rows, &first_group, &strip)) {
        size_t b = strip.b;
        for (size_t g = 0; b < strip.end; g++) {
            UNROLL
            for (int r = 0; r < nr; r++)
                decoders[r][0] = rows_decoder(dtype, layout, &rows, r, g);
            const size_t end = strip.end - b < layout->per_group ? strip.end : b + layout->per_group;
            do {
                rows_ask(nr, matrix, layout, chosen, &rows.ahead);
                lanes x0 = lanes_load(x + b * BLOCK), x1 = lanes_load(x + b * BLOCK + LANES);
                UNROLL
                for (int r = 0; r < nr; r++) {
                    decode_block(dtype, rows.bytes[r] + b * block_bytes(dtype), decoders[r], w);
                    sums[r] = lanes_fma(x0, w[0], sums[r]);
                    sums[r] = lanes_fma(x1, w[1], sums[r]);
                }
            } while (++b < end);
        }
    }
    if (layout->tail > 0) {
        const size_t at = layout->blocks * BLOCK;
        UNROLL
        for (int r = 0; r < nr; r++) {
            decoders_at(dtype, layout, rows.bytes[r], rows.factors[r], layout->groups - 1, decoders[r]);
            decode_tail(dtype, rows.bytes[r] + layout->blocks * block_bytes(dtype), decoders[r], layout->tail,
                        w);
            sums[r] = lanes_fma(lanes_load(x + at), w[0], sums[r]);
            if (layout->tail > LANES)
                sums[r] = lanes_fma(lanes_load(x + at + LANES), w[1], sums[r]);
        }
    }
    for (uint32_t r = 0; r < n; r++)
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

INLINE void dot_all(const int dtype, const struct moec_matrix *matrix, const struct chosen *chosen,
                    const float *x, float *y)
{
    struct layout layout = layout_of(dtype, matrix);
    const uint32_t n_rows = chosen->n;
    uint32_t r = 0;
    if (goes_by_spans(dtype, &layout)) {
        for (; r < n_rows; r++)
            y[r] = dot_by_spans(dtype, matrix, &layout, chosen_row(chosen, r), x);
        return;
    }
    for (; n_rows - r > CODE_ROWS / 2; r += n_rows - r < CODE_ROWS ? n_rows - r : CODE_ROWS)
        dot_rows(CODE_ROWS, dtype, matrix, &layout, chosen, r,
                 n_rows - r < CODE_ROWS ? n_rows - r : CODE_ROWS, x, y + r);
    if (n_rows - r > 1)
        dot_rows(CODE_ROWS / 2, dtype, matrix, &layout, chosen, r, n_rows - r, x, y + r);
    else if (r < n_rows)
        dot_rows(1, dtype, matrix, &layout, chosen, r, 1, x, y + r);
    for (r = 0; decoder_needs_regular(dtype) && r < n_rows; r++)
        if (!row_is_regular(dtype, &layout, row_at(matrix, chosen_row(chosen, r))))
            y[r] = dot_defined(matrix, chosen_row(chosen, r), x);
}

static void dot_chosen(const struct moec_matrix *matrix, const struct chosen *chosen, const float *x,
                       float *y)
{
    if (chosen->n == 0)
        return;
    WITH_DTYPE(matrix->codec, dot_all, matrix, chosen, x, y)
}

static void dot_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                        float *y)
{
    const struct chosen chosen = {first, n_rows, NULL};
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS)
        trellis_dot(matrix, first, n_rows, x, y);
    else if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        down_dot(matrix, first, NULL, n_rows, x, y);
    else
        dot_chosen(matrix, &chosen, x, y);
}

static void dot_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                     const float *x, float *y)
{
    const struct chosen chosen = {first, n, some};
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS) {
        for (uint32_t i = 0; i < n; i++)
            trellis_dot_rows(1, matrix, first + some[i], x, y + i);
        return;
    }
    if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN) {
        down_dot(matrix, first, some, n, x, y);
        return;
    }
    dot_chosen(matrix, &chosen, x, y);
}

/* y += h[r] * row i + r of those chosen, for nr rows in order; the sums start at 0 when `fresh`. */
INLINE void sum_rows(const int nr, const int dtype, const struct moec_matrix *matrix,
                     const struct layout *layout, const struct chosen *chosen, uint32_t i, const float *h,
                     bool fresh, float *y)
{
    struct decoder decoders[CODE_ROWS][2];
    struct rows rows;
    struct strip strip = {0};
    size_t first_group = 0;
    lanes factors[CODE_ROWS], w[2];
    rows_open(nr, dtype, matrix, layout, chosen, i, &rows);
    UNROLL
    for (int r = 0; r < nr; r++)
        factors[r] = lanes_set(h[r]);
    while (next_strip(nr, dtype, layout, &rows, &first_group, &strip)) {
        size_t b = strip.b;
        for (size_t g = 0; b < strip.end; g++) {
            UNROLL
            for (int r = 0; r < nr; r++)
                decoders[r][0] = rows_decoder(dtype, layout, &rows, r, g);
            const size_t end = strip.end - b < layout->per_group ? strip.end : b + layout->per_group;
            do {
                rows_ask(nr, matrix, layout, chosen, &rows.ahead);
                float *out = y + b * BLOCK;
                lanes sum0 = fresh ? lanes_zero() : lanes_load(out);
                lanes sum1 = fresh ? lanes_zero() : lanes_load(out + LANES);
                UNROLL
                for (int r = 0; r < nr; r++) {
                    decode_block(dtype, rows.bytes[r] + b * block_bytes(dtype), decoders[r], w);
                    sum0 = lanes_fma(factors[r], w[0], sum0);
                    sum1 = lanes_fma(factors[r], w[1], sum1);
                }
                lanes_store(out, sum0);
                lanes_store(out + LANES, sum1);
            } while (++b < end);
        }
    }
    if (layout->tail > 0) {
        float out[BLOCK] = {0};
        if (!fresh)
            memcpy(out, y + layout->blocks * BLOCK, layout->tail * sizeof *out);
        lanes sum0 = lanes_load(out), sum1 = lanes_load(out + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            decoders_at(dtype, layout, rows.bytes[r], rows.factors[r], layout->groups - 1, decoders[r]);
            decode_tail(dtype, rows.bytes[r] + layout->blocks * block_bytes(dtype), decoders[r], layout->tail,
                        w);
            sum0 = lanes_fma(factors[r], w[0], sum0);
            sum1 = lanes_fma(factors[r], w[1], sum1);
        }
        lanes_store(out, sum0);
        lanes_store(out + LANES, sum1);
        memcpy(y + layout->blocks * BLOCK, out, layout->tail * sizeof *out);
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

/* nr rows as sum_rows, by the definition where one is not regular. */
INLINE void sum_rows_of_any(const int nr, const int dtype, const struct moec_matrix *matrix,
                            const struct layout *layout, const struct chosen *chosen, uint32_t i,
                            const float *h, float *y)
{
    bool regular = true;
    for (uint32_t r = i; r < i + (uint32_t)nr; r++)
        regular = regular && row_is_regular(dtype, layout, row_at(matrix, chosen_row(chosen, r)));
    if (regular)
        sum_rows(nr, dtype, matrix, layout, chosen, i, h + i, i == 0, y);
    for (uint32_t r = i; r < i + (uint32_t)nr && !regular; r++)
        sum_defined(matrix, chosen_row(chosen, r), h[r], r == 0, y);
}

INLINE void sum_all(const int dtype, const struct moec_matrix *matrix, const struct chosen *chosen,
                    const float *h, float *y)
{
    struct layout layout = layout_of(dtype, matrix);
    const uint32_t n_rows = chosen->n;
    uint32_t r = 0;
    if (goes_by_spans(dtype, &layout)) {
        for (; r < n_rows; r++)
            sum_by_spans(dtype, matrix, &layout, chosen_row(chosen, r), h[r], r == 0, y);
        return;
    }
    for (; n_rows - r >= CODE_ROWS; r += CODE_ROWS)
        sum_rows_of_any(CODE_ROWS, dtype, matrix, &layout, chosen, r, h, y);
    for (; r < n_rows; r++)
        sum_rows_of_any(1, dtype, matrix, &layout, chosen, r, h, y);
}

static void sum_chosen(const struct moec_matrix *matrix, const struct chosen *chosen, const float *h,
                       float *y)
{
    if (chosen->n == 0) {
        memset(y, 0, matrix->columns * sizeof *y);
        return;
    }
    WITH_DTYPE(matrix->codec, sum_all, matrix, chosen, h, y)
}

static void sum_chunk_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                              const float *h, float *y)
{
    const struct chosen chosen = {first, n_rows, NULL};
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS)
        trellis_sum(matrix, first, n_rows, h, y);
    else if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        down_sum(matrix, first, NULL, n_rows, h, y);
    else
        sum_chosen(matrix, &chosen, h, y);
}

static void sum_chunk_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                           const float *h, float *y)
{
    const struct chosen chosen = {first, n, some};
    if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN) {
        down_sum(matrix, first, some, n, h, y);
        return;
    }
    if (matrix->codec.scheme != MOEC_SCHEME_TRELLIS || n == 0) {
        sum_chosen(matrix, &chosen, h, y);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        trellis_sum_rows(1, matrix, first + some[i], h + i, i == 0, y);
}

#endif
