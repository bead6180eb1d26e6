/* Encoded rows that are decoded some columns at a time, of the kernels that are written once for all vector
 * instruction sets: whole rows, and what many tokens multiply while it stays in the first-level cache
 * (runtime/kernels/canonical/kernels_tokens.h). Part of runtime/kernels/canonical/kernels_lanes.h. */
#ifndef MOEC_RUNTIME_KERNELS_PARTS_H
#define MOEC_RUNTIME_KERNELS_PARTS_H

#include "runtime/kernels/canonical/kernels_mxfp4.h"
#include "runtime/kernels/canonical/kernels_rows.h"
#include "runtime/kernels/canonical/kernels_shift.h"

#define PART 16 /* blocks of a part, whose groups stand in one strip of scales */

/* Rows of a matrix that are decoded some columns at a time. */
struct decoding {
    const struct moec_matrix *matrix;
    struct layout layout;
    struct chosen chosen;
    struct ahead ahead;
};

/* Blocks [b, end) of rows i .. i + n - 1 of those chosen, n <= CODE_ROWS. */
struct part {
    uint32_t i, n;
    size_t b, end; /* not across a multiple of PART */
};

/* Whether decoding by registers gives the part's exact bits. */
INLINE bool part_is_regular(const int dtype, const struct layout *layout, const uint8_t *row,
                            const struct part *part)
{
    if (!decoder_needs_regular(dtype))
        return true;
    const size_t last = (part->end - 1) / layout->per_group;
    return groups_are_regular(layout, row, part->b / layout->per_group, last + 1);
}

/* A part of one row by the definition, to out. */
static void part_defined(const struct decoding *decoding, const struct part *part, const uint8_t *row,
                         float *out)
{
    const struct moec_matrix *matrix = decoding->matrix;
    const size_t at = part->b * BLOCK, n = matrix->columns,
                 count = part->end * BLOCK < n ? part->end * BLOCK - at : n - at;
    moec_codec_decode_span(matrix->codec, row, n, at, count, out);
    memset(out + count, 0, (moec_lanes_padded(count) - count) * sizeof *out);
}

/* Block b of one row, the last incomplete one too, to out. */
INLINE void decode_one_block(const int dtype, const struct layout *layout, const uint8_t *row, float factor,
                             size_t b, float *out)
{
    struct decoder decoders[2];
    const uint8_t *bytes = row + b * block_bytes(dtype);
    lanes w[2];
    decoders_at(dtype, layout, row, factor, b / layout->per_group, decoders);
    if (b < layout->blocks)
        decode_block(dtype, bytes, decoders, w);
    else
        decode_tail(dtype, bytes, decoders, layout->tail, w);
    lanes_store(out, w[0]);
    if (b < layout->blocks || layout->tail > LANES)
        lanes_store(out + LANES, w[1]);
}

/* Puts those outliers of a row that lie in a part. */
INLINE void put_outliers(const struct decoding *decoding, const struct part *part, const uint8_t *row,
                         float *out)
{
    const size_t first = part->b * BLOCK, end = part->end * BLOCK, columns = decoding->matrix->columns;
    for (size_t span = first / SPAN; span < decoding->layout.n_outlier && span * SPAN < end; span++) {
        const struct outlier outlier = outlier_at(&decoding->layout, row, span);
        const size_t column = span * SPAN + outlier.place;
        if (outlier.place < SPAN && column >= first && column < end && column < columns)
            out[column - first] = outlier.value;
    }
}

/* The whole blocks of a part of CODE_ROWS rows, whose scales are converted from group `converted` on. */
INLINE void decode_blocks(const int dtype, struct decoding *decoding, const struct rows *rows,
                          size_t converted, const struct part *part, float *out)
{
    const struct layout *layout = &decoding->layout;
    const size_t end = part->end < layout->blocks ? part->end : layout->blocks;
    size_t b = part->b;
    for (size_t g = b / layout->per_group; b < end; g++) {
        const size_t until = (g + 1) * layout->per_group < end ? (g + 1) * layout->per_group : end;
        struct decoder decoders[CODE_ROWS][2];
        UNROLL
        for (int r = 0; r < CODE_ROWS; r++)
            decoders[r][0] = rows_decoder(dtype, layout, rows, r, g - converted);
        do {
            rows_ask(CODE_ROWS, decoding->matrix, layout, &decoding->chosen, &decoding->ahead);
            UNROLL
            for (int r = 0; r < CODE_ROWS; r++) {
                lanes w[2];
                decode_block(dtype, rows->bytes[r] + b * block_bytes(dtype), decoders[r], w);
                lanes_store(out + (size_t)r * PART * BLOCK, w[0]);
                lanes_store(out + (size_t)r * PART * BLOCK + LANES, w[1]);
            }
            out += BLOCK;
        } while (++b < until);
    }
}

