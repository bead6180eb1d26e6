/* The int8 arithmetic (runtime/kernels/int8.h), written once for the vector sets over 16 floats (`lanes`),
 * 64 bytes (`words`) and the codes of a span (`codes`, whose half[h] holds the codes 32 b + 16 h + i at
 * 16 b + i). A set (runtime/kernels/int8_avx2.c, ...) defines the primitives of runtime/kernels/lanes_*.h and
 * these, then includes this file, which defines INT8_KERNELS(name), its table:
 *
 * words_load, words_store, words_zero, words_set(int32), words_and, words_or, words_top (of 32-bit integers),
 * words_sub; words_up(w, bits) and words_down(w, bits) shift 32-bit integers to the left and to the right
 *
 * words_store_low_bytes(at, w): the low bytes of the 32-bit integers
 *
 * words_of_lanes(v): to integers, ties to even; lanes_of_words; lanes_as_words and words_as_lanes: the bits
 *
 * words_quads(w, out): of four rows' bytes w[0..4) column by column: out[u], 32-bit integer 4 b + k, holds
 * the bytes 16 b + 4 u + k of w[0], w[1], w[2], w[3]
 *
 * spread_places(per_span): for words_spread(at, places) and lanes_spread(v, places), 32-bit integer and lane
 * i / (16 / per_span) of the first four, at each i; per_span is 1, 2 or 4
 *
 * blocks_store(f, out): lanes 4 b + k of f[u] to out[32 b + 4 u + k]
 *
 * lanes_of_packed(at, n, bits): n numbers of so many bits each, the first n lanes
 *
 * codes_at(dtype, bytes, is_first): the codes of a whole span, the first of its row or one that has BEFORE
 * bytes of its row in front of it; nibbles_of(bytes): low and high half of each byte
 *
 * MIXES_HALVES(dtype): whether words_dot takes whole bytes for codes of 4 bits, so that the products of the
 * second half are had by a subtraction
 *
 * OFFSET(dtype) and words_dot(dtype, sums, codes, q): each 32-bit integer of sums plus four products of bytes
 * q with codes less OFFSET; words_sum_quads(sums, q): plus the four bytes alone
 *
 * TOKENS_AT_ONCE tokens by ROWS_OF_MANY rows are the tile of a product with many tokens, one token by
 * ROWS_AT_ONCE rows the other */
#ifndef MOEC_RUNTIME_KERNELS_INT8_LANES_H
#define MOEC_RUNTIME_KERNELS_INT8_LANES_H

#include "formats/base/half.h"
#include "runtime/kernels/int8.h"
#include "runtime/kernels/kernels_shape.h"

#define SPAN        MOEC_INT8_SPAN
#define CHUNK       MOEC_SUM_CHUNK
#define QUADS       (CHUNK / 4)
#define GROUPS      64   /* of columns, whose rounded activations are held together */
#define PANEL       2048 /* columns of a chunk's sum that are held together */
#define SPANS_AHEAD 4
#define HELD        4                  /* tokens whose rounded activations are held together */
#define AHEAD       (4 * ROWS_AT_ONCE) /* rows that are asked for ahead of time, see kernels_shape.h */

/* Where the parts of a matrix's rows lie. */
struct plan {
    size_t columns;
    size_t whole;      /* spans */
    size_t tail_bytes; /* codes of an incomplete last span */
    size_t span_bytes;
    size_t groups, group;            /* group: 0 = channel */
    int per_span;                    /* groups of a span; 1 also where a group has many spans */
    size_t scales, zeros, row_bytes; /* offsets in a row */
    float unit;                      /* what the scales that are read are multiplied with */
    bool nested, has_zeros;
};

INLINE uint32_t bits_of(const int dtype)
{
    return dtype == MOEC_DTYPE_INT2   ? 2
           : dtype == MOEC_DTYPE_INT3 ? 3
           : dtype == MOEC_DTYPE_INT4 ? 4
           : dtype == MOEC_DTYPE_INT5 ? 5
           : dtype == MOEC_DTYPE_INT6 ? 6
                                      : 8;
}

