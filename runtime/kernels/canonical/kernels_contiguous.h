/* One token against short rows that follow each other, of the kernels that are written once for all vector
 * instruction sets. Where rows are short, what is prepared for them counts as much as their products: so all
 * scales of CODE_ROWS rows are converted at once, two addresses and a distance, which stay in registers, tell
 * where these rows are, and their sums go down the tree together. Part of runtime/kernels/canonical/kernels_encoded.h.
 */
#ifndef MOEC_RUNTIME_KERNELS_CONTIGUOUS_H
#define MOEC_RUNTIME_KERNELS_CONTIGUOUS_H

#include "runtime/kernels/canonical/kernels_rows.h"

#if SET_CONTIGUOUS

#define CONTIGUOUS_BYTES 1024 /* of a row at most */
#define CONTIGUOUS_AHEAD                                                                                     \
    4096 /* bytes from a row to what is asked for beside it: rows lie behind one another */

/* Where CODE_ROWS rows are: in registers. */
struct contiguous {
    const uint8_t *low, *high; /* the first of them, and the first of their second half */
    size_t stride;
    const uint8_t *ask; /* the line that is asked for next */
    uint32_t lines;     /* asked for with each block */
};

/* What the codes of their groups are decoded with. */
struct contiguous_groups {
    float scales[CODE_ROWS][STRIP], origins[CODE_ROWS][STRIP];
};

INLINE bool rows_are_contiguous(const int dtype, const struct moec_matrix *matrix,
                                const struct layout *layout, const struct chosen *chosen)
{
    return !dtype_is_float(dtype) && !(dtype & DICTIONARY) && chosen->some == NULL && layout->tail == 0 &&
           layout->groups <= STRIP && matrix->stride_bytes <= CONTIGUOUS_BYTES;
}

INLINE struct contiguous contiguous_at(const struct moec_matrix *matrix, const struct layout *layout,
                                       uint32_t row)
{
    const uint8_t *low = row_at(matrix, row);
    const size_t stride = matrix->stride_bytes;
    return (struct contiguous){
        .low = low,
        .high = low + CODE_ROWS / 2 * stride,
        .stride = stride,
        .ask = low + CONTIGUOUS_AHEAD,
        .lines = (uint32_t)((CODE_ROWS * stride / LINE + layout->blocks - 1) / layout->blocks)};
}

INLINE void contiguous_convert(const int dtype, const struct layout *layout,
                               const struct contiguous *contiguous, struct contiguous_groups *groups)
{
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++) {
        const uint8_t *row = contiguous->low + (size_t)r * contiguous->stride;
        row_convert(dtype, layout, row, row_factor(dtype, layout, row), 0, layout->groups, groups->scales[r],
                    groups->origins[r]);
    }
}

/* Asks for a block's share of what lies ahead. The compiler is kept from making an address of each row of
 * the three numbers, which would not find registers. */
INLINE void contiguous_ask(struct contiguous *contiguous)
{
    __asm__("" : "+r"(contiguous->low), "+r"(contiguous->high), "+r"(contiguous->stride));
    for (uint32_t i = 0; i < contiguous->lines; i++, contiguous->ask += LINE)
        ask_line(contiguous->ask);
}

/* The block of row r that is at work. */
INLINE const uint8_t *contiguous_block(const struct contiguous *contiguous, const int r)
{
    return r < CODE_ROWS / 2 ? contiguous->low + (size_t)r * contiguous->stride
                             : contiguous->high + (size_t)(r - CODE_ROWS / 2) * contiguous->stride;
}

INLINE void contiguous_go_on(const int dtype, struct contiguous *contiguous)
{
    contiguous->low += block_bytes(dtype);
    contiguous->high += block_bytes(dtype);
}

INLINE struct decoder contiguous_decoder(const int dtype, const struct layout *layout,
                                         const struct contiguous_groups *groups, const int r, size_t g)
{
    return strip_decoder(dtype, layout, groups->scales[r], groups->origins[r], g);
}

/* Whether each block has a decoder of its own, which is then made where it is used. */
INLINE bool blocks_are_groups(const struct layout *layout)
{
    return layout->per_group == 1 && layout->symmetric;
}

