/* A row for each form of rows, and a function that says which form a codec has. Functions are found through
 * the row; NULL in one means that the form does not have it. */
#include "formats/codec/codec_form.h"

#include "formats/codec/codec_internal.h"
#include "formats/codec/mxfp4.h"

enum form { FLOATS, INTEGERS, GAUSSIAN, LOGARITHMIC, TRELLIS, SHIFT, MXFP4, MXFP4_DOWN };

#define MXFP4_TRAITS(together, alone)                                                                        \
    {                                                                                                        \
        .rows_together = (together), .is_exact = true, .stands_alone = (alone),                              \
        .float_dtype = MOEC_DTYPE_BF16                                                                       \
    }

static const struct moec_codec_form forms[] = {
    [FLOATS] = {.traits = {.rows_together = 1, .stands_alone = true, .is_float = true},
                .encode = moec_floats_encode_row,
                .decode = moec_floats_decode_span,
                .is_finite = moec_floats_row_is_finite},
    [INTEGERS] = {.traits = {.rows_together = 1, .stands_alone = true},
                  .scale_bytes = 2,
                  .encode = moec_integers_encode_row,
                  .decode = moec_integers_decode_span,
                  .pack = moec_codec_pack_block,
                  .is_finite = moec_integers_row_is_finite},
    [GAUSSIAN] = {.traits = {.rows_together = 1, .stands_alone = true},
                  .has_levels = true,
                  .has_outliers = true,
                  .scale_bytes = 2,
                  .encode = moec_dictionary_encode_row,
                  .decode = moec_dictionary_decode_span,
                  .pack = moec_codec_pack_block,
                  .is_finite = moec_integers_row_is_finite},
    [LOGARITHMIC] = {.traits = {.rows_together = 1, .stands_alone = true},
                     .has_levels = true,
                     .scale_bytes = 2,
                     .encode = moec_dictionary_encode_row,
                     .decode = moec_dictionary_decode_span,
                     .pack = moec_codec_pack_block,
                     .is_finite = moec_integers_row_is_finite},
    [TRELLIS] = {.traits = {.rows_together = 1, .stands_alone = true, .is_path = true},
                 .has_levels = true,
                 .scale_bytes = 2,
                 .encode = moec_trellis_refuse_row,
                 .decode = moec_trellis_decode_span,
                 .pack = moec_trellis_pack_block,
                 .is_finite = moec_integers_row_is_finite},
    [SHIFT] = {.traits = {.rows_together = 1, .stands_alone = true, .is_path = true},
               .has_levels = true,
               .scale_bytes = 2,
               .encode = moec_shift_encode_row,
               .decode = moec_shift_decode_span,
               .pack = moec_shift_pack_block,
               .is_finite = moec_integers_row_is_finite},
    [MXFP4] = {.traits = MXFP4_TRAITS(1, true),
               .has_levels = true,
               .group = MOEC_MXFP4_GROUP,
               .scale_bytes = 1,
               .encode = moec_mxfp4_form_encode_row,
               .decode = moec_mxfp4_form_decode_span,
               .pack = moec_codec_pack_block,
               .is_finite = moec_mxfp4_row_is_finite},
    [MXFP4_DOWN] = {.traits = MXFP4_TRAITS(MOEC_MXFP4_GROUP, false),
                    .has_levels = true,
                    .group = MOEC_MXFP4_GROUP,
                    .scale_bytes = 1,
                    .encode = moec_mxfp4_form_refuse_row,
                    .pack = moec_codec_pack_block,
                    .is_finite = moec_mxfp4_row_is_finite},
};

static enum form form_of(struct moec_codec codec)
{
    static const uint8_t by_scheme[MOEC_SCHEME_COUNT] = {
        [MOEC_SCHEME_SYMMETRIC] = INTEGERS,        [MOEC_SCHEME_ASYMMETRIC] = INTEGERS,
        [MOEC_SCHEME_GAUSSIAN] = GAUSSIAN,         [MOEC_SCHEME_LOGARITHMIC] = LOGARITHMIC,
        [MOEC_SCHEME_SYMMETRIC_NESTED] = INTEGERS, [MOEC_SCHEME_ASYMMETRIC_NESTED] = INTEGERS,
        [MOEC_SCHEME_TRELLIS] = TRELLIS,           [MOEC_SCHEME_SHIFT] = SHIFT,
    };
    if (dtype_is_float(codec.dtype))
        return FLOATS;
    if (codec.dtype == MOEC_DTYPE_MXFP4)
        return MXFP4;
    if (codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        return MXFP4_DOWN;
    return (enum form)by_scheme[codec.scheme];
}

const struct moec_codec_form *moec_codec_form(struct moec_codec codec)
{
    return &forms[form_of(codec)];
}

const struct moec_codec_traits *moec_codec_traits(struct moec_codec codec)
{
    return &forms[form_of(codec)].traits;
}