static struct plan plan_of(const struct moec_matrix *matrix)
{
    const struct moec_codec codec = matrix->codec;
    const size_t n = matrix->columns, blocks = (n + BLOCK - 1) / BLOCK;
    const size_t block_bytes = 4 * (size_t)moec_codec_bits(codec);
    struct plan plan = {.columns = n, .whole = n / SPAN};
    plan.span_bytes = SPAN / BLOCK * block_bytes;
    plan.scales = blocks * block_bytes;
    plan.tail_bytes = plan.scales - plan.whole * plan.span_bytes;
    plan.groups = moec_codec_row_groups(codec, n);
    plan.group = codec.group;
    plan.per_span = codec.group == 0 ? 1 : SPAN / codec.group;
    plan.zeros = plan.scales + moec_codec_scales_bytes(codec, n);
    plan.row_bytes = moec_codec_row_bytes(codec, n);
    plan.nested = moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    plan.has_zeros = moec_scheme_has_zeros((enum moec_scheme)codec.scheme);
    plan.unit = plan.nested ? 0x1p-8f : codec.scheme == MOEC_SCHEME_TRELLIS ? MOEC_INT8_TRELLIS_STEP : 1.0f;
    return plan;
}

/* What the bytes of a row's scales are multiplied with, where scales are nested; else the first scale. */
INLINE float row_factor(const struct plan *plan, const uint8_t *row)
{
    return f16_at(row + plan->scales) * plan->unit;
}

/* The one zero, less OFFSET, of a row without groups. */
INLINE int row_zero(const int dtype, const struct plan *plan, const uint8_t *row)
{
    const int zero = row[plan->zeros];
    return (plan->nested ? zero & ((1 << bits_of(dtype)) - 1) : zero) - OFFSET(dtype);
}

/* Scales, and zeros less OFFSET, of 16 groups from g on; 0 for those past the row's end. */
INLINE lanes scales_at(const struct plan *plan, const uint8_t *row, float factor, size_t g)
{
    const size_t left = g < plan->groups ? plan->groups - g : 0, n = left < LANES ? left : LANES;
    if (n == 0)
        return lanes_zero();
    return plan->nested ? lanes_mul(lanes_of_bytes(row + plan->scales + 2 + g, n), lanes_set(factor))
                        : lanes_of_halves(row + plan->scales + 2 * g, n);
}

INLINE lanes zeros_at(const int dtype, const struct plan *plan, const uint8_t *row, size_t g)
{
    const size_t left = g < plan->groups ? plan->groups - g : 0, n = left < LANES ? left : LANES;
    const uint8_t *zeros = row + plan->zeros;
    const uint32_t bits = bits_of(dtype);
    return lanes_sub(plan->nested ? lanes_of_packed(zeros + g * bits / 8, n, bits)
                                  : lanes_of_bytes(zeros + g, n),
                     lanes_set((float)OFFSET(dtype)));
}

/* ---- rounding ---- */

INLINE lanes magnitudes_top(lanes top, lanes v)
{
    return words_as_lanes(
        words_top(lanes_as_words(top), words_and(lanes_as_words(v), words_set(0x7fffffff))));
}

INLINE words rounded(lanes v, lanes inverse)
{
    v = lanes_min(lanes_mul(v, inverse), lanes_set(127.0f));
    return words_of_lanes(lanes_max(v, lanes_set(-127.0f)));
}

INLINE float inverse_of(float top)
{
    return top > MOEC_INT8_SMALL ? 127.0f / top : 0.0f;
}

/* The largest of 16 magnitudes, as bits. */
INLINE float magnitude_of(lanes top)
{
    uint32_t bits[LANES], most = 0;
    words_store(bits, lanes_as_words(top));
    for (int i = 0; i < LANES; i++)
        most = bits[i] > most ? bits[i] : most;
    return moec_f32_from_bits(most);
}

static void round_span(const float *x, struct moec_int8_span *span)
{
    lanes top = lanes_zero();
    for (int i = 0; i < SPAN; i += LANES)
        top = magnitudes_top(top, lanes_load(x + i));
    const float most = magnitude_of(top);
    const lanes inverse = lanes_set(inverse_of(most));
    span->scale = most / 127.0f;
    for (int block = 0; block < SPAN / BLOCK; block++) {
        for (int half = 0; half < 2; half++) {
            words_store_low_bytes(span->q + 64 * half + 16 * block,
                                  rounded(lanes_load(x + BLOCK * block + LANES * half), inverse));
        }
    }
    words sums = words_zero();
    for (int half = 0; half < 2; half++)
        sums = words_sum_quads(sums, words_load(span->q + 64 * half));
    words_store(span->sums, sums);
}

static void round_all(const float *x, size_t n, struct moec_int8_span *spans)
{
    size_t at = 0;
    for (; n - at >= SPAN; at += SPAN)
        round_span(x + at, spans++);
    if (at < n) {
        float padded[SPAN] = {0};
        memcpy(padded, x + at, (n - at) * sizeof *x);
        round_span(padded, spans);
    }
}

/* ---- dot ---- */