INLINE void contiguous_dot_blocks(const int dtype, const bool lone, const struct layout *layout,
                                  struct contiguous contiguous, const struct contiguous_groups *groups,
                                  const float *x, float *y)
{
    struct decoder decoders[CODE_ROWS][2];
    lanes sums[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++)
        sums[r] = lanes_zero();
    for (size_t left = layout->blocks, g = 0, n; left > 0; g++) {
        UNROLL
        for (int r = 0; r < CODE_ROWS && !lone; r++)
            decoders[r][0] = contiguous_decoder(dtype, layout, groups, r, g);
        n = lone ? 1 : left < layout->per_group ? left : layout->per_group;
        left -= n;
        do {
            const lanes x0 = lanes_load(x), x1 = lanes_load(x + LANES);
            contiguous_ask(&contiguous);
            UNROLL
            for (int r = 0; r < CODE_ROWS; r++) {
                if (lone)
                    decoders[r][0] = contiguous_decoder(dtype, layout, groups, r, g);
                decode_block(dtype, contiguous_block(&contiguous, r), decoders[r], w);
                sums[r] = lanes_fma(x0, w[0], sums[r]);
                sums[r] = lanes_fma(x1, w[1], sums[r]);
            }
            contiguous_go_on(dtype, &contiguous);
            x += BLOCK;
        } while (--n > 0);
    }
    lanes_sum_rows(sums, y);
}

INLINE void contiguous_sum_blocks(const int dtype, const bool lone, const struct layout *layout,
                                  struct contiguous contiguous, const struct contiguous_groups *groups,
                                  const float *h, bool fresh, float *y)
{
    struct decoder decoders[CODE_ROWS][2];
    lanes factors[CODE_ROWS], w[2];
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++)
        factors[r] = lanes_set(h[r]);
    for (size_t left = layout->blocks, g = 0, n; left > 0; g++) {
        UNROLL
        for (int r = 0; r < CODE_ROWS && !lone; r++)
            decoders[r][0] = contiguous_decoder(dtype, layout, groups, r, g);
        n = lone ? 1 : left < layout->per_group ? left : layout->per_group;
        left -= n;
        do {
            lanes sum0 = fresh ? lanes_zero() : lanes_load(y);
            lanes sum1 = fresh ? lanes_zero() : lanes_load(y + LANES);
            contiguous_ask(&contiguous);
            UNROLL
            for (int r = 0; r < CODE_ROWS; r++) {
                if (lone)
                    decoders[r][0] = contiguous_decoder(dtype, layout, groups, r, g);
                decode_block(dtype, contiguous_block(&contiguous, r), decoders[r], w);
                sum0 = lanes_fma(factors[r], w[0], sum0);
                sum1 = lanes_fma(factors[r], w[1], sum1);
            }
            lanes_store(y, sum0);
            lanes_store(y + LANES, sum1);
            contiguous_go_on(dtype, &contiguous);
            y += BLOCK;
        } while (--n > 0);
    }
}

/* dot_rows of CODE_ROWS rows where they are near; false where they are not. */
INLINE bool contiguous_dot(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                           const struct chosen *chosen, uint32_t i, const float *x, float *y)
{
    struct contiguous_groups groups;
    if (!rows_are_contiguous(dtype, matrix, layout, chosen))
        return false;
    const struct contiguous contiguous = contiguous_at(matrix, layout, chosen->first + i);
    contiguous_convert(dtype, layout, &contiguous, &groups);
    if (blocks_are_groups(layout))
        contiguous_dot_blocks(dtype, true, layout, contiguous, &groups, x, y);
    else
        contiguous_dot_blocks(dtype, false, layout, contiguous, &groups, x, y);
    return true;
}

/* sum_rows of CODE_ROWS regular rows where they are near; false where they are not. */
INLINE bool contiguous_sum(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                           const struct chosen *chosen, uint32_t i, const float *h, float *y)
{
    struct contiguous_groups groups;
    if (!rows_are_contiguous(dtype, matrix, layout, chosen))
        return false;
    const struct contiguous contiguous = contiguous_at(matrix, layout, chosen->first + i);
    contiguous_convert(dtype, layout, &contiguous, &groups);
    if (blocks_are_groups(layout))
        contiguous_sum_blocks(dtype, true, layout, contiguous, &groups, h + i, i == 0, y);
    else
        contiguous_sum_blocks(dtype, false, layout, contiguous, &groups, h + i, i == 0, y);
    return true;
}

#else

INLINE bool contiguous_dot(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                           const struct chosen *chosen, uint32_t i, const float *x, float *y)
{
    (void)dtype, (void)matrix, (void)layout, (void)chosen, (void)i, (void)x, (void)y;
    return false;
}

INLINE bool contiguous_sum(const int dtype, const struct moec_matrix *matrix, const struct layout *layout,
                           const struct chosen *chosen, uint32_t i, const float *h, float *y)
{
    return contiguous_dot(dtype, matrix, layout, chosen, i, h, y);
}

#endif

#endif
