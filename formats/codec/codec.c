#include "formats/codec/codec.h"

#include "formats/base/half.h"
#include "formats/codec/dictionary.h"
#include "formats/codec/hqq.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK    MOEC_CODEC_BLOCK
#define SPAN     MOEC_CODEC_OUTLIER_SPAN
#define F32_INF  0x7f800000u
#define F16_INF  0x7c00u
#define BF16_INF 0x7f80u

static bool is_float(uint8_t dtype)
{
    return dtype <= MOEC_DTYPE_BF16;
}

/* Bits of a code, 0 for floats. */
static uint32_t code_bits(uint8_t dtype)
{
    static const uint8_t bits[MOEC_DTYPE_COUNT] = {
        [MOEC_DTYPE_INT2] = 2, [MOEC_DTYPE_INT3] = 3, [MOEC_DTYPE_INT4] = 4, [MOEC_DTYPE_INT8] = 8};
    return bits[dtype];
}

/* ---- description ---- */

static bool group_is_known(uint32_t group)
{
    return group == 0 || group == 32 || group == 64 || group == 128;
}

enum moec_status moec_codec_for_bits(uint32_t bits, enum moec_scheme scheme, uint32_t group,
                                     enum moec_dtype source_dtype, struct moec_codec *codec,
                                     struct moec_error *err)
{
    if (!group_is_known(group))
        return moec_fail(err, MOEC_ERR_USAGE, "group of %u weights, expected 32, 64, 128 or 0 for channels",
                         group);
    if ((int)scheme < 0 || scheme >= MOEC_SCHEME_COUNT)
        return moec_fail(err, MOEC_ERR_USAGE, "unknown quantisation scheme %d", (int)scheme);
    struct moec_codec made = {.scheme = (uint8_t)scheme, .group = (uint16_t)group};
    switch (bits) {
    case 2:
        made.dtype = MOEC_DTYPE_INT2;
        break;
    case 3:
        made.dtype = MOEC_DTYPE_INT3;
        break;
    case 4:
        made.dtype = MOEC_DTYPE_INT4;
        break;
    case 8:
        made.dtype = MOEC_DTYPE_INT8;
        break;
    case 16:
        if (source_dtype > MOEC_DTYPE_BF16)
            return moec_fail(err, MOEC_ERR_USAGE, "16 bits of a source that is not F32, F16 or BF16");
        made.dtype = source_dtype == MOEC_DTYPE_F16 ? MOEC_DTYPE_F16 : MOEC_DTYPE_BF16;
        made.scheme = 0;
        made.group = 0;
        break;
    default:
        return moec_fail(err, MOEC_ERR_USAGE, "bitwidth %u, expected 2, 3, 4, 8 or 16", bits);
    }
    *codec = made;
    return MOEC_OK;
}

enum moec_status moec_codec_table(enum moec_quantizer quantizer, enum moec_scheme scheme, uint32_t group,
                                  enum moec_dtype source_dtype,
                                  struct moec_codec codecs[static MOEC_CODEC_TABLE], struct moec_error *err)
{
    static const uint32_t widths[] = {2, 3, 4, 8, 16};
    memset(codecs, 0, MOEC_CODEC_TABLE * sizeof *codecs);
    if (!moec_quantizer_makes(quantizer, scheme))
        return moec_fail(err, MOEC_ERR_USAGE, "quantizer %d makes no codes of scheme %d", (int)quantizer,
                         (int)scheme);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        struct moec_codec *codec = &codecs[widths[i]];
        MOEC_TRY(moec_codec_for_bits(widths[i], scheme, group, source_dtype, codec, err));
        codec->quantizer = is_float(codec->dtype) ? 0 : (uint8_t)quantizer;
    }
    return MOEC_OK;
}

