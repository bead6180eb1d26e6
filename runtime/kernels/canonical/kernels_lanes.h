/* The kernels written once for all vector instruction sets, over a vector of MOEC_LANES floats.
 *
 * A set (runtime/kernels/canonical/kernels_avx2.h, ...) defines the type `lanes` and the primitives below, then
 * includes this file, which defines the kernels and LANES_KERNELS(name), their table. Arguments called nt,
 * nv, nr and dtype are constants after inlining. The set also chooses the shapes SUM_VECTORS, CODE_ROWS (rows
 * of codes that products take at once; even), FEW_ROWS and FEW_TOKENS (the same of a few tokens) and
 * ROWS_AT_ONCE (the same of trellises and MXFP4's down), with SET_LIFTS whether it decodes blocks of INT8 |
 * LIFTED, with SET_BLOCKS how many blocks of shift codes it decodes at once (0: one), and with SET_CONTIGUOUS and
 * SET_ACROSS whether it has registers for the loops of kernels_contiguous.h and kernels_across.h.
 *
 * lanes_zero, lanes_set, lanes_load, lanes_store, lanes_add, lanes_sub, lanes_mul, lanes_div, lanes_fma
 *
 * lanes_max(a, b), lanes_min(a, b): a if it is greater (less) than b, else b
 *
 * lanes_load_some(p, n): the first n floats, then zeros; 0 < n < 16, nothing past n is read
 *
 * lanes_store_some(p, n, v): the first n lanes; nothing past n is written
 *
 * lanes_keep(v, n, other): the first n lanes of v, then those of other; 0 < n <= 16
 *
 * lanes_sum, lanes_top: the tree of dot with +, and with lanes_max(upper, lower)
 *
 * lanes_sum_rows(v, y): lanes_sum of CODE_ROWS rows, where SET_CONTIGUOUS or SET_BLOCKS
 *
 * lanes_transpose(v): v[i] lane j becomes v[j] lane i, where SET_ACROSS, as the two below
 *
 * words_across(rows, at, out): 32-bit word w of the sixteen bytes at `at` of each of LANES rows, in out[w],
 * of type words
 *
 * code_across(dtype, of_block, k, table): of each row number k of the block whose words these are, where
 * dtype is BF16 a weight, INT8 a code, INT4 what the table has for one
 *
 * lanes_to_f16(p, v): the lanes as F16, to the nearest, ties to even
 *
 * lanes_power(p, biased): p * 2^floor(n / 2) * 2^ceil(n / 2), where n = bits(biased) - bits(EXP_ROUND)
 *
 * lanes_cut(v, x, limit): 0 where x < limit, else v
 *
 * f16_at(p): the F16 at p
 *
 * decoder_make(dtype, scale, zero), where `zero` is 0 - zero * scale if decoder_needs_regular(dtype),
 * decoder_of_levels(dtype, scale, levels),
 * decode_block(dtype, bytes, decoders, out): 32 stored weights to out[0] by decoders[0] and to out[1] by
 * decoders[UPPER(dtype)]
 *
 * decoder_needs_regular(dtype): the decoder gives the exact bits only for scales that are finite and above 0
 *
 * trellis_make(levels, scale): eight levels, each times the scale of a row of a trellis, as a trellis_table
 *
 * trellis_begin(), trellis_block(table, at, before, out): the 32 weights of the block at `at`. A
 * trellis_carry goes from block to block: what trellis_begin gives for a row's first, then what the block
 * before left there
 *
 * shift_block(bits, scale, at, front, out): the 32 weights of the block of shift codes at `at`; `front` are the
 * BEFORE bytes in front of it, zeros at a row's start
 *
 * shift_open(bits, at, is_first): where SET_BLOCKS, the levels of so many blocks of shift codes at `at`, the first of
 * a row or behind others, as a struct shift_levels; shift_lanes(levels, k, decoder): weights 16 k to 16 k + 15 of
 * them; shift_decoder(scale): the decoder, for a scale finite and above 0
 *
 * dot_tile: see dot_slice below */
#ifndef MOEC_RUNTIME_KERNELS_LANES_H
#define MOEC_RUNTIME_KERNELS_LANES_H

#include "runtime/kernels/lanes/kernels_shape.h"

#include <math.h>

/* ---- dot of decoded rows ---- */

/* n_tok tokens against a slice, in tiles of at most DOT_TOKENS tokens.
 * dot_tile(nt, x, x_stride, slice, first, last, acc, y, y_stride): lanes start at 0 when `first`, else where
 * acc[token][row] has them, and go back there or, when `last`, down the tree to y[token * y_stride + row]. */
