/* A codec is (dtype, scheme, group), and misfit_of refuses the combinations that have no meaning. Whatever
 * makes a codec and whatever reads one from a file asks it, so both accept the same ones. Sizes of codes,
 * scales, zeros and outliers of a row are defined here, and every other file takes offsets from them. */
#include "formats/codec/codec_internal.h"
#include "formats/codec/mxfp4.h"

#include <stdio.h>
#include <string.h>

/* ---- description ---- */

/* Bitwidths that codes have, and floats. */
static const uint8_t all_widths[] = {1, 2, 3, 4, 5, 6, 8, 16};

static bool group_is_known(uint32_t group)
{
    return group == 0 || group == 16 || group == 32 || group == 64 || group == 128;
}

/* What keeps these from being a codec though each of them is known; NULL: nothing. */
static const char *misfit_of(uint32_t bits, enum moec_scheme scheme, uint32_t group)
{
    if (moec_scheme_is_nested(scheme) && group == 0)
        return "nested scales without groups, expected groups of 16, 32, 64 or 128 weights";
    if (moec_scheme_is_dictionary(scheme) && group == 16)
        return "dictionary levels in groups of 16 weights, expected 32, 64, 128 or 0 for channels";
    if (moec_scheme_is_dictionary(scheme) && (bits == 5 || bits == 6))
        return "dictionary levels at 5 or 6 bits, expected 2, 3, 4 or 8";
    if (scheme == MOEC_SCHEME_TRELLIS && (bits != 2 || group != 0))
        return "a trellis of an unsupported form, expected 2 bits with one scale for each row";
    if (scheme == MOEC_SCHEME_SHIFT && (bits < 2 || bits > 4 || group != 0))
        return "shift codes of an unsupported form, expected 2, 3 or 4 bits with one scale for each row";
    if (bits == 1 && scheme != MOEC_SCHEME_SYMMETRIC && scheme != MOEC_SCHEME_SYMMETRIC_NESTED)
        return "1 bit that is not symmetric, expected scheme symmetric or symmetric-nested";
    return NULL;
}

enum moec_status moec_codec_for_bits(uint32_t bits, enum moec_scheme scheme, uint32_t group,
                                     enum moec_dtype source_dtype, struct moec_codec *codec,
                                     struct moec_error *err)
{
    if (bits == 1 && moec_scheme_has_zeros(scheme))
        scheme = moec_scheme_is_nested(scheme) ? MOEC_SCHEME_SYMMETRIC_NESTED : MOEC_SCHEME_SYMMETRIC;
    if (!group_is_known(group))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "quantisation groups of %u weights are not supported, expected 16, 32, 64 or 128, "
                         "or 0 for one group per row",
                         group);
    if ((int)scheme < 0 || scheme >= MOEC_SCHEME_COUNT)
        return moec_fail(err, MOEC_ERR_USAGE, "unknown quantisation scheme %d", (int)scheme);
    const char *misfit = misfit_of(bits, scheme, group);
    if (misfit != NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "%s", misfit);
    struct moec_codec made = {.scheme = (uint8_t)scheme, .group = (uint16_t)group};
    switch (bits) {
    case 1:
        made.dtype = MOEC_DTYPE_INT1;
        break;
    case 2:
        made.dtype = MOEC_DTYPE_INT2;
        break;
    case 3:
        made.dtype = MOEC_DTYPE_INT3;
        break;
    case 4:
        made.dtype = MOEC_DTYPE_INT4;
        break;
    case 5:
        made.dtype = MOEC_DTYPE_INT5;
        break;
    case 6:
        made.dtype = MOEC_DTYPE_INT6;
        break;
    case 8:
        made.dtype = MOEC_DTYPE_INT8;
        break;
    case 16:
        if (!moec_dtype_is_source((uint8_t)source_dtype))
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "16 bits keep the source's weights, which must be in F32, F16, BF16 or MXFP4, but this "
                "source has another type: give fewer bits");
        made.dtype = source_dtype == MOEC_DTYPE_F32 ? MOEC_DTYPE_BF16 : (uint8_t)source_dtype;
        made.scheme = 0;
        made.group = 0;
        break;
    default:
        return moec_fail(err, MOEC_ERR_USAGE,
                         "bitwidth %u is not supported, expected 1, 2, 3, 4, 5, 6, 8 or 16", bits);
    }
    *codec = made;
    return MOEC_OK;
}

