/* Rows of shift codes (formats/codec/shift.h) SET_BLOCKS blocks at a time, where that is not 0, and the choice among
 * codes that are a path: part of runtime/kernels/canonical/kernels_lanes.h, which says what a set defines. */
#ifndef MOEC_RUNTIME_KERNELS_SHIFT_H
#define MOEC_RUNTIME_KERNELS_SHIFT_H

#include "runtime/kernels/canonical/kernels_rows.h"
#include "runtime/kernels/canonical/kernels_trellis.h"

#if SET_BLOCKS > 0

#define STRETCH       (SET_BLOCKS * BLOCK) /* weights that are decoded at once */
#define STRETCH_LANES (2 * SET_BLOCKS)

/* Rows at work, and those whose turn comes later. */
struct shift_rows {
    const uint8_t *at[ROWS_AT_ONCE], *later[ROWS_AT_ONCE];
    float scales[ROWS_AT_ONCE];
    struct decoder decoders[ROWS_AT_ONCE];
};

/* Row number r at work; false where its scale is not finite and above 0. */
INLINE bool shift_row_open(const uint32_t bits, const struct moec_matrix *matrix, uint32_t row, const int r,
                           struct shift_rows *rows)
{
    const uint8_t *at = row_at(matrix, row);
    const float scale = f16_at(at + trellis_blocks(matrix) * moec_shift_block_bytes(bits));
    rows->at[r] = at;
    rows->scales[r] = scale;
    rows->decoders[r] = shift_decoder(scale);
    return scale > 0 && scale < INFINITY;
}

/* Rows number i, i + gap and on of those chosen; the last stands for missing ones. */
INLINE bool shift_rows_open(const uint32_t bits, const struct moec_matrix *matrix,
                            const struct chosen *chosen, uint32_t i, uint32_t gap, uint32_t ahead,
                            struct shift_rows *rows)
{
    const uint32_t last = chosen->n - 1, later = stream_later(chosen, i, gap, ahead);
    bool is_regular = true;
    UNROLL
    for (int r = 0; r < ROWS_AT_ONCE; r++) {
        const uint32_t at = i + (uint32_t)r * gap;
        if (!shift_row_open(bits, matrix, chosen_row(chosen, at < last ? at : last), r, rows))
            is_regular = false;
        rows->later[r] = row_at(matrix, stream_row(chosen, matrix->rows, later + (uint32_t)r * gap));
    }
    return is_regular;
}

/* The block of row r that begins at column `at`, zeros past the row's end. */
INLINE void shift_last_block(const uint32_t bits, const struct moec_matrix *matrix,
                             const struct shift_rows *rows, const int r, size_t at, lanes w[2])
{
    const uint8_t *block = rows->at[r] + at / BLOCK * moec_shift_block_bytes(bits);
    shift_block(bits, rows->scales[r], block, at > 0 ? block - BEFORE : nothing_before, w);
    if (matrix->columns - at < BLOCK)
        keep_tail(matrix->columns - at, w);
}

/* Each line of a row once. */
INLINE bool begins_line(const uint32_t bits, size_t offset)
{
    return offset % LINE < SET_BLOCKS * moec_shift_block_bytes(bits);
}

/* Rows number i, i + gap and on of those chosen, n of them, against x. */
INLINE void shift_dot_rows(const uint32_t bits, const struct moec_matrix *matrix, const struct chosen *chosen,
                           uint32_t i, uint32_t gap, uint32_t n, const float *x, float *y)
{
    const size_t stretches = matrix->columns / STRETCH;
    const uint32_t ahead = STREAM_BYTES / (uint32_t)(matrix->stride_bytes + 1) + 1;
    struct shift_rows rows;
    lanes sums[CODE_ROWS], w[2];
    if (!shift_rows_open(bits, matrix, chosen, i, gap, ahead, &rows)) {
        for (uint32_t r = i; n > 0; r += gap, n--)
            trellis_dot_rows(SHIFT + (int)bits, 1, matrix, chosen_row(chosen, r), x, y + r);
        return;
    }
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++)
        sums[r] = lanes_zero();
    size_t o = 0;
    for (size_t p = 0; p < stretches; p++, o += SET_BLOCKS * moec_shift_block_bytes(bits)) {
        if (begins_line(bits, o)) {
            UNROLL
            for (int r = 0; r < ROWS_AT_ONCE; r++)
                ask_line_soon(rows.later[r] + o);
        }
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            const struct shift_levels levels = shift_open(bits, rows.at[r] + o, p == 0);
            UNROLL
            for (int k = 0; k < STRETCH_LANES; k++)
                sums[r] = lanes_fma(lanes_load(x + p * STRETCH + k * LANES),
                                    shift_lanes(&levels, k, &rows.decoders[r]), sums[r]);
        }
    }
    for (size_t at = stretches * STRETCH; at < matrix->columns; at += BLOCK) {
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            shift_last_block(bits, matrix, &rows, r, at, w);
            sums[r] = lanes_fma(lanes_load(x + at), w[0], sums[r]);
            if (matrix->columns - at > LANES)
                sums[r] = lanes_fma(lanes_load(x + at + LANES), w[1], sums[r]);
        }
    }
    float all[CODE_ROWS];
    lanes_sum_rows(sums, all);
    for (uint32_t r = 0; r < n; r++)
        y[i + r * gap] = all[r];
}