INLINE void dot_slice(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *slice,
                      const bool first, const bool last, float (*acc)[DOT_ROWS][LANES], float *y,
                      size_t y_stride)
{
    const bool whole = first && last; /* acc is then scratch of one tile */
    uint32_t t = 0;
    for (; n_tok - t == 3 || n_tok - t > 4; t += 3)
        dot_tile(3, x + t * x_stride, x_stride, slice, first, last, whole ? acc : acc + t, y + t * y_stride,
                 y_stride);
    for (; n_tok - t > 1; t += 2)
        dot_tile(2, x + t * x_stride, x_stride, slice, first, last, whole ? acc : acc + t, y + t * y_stride,
                 y_stride);
    if (t < n_tok)
        dot_tile(1, x + t * x_stride, x_stride, slice, first, last, whole ? acc : acc + t, y + t * y_stride,
                 y_stride);
}

/* DOT_DEPTH columns of DOT_ROWS rows, in the first-level cache. */
struct packed {
    _Alignas(LINE) float w[DOT_ROWS][DOT_DEPTH];
};

/* Sums of lanes that wait between the parts of rows that are taken in parts. */
struct waiting {
    _Alignas(LINE) float acc[DOT_CUT][DOT_ROWS][LANES];
};

/* At most DOT_CUT tokens against k columns of packed rows, the first of all rows, the last, or between. */
static void dot_packed(const float *x, size_t x_stride, uint32_t n_tok, const struct packed *packed, size_t k,
                       bool first, bool last, struct waiting *waiting, float *y, size_t y_stride)
{
    struct slice slice = {.k = k};
    for (int r = 0; r < DOT_ROWS; r++)
        slice.w[r] = packed->w[r];
    if (first && last)
        dot_slice(x, x_stride, n_tok, &slice, true, true, waiting->acc, y, y_stride);
    else if (first)
        dot_slice(x, x_stride, n_tok, &slice, true, false, waiting->acc, y, y_stride);
    else if (!last)
        dot_slice(x, x_stride, n_tok, &slice, false, false, waiting->acc, y, y_stride);
    else
        dot_slice(x, x_stride, n_tok, &slice, false, true, waiting->acc, y, y_stride);
}

/* Long rows tend to lie a power of two apart, where their lines fall on few places of the first-level cache,
 * so for many tokens they are copied together part by part. */
static void dot_cut(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows, float *y,
                    size_t y_stride)
{
    struct waiting waiting;
    struct packed packed;
    for (size_t at = 0, k; at < rows->k; at += k) {
        k = rows->k - at < DOT_DEPTH ? rows->k - at : DOT_DEPTH;
        for (int r = 0; r < DOT_ROWS; r++)
            for (size_t i = 0; i < k; i += LANES)
                lanes_store(packed.w[r] + i, lanes_load(rows->w[r] + at + i));
        dot_packed(x + at, x_stride, n_tok, &packed, k, at == 0, at + k == rows->k, &waiting, y, y_stride);
    }
}

static void dot_whole(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows, float *y,
                      size_t y_stride)
{
    _Alignas(LINE) float acc[DOT_TOKENS][DOT_ROWS][LANES];
    dot_slice(x, x_stride, n_tok, rows, true, true, acc, y, y_stride);
}

/* All tokens against DOT_ROWS rows. */
static void dot_eight_rows(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows,
                           float *y, size_t y_stride)
{
    if (rows->k <= DOT_DEPTH || n_tok <= 2 * DOT_TOKENS) {
        dot_whole(x, x_stride, n_tok, rows, y, y_stride);
        return;
    }
    for (uint32_t t = 0; t < n_tok; t += DOT_CUT)
        dot_cut(x + t * x_stride, x_stride, n_tok - t < DOT_CUT ? n_tok - t : DOT_CUT, rows, y + t * y_stride,
                y_stride);
}

/* A last group of fewer than DOT_ROWS rows:
 * its last row stands for the missing ones, whose results are dropped. */
static void dot_last_rows(const float *x, size_t x_stride, uint32_t n_tok, const struct slice *rows,
                          uint32_t n_rows, float *y, size_t y_stride)
{
    float out[DOT_CUT][DOT_ROWS];
    for (uint32_t t = 0; t < n_tok; t += DOT_CUT) {
        uint32_t tokens = n_tok - t < DOT_CUT ? n_tok - t : DOT_CUT;
        dot_eight_rows(x + t * x_stride, x_stride, tokens, rows, out[0], DOT_ROWS);
        for (uint32_t i = 0; i < tokens; i++)
            memcpy(y + (t + i) * y_stride, out[i], n_rows * sizeof out[i][0]);
    }
}