enum moec_status moec_codec_table(enum moec_quantizer quantizer, enum moec_scheme scheme, uint32_t group,
                                  enum moec_dtype source_dtype,
                                  struct moec_codec codecs[static MOEC_CODEC_TABLE], struct moec_error *err)
{
    memset(codecs, 0, MOEC_CODEC_TABLE * sizeof *codecs);
    if (!moec_quantizer_makes(quantizer, scheme))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "quantizer number %d does not support quantisation scheme number %d", (int)quantizer,
                         (int)scheme);
    for (size_t i = 0; i < sizeof all_widths; i++) {
        const uint32_t bits = all_widths[i];
        struct moec_codec *codec = &codecs[bits];
        if (moec_scheme_is_dictionary(scheme) && (bits == 1 || bits == 5 || bits == 6))
            continue;
        const bool is_path = moec_quantizer_makes_path(quantizer, bits);
        MOEC_TRY(moec_codec_for_bits(bits, is_path ? MOEC_SCHEME_SHIFT : scheme, is_path ? 0 : group,
                                     source_dtype, codec, err));
        codec->quantizer = dtype_is_float(codec->dtype) ? 0 : (uint8_t)quantizer;
        if (quantizer == MOEC_QUANTIZER_TRELLIS && !is_path && bits < 16)
            codec->quantizer = MOEC_QUANTIZER_HQQ;
    }
    return MOEC_OK;
}

enum moec_status moec_codec_check(struct moec_codec codec, const char *subject, struct moec_error *err)
{
    if (codec.dtype >= MOEC_DTYPE_COUNT || codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has unknown codec dtype %u, expected 0..%d or %d", subject,
                         codec.dtype, MOEC_DTYPE_MXFP4, MOEC_DTYPE_INT1);
    if ((dtype_is_float(codec.dtype) || codec.dtype == MOEC_DTYPE_MXFP4) &&
        (codec.scheme != 0 || codec.group != 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has no integer codes, but scheme %u and groups of %u weights, expected 0 for "
                         "both",
                         subject, codec.scheme, codec.group);
    if (codec.scheme >= MOEC_SCHEME_COUNT)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has unknown quantisation scheme %u, expected 0..%d",
                         subject, codec.scheme, MOEC_SCHEME_COUNT - 1);
    if (!group_is_known(codec.group))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has groups of %u weights, expected 0, 16, 32, 64 or 128",
                         subject, codec.group);
    const char *misfit = misfit_of(code_bits(codec.dtype), (enum moec_scheme)codec.scheme, codec.group);
    if (misfit != NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %s", subject, misfit);
    return MOEC_OK;
}

bool moec_dtype_is_source(uint8_t dtype)
{
    return dtype_is_float(dtype) || dtype == MOEC_DTYPE_MXFP4;
}

bool moec_codec_fits(struct moec_codec codec, uint32_t rows, uint32_t columns)
{
    return !moec_codec_traits(codec)->is_exact || moec_mxfp4_fits(rows, columns);
}

bool moec_quantizer_makes_path(enum moec_quantizer quantizer, uint32_t bits)
{
    return quantizer == MOEC_QUANTIZER_TRELLIS && bits >= 2 && bits <= 4;
}

uint32_t moec_codec_bits(struct moec_codec codec)
{
    switch (codec.dtype) {
    case MOEC_DTYPE_F32:
        return 32;
    case MOEC_DTYPE_F16:
    case MOEC_DTYPE_BF16:
    case MOEC_DTYPE_MXFP4:
    case MOEC_DTYPE_MXFP4_DOWN:
        return 16;
    default:
        return code_bits(codec.dtype);
    }
}

uint32_t moec_codec_code_bits(struct moec_codec codec)
{
    return moec_codec_is_mxfp4(codec) ? code_bits(codec.dtype) : moec_codec_bits(codec);
}

