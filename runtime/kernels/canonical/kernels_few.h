/* Products of encoded rows with a few tokens, of the kernels that are written once for all vector instruction
 * sets: each block of weights is decoded once for FEW_TOKENS of them and never written, which spares what
 * decoding a tile first writes and reads again. Part of runtime/kernels/canonical/kernels_lanes.h. */
#ifndef MOEC_RUNTIME_KERNELS_FEW_H
#define MOEC_RUNTIME_KERNELS_FEW_H

#include "runtime/kernels/canonical/kernels_encoded.h"

_Static_assert(FEW_TOKENS == 3, "groups of tokens are of 3 and 2");
_Static_assert(FEW_ROWS <= CODE_ROWS, "rows at work have room");

/* Tokens side by side: their inputs or factors, and where their results go. */
struct tokens {
    const float *x;
    size_t x_stride;
    float *y;
    size_t y_stride;
};

INLINE const float *token_x(const struct tokens *tokens, const int t)
{
    return tokens->x + (size_t)t * tokens->x_stride;
}

INLINE float *token_y(const struct tokens *tokens, const int t)
{
    return tokens->y + (size_t)t * tokens->y_stride;
}

/* The decoders of a row's last block, which is incomplete, and its weights. */
INLINE void few_tail(const int dtype, const struct layout *layout, const struct rows *rows, const int r,
                     lanes w[2])
{
    struct decoder decoders[2];
    decoders_at(dtype, layout, rows->bytes[r], rows->factors[r], layout->groups - 1, decoders);
    decode_tail(dtype, rows->bytes[r] + layout->blocks * block_bytes(dtype), decoders, layout->tail, w);
}

/* Rows number i .. i + n - 1 of those chosen against nt tokens, n <= FEW_ROWS. A row's decoder is made anew
 * for each block: the sums take the registers that could keep it. */