/* Asks for the rows that come next while many tokens still use the present ones. */
INLINE void prefetch_rows(const float *rows, size_t row_stride)
{
    const size_t floats_per_line = 16;
    for (size_t i = 0; i < DOT_ROWS * row_stride; i += floats_per_line)
        ask_line(rows + i);
}

static void dot(const float *x, size_t x_stride, uint32_t n_tok, const float *w, size_t w_stride,
                uint32_t n_rows, uint32_t k, float *y, size_t y_stride)
{
    const size_t padded = moec_lanes_padded(k);
    /* as many tokens as stay in the second-level cache while the rows pass */
    const uint32_t cached_floats = 1u << 15, fit = padded > 0 ? cached_floats / (uint32_t)padded : n_tok;
    const uint32_t at_once = fit > DOT_CUT ? fit / DOT_CUT * DOT_CUT : DOT_CUT;
    for (uint32_t t = 0; t < n_tok; t += at_once) {
        const float *x_rows = x + t * x_stride;
        float *y_rows = y + t * y_stride;
        uint32_t tokens = n_tok - t < at_once ? n_tok - t : at_once;
        for (uint32_t r = 0; r < n_rows; r += DOT_ROWS) {
            uint32_t left = n_rows - r;
            struct slice rows = {.k = padded};
            for (uint32_t i = 0; i < DOT_ROWS; i++)
                rows.w[i] = w + (r + (i < left ? i : left - 1)) * w_stride;
            if (tokens > 4 * DOT_TOKENS && left >= 2 * DOT_ROWS && w_stride <= DOT_DEPTH)
                prefetch_rows(rows.w[0] + DOT_ROWS * w_stride, w_stride);
            if (left >= DOT_ROWS)
                dot_eight_rows(x_rows, x_stride, tokens, &rows, y_rows + r, y_stride);
            else
                dot_last_rows(x_rows, x_stride, tokens, &rows, left, y_rows + r, y_stride);
        }
    }
}

/* ---- weighted sum of decoded rows ---- */

/* nt tokens by nv vectors of columns, of which the first `columns` are stored, or added to what is there. */
INLINE void sum_tile(const int nt, const int nv, const float *h, size_t h_stride, const float *w,
                     size_t w_stride, uint32_t n_rows, size_t columns, bool adds, float *y, size_t y_stride)
{
    lanes sums[SUM_TOKENS * SUM_VECTORS];
    UNROLL
    for (int i = 0; i < nt * nv; i++)
        sums[i] = lanes_zero();
    for (uint32_t n = 0; n < n_rows; n++) {
        lanes weights[4];
        UNROLL
        for (int v = 0; v < nv; v++)
            weights[v] = lanes_load(w + n * w_stride + v * LANES);
        UNROLL
        for (int t = 0; t < nt; t++) {
            lanes factor = lanes_set(h[(size_t)t * h_stride + n]);
            UNROLL
            for (int v = 0; v < nv; v++)
                sums[t * nv + v] = lanes_fma(factor, weights[v], sums[t * nv + v]);
        }
    }
    UNROLL
    for (int t = 0; t < nt; t++) {
        UNROLL
        for (int v = 0; v < nv; v++) {
            size_t at = (size_t)v * LANES;
            float *out = y + (size_t)t * y_stride + at;
            lanes sum = sums[t * nv + v];
            if (columns >= at + LANES) {
                lanes_store(out, adds ? lanes_add(lanes_load(out), sum) : sum);
            } else {
                if (adds)
                    sum = lanes_add(lanes_load_some(out, columns - at), sum);
                lanes_store_some(out, columns - at, sum);
            }
        }
    }
}

/* nt tokens, all columns. */
INLINE void sum_tokens_of(const int nt, const int nv, const float *h, size_t h_stride, const float *w,
                          size_t w_stride, uint32_t n_rows, size_t columns, bool adds, float *y,
                          size_t y_stride)
{
    size_t c = 0, width = (size_t)nv * LANES;
    for (; c + width <= columns; c += width)
        sum_tile(nt, nv, h, h_stride, w + c, w_stride, n_rows, width, adds, y + c, y_stride);
    for (; c < columns; c += LANES)
        sum_tile(nt, 1, h, h_stride, w + c, w_stride, n_rows, columns - c, adds, y + c, y_stride);
}

