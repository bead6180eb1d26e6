/* Rows of the gaussian and logarithmic schemes. */
#include "formats/base/half.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/dictionary.h"

#include <math.h>

/* Writes outliers and places: of every span the weight of the largest magnitude, the first of several. */
static enum moec_status keep_outliers(const float *weights, size_t n, uint8_t *outliers, uint8_t *places,
                                      struct moec_error *err)
{
    for (size_t at = 0; at < n; at += SPAN, outliers += 2) {
        const size_t left = n - at < SPAN ? n - at : SPAN;
        size_t top = 0;
        uint16_t half;
        for (size_t i = 1; i < left; i++)
            if (fabsf(weights[at + i]) > fabsf(weights[at + top]))
                top = i;
        MOEC_TRY(moec_codec_to_half(weights[at + top], "outlier", &half, err));
        store_u16(outliers, half);
        *places++ = (uint8_t)top;
    }
    return MOEC_OK;
}

enum moec_status moec_dictionary_encode_row(struct moec_codec codec, const float *weights, size_t n,
                                            uint8_t *row, struct moec_error *err)
{
    const enum moec_scheme scheme = (enum moec_scheme)codec.scheme;
    const uint32_t bits = code_bits(codec.dtype);
    const size_t width = codec.group == 0 ? n : codec.group, groups = moec_codec_row_groups(codec, n);
    uint8_t *scales = row + codes_bytes(codec, n), *outliers = scales + 2 * groups;
    uint8_t *places = outliers + 2 * moec_codec_row_outliers(codec, n);
    const bool has_outliers = scheme == MOEC_SCHEME_GAUSSIAN;
    if (moec_codec_range(weights, n).top_bits >= F32_INF)
        return moec_codec_fail_not_finite(weights, n, err);
    if (has_outliers)
        MOEC_TRY(keep_outliers(weights, n, outliers, places, err));
    for (size_t g = 0, at = 0; g < groups; g++) {
        const size_t end = n - at < width ? n : at + width;
        const struct moec_dictionary_group group = {weights, at, end - at, has_outliers ? places : NULL};
        const struct moec_dictionary_fit fit = moec_dictionary_fit(&group, scheme, bits);
        uint16_t scale;
        MOEC_TRY(moec_codec_to_half(fit.scale, "scale", &scale, err));
        store_u16(scales + 2 * g, scale);
        for (; at < end; at += BLOCK, row += (size_t)4 * bits) {
            uint8_t codes[BLOCK] = {0};
            for (size_t i = 0; i < BLOCK && i < end - at && scale != 0; i++)
                codes[i] = moec_dictionary_code(scheme, bits, weights[at + i] / fit.code_scale);
            moec_codec_pack_block(bits, codes, row);
        }
        at = end;
    }
    return MOEC_OK;
}

void moec_dictionary_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
                                 size_t count, float *weights)
{
    const uint32_t bits = code_bits(codec.dtype);
    const float *levels = moec_dictionary_levels((enum moec_scheme)codec.scheme, bits);
    const uint8_t *scales = row + codes_bytes(codec, n);
    const uint8_t *outliers = scales + 2 * moec_codec_row_groups(codec, n);
    const size_t n_outlier = moec_codec_row_outliers(codec, n);
    const uint8_t *codes_at = row + first / BLOCK * 4 * bits;
    for (size_t i = 0; i < count; i += BLOCK, codes_at += (size_t)4 * bits) {
        const size_t group = codec.group == 0 ? 0 : (first + i) / codec.group;
        const float scale = moec_f16_to_f32(load_u16(scales + 2 * group));
        const size_t left = count - i < BLOCK ? count - i : BLOCK;
        uint8_t codes[BLOCK];
        moec_codec_unpack_block(bits, codes_at, codes);
        for (size_t j = 0; j < left; j++)
            weights[i + j] = levels[codes[j]] * scale;
    }
    for (size_t span = first / SPAN; span < n_outlier && span * SPAN < first + count; span++) {
        const size_t place = outliers[2 * n_outlier + span], at = span * SPAN + place;
        if (place < SPAN && at >= first && at - first < count)
            weights[at - first] = moec_f16_to_f32(load_u16(outliers + 2 * span));
    }
}
