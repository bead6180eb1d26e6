/* Products of rows with tiles of tokens by the matrices of 64-bit ARM: part of
 * runtime/kernels/int8/int8_tiles_lanes.h. One instruction multiplies two rows with two tokens over eight codes.
 */
#ifndef MOEC_RUNTIME_KERNELS_INT8_TILES_I8MM_H
#define MOEC_RUNTIME_KERNELS_INT8_TILES_I8MM_H

#define PAIRS 4 /* of rows, and of tokens, whose sums registers hold */
_Static_assert(ROWS_OF_TILE == 2 * PAIRS && MOEC_LANES == 4 * PAIRS, "two passes over the tokens of a tile");

INLINE int32x4_t lower_pairs(int32x4_t a, int32x4_t b)
{
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

INLINE int32x4_t upper_pairs(int32x4_t a, int32x4_t b)
{
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

INLINE int32x4_t matrix_product(int32x4_t sums, uint8x16_t codes, int32x4_t q)
{
    return vusmmlaq_s32(sums, codes, vreinterpretq_s8_s32(q));
}

/* Eight codes, number i of a span, of each of eight tokens from `first` on. */
INLINE void tokens_at(const struct moec_int8_tile *x, int i, int first, int32x4_t tokens[PAIRS])
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        const int32x4_t low = vreinterpretq_s32_s8(vld1q_s8(x->q[2 * i][first + 4 * h]));
        const int32x4_t high = vreinterpretq_s32_s8(vld1q_s8(x->q[2 * i + 1][first + 4 * h]));
        tokens[2 * h] = vzip1q_s32(low, high);
        tokens[2 * h + 1] = vzip2q_s32(low, high);
    }
}

/* products[i] += those of blocks [from, to) of row i's codes with a tile. */
INLINE void blocks_product(const int dtype, const uint8_t codes[ROWS_OF_TILE][SPAN],
                           const struct moec_int8_tile *x, int from, int to, words products[ROWS_OF_TILE])
{
    (void)dtype;
    UNROLL
    for (int half = 0; half < 2; half++) {
        int32x4_t sums[PAIRS][PAIRS], tokens[PAIRS];
        UNROLL
        for (int r = 0; r < PAIRS; r++) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                const int32x4_t row = products[2 * r].of[2 * half + h];
                const int32x4_t next = products[2 * r + 1].of[2 * half + h];
                sums[r][2 * h] = lower_pairs(row, next);
                sums[r][2 * h + 1] = upper_pairs(row, next);
            }
        }
        for (int i = BLOCK / 8 * from; i < BLOCK / 8 * to; i++) {
            tokens_at(x, i, 2 * PAIRS * half, tokens);
            UNROLL
            for (int r = 0; r < PAIRS; r++) {
                const uint8x16_t rows =
                    vcombine_u8(vld1_u8(codes[2 * r] + 8 * i), vld1_u8(codes[2 * r + 1] + 8 * i));
                UNROLL
                for (int t = 0; t < PAIRS; t++)
                    sums[r][t] = matrix_product(sums[r][t], rows, tokens[t]);
            }
        }
        UNROLL
        for (int r = 0; r < PAIRS; r++) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                products[2 * r].of[2 * half + h] = lower_pairs(sums[r][2 * h], sums[r][2 * h + 1]);
                products[2 * r + 1].of[2 * half + h] = upper_pairs(sums[r][2 * h], sums[r][2 * h + 1]);
            }
        }
    }
}

#endif
