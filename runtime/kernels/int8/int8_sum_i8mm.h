/* Weighted sums of some tokens by the matrices of 64-bit ARM: part of runtime/kernels/int8/int8_sum.h. One
 * instruction multiplies two columns with two tokens over eight neurons. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_SUM_I8MM_H
#define MOEC_RUNTIME_KERNELS_INT8_SUM_I8MM_H

#include "runtime/kernels/int8/int8_tiles.h"

#define EIGHTS (QUADS / 2)

/* Rounded activations, eight of each of two tokens, for a span's groups; those without a token repeat the
 * last one, and those without a neuron are zero. */
struct pairs {
    int32x4_t of[4][EIGHTS][PAIRS];
};

INLINE void pairs_fill(const struct weights *weights, size_t at, uint32_t n_tok, uint32_t quads,
                       const int n_pairs, struct pairs *out)
{
    for (uint32_t n = 0; n < quads; n += 2) {
        UNROLL
        for (uint32_t p = 0; p < (uint32_t)n_pairs; p++) {
            int32x4_t low[2], high[2]; /* of groups 0 and 1, and of 2 and 3 */
            UNROLL
            for (uint32_t t = 0; t < 2; t++) {
                const struct weights *token = weights + (2 * p + t < n_tok ? 2 * p + t : n_tok - 1);
                const int32x4_t first = vld1q_s32(token->quads[n] + at);
                const int32x4_t second = n + 1 < quads ? vld1q_s32(token->quads[n + 1] + at) : vdupq_n_s32(0);
                low[t] = vzip1q_s32(first, second);
                high[t] = vzip2q_s32(first, second);
            }
            out->of[0][n / 2][p] = lower_pairs(low[0], low[1]);
            out->of[1][n / 2][p] = upper_pairs(low[0], low[1]);
            out->of[2][n / 2][p] = lower_pairs(high[0], high[1]);
            out->of[3][n / 2][p] = upper_pairs(high[0], high[1]);
        }
    }
}

/* Columns 4 u .. of both halves of block b. */
INLINE void columns_product(const uint8_t tile[QUADS][8][64], uint32_t quads,
                            const int32x4_t q[EIGHTS][PAIRS], const int n_pairs, const int b, const int u,
                            words out[HELD][8])
{
    int32x4_t sums[2][2][PAIRS]; /* of a half's lower and upper two columns */
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int p = 0; p < n_pairs; p++)
            sums[h][0][p] = sums[h][1][p] = vdupq_n_s32(0);
    }
    for (uint32_t n = 0; n < quads; n += 2) {
        const uint32_t second = n + 1 < quads ? n + 1 : n;
        UNROLL
        for (int h = 0; h < 2; h++) {
            const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(tile[n][4 * h + u] + 16 * b));
            const uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(tile[second][4 * h + u] + 16 * b));
            const uint8x16_t low = vreinterpretq_u8_u32(vzip1q_u32(a, c));
            const uint8x16_t high = vreinterpretq_u8_u32(vzip2q_u32(a, c));
            UNROLL
            for (int p = 0; p < n_pairs; p++) {
                sums[h][0][p] = matrix_product(sums[h][0][p], low, q[n / 2][p]);
                sums[h][1][p] = matrix_product(sums[h][1][p], high, q[n / 2][p]);
            }
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int p = 0; p < n_pairs; p++) {
            out[2 * p][4 * h + u].of[b] = vuzp1q_s32(sums[h][0][p], sums[h][1][p]);
            out[2 * p + 1][4 * h + u].of[b] = vuzp2q_s32(sums[h][0][p], sums[h][1][p]);
        }
    }
}

/* The exact sums of a span for 2 n_pairs tokens. Codes are bytes like any other here, so that one function
 * serves all dtypes. */
#define SPAN_PRODUCT(name, n_pairs)                                                                          \
    static void name(const uint8_t tile[QUADS][8][64], uint32_t quads, int per_span,                         \
                     const struct weights *weights, size_t at, uint32_t n_tok, words out[HELD][8])           \
    {                                                                                                        \
        struct pairs pairs;                                                                                  \
        pairs_fill(weights, at, n_tok, quads, n_pairs, &pairs);                                              \
        for (int b = 0; b < QUARTERS; b++)                                                                   \
            for (int u = 0; u < 4; u++)                                                                      \
                columns_product(tile, quads, pairs.of[b * per_span / QUARTERS], n_pairs, b, u, out);         \
    }
SPAN_PRODUCT(span_product_2, 1)
SPAN_PRODUCT(span_product_4, 2)
SPAN_PRODUCT(span_product_8, 4)

INLINE void span_sums(const int dtype, const struct plan *plan, const uint8_t tile[QUADS][8][64],
                      uint32_t quads, const struct weights *weights, size_t at, size_t s, uint32_t n_tok,
                      float *y, size_t y_stride)
{
    words out[HELD][8];
    (n_tok > 4   ? span_product_8
     : n_tok > 2 ? span_product_4
                 : span_product_2)(tile, quads, plan->per_span, weights, at, n_tok, out);
    for (uint32_t t = 0; t < n_tok; t++)
        sums_finish(dtype, plan, weights + t, at, s, out[t], y + t * y_stride);
}

#endif