struct dot_rows {
    const uint8_t *bytes[ROWS_AT_ONCE];
    const uint8_t *ahead; /* a row that comes later, or NULL */
    size_t stride;
    float factors[ROWS_AT_ONCE];
};

/* What sums of products with codes less OFFSET begin with, so that they are sums with codes less the zero of
 * symmetric schemes. */
INLINE words words_start(const int dtype, const struct moec_int8_span *x)
{
    if (OFFSET(dtype) != 0)
        return words_zero();
    return words_sub(words_zero(), words_up(words_load(x->sums), (int)bits_of(dtype) - 1));
}

/* Scales and zeros of 16 groups of each row, from a multiple of 16 on, or 16 times those of a row without
 * groups. Read a little past them. */
struct strip {
    float scales[ROWS_AT_ONCE][2 * LANES], zeros[ROWS_AT_ONCE][2 * LANES];
};

INLINE void strip_fill(const int nr, const int dtype, const bool has_zeros, const struct plan *plan,
                       const struct dot_rows *rows, size_t g, struct strip *strip)
{
    for (int r = 0; r < nr; r++) {
        const uint8_t *row = rows->bytes[r];
        if (plan->group == 0) {
            lanes_store(strip->scales[r], lanes_set(rows->factors[r]));
            if (has_zeros)
                lanes_store(strip->zeros[r], lanes_set((float)row_zero(dtype, plan, row)));
            continue;
        }
        lanes_store(strip->scales[r], scales_at(plan, row, rows->factors[r], g));
        if (has_zeros)
            lanes_store(strip->zeros[r], zeros_at(dtype, plan, row, g));
    }
}

/* Span number s of nr rows, whose codes stand at at[r] and whose scales stand from place g of the strip on,
 * and of nt tokens. */
INLINE void dot_span(const int nr, const int nt, const int dtype, const bool has_zeros,
                     const struct strip *strip, size_t g, words places, const uint8_t *const *at, size_t s,
                     const struct moec_int8_span *const *x, lanes *sums)
{
    words start[TOKENS_AT_ONCE];
    UNROLL
    for (int t = 0; t < nt && !has_zeros; t++)
        start[t] = words_start(dtype, x[t] + s);
    UNROLL
    for (int r = 0; r < nr; r++) {
        const struct codes codes = codes_at(dtype, at[r], s == 0);
        const lanes scales = lanes_load(strip->scales[r] + g);
        const lanes scale = dtype == TRELLIS ? scales : lanes_spread(scales, places);
        const lanes zero = has_zeros ? lanes_spread(lanes_load(strip->zeros[r] + g), places) : lanes_zero();
        UNROLL
        for (int t = 0; t < nt; t++) {
            const struct moec_int8_span *span = x[t] + s;
            words products = has_zeros ? words_zero() : start[t];
            products = words_dot(dtype, products, codes.half[0], words_load(span->q));
            products = words_dot(dtype, products, codes.half[1], words_load(span->q + 64));
            lanes exact = lanes_of_words(products);
            if (has_zeros)
                exact = lanes_sub(exact, lanes_mul(zero, lanes_of_words(words_load(span->sums))));
            sums[r * nt + t] = lanes_fma(exact, lanes_mul(scale, lanes_set(span->scale)), sums[r * nt + t]);
        }
    }
}

/* Asks for span s of the rows ahead. */
INLINE void rows_ask(const int nr, const struct plan *plan, const struct dot_rows *rows, size_t s)
{
    if (rows->ahead == NULL)
        return;
    for (int r = 0; r < nr && s == 0; r++)
        for (size_t at = plan->scales; at < plan->row_bytes; at += LINE)
            ask_line(rows->ahead + (size_t)r * rows->stride + at);
    for (int r = 0; r < nr; r++)
        for (size_t line = 0; line < plan->span_bytes; line += LINE)
            ask_line(rows->ahead + (size_t)r * rows->stride + s * plan->span_bytes + line);
}

/* An incomplete last span, with zeros past its end and what it may need before it. */
INLINE const uint8_t *tail_copied(const int dtype, const struct plan *plan, const uint8_t *at,
                                  const bool is_first, uint8_t copy[static BEFORE + SPAN])
{
    memset(copy, 0, BEFORE + SPAN);
    memcpy(copy + BEFORE, at, plan->tail_bytes);
    if (dtype == TRELLIS && !is_first)
        memcpy(copy, at - BEFORE, BEFORE);
    return copy + BEFORE;
}

