/* The faster arithmetic by name "int8": activations are rounded to INT8 in spans of 128, products with codes
 * are sums of integers. What is rounded is stated here to the bit, so results are the same on every
 * instruction set, for every chunking and thread count, as those of the canonical arithmetic are (D1); they
 * differ from the canonical ones, and a loss or a certificate means one of the two.
 *
 * It serves matrices of evenly spaced codes, one scale for a row or for groups of 32, 64 or 128 weights, and
 * paths (moec_int8_serves); other matrices, norms, routers, attention and sampling stay canonical.
 *
 * Letters as in runtime/kernels/kernels.h. c, s, z: code, scale and zero of a weight, which is (c - z) s. Of
 * a trellis (formats/codec/trellis.h) c - z is MOEC_INT8_TRELLIS_LEVELS[l] for level l, and s the row's scale
 * times MOEC_INT8_TRELLIS_STEP, which is exact: its levels are rounded by 0.3 % at most. Of shift codes
 * (formats/codec/shift.h) c - z is the level and s the row's scale.
 *
 * rounding of v[0..n) (n <= 128):
 *     m = the largest |v[i]|, a NaN being larger than anything
 *     q[i] = v[i] * (127 / m) to the nearest integer, ties to even, within -127..127;
 *            0 when m is at most 2^-120 or NaN
 *     scale = m / 127
 *
 * dot over K: x is rounded in spans of 128. Of group g < G of a span (G = 4, 2 or 1: weights with one scale,
 * at most a span of them)
 *     I[g] = sum over the group's weights i of q[i] (c[i] - z)     an integer, exact
 *     p = fma(F32(I[g]), s[g], p)                                  groups in increasing order, from +0
 *     a = fma(p, scale, a)                                         spans in increasing order, from +0
 *
 * and a is the result. Groups past the row's end have I = 0 and s = 0. One integer becomes a float for each
 * group, so that many tokens take few steps beside the products, which tiles of AMX add up whole.
 *
 * weighted sum over a chunk of N <= MOEC_SUM_CHUNK neurons: for each group of columns the activations are
 * rounded together with their weights' scales, v[n] = h[n] * s[n], and
 *     y[c] = F32(sum over n of q[n] (c[n] - z[n])) * scale
 *
 * Sources: block-wise 8-bit activations with integer products are common to llama.cpp (Q8_0, Q8_K) and to
 * LLM.int8() (Dettmers et al., 2022); rounding h together with the scales of rows is what the layout of down
 * projections asks for (formats/model/record.h). Thread rule: pure functions; nothing allocates. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_H
#define MOEC_RUNTIME_KERNELS_INT8_H

#include "runtime/kernels/kernels.h"

#define MOEC_INT8_SPAN           128
#define MOEC_INT8_TRELLIS_LEVELS -121, -70, -40, -13, 13, 40, 70, 121
#define MOEC_INT8_TRELLIS_STEP                                                                               \
    (4234 * 0x1p-18f)             /* with these integers the nearest to the levels, of 13 bits */
#define MOEC_INT8_SMALL 0x1p-120f /* 127 over this and less is not finite, or nearly so */

/* 128 activations. Both halves of blocks stand together: q[64 h + 16 b + i] is activation 32 b + 16 h + i,
 * as codes of 4 bits come out of their bytes. */
struct moec_int8_span {
    _Alignas(64) int8_t q[MOEC_INT8_SPAN];
    int32_t sums[MOEC_LANES]; /* sums[4 b + r] = the sum of q over block b, for each of four rows r */
    float scale;
};

/* The same of MOEC_LANES tokens side by side: q[i / 4][t][i % 4] is activation i of token t. */
struct moec_int8_tile {
    _Alignas(64) int8_t q[MOEC_INT8_SPAN / 4][MOEC_LANES][4];
    int32_t sums[MOEC_INT8_SPAN / MOEC_CODEC_BLOCK][MOEC_LANES];
    float scales[MOEC_LANES];
};

#define MOEC_INT8_FEW  4  /* tokens for which `dot` takes codes apart once */
#define MOEC_INT8_ROWS 32 /* rows whose codes a product with tiles takes apart at once */

struct moec_int8_kernels {
    /* "scalar", "avx2", "avx2-vnni", "avx512-vnni", "avx512-amx", "neon", "neon-dot", "neon-i8mm" */
    const char *name;

    /* Tokens from which on dot_tiles is faster than dot, at most MOEC_LANES: products are the same. */
    uint32_t many_tokens;

    /* Rounds n activations, n > 0, to moec_int8_spans(n) spans; past the end q is 0. */
    void (*round)(const float *x, size_t n, struct moec_int8_span *spans);

    /* y[t][i] = dot of the spans of x[t] and of row first + i of the matrix, or of row
     * first + some[i] when some is not NULL (rising), for t < n_tok, i < n_rows. */
    void (*dot)(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride);

    /* The same of tokens in tiles, as moec_int8_lay puts them, and of rows first + i. */
    void (*dot_tiles)(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                      const struct moec_int8_tile *x, uint32_t n_tok, float *y, size_t y_stride);

    /* One chunk of a weighted sum over rows first + i, or first + some[i], i < n_rows <= MOEC_SUM_CHUNK,
     * which count h[t][i] times. Overwrites y[t][0..columns). */
    void (*sum_chunk)(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                      const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride);
};

extern const struct moec_int8_kernels moec_int8_kernels_scalar;
/* NULL when this build has no such set. Calling one that the CPU lacks is undefined. */
const struct moec_int8_kernels *moec_int8_kernels_avx2(void);
const struct moec_int8_kernels *moec_int8_kernels_avx2_vnni(void);
const struct moec_int8_kernels *moec_int8_kernels_avx512_vnni(void);
const struct moec_int8_kernels *moec_int8_kernels_avx512_amx(void);
const struct moec_int8_kernels *moec_int8_kernels_neon(void);
const struct moec_int8_kernels *moec_int8_kernels_neon_dot(void);
const struct moec_int8_kernels *moec_int8_kernels_neon_i8mm(void);

/* Puts n_tok tokens of n_spans spans side by side: tiles of token t stand from out[t / MOEC_LANES * n_spans]
 * on, and places of the last ones without a token are zero. */
void moec_int8_lay(const struct moec_int8_span *const *x, uint32_t n_tok, size_t n_spans,
                   struct moec_int8_tile *out);
/* Tiles that n_tok tokens take. */
static inline size_t moec_int8_tiles(uint32_t n_tok, size_t n_spans)
{
    return (n_tok + MOEC_LANES - 1) / MOEC_LANES * n_spans;
}

/* The set that goes with `kernels` on this CPU. */
const struct moec_int8_kernels *moec_int8_kernels_of(const struct moec_kernels *kernels);

/* Whether products with rows of this codec are those above. */
bool moec_int8_serves(struct moec_codec codec);

static inline size_t moec_int8_spans(size_t n)
{
    return (n + MOEC_INT8_SPAN - 1) / MOEC_INT8_SPAN;
}

#endif
