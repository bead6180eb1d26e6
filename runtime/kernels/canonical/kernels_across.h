/* Many tokens against encoded rows, of the sets with 32 registers of MOEC_LANES floats: a lane is a row, so
 * the partial sums of a dot product come one after the other, and their tree needs no lane of another.
 *
 * Of ACROSS_ROWS rows all weights are decoded once, to the room (second-level cache): slice s has those of
 * the columns k with k mod 16 = s, a step (those of one column) behind the other. Tokens are laid likewise,
 * in tiles of ACROSS_LEAST to ACROSS_TOKENS: slice s of a tile has a step for each such column, with a number
 * of each token. Two such sets of rows share a pass over tokens that are many. A tile takes the slices in an
 * order in which sums wait as little as possible: four times its registers at most.
 *
 * Part of runtime/kernels/canonical/kernels_lanes.h, which says what a set defines for it. */
#ifndef MOEC_RUNTIME_KERNELS_ACROSS_H
#define MOEC_RUNTIME_KERNELS_ACROSS_H

#include "runtime/kernels/canonical/kernels_bands.h"

#define ACROSS_VECTORS (MOEC_TRANSPOSED_ROWS / LANES)
#define ACROSS_ROWS    MOEC_TRANSPOSED_ROWS
#define ACROSS_TOKENS  13
#define ACROSS_LEAST   10 /* what the shortest tile has of MOEC_TRANSPOSED_TOKENS tokens or more */
#define ACROSS_WAITS   4  /* sums that wait at once, of 16 */

/* ---- tokens ---- */

/* The tokens of tile number `tile` begin with this one; their numbers differ by one at most. */
INLINE uint32_t tile_start(uint32_t n_tok, uint32_t n_tiles, uint32_t tile)
{
    return (uint32_t)((uint64_t)n_tok * tile / n_tiles);
}

INLINE uint32_t tiles_of(uint32_t n_tok)
{
    return (n_tok + ACROSS_TOKENS - 1) / ACROSS_TOKENS;
}

/* n of LANES rows, of which the last stands for missing ones: number at + s of each, in v[s]. */
INLINE void load_across(const float *const *rows, size_t n, size_t at, lanes v[static LANES])
{
    UNROLL
    for (size_t i = 0; i < LANES; i++)
        v[i] = lanes_load(rows[i < n ? i : n - 1] + at);
    lanes_transpose(v);
}

static void transpose_tokens(const float *const *rows, uint32_t n_tok, uint32_t k, float *transposed)
{
    const size_t padded = moec_lanes_padded(k);
    const uint32_t n_tiles = tiles_of(n_tok);
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        const uint32_t first = tile_start(n_tok, n_tiles, tile);
        const size_t n = tile_start(n_tok, n_tiles, tile + 1) - first;
        for (size_t at = 0; at < padded; at += LANES) {
            lanes v[LANES];
            load_across(rows + first, n, at, v);
            UNROLL
            for (size_t s = 0; s < LANES; s++)
                lanes_store_some(transposed + (s * padded + at) / LANES * n, n, v[s]);
        }
        transposed += n * padded;
    }
}

/* ---- weights ---- */

INLINE size_t slice_floats(size_t k)
{
    return moec_transposed_room_floats(ACROSS_ROWS, k) / LANES;
}

/* LANES rows, of which the last stands for missing ones. */
struct across {
    const uint8_t *bytes[LANES];
    float factors[LANES];
    _Alignas(LINE) float scales[STRIP][LANES];
    _Alignas(LINE) float zeros[STRIP][LANES];
};

INLINE void across_open(const int dtype, const struct decoding *decoding, uint32_t r, uint32_t n,
                        struct across *rows)
{
    for (uint32_t i = 0; i < LANES; i++) {
        rows->bytes[i] = row_at(decoding->matrix, chosen_row(&decoding->chosen, r + (i < n ? i : n - 1)));
        rows->factors[i] = row_factor(dtype, &decoding->layout, rows->bytes[i]);
    }
}