INLINE void dot_tile(const int nr, const int nt, const int dtype, const bool has_zeros,
                     const struct plan *plan, const struct dot_rows *rows,
                     const struct moec_int8_span *const *x, uint32_t n_rows, float *y, size_t y_stride)
{
    lanes sums[ROWS_AT_ONCE * TOKENS_AT_ONCE];
    const uint8_t *at[ROWS_AT_ONCE];
    UNROLL
    for (int i = 0; i < nr * nt; i++)
        sums[i] = lanes_zero();
    const size_t spans = plan->whole + (plan->tail_bytes > 0);
    const size_t per_span = plan->group == 0 ? 0 : (size_t)plan->per_span;
    const words places = spread_places(plan->per_span);
    struct strip strip = {0};
    for (size_t s = 0, g = 0; s < spans; s++, g += per_span) {
        uint8_t tails[ROWS_AT_ONCE][BEFORE + SPAN];
        UNROLL
        for (int r = 0; r < nr; r++)
            at[r] = rows->bytes[r] + s * plan->span_bytes;
        for (int r = 0; r < nr && s == plan->whole; r++)
            at[r] = tail_copied(dtype, plan, at[r], s == 0, tails[r]);
        rows_ask(nr, plan, rows, s);
        if (g % LANES == 0 && (s == 0 || per_span > 0))
            strip_fill(nr, dtype, has_zeros, plan, rows, g, &strip);
        dot_span(nr, nt, dtype, has_zeros, &strip, g % LANES, places, at, s, x, sums);
    }
    UNROLL
    for (int r = 0; r < nr; r++) {
        UNROLL
        for (int t = 0; t < nt; t++) {
            if ((uint32_t)r < n_rows)
                y[(size_t)t * y_stride + (size_t)r] = lanes_sum(sums[r * nt + t]);
        }
    }
}

/* Opens rows i .. i + nr - 1 of those chosen; the last stands for missing ones. */
INLINE void rows_open(const int nr, const struct moec_matrix *matrix, const struct plan *plan, uint32_t first,
                      const uint8_t *some, uint32_t i, uint32_t n_rows, struct dot_rows *rows)
{
    rows->stride = matrix->stride_bytes;
    rows->ahead = NULL;
    for (int r = 0; r < nr; r++) {
        const uint32_t n = i + (uint32_t)r < n_rows ? i + (uint32_t)r : n_rows - 1;
        rows->bytes[r] = row_at(matrix, first + (some != NULL ? some[n] : n));
        rows->factors[r] = row_factor(plan, rows->bytes[r]);
    }
    if (some == NULL && first + i + AHEAD + (uint32_t)nr <= matrix->rows)
        rows->ahead = row_at(matrix, first + i + AHEAD);
}

INLINE void dot_all(const int dtype, const bool has_zeros, const struct moec_matrix *matrix, uint32_t first,
                    const uint8_t *some, uint32_t n_rows, const struct moec_int8_span *const *x,
                    uint32_t n_tok, float *y, size_t y_stride)
{
    const struct plan plan = plan_of(matrix);
    struct dot_rows rows;
    const uint32_t many = n_tok / TOKENS_AT_ONCE * TOKENS_AT_ONCE;
    for (uint32_t i = 0; many > 0 && i < n_rows; i += ROWS_OF_MANY) {
        rows_open(ROWS_OF_MANY, matrix, &plan, first, some, i, n_rows, &rows);
        for (uint32_t t = 0; t < many; t += TOKENS_AT_ONCE)
            dot_tile(ROWS_OF_MANY, TOKENS_AT_ONCE, dtype, has_zeros, &plan, &rows, x + t, n_rows - i,
                     y + t * y_stride + i, y_stride);
    }
    for (uint32_t i = 0; many < n_tok && i < n_rows; i += ROWS_AT_ONCE) {
        rows_open(ROWS_AT_ONCE, matrix, &plan, first, some, i, n_rows, &rows);
        for (uint32_t t = many; t < n_tok; t++)
            dot_tile(ROWS_AT_ONCE, 1, dtype, has_zeros, &plan, &rows, x + t, n_rows - i, y + t * y_stride + i,
                     y_stride);
    }
}

/* ---- weighted sum ---- */

/* Rounded activations of a token and a chunk of neurons, for at most GROUPS groups of columns: four bytes of
 * quads[n][g] are those of neurons 4 n .. 4 n + 3. Read a little past the groups. */
struct weights {
    int32_t quads[QUADS][GROUPS + LANES];
    float scales[GROUPS + LANES], origins[GROUPS + LANES]; /* origins: what is subtracted from sums */
};

