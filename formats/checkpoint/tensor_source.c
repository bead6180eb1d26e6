/* Decoding of small floats by the OCP definitions: E4M3 has no infinities and NaN where all bits but the
 * sign are 1; E8M0 is 2^(byte - 127) and NaN at 255. E2M1 has every pattern finite. The check for finite
 * numbers must agree with these decoders, since it looks at bytes only. */
#include "formats/checkpoint/tensor_source.h"

#include "formats/base/bytes.h"
#include "formats/base/half.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static void decode_f32(const uint8_t *blocks, size_t n, float *weights)
{
    moec_codec_decode_row((struct moec_codec){.dtype = MOEC_DTYPE_F32}, blocks, n, weights);
}

static void decode_f16(const uint8_t *blocks, size_t n, float *weights)
{
    moec_codec_decode_row((struct moec_codec){.dtype = MOEC_DTYPE_F16}, blocks, n, weights);
}

static void decode_bf16(const uint8_t *blocks, size_t n, float *weights)
{
    moec_codec_decode_row((struct moec_codec){.dtype = MOEC_DTYPE_BF16}, blocks, n, weights);
}

const struct moec_tensor_coding *moec_tensor_coding_of(enum moec_dtype dtype)
{
    static const struct moec_tensor_coding f32 = {1, 4, MOEC_DTYPE_F32, false, decode_f32, false, NULL},
                                           f16 = {1, 2, MOEC_DTYPE_F16, false, decode_f16, false, NULL},
                                           bf16 = {1, 2, MOEC_DTYPE_BF16, false, decode_bf16, false, NULL};
    switch (dtype) {
    case MOEC_DTYPE_F32:
        return &f32;
    case MOEC_DTYPE_F16:
        return &f16;
    case MOEC_DTYPE_BF16:
        return &bf16;
    default:
        return NULL;
    }
}

/* ---- small floats ---- */

/* Subnormals count in units of 2^-9; both all-ones are not numbers. */
static void decode_e4m3(const uint8_t *bytes, size_t n, float *weights)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(bytes[i] & 0x80u) << 24, exponent = bytes[i] >> 3 & 15u,
                       mantissa = bytes[i] & 7u;
        if (exponent == 15 && mantissa == 7)
            weights[i] = NAN;
        else if (exponent == 0)
            weights[i] = moec_f32_from_bits(sign | moec_f32_bits((float)mantissa * 0x1p-9f));
        else
            weights[i] = moec_f32_from_bits(sign | (exponent + 120) << 23 | mantissa << 20);
    }
}

static void decode_e8m0(const uint8_t *bytes, size_t n, float *weights)
{
    for (size_t i = 0; i < n; i++)
        weights[i] = bytes[i] == 255 ? NAN : ldexpf(1, (int)bytes[i] - 127);
}

static void decode_e2m1(const uint8_t *bytes, size_t n, float *weights)
{
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (size_t i = 0; i < n; i++)
        weights[i] = values[bytes[i / 2] >> i % 2 * 4 & 15];
}

const struct moec_tensor_coding moec_tensor_e4m3 = {1, 1, MOEC_DTYPE_COUNT, false, decode_e4m3, false, NULL},
                                moec_tensor_e8m0 = {1, 1, MOEC_DTYPE_COUNT, false, decode_e8m0, false, NULL},
                                moec_tensor_e2m1 = {32, 16, MOEC_DTYPE_COUNT, false, decode_e2m1, true, NULL};

/* ---- whole numbers ---- */

static void decode_i64(const uint8_t *bytes, size_t n, float *numbers)
{
    for (size_t i = 0; i < n; i++)
        numbers[i] = (float)(int64_t)moec_get_u64(bytes + i * 8);
}

static void decode_i32(const uint8_t *bytes, size_t n, float *numbers)
{
    for (size_t i = 0; i < n; i++)
        numbers[i] = (float)(int32_t)moec_get_u32(bytes + i * 4);
}

const struct moec_tensor_coding moec_tensor_i64 = {1, 8, MOEC_DTYPE_COUNT, true, decode_i64, false, NULL},
                                moec_tensor_i32 = {1, 4, MOEC_DTYPE_COUNT, true, decode_i32, false, NULL};

/* ---- finite numbers ---- */

/* Whether no byte is `value` in the bits of `mask`. */
static bool has_none(const uint8_t *bytes, size_t n, uint8_t mask, uint8_t value)
{
    uint8_t found = 0;
    for (size_t i = 0; i < n; i++)
        found |= (bytes[i] & mask) == value;
    return found == 0;
}

bool moec_tensor_coding_is_finite(const struct moec_tensor_coding *coding, const uint8_t *blocks,
                                  size_t n_block)
{
    if (coding->dtype != MOEC_DTYPE_COUNT)
        return moec_codec_row_is_finite((struct moec_codec){.dtype = (uint8_t)coding->dtype}, blocks,
                                        n_block);
    if (coding->decode == decode_e4m3)
        return has_none(blocks, n_block, 0x7f, 0x7f);
    if (coding->decode == decode_e8m0)
        return has_none(blocks, n_block, 0xff, 0xff);
    return coding->ggml == NULL || moec_ggml_are_finite(coding->ggml, blocks, n_block);
}

const char *moec_tensor_shape_text(const uint64_t *shape, uint32_t n_dims,
                                   char text[static MOEC_TENSOR_SHAPE_BYTES])
{
    size_t used = 0;
    for (uint32_t i = 0; i < n_dims && used < MOEC_TENSOR_SHAPE_BYTES - 32; i++) {
        int wrote = snprintf(text + used, MOEC_TENSOR_SHAPE_BYTES - used, "%s%" PRIu64, i == 0 ? "[" : ", ",
                             shape[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    (void)snprintf(text + used, MOEC_TENSOR_SHAPE_BYTES - used, n_dims == 0 ? "[]" : "]");
    return text;
}
