/* Products of a panel with tiles of tokens, whose lanes are tokens: part of runtime/kernels/int8/int8_tiles.h. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_TILES_LANES_H
#define MOEC_RUNTIME_KERNELS_INT8_TILES_LANES_H

#if defined(HAS_MATRICES)
#include "runtime/kernels/int8/int8_tiles_i8mm.h"
#else
/* products[i] += those of blocks [from, to) of row i's codes with a tile, a row's four codes at a time. */
INLINE void blocks_product(const int dtype, const uint8_t codes[ROWS_OF_TILE][SPAN],
                           const struct moec_int8_tile *x, int from, int to, words products[ROWS_OF_TILE])
{
    for (int b = from; b < to; b++) {
        UNROLL
        for (int j = 0; j < 8; j++) {
            const words q = words_load(x->q[8 * b + j]);
            UNROLL
            for (uint32_t i = 0; i < ROWS_OF_TILE; i++) {
                int32_t four;
                memcpy(&four, codes[i] + 32 * b + 4 * j, sizeof four);
                products[i] = words_dot(dtype, products[i], words_set(four), q);
            }
        }
    }
}
#endif

/* What the sums of a group's products with codes less OFFSET begin with, and minus the sum of its q. */
INLINE void group_start(const int dtype, const bool has_zeros, int per_span, const struct moec_int8_tile *x,
                        int k, words *start, lanes *minus)
{
    *start = words_zero();
    for (int b = 4 / per_span * k; b < 4 / per_span * (k + 1); b++)
        *start = words_sub(*start, words_load(x->sums[b]));
    *minus = lanes_of_words(*start);
    *start = has_zeros || OFFSET(dtype) != 0 ? words_zero() : words_up(*start, (int)bits_of(dtype) - 1);
}

/* sums[r] += the products of rows r .. of a panel's span with a tile. */
INLINE void tile_span(const int dtype, const bool has_zeros, int per_span, const struct panel *panel,
                      size_t s, uint32_t r, const struct moec_int8_tile *x, lanes sums[ROWS_OF_TILE])
{
    lanes p[ROWS_OF_TILE];
    UNROLL
    for (int i = 0; i < ROWS_OF_TILE; i++)
        p[i] = lanes_zero();
    for (int k = 0; k < per_span; k++) {
        words products[ROWS_OF_TILE], start;
        lanes minus;
        group_start(dtype, has_zeros, per_span, x, k, &start, &minus);
        UNROLL
        for (int i = 0; i < ROWS_OF_TILE; i++)
            products[i] = start;
        blocks_product(dtype, panel->codes[s] + r, x, 4 / per_span * k, 4 / per_span * (k + 1), products);
        UNROLL
        for (uint32_t i = 0; i < ROWS_OF_TILE; i++) {
            lanes exact = lanes_of_words(products[i]);
            if (has_zeros)
                exact = lanes_fma(lanes_set(panel->zeros[s][k][r + i]), minus, exact);
            const lanes scale = lanes_set(panel->scales[s][k][r + i]);
            p[i] = lanes_fma(exact, scale, p[i]);
        }
    }
    UNROLL
    for (int i = 0; i < ROWS_OF_TILE; i++)
        sums[i] = lanes_fma(p[i], lanes_load(x->scales), sums[i]);
}

INLINE void panel_product(const int dtype, const bool has_zeros, int per_span, const struct panel *panel,
                          const struct moec_int8_tile *x, float sums[PANEL_ROWS][LANES])
{
    for (uint32_t r = 0; r < panel->n_rows; r += ROWS_OF_TILE) {
        lanes of_rows[ROWS_OF_TILE];
        UNROLL
        for (uint32_t i = 0; i < ROWS_OF_TILE; i++)
            of_rows[i] = lanes_load(sums[r + i]);
        for (size_t s = 0; s < panel->n_spans; s++)
            tile_span(dtype, has_zeros, per_span, panel, s, r, x + s, of_rows);
        UNROLL
        for (uint32_t i = 0; i < ROWS_OF_TILE; i++)
            lanes_store(sums[r + i], of_rows[i]);
    }
}

INLINE void product_begin(int per_span)
{
    (void)per_span;
}

INLINE void product_end(void)
{
}

#endif
