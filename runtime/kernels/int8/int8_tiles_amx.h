/* Products of a panel with tiles of tokens on AMX: part of runtime/kernels/int8/int8_tiles.h. 16 rows of codes are
 * one operand as they stand, 16 tokens side by side the other, and the sums of a group come out whole;
 * AVX-512 makes floats of them. Codes are less the zero of symmetric schemes, so that both operands have
 * signs. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_TILES_AMX_H
#define MOEC_RUNTIME_KERNELS_INT8_TILES_AMX_H

_Static_assert(ROWS_OF_TILE == 16 && MOEC_LANES == 16, "the rows of a tile");

/* What LDTILECFG reads (Intel SDM, volume 1, chapter 18): rows and bytes of a row of each register. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "the instruction's memory");

/* Registers 0 to 3 hold tokens, 4 and 5 codes, 6 and 7 sums. A product's depth is a group of 32 weights,
 * or 64. */
INLINE void product_begin(int per_span)
{
    const uint16_t depth = per_span == 4 ? 32 : 64;
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = i == 4 || i == 5 ? depth : 64;
        config.rows[i] = (uint8_t)(i < 4 ? depth / 4 : 16);
    }
    _tile_loadconfig(&config);
}

INLINE void product_end(void)
{
    _tile_release();
}

typedef int32_t tile_sums[16][16];

/* The sums of 16 rows' groups of a span. */
INLINE void span_product(const int per_span, const uint8_t codes[16][SPAN], const struct moec_int8_tile *x,
                         tile_sums sums[4])
{
    _tile_loadd(0, x->q[0], 64);
    _tile_loadd(4, codes[0], SPAN);
    _tile_zero(6);
    _tile_dpbssd(6, 4, 0);
    if (per_span == 4) {
        _tile_stored(6, sums[0], 64);
        _tile_loadd(1, x->q[8], 64);
        _tile_loadd(5, codes[0] + 32, SPAN);
        _tile_zero(7);
        _tile_dpbssd(7, 5, 1);
        _tile_stored(7, sums[1], 64);
        _tile_loadd(2, x->q[16], 64);
        _tile_loadd(4, codes[0] + 64, SPAN);
        _tile_zero(6);
        _tile_dpbssd(6, 4, 2);
        _tile_stored(6, sums[2], 64);
        _tile_loadd(3, x->q[24], 64);
        _tile_loadd(5, codes[0] + 96, SPAN);
        _tile_zero(7);
        _tile_dpbssd(7, 5, 3);
        _tile_stored(7, sums[3], 64);
        return;
    }
    _tile_loadd(1, x->q[16], 64);
    _tile_loadd(5, codes[0] + 64, SPAN);
    if (per_span == 1) {
        _tile_dpbssd(6, 5, 1);
        _tile_stored(6, sums[0], 64);
        return;
    }
    _tile_stored(6, sums[0], 64);
    _tile_zero(7);
    _tile_dpbssd(7, 5, 1);
    _tile_stored(7, sums[1], 64);
}

/* Rows r .. r + 15. */
INLINE void rows_product(const bool has_zeros, const int per_span, const struct panel *panel, uint32_t r,
                         const struct moec_int8_tile *x, float sums[16][LANES])
{
    _Alignas(64) tile_sums exact[2][4];
    lanes of_rows[16];
    UNROLL
    for (int i = 0; i < 16; i++)
        of_rows[i] = lanes_load(sums[i]);
    for (size_t s = 0; s < panel->n_spans; s++) {
        const lanes scale = lanes_load(x[s].scales);
        lanes minus[4];
        span_product(per_span, panel->codes[s] + r, x + s, exact[s % 2]);
        for (int k = 0; has_zeros && k < per_span; k++) {
            words of_group = words_zero();
            for (int b = 4 / per_span * k; b < 4 / per_span * (k + 1); b++)
                of_group = words_sub(of_group, words_load(x[s].sums[b]));
            minus[k] = lanes_of_words(of_group);
        }
        UNROLL
        for (uint32_t i = 0; i < 16; i++) {
            lanes p = lanes_zero();
            UNROLL
            for (int k = 0; k < per_span; k++) {
                lanes value = lanes_of_words(words_load(exact[s % 2][k][i]));
                if (has_zeros)
                    value = lanes_fma(lanes_set(panel->zeros[s][k][r + i]), minus[k], value);
                p = lanes_fma(value, lanes_set(panel->scales[s][k][r + i]), p);
            }
            of_rows[i] = lanes_fma(p, scale, of_rows[i]);
        }
    }
    UNROLL
    for (int i = 0; i < 16; i++)
        lanes_store(sums[i], of_rows[i]);
}

/* Codes are bytes like any other here, so that one function for each division of spans serves all dtypes. */
#define PRODUCT_OF(name, has_zeros, per_span)                                                                \
    static void name(const struct panel *panel, const struct moec_int8_tile *x,                              \
                     float sums[PANEL_ROWS][LANES])                                                          \
    {                                                                                                        \
        for (uint32_t r = 0; r < panel->n_rows; r += 16)                                                     \
            rows_product(has_zeros, per_span, panel, r, x, sums + r);                                        \
    }
PRODUCT_OF(product_1, false, 1)
PRODUCT_OF(product_2, false, 2)
PRODUCT_OF(product_4, false, 4)
PRODUCT_OF(product_1_zeros, true, 1)
PRODUCT_OF(product_2_zeros, true, 2)
PRODUCT_OF(product_4_zeros, true, 4)

INLINE void panel_product(const int dtype, const bool has_zeros, int per_span, const struct panel *panel,
                          const struct moec_int8_tile *x, float sums[PANEL_ROWS][LANES])
{
    (void)dtype;
    if (per_span == 4)
        (has_zeros ? product_4_zeros : product_4)(panel, x, sums);
    else if (per_span == 2)
        (has_zeros ? product_2_zeros : product_2)(panel, x, sums);
    else
        (has_zeros ? product_1_zeros : product_1)(panel, x, sums);
}

#endif