INLINE void shift_dot(const uint32_t bits, const struct moec_matrix *matrix, const struct chosen *chosen,
                      const float *x, float *y)
{
    const uint32_t gap = chosen->n / ROWS_AT_ONCE, left = chosen->n % ROWS_AT_ONCE;
    for (uint32_t i = 0; i < gap; i++)
        shift_dot_rows(bits, matrix, chosen, i, gap, ROWS_AT_ONCE, x, y);
    if (left > 0)
        shift_dot_rows(bits, matrix, chosen, gap * ROWS_AT_ONCE, 1, left, x, y);
}

/* y += h[r] * row number i + r of those chosen for ROWS_AT_ONCE rows in order; the sums start at 0 when `fresh`. */
INLINE void shift_sum_rows(const uint32_t bits, const struct moec_matrix *matrix, const struct chosen *chosen,
                           uint32_t i, const float *h, bool fresh, float *y)
{
    const size_t stretches = matrix->columns / STRETCH;
    const uint32_t ahead = AHEAD_BYTES / (uint32_t)(matrix->stride_bytes + 1) + ROWS_AT_ONCE;
    struct shift_rows rows;
    lanes factors[ROWS_AT_ONCE], sums[STRETCH_LANES], w[2];
    if (!shift_rows_open(bits, matrix, chosen, i, 1, ahead, &rows)) {
        for (uint32_t r = 0; r < ROWS_AT_ONCE; r++)
            trellis_sum_rows(SHIFT + (int)bits, 1, matrix, chosen_row(chosen, i + r), h + r, fresh && r == 0,
                             y);
        return;
    }
    UNROLL
    for (int r = 0; r < ROWS_AT_ONCE; r++)
        factors[r] = lanes_set(h[r]);
    size_t o = 0;
    for (size_t p = 0; p < stretches; p++, o += SET_BLOCKS * moec_shift_block_bytes(bits), y += STRETCH) {
        if (begins_line(bits, o)) {
            UNROLL
            for (int r = 0; r < ROWS_AT_ONCE; r++)
                ask_line(rows.later[r] + o);
        }
        UNROLL
        for (int k = 0; k < STRETCH_LANES; k++)
            sums[k] = fresh ? lanes_zero() : lanes_load(y + k * LANES);
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            const struct shift_levels levels = shift_open(bits, rows.at[r] + o, p == 0);
            UNROLL
            for (int k = 0; k < STRETCH_LANES; k++)
                sums[k] = lanes_fma(factors[r], shift_lanes(&levels, k, &rows.decoders[r]), sums[k]);
        }
        UNROLL
        for (int k = 0; k < STRETCH_LANES; k++)
            lanes_store(y + k * LANES, sums[k]);
    }
    for (size_t at = stretches * STRETCH; at < matrix->columns; at += BLOCK, y += BLOCK) {
        const size_t left = matrix->columns - at, n = left < BLOCK ? left : BLOCK;
        float last[BLOCK] = {0};
        if (!fresh)
            memcpy(last, y, n * sizeof *y);
        UNROLL
        for (int r = 0; r < ROWS_AT_ONCE; r++) {
            shift_last_block(bits, matrix, &rows, r, at, w);
            lanes_store(last, lanes_fma(factors[r], w[0], lanes_load(last)));
            lanes_store(last + LANES, lanes_fma(factors[r], w[1], lanes_load(last + LANES)));
        }
        memcpy(y, last, n * sizeof *y);
    }
}

INLINE void shift_sum(const uint32_t bits, const struct moec_matrix *matrix, const struct chosen *chosen,
                      const float *h, float *y)
{
    uint32_t i = 0;
    if (chosen->n == 0)
        memset(y, 0, matrix->columns * sizeof *y);
    for (; chosen->n - i >= ROWS_AT_ONCE; i += ROWS_AT_ONCE)
        shift_sum_rows(bits, matrix, chosen, i, h + i, i == 0, y);
    for (; i < chosen->n; i++)
        trellis_sum_rows(SHIFT + (int)bits, 1, matrix, chosen_row(chosen, i), h + i, i == 0, y);
}

