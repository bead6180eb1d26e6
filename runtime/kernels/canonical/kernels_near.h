/* One token against short rows that follow each other, of the kernels that are written once for all vector
 * instruction sets. Where rows are short, what is prepared for them counts as much as their products: so all
 * scales of CODE_ROWS rows are converted at once, two addresses and a distance, which stay in registers, tell
 * where these rows are, and their sums go down the tree together. Part of runtime/kernels/canonical/kernels_encoded.h.
 */
#ifndef MOEC_RUNTIME_KERNELS_NEAR_H
#define MOEC_RUNTIME_KERNELS_NEAR_H

#include "runtime/kernels/canonical/kernels_rows.h"

#if SET_NEAR

#define NEAR_BYTES 1024 /* of a row at most */
#define NEAR_AHEAD 4096 /* bytes from a row to what is asked for beside it: rows lie behind one another */

/* Where CODE_ROWS rows are: in registers. */
struct near {
    const uint8_t *low, *high; /* the first of them, and the first of their second half */
    size_t stride;
    const uint8_t *ask; /* the line that is asked for next */
    uint32_t lines;     /* asked for with each block */
};

/* What the codes of their groups are decoded with. */
struct near_groups {
    float scales[CODE_ROWS][STRIP], origins[CODE_ROWS][STRIP];
};

INLINE bool rows_are_near(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                          const struct chosen *chosen)
{
    return !dtype_is_float(dtype) && !(dtype & DICTIONARY) && chosen->some == NULL && layout->tail == 0 &&
           layout->groups <= STRIP && matrix->stride_bytes <= NEAR_BYTES;
}

INLINE struct near near_at(const struct moec_matrix *matrix, const struct layout *layout, uint32_t row)
{
    const uint8_t *low = row_at(matrix, row);
    const size_t stride = matrix->stride_bytes;
    return (struct near){.low = low,
                         .high = low + CODE_ROWS / 2 * stride,
                         .stride = stride,
                         .ask = low + NEAR_AHEAD,
                         .lines =
                             (uint32_t)((CODE_ROWS * stride / LINE + layout->blocks - 1) / layout->blocks)};
}

INLINE void near_convert(const int dtype, const struct layout *layout, const struct near *near,
                         struct near_groups *groups)
{
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++) {
        const uint8_t *row = near->low + (size_t)r * near->stride;
        row_convert(dtype, layout, row, row_factor(dtype, layout, row), 0, layout->groups, groups->scales[r],
                    groups->origins[r]);
    }
}

/* Asks for a block's share of what lies ahead. The compiler is kept from making an address of each row of
 * the three numbers, which would not find registers. */
INLINE void near_ask(struct near *near)
{
    __asm__("" : "+r"(near->low), "+r"(near->high), "+r"(near->stride));
    for (uint32_t i = 0; i < near->lines; i++, near->ask += LINE)
        ask_line(near->ask);
}

/* The block of row r that is at work. */
INLINE const uint8_t *near_block(const struct near *near, const int r)
{
    return r < CODE_ROWS / 2 ? near->low + (size_t)r * near->stride
                             : near->high + (size_t)(r - CODE_ROWS / 2) * near->stride;
}

INLINE void near_go_on(const int dtype, struct near *near)
{
    near->low += block_bytes(dtype);
    near->high += block_bytes(dtype);
}

INLINE struct decoder near_decoder(const int dtype, const struct layout *layout,
                                   const struct near_groups *groups, const int r, size_t g)
{
    return strip_decoder(dtype, layout, groups->scales[r], groups->origins[r], g);
}

/* Whether each block has a decoder of its own, which is then made where it is used. */
INLINE bool blocks_are_groups(const struct layout *layout)
{
    return layout->per_group == 1 && layout->symmetric;
}