struct sum_rows {
    const uint8_t *bytes[CHUNK]; /* the last stands for those that fill up a quad */
    float factors[CHUNK];
    uint32_t n, quads;
};

/* Four bytes of each 32-bit integer, from the low bytes of four. */
INLINE words four_bytes(const words q[4])
{
    const words low = words_set(255);
    words all = words_and(q[0], low);
    all = words_or(all, words_up(words_and(q[1], low), 8));
    all = words_or(all, words_up(words_and(q[2], low), 16));
    return words_or(all, words_up(q[3], 24));
}

/* The rows of the next chunk. Those of a chunk are read side by side, which the hardware's prefetchers do not
 * follow, so all of them are asked for while the chunk before is computed. */
struct next_chunk {
    const uint8_t *rows;    /* NULL: nothing is asked for */
    size_t stride, lines;   /* lines: of one row */
    uint32_t n_at_rounding; /* of the rows, those that are asked for while activations are rounded */
};

/* Asks for the share of one step of `steps` in n rows from `first` on, and in it for the lines of a quad. */
INLINE void next_ask(const struct next_chunk *next, uint32_t first, uint32_t n, size_t step, size_t steps,
                     uint32_t quad)
{
    if (next->rows == NULL)
        return;
    const size_t end = next->lines * (quad + 1) / QUADS;
    for (size_t row = first + n * step / steps; row < first + n * (step + 1) / steps; row++)
        for (size_t line = next->lines * quad / QUADS; line < end; line++)
            ask_line(next->rows + row * next->stride + line * LINE);
}

/* Groups g .. g + 15, of which those from `at` on are written. */
INLINE void round_groups(const int dtype, const struct plan *plan, const struct sum_rows *rows,
                         const struct next_chunk *next, const float *h, size_t g, size_t at,
                         struct weights *weights)
{
    float scaled[CHUNK][LANES], tops[LANES], inverses[LANES], scales[LANES];
    lanes top = lanes_zero(), origins = lanes_zero();
    words sums = words_zero();
    for (uint32_t n = 0; n < rows->n; n++) {
        const lanes v = lanes_mul(lanes_set(h[n]), scales_at(plan, rows->bytes[n], rows->factors[n], g));
        lanes_store(scaled[n], v);
        top = magnitudes_top(top, v);
    }
    for (uint32_t n = rows->n; n < 4 * rows->quads; n++)
        lanes_store(scaled[n], lanes_zero());
    lanes_store(tops, top);
    for (int i = 0; i < LANES; i++) {
        inverses[i] = inverse_of(tops[i]);
        scales[i] = tops[i] / 127.0f;
    }
    const lanes inverse = lanes_load(inverses);
    for (uint32_t quad = 0; quad < rows->quads; quad++) {
        words q[4];
        next_ask(next, 0, next->n_at_rounding, g / LANES, (plan->groups + LANES - 1) / LANES, quad);
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            q[i] = rounded(lanes_load(scaled[4 * quad + i]), inverse);
        const words four = four_bytes(q);
        words_store(weights->quads[quad] + at, four);
        sums = words_sum_quads(sums, four);
        for (uint32_t i = 0; plan->has_zeros && i < 4; i++)
            origins =
                lanes_fma(lanes_of_words(q[i]), zeros_at(dtype, plan, rows->bytes[4 * quad + i], g), origins);
    }
    if (!plan->has_zeros)
        origins =
            lanes_mul(lanes_of_words(sums), lanes_set((float)((1 << (bits_of(dtype) - 1)) - OFFSET(dtype))));
    memcpy(weights->scales + at, scales, sizeof scales);
    lanes_store(weights->origins + at, origins);
}

/* The one group of rows with a scale each: neurons side by side. */
INLINE void round_channel(const int dtype, const struct plan *plan, const struct sum_rows *rows,
                          const float *h, struct weights *weights)
{
    float scaled[CHUNK] = {0};
    lanes top = lanes_zero();
    for (uint32_t n = 0; n < rows->n; n++)
        scaled[n] = h[n] * rows->factors[n];
    for (int n = 0; n < CHUNK; n += LANES)
        top = magnitudes_top(top, lanes_load(scaled + n));
    const float most = magnitude_of(top);
    const lanes inverse = lanes_set(inverse_of(most));
    int32_t sum = 0;
    for (uint32_t n = 0; n < CHUNK; n += LANES) {
        int32_t q[LANES];
        words_store(q, rounded(lanes_load(scaled + n), inverse));
        for (uint32_t i = 0; i < LANES; i += 4)
            weights->quads[(n + i) / 4][0] =
                (int32_t)(((uint32_t)q[i] & 255) | ((uint32_t)q[i + 1] & 255) << 8 |
                          ((uint32_t)q[i + 2] & 255) << 16 | (uint32_t)q[i + 3] << 24);
        for (uint32_t i = 0; i < LANES && n + i < rows->n; i++)
            sum += q[i] * (plan->has_zeros ? row_zero(dtype, plan, rows->bytes[n + i])
                                           : (1 << (bits_of(dtype) - 1)) - OFFSET(dtype));
    }
    weights->scales[0] = most / 127.0f;
    weights->origins[0] = (float)sum;
}