const char *moec_quantizer_name(enum moec_quantizer quantizer)
{
    static const char *const names[MOEC_QUANTIZER_COUNT] = {"linear", "hqq",  "auto",   "outlier",
                                                            "log",    "gptq", "trellis"};
    return names[quantizer];
}

const char *moec_scheme_name(enum moec_scheme scheme)
{
    static const char *const names[MOEC_SCHEME_COUNT] = {
        "symmetric",        "asymmetric",        "gaussian", "logarithmic",
        "symmetric-nested", "asymmetric-nested", "trellis",  "shift"};
    return names[scheme];
}

bool moec_quantizer_makes(enum moec_quantizer quantizer, enum moec_scheme scheme)
{
    switch (quantizer) {
    case MOEC_QUANTIZER_LINEAR:
    case MOEC_QUANTIZER_HQQ:
    case MOEC_QUANTIZER_GPTQ:
    case MOEC_QUANTIZER_TRELLIS:
        return (int)scheme >= 0 && scheme < MOEC_SCHEME_TRELLIS && !moec_scheme_is_dictionary(scheme);
    case MOEC_QUANTIZER_OUTLIER:
        return scheme == MOEC_SCHEME_GAUSSIAN;
    case MOEC_QUANTIZER_LOG:
        return scheme == MOEC_SCHEME_LOGARITHMIC;
    default:
        return false;
    }
}

const char *moec_codec_name(struct moec_codec codec, char text[static 40])
{
    static const char *const floats[] = {"f32", "f16", "bf16"};
    if (dtype_is_float(codec.dtype))
        return floats[codec.dtype];
    if (moec_codec_is_mxfp4(codec))
        return "mxfp4";
    static const char *const schemes[MOEC_SCHEME_COUNT] = {
        "symmetric",        "asymmetric",        "gaussian", "logarithmic",
        "symmetric nested", "asymmetric nested", "trellis",  "shift"};
    const char *scheme = schemes[codec.scheme];
    uint32_t bits = code_bits(codec.dtype);
    if (codec.group == 0)
        (void)snprintf(text, 40, "int%u %s channel", bits, scheme);
    else
        (void)snprintf(text, 40, "int%u %s g%u", bits, scheme, codec.group);
    return text;
}

bool moec_codec_equal(struct moec_codec a, struct moec_codec b)
{
    return a.dtype == b.dtype && a.scheme == b.scheme && a.group == b.group;
}

size_t moec_codec_row_groups(struct moec_codec codec, size_t n)
{
    const struct moec_codec_form *form = moec_codec_form(codec);
    if (form->traits.is_float || n == 0)
        return 0;
    if (form->group > 0)
        return n / form->group;
    return codec.group == 0 ? 1 : (n + codec.group - 1) / codec.group;
}

size_t moec_codec_row_outliers(struct moec_codec codec, size_t n)
{
    return moec_codec_form(codec)->has_outliers ? (n + SPAN - 1) / SPAN : 0;
}

size_t moec_codec_scales_bytes(struct moec_codec codec, size_t n)
{
    const size_t groups = moec_codec_row_groups(codec, n);
    return moec_scheme_is_nested((enum moec_scheme)codec.scheme)
               ? (groups > 0 ? 2 : 0) + groups
               : moec_codec_form(codec)->scale_bytes * groups;
}

size_t moec_codec_zeros_bytes(struct moec_codec codec, size_t n)
{
    const size_t groups = moec_codec_row_groups(codec, n);
    if (!moec_scheme_has_zeros((enum moec_scheme)codec.scheme))
        return 0;
    return moec_scheme_is_nested((enum moec_scheme)codec.scheme) ? (groups * code_bits(codec.dtype) + 7) / 8
                                                                 : groups;
}

size_t moec_codec_row_bytes(struct moec_codec codec, size_t n)
{
    if (dtype_is_float(codec.dtype))
        return n * moec_codec_bits(codec) / 8;
    return codes_bytes(codec, n) + moec_codec_scales_bytes(codec, n) + moec_codec_zeros_bytes(codec, n) +
           3 * moec_codec_row_outliers(codec, n);
}
