/* Products of many tokens of the int8 arithmetic, written once for the vector sets: part of
 * runtime/kernels/int8/int8_set.h, or of a set that defines HAS_TILES and multiplies panels by itself.
 *
 * A tile of 16 tokens has a lane for each, so that rows are not taken apart by lanes: a row's code is one for
 * all lanes, and no sum crosses them. The codes of a panel of rows and columns are taken apart once for all
 * tiles. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_TILES_H
#define MOEC_RUNTIME_KERNELS_INT8_TILES_H

#include "runtime/kernels/int8/int8_lanes.h"

#define PANEL_ROWS  MOEC_INT8_ROWS
#define PANEL_SPANS 4
#define TILES_HELD  8 /* whose sums are kept from panel to panel */

/* scales[s][k][r], zeros likewise: of group k of span s and row r. */
struct panel {
    _Alignas(64) uint8_t codes[PANEL_SPANS][PANEL_ROWS][SPAN];
    float scales[PANEL_SPANS][4][PANEL_ROWS], zeros[PANEL_SPANS][4][PANEL_ROWS];
    uint32_t n_rows;
    size_t n_spans;
};

INLINE void panel_codes(const int dtype, const struct plan *plan, const uint8_t *row, size_t s, uint8_t *out)
{
    uint8_t tail[BEFORE + SPAN];
    const uint8_t *at = row + s * plan->span_bytes;
    if (s == plan->whole)
        at = tail_copied(dtype, plan, at, s == 0, tail);
    for (size_t line = 0; line < plan->span_bytes; line += LINE) /* rows lie apart, as in sum_many */
        ask_line(at + PANEL_SPANS * plan->span_bytes + line);
    codes_store(codes_at(dtype, at, s == 0), TILE_OFFSET(dtype) - OFFSET(dtype), out);
}

/* What belongs to the groups of spans s .. s + n - 1 of one row, from values of 16 groups each. */
#define OF_GROUPS(n, per_span, first, values, out)                                                           \
    for (size_t s_ = 0; s_ < (n); s_++)                                                                      \
        for (size_t k_ = 0; k_ < (size_t)(per_span); k_++)                                                   \
            (out)[s_][k_][r] = (values)[(first) + s_ * (size_t)(per_span) + k_];

INLINE void panel_groups(const int dtype, const bool has_zeros, int per_span, const struct plan *plan,
                         const uint8_t *row, uint32_t r, size_t from, struct panel *panel)
{
    const float factor = row_factor(plan, row);
    const size_t g = plan->group == 0 ? 0 : from * (size_t)per_span;
    float scales[LANES], zeros[LANES];
    const bool is_whole = plan->group == 0;
    lanes_store(scales, is_whole ? lanes_set(factor) : scales_at(plan, row, factor, g / LANES * LANES));
    OF_GROUPS(panel->n_spans, per_span, g % LANES, scales, panel->scales)
    if (!has_zeros)
        return;
    const lanes less = lanes_set((float)(TILE_OFFSET(dtype) - OFFSET(dtype)));
    lanes_store(zeros, lanes_sub(is_whole ? lanes_set((float)row_zero(dtype, plan, row))
                                          : zeros_at(dtype, plan, row, g / LANES * LANES),
                                 less));
    OF_GROUPS(panel->n_spans, per_span, g % LANES, zeros, panel->zeros)
}

/* Spans from .. of rows first .. first + n_rows - 1; the last row stands for those that fill up the tile. */
INLINE void panel_fill(const int dtype, const bool has_zeros, int per_span, const struct moec_matrix *matrix,
                       const struct plan *plan, uint32_t first, size_t from, struct panel *panel)
{
    const uint32_t rows = (panel->n_rows + ROWS_OF_TILE - 1) / ROWS_OF_TILE * ROWS_OF_TILE;
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *row = row_at(matrix, first + (r < panel->n_rows ? r : panel->n_rows - 1));
        for (size_t s = 0; s < panel->n_spans; s++)
            panel_codes(dtype, plan, row, from + s, panel->codes[s][r]);
        panel_groups(dtype, has_zeros, per_span, plan, row, r, from, panel);
    }
}