/* All tokens, SUM_TOKENS at a time, against rows as they lie. */
static void sum_columns(const float *h, size_t h_stride, uint32_t n_tok, const float *w, size_t w_stride,
                        uint32_t n_rows, size_t columns, bool adds, float *y, size_t y_stride)
{
    for (; n_tok >= SUM_TOKENS; n_tok -= SUM_TOKENS, h += SUM_TOKENS * h_stride, y += SUM_TOKENS * y_stride)
        sum_tokens_of(SUM_TOKENS, SUM_VECTORS, h, h_stride, w, w_stride, n_rows, columns, adds, y, y_stride);
    switch (n_tok) {
    case 1:
        sum_tokens_of(1, 4, h, h_stride, w, w_stride, n_rows, columns, adds, y, y_stride);
        break;
    case 2:
        sum_tokens_of(2, SUM_VECTORS > 2 ? SUM_VECTORS : 2, h, h_stride, w, w_stride, n_rows, columns, adds,
                      y, y_stride);
        break;
    case 3:
        sum_tokens_of(3, SUM_VECTORS, h, h_stride, w, w_stride, n_rows, columns, adds, y, y_stride);
        break;
    case 4:
        sum_tokens_of(4, SUM_VECTORS, h, h_stride, w, w_stride, n_rows, columns, adds, y, y_stride);
        break;
    case 5:
        sum_tokens_of(5, SUM_VECTORS, h, h_stride, w, w_stride, n_rows, columns, adds, y, y_stride);
        break;
    default:
        break;
    }
}

/* Columns of a chunk of rows, in the first-level cache. */
struct summed_part {
    _Alignas(LINE) float w[MOEC_SUM_CHUNK][SUM_WIDTH];
};

/* Rows far apart fall on few lines of the first-level cache, so for many tokens they are copied together. */
static void sum_decoded(const float *h, size_t h_stride, uint32_t n_tok, const float *w, size_t w_stride,
                        uint32_t n_rows, uint32_t columns, bool adds, float *y, size_t y_stride)
{
    struct summed_part part;
    if (n_tok <= SUM_TOKENS) {
        sum_columns(h, h_stride, n_tok, w, w_stride, n_rows, columns, adds, y, y_stride);
        return;
    }
    for (size_t c = 0; c < columns; c += SUM_WIDTH) {
        const size_t width = columns - c < SUM_WIDTH ? columns - c : SUM_WIDTH;
        for (uint32_t n = 0; n < n_rows; n++)
            for (size_t i = 0; i < width; i += LANES)
                lanes_store(part.w[n] + i, lanes_load(w + n * w_stride + c + i));
        sum_columns(h, h_stride, n_tok, part.w[0], SUM_WIDTH, n_rows, width, adds, y + c, y_stride);
    }
}

static void sum_chunk(const float *h, size_t h_stride, uint32_t n_tok, const float *w, size_t w_stride,
                      uint32_t n_rows, uint32_t columns, float *y, size_t y_stride)
{
    sum_decoded(h, h_stride, n_tok, w, w_stride, n_rows, columns, false, y, y_stride);
}

/* A block's first `tail` weights, 0 < tail < 32, then zeros. */
INLINE void keep_tail(size_t tail, lanes out[2])
{
    out[0] = lanes_keep(out[0], tail < LANES ? tail : LANES, lanes_zero());
    out[1] = tail > LANES ? lanes_keep(out[1], tail - LANES, lanes_zero()) : lanes_zero();
}

static void add(const float *x, size_t n, float *y)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(y + i, lanes_add(lanes_load(y + i), lanes_load(x + i)));
    if (i < n)
        lanes_store_some(y + i, n - i,
                         lanes_add(lanes_load_some(y + i, n - i), lanes_load_some(x + i, n - i)));
}

#include "runtime/kernels/canonical/kernels_encoded.h"
#include "runtime/kernels/canonical/kernels_heads.h"
#include "runtime/kernels/canonical/kernels_tokens.h"

/* ---- element by element ---- */

