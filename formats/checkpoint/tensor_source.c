#include "formats/checkpoint/tensor_source.h"

#include <inttypes.h>
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
    static const struct moec_tensor_coding f32 = {1, 4, MOEC_DTYPE_F32, decode_f32},
                                           f16 = {1, 2, MOEC_DTYPE_F16, decode_f16},
                                           bf16 = {1, 2, MOEC_DTYPE_BF16, decode_bf16};
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