/* The groups' scales and zeros, from group g on. */
INLINE void across_convert(const int dtype, const struct layout *layout, size_t g, struct across *rows)
{
    const size_t n = layout->groups - g < STRIP ? layout->groups - g : STRIP;
    lanes v[LANES];
    for (int r = 0; r < LANES; r++)
        v[r] = groups_scales(dtype, layout, rows->bytes[r], rows->factors[r], g, n);
    lanes_transpose(v);
    for (int i = 0; i < STRIP; i++)
        lanes_store(rows->scales[i], v[i]);
    if (layout->symmetric)
        return;
    for (int r = 0; r < LANES; r++)
        v[r] = groups_zeros(dtype, layout, rows->bytes[r], g, n);
    lanes_transpose(v);
    for (int i = 0; i < STRIP; i++)
        lanes_store(rows->zeros[i], v[i]);
}

static const float across_codes[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* One block of LANES rows, to steps of ACROSS_ROWS floats. */
INLINE void across_block(const int dtype, const bool symmetric, const struct across *rows, size_t b, size_t g,
                         size_t slice, float *out)
{
    const bool is_float = dtype_is_float(dtype), subtracts = !symmetric || PLAIN(dtype) == MOEC_DTYPE_INT8;
    const lanes codes = lanes_load(across_codes), table = symmetric ? lanes_sub(codes, lanes_set(8)) : codes;
    const lanes zero = is_float ? lanes_zero() : symmetric ? lanes_set(128) : lanes_load(rows->zeros[g]);
    const lanes scale = is_float ? lanes_zero() : lanes_load(rows->scales[g]);
    words of_block[BLOCK / 2];
    UNROLL
    for (size_t i = 0; i < block_bytes(dtype) / 16; i++)
        words_across(rows->bytes, b * block_bytes(dtype) + 16 * i, of_block + 4 * i);
    UNROLL
    for (int k = 0; k < BLOCK; k++) {
        lanes w = code_across(dtype, of_block, k, table);
        if (!is_float)
            w = lanes_mul(subtracts ? lanes_sub(w, zero) : w, scale);
        lanes_store(out + (size_t)(k % LANES) * slice + (2 * b + (size_t)(k / LANES)) * ACROSS_ROWS, w);
    }
}

/* All blocks of rows whose last block is whole. */
INLINE void across_blocks(const int dtype, const bool symmetric, struct decoding *decoding,
                          struct across *rows, size_t slice, float *out)
{
    const struct layout *layout = &decoding->layout;
    size_t b = 0;
    for (size_t g = 0; b < layout->blocks; g++) {
        const size_t end =
            (g + 1) * layout->per_group < layout->blocks ? (g + 1) * layout->per_group : layout->blocks;
        if (!dtype_is_float(dtype) && g % STRIP == 0)
            across_convert(dtype, layout, g, rows);
        for (; b < end; b++) {
            rows_ask(LANES, decoding->matrix, layout, &decoding->chosen, &decoding->ahead);
            across_block(dtype, symmetric, rows, b, g % STRIP, slice, out);
        }
    }
}

#define KIND_ACROSS(name, kind)                                                                              \
    static NEVER_INLINE void across_##name(struct decoding *decoding, uint32_t r, uint32_t n, size_t slice,  \
                                           float *out)                                                       \
    {                                                                                                        \
        struct across rows;                                                                                  \
        across_open(kind, decoding, r, n, &rows);                                                            \
        if (decoding->layout.symmetric)                                                                      \
            across_blocks(kind, true, decoding, &rows, slice, out);                                          \
        else                                                                                                 \
            across_blocks(kind, false, decoding, &rows, slice, out);                                         \
    }
#define CASE_ACROSS(name, kind)                                                                              \
    case kind:                                                                                               \
        across_##name(decoding, r, n, slice, out);                                                           \
        return true
