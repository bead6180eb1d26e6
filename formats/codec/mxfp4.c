/* Exact encoding: the scale of a group puts its largest magnitude at 4 or 6. Weights that another scale
 * could hold are levels of this one, too, so one try suffices. A code is accepted only if it decodes to the
 * weight's own bits; else the row is refused. A block of a down projection shares scales by column, so 32
 * rows are encoded together. */
#include "formats/codec/mxfp4.h"

#include "formats/codec/codec_internal.h"
#include "formats/codec/levels.h"

#define GROUP MOEC_MXFP4_GROUP

const float moec_mxfp4_levels[16] = {MOEC_LEVELS_MXFP4};

bool moec_mxfp4_fits(uint32_t rows, uint32_t columns)
{
    return rows > 0 && columns > 0 && rows % GROUP == 0 && columns % GROUP == 0;
}

/* ---- decoding ---- */

void moec_mxfp4_decode_span(const uint8_t *row, size_t n, size_t first, size_t count, float *weights)
{
    const uint8_t *scales = row + n / 2 + first / GROUP;
    row += first / 2;
    for (size_t i = 0; i < count; i += BLOCK, row += BLOCK / 2) {
        const size_t left = count - i < BLOCK ? count - i : BLOCK;
        const float scale = moec_mxfp4_scale(*scales++);
        uint8_t codes[BLOCK];
        moec_codec_unpack_block(4, row, codes);
        for (size_t j = 0; j < left; j++)
            weights[i + j] = moec_mxfp4_levels[codes[j]] * scale;
    }
}

void moec_mxfp4_decode_block_span(const uint8_t *block, size_t stride_bytes, uint32_t row, size_t n,
                                  size_t first, size_t count, float *weights)
{
    const uint8_t *bytes = block + row * stride_bytes + first / 2, *scales = block + n / 2 + first / GROUP;
    for (size_t i = 0; i < count; i += BLOCK, bytes += BLOCK / 2, scales++) {
        const size_t left = count - i < BLOCK ? count - i : BLOCK;
        uint8_t codes[BLOCK];
        moec_codec_unpack_block(4, bytes, codes);
        for (size_t j = 0; j < left; j++)
            weights[i + j] = moec_mxfp4_levels[codes[j]] * moec_mxfp4_scale(scales[j * stride_bytes]);
    }
}

/* ---- encoding ---- */

/* With the largest weight at 4 or 6 scales, whatever another scale holds is a multiple of this one's. */
static uint8_t scale_of_top(int32_t magnitude_bits)
{
    const int32_t exponent = magnitude_bits >> 23;
    return (uint8_t)(exponent < 2 ? 0 : exponent - 2);
}

static uint8_t scale_of(const float *weights, size_t step)
{
    int32_t top = 0;
    for (size_t i = 0; i < GROUP; i++) {
        const int32_t bits = (int32_t)(moec_f32_bits(weights[i * step]) & 0x7fffffffu);
        top = bits > top ? bits : top;
    }
    return scale_of_top(top);
}

/* False where no code stands for the weight. A weight over its scale has its exponent and highest bit of
 * mantissa in the code, but for 0.5, whose code 1 has no second. */
static bool code_of(float weight, float scale, float inverse, uint8_t *code)
{
    const uint32_t bits = moec_f32_bits(weight * inverse), exponent = bits >> 23 & 0xffu;
    const uint32_t magnitude = exponent >= 127 ? 2 * (exponent - 126) + (bits >> 22 & 1u) : exponent == 126;
    *code = (uint8_t)((magnitude & 7u) | (bits >> 28 & 8u));
    return magnitude < 8 && moec_f32_bits(moec_mxfp4_levels[*code] * scale) == moec_f32_bits(weight);
}

/* 2^(127 - byte), for scales with which levels are finite. */
static float inverse_scale(uint8_t byte)
{
    return moec_mxfp4_scale((uint8_t)(254 - byte));
}

static enum moec_status fail_not_exact(float weight, size_t index, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "weight %zu is %g, which MXFP4 cannot store exactly together with the other weights of "
                     "its group",
                     index, (double)weight);
}

/* With such a scale every product of a weight and the inverse is exact, or too small for a level. */
#define MIN_FAST_SCALE 3
static bool is_fast_scale(uint8_t byte)
{
    return byte >= MIN_FAST_SCALE && byte <= MOEC_MXFP4_MAX_SCALE;
}

/* Codes of 32 weights, each by its own inverse scale, in lanes that a compiler makes vectors of. False where a
 * weight is no level; only for fast scales. */
static bool codes_of(const float *weights, const float *inverses, uint8_t codes[static GROUP])
{
    uint32_t wide[GROUP], is_wrong = 0;
    for (size_t i = 0; i < GROUP; i++) {
        const uint32_t bits = moec_f32_bits(weights[i]),
                       scaled = moec_f32_bits(weights[i] * inverses[i]) & 0x7fffffffu;
        const int32_t steps = (int32_t)(scaled >> 22) - 2 * 126;
        const uint32_t is_zero = (bits & 0x7fffffffu) == 0, is_half = scaled == 0x3f000000u;
        const uint32_t is_more =
            (uint32_t)(steps > 1) & (uint32_t)(steps < 8) & (uint32_t)((scaled & 0x3fffffu) == 0);
        is_wrong |= 1u ^ (is_zero | is_half | is_more);
        wide[i] = (bits >> 28 & 8u) | is_half | ((0u - is_more) & (uint32_t)steps);
    }
    for (size_t i = 0; i < GROUP; i++)
        codes[i] = (uint8_t)wide[i];
    return is_wrong == 0;
}