INLINE void few_dots_rows(const int nt, const int dtype, const struct moec_matrix *matrix,
                          const struct layout *layout, const struct chosen *chosen, uint32_t i, uint32_t n,
                          const struct tokens *tokens)
{
    struct rows rows;
    struct strip strip = {0};
    size_t first_group = 0;
    lanes sums[FEW_ROWS * FEW_TOKENS], w[2];
    struct ahead ahead = ahead_of(FEW_ROWS, matrix, chosen, i + layout->ahead_rows);
    rows_open(FEW_ROWS, dtype, matrix, layout, chosen, i, &rows);
    UNROLL
    for (int j = 0; j < FEW_ROWS * nt; j++)
        sums[j] = lanes_zero();
    while (next_strip(FEW_ROWS, dtype, layout, &rows, &first_group, &strip)) {
        size_t b = strip.b;
        for (size_t g = 0; b < strip.end; g++) {
            const size_t end = strip.end - b < layout->per_group ? strip.end : b + layout->per_group;
            do {
                rows_ask(FEW_ROWS, matrix, layout, chosen, &ahead);
                UNROLL
                for (int r = 0; r < FEW_ROWS; r++) {
                    const struct decoder decoder = rows_decoder(dtype, layout, &rows, r, g);
                    decode_block(dtype, rows.bytes[r] + b * block_bytes(dtype), &decoder, w);
                    UNROLL
                    for (int t = 0; t < nt; t++) {
                        const float *x = token_x(tokens, t) + b * BLOCK;
                        sums[r * nt + t] = lanes_fma(lanes_load(x), w[0], sums[r * nt + t]);
                        sums[r * nt + t] = lanes_fma(lanes_load(x + LANES), w[1], sums[r * nt + t]);
                    }
                }
            } while (++b < end);
        }
    }
    if (layout->tail > 0) {
        const size_t at = layout->blocks * BLOCK;
        UNROLL
        for (int r = 0; r < FEW_ROWS; r++) {
            few_tail(dtype, layout, &rows, r, w);
            UNROLL
            for (int t = 0; t < nt; t++) {
                const float *x = token_x(tokens, t) + at;
                sums[r * nt + t] = lanes_fma(lanes_load(x), w[0], sums[r * nt + t]);
                if (layout->tail > LANES)
                    sums[r * nt + t] = lanes_fma(lanes_load(x + LANES), w[1], sums[r * nt + t]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < FEW_ROWS; r++) {
        UNROLL
        for (int t = 0; t < nt; t++)
            if ((uint32_t)r < n)
                token_y(tokens, t)[i + (uint32_t)r] = lanes_sum(sums[r * nt + t]);
    }
}

INLINE void few_dots(const int nt, const int dtype, const struct moec_matrix *matrix,
                     const struct layout *layout, const struct chosen *chosen, const struct tokens *tokens)
{
    const uint32_t n_rows = chosen->n;
    for (uint32_t r = 0; r < n_rows; r += FEW_ROWS)
        few_dots_rows(nt, dtype, matrix, layout, chosen, r, n_rows - r < FEW_ROWS ? n_rows - r : FEW_ROWS,
                      tokens);
    for (uint32_t r = 0; decoder_needs_regular(dtype) && r < n_rows; r++) {
        const uint32_t row = chosen_row(chosen, r);
        for (int t = 0; t < nt && !row_is_regular(dtype, layout, row_at(matrix, row)); t++)
            token_y(tokens, t)[r] = dot_defined(matrix, row, token_x(tokens, t));
    }
}

/* y[t] += h[t][i + r] * row i + r of those chosen, for nr rows in order and nt tokens, whose factors are the
 * inputs. The sums start at 0 with the first row. */
INLINE void few_sums_rows(const int nr, const int nt, const int dtype, const struct moec_matrix *matrix,
                          const struct layout *layout, const struct chosen *chosen, uint32_t i,
                          const struct tokens *tokens)
{
    struct rows rows;
    struct strip strip = {0};
    size_t first_group = 0;
    lanes sums[2 * FEW_TOKENS], w[2];
    struct ahead ahead = ahead_of(nr, matrix, chosen, i + layout->ahead_rows);
    rows_open(nr, dtype, matrix, layout, chosen, i, &rows);
    while (next_strip(nr, dtype, layout, &rows, &first_group, &strip)) {
        size_t b = strip.b;
        for (size_t g = 0; b < strip.end; g++) {
            const size_t end = strip.end - b < layout->per_group ? strip.end : b + layout->per_group;
            do {
                rows_ask(nr, matrix, layout, chosen, &ahead);
                UNROLL
                for (int t = 0; t < nt; t++) {
                    const float *y = token_y(tokens, t) + b * BLOCK;
                    sums[2 * t] = i == 0 ? lanes_zero() : lanes_load(y);
                    sums[2 * t + 1] = i == 0 ? lanes_zero() : lanes_load(y + LANES);
                }
                UNROLL
                for (int r = 0; r < nr; r++) {
                    const struct decoder decoder = rows_decoder(dtype, layout, &rows, r, g);
                    decode_block(dtype, rows.bytes[r] + b * block_bytes(dtype), &decoder, w);
                    UNROLL
                    for (int t = 0; t < nt; t++) {
                        const lanes factor = lanes_set(token_x(tokens, t)[i + (uint32_t)r]);
                        sums[2 * t] = lanes_fma(factor, w[0], sums[2 * t]);
                        sums[2 * t + 1] = lanes_fma(factor, w[1], sums[2 * t + 1]);
                    }
                }
                UNROLL
                for (int t = 0; t < nt; t++) {
                    lanes_store(token_y(tokens, t) + b * BLOCK, sums[2 * t]);
                    lanes_store(token_y(tokens, t) + b * BLOCK + LANES, sums[2 * t + 1]);
                }
            } while (++b < end);
        }
    }
    for (int t = 0; t < nt && layout->tail > 0; t++) {
        float *y = token_y(tokens, t) + layout->blocks * BLOCK, last[BLOCK] = {0};
        if (i > 0)
            memcpy(last, y, layout->tail * sizeof *y);
        sums[0] = lanes_load(last);
        sums[1] = lanes_load(last + LANES);
        UNROLL
        for (int r = 0; r < nr; r++) {
            const lanes factor = lanes_set(token_x(tokens, t)[i + (uint32_t)r]);
            few_tail(dtype, layout, &rows, r, w);
            sums[0] = lanes_fma(factor, w[0], sums[0]);
            sums[1] = lanes_fma(factor, w[1], sums[1]);
        }
        lanes_store(last, sums[0]);
        lanes_store(last + LANES, sums[1]);
        memcpy(y, last, layout->tail * sizeof *y);
    }
}

/* By the definition where one is not regular. */
INLINE void few_sums_of_any(const int nr, const int nt, const int dtype, const struct moec_matrix *matrix,
                            const struct layout *layout, const struct chosen *chosen, uint32_t i,
                            const struct tokens *tokens)
{
    bool regular = true;
    for (uint32_t r = i; r < i + (uint32_t)nr; r++)
        regular = regular && row_is_regular(dtype, layout, row_at(matrix, chosen_row(chosen, r)));
    if (regular)
        few_sums_rows(nr, nt, dtype, matrix, layout, chosen, i, tokens);
    for (int t = 0; t < nt && !regular; t++)
        for (uint32_t r = i; r < i + (uint32_t)nr; r++)
            sum_defined(matrix, chosen_row(chosen, r), token_x(tokens, t)[r], r == 0, token_y(tokens, t));
}

INLINE void few_sums(const int nt, const int dtype, const struct moec_matrix *matrix,
                     const struct layout *layout, const struct chosen *chosen, const struct tokens *tokens)
{
    uint32_t r = 0;
    for (; chosen->n - r >= CODE_ROWS; r += CODE_ROWS)
        few_sums_of_any(CODE_ROWS, nt, dtype, matrix, layout, chosen, r, tokens);
    for (; r < chosen->n; r++)
        few_sums_of_any(1, nt, dtype, matrix, layout, chosen, r, tokens);
}

#define EACH_FEW_INTEGER(of, name, flags)                                                                    \
    of(name##2, MOEC_DTYPE_INT2 | (flags));                                                                  \
    of(name##3, MOEC_DTYPE_INT3 | (flags));                                                                  \
    of(name##4, MOEC_DTYPE_INT4 | (flags));                                                                  \
    of(name##8, MOEC_DTYPE_INT8 | (flags));
/* The kinds that weights mostly have. */
#define EACH_FEW(of)                                                                                         \
    of(bf16, MOEC_DTYPE_BF16);                                                                               \
    EACH_FEW_INTEGER(of, int, 0)                                                                             \
    EACH_FEW_INTEGER(of, nested, NESTED)                                                                     \
    EACH_LIFTED(of)

#define KIND_FEW(name, kind)                                                                                 \
    static NEVER_INLINE void few_dots_##name(const struct moec_matrix *matrix, const struct chosen *chosen,  \
                                             const struct tokens *tokens, uint32_t n_tok)                    \
    {                                                                                                        \
        const struct layout layout = layout_of(kind, matrix);                                                \
        if (n_tok == 2)                                                                                      \
            few_dots(2, kind, matrix, &layout, chosen, tokens);                                              \
        else                                                                                                 \
            few_dots(FEW_TOKENS, kind, matrix, &layout, chosen, tokens);                                     \
    }                                                                                                        \
    static NEVER_INLINE void few_sums_##name(const struct moec_matrix *matrix, const struct chosen *chosen,  \
                                             const struct tokens *h, uint32_t n_tok)                         \
    {                                                                                                        \
        const struct layout layout = layout_of(kind, matrix);                                                \
        if (n_tok == 2)                                                                                      \
            few_sums(2, kind, matrix, &layout, chosen, h);                                                   \
        else                                                                                                 \
            few_sums(FEW_TOKENS, kind, matrix, &layout, chosen, h);                                          \
    }
EACH_FEW(KIND_FEW)

#define CASE_FEW_DOTS(name, kind)                                                                            \
    case kind:                                                                                               \
        few_dots_##name(matrix, &chosen, &tokens, n_tok);                                                    \
        return true
#define CASE_FEW_SUMS(name, kind)                                                                            \
    case kind:                                                                                               \
        few_sums_##name(matrix, &chosen, &factors, n_tok);                                                   \
        return true

/* Two or three tokens, if rows are of such a kind. */
static bool dot_few(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                    size_t x_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    const struct chosen chosen = {first, n_rows, NULL};
    const struct tokens tokens = {x, x_stride, y, y_stride};
    if (n_tok < 2 || n_tok > FEW_TOKENS || n_rows == 0 || !moec_kernels_decode_parts(matrix->codec))
        return false;
    switch (kind_of(matrix->codec)) {
        EACH_FEW(CASE_FEW_DOTS)
    default:
        return false;
    }
}

static bool sum_chunk_few(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *h,
                          size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    const struct chosen chosen = {first, n_rows, NULL};
    const struct tokens factors = {h, h_stride, y, y_stride};
    if (n_tok < 2 || n_tok > FEW_TOKENS || n_rows == 0 || !moec_kernels_decode_parts(matrix->codec))
        return false;
    switch (kind_of(matrix->codec)) {
        EACH_FEW(CASE_FEW_SUMS)
    default:
        return false;
    }
}

#endif
