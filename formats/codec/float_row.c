/* Rows of floats. */
#include "formats/base/half.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/encode_loops.h"

enum moec_status moec_floats_encode_row(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                        struct moec_error *err)
{
    const uint32_t top_bits = moec_codec_range(weights, n).top_bits;
    if (top_bits >= F32_INF)
        return moec_codec_fail_not_finite(weights, n, err);
    size_t first = 0;
    if (codec.dtype == MOEC_DTYPE_BF16 && moec_f32_to_bf16(moec_f32_from_bits(top_bits)) < BF16_INF) {
        first = n / BLOCK * BLOCK;
        moec_encode_loops()->to_bf16(weights, first, row);
    }
    for (size_t i = first; i < n; i++) {
        uint16_t half, infinity;
        if (codec.dtype == MOEC_DTYPE_F32) {
            store_u32(row + 4 * i, moec_f32_bits(weights[i]));
            continue;
        }
        if (codec.dtype == MOEC_DTYPE_F16) {
            half = moec_f32_to_f16(weights[i]);
            infinity = F16_INF;
        } else {
            half = moec_f32_to_bf16(weights[i]);
            infinity = BF16_INF;
        }
        if ((half & 0x7fff) >= infinity)
            return moec_fail(err, MOEC_ERR_FORMAT, "weight %zu of the row, %g, overflows %s", i, weights[i],
                             codec.dtype == MOEC_DTYPE_F16 ? "F16" : "BF16");
        store_u16(row + 2 * i, half);
    }
    return MOEC_OK;
}

void moec_floats_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
                             size_t count, float *weights)
{
    (void)n;
    const size_t whole = count / BLOCK * BLOCK;
    row += first * moec_codec_bits(codec) / 8;
    switch (codec.dtype) {
    case MOEC_DTYPE_F32:
        for (size_t i = 0; i < count; i++)
            weights[i] = moec_f32_from_bits(load_u32(row + 4 * i));
        break;
    case MOEC_DTYPE_F16:
        for (size_t i = 0; i < count; i++)
            weights[i] = moec_f16_to_f32(load_u16(row + 2 * i));
        break;
    default:
        moec_encode_loops()->from_bf16(row, whole, weights);
        for (size_t i = whole; i < count; i++)
            weights[i] = moec_bf16_to_f32(load_u16(row + 2 * i));
        break;
    }
}

bool moec_floats_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n)
{
    if (codec.dtype != MOEC_DTYPE_F32)
        return !moec_codec_has_infinity(row, n, codec.dtype == MOEC_DTYPE_BF16 ? BF16_INF : F16_INF);
    for (size_t i = 0; i < n; i++)
        if ((load_u32(row + 4 * i) & 0x7fffffffu) >= F32_INF)
            return false;
    return true;
}