INLINE void near_dot_blocks(const int dtype, const bool lone, const struct layout *layout, struct near near,
                            const struct near_groups *groups, const float *x, float *y)
{
    struct decoder decoders[CODE_ROWS][2];
    lanes sums[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++)
        sums[r] = lanes_zero();
    for (size_t left = layout->blocks, g = 0, n; left > 0; g++) {
        UNROLL
        for (int r = 0; r < CODE_ROWS && !lone; r++)
            decoders[r][0] = near_decoder(dtype, layout, groups, r, g);
        n = lone ? 1 : left < layout->per_group ? left : layout->per_group;
        left -= n;
        do {
            const lanes x0 = lanes_load(x), x1 = lanes_load(x + LANES);
            near_ask(&near);
            UNROLL
            for (int r = 0; r < CODE_ROWS; r++) {
                if (lone)
                    decoders[r][0] = near_decoder(dtype, layout, groups, r, g);
                decode_block(dtype, near_block(&near, r), decoders[r], w);
                sums[r] = lanes_fma(x0, w[0], sums[r]);
                sums[r] = lanes_fma(x1, w[1], sums[r]);
            }
            near_go_on(dtype, &near);
            x += BLOCK;
        } while (--n > 0);
    }
    lanes_sum_rows(sums, y);
}

INLINE void near_sum_blocks(const int dtype, const bool lone, const struct layout *layout, struct near near,
                            const struct near_groups *groups, const float *h, bool fresh, float *y)
{
    struct decoder decoders[CODE_ROWS][2];
    lanes factors[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++)
        factors[r] = lanes_set(h[r]);
    for (size_t left = layout->blocks, g = 0, n; left > 0; g++) {
        UNROLL
        for (int r = 0; r < CODE_ROWS && !lone; r++)
            decoders[r][0] = near_decoder(dtype, layout, groups, r, g);
        n = lone ? 1 : left < layout->per_group ? left : layout->per_group;
        left -= n;
        do {
            lanes sum0 = fresh ? lanes_zero() : lanes_load(y);
            lanes sum1 = fresh ? lanes_zero() : lanes_load(y + LANES);
            near_ask(&near);
            UNROLL
            for (int r = 0; r < CODE_ROWS; r++) {
                if (lone)
                    decoders[r][0] = near_decoder(dtype, layout, groups, r, g);
                decode_block(dtype, near_block(&near, r), decoders[r], w);
                sum0 = lanes_fma(factors[r], w[0], sum0);
                sum1 = lanes_fma(factors[r], w[1], sum1);
            }
            lanes_store(y, sum0);
            lanes_store(y + LANES, sum1);
            near_go_on(dtype, &near);
            y += BLOCK;
        } while (--n > 0);
    }
}

/* dot_rows of CODE_ROWS rows where they are near; false where they are not. */
INLINE bool near_dot(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                     const struct chosen *chosen, uint32_t i, const float *x, float *y)
{
    struct near_groups groups;
    if (!rows_are_near(dtype, matrix, layout, chosen))
        return false;
    const struct near near = near_at(matrix, layout, chosen->first + i);
    near_convert(dtype, layout, &near, &groups);
    if (blocks_are_groups(layout))
        near_dot_blocks(dtype, true, layout, near, &groups, x, y);
    else
        near_dot_blocks(dtype, false, layout, near, &groups, x, y);
    return true;
}

/* sum_rows of CODE_ROWS regular rows where they are near; false where they are not. */
INLINE bool near_sum(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                     const struct chosen *chosen, uint32_t i, const float *h, float *y)
{
    struct near_groups groups;
    if (!rows_are_near(dtype, matrix, layout, chosen))
        return false;
    const struct near near = near_at(matrix, layout, chosen->first + i);
    near_convert(dtype, layout, &near, &groups);
    if (blocks_are_groups(layout))
        near_sum_blocks(dtype, true, layout, near, &groups, h + i, i == 0, y);
    else
        near_sum_blocks(dtype, false, layout, near, &groups, h + i, i == 0, y);
    return true;
}

#else

INLINE bool near_dot(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                     const struct chosen *chosen, uint32_t i, const float *x, float *y)
{
    (void)dtype, (void)matrix, (void)layout, (void)chosen, (void)i, (void)x, (void)y;
    return false;
}

INLINE bool near_sum(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                     const struct chosen *chosen, uint32_t i, const float *h, float *y)
{
    return near_dot(dtype, matrix, layout, chosen, i, h, y);
}

#endif

#endif