INLINE lanes lanes_exp(lanes x)
{
    lanes one = lanes_set(1.0f);
    lanes y = lanes_min(lanes_set(EXP_HIGH), x);
    y = lanes_max(lanes_set(EXP_LOW), y);
    lanes biased = lanes_fma(y, lanes_set(EXP_LOG2_E), lanes_set(EXP_ROUND));
    lanes minus_n = lanes_sub(lanes_set(EXP_ROUND), biased);
    lanes r = lanes_fma(minus_n, lanes_set(EXP_LN2_HIGH), y);
    r = lanes_fma(minus_n, lanes_set(EXP_LN2_LOW), r);
    lanes p = lanes_set(EXP_C6);
    p = lanes_fma(p, r, lanes_set(EXP_C5));
    p = lanes_fma(p, r, lanes_set(EXP_C4));
    p = lanes_fma(p, r, lanes_set(EXP_C3));
    p = lanes_fma(p, r, lanes_set(EXP_C2));
    p = lanes_fma(p, r, one);
    p = lanes_fma(p, r, one);
    return lanes_cut(lanes_power(p, biased), x, EXP_LOW);
}

INLINE lanes lanes_silu_mul(lanes gate, lanes up)
{
    lanes weight = lanes_add(lanes_set(1.0f), lanes_exp(lanes_sub(lanes_zero(), gate)));
    return lanes_mul(lanes_div(gate, weight), up);
}

/* A bound is taken where it is passed, so a NaN stays. */
INLINE lanes lanes_within(float most, lanes v)
{
    return lanes_max(lanes_set(-most), lanes_min(lanes_set(most), v));
}

static void round_f16(const float *x, size_t n, uint8_t *out)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_to_f16(out + 2 * i, lanes_within(MOEC_F16_MOST, lanes_load(x + i)));
    if (i < n) {
        uint8_t whole[2 * LANES];
        lanes_to_f16(whole, lanes_within(MOEC_F16_MOST, lanes_load_some(x + i, n - i)));
        memcpy(out + 2 * i, whole, 2 * (n - i));
    }
}

/* The lowest byte of (a number from -128 to 127) + CODE_ROUND, as a float, is its code: the nearest integer,
 * ties to even, from -128 on. */
#define CODE_ROUND (0x1.8p23f + 128)

INLINE lanes lanes_size(lanes v)
{
    return lanes_max(v, lanes_sub(lanes_zero(), v));
}

/* A block of 32 numbers that are finite or NaN to its codes and their scale. */
INLINE void round_block(const lanes v[static 2], uint8_t codes[static BLOCK], uint8_t *stored)
{
    float rounded[BLOCK];
    /* 0, or NaN where one is. */
    const float none = lanes_sum(lanes_add(lanes_sub(v[0], v[0]), lanes_sub(v[1], v[1])));
    const float largest = lanes_top(lanes_max(lanes_size(v[0]), lanes_size(v[1])));
    const uint16_t half = moec_f32_to_f16(isnan(none) ? NAN : largest / 127);
    const float scale = moec_f16_to_f32(half);
    memcpy(stored, &half, sizeof half);
    UNROLL
    for (int i = 0; i < 2; i++) {
        const lanes q = scale > 0 ? lanes_div(v[i], lanes_set(scale)) : lanes_zero();
        const lanes kept = lanes_max(lanes_set(-128), lanes_min(lanes_set(127), q));
        lanes_store(rounded + i * LANES, lanes_add(kept, lanes_set(CODE_ROUND)));
    }
    for (size_t i = 0; i < BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, rounded + i, sizeof bits);
        codes[i] = (uint8_t)bits;
    }
}

static void round_int8(const float *x, size_t n, uint8_t *out)
{
    uint8_t *stored = out + (n + BLOCK - 1) / BLOCK * BLOCK;
    for (; n > 0; out += BLOCK, stored += sizeof(uint16_t)) {
        const size_t count = n < BLOCK ? n : BLOCK;
        float whole[BLOCK] = {0};
        memcpy(whole, x, count * sizeof *x);
        const lanes v[2] = {lanes_within(MOEC_INT8_MOST, lanes_load(whole)),
                            lanes_within(MOEC_INT8_MOST, lanes_load(whole + LANES))};
        round_block(v, out, stored);
        x += count, n -= count;
    }
}

static void add_scaled(float scale, const float *x, size_t n, float *y)
{
    lanes factor = lanes_set(scale);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(y + i, lanes_fma(factor, lanes_load(x + i), lanes_load(y + i)));
    if (i < n)
        lanes_store_some(y + i, n - i,
                         lanes_fma(factor, lanes_load_some(x + i, n - i), lanes_load_some(y + i, n - i)));
}