enum moec_status moec_codec_check(struct moec_codec codec, const char *subject, struct moec_error *err)
{
    if (codec.dtype >= MOEC_DTYPE_COUNT)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has unknown codec dtype %u, expected 0..%d", subject,
                         codec.dtype, MOEC_DTYPE_COUNT - 1);
    if (is_float(codec.dtype) && (codec.scheme != 0 || codec.group != 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s is stored as floats but has scheme %u and group %u, expected 0 and 0", subject,
                         codec.scheme, codec.group);
    if (codec.scheme >= MOEC_SCHEME_COUNT)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has unknown quantisation scheme %u, expected 0..%d",
                         subject, codec.scheme, MOEC_SCHEME_COUNT - 1);
    if (!group_is_known(codec.group))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has groups of %u weights, expected 0, 32, 64 or 128",
                         subject, codec.group);
    return MOEC_OK;
}

uint32_t moec_codec_bits(struct moec_codec codec)
{
    switch (codec.dtype) {
    case MOEC_DTYPE_F32:
        return 32;
    case MOEC_DTYPE_F16:
    case MOEC_DTYPE_BF16:
        return 16;
    default:
        return code_bits(codec.dtype);
    }
}

const char *moec_quantizer_name(enum moec_quantizer quantizer)
{
    static const char *const names[MOEC_QUANTIZER_COUNT] = {"linear", "hqq", "auto", "outlier", "log"};
    return names[quantizer];
}

const char *moec_scheme_name(enum moec_scheme scheme)
{
    static const char *const names[MOEC_SCHEME_COUNT] = {"symmetric", "asymmetric", "gaussian",
                                                         "logarithmic"};
    return names[scheme];
}

bool moec_quantizer_makes(enum moec_quantizer quantizer, enum moec_scheme scheme)
{
    switch (quantizer) {
    case MOEC_QUANTIZER_LINEAR:
    case MOEC_QUANTIZER_HQQ:
        return scheme == MOEC_SCHEME_SYMMETRIC || scheme == MOEC_SCHEME_ASYMMETRIC;
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
    if (is_float(codec.dtype))
        return floats[codec.dtype];
    const char *scheme = moec_scheme_name((enum moec_scheme)codec.scheme);
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

static size_t codes_bytes(struct moec_codec codec, size_t n)
{
    return (n + BLOCK - 1) / BLOCK * 4 * code_bits(codec.dtype);
}

size_t moec_codec_row_groups(struct moec_codec codec, size_t n)
{
    if (is_float(codec.dtype) || n == 0)
        return 0;
    return codec.group == 0 ? 1 : (n + codec.group - 1) / codec.group;
}

size_t moec_codec_row_outliers(struct moec_codec codec, size_t n)
{
    if (is_float(codec.dtype) || codec.scheme != MOEC_SCHEME_GAUSSIAN)
        return 0;
    return (n + SPAN - 1) / SPAN;
}

size_t moec_codec_row_bytes(struct moec_codec codec, size_t n)
{
    if (is_float(codec.dtype))
        return n * moec_codec_bits(codec) / 8;
    size_t per_group = codec.scheme == MOEC_SCHEME_ASYMMETRIC ? 3 : 2;
    return codes_bytes(codec, n) + per_group * moec_codec_row_groups(codec, n) +
           3 * moec_codec_row_outliers(codec, n);
}

/* ---- packing ---- */

static void store_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value & 0xff);
    at[1] = (uint8_t)(value >> 8);
}

static uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)at[1] << 8);
}

static void store_u32(uint8_t *at, uint32_t value)
{
    store_u16(at, (uint16_t)(value & 0xffff));
    store_u16(at + 2, (uint16_t)(value >> 16));
}

static uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

static void pack_two_bits(const uint8_t codes[static BLOCK], uint8_t *out)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((codes[i] & 3) | (codes[i + 8] & 3) << 2 | (codes[i + 16] & 3) << 4 |
                           (codes[i + 24] & 3) << 6);
}

static void pack_block(uint32_t bits, const uint8_t codes[static BLOCK], uint8_t *out)
{
    switch (bits) {
    case 2:
        pack_two_bits(codes, out);
        break;
    case 3: {
        uint32_t high = 0;
        pack_two_bits(codes, out);
        for (int i = 0; i < BLOCK; i++)
            high |= (uint32_t)((codes[i] >> 2) & 1) << i;
        store_u32(out + 8, high);
        break;
    }
    case 4:
        for (int i = 0; i < 16; i++)
            out[i] = (uint8_t)((codes[i] & 15) | (codes[i + 16] & 15) << 4);
        break;
    default:
        memcpy(out, codes, BLOCK);
        break;
    }
}