/* The same weight by weight, with any scale, and what is said of the first one that is no level. */
static enum moec_status encode_group(const float *weights, size_t step, uint8_t codes[static GROUP],
                                     uint8_t *scale, size_t index, struct moec_error *err)
{
    const uint8_t byte = scale_of(weights, step);
    for (size_t i = 0; i < GROUP; i++)
        if (byte > MOEC_MXFP4_MAX_SCALE ||
            !code_of(weights[i * step], moec_mxfp4_scale(byte), inverse_scale(byte), &codes[i]))
            return fail_not_exact(weights[i * step], index + i * step, err);
    *scale = byte;
    return MOEC_OK;
}

enum moec_status moec_mxfp4_encode_row(const float *weights, size_t n, uint8_t *row, struct moec_error *err)
{
    for (size_t g = 0; g < n / GROUP; g++) {
        const float *group = weights + g * GROUP;
        uint8_t codes[GROUP], byte = scale_of(group, 1);
        float inverses[GROUP];
        for (size_t i = 0; i < GROUP; i++)
            inverses[i] = inverse_scale(byte);
        if (!is_fast_scale(byte) || !codes_of(group, inverses, codes))
            MOEC_TRY(encode_group(group, 1, codes, &byte, g * GROUP, err));
        moec_codec_pack_block(4, codes, row + g * (BLOCK / 2));
        row[n / 2 + g] = byte;
    }
    return MOEC_OK;
}

/* Scales of 32 columns of 32 rows, row by row. False where a column needs the slow way. */
static bool scales_of(const float *weights, size_t n, uint8_t bytes[static GROUP],
                      float inverses[static GROUP])
{
    int32_t tops[GROUP] = {0};
    bool is_fast = true;
    for (size_t r = 0; r < GROUP; r++)
        for (size_t c = 0; c < GROUP; c++) {
            const int32_t bits = (int32_t)(moec_f32_bits(weights[r * n + c]) & 0x7fffffffu);
            tops[c] = bits > tops[c] ? bits : tops[c];
        }
    for (size_t c = 0; c < GROUP; c++) {
        bytes[c] = scale_of_top(tops[c]);
        inverses[c] = inverse_scale(bytes[c]);
        is_fast = is_fast && is_fast_scale(bytes[c]);
    }
    return is_fast;
}

enum moec_status moec_mxfp4_encode_block(const float *weights, size_t n, uint8_t *block, size_t stride_bytes,
                                         struct moec_error *err)
{
    for (size_t g = 0; g < n / GROUP; g++) {
        const float *groups = weights + g * GROUP;
        uint8_t codes[GROUP][BLOCK], bytes[GROUP]; /* codes by row, scales by column */
        float inverses[GROUP];
        bool is_done = scales_of(groups, n, bytes, inverses);
        for (size_t r = 0; r < GROUP && is_done; r++)
            is_done = codes_of(groups + r * n, inverses, codes[r]);
        for (size_t c = 0; c < GROUP && !is_done; c++) {
            uint8_t column[GROUP];
            MOEC_TRY(encode_group(groups + c, n, column, &bytes[c], g * GROUP + c, err));
            for (size_t r = 0; r < GROUP; r++)
                codes[r][c] = column[r];
        }
        for (size_t r = 0; r < GROUP; r++) {
            moec_codec_pack_block(4, codes[r], block + r * stride_bytes + g * (BLOCK / 2));
            block[r * stride_bytes + n / 2 + g] = bytes[r];
        }
    }
    return MOEC_OK;
}

/* ---- the form ---- */

enum moec_status moec_mxfp4_form_refuse_row(struct moec_codec codec, const float *weights, size_t n,
                                            uint8_t *row, struct moec_error *err)
{
    (void)codec, (void)weights, (void)row;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "a row of %zu weights cannot be encoded as MXFP4, which needs groups of %d", n, GROUP);
}

enum moec_status moec_mxfp4_form_encode_row(struct moec_codec codec, const float *weights, size_t n,
                                            uint8_t *row, struct moec_error *err)
{
    if (n % GROUP != 0)
        return moec_mxfp4_form_refuse_row(codec, weights, n, row, err);
    return moec_mxfp4_encode_row(weights, n, row, err);
}

void moec_mxfp4_form_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
                                 size_t count, float *weights)
{
    (void)codec;
    moec_mxfp4_decode_span(row, n, first, count, weights);
}

bool moec_mxfp4_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n)
{
    row += codes_bytes(codec, n);
    for (size_t g = 0; g < n / GROUP; g++)
        if (row[g] > MOEC_MXFP4_MAX_SCALE)
            return false;
    return true;
}
