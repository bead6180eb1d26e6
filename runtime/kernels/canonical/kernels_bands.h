/* The decoded weights of a weighted sum with many tokens, of the kernels that are written once for all vector
 * instruction sets: some columns of all rows of a chunk at once, row by row, where scales stay converted from
 * one band of columns to the next. Part of runtime/kernels/canonical/kernels_lanes.h. */
#ifndef MOEC_RUNTIME_KERNELS_BANDS_H
#define MOEC_RUNTIME_KERNELS_BANDS_H

#include "runtime/kernels/canonical/kernels_parts.h"

#define BAND (SUM_WIDTH / BLOCK) /* blocks of a band */

_Static_assert(STRIP % BAND == 0, "groups of a band stand in one strip of scales");

/* Rows of a chunk that are decoded band by band, and the scales of the strip of groups that is at work. */
struct banding {
    struct decoding decoding;
    size_t first_group; /* of the strip; SIZE_MAX before the first */
    uint64_t defined;   /* rows whose groups there the definition alone decodes */
    float scales[MOEC_SUM_CHUNK][STRIP], origins[MOEC_SUM_CHUNK][STRIP];
};

static void bands_open(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                       struct banding *banding)
{
    banding->decoding = decoding_of(matrix, first, n_rows, n_rows);
    banding->first_group = SIZE_MAX;
    banding->defined = 0;
}

INLINE const uint8_t *band_row(const struct banding *banding, uint32_t r)
{
    return row_at(banding->decoding.matrix, banding->decoding.chosen.first + r);
}

/* The scales of the strip that begins with group g. */
INLINE void bands_convert(const int dtype, struct banding *banding, size_t g)
{
    const struct layout *layout = &banding->decoding.layout;
    const size_t n = layout->groups - g < STRIP ? layout->groups - g : STRIP;
    banding->first_group = g;
    banding->defined = 0;
    for (uint32_t r = 0; r < banding->decoding.chosen.n; r++) {
        const uint8_t *row = band_row(banding, r);
        row_convert(dtype, layout, row, row_factor(dtype, layout, row), g, n, banding->scales[r],
                    banding->origins[r]);
        if (decoder_needs_regular(dtype) && !groups_are_regular(layout, row, g, g + n))
            banding->defined |= (uint64_t)1 << r;
    }
}

/* Asks for what lies as far in the row that comes as many rows after row r as a chunk has: each line once. */
INLINE void band_ask(const struct banding *banding, uint32_t r, size_t b)
{
    const struct moec_matrix *matrix = banding->decoding.matrix;
    const struct chosen *chosen = &banding->decoding.chosen;
    const size_t step = banding->decoding.layout.step, end = (b + BAND) * step;
    const uint32_t later = chosen->first + chosen->n + r;
    for (size_t at = (b * step + LINE - 1) / LINE * LINE; later < matrix->rows && at < end; at += LINE)
        ask_line(row_at(matrix, later) + at);
}

/* Of each block of a band its group, counted from the first of the strip. */
struct band_groups {
    size_t of[BAND];
    bool are_one;
};

INLINE struct band_groups band_groups(const struct banding *banding, size_t b)
{
    const size_t per_group = banding->decoding.layout.per_group;
    struct band_groups groups;
    for (size_t i = 0; i < BAND; i++)
        groups.of[i] = (b + i) / per_group - banding->first_group;
    groups.are_one = groups.of[0] == groups.of[BAND - 1];
    return groups;
}

/* Blocks of a whole band of a row, whose scales are converted. */
INLINE void band_blocks(const int dtype, const bool one_group, const struct banding *banding,
                        const struct band_groups *groups, uint32_t r, const uint8_t *bytes, float *out)
{
    const struct layout *layout = &banding->decoding.layout;
    struct decoder decoder = {0};
    UNROLL
    for (size_t i = 0; i < BAND; i++) {
        lanes w[2];
        if (i == 0 || !one_group)
            decoder = strip_decoder(dtype, layout, banding->scales[r], banding->origins[r], groups->of[i]);
        decode_block(dtype, bytes + i * block_bytes(dtype), &decoder, w);
        lanes_store(out + i * BLOCK, w[0]);
        lanes_store(out + i * BLOCK + LANES, w[1]);
    }
}

/* Blocks [b, end) of row r that no whole band has, and what else its dtype asks for. */
INLINE void finish_row(const int dtype, const struct banding *banding, uint32_t r, bool is_whole, size_t b,
                       size_t end, float *out)
{
    const struct layout *layout = &banding->decoding.layout;
    const uint8_t *row = band_row(banding, r);
    const struct part part = {.i = r, .n = 1, .b = b, .end = end};
    NO_UNROLL
    for (size_t i = is_whole ? end : b; i < end; i++)
        decode_one_block(dtype, layout, row, row_factor(dtype, layout, row), i, out + (i - b) * BLOCK);
    if (dtype & DICTIONARY)
        put_outliers(&banding->decoding, &part, row, out);
    if (decoder_needs_regular(dtype) && (banding->defined >> r & 1) != 0)
        part_defined(&banding->decoding, &part, row, out);
}

/* Blocks [b, end) of all rows, at most BAND, to out + r * SUM_WIDTH, padded with zeros to a multiple of
 * LANES. */
INLINE void decode_band(const int dtype, struct banding *banding, size_t b, size_t end, float *out)
{
    const struct layout *layout = &banding->decoding.layout;
    const size_t g = b / layout->per_group / STRIP * STRIP;
    const bool is_whole = !(dtype & HALVES) && end == b + BAND && end <= layout->blocks;
    if (!(dtype & HALVES) && !dtype_is_float(dtype) && banding->first_group != g)
        bands_convert(dtype, banding, g);
    const struct band_groups groups = band_groups(banding, b);
    for (uint32_t r = 0; r < banding->decoding.chosen.n; r++, out += SUM_WIDTH) {
        const uint8_t *bytes = band_row(banding, r) + b * block_bytes(dtype);
        band_ask(banding, r, b);
        if (is_whole && groups.are_one)
            band_blocks(dtype, true, banding, &groups, r, bytes, out);
        else if (is_whole)
            band_blocks(dtype, false, banding, &groups, r, bytes, out);
        finish_row(dtype, banding, r, is_whole, b, end, out);
    }
}

#define KIND_BAND(name, kind)                                                                                \
    static NEVER_INLINE void band_##name(struct banding *banding, size_t b, size_t end, float *out)          \
    {                                                                                                        \
        decode_band(kind, banding, b, end, out);                                                             \
    }
#define CASE_BAND(name, kind)                                                                                \
    case kind:                                                                                               \
        band_##name(banding, b, end, out);                                                                   \
        break
EACH_KIND(KIND_BAND)

static void band_of_any(struct banding *banding, size_t b, size_t end, float *out)
{
    switch (kind_of(banding->decoding.matrix->codec)) {
        EACH_KIND(CASE_BAND)
    default:
        break;
    }
}

#endif
