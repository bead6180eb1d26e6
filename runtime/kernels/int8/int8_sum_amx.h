/* Weighted sums of many tokens of the int8 arithmetic on AMX: part of runtime/kernels/int8/int8_avx512_amx.c. The
 * rounded activations of 16 tokens are one operand, those of a group's columns being 64 bytes a token, and
 * the codes of 64 neurons and 16 columns the other. */
#ifndef MOEC_RUNTIME_KERNELS_INT8_SUM_AMX_H
#define MOEC_RUNTIME_KERNELS_INT8_SUM_AMX_H

#include "runtime/kernels/int8/int8_tiles.h"

/* A panel's codes and scales. Four neurons of a column stand together, those of quad 4 i + l at place 4 l +
 * i, which is where packing four registers of 16 neurons puts them. */
struct sum_panel {
    _Alignas(64) uint8_t codes[PANEL_SPANS][8][16][64]; /* [span][2 block + half][place][4 column + neuron] */
    float scales[LANES][CHUNK];                         /* [group][neuron], 0 past the last neuron */
    uint8_t zeros[LANES][CHUNK];                        /* [group][4 place + neuron] */
    size_t from, n_spans;
    uint32_t n_groups;
    int per_span;
};

/* Rounded activations of 16 tokens, [group][token][4 place + neuron], and what belongs to [token][group]. */
struct sum_tokens {
    _Alignas(64) int8_t q[LANES][16][CHUNK];
    float scales[16][LANES], origins[16][LANES];
};

struct sum_rows_amx {
    const uint8_t *bytes[CHUNK]; /* the last stands for those that are missing */
    float factors[CHUNK];
    uint32_t n;
};

INLINE uint32_t place_of(uint32_t quad)
{
    return quad % 4 * 4 + quad / 4;
}

/* Blocks' halves of four rows, column by column. */
INLINE void quad_store(const words half[4], const int h, uint32_t place, uint8_t codes[8][16][64])
{
    const words a = _mm512_shuffle_i32x4(half[0], half[1], 0x44),
                b = _mm512_shuffle_i32x4(half[2], half[3], 0x44);
    const words c = _mm512_shuffle_i32x4(half[0], half[1], 0xee),
                d = _mm512_shuffle_i32x4(half[2], half[3], 0xee);
    const words by_block[4] = {_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd),
                               _mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd)};
    const words four = _mm512_set1_epi32(0x30201000);
    const words columns = _mm512_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505,
                                            0x06060606, 0x07070707, 0x08080808, 0x09090909, 0x0a0a0a0a,
                                            0x0b0b0b0b, 0x0c0c0c0c, 0x0d0d0d0d, 0x0e0e0e0e, 0x0f0f0f0f);
    UNROLL
    for (int block = 0; block < 4; block++)
        words_store(codes[2 * block + h][place],
                    _mm512_permutexvar_epi8(_mm512_add_epi8(four, columns), by_block[block]));
}

INLINE void sum_codes(const int dtype, const bool has_zeros, const struct plan *plan,
                      const struct sum_rows_amx *rows, struct sum_panel *panel)
{
    const words less = _mm512_set1_epi8((char)(has_zeros ? 0 : TILE_OFFSET(dtype)));
    for (size_t s = 0; s < panel->n_spans; s++) {
        for (uint32_t quad = 0; quad < QUADS; quad++) {
            words halves[2][4];
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                uint8_t tail[BEFORE + SPAN];
                const size_t span = panel->from + s;
                const uint8_t *at = rows->bytes[4 * quad + i] + span * plan->span_bytes;
                for (size_t line = 0; line < plan->span_bytes; line += LINE)
                    ask_line(at + PANEL_SPANS * plan->span_bytes + line);
                if (span == plan->whole)
                    at = tail_copied(dtype, plan, at, span == 0, tail);
                const struct codes codes = codes_at(dtype, at, span == 0);
                halves[0][i] = _mm512_sub_epi8(codes.half[0], less);
                halves[1][i] = _mm512_sub_epi8(codes.half[1], less);
            }
            quad_store(halves[0], 0, place_of(quad), panel->codes[s]);
            quad_store(halves[1], 1, place_of(quad), panel->codes[s]);
        }
    }
}

