/* Kernels of the canonical arithmetic (D1), one set for each instruction set behind one table.
 *
 * Letters: T tokens, R rows (outputs), K reduction length, N neurons, C columns. All matrices row-major F32
 * unless a struct moec_matrix says otherwise; strides count floats.
 *
 * Every set gives the same bits for the same inputs, whatever T and R are and however a caller cuts them.
 *
 * dot over K: 16 interleaved partial sums, lane = k mod 16, each a chain of fused multiply-adds in increasing
 * k that starts at +0, K padded with zeros to a multiple of 16; then the fixed tree
 *
 *     s[i] = a[i] + a[i + 8]  for i < 8
 *     s[i] = s[i] + s[i + 4]  for i < 4
 *     s[i] = s[i] + s[i + 2]  for i < 2
 *     s[0] + s[1]
 *
 * weighted sum over N (down projection, attention values): for each column a chain of fused multiply-adds in
 * increasing n that starts at +0 within chunks of MOEC_SUM_CHUNK; callers add chunk sums in increasing order.
 *
 * exp is moec's own polynomial, the same operations in every set. Which NaN a NaN result is, is left open.
 *
 * The scalar set (runtime/kernels/canonical/kernels_scalar.c) is the definition. Thread rule: pure functions; outputs
 * must not alias inputs unless a declaration says so. Nothing here allocates. */
#ifndef MOEC_RUNTIME_KERNELS_H
#define MOEC_RUNTIME_KERNELS_H

#include "formats/base/elementary.h"
#include "formats/model/dense.h"

#define MOEC_LANES             16  /* partial sums of a dot product */
#define MOEC_SUM_CHUNK         64  /* neurons or positions in a chunk of a weighted sum */
#define MOEC_FEW_TOKENS        3   /* the most whose weights need never be written decoded */
#define MOEC_TRANSPOSED_TOKENS 48  /* the fewest tokens that are laid */
#define MOEC_TRANSPOSED_ROWS   32  /* rows that these are multiplied with at once */
#define MOEC_TRANSPOSED_MANY   256 /* as many leave the second-level cache: they pass for twice the rows */
#define MOEC_TRANSPOSED_PAD    48  /* floats behind each of their 16 slices: other places of caches */
#define MOEC_F16_MOST          65504.0f              /* the largest F16 */
#define MOEC_INT8_MOST         (127 * MOEC_F16_MOST) /* what a code of 127 stands for at most */

/* Rows of keys or values: those of n_heads heads side by side, each a row of `dim` numbers, a multiple of 32,
 * by itself. */
struct moec_heads {
    const uint8_t *rows;
    size_t stride_bytes; /* from a row to the next */
    uint32_t n_heads, dim;
    uint32_t n_queries;      /* of each head */
    struct moec_codec codec; /* F32, F16, or INT8 as round_int8 makes it */
};

struct moec_kernels {
    const char *name; /* "scalar", "avx2", "avx2-gfni", "avx512", "avx512-vbmi", "neon" */

    /* Decodes rows first..first+n_rows-1 to out[r * stride], each padded with zeros to a multiple of
     * MOEC_LANES (stride >= the padded width). Same values as moec_codec_decode_row. */
    void (*decode_rows)(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, float *out,
                        size_t stride);

    /* y[t][r] = dot(x[t], w[r]) for t < n_tok, r < n_rows. Rows of x and w are readable up to K rounded up to
     * MOEC_LANES, and zero there. Blocked so that large T and R run at the speed of the FMA units. */
    void (*dot)(const float *x, size_t x_stride, uint32_t n_tok, const float *w, size_t w_stride,
                uint32_t n_rows, uint32_t k, float *y, size_t y_stride);

    /* y[r] = dot(x, row first + r) straight from the encoded rows, for one token: decoding is memory-bound,
     * so weights are decoded in registers and never written. Same bits as decode_rows + dot. */
    void (*dot_encoded)(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                        float *y);

    /* y[t][r] = dot(x[t], row first + r) for t < n_tok, n_tok > 0, where weights are decoded once for two or
     * three tokens in registers, for more into the first-level cache. `room` is for n_rows rows of K rounded
     * up to MOEC_LANES; where moec_kernels_decode_parts it is left alone. Same bits as decode_rows + dot. */
    void (*dot_tokens)(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                       size_t x_stride, uint32_t n_tok, float *room, float *y, size_t y_stride);

    /* Many tokens, MOEC_TRANSPOSED_TOKENS at least, laid once as this set's dot_transposed takes them: n_tok *
     * moec_lanes_padded(k) floats, from rows that are zero from k to there. NULL, and dot_transposed too, in sets
     * with too few registers for it: dot_tokens is then best for all. */
    void (*transpose_tokens)(const float *const *rows, uint32_t n_tok, uint32_t k, float *transposed);
    /* dot_tokens of tokens that are laid, where moec_kernels_decode_parts; `room` is for
     * moec_transposed_room_floats of n_rows rows, or of moec_transposed_rows where these are fewer. */
    void (*dot_transposed)(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                           const float *transposed, uint32_t n_tok, float *room, float *y, size_t y_stride);

    /* One chunk of a weighted sum: y[t][c] = sum over n < n_rows of h[t][n] * w[n][c], n_rows <=
     * MOEC_SUM_CHUNK, for c < columns (columns need not be a multiple of anything; w rows are readable to the
     * padded width). Overwrites y. */
    void (*sum_chunk)(const float *h, size_t h_stride, uint32_t n_tok, const float *w, size_t w_stride,
                      uint32_t n_rows, uint32_t columns, float *y, size_t y_stride);

    /* The same for one token straight from encoded rows first..first+n_rows-1. */
    void (*sum_chunk_encoded)(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                              const float *h, float *y);