/* The codes of one span of a quad of rows, which stand at at[0..4), column by column: of the first halves of
 * blocks, then of the second halves, or whole bytes (MIXES_HALVES). */
INLINE void quad_at(const int dtype, const uint8_t *const at[4], const bool is_first, words out[8])
{
    words halves[2][4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        if (dtype == MOEC_DTYPE_INT4) { /* both halves of a block stand in the same bytes */
            halves[0][i] = words_load(at[i]);
            continue;
        }
        const struct codes codes = codes_at(dtype, at[i], is_first);
        halves[0][i] = codes.half[0];
        halves[1][i] = codes.half[1];
    }
    words_quads(halves[0], out);
    if (dtype != MOEC_DTYPE_INT4) {
        words_quads(halves[1], out + 4);
        return;
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        const struct codes codes = nibbles_of(out[i]);
        out[4 + i] = MIXES_HALVES(dtype) ? out[i] : codes.half[1];
        out[i] = codes.half[0];
    }
}

/* Where span s of a quad of rows stands; of an incomplete one a copy. */
INLINE void quad_open(const int dtype, const struct plan *plan, const struct sum_rows *rows, uint32_t quad,
                      size_t s, uint8_t tails[4][BEFORE + SPAN], const uint8_t *at[4])
{
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        at[i] = rows->bytes[4 * quad + i] + s * plan->span_bytes;
    for (uint32_t i = 0; i < 4 && s == plan->whole; i++)
        at[i] = tail_copied(dtype, plan, at[i], s == 0, tails[i]);
}

/* Span s of a chunk's sum, from exact sums of products. */
INLINE void sums_finish(const int dtype, const struct plan *plan, const struct weights *weights, size_t at,
                        size_t s, const words sums[8], float *y)
{
    const words places = spread_places(plan->per_span);
    const lanes scale = lanes_spread(lanes_load(weights->scales + at), places);
    const lanes origin = lanes_spread(lanes_load(weights->origins + at), places);
    float last[SPAN], *out = s == plan->whole ? last : y + s * SPAN;
    lanes values[8];
    UNROLL
    for (int i = 0; i < 8; i++) {
        const words exact =
            i >= 4 && MIXES_HALVES(dtype) ? words_down(words_sub(sums[i], sums[i - 4]), 4) : sums[i];
        values[i] = lanes_mul(lanes_sub(lanes_of_words(exact), origin), scale);
    }
    blocks_store(values, out);
    blocks_store(values + 4, out + LANES);
    if (s == plan->whole)
        memcpy(y + s * SPAN, last, (plan->columns - s * SPAN) * sizeof *last);
}

/* First group of span s, among those that are held. */
INLINE size_t group_of(const struct plan *plan, size_t s, size_t first_group)
{
    return plan->group == 0 ? 0 : s * SPAN / plan->group - first_group;
}

/* Spans [from, to) for one token. */
INLINE void sum_once(const int dtype, const struct plan *plan, const struct sum_rows *rows,
                     const struct next_chunk *next, const struct weights *weights, size_t first_group,
                     size_t from, size_t to, float *y)
{
    const size_t spans = plan->whole + (plan->tail_bytes > 0);
    const words places = spread_places(plan->per_span);
    uint8_t tails[4][BEFORE + SPAN];
    const uint8_t *starts[4];
    for (size_t s = from; s < to; s++) {
        const size_t at = group_of(plan, s, first_group);
        words out[8], q[8];
        UNROLL
        for (int i = 0; i < 8; i++)
            out[i] = words_zero();
        for (uint32_t quad = 0; quad < rows->quads; quad++) {
            next_ask(next, next->n_at_rounding, CHUNK - next->n_at_rounding, s, spans, quad);
            const words factors = words_spread(weights->quads[quad] + at, places);
            quad_open(dtype, plan, rows, quad, s, tails, starts);
            quad_at(dtype, starts, s == 0, q);
            UNROLL
            for (int i = 0; i < 8; i++)
                out[i] = words_dot(dtype, out[i], q[i], factors);
        }
        sums_finish(dtype, plan, weights, at, s, out, y);
    }
}