INLINE void sum_groups(const int dtype, const bool has_zeros, const struct plan *plan,
                       const struct sum_rows_amx *rows, struct sum_panel *panel)
{
    const size_t g = plan->group == 0 ? 0 : panel->from * (size_t)plan->per_span, strip = g / LANES * LANES;
    for (uint32_t n = 0; n < CHUNK; n += 4) {
        lanes of_rows[4], by_group[4];
        float scales[LANES][4];
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *row = rows->bytes[n + i];
            of_rows[i] = n + i >= rows->n   ? lanes_zero()
                         : plan->group == 0 ? lanes_set(rows->factors[n + i])
                                            : scales_at(plan, row, rows->factors[n + i], strip);
        }
        lanes_by_fours(of_rows, by_group);
        UNROLL
        for (int k = 0; k < LANES; k++)
            fours_store(scales[k], lanes_four(by_group[k % 4], k / 4));
        for (size_t k = 0; k + g % LANES < LANES; k++)
            memcpy(panel->scales[k] + n, scales[k + g % LANES], sizeof scales[k]);
        for (uint32_t i = 0; has_zeros && i < 4; i++) {
            uint8_t zeros[LANES];
            words_store_low_bytes(
                zeros,
                words_of_lanes(plan->group == 0 ? lanes_set((float)row_zero(dtype, plan, rows->bytes[n + i]))
                                                : zeros_at(dtype, plan, rows->bytes[n + i], strip)));
            for (size_t k = 0; k + g % LANES < LANES; k++)
                panel->zeros[k][4 * place_of(n / 4) + i] = zeros[k + g % LANES];
        }
    }
}