    /* The same for some tokens, as sum_chunk and dot_tokens; where it `adds`, y[t][c] = y[t][c] + that sum,
     * so that chunks need no pass of their own to be added: `room` is then for MOEC_FEW_TOKENS rows at least,
     * whatever the codec. */
    void (*sum_chunk_tokens)(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                             const float *h, size_t h_stride, uint32_t n_tok, bool adds, float *room,
                             float *y, size_t y_stride);

    /* dot_encoded and sum_chunk_encoded for n <= MOEC_SUM_CHUNK rows first + some[0], first + some[1], ..
     * alone, some[i] rising: y[i] and h[i] are those of row first + some[i], and no other row is read. */
    void (*dot_some)(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                     const float *x, float *y);
    void (*sum_chunk_some)(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                           const float *h, float *y);

    /* y[q][r] = dot(x[q], the numbers of q's head in row r) for r < n_rows and all queries q, those of a head
     * one behind the other: x (n_heads * n_queries, dim). Rows are asked for from memory as if calls for
     * those that follow came next. */
    void (*dot_heads)(const struct moec_heads *heads, uint32_t n_rows, const float *x, float *y,
                      size_t y_stride);
    /* One chunk of a weighted sum of them: y[q][c] = sum over r < n_rows of h[q][r] * the numbers of q's head
     * in row r, n_rows <= MOEC_SUM_CHUNK. Overwrites y (n_heads * n_queries, dim). */
    void (*sum_heads)(const struct moec_heads *heads, uint32_t n_rows, const float *h, size_t h_stride,
                      float *y);

    /* out: x[i] as F16, to the nearest, ties to even, beyond +-65504 to that; a NaN stays one. Two bytes
     * each, which decode_rows reads as codec F16. */
    void (*round_f16)(const float *x, size_t n, uint8_t *out);
    /* out: a row of codec INT8, symmetric, in groups of 32, as moec_codec_encode_row makes it, beyond the
     * range of its scales to the ends of that. A group with a NaN becomes one: its scale is NaN. */
    void (*round_int8)(const float *x, size_t n, uint8_t *out);

    /* Fused multiply-adds in registers alone, n steps of as many chains as keep the units busy: returns how
     * many single ones that were. What products are at most as fast as. */
    uint64_t (*multiply_adds)(uint64_t n);

    /* y[i] = y[i] + x[i]. */
    void (*add)(const float *x, size_t n, float *y);
    /* y[i] = fma(scale, x[i], y[i]). */
    void (*add_scaled)(float scale, const float *x, size_t n, float *y);
    /* out[i] = silu(gate[i]) * up[i], silu(v) = v / (1 + exp(-v)). out may alias gate or up. */
    void (*silu_mul)(const float *gate, const float *up, size_t n, float *out);
    /* out[i] = exp(x[i] - shift), and returns their sum (16 interleaved lanes, same tree as dot). out may
     * alias x. */
    float (*exp_sum)(const float *x, float shift, size_t n, float *out);
    /* max over x; n >= 1. */
    float (*max)(const float *x, size_t n);
    /* out[i] = x[i] * (1 / sqrt(mean(x^2) + eps)) * weight[i]; the sum of squares is a dot. out may alias x.
     */
    void (*rms_norm)(const float *x, const float *weight, float eps, size_t n, float *out);
};

extern const struct moec_kernels moec_kernels_scalar;
/* NULL when this build has no such set (other architecture). Calling one that the CPU lacks is undefined. */
const struct moec_kernels *moec_kernels_avx2(void);
const struct moec_kernels *moec_kernels_avx2_gfni(void);
const struct moec_kernels *moec_kernels_avx512(void);
const struct moec_kernels *moec_kernels_avx512_vbmi(void);
const struct moec_kernels *moec_kernels_neon(void);

/* The best set that this CPU and operating system support (CPUID and XGETBV are asked). */
const struct moec_kernels *moec_kernels_best(void);
/* By name, or "auto" for the best. Errors: MOEC_ERR_USAGE for an unknown name, MOEC_ERR_UNSUPPORTED when this CPU cannot
 * run it. */
MOEC_WARN_UNUSED enum moec_status moec_kernels_find(const char *name, const struct moec_kernels **out,
                                                    struct moec_error *err);

/* Whether rows are decoded in parts, which may begin anywhere. */
static inline bool moec_kernels_decode_parts(struct moec_codec codec)
{
    return !moec_codec_traits(codec)->is_path && moec_codec_traits(codec)->stands_alone;
}

/* K or columns rounded up to MOEC_LANES. */
static inline size_t moec_lanes_padded(size_t n)
{
    return (n + MOEC_LANES - 1) / MOEC_LANES * MOEC_LANES;
}

/* The most rows that dot_transposed decodes at once. */
static inline uint32_t moec_transposed_rows(uint32_t n_tok)
{
    return n_tok < MOEC_TRANSPOSED_MANY ? MOEC_TRANSPOSED_ROWS : 2 * MOEC_TRANSPOSED_ROWS;
}

/* Floats of room that dot_transposed needs for as many rows of K weights. */
static inline size_t moec_transposed_room_floats(uint32_t n_rows, size_t k)
{
    return (n_rows + MOEC_TRANSPOSED_ROWS - 1) / MOEC_TRANSPOSED_ROWS *
           (MOEC_TRANSPOSED_ROWS * moec_lanes_padded(k) + MOEC_LANES * MOEC_TRANSPOSED_PAD);
}

/* Canonical F32 functions, as in the kernels (runtime/kernels/kernels_exp.c). */
float moec_exp_f32(float x);
float moec_silu_f32(float x); /* what silu_mul multiplies with up */

#endif