static void unpack_block(uint32_t bits, const uint8_t *in, uint8_t codes[static BLOCK])
{
    switch (bits) {
    case 2:
    case 3:
        for (int i = 0; i < 8; i++)
            for (int part = 0; part < 4; part++)
                codes[i + 8 * part] = (uint8_t)((in[i] >> (2 * part)) & 3);
        if (bits == 3) {
            uint32_t high = load_u32(in + 8);
            for (int i = 0; i < BLOCK; i++)
                codes[i] = (uint8_t)(codes[i] | ((high >> i) & 1) << 2);
        }
        break;
    case 4:
        for (int i = 0; i < 16; i++) {
            codes[i] = in[i] & 15;
            codes[i + 16] = in[i] >> 4;
        }
        break;
    default:
        memcpy(codes, in, BLOCK);
        break;
    }
}

/* Code that decodes to 0 in a group; 0 in a dictionary, which may have no such code. */
static uint8_t zero_code(struct moec_codec codec, const uint8_t *zeros, size_t group)
{
    if (codec.scheme == MOEC_SCHEME_ASYMMETRIC)
        return zeros[group];
    if (moec_scheme_is_dictionary((enum moec_scheme)codec.scheme))
        return 0;
    return (uint8_t)(1u << (code_bits(codec.dtype) - 1));
}

void moec_codec_pack_row(struct moec_codec codec, const uint8_t *codes, const uint16_t *scales,
                         const uint8_t *zeros, size_t n, uint8_t *row)
{
    uint32_t bits = code_bits(codec.dtype);
    size_t groups = moec_codec_row_groups(codec, n);
    for (size_t i = 0; i < n; i += BLOCK) {
        if (n - i >= BLOCK) {
            pack_block(bits, codes + i, row);
        } else { /* a last block is part of the last group: groups are whole blocks */
            uint8_t last[BLOCK];
            memset(last, zero_code(codec, zeros, groups - 1), sizeof last);
            memcpy(last, codes + i, n - i);
            pack_block(bits, last, row);
        }
        row += (size_t)4 * bits;
    }
    for (size_t g = 0; g < groups; g++, row += 2)
        store_u16(row, scales[g]);
    if (codec.scheme == MOEC_SCHEME_ASYMMETRIC)
        memcpy(row, zeros, groups);
}

/* ---- encoding ---- */

/* Range of one group. `top_bits` is the largest |w| as F32 bits: comparing bits keeps NaN and infinity on
 * top, where a comparison of floats would lose NaN. */
struct range {
    uint32_t top_bits;
    float min; /* of the weights and 0 */
    float max;
};

/* Loops here run over whole blocks: a constant trip count is what lets the compiler use vector instructions
 * at -O2. `w` holds a multiple of 32 weights. */
static struct range range_of(const float *w, size_t n)
{
    int32_t tops[BLOCK] = {0};
    float mins[BLOCK] = {0}, maxs[BLOCK] = {0};
    for (size_t i = 0; i < n; i += BLOCK) {
        int32_t magnitudes[BLOCK];
        memcpy(magnitudes, w + i, sizeof magnitudes);
        for (int j = 0; j < BLOCK; j++) {
            int32_t magnitude = magnitudes[j] & 0x7fffffff;
            tops[j] = magnitude > tops[j] ? magnitude : tops[j];
        }
        for (int j = 0; j < BLOCK; j++) {
            float value = w[i + (size_t)j];
            mins[j] = value < mins[j] ? value : mins[j];
            maxs[j] = value > maxs[j] ? value : maxs[j];
        }
    }
    struct range range = {0};
    for (int j = 0; j < BLOCK; j++) {
        range.top_bits = (uint32_t)tops[j] > range.top_bits ? (uint32_t)tops[j] : range.top_bits;
        range.min = mins[j] < range.min ? mins[j] : range.min;
        range.max = maxs[j] > range.max ? maxs[j] : range.max;
    }
    return range;
}

