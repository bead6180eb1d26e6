/* Rows of the shift scheme. */
#include "formats/base/bytes.h"
#include "formats/base/half.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/path_row.h"
#include "formats/codec/shift.h"

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

static void search(struct moec_codec codec, const float *weights, size_t n, float scale, void *choices,
                   uint8_t *codes)
{
    moec_shift_search(code_bits(codec.dtype), weights, n, scale, choices, codes);
}

static void values(struct moec_codec codec, const uint8_t *codes, size_t n, float *out)
{
    moec_shift_values(code_bits(codec.dtype), codes, n, out);
}

static float first_scale(struct moec_codec codec, const float *weights, size_t n)
{
    return moec_shift_scale(code_bits(codec.dtype), weights, NULL, n);
}

enum moec_status moec_shift_encode_row(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                       struct moec_error *err)
{
    const struct moec_path path = {search, values, first_scale, sizeof(struct moec_shift_choices), 0};
    return moec_path_encode_row(&path, codec, weights, n, row, err);
}

void moec_shift_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first, size_t count,
                            float *weights)
{
    const float scale = moec_f16_to_f32(load_u16(row + codes_bytes(codec, n)));
    const uint32_t bits = code_bits(codec.dtype);
    for (size_t i = 0; i < count; i++)
        weights[i] = (float)moec_shift_level(bits, row, first + i) * scale;
}
