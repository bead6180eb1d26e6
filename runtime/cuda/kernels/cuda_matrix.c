#include "runtime/cuda/kernels/cuda_matrix.h"

static enum moec_cuda_codec codec_of(struct moec_codec codec)
{
    const bool has_levels = moec_scheme_is_dictionary((enum moec_scheme)codec.scheme);
    switch (codec.dtype) {
    case MOEC_DTYPE_F32:
        return MOEC_CUDA_F32;
    case MOEC_DTYPE_F16:
        return MOEC_CUDA_F16;
    case MOEC_DTYPE_BF16:
        return MOEC_CUDA_BF16;
    case MOEC_DTYPE_INT2:
        return has_levels                            ? MOEC_CUDA_LEVELS2
               : codec.scheme == MOEC_SCHEME_TRELLIS ? MOEC_CUDA_TRELLIS
                                                     : MOEC_CUDA_INT2;
    case MOEC_DTYPE_INT3:
        return has_levels ? MOEC_CUDA_LEVELS3 : MOEC_CUDA_INT3;
    case MOEC_DTYPE_INT4:
        return has_levels ? MOEC_CUDA_LEVELS4 : MOEC_CUDA_INT4;
    case MOEC_DTYPE_INT5:
        return MOEC_CUDA_INT5;
    case MOEC_DTYPE_INT6:
        return MOEC_CUDA_INT6;
    case MOEC_DTYPE_MXFP4:
        return MOEC_CUDA_MXFP4;
    case MOEC_DTYPE_MXFP4_DOWN:
        return MOEC_CUDA_MXFP4_DOWN;
    default:
        return has_levels ? MOEC_CUDA_LEVELS8 : MOEC_CUDA_INT8;
    }
}

/* Of a scale for each row: one that moves every weight's number to 0. */
#define WHOLE_ROW 31

struct moec_cuda_matrix moec_cuda_matrix_make(const struct moec_matrix *matrix, const uint8_t *data)
{
    const struct moec_codec codec = matrix->codec;
    const size_t n = matrix->columns, float_bytes = codec.dtype == MOEC_DTYPE_F32 ? 4 : 2;
    const uint32_t group = moec_codec_is_mxfp4(codec) ? MOEC_CODEC_BLOCK : codec.group;
    struct moec_cuda_matrix made = {.data = data,
                                    .stride_bytes = matrix->stride_bytes,
                                    .rows = matrix->rows,
                                    .columns = matrix->columns,
                                    .codec = (uint8_t)codec_of(codec),
                                    .group_shift = group == 0 ? WHOLE_ROW : (uint8_t)__builtin_ctz(group),
                                    .is_aligned =
                                        ((uintptr_t)data | matrix->stride_bytes) % float_bytes == 0};
    if (codec.dtype <= MOEC_DTYPE_BF16)
        return made;
    made.scales = (n + MOEC_CODEC_BLOCK - 1) / MOEC_CODEC_BLOCK * 4 * moec_codec_code_bits(codec);
    made.zeros = made.outliers = made.scales + moec_codec_scales_bytes(codec, n);
    made.n_group = (uint32_t)moec_codec_row_groups(codec, n);
    made.n_outlier = (uint32_t)moec_codec_row_outliers(codec, n);
    made.is_nested = moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    made.has_zeros = moec_scheme_has_zeros((enum moec_scheme)codec.scheme);
    made.is_logarithmic = codec.scheme == MOEC_SCHEME_LOGARITHMIC;
    return made;
}
