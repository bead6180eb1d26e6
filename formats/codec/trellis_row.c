/* Rows of the trellis scheme. */
#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/trellis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Coded bits, then free bits. */
void moec_trellis_pack_block(uint32_t bits, const uint8_t *codes, uint8_t *out)
{
    (void)bits;
    store_u32(out, moec_codec_gather_bit(codes, 0));
    store_u32(out + 4, moec_codec_gather_bit(codes, 1));
}

#define TRELLIS_ROUNDS 3 /* searches, with a scale fitted between them: later ones change next to nothing */

/* The scale of least squared error for the codes that there are; the old one where they say nothing. */
static float fitted_scale(const float *weights, const float *values, size_t n, float old)
{
    double product = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        product += (double)weights[i] * (double)values[i];
        square += (double)values[i] * (double)values[i];
    }
    return product > 0 ? (float)(product / square) : old;
}

static enum moec_status search_paths(const float *weights, size_t n, uint16_t *scale, float *values,
                                     uint64_t *choices, uint8_t *codes, struct moec_error *err)
{
    for (int round = 0;; round++) {
        const float old = moec_f16_to_f32(*scale);
        uint16_t next;
        moec_trellis_search(weights, n, old, choices, codes);
        moec_trellis_values(codes, n, values);
        MOEC_TRY(moec_codec_to_half(fitted_scale(weights, values, n, old), "scale", &next, err));
        if (round == TRELLIS_ROUNDS - 1 || next == *scale || next == 0)
            return MOEC_OK;
        *scale = next;
    }
}

enum moec_status moec_trellis_encode_row(struct moec_codec codec, const float *weights, size_t n,
                                         uint8_t *row, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    double squares = 0;
    uint16_t scale = 0;
    uint8_t stored[2];
    void *scratch = NULL;
    if (n == 0)
        return MOEC_OK;
    if (moec_codec_range(weights, n).top_bits >= F32_INF)
        return moec_codec_fail_not_finite(weights, n, err);
    for (size_t i = 0; i < n; i++)
        squares += (double)weights[i] * (double)weights[i];
    MOEC_TRY(moec_codec_to_half((float)sqrt(squares / (double)n), "scale", &scale, err));
    MOEC_TRY(moec_alloc(&scratch, n, sizeof(uint64_t) + sizeof(float) + 1, "the path of a row's codes", err));
    uint64_t *choices = scratch;
    float *values = (float *)(choices + n);
    uint8_t *codes = (uint8_t *)(values + n);
    memset(codes, MOEC_TRELLIS_FREE, n); /* levels above 0, for zeros without a sign */
    if (scale != 0)
        status = search_paths(weights, n, &scale, values, choices, codes, err);
    store_u16(stored, scale);
    if (status == MOEC_OK)
        moec_codec_pack_row(codec, codes, stored, NULL, n, row);
    free(scratch);
    return status;
}

void moec_trellis_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
                              size_t count, float *weights)
{
    const size_t block_bytes = 8;
    (void)codec;
    const float scale = moec_f16_to_f32(load_u16(row + (n + BLOCK - 1) / BLOCK * block_bytes));
    row += first / BLOCK * block_bytes;
    uint32_t before = first > 0 ? load_u32(row - block_bytes) : 0;
    for (size_t i = 0; i < count; i += BLOCK, row += block_bytes) {
        const size_t left = count - i < BLOCK ? count - i : BLOCK;
        const uint32_t coded = load_u32(row), free_bits = load_u32(row + 4);
        const struct moec_trellis_words words = moec_trellis_words(coded, before);
        for (size_t j = 0; j < left; j++) {
            const uint32_t level = (free_bits >> j & 1) << 2 | (words.z1 >> j & 1) << 1 | (words.z0 >> j & 1);
            weights[i + j] = moec_trellis_levels[level] * scale;
        }
        before = coded;
    }
}