#define EACH_ACROSS(of)                                                                                      \
    of(bf16, MOEC_DTYPE_BF16);                                                                               \
    of(int4, MOEC_DTYPE_INT4);                                                                               \
    of(nested4, MOEC_DTYPE_INT4 | NESTED);                                                                   \
    of(int8, MOEC_DTYPE_INT8);                                                                               \
    of(nested8, MOEC_DTYPE_INT8 | NESTED);

EACH_ACROSS(KIND_ACROSS)

/* Rows r .. r + n - 1 of those chosen, n <= LANES. False where there is no function for them. */
static bool across_any(struct decoding *decoding, uint32_t r, uint32_t n, size_t slice, float *out)
{
    const int kind = kind_of(decoding->matrix->codec) & ~LIFTED;
    if (decoding->layout.tail > 0)
        return false;
    switch (kind) {
        EACH_ACROSS(CASE_ACROSS)
    default:
        return false;
    }
}

/* Rows first .. first + n - 1, n <= LANES, decoded one by one and turned. */
static void turn_rows(const struct moec_matrix *matrix, uint32_t first, uint32_t n, size_t slice, float *out)
{
    _Alignas(LINE) float decoded[LANES][SUM_WIDTH];
    const float *rows[LANES];
    const size_t padded = moec_lanes_padded(matrix->columns);
    struct banding banding;
    for (int r = 0; r < LANES; r++)
        rows[r] = decoded[r];
    bands_open(matrix, first, n, &banding);
    for (size_t c = 0; c < padded; c += SUM_WIDTH) {
        const size_t width = padded - c < SUM_WIDTH ? padded - c : SUM_WIDTH;
        band_of_any(&banding, c / BLOCK, (c + width + BLOCK - 1) / BLOCK, decoded[0]);
        for (size_t at = 0; at < width; at += LANES) {
            lanes v[LANES];
            load_across(rows, n, at, v);
            UNROLL
            for (size_t s = 0; s < LANES; s++)
                lanes_store(out + s * slice + (c + at) / LANES * ACROSS_ROWS, v[s]);
        }
    }
}

/* Rows r .. r + n - 1 of those chosen, n <= ACROSS_ROWS; nothing useful stands for missing ones. */
static void decode_across(struct decoding *decoding, uint32_t r, uint32_t n, size_t slice, float *room)
{
    for (uint32_t done = 0; done < n; done += LANES, room += LANES) {
        const uint32_t left = n - done < LANES ? n - done : LANES;
        if (!across_any(decoding, r + done, left, slice, room))
            turn_rows(decoding->matrix, decoding->chosen.first + r + done, left, slice, room);
    }
}

/* ---- products ---- */

/* The lanes of a tree in the order in which it adds them: after the first, how many sums that wait are added
 * to a slice's is the number of ones that its place ends with. */
static const uint8_t across_order[LANES] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