static enum moec_status fail_not_finite(const float *weights, size_t n, struct moec_error *err)
{
    size_t i = 0;
    while (i < n && (moec_f32_bits(weights[i]) & 0x7fffffffu) < F32_INF)
        i++;
    bool is_nan = i < n && weights[i] != weights[i];
    return moec_fail(err, MOEC_ERR_FORMAT, "weight %zu of the row is %s, expected a finite number", i,
                     is_nan ? "NaN" : "infinite");
}

/* Codes of whole blocks: round-half-even(clamp(w / s)) + zero. Adding 1.5 * 2^23 rounds to an integer in the
 * processor's mode, which is to nearest even, and leaves it in the low bits; clamping to integers first gives
 * what clamping after rounding gives. */
static void quantise_blocks(const float *w, size_t n, float scale, float low, float high, uint32_t zero,
                            uint8_t *codes)
{
    const float magic = 0x1.8p23f;
    for (size_t i = 0; i < n; i += BLOCK) {
        float q[BLOCK];
        uint32_t bits[BLOCK];
        for (int j = 0; j < BLOCK; j++) {
            float value = w[i + (size_t)j] / scale;
            value = value < low ? low : value;
            value = value > high ? high : value;
            q[j] = value + magic;
        }
        memcpy(bits, q, sizeof bits);
        for (int j = 0; j < BLOCK; j++)
            codes[i + (size_t)j] = (uint8_t)((bits[j] + zero) & 0xff);
    }
}

/* How a group is encoded: code = round-half-even(clamp(w / divisor)) + zero. */
struct group_scale {
    uint16_t scale; /* F16, as stored */
    uint8_t zero;   /* as stored; 0 when symmetric */
    float divisor;  /* the scale itself, unless the quantizer says otherwise; 0: all weights are 0 */
};

static enum moec_status choose_linear(struct moec_codec codec, struct range range, struct group_scale *group,
                                      struct moec_error *err)
{
    uint32_t bits = code_bits(codec.dtype);
    float levels, width;
    if (codec.scheme == MOEC_SCHEME_SYMMETRIC) {
        levels = (float)((1 << (bits - 1)) - 1);
        width = moec_f32_from_bits(range.top_bits);
    } else {
        levels = (float)((1 << bits) - 1);
        width = range.max - range.min;
    }
    *group = (struct group_scale){.scale = moec_f32_to_f16(width / levels)};
    if (group->scale >= F16_INF)
        return moec_fail(err, MOEC_ERR_FORMAT, "scale %g overflows F16: its weights reach %g", width / levels,
                         moec_f32_from_bits(range.top_bits));
    group->divisor = moec_f16_to_f32(group->scale);
    if (codec.scheme == MOEC_SCHEME_ASYMMETRIC && group->scale != 0) {
        float place = -range.min / group->divisor;
        place = place > levels ? levels : place;
        group->zero = (uint8_t)(moec_f32_bits(place + 0x1.8p23f) & 0xff);
    }
    return MOEC_OK;
}

static void choose_hqq(struct moec_codec codec, const float *w, size_t n, struct group_scale *group)
{
    uint32_t bits = code_bits(codec.dtype);
    bool symmetric = codec.scheme == MOEC_SCHEME_SYMMETRIC;
    uint8_t zero = group->zero;
    if (symmetric)
        zero = (uint8_t)(1u << (bits - 1));
    struct moec_hqq_fit fit = moec_hqq_fit(w, n, bits, !symmetric, group->divisor, zero);
    uint16_t scale = moec_f32_to_f16(fit.scale);
    if (scale == 0 || scale >= F16_INF) /* weights at the ends of F16's range stay with the linear choice */
        return;
    *group =
        (struct group_scale){.scale = scale, .zero = symmetric ? 0 : fit.zero, .divisor = fit.code_scale};
}

