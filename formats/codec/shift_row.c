/* Rows of the shift scheme. A search needs a scale, and the best scale follows from the codes: they are found
 * in turns. */
#include "formats/base/bytes.h"
#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/shift.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 3 /* searches, with a scale fitted between them: later ones change next to nothing */

void moec_shift_pack_block(uint32_t bits, const uint8_t *codes, uint8_t *out)
{
    uint64_t coded = 0;
    uint8_t above[BLOCK];
    for (uint32_t i = 0; i < BLOCK; i++) {
        coded |= (uint64_t)(codes[i] & MOEC_SHIFT_CODED) << (2 * i);
        above[i] = codes[i] >> 2;
    }
    if (bits == 3)
        store_u32(out, moec_codec_gather_bit(above, 0));
    else if (bits == 4)
        moec_codec_pack_block(2, above, out);
    moec_put_u64(out + moec_shift_free_bytes(bits), coded);
}

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

/* Of n weights each. */
struct search {
    uint32_t bits;
    struct moec_shift_choices *choices;
    float *values;
    uint8_t *codes;
};

static enum moec_status search_paths(const struct search *search, const float *weights, size_t n,
                                     uint16_t *scale, struct moec_error *err)
{
    for (int round = 0;; round++) {
        const float old = moec_f16_to_f32(*scale);
        uint16_t next;
        moec_shift_search(search->bits, weights, n, old, search->choices, search->codes);
        moec_shift_values(search->bits, search->codes, n, search->values);
        MOEC_TRY(moec_codec_to_half(fitted_scale(weights, search->values, n, old), "scale", &next, err));
        if (round == ROUNDS - 1 || next == *scale || next == 0)
            return MOEC_OK;
        *scale = next;
    }
}

enum moec_status moec_shift_encode_row(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                       struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct search search = {.bits = code_bits(codec.dtype)};
    uint16_t scale = 0;
    uint8_t stored[2];
    void *scratch = NULL;
    if (n == 0)
        return MOEC_OK;
    if (moec_codec_range(weights, n).top_bits >= F32_INF)
        return moec_codec_fail_not_finite(weights, n, err);
    MOEC_TRY(moec_codec_to_half(moec_shift_scale(search.bits, weights, NULL, n), "scale", &scale, err));
    MOEC_TRY(moec_alloc(&scratch, n, sizeof *search.choices + sizeof *search.values + 1,
                        "the path of a row's codes", err));
    search.choices = scratch;
    search.values = (float *)(search.choices + n);
    search.codes = (uint8_t *)(search.values + n);
    memset(search.codes, 0, n);
    if (scale != 0)
        status = search_paths(&search, weights, n, &scale, err);
    store_u16(stored, scale);
    if (status == MOEC_OK)
        moec_codec_pack_row(codec, search.codes, stored, NULL, n, row);
    free(scratch);
    return status;
}

void moec_shift_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first, size_t count,
                            float *weights)
{
    const float scale = moec_f16_to_f32(load_u16(row + codes_bytes(codec, n)));
    const uint32_t bits = code_bits(codec.dtype);
    for (size_t i = 0; i < count; i++)
        weights[i] = (float)moec_shift_level(bits, row, first + i) * scale;
}
