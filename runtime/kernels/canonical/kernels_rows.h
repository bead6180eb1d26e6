/* Encoded rows, of the kernels that are written once for all vector instruction sets: where the parts of a
 * row lie, what its codes are decoded with, and which rows are asked for ahead. Part of
 * runtime/kernels/canonical/kernels_lanes.h, which says what a set defines. */
#ifndef MOEC_RUNTIME_KERNELS_ROWS_H
#define MOEC_RUNTIME_KERNELS_ROWS_H

#include "formats/base/half.h"
#include "formats/codec/dictionary.h"
#include "runtime/kernels/lanes/kernels_shape.h"

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
    uint32_t lines;       /* of a row */
    uint32_t pace;        /* lines of a row for each of its blocks, in 1 / WHOLE_LINE */
    uint32_t ahead_rows;  /* how far ahead rows are asked for */
    size_t step;          /* bytes of a row for each of its blocks */
    uint32_t stream_rows; /* how far ahead streams are asked for */
    uint32_t region_rows; /* rows that a weighted sum asks for together */
    bool rows_follow;     /* each row begins where the one before it ends, or nearly so */
    size_t scales;        /* offset in a row */
    size_t zeros;         /* the same */
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
    const size_t row_bytes = moec_codec_row_bytes(matrix->codec, n);
    layout.lines = (uint32_t)((row_bytes + LINE - 1) / LINE);
    layout.pace = blocks > 0 ? (uint32_t)((layout.lines * WHOLE_LINE + blocks - 1) / blocks) : 0;
    layout.ahead_rows = AHEAD_BYTES / (layout.lines * LINE + 1) + 1;
    if (layout.ahead_rows < CODE_ROWS)
        layout.ahead_rows = CODE_ROWS;
    layout.step = blocks > 0 ? (row_bytes + blocks - 1) / blocks : 0;
    layout.stream_rows = STREAM_BYTES / (layout.lines * LINE + 1) + 1;
    layout.region_rows = CODE_ROWS;
    while (2 * layout.region_rows * matrix->stride_bytes <= REGION_BYTES && layout.region_rows < REGION_ROWS)
        layout.region_rows *= 2;
    layout.rows_follow = matrix->stride_bytes < row_bytes + LINE;
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

/* Whether the scales of groups [g, end) are finite and above 0. Fused decoding gives +0 where the definition
 * has -0 for other scales; such rows, which no quantiser of moec writes but for all-zero groups, take the
 * definition's way. */
INLINE bool groups_are_regular(const struct layout *layout, const uint8_t *row, size_t g, size_t end)
{
    uint16_t top = 0;
    for (; g < end; g++) {
        uint16_t less_one = (uint16_t)(load_u16(row + layout->scales + 2 * g) - 1);
        top = less_one > top ? less_one : top;
    }
    return top < 0x7bff; /* 0x7c00 is infinity, 0x8000 and above are negative, 0 has wrapped around */
}