/* The same for some tokens: the codes of a span are taken apart once for all. */
INLINE void sum_many(const int dtype, const struct plan *plan, const struct sum_rows *rows,
                     const struct weights *weights, uint32_t n_tok, size_t first_group, size_t from,
                     size_t to, float *y, size_t y_stride)
{
    _Alignas(64) uint8_t tile[QUADS][8][64];
    uint8_t tails[4][BEFORE + SPAN];
    const uint8_t *starts[4];
    const words places = spread_places(plan->per_span);
    for (size_t s = from; s < to; s++) {
        const size_t at = group_of(plan, s, first_group);
        for (uint32_t quad = 0; quad < rows->quads; quad++) {
            words q[8];
            quad_open(dtype, plan, rows, quad, s, tails, starts);
            for (int i = 0; i < 4; i++) /* rows lie apart: their next spans would be waited for */
                for (size_t line = 0; line < plan->span_bytes; line += LINE)
                    __builtin_prefetch(rows->bytes[4 * quad + (uint32_t)i] +
                                       (s + SPANS_AHEAD) * plan->span_bytes + line);
            quad_at(dtype, starts, s == 0, q);
            UNROLL
            for (int i = 0; i < 8; i++)
                words_store(tile[quad][i], q[i]);
        }
        for (uint32_t t = 0; t < n_tok; t++) {
            words out[8];
            UNROLL
            for (int i = 0; i < 8; i++)
                out[i] = words_zero();
            for (uint32_t quad = 0; quad < rows->quads; quad++) {
                const words factors = words_spread(weights[t].quads[quad] + at, places);
                UNROLL
                for (int i = 0; i < 8; i++)
                    out[i] = words_dot(dtype, out[i], words_load(tile[quad][i]), factors);
            }
            sums_finish(dtype, plan, weights + t, at, s, out, y + t * y_stride);
        }
    }
}

INLINE void sum_all(const int dtype, const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                    uint32_t n_rows, const float *h, size_t h_stride, uint32_t n_tok, float *y,
                    size_t y_stride)
{
    const struct plan plan = plan_of(matrix);
    const size_t spans = moec_int8_spans(plan.columns);
    const size_t of_groups = plan.group == 0 ? spans : GROUPS * plan.group / SPAN;
    const size_t panel = of_groups < PANEL / SPAN ? of_groups : PANEL / SPAN;
    struct sum_rows rows = {.n = n_rows, .quads = (n_rows + 3) / 4};
    struct weights weights[HELD];
    for (uint32_t n = 0; n < n_rows; n++) {
        rows.bytes[n] = row_at(matrix, first + (some != NULL ? some[n] : n));
        rows.factors[n] = row_factor(&plan, rows.bytes[n]);
    }
    for (uint32_t n = n_rows; n < 4 * rows.quads; n++)
        rows.bytes[n] = rows.bytes[n_rows - 1];
    const bool has_next = some == NULL && first + 2 * CHUNK <= matrix->rows;
    const struct next_chunk next = {.rows = has_next && n_tok == 1 ? row_at(matrix, first + CHUNK) : NULL,
                                    .stride = matrix->stride_bytes,
                                    .lines = (plan.row_bytes + LINE - 1) / LINE,
                                    .n_at_rounding = plan.group == 0 ? 0 : CHUNK / 8};
    for (uint32_t n = 0; n < CHUNK && has_next && n_tok > 1; n++) /* its scales, which it needs at once */
        for (size_t at = plan.scales; at < plan.row_bytes; at += LINE)
            ask_line(row_at(matrix, first + CHUNK + n) + at);
    for (uint32_t t = 0; t < n_tok; t += HELD) {
        const uint32_t held = n_tok - t < HELD ? n_tok - t : HELD;
        for (size_t from = 0; from < spans; from += panel) {
            const size_t to = spans - from < panel ? spans : from + panel;
            const size_t first_group = plan.group == 0 ? 0 : from * SPAN / plan.group;
            for (uint32_t i = 0; i < held; i++) {
                const float *row = h + (t + i) * h_stride;
                if (plan.group == 0)
                    round_channel(dtype, &plan, &rows, row, &weights[i]);
                for (size_t g = 0; plan.group != 0 && g < (to - from) * SPAN / plan.group; g += LANES)
                    round_groups(dtype, &plan, &rows, &next, row, first_group + g, g, &weights[i]);
            }
            if (held == 1)
                sum_once(dtype, &plan, &rows, &next, weights, first_group, from, to, y + t * y_stride);
            else
                sum_many(dtype, &plan, &rows, weights, held, first_group, from, to, y + t * y_stride,
                         y_stride);
        }
    }
}