/* nt tokens of a tile against ACROSS_ROWS rows, of which the first n are stored. */
INLINE void across_tile(const int nt, const float *transposed, const float *room, size_t slice, size_t padded,
                        uint32_t n, float *y, size_t y_stride)
{
    _Alignas(LINE) float waits[ACROSS_WAITS][ACROSS_VECTORS * ACROSS_TOKENS][LANES];
    lanes sums[ACROSS_VECTORS * ACROSS_TOKENS];
    const size_t steps = padded / LANES;
    for (uint32_t place = 0; place < LANES; place++) {
        const float *x = transposed + across_order[place] * steps * (size_t)nt,
                    *w = room + across_order[place] * slice;
        UNROLL
        for (int i = 0; i < nt * ACROSS_VECTORS; i++)
            sums[i] = lanes_zero();
        for (size_t step = 0; step < steps; step++, x += nt, w += ACROSS_ROWS) {
            lanes weights[ACROSS_VECTORS];
            UNROLL
            for (int v = 0; v < ACROSS_VECTORS; v++) {
                weights[v] = loaded(w + v * LANES);
            }
            UNROLL
            for (int t = 0; t < nt; t++) {
                const lanes token = lanes_set(x[t]);
                UNROLL
                for (int v = 0; v < ACROSS_VECTORS; v++)
                    sums[t * ACROSS_VECTORS + v] = lanes_fma(token, weights[v], sums[t * ACROSS_VECTORS + v]);
            }
        }
        uint32_t level = 0;
        for (uint32_t ones = place; ones % 2 == 1; ones /= 2, level++) {
            UNROLL
            for (int i = 0; i < nt * ACROSS_VECTORS; i++)
                sums[i] = lanes_add(lanes_load(waits[level][i]), sums[i]);
        }
        if (level < ACROSS_WAITS) {
            UNROLL
            for (int i = 0; i < nt * ACROSS_VECTORS; i++)
                lanes_store(waits[level][i], sums[i]);
        }
    }
    UNROLL
    for (int i = 0; i < nt * ACROSS_VECTORS; i++) {
        const uint32_t row = (uint32_t)(i % ACROSS_VECTORS * LANES);
        float *to = y + (size_t)(i / ACROSS_VECTORS) * y_stride + row;
        if (n >= row + LANES)
            lanes_store(to, sums[i]);
        else if (n > row)
            lanes_store_some(to, n - row, sums[i]);
    }
}

#define ACROSS_TILE(nt)                                                                                      \
    static NEVER_INLINE void across_tile_##nt(const float *transposed, const float *room, size_t slice,      \
                                              size_t padded, uint32_t n, float *y, size_t y_stride)          \
    {                                                                                                        \
        across_tile(nt, transposed, room, slice, padded, n, y, y_stride);                                    \
    }
ACROSS_TILE(10)
ACROSS_TILE(11)
ACROSS_TILE(12)
ACROSS_TILE(13)

/* A tile of n_tok tokens against ACROSS_ROWS rows, of which the first n are stored. */
static void any_tile(uint32_t n_tok, const float *transposed, const float *room, size_t slice, size_t padded,
                     uint32_t n, float *y, size_t y_stride)
{
    typedef void tile_body(const float *, const float *, size_t, size_t, uint32_t, float *, size_t);
    static tile_body *const tiles[] = {across_tile_10, across_tile_11, across_tile_12, across_tile_13};
    tiles[n_tok - ACROSS_LEAST](transposed, room, slice, padded, n, y, y_stride);
}

static void dot_transposed(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                           const float *transposed, uint32_t n_tok, float *room, float *y, size_t y_stride)
{
    const size_t padded = moec_lanes_padded(matrix->columns), slice = slice_floats(padded);
    const uint32_t n_tiles = tiles_of(n_tok), at_once = moec_transposed_rows(n_tok);
    struct decoding decoding = decoding_of(matrix, first, n_rows, ACROSS_ROWS);
    for (uint32_t r = 0; r < n_rows; r += at_once) {
        const uint32_t n = n_rows - r < at_once ? n_rows - r : at_once;
        for (uint32_t i = 0; i < n; i += ACROSS_ROWS)
            decode_across(&decoding, r + i, n - i < ACROSS_ROWS ? n - i : ACROSS_ROWS, slice,
                          room + i / ACROSS_ROWS * LANES * slice);
        for (uint32_t tile = 0; tile < n_tiles; tile++) {
            const uint32_t begin = tile_start(n_tok, n_tiles, tile),
                           end = tile_start(n_tok, n_tiles, tile + 1);
            for (uint32_t i = 0; i < n; i += ACROSS_ROWS)
                any_tile(end - begin, transposed + begin * padded, room + i / ACROSS_ROWS * LANES * slice,
                         slice, padded, n - i, y + begin * y_stride + r + i, y_stride);
        }
    }
}

#endif