/* A part to rows that are PART * BLOCK floats apart, padded with zeros to a multiple of LANES; rows past the
 * last of those chosen are like it. */
INLINE void decode_part(const int dtype, struct decoding *decoding, const struct part *part, float *out)
{
    const struct layout *layout = &decoding->layout;
    size_t done = part->b;
    struct rows rows;
    rows_open(CODE_ROWS, dtype, decoding->matrix, layout, &decoding->chosen, part->i, &rows);
    if (!(dtype & HALVES) && part->n > CODE_ROWS / 2) {
        const size_t g = part->b / layout->per_group / STRIP * STRIP;
        if (!dtype_is_float(dtype))
            rows_convert(CODE_ROWS, dtype, layout, g, &rows);
        decode_blocks(dtype, decoding, &rows, g, part, out);
        done = part->end < layout->blocks ? part->end : layout->blocks;
    }
    NO_UNROLL
    for (uint32_t r = 0; r < part->n; r++) {
        float *row = out + r * PART * BLOCK;
        NO_UNROLL
        for (size_t b = done; b < part->end; b++)
            decode_one_block(dtype, layout, rows.bytes[r], rows.factors[r], b, row + (b - part->b) * BLOCK);
        if (dtype & DICTIONARY)
            put_outliers(decoding, part, rows.bytes[r], row);
        if (!part_is_regular(dtype, layout, rows.bytes[r], part))
            part_defined(decoding, part, rows.bytes[r], row);
    }
}

#define KIND_PART(name, kind)                                                                                \
    static NEVER_INLINE void part_##name(struct decoding *decoding, const struct part *part, float *out)     \
    {                                                                                                        \
        decode_part(kind, decoding, part, out);                                                              \
    }
#define CASE_PART(name, kind)                                                                                \
    case kind:                                                                                               \
        part_##name(decoding, part, out);                                                                    \
        break
EACH_KIND(KIND_PART)

static void part_of_any(struct decoding *decoding, const struct part *part, float *out)
{
    switch (kind_of(decoding->matrix->codec)) {
        EACH_KIND(CASE_PART)
    default:
        break;
    }
}

/* Rows first .. first + n_rows - 1; rows from number `ahead` on are asked for meanwhile, or as many bytes
 * ahead as for one token where that is 0. */
static struct decoding decoding_of(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                                   uint32_t ahead)
{
    struct decoding decoding = {.matrix = matrix, .chosen = {first, n_rows, NULL}};
    decoding.layout = layout_of(kind_of(matrix->codec), matrix);
    decoding.ahead =
        ahead_of(CODE_ROWS, matrix, &decoding.chosen, ahead > 0 ? ahead : decoding.layout.ahead_rows);
    decoding.ahead.goes_on = true;
    return decoding;
}

static void decode_rows(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, float *out,
                        size_t stride)
{
    if (path_of(matrix->codec) != 0) {
        trellis_decode_rows(matrix, first, n_rows, out, stride);
        return;
    }
    if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN) {
        down_decode_blocks(matrix, first, n_rows, 0, matrix->columns / BLOCK, out, stride);
        return;
    }
    struct decoding decoding = decoding_of(matrix, first, n_rows, n_rows);
    const size_t all = decoding.layout.blocks + (decoding.layout.tail > 0);
    for (uint32_t i = 0; i < n_rows; i += CODE_ROWS) {
        struct part part = {.i = i, .n = n_rows - i < CODE_ROWS ? n_rows - i : CODE_ROWS};
        for (part.b = 0; part.b < all; part.b += PART) {
            _Alignas(LINE) float decoded[CODE_ROWS][PART * BLOCK];
            const size_t at = part.b * BLOCK, left = moec_lanes_padded(matrix->columns) - at;
            part.end = all - part.b < PART ? all : part.b + PART;
            part_of_any(&decoding, &part, decoded[0]);
            for (uint32_t r = 0; r < part.n; r++)
                for (size_t c = 0; c < PART * BLOCK && c < left; c += LANES)
                    lanes_store(out + (i + r) * stride + at + c, lanes_load(decoded[r] + c));
        }
    }
}

#endif