static void quantise_span(struct moec_codec codec, const float *w, size_t n, const struct group_scale *group,
                          uint8_t *codes)
{
    uint32_t bits = code_bits(codec.dtype);
    uint8_t zero = group->zero;
    if (group->scale == 0)
        memset(codes, codec.scheme == MOEC_SCHEME_SYMMETRIC ? 1 << (bits - 1) : 0, n);
    else if (codec.scheme == MOEC_SCHEME_SYMMETRIC)
        quantise_blocks(w, n, group->divisor, -(float)(1 << (bits - 1)), (float)((1 << (bits - 1)) - 1),
                        1u << (bits - 1), codes);
    else
        quantise_blocks(w, n, group->divisor, -(float)zero, (float)((1 << bits) - 1 - zero), zero, codes);
}

/* Widens a range by the last, incomplete block of a row. Padding with 0 changes neither range nor zero code.
 */
static struct range range_with_tail(const float *w, size_t n)
{
    size_t whole = n / BLOCK * BLOCK;
    struct range range = range_of(w, whole);
    if (whole < n) {
        float tail[BLOCK] = {0};
        memcpy(tail, w + whole, (n - whole) * sizeof *tail);
        struct range last = range_of(tail, BLOCK);
        range.top_bits = last.top_bits > range.top_bits ? last.top_bits : range.top_bits;
        range.min = last.min < range.min ? last.min : range.min;
        range.max = last.max > range.max ? last.max : range.max;
    }
    return range;
}

static enum moec_status encode_integers(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                        struct moec_error *err)
{
    uint32_t bits = code_bits(codec.dtype);
    size_t group = codec.group == 0 ? n : codec.group;
    size_t groups = moec_codec_row_groups(codec, n);
    uint8_t *scales = row + codes_bytes(codec, n);
    uint8_t *zeros = scales + 2 * groups;
    for (size_t g = 0, at = 0; g < groups; g++) {
        size_t end = n - at < group ? n : at + group;
        struct range range = range_with_tail(weights + at, end - at);
        struct group_scale chosen;
        if (range.top_bits >= F32_INF)
            return fail_not_finite(weights, n, err);
        MOEC_TRY(choose_linear(codec, range, &chosen, err));
        if (codec.quantizer == MOEC_QUANTIZER_HQQ && chosen.scale != 0)
            choose_hqq(codec, weights + at, end - at, &chosen);
        for (; at < end; at += BLOCK) {
            float padded[BLOCK] = {0};
            uint8_t codes[BLOCK];
            const float *block = weights + at;
            if (end - at < BLOCK) {
                memcpy(padded, block, (end - at) * sizeof *padded);
                block = padded;
            }
            quantise_span(codec, block, BLOCK, &chosen, codes);
            pack_block(bits, codes, row);
            row += (size_t)4 * bits;
        }
        at = end;
        store_u16(scales + 2 * g, chosen.scale);
        if (codec.scheme == MOEC_SCHEME_ASYMMETRIC)
            zeros[g] = chosen.zero;
    }
    return MOEC_OK;
}

/* ---- gaussian and logarithmic ---- */

/* F16 bits of a scale or an outlier. */
static enum moec_status to_half(float value, const char *what, uint16_t *half, struct moec_error *err)
{
    *half = moec_f32_to_f16(value);
    if ((*half & 0x7fffu) >= F16_INF)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s %g overflows F16", what, value);
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
            pack_block(bits, codes, row);
        }
        at = end;
    }
    return MOEC_OK;
}

static void decode_dictionary(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
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
        unpack_block(bits, codes_at, codes);
        for (size_t j = 0; j < left; j++)
            weights[i + j] = levels[codes[j]] * scale;
    }
    for (size_t span = first / SPAN; span < n_outlier && span * SPAN < first + count; span++) {
        const size_t place = outliers[2 * n_outlier + span], at = span * SPAN + place;
        if (place < SPAN && at >= first && at - first < count)
            weights[at - first] = moec_f16_to_f32(load_u16(outliers + 2 * span));
    }
}

/* ---- any dtype ---- */