INLINE void shift_decode_rows(const uint32_t bits, const struct moec_matrix *matrix, uint32_t first,
                              uint32_t n_rows, float *out, size_t stride)
{
    const size_t stretches = matrix->columns / STRETCH;
    for (uint32_t i = 0; i < n_rows; i++, out += stride) {
        struct shift_rows rows;
        lanes w[2];
        if (!shift_row_open(bits, matrix, first + i, 0, &rows)) {
            path_decode_rows(SHIFT + (int)bits, matrix, first + i, 1, out, stride);
            continue;
        }
        for (size_t p = 0; p < stretches; p++) {
            const struct shift_levels levels =
                shift_open(bits, rows.at[0] + p * SET_BLOCKS * moec_shift_block_bytes(bits), p == 0);
            UNROLL
            for (int k = 0; k < STRETCH_LANES; k++)
                lanes_store(out + p * STRETCH + k * LANES, shift_lanes(&levels, k, &rows.decoders[0]));
        }
        for (size_t at = stretches * STRETCH; at < matrix->columns; at += BLOCK) {
            shift_last_block(bits, matrix, &rows, 0, at, w);
            lanes_store(out + at, w[0]);
            if (matrix->columns - at > LANES)
                lanes_store(out + at + LANES, w[1]);
        }
    }
}

#endif

/* ---- by path ---- */

INLINE void path_dot_chosen(const int path, const struct moec_matrix *matrix, const struct chosen *chosen,
                            const float *x, float *y)
{
#if SET_BLOCKS > 0
    if (path != TRELLIS) {
        shift_dot((uint32_t)(path - SHIFT), matrix, chosen, x, y);
        return;
    }
#endif
    if (chosen->some == NULL)
        path_dot(path, matrix, chosen->first, chosen->n, x, y);
    for (uint32_t i = 0; chosen->some != NULL && i < chosen->n; i++)
        trellis_dot_rows(path, 1, matrix, chosen_row(chosen, i), x, y + i);
}

INLINE void path_sum_chosen(const int path, const struct moec_matrix *matrix, const struct chosen *chosen,
                            const float *h, float *y)
{
#if SET_BLOCKS > 0
    if (path != TRELLIS) {
        shift_sum((uint32_t)(path - SHIFT), matrix, chosen, h, y);
        return;
    }
#endif
    if (chosen->some == NULL)
        path_sum(path, matrix, chosen->first, chosen->n, h, y);
    for (uint32_t i = 0; chosen->some != NULL && i < chosen->n; i++)
        trellis_sum_rows(path, 1, matrix, chosen_row(chosen, i), h + i, i == 0, y);
}

INLINE void path_decode_any(const int path, const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                            float *out, size_t stride)
{
#if SET_BLOCKS > 0
    if (path != TRELLIS) {
        shift_decode_rows((uint32_t)(path - SHIFT), matrix, first, n_rows, out, stride);
        return;
    }
#endif
    path_decode_rows(path, matrix, first, n_rows, out, stride);
}

#define OF_PATH(name, path, ...)                                                                             \
    case path:                                                                                               \
        name(path, __VA_ARGS__);                                                                             \
        break;
#define WITH_PATH(name, ...)                                                                                 \
    switch (path_of(matrix->codec)) {                                                                        \
        OF_PATH(name, TRELLIS, __VA_ARGS__)                                                                  \
        OF_PATH(name, SHIFT + 2, __VA_ARGS__)                                                                \
        OF_PATH(name, SHIFT + 3, __VA_ARGS__)                                                                \
        OF_PATH(name, SHIFT + 4, __VA_ARGS__)                                                                \
    default:                                                                                                 \
        break;                                                                                               \
    }

static void trellis_decode_rows(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, float *out,
                                size_t stride)
{
    WITH_PATH(path_decode_any, matrix, first, n_rows, out, stride)
}

static void trellis_dot(const struct moec_matrix *matrix, const struct chosen *chosen, const float *x,
                        float *y)
{
    WITH_PATH(path_dot_chosen, matrix, chosen, x, y)
}

static void trellis_sum(const struct moec_matrix *matrix, const struct chosen *chosen, const float *h,
                        float *y)
{
    WITH_PATH(path_sum_chosen, matrix, chosen, h, y)
}

#endif