/* panel_product(dtype, has_zeros, per_span, panel, x, sums): adds the products of a panel with a tile's spans
 * to sums[r][t]; product_begin and product_end are around some of them. */
#if defined(HAS_TILES)
#include "runtime/kernels/int8/int8_tiles_amx.h"
#else
#include "runtime/kernels/int8/int8_tiles_lanes.h"
#endif

/* Sums of rows by tokens to y of tokens by rows. */
INLINE void sums_store(float sums[PANEL_ROWS][LANES], uint32_t n_rows, uint32_t n_tok, float *y,
                       size_t y_stride)
{
    for (uint32_t r = 0; r < n_rows; r += 4) {
        lanes of_rows[4], of_tokens[4];
        float four[LANES][4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            of_rows[i] = lanes_load(sums[r + i]);
        lanes_by_fours(of_rows, of_tokens);
        UNROLL
        for (int t = 0; t < LANES; t++)
            fours_store(four[t], lanes_four(of_tokens[t % 4], t / 4));
        for (uint32_t t = 0; t < n_tok; t++)
            memcpy(y + t * y_stride + r, four[t], (n_rows - r < 4 ? n_rows - r : 4) * sizeof *y);
    }
}

/* At most TILES_HELD tiles of n_tok tokens and a panel's rows. */
INLINE void tiles_of_rows(const int dtype, const bool has_zeros, const struct moec_matrix *matrix,
                          const struct plan *plan, uint32_t first, uint32_t n_rows,
                          const struct moec_int8_tile *x, uint32_t n_tok, float *y, size_t y_stride)
{
    _Alignas(64) float sums[TILES_HELD][PANEL_ROWS][LANES];
    struct panel panel;
    const size_t spans = moec_int8_spans(plan->columns);
    const uint32_t n_tiles = (n_tok + LANES - 1) / LANES;
    const int per_span = IS_PATH(dtype) ? 1 : plan->per_span;
    memset(sums, 0, n_tiles * sizeof *sums);
    product_begin(per_span);
    for (size_t from = 0; from < spans; from += PANEL_SPANS) {
        panel.n_rows = n_rows;
        panel.n_spans = spans - from < PANEL_SPANS ? spans - from : PANEL_SPANS;
        panel_fill(dtype, has_zeros, per_span, matrix, plan, first, from, &panel);
        for (uint32_t t = 0; t < n_tiles; t++)
            panel_product(dtype, has_zeros, per_span, &panel, x + t * spans + from, sums[t]);
    }
    product_end();
    for (uint32_t t = 0; t < n_tok; t += LANES)
        sums_store(sums[t / LANES], n_rows, n_tok - t < LANES ? n_tok - t : LANES, y + t * y_stride,
                   y_stride);
}

INLINE void tiles_all(const int dtype, const bool has_zeros, const struct moec_matrix *matrix, uint32_t first,
                      uint32_t n_rows, const struct moec_int8_tile *x, uint32_t n_tok, float *y,
                      size_t y_stride)
{
    const struct plan plan = plan_of(matrix);
    const size_t spans = moec_int8_spans(plan.columns);
    for (uint32_t t = 0; t < n_tok; t += TILES_HELD * LANES) {
        const uint32_t tokens = n_tok - t < TILES_HELD * LANES ? n_tok - t : TILES_HELD * LANES;
        for (uint32_t i = 0; i < n_rows; i += PANEL_ROWS) {
            const uint32_t rows = n_rows - i < PANEL_ROWS ? n_rows - i : PANEL_ROWS;
            const struct moec_int8_tile *tiles = x + t / LANES * spans;
            float *out = y + t * y_stride + i;
            tiles_of_rows(dtype, has_zeros, matrix, &plan, first + i, rows, tiles, tokens, out, y_stride);
        }
    }
}

FOR_ANY_CODEC(tiles_all,
              (const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
               const struct moec_int8_tile *x, uint32_t n_tok, float *y, size_t y_stride),
              (matrix, first, n_rows, x, n_tok, y, y_stride))

static void dot_tiles(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                      const struct moec_int8_tile *x, uint32_t n_tok, float *y, size_t y_stride)
{
    tiles_all_any(matrix, first, n_rows, x, n_tok, y, y_stride);
}

#endif
