/* Encoding in integers: first the scale of each group as it will be stored, then codes by the stored scale.
 * Linear codes divide by the scale of the extremes; HQQ (hqq.h) moves zero point and scale from there. A
 * code is round-half-even(clamp(w / divisor)) + zero, and only HQQ's divisor differs from the scale. Nested
 * scales are rounded for a whole row together, before any code is made. */
#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/encode_loops.h"
#include "formats/codec/hqq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups with a scale ---- */

enum moec_status moec_codec_fail_not_finite(const float *weights, size_t n, struct moec_error *err)
{
    size_t i = 0;
    while (i < n && (moec_f32_bits(weights[i]) & 0x7fffffffu) < F32_INF)
        i++;
    bool is_nan = i < n && weights[i] != weights[i];
    return moec_fail(err, MOEC_ERR_FORMAT, "weight %zu of the row is %s, expected a finite number", i,
                     is_nan ? "NaN" : "infinite");
}

enum moec_status moec_codec_to_half(float value, const char *what, uint16_t *half, struct moec_error *err)
{
    *half = moec_f32_to_f16(value);
    if ((*half & 0x7fffu) >= F16_INF)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s %g overflows F16 (at most 65504): the weights are damaged, or too large for this codec", what,
            value);
    return MOEC_OK;
}

/* How a group is encoded: code = round-half-even(clamp(w / divisor)) + zero. */
struct group_fit {
    float scale;   /* that decoding uses */
    float divisor; /* the scale itself, unless the quantizer says otherwise */
    float min;     /* of its weights and 0 */
    uint8_t zero;  /* 0 when symmetric */
    bool is_linear;
};

/* Padding with 0 changes neither range nor zero code. */
struct moec_range moec_codec_range(const float *w, size_t n)
{
    const struct moec_encode_loops *loops = moec_encode_loops();
    size_t whole = n / BLOCK * BLOCK;
    struct moec_range range = loops->range(w, whole);
    if (whole < n) {
        float tail[BLOCK] = {0};
        memcpy(tail, w + whole, (n - whole) * sizeof *tail);
        struct moec_range last = loops->range(tail, BLOCK);
        range.top_bits = last.top_bits > range.top_bits ? last.top_bits : range.top_bits;
        range.min = last.min < range.min ? last.min : range.min;
        range.max = last.max > range.max ? last.max : range.max;
    }
    return range;
}

static uint8_t linear_zero(struct moec_codec codec, float min, float scale)
{
    const float levels = (float)((1 << code_bits(codec.dtype)) - 1);
    if (!moec_scheme_has_zeros((enum moec_scheme)codec.scheme) || scale == 0)
        return 0;
    float place = -min / scale;
    place = place > levels ? levels : place;
    return (uint8_t)(moec_f32_bits(place + 0x1.8p23f) & 0xff);
}

/* Of signs: the scale of least squared error, and for HQQ that of the weights' own length along the signs, as
 * its last step gives other bitwidths (formats/codec/hqq.h). Finite weights. */
static float scale_of_signs(struct moec_codec codec, const float *w, size_t n)
{
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        sum += fabs((double)w[i]);
        square += (double)w[i] * (double)w[i];
    }
    return (float)(codec.quantizer == MOEC_QUANTIZER_LINEAR || sum == 0 ? sum / (double)n : square / sum);
}

/* The scale that weights of this range are divided by, for codes from end to end. */
static float scale_of_extremes(struct moec_codec codec, struct moec_range range)
{
    const uint32_t bits = code_bits(codec.dtype);
    const bool has_zeros = moec_scheme_has_zeros((enum moec_scheme)codec.scheme);
    const float levels = (float)((1 << (has_zeros ? bits : bits - 1)) - 1);
    return (has_zeros ? range.max - range.min : moec_f32_from_bits(range.top_bits)) / levels;
}

