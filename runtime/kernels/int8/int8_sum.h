/* Weighted sums of the int8 arithmetic: part of runtime/kernels/int8/int8_set.h. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_SUM_H
#define MOEC_RUNTIME_KERNELS_INT8_SUM_H

#include "runtime/kernels/int8/int8_lanes.h"

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
 * follow, so all of them are asked for while the chunk before is computed: line by line, in streams that
 * prefetchers do follow. Two cores read INT8 and INT4 in groups of 32 at 26 GB/s in place of 22 and 23. */
struct next_chunk {
    const uint8_t *line;                   /* of the first stream what comes next */
    size_t of_row, row_left;               /* lines of a row, or of all where rows follow each other */
    size_t gap;                            /* from a row's last line to the next row's first */
    size_t apart;                          /* how far behind it the others' lie */
    size_t left;                           /* lines of a stream */
    uint32_t due, rounding_pace, sum_pace; /* lines that a quad asks for in each, in 1 / WHOLE_LINE */
};

INLINE void next_ask(struct next_chunk *next, uint32_t pace)
{
    next->due += pace;
    for (; next->due >= WHOLE_LINE && next->left > 0; next->due -= WHOLE_LINE, next->left--) {
        UNROLL
        for (size_t i = 0; i < REGION_STREAMS; i++)
            ask_line(next->line + i * next->apart);
        next->line += LINE;
        if (--next->row_left == 0) {
            next->line += next->gap;
            next->row_left = next->of_row;
        }
    }
}

/* Groups g .. g + 15, of which those from `at` on are written. */
INLINE void round_groups(const int dtype, const struct plan *plan, const struct sum_rows *rows,
                         struct next_chunk *next, const float *h, size_t g, size_t at,
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
        next_ask(next, next->rounding_pace);
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
#if defined(HAS_QUADS)
    if (dtype > SHIFT) {
        shift_quads((uint32_t)(dtype - SHIFT), at, is_first, out);
        return;
    }
#endif
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
                        size_t s, words sums[8], float *y)
{
#if defined(HAS_QUADS)
    if (dtype > SHIFT)
        shift_quads_order(sums);
#endif
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
                     struct next_chunk *next, const struct weights *weights, size_t first_group, size_t from,
                     size_t to, float *y)
{
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
            next_ask(next, next->sum_pace);
            const words factors = words_spread(weights->quads[quad] + at, places);
            quad_open(dtype, plan, rows, quad, s, tails, starts);
#if defined(HAS_QUADS)
            if (dtype > SHIFT) {
                shift_quads_products((uint32_t)(dtype - SHIFT), starts, s == 0, factors, out);
                continue;
            }
#endif
            quad_at(dtype, starts, s == 0, q);
            UNROLL
            for (int i = 0; i < 8; i++)
                out[i] = words_dot(dtype, out[i], q[i], factors);
        }
        sums_finish(dtype, plan, weights, at, s, out, y);
    }
}

#if defined(HAS_MATRICES)
#include "runtime/kernels/int8/int8_sum_i8mm.h"
#else
/* Span s for some tokens, from its codes taken apart. */
INLINE void span_sums(const int dtype, const struct plan *plan, const uint8_t tile[QUADS][8][64],
                      uint32_t quads, const struct weights *weights, size_t at, size_t s, uint32_t n_tok,
                      float *y, size_t y_stride)
{
    const words places = spread_places(plan->per_span);
    for (uint32_t t = 0; t < n_tok; t++) {
        words out[8];
        UNROLL
        for (int i = 0; i < 8; i++)
            out[i] = words_zero();
        for (uint32_t quad = 0; quad < quads; quad++) {
            const words factors = words_spread(weights[t].quads[quad] + at, places);
            UNROLL
            for (int i = 0; i < 8; i++)
                out[i] = words_dot(dtype, out[i], words_load(tile[quad][i]), factors);
        }
        sums_finish(dtype, plan, weights + t, at, s, out, y + t * y_stride);
    }
}
#endif

/* The same for some tokens: the codes of a span are taken apart once for all. */
INLINE void sum_many(const int dtype, const struct plan *plan, const struct sum_rows *rows,
                     struct next_chunk *next, const struct weights *weights, uint32_t n_tok,
                     size_t first_group, size_t from, size_t to, float *y, size_t y_stride)
{
    _Alignas(64) uint8_t tile[QUADS][8][64];
    uint8_t tails[4][BEFORE + SPAN];
    const uint8_t *starts[4];
    for (size_t s = from; s < to; s++) {
        const size_t at = group_of(plan, s, first_group);
        for (uint32_t quad = 0; quad < rows->quads; quad++) {
            words q[8];
            next_ask(next, next->sum_pace);
            quad_open(dtype, plan, rows, quad, s, tails, starts);
            quad_at(dtype, starts, s == 0, q);
            UNROLL
            for (int i = 0; i < 8; i++)
                words_store(tile[quad][i], q[i]);
        }
        span_sums(dtype, plan, tile, rows->quads, weights, at, s, n_tok, y, y_stride);
    }
}

/* An eighth of it while activations are rounded, where that is work. */
INLINE struct next_chunk next_chunk(const struct plan *plan, const struct moec_matrix *matrix, uint32_t first)
{
    const size_t n_row = CHUNK / REGION_STREAMS, part = n_row * matrix->stride_bytes;
    const bool rows_follow = matrix->stride_bytes < plan->row_bytes + LINE;
    const size_t of_row = ((rows_follow ? part : plan->row_bytes) + LINE - 1) / LINE,
                 lines = rows_follow ? of_row : n_row * of_row;
    const size_t all = lines * WHOLE_LINE, rounding = plan->group == 0 ? 0 : all / 8;
    const size_t roundings = QUADS * ((plan->groups + LANES - 1) / LANES),
                 sums = QUADS * moec_int8_spans(plan->columns);
    return (struct next_chunk){.line = row_at(matrix, first),
                               .of_row = of_row,
                               .row_left = of_row,
                               .gap = rows_follow ? 0 : matrix->stride_bytes - of_row * LINE,
                               .apart = part,
                               .left = lines,
                               .rounding_pace = (uint32_t)(rounding / roundings),
                               .sum_pace = (uint32_t)((all - rounding + sums - 1) / sums)};
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
    struct next_chunk next = {0};
    if (has_next)
        next = next_chunk(&plan, matrix, first + CHUNK);
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
                sum_many(dtype, &plan, &rows, &next, weights, held, first_group, from, to, y + t * y_stride,
                         y_stride);
        }
    }
}

FOR_ANY_DTYPE(sum_all,
              (const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
               const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride),
              (matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride))

#endif