INLINE bool row_is_regular(const int dtype, const struct layout *layout, const uint8_t *row)
{
    return !decoder_needs_regular(dtype) || groups_are_regular(layout, row, 0, layout->groups);
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

#define EACH_INTEGER(of, name, flags)                                                                        \
    of(name##1, MOEC_DTYPE_INT1 | (flags));                                                                  \
    of(name##2, MOEC_DTYPE_INT2 | (flags));                                                                  \
    of(name##3, MOEC_DTYPE_INT3 | (flags));                                                                  \
    of(name##4, MOEC_DTYPE_INT4 | (flags));                                                                  \
    of(name##5, MOEC_DTYPE_INT5 | (flags));                                                                  \
    of(name##6, MOEC_DTYPE_INT6 | (flags));                                                                  \
    of(name##8, MOEC_DTYPE_INT8 | (flags));
#if SET_LIFTS
#define EACH_LIFTED(of) of(lifted, MOEC_DTYPE_INT8 | LIFTED);
#else
#define EACH_LIFTED(of)
#endif

/* of(name, kind) of each kind. A kind has functions of its own: gcc compiles them better, and sooner, than
 * one with all of them. */
#define EACH_KIND(of)                                                                                        \
    of(f32, MOEC_DTYPE_F32);                                                                                 \
    of(f16, MOEC_DTYPE_F16);                                                                                 \
    of(bf16, MOEC_DTYPE_BF16);                                                                               \
    of(levels2, MOEC_DTYPE_INT2 | DICTIONARY);                                                               \
    of(levels3, MOEC_DTYPE_INT3 | DICTIONARY);                                                               \
    of(levels4, MOEC_DTYPE_INT4 | DICTIONARY);                                                               \
    of(levels8, MOEC_DTYPE_INT8 | DICTIONARY);                                                               \
    EACH_INTEGER(of, int, 0)                                                                                 \
    EACH_INTEGER(of, nested, NESTED)                                                                         \
    EACH_INTEGER(of, halves, HALVES)                                                                         \
    EACH_LIFTED(of)

/* Rows that are asked for while others are at work: as many lines with each block as keep the pace, in turn
 * of AHEAD_WAYS rows, which are numbered as those chosen and lie `gap` apart. */
struct ahead {
    const uint8_t *at[AHEAD_WAYS]; /* the lines that come next */
    uint32_t left;                 /* lines of each of these rows from there on */
    uint32_t row, end;             /* of the rows behind them the first, and where these end */
    uint32_t gap, last;            /* no row lies behind the last */
    uint32_t due;                  /* lines still to be asked for, in 1 / WHOLE_LINE */
    bool goes_on;                  /* with the rows behind those */
};

/* Rows at work, and what their groups' codes are decoded with. */
struct rows {
    const uint8_t *bytes[CODE_ROWS];
    float factors[CODE_ROWS];
    float scales[CODE_ROWS][STRIP], origins[CODE_ROWS][STRIP];
};

/* Rows number i, i + gap and on of those chosen, nr of them; the last stands for missing ones. */
INLINE void rows_open_apart(const int nr, const int dtype, const struct moec_matrix *matrix,
                            const struct layout *layout, const struct chosen *chosen, uint32_t i,
                            uint32_t gap, struct rows *rows)
{
    const uint32_t last = chosen->n - 1;
    UNROLL
    for (int r = 0; r < nr; r++) {
        const uint32_t at = i + (uint32_t)r * gap;
        rows->bytes[r] = row_at(matrix, chosen_row(chosen, at < last ? at : last));
        rows->factors[r] = row_factor(dtype, layout, rows->bytes[r]);
    }
}

INLINE void rows_open(const int nr, const int dtype, const struct moec_matrix *matrix,
                      const struct layout *layout, const struct chosen *chosen, uint32_t i, struct rows *rows)
{
    rows_open_apart(nr, dtype, matrix, layout, chosen, i, 1, rows);
}

/* Of each row at work one that its stream comes to later. */
struct streams {
    const uint8_t *at[CODE_ROWS];
};

/* Of rows number i, i + gap and on of those chosen. */
INLINE struct streams streams_of(const int nr, const struct moec_matrix *matrix, const struct layout *layout,
                                 const struct chosen *chosen, uint32_t i, uint32_t gap)
{
    const uint32_t later = stream_later(chosen, i, gap, layout->stream_rows);
    struct streams streams;
    UNROLL
    for (int r = 0; r < nr; r++)
        streams.at[r] = row_at(matrix, stream_row(chosen, matrix->rows, later + (uint32_t)r * gap));
    return streams;
}

/* Asks for what lies as far in these rows as block b in those at work: each line once or more. */
INLINE void streams_ask(const int nr, const int dtype, const struct layout *layout,
                        const struct streams *streams, size_t b)
{
    const size_t bytes = block_bytes(dtype), at = b * layout->step;
    const size_t every = bytes > 24 ? 1 : bytes > 12 ? 2 : bytes > 4 ? 4 : 8;
    if (b % every != 0)
        return;
    UNROLL
    for (int r = 0; r < nr; r++)
        ask_line_soon(streams->at[r] + at);
    UNROLL
    for (int r = 0; r < nr && dtype == MOEC_DTYPE_F32; r++)
        ask_line_soon(streams->at[r] + at + LINE);
}

/* Rows number `row` of those chosen and on. Rows that follow each other go on behind the last one: the next
 * call's. */
INLINE struct ahead ahead_of_ways(const int nr, const int ways, const struct moec_matrix *matrix,
                                  const struct chosen *chosen, uint32_t row)
{
    struct ahead ahead = {.gap = nr > ways ? (uint32_t)(nr / ways) : 1, .row = row};
    ahead.last = chosen->some != NULL ? chosen->n - 1 : matrix->rows - chosen->first - 1;
    ahead.end = row + (row <= ahead.last ? ahead.gap : 0);
    return ahead;
}

INLINE struct ahead ahead_of(const int nr, const struct moec_matrix *matrix, const struct chosen *chosen,
                             uint32_t row)
{
    return ahead_of_ways(nr, AHEAD_WAYS, matrix, chosen, row);
}

/* Asks for what lies ahead, before a block of nr rows. */
INLINE void rows_ask_ways(const int nr, const int ways, const struct moec_matrix *matrix,
                          const struct layout *layout, const struct chosen *chosen, struct ahead *ahead)
{
    ahead->due += (uint32_t)nr * layout->pace;
    while (ahead->due >= (uint32_t)ways * WHOLE_LINE) {
        ahead->due -= (uint32_t)ways * WHOLE_LINE;
        if (ahead->left == 0) {
            if (ahead->row == ahead->end && ahead->goes_on && ahead->row <= ahead->last) {
                ahead->row += ((uint32_t)ways - 1) * ahead->gap;
                ahead->end = ahead->row + ahead->gap;
            }
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

INLINE void rows_ask(const int nr, const struct moec_matrix *matrix, const struct layout *layout,
                     const struct chosen *chosen, struct ahead *ahead)
{
    rows_ask_ways(nr, nr < AHEAD_WAYS ? nr : AHEAD_WAYS, matrix, layout, chosen, ahead);
}

/* Of a weighted sum's rows that lie apart: of short ones two ways, which then lie on a page each. */
INLINE int sum_ways(const int nr, const int dtype)
{
    const int ways = block_bytes(dtype) < BLOCK ? 2 : AHEAD_WAYS;
    return nr < ways ? nr : ways;
}

/* How many rows ahead. */
INLINE uint32_t sum_ahead(const int dtype, const struct layout *layout, const struct chosen *chosen)
{
    if (chosen->some != NULL)
        return CODE_ROWS;
    return dtype_is_float(dtype) ? layout->ahead_rows : AHEAD_BATCHES * layout->ahead_rows;
}

/* What a weighted sum of rows that follow each other asks for: a region of them and the rows at hand. */
struct region {
    const uint8_t *far, *soon;    /* of the first stream the line that comes next */
    size_t far_apart, soon_apart; /* how far behind it the others' lie */
    uint32_t pace, due; /* lines of a stream, in 1 / WHOLE_LINE: with each block, and still to be asked for */
};

/* While nr rows from `row` on are at work. */
INLINE struct region region_of(const int nr, const struct moec_matrix *matrix, const struct layout *layout,
                               uint32_t row)
{
    const size_t stride = matrix->stride_bytes, n_rows = layout->region_rows;
    const uint32_t next = (uint32_t)((row / n_rows + 1) * n_rows);
    struct region region = {.soon = row_at(matrix, row + CODE_ROWS),
                            .soon_apart = CODE_ROWS * stride / REGION_STREAMS};
    const bool is_last = next >= matrix->rows;
    region.far = is_last ? region.soon : row_at(matrix, next) + row % n_rows * stride / REGION_STREAMS;
    region.far_apart = is_last ? region.soon_apart : n_rows * stride / REGION_STREAMS;
    region.pace = (uint32_t)nr * layout->pace / REGION_STREAMS;
    return region;
}

INLINE void region_ask(struct region *region)
{
    for (region->due += region->pace; region->due >= WHOLE_LINE; region->due -= WHOLE_LINE) {
        UNROLL
        for (size_t s = 0; s < REGION_STREAMS; s++)
            ask_line(region->far + s * region->far_apart);
        UNROLL
        for (size_t s = 0; s < REGION_STREAMS; s++)
            ask_line_soon(region->soon + s * region->soon_apart);
        region->far += LINE;
        region->soon += LINE;
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

/* The scales of a row's n groups from g on, n <= STRIP; not of dictionaries. */
INLINE lanes groups_scales(const int dtype, const struct layout *layout, const uint8_t *row, float factor,
                           size_t g, size_t n)
{
    const uint8_t *scales = row + layout->scales;
    return (dtype & NESTED) ? lanes_mul(lanes_of_bytes(scales + 2 + g, n), lanes_set(factor))
                            : lanes_of_halves(scales + 2 * g, n);
}

/* Their zeros, where they have any. */
INLINE lanes groups_zeros(const int dtype, const struct layout *layout, const uint8_t *row, size_t g,
                          size_t n)
{
    return (dtype & NESTED) ? packed_zeros(dtype, layout, row, g, n)
                            : lanes_of_bytes(row + layout->zeros + g, n);
}

/* Converts the scales and zeros of a row's n groups from g on, n <= STRIP. */
INLINE void row_convert(const int dtype, const struct layout *layout, const uint8_t *row, float factor,
                        size_t g, size_t n, float out_scales[static STRIP], float origins[static STRIP])
{
    if ((dtype & DICTIONARY) && layout->is_mxfp4) {
        for (size_t i = 0; i < n; i++)
            out_scales[i] = moec_mxfp4_scale(row[layout->scales + g + i]);
        return;
    }
    const lanes scale = groups_scales(dtype, layout, row, factor, g, n);
    lanes_store(out_scales, scale);
    if ((dtype & DICTIONARY) || (layout->symmetric && !decoder_needs_regular(dtype)))
        return;
    lanes origin =
        layout->symmetric ? lanes_set(symmetric_zero(dtype)) : groups_zeros(dtype, layout, row, g, n);
    if (decoder_needs_regular(dtype))
        origin = lanes_sub(lanes_zero(), lanes_mul(origin, scale));
    lanes_store(origins, origin);
}

/* Converts the scales and zeros of the strip that begins with group g. */
INLINE void rows_convert(const int nr, const int dtype, const struct layout *layout, size_t g,
                         struct rows *rows)
{
    const size_t n = layout->groups - g < STRIP ? layout->groups - g : STRIP;
    for (int r = 0; r < nr; r++)
        row_convert(dtype, layout, rows->bytes[r], rows->factors[r], g, n, rows->scales[r], rows->origins[r]);
}

/* Decoder of a group from what was converted. */
INLINE struct decoder strip_decoder(const int dtype, const struct layout *layout, const float *scales,
                                    const float *origins, size_t g)
{
    if (dtype_is_float(dtype))
        return (struct decoder){0};
    if (dtype & DICTIONARY)
        return decoder_of_levels(dtype, scales[g], layout->levels);
    if (layout->symmetric && !decoder_needs_regular(dtype)) /* a constant, which spares an operation */
        return decoder_make(dtype, scales[g], symmetric_zero(dtype));
    return decoder_make(dtype, scales[g], origins[g]);
}

/* Decoder of group g of the strip that is converted, of row r. */
INLINE struct decoder rows_decoder(const int dtype, const struct layout *layout, const struct rows *rows,
                                   const int r, size_t g)
{
    return strip_decoder(dtype, layout, rows->scales[r], rows->origins[r], g);
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

#endif