/* ---- by codec ---- */

/* Calls function(dtype, ...) with the matrix's dtype as a constant. */
#define OF_DTYPE(dtype, function, ...)                                                                       \
    case dtype:                                                                                              \
        function(dtype, __VA_ARGS__);                                                                        \
        break;
#define WITH_DTYPE(function, ...)                                                                            \
    switch (matrix->codec.dtype) {                                                                           \
        OF_DTYPE(MOEC_DTYPE_INT2, function, __VA_ARGS__)                                                     \
        OF_DTYPE(MOEC_DTYPE_INT3, function, __VA_ARGS__)                                                     \
        OF_DTYPE(MOEC_DTYPE_INT4, function, __VA_ARGS__)                                                     \
        OF_DTYPE(MOEC_DTYPE_INT5, function, __VA_ARGS__)                                                     \
        OF_DTYPE(MOEC_DTYPE_INT6, function, __VA_ARGS__)                                                     \
        OF_DTYPE(MOEC_DTYPE_INT8, function, __VA_ARGS__)                                                     \
    default:                                                                                                 \
        break;                                                                                               \
    }

static void dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                const struct moec_int8_span *const *x, uint32_t n_tok, float *y, size_t y_stride)
{
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS)
        dot_all(TRELLIS, false, matrix, first, some, n_rows, x, n_tok, y, y_stride);
    else if (moec_scheme_has_zeros((enum moec_scheme)matrix->codec.scheme))
        WITH_DTYPE(dot_all, true, matrix, first, some, n_rows, x, n_tok, y, y_stride)
    else
        WITH_DTYPE(dot_all, false, matrix, first, some, n_rows, x, n_tok, y, y_stride)
}

static void sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
                      const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    if (n_rows == 0) {
        for (uint32_t t = 0; t < n_tok; t++)
            memset(y + t * y_stride, 0, matrix->columns * sizeof *y);
        return;
    }
    if (matrix->codec.scheme == MOEC_SCHEME_TRELLIS)
        sum_all(TRELLIS, matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
    else
        WITH_DTYPE(sum_all, matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride)
}

#if defined(MOEC_KERNELS_WATCHED)
/* As runtime/kernels/kernels_watched.h does for the canonical kernels. */
#define INT8_KERNEL(name) watched_##name

void __tsan_read_range(void *first, unsigned long n_bytes);
void __tsan_write_range(void *first, unsigned long n_bytes);

static void tell_rows(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++)
        __tsan_read_range((void *)(uintptr_t)row_at(matrix, first + (some != NULL ? some[i] : i)),
                          moec_codec_row_bytes(matrix->codec, matrix->columns));
}

static void watched_round_all(const float *x, size_t n, struct moec_int8_span *spans)
{
    __tsan_read_range((void *)(uintptr_t)x, n * sizeof *x);
    __tsan_write_range(spans, moec_int8_spans(n) * sizeof *spans);
    round_all(x, n, spans);
}

static void watched_dot(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                        uint32_t n_rows, const struct moec_int8_span *const *x, uint32_t n_tok, float *y,
                        size_t y_stride)
{
    tell_rows(matrix, first, some, n_rows);
    for (uint32_t t = 0; t < n_tok; t++) {
        __tsan_read_range((void *)(uintptr_t)x[t], moec_int8_spans(matrix->columns) * sizeof *x[t]);
        __tsan_write_range(y + t * y_stride, n_rows * sizeof *y);
    }
    dot(matrix, first, some, n_rows, x, n_tok, y, y_stride);
}

static void watched_sum_chunk(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                              uint32_t n_rows, const float *h, size_t h_stride, uint32_t n_tok, float *y,
                              size_t y_stride)
{
    tell_rows(matrix, first, some, n_rows);
    for (uint32_t t = 0; t < n_tok; t++) {
        __tsan_read_range((void *)(uintptr_t)(h + t * h_stride), n_rows * sizeof *h);
        __tsan_write_range(y + t * y_stride, matrix->columns * sizeof *y);
    }
    sum_chunk(matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride);
}
#else
#define INT8_KERNEL(name) name
#endif

#define INT8_KERNELS(set_name)                                                                               \
    {                                                                                                        \
        .name = (set_name), .round = INT8_KERNEL(round_all), .dot = INT8_KERNEL(dot),                        \
        .sum_chunk = INT8_KERNEL(sum_chunk)                                                                  \
    }

#endif