static void silu_mul(const float *gate, const float *up, size_t n, float *out)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_silu_mul(lanes_load(gate + i), lanes_load(up + i)));
    if (i < n)
        lanes_store_some(out + i, n - i,
                         lanes_silu_mul(lanes_load_some(gate + i, n - i), lanes_load_some(up + i, n - i)));
}

static float exp_sum(const float *x, float shift, size_t n, float *out)
{
    lanes shifts = lanes_set(shift), sum = lanes_zero();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes value = lanes_exp(lanes_sub(lanes_load(x + i), shifts));
        lanes_store(out + i, value);
        sum = lanes_add(sum, value);
    }
    if (i < n) {
        lanes value = lanes_exp(lanes_sub(lanes_load_some(x + i, n - i), shifts));
        lanes_store_some(out + i, n - i, value);
        sum = lanes_add(sum, lanes_keep(value, n - i, lanes_zero()));
    }
    return lanes_sum(sum);
}

static float max(const float *x, size_t n)
{
    const lanes least = lanes_set(-INFINITY);
    lanes top = least;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        top = lanes_max(lanes_load(x + i), top);
    if (i < n)
        top = lanes_max(lanes_keep(lanes_load_some(x + i, n - i), n - i, least), top);
    return lanes_top(top);
}

static void rms_norm(const float *x, const float *weight, float eps, size_t n, float *out)
{
    lanes squares = lanes_zero();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes value = lanes_load(x + i);
        squares = lanes_fma(value, value, squares);
    }
    if (i < n) {
        lanes value = lanes_load_some(x + i, n - i);
        squares = lanes_fma(value, value, squares);
    }
    lanes inverse = lanes_set(1.0f / sqrtf(lanes_sum(squares) / (float)n + eps));
    for (i = 0; i + LANES <= n; i += LANES)
        lanes_store(out + i, lanes_mul(lanes_mul(lanes_load(x + i), inverse), lanes_load(weight + i)));
    if (i < n)
        lanes_store_some(
            out + i, n - i,
            lanes_mul(lanes_mul(lanes_load_some(x + i, n - i), inverse), lanes_load_some(weight + i, n - i)));
}

/* As many as hide what one takes, of those that there are registers for. */
#if SET_ACROSS
#define CHAINS 24
#else
#define CHAINS 6
#endif

static uint64_t multiply_adds(uint64_t n)
{
    lanes chains[CHAINS];
    lanes factor = lanes_set(0.5f), more = lanes_set(0.25f);
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        chains[i] = lanes_set((float)i);
    for (uint64_t step = 0; step < n; step++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            chains[i] = lanes_fma(chains[i], factor, more);
    }
    UNROLL
    for (int i = 1; i < CHAINS; i++)
        chains[0] = lanes_add(chains[0], chains[i]);
    /* Of numbers below CHAINS the sum is never that large, which no compiler knows. */
    return lanes_sum(chains[0]) > 1e9f ? 0 : n * CHAINS * LANES;
}

#if SET_ACROSS
#include "runtime/kernels/canonical/kernels_across.h"
#define TRANSPOSED_KERNEL(name) KERNEL(name)
#else
#define TRANSPOSED_KERNEL(name) NULL
#endif

#include "runtime/kernels/canonical/kernels_tsan.h"

#define LANES_KERNELS(set_name)                                                                              \
    {                                                                                                        \
        .name = (set_name), .decode_rows = KERNEL(decode_rows), .dot = KERNEL(dot),                          \
        .dot_encoded = KERNEL(dot_encoded), .dot_some = KERNEL(dot_some), .dot_tokens = KERNEL(dot_tokens),  \
        .sum_chunk = KERNEL(sum_chunk), .sum_chunk_encoded = KERNEL(sum_chunk_encoded),                      \
        .sum_chunk_some = KERNEL(sum_chunk_some), .sum_chunk_tokens = KERNEL(sum_chunk_tokens),              \
        .dot_heads = KERNEL(dot_heads), .sum_heads = KERNEL(sum_heads), .round_f16 = KERNEL(round_f16),      \
        .round_int8 = KERNEL(round_int8), .multiply_adds = multiply_adds, .add = KERNEL(add),                \
        .add_scaled = KERNEL(add_scaled), .silu_mul = KERNEL(silu_mul), .exp_sum = KERNEL(exp_sum),          \
        .max = KERNEL(max), .rms_norm = KERNEL(rms_norm),                                                    \
        .transpose_tokens = TRANSPOSED_KERNEL(transpose_tokens),                                             \
        .dot_transposed = TRANSPOSED_KERNEL(dot_transposed),                                                 \
    }

#endif