/* That of a row whose scales are F16 is rounded at once. */
static enum moec_status fit_linear(struct moec_codec codec, struct moec_range range, float scale,
                                   struct group_fit *fit, struct moec_error *err)
{
    const uint16_t half = moec_f32_to_f16(scale);
    if (half >= F16_INF)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the scale %g of a group of weights overflows F16: the group's largest weight has "
                         "magnitude %g",
                         scale, moec_f32_from_bits(range.top_bits));
    *fit = (struct group_fit){.scale = scale, .min = range.min, .is_linear = true};
    if (!moec_scheme_is_nested((enum moec_scheme)codec.scheme))
        fit->scale = moec_f16_to_f32(half);
    fit->divisor = fit->scale;
    fit->zero = linear_zero(codec, range.min, fit->scale);
    return MOEC_OK;
}

/* From the linear fit; weights at the ends of F16's range stay with it. */
static void fit_hqq(struct moec_codec codec, const float *w, size_t n, struct group_fit *fit)
{
    const uint32_t bits = code_bits(codec.dtype);
    const bool has_zeros = moec_scheme_has_zeros((enum moec_scheme)codec.scheme);
    const uint8_t zero = (uint8_t)(has_zeros ? fit->zero : 1u << (bits - 1));
    if (moec_f32_to_f16(fit->scale) == 0)
        return;
    const struct moec_hqq_fit found = moec_hqq_fit(w, n, bits, has_zeros, fit->divisor, zero);
    const uint16_t half = moec_f32_to_f16(found.scale);
    if (half == 0 || half >= F16_INF)
        return;
    fit->scale = moec_scheme_is_nested((enum moec_scheme)codec.scheme) ? found.scale : moec_f16_to_f32(half);
    fit->divisor = found.code_scale;
    fit->zero = has_zeros ? found.zero : 0;
    fit->is_linear = false;
}

static enum moec_status fit_groups(struct moec_codec codec, const float *weights, size_t n,
                                   struct group_fit *fits, struct moec_error *err)
{
    const size_t width = codec.group == 0 ? n : codec.group;
    for (size_t at = 0; at < n; at += width, fits++) {
        const size_t left = n - at < width ? n - at : width;
        const struct moec_range range = moec_codec_range(weights + at, left);
        if (range.top_bits >= F32_INF)
            return moec_codec_fail_not_finite(weights, n, err);
        const bool is_sign = codec.dtype == MOEC_DTYPE_INT1;
        const float scale =
            is_sign ? scale_of_signs(codec, weights + at, left) : scale_of_extremes(codec, range);
        MOEC_TRY(fit_linear(codec, range, scale, fits, err));
        if (!is_sign && (codec.quantizer == MOEC_QUANTIZER_HQQ || codec.quantizer == MOEC_QUANTIZER_GPTQ))
            fit_hqq(codec, weights + at, left, fits);
    }
    return MOEC_OK;
}

/* Scales of scales are coarser than F16: what codes are divided by follows the scale that a group was given,
 * and so does the zero point, but where HQQ has moved it. */
static void follow_scale(struct moec_codec codec, struct group_fit *fit, float given)
{
    if (fit->is_linear) {
        fit->divisor = given;
        fit->zero = linear_zero(codec, fit->min, given);
    } else {
        fit->divisor *= given / fit->scale;
    }
    fit->scale = given;
}

/* n is a multiple of 32. */
static void quantise(struct moec_codec codec, const float *w, size_t n, const struct group_fit *fit,
                     uint8_t *codes)
{
    const uint32_t bits = code_bits(codec.dtype);
    const bool has_zeros = moec_scheme_has_zeros((enum moec_scheme)codec.scheme);
    const uint8_t zero = (uint8_t)(has_zeros ? fit->zero : 1u << (bits - 1));
    const struct moec_coding coding = {
        .divisor = fit->divisor, .low = -(float)zero, .high = (float)((1 << bits) - 1 - zero), .zero = zero};
    if (bits == 1)
        for (size_t i = 0; i < n; i++)
            codes[i] = fit->scale != 0 && w[i] < 0 ? 0 : 2;
    else if (fit->scale == 0)
        memset(codes, zero, n);
    else
        moec_encode_loops()->quantise(&coding, w, n, codes);
}

