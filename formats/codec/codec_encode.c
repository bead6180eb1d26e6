#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/dictionary.h"
#include "formats/codec/encode_loops.h"
#include "formats/codec/hqq.h"
#include "formats/codec/mxfp4.h"
#include "formats/codec/trellis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups with a scale ---- */

static enum moec_status fail_not_finite(const float *weights, size_t n, struct moec_error *err)
{
    size_t i = 0;
    while (i < n && (moec_f32_bits(weights[i]) & 0x7fffffffu) < F32_INF)
        i++;
    bool is_nan = i < n && weights[i] != weights[i];
    return moec_fail(err, MOEC_ERR_FORMAT, "weight %zu of the row is %s, expected a finite number", i,
                     is_nan ? "NaN" : "infinite");
}

/* How a group is encoded: code = round-half-even(clamp(w / divisor)) + zero. */
struct group_fit {
    float scale;   /* that decoding uses */
    float divisor; /* the scale itself, unless the quantizer says otherwise */
    float min;     /* of its weights and 0 */
    uint8_t zero;  /* 0 when symmetric */
    bool is_linear;
};

/* Of a row whose last block may be incomplete. Padding with 0 changes neither range nor zero code. */
static struct moec_range range_with_tail(const float *w, size_t n)
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
                         "the scale %g of a group overflows F16: its largest weight has magnitude %g", scale,
                         moec_f32_from_bits(range.top_bits));
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
        const struct moec_range range = range_with_tail(weights + at, left);
        if (range.top_bits >= F32_INF)
            return fail_not_finite(weights, n, err);
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

static enum moec_status encode_integers(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                        struct moec_error *err)
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

/* ---- gaussian and logarithmic ---- */

/* F16 bits of a scale or an outlier. */
static enum moec_status to_half(float value, const char *what, uint16_t *half, struct moec_error *err)
{
    *half = moec_f32_to_f16(value);
    if ((*half & 0x7fffu) >= F16_INF)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s %g overflows F16, which reaches 65504", what, value);
    return MOEC_OK;
}

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
        MOEC_TRY(to_half(weights[at + top], "outlier", &half, err));
        store_u16(outliers, half);
        *places++ = (uint8_t)top;
    }
    return MOEC_OK;
}

static enum moec_status encode_dictionary(struct moec_codec codec, const float *weights, size_t n,
                                          uint8_t *row, struct moec_error *err)
{
    const enum moec_scheme scheme = (enum moec_scheme)codec.scheme;
    const uint32_t bits = code_bits(codec.dtype);
    const size_t width = codec.group == 0 ? n : codec.group, groups = moec_codec_row_groups(codec, n);
    uint8_t *scales = row + codes_bytes(codec, n), *outliers = scales + 2 * groups;
    uint8_t *places = outliers + 2 * moec_codec_row_outliers(codec, n);
    const bool has_outliers = scheme == MOEC_SCHEME_GAUSSIAN;
    if (range_with_tail(weights, n).top_bits >= F32_INF)
        return fail_not_finite(weights, n, err);
    if (has_outliers)
        MOEC_TRY(keep_outliers(weights, n, outliers, places, err));
    for (size_t g = 0, at = 0; g < groups; g++) {
        const size_t end = n - at < width ? n : at + width;
        const struct moec_dictionary_group group = {weights, at, end - at, has_outliers ? places : NULL};
        const struct moec_dictionary_fit fit = moec_dictionary_fit(&group, scheme, bits);
        uint16_t scale;
        MOEC_TRY(to_half(fit.scale, "scale", &scale, err));
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

/* ---- trellis ---- */

#define TRELLIS_ROUNDS 3 /* searches, with a scale fitted between them: later ones change next to nothing */

/* The scale of least squared error for the codes that there are; the old one where they say nothing. */
static float fitted_scale(const float *weights, const float *values, size_t n, float old)
{
    double product = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        product += (double)weights[i] * (double)values[i];
        square += (double)values[i] * (double)values[i];
    }
    return product > 0 ? (float)(product / square) : old;
}

static enum moec_status search_paths(const float *weights, size_t n, uint16_t *scale, float *values,
                                     uint64_t *choices, uint8_t *codes, struct moec_error *err)
{
    for (int round = 0;; round++) {
        const float old = moec_f16_to_f32(*scale);
        uint16_t next;
        moec_trellis_search(weights, n, old, choices, codes);
        moec_trellis_values(codes, n, values);
        MOEC_TRY(to_half(fitted_scale(weights, values, n, old), "scale", &next, err));
        if (round == TRELLIS_ROUNDS - 1 || next == *scale || next == 0)
            return MOEC_OK;
        *scale = next;
    }
}

static enum moec_status encode_trellis(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                       struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    double squares = 0;
    uint16_t scale = 0;
    uint8_t stored[2];
    void *scratch = NULL;
    if (n == 0)
        return MOEC_OK;
    if (range_with_tail(weights, n).top_bits >= F32_INF)
        return fail_not_finite(weights, n, err);
    for (size_t i = 0; i < n; i++)
        squares += (double)weights[i] * (double)weights[i];
    MOEC_TRY(to_half((float)sqrt(squares / (double)n), "scale", &scale, err));
    MOEC_TRY(moec_alloc(&scratch, n, sizeof(uint64_t) + sizeof(float) + 1, "the path of a row's codes", err));
    uint64_t *choices = scratch;
    float *values = (float *)(choices + n);
    uint8_t *codes = (uint8_t *)(values + n);
    memset(codes, MOEC_TRELLIS_FREE, n); /* levels above 0, for zeros without a sign */
    if (scale != 0)
        status = search_paths(weights, n, &scale, values, choices, codes, err);
    store_u16(stored, scale);
    if (status == MOEC_OK)
        moec_codec_pack_row(codec, codes, stored, NULL, n, row);
    free(scratch);
    return status;
}

/* ---- any dtype ---- */

static enum moec_status encode_floats(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                      struct moec_error *err)
{
    const uint32_t top_bits = range_with_tail(weights, n).top_bits;
    if (top_bits >= F32_INF)
        return fail_not_finite(weights, n, err);
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

enum moec_status moec_codec_encode_row(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                       struct moec_error *err)
{
    if (dtype_is_float(codec.dtype))
        return encode_floats(codec, weights, n, row, err);
    if (moec_codec_is_mxfp4(codec) && (codec.dtype == MOEC_DTYPE_MXFP4_DOWN || n % MOEC_MXFP4_GROUP != 0))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a row of %zu weights cannot be encoded as MXFP4, which needs groups of %d", n,
                         MOEC_MXFP4_GROUP);
    if (codec.dtype == MOEC_DTYPE_MXFP4)
        return moec_mxfp4_encode_row(weights, n, row, err);
    if (moec_scheme_is_dictionary((enum moec_scheme)codec.scheme))
        return encode_dictionary(codec, weights, n, row, err);
    if (codec.scheme == MOEC_SCHEME_TRELLIS)
        return encode_trellis(codec, weights, n, row, err);
    return encode_integers(codec, weights, n, row, err);
}