static enum moec_status encode_floats(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                                      struct moec_error *err)
{
    if (range_with_tail(weights, n).top_bits >= F32_INF)
        return fail_not_finite(weights, n, err);
    for (size_t i = 0; i < n; i++) {
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
    if (is_float(codec.dtype))
        return encode_floats(codec, weights, n, row, err);
    if (moec_scheme_is_dictionary((enum moec_scheme)codec.scheme))
        return encode_dictionary(codec, weights, n, row, err);
    return encode_integers(codec, weights, n, row, err);
}

/* ---- decoding ---- */

static void decode_floats(struct moec_codec codec, const uint8_t *row, size_t n, float *weights)
{
    switch (codec.dtype) {
    case MOEC_DTYPE_F32:
        for (size_t i = 0; i < n; i++)
            weights[i] = moec_f32_from_bits(load_u32(row + 4 * i));
        break;
    case MOEC_DTYPE_F16:
        for (size_t i = 0; i < n; i++)
            weights[i] = moec_f16_to_f32(load_u16(row + 2 * i));
        break;
    default:
        for (size_t i = 0; i < n; i++)
            weights[i] = moec_bf16_to_f32(load_u16(row + 2 * i));
        break;
    }
}

void moec_codec_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first, size_t count,
                            float *weights)
{
    if (is_float(codec.dtype)) {
        decode_floats(codec, row + first * moec_codec_bits(codec) / 8, count, weights);
        return;
    }
    if (moec_scheme_is_dictionary((enum moec_scheme)codec.scheme)) {
        decode_dictionary(codec, row, n, first, count, weights);
        return;
    }
    uint32_t bits = code_bits(codec.dtype);
    const uint8_t *scales = row + codes_bytes(codec, n);
    const uint8_t *zeros = scales + 2 * moec_codec_row_groups(codec, n);
    row += first / BLOCK * 4 * bits;
    for (size_t i = 0; i < count; i += BLOCK, row += (size_t)4 * bits) {
        size_t group = codec.group == 0 ? 0 : (first + i) / codec.group;
        float scale = moec_f16_to_f32(load_u16(scales + 2 * group));
        int zero = zero_code(codec, zeros, group);
        uint8_t codes[BLOCK];
        unpack_block(bits, row, codes);
        size_t left = count - i < BLOCK ? count - i : BLOCK;
        for (size_t j = 0; j < left; j++)
            weights[i + j] = (float)((int)codes[j] - zero) * scale;
    }
}

void moec_codec_row_scales(struct moec_codec codec, const uint8_t *row, size_t n, uint16_t *scales,
                           uint8_t *zeros)
{
    size_t groups = moec_codec_row_groups(codec, n);
    const uint8_t *at = row + codes_bytes(codec, n);
    for (size_t g = 0; g < groups; g++) {
        scales[g] = load_u16(at + 2 * g);
        zeros[g] = zero_code(codec, at + 2 * groups, g);
    }
}

void moec_codec_decode_row(struct moec_codec codec, const uint8_t *row, size_t n, float *weights)
{
    moec_codec_decode_span(codec, row, n, 0, n, weights);
}

bool moec_codec_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n)
{
    uint32_t infinity = codec.dtype == MOEC_DTYPE_BF16 ? BF16_INF : F16_INF;
    size_t halves = n;
    if (codec.dtype == MOEC_DTYPE_F32) {
        for (size_t i = 0; i < n; i++)
            if ((load_u32(row + 4 * i) & 0x7fffffffu) >= F32_INF)
                return false;
        return true;
    }
    if (!is_float(codec.dtype)) {
        const size_t n_outlier = moec_codec_row_outliers(codec, n);
        row += codes_bytes(codec, n);
        halves = moec_codec_row_groups(codec, n) + n_outlier; /* outliers follow scales */
        for (size_t span = 0; span < n_outlier; span++)
            if (row[2 * halves + span] >= (n - span * SPAN < SPAN ? n - span * SPAN : SPAN))
                return false;
    }
    for (size_t i = 0; i < halves; i++)
        if ((load_u16(row + 2 * i) & 0x7fffu) >= infinity)
            return false;
    return true;
}
