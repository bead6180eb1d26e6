#include "runtime/cuda/kernels/cuda_matrix.h"

#include "formats/model/record.h"

#define SAME(ours, theirs)                                                                                   \
    _Static_assert((int)MOEC_CUDA_##ours == (int)MOEC_##theirs, "kernels and files number kinds alike")
SAME(ACTIVATION_SILU, ACTIVATION_SILU);
SAME(ACTIVATION_RELU, ACTIVATION_RELU);
SAME(ACTIVATION_GELU_TANH, ACTIVATION_GELU_TANH);
SAME(ACTIVATION_CLAMPED_GLU, ACTIVATION_CLAMPED_GLU);
SAME(ACTIVATION_CLAMPED_SILU, ACTIVATION_CLAMPED_SILU);
SAME(ACTIVATION_RELU_SQUARED, ACTIVATION_RELU_SQUARED);
SAME(GATE, PROJECTION_GATE);
SAME(UP, PROJECTION_UP);
SAME(DOWN, PROJECTION_DOWN);
_Static_assert((int)MOEC_ACTIVATION_COUNT == MOEC_CUDA_ACTIVATION_RELU_SQUARED + 1,
               "kernels know every kind");
_Static_assert((int)MOEC_CUDA_MAX_CONVOLUTION == MOEC_MAX_CONVOLUTION, "kernels take what configs have");

static enum moec_cuda_codec codec_of(struct moec_codec codec)
{
    const bool has_levels = moec_scheme_is_dictionary((enum moec_scheme)codec.scheme);
    if (codec.scheme == MOEC_SCHEME_SHIFT)
        return (enum moec_cuda_codec)(MOEC_CUDA_SHIFT2 + moec_codec_bits(codec) - 2);
    switch (codec.dtype) {
    case MOEC_DTYPE_F32:
        return MOEC_CUDA_F32;
    case MOEC_DTYPE_F16:
        return MOEC_CUDA_F16;
    case MOEC_DTYPE_BF16:
        return MOEC_CUDA_BF16;
    case MOEC_DTYPE_INT1:
        return MOEC_CUDA_INT1;
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
                                    .groups.shift = group == 0 ? WHOLE_ROW : (uint8_t)__builtin_ctz(group),
                                    .is_aligned =
                                        ((uintptr_t)data | matrix->stride_bytes) % float_bytes == 0};
    if (codec.dtype <= MOEC_DTYPE_BF16)
        return made;
    made.groups.scales = (n + MOEC_CODEC_BLOCK - 1) / MOEC_CODEC_BLOCK * 4 * moec_codec_code_bits(codec);
    made.groups.zeros = made.outliers.at = made.groups.scales + moec_codec_scales_bytes(codec, n);
    made.groups.n = (uint32_t)moec_codec_row_groups(codec, n);
    made.outliers.n = (uint32_t)moec_codec_row_outliers(codec, n);
    made.groups.is_nested = moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    made.groups.has_zeros = moec_scheme_has_zeros((enum moec_scheme)codec.scheme);
    made.groups.is_logarithmic = codec.scheme == MOEC_SCHEME_LOGARITHMIC;
    return made;
}