/* The largest of 16 magnitudes of each of four registers, as bits. */
INLINE fours tops_of(const words m[4])
{
    const words low = words_top(_mm512_unpacklo_epi32(m[0], m[1]), _mm512_unpackhi_epi32(m[0], m[1]));
    const words high = words_top(_mm512_unpacklo_epi32(m[2], m[3]), _mm512_unpackhi_epi32(m[2], m[3]));
    const words all = words_top(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_castsi128_ps(_mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

/* Rounds the activations of token t, four registers, for a panel's groups. */
INLINE void round_token(const bool has_zeros, const struct sum_panel *panel, const lanes h[4], uint32_t t,
                        struct sum_tokens *tokens)
{
    const words magnitude = words_set(0x7fffffff);
    for (uint32_t g = 0; g < panel->n_groups; g += 4) {
        lanes v[4][4];
        words tops[4], dots[4];
        float inverses[4];
        UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            words m[4];
            UNROLL
            for (int i = 0; i < 4; i++) {
                v[k][i] = lanes_mul(h[i], lanes_load(panel->scales[g + k] + LANES * i));
                m[i] = words_and(lanes_as_words(v[k][i]), magnitude);
            }
            tops[k] = words_top(words_top(m[0], m[1]), words_top(m[2], m[3]));
        }
        const fours top = tops_of(tops), most = fours_set(127.0f);
        const __mmask8 is_large = _mm_cmp_ps_mask(top, fours_set(MOEC_INT8_SMALL), _CMP_GT_OQ);
        fours_store(inverses, _mm_maskz_div_ps(is_large, most, top));
        fours_store(tokens->scales[t] + g, _mm_div_ps(top, most));
        UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const lanes inverse = lanes_set(inverses[k]);
            words q[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                q[i] = words_of_lanes(lanes_min(lanes_mul(v[k][i], inverse), lanes_set(127.0f)));
            const words packed =
                _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
            words_store(tokens->q[g + k][t], packed);
            if (has_zeros)
                dots[k] = _mm512_dpbusd_epi32(words_zero(), words_load(panel->zeros[g + k]), packed);
        }
        if (has_zeros) {
            const lanes of_zeros = lanes_of_words(words_by_fours(dots));
            fours_store(tokens->origins[t] + g, (lanes_four(of_zeros, 0) + lanes_four(of_zeros, 1)) +
                                                    (lanes_four(of_zeros, 2) + lanes_four(of_zeros, 3)));
        }
    }
}

/* 16 columns of up to 16 tokens. */
INLINE void columns_store(const bool has_zeros, tile_sums sums, const struct sum_tokens *tokens, uint32_t g,
                          uint32_t n_tok, size_t n, float *y, size_t y_stride)
{
    for (uint32_t t = 0; t < n_tok; t++) {
        lanes exact = lanes_of_words(words_load(sums[t]));
        if (has_zeros)
            exact = lanes_sub(exact, lanes_set(tokens->origins[t][g]));
        const lanes value = lanes_mul(exact, lanes_set(tokens->scales[t][g]));
        if (n >= LANES)
            lanes_store(y + t * y_stride, value);
        else
            lanes_store_some(y + t * y_stride, n, value);
    }
}

/* The panel's columns of 16 tokens or fewer. */
INLINE void panel_sum(const bool has_zeros, const struct sum_panel *panel, size_t columns,
                      const struct sum_tokens *tokens, uint32_t n_tok, float *y, size_t y_stride)
{
    _Alignas(64) tile_sums sums[2];
    for (size_t s = 0; s < panel->n_spans; s++) {
        for (uint32_t block = 0; block < 4; block++) {
            const uint32_t g = panel->n_groups == 1 ? 0
                                                    : (uint32_t)s * (uint32_t)panel->per_span +
                                                          block * (uint32_t)panel->per_span / 4;
            const size_t column = (panel->from + s) * SPAN + block * BLOCK;
            _tile_loadd(0, tokens->q[g][0], CHUNK);
            _tile_loadd(1, panel->codes[s][2 * block][0], 64);
            _tile_loadd(2, panel->codes[s][2 * block + 1][0], 64);
            _tile_zero(6);
            _tile_zero(7);
            if (has_zeros) {
                _tile_dpbsud(6, 0, 1);
                _tile_dpbsud(7, 0, 2);
            } else {
                _tile_dpbssd(6, 0, 1);
                _tile_dpbssd(7, 0, 2);
            }
            _tile_stored(6, sums[0], 64);
            _tile_stored(7, sums[1], 64);
            for (size_t half = 0; half < 2 && column + 16 * half < columns; half++)
                columns_store(has_zeros, sums[half], tokens, g, n_tok, columns - column - 16 * half,
                              y + column + 16 * half, y_stride);
        }
    }
}

/* The tokens of a panel, whose codes and scales are taken apart; one function for all dtypes. */
INLINE void tokens_sum(const bool has_zeros, const struct sum_panel *panel, size_t columns, uint32_t n_rows,
                       const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    struct sum_tokens tokens;
    memset(&tokens, 0, sizeof tokens);
    for (uint32_t first = 0; first < n_tok; first += 16) {
        const uint32_t n = n_tok - first < 16 ? n_tok - first : 16;
        for (uint32_t t = 0; t < n; t++) {
            const float *row = h + (first + t) * h_stride;
            lanes of_token[4];
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t left = n_rows > LANES * i ? n_rows - LANES * i : 0;
                of_token[i] = lanes_load_some(row + LANES * i, left < LANES ? left : LANES);
            }
            round_token(has_zeros, panel, of_token, t, &tokens);
        }
        panel_sum(has_zeros, panel, columns, &tokens, n, y + first * y_stride, y_stride);
    }
}

static void tokens_sum_plain(const struct sum_panel *panel, size_t columns, uint32_t n_rows, const float *h,
                             size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    tokens_sum(false, panel, columns, n_rows, h, h_stride, n_tok, y, y_stride);
}

static void tokens_sum_zeros(const struct sum_panel *panel, size_t columns, uint32_t n_rows, const float *h,
                             size_t h_stride, uint32_t n_tok, float *y, size_t y_stride)
{
    tokens_sum(true, panel, columns, n_rows, h, h_stride, n_tok, y, y_stride);
}

INLINE void sum_all(const int dtype, const bool has_zeros, const struct moec_matrix *matrix, uint32_t first,
                    const uint8_t *some, uint32_t n_rows, const float *h, size_t h_stride, uint32_t n_tok,
                    float *y, size_t y_stride)
{
    const struct plan plan = plan_of(matrix);
    const size_t spans = moec_int8_spans(plan.columns);
    struct sum_rows_amx rows = {.n = n_rows};
    struct sum_panel panel = {.per_span = IS_PATH(dtype) ? 1 : plan.per_span};
    for (uint32_t n = 0; n < CHUNK; n++) {
        const uint32_t i = n < n_rows ? n : n_rows - 1;
        rows.bytes[n] = row_at(matrix, first + (some != NULL ? some[i] : i));
        rows.factors[n] = row_factor(&plan, rows.bytes[n]);
    }
    product_begin(1);
    for (panel.from = 0; panel.from < spans; panel.from += PANEL_SPANS) {
        panel.n_spans = spans - panel.from < PANEL_SPANS ? spans - panel.from : PANEL_SPANS;
        panel.n_groups = plan.group == 0 ? 1 : (uint32_t)panel.n_spans * (uint32_t)panel.per_span;
        sum_codes(dtype, has_zeros, &plan, &rows, &panel);
        sum_groups(dtype, has_zeros, &plan, &rows, &panel);
        (has_zeros ? tokens_sum_zeros : tokens_sum_plain)(&panel, plan.columns, n_rows, h, h_stride, n_tok, y,
                                                          y_stride);
    }
    product_end();
}

FOR_ANY_CODEC(sum_all,
              (const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n_rows,
               const float *h, size_t h_stride, uint32_t n_tok, float *y, size_t y_stride),
              (matrix, first, some, n_rows, h, h_stride, n_tok, y, y_stride))

#endif