/* A block that holds two groups, or ends with the row. */
static void quantise_mixed_block(struct moec_codec codec, const float *weights, size_t left,
                                 const struct group_fit *fit, bool has_upper, uint8_t codes[static BLOCK])
{
    float padded[BLOCK] = {0};
    uint8_t upper[BLOCK];
    memcpy(padded, weights, (left < BLOCK ? left : BLOCK) * sizeof *padded);
    quantise(codec, padded, BLOCK, fit, codes);
    if (!has_upper)
        return;
    quantise(codec, padded, BLOCK, fit + 1, upper);
    memcpy(codes + 16, upper + 16, 16);
}

#define RUN 512 /* weights that are quantised at once: their codes stay close by until they are packed */

static void quantise_row(struct moec_codec codec, const float *weights, size_t n,
                         const struct group_fit *fits, uint8_t *row)
{
    const uint32_t bits = code_bits(codec.dtype);
    const size_t last = moec_codec_row_groups(codec, n) - 1;
    uint8_t codes[RUN];
    for (size_t at = 0, done; at < n; at += done) {
        const size_t group = codec.group == 0 ? 0 : at / codec.group;
        const size_t left = n - at;
        if (left < BLOCK || codec.group == 16) {
            done = BLOCK;
            quantise_mixed_block(codec, weights + at, left, &fits[group], codec.group == 16 && group < last,
                                 codes);
        } else {
            done = left < RUN ? left / BLOCK * BLOCK : RUN;
            done = codec.group != 0 && codec.group < done ? codec.group : done;
            quantise(codec, weights + at, done, &fits[group], codes);
        }
        for (size_t i = 0; i < done; i += BLOCK, row += (size_t)4 * bits)
            moec_codec_pack_block(bits, codes + i, row);
    }
}

/* Fits of the groups of a row. Most rows have few. */
#define FEW_GROUPS 64
struct row_fit {
    struct group_fit few[FEW_GROUPS];
    float few_scales[FEW_GROUPS];
    uint8_t few_zeros[FEW_GROUPS];
    struct group_fit *groups;
    float *scales;
    uint8_t *zeros;
};

static enum moec_status encode_fitted(struct moec_codec codec, const float *weights, size_t n,
                                      const struct row_fit *fit, uint8_t *row, struct moec_error *err)
{
    const size_t groups = moec_codec_row_groups(codec, n);
    MOEC_TRY(fit_groups(codec, weights, n, fit->groups, err));
    for (size_t g = 0; g < groups; g++)
        fit->scales[g] = fit->groups[g].scale;
    MOEC_TRY(moec_codec_round_scales(codec, n, fit->scales, row + codes_bytes(codec, n), err));
    for (size_t g = 0; g < groups; g++) {
        if (moec_scheme_is_nested((enum moec_scheme)codec.scheme))
            follow_scale(codec, &fit->groups[g], fit->scales[g]);
        fit->zeros[g] = fit->groups[g].zero;
    }
    moec_codec_store_zeros(codec, fit->zeros, n, row);
    quantise_row(codec, weights, n, fit->groups, row);
    return MOEC_OK;
}

enum moec_status moec_integers_encode_row(struct moec_codec codec, const float *weights, size_t n,
                                          uint8_t *row, struct moec_error *err)
{
    const size_t groups = moec_codec_row_groups(codec, n);
    const char *what = "scales of a row";
    struct row_fit fit;
    enum moec_status status = MOEC_OK;
    void *many = NULL;
    fit.groups = fit.few;
    fit.scales = fit.few_scales;
    fit.zeros = fit.few_zeros;
    if (groups > FEW_GROUPS) {
        MOEC_TRY(moec_alloc(&many, groups, sizeof *fit.groups + sizeof *fit.scales + 1, what, err));
        fit.groups = many;
        fit.scales = (float *)(fit.groups + groups);
        fit.zeros = (uint8_t *)(fit.scales + groups);
    }
    if (groups > 0)
        status = encode_fitted(codec, weights, n, &fit, row, err);
    free(many);
    return status;
}

enum moec_status moec_codec_encode_row(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                       struct moec_error *err)
{
    return moec_codec_form(codec)->encode(codec, weights, n, row, err);
}
