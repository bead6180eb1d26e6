/* How a row of weights is stored: 16- and 32-bit floats as they are, or INT1 to INT8 codes with scales.
 *
 * A *row* is the unit of encoding: n consecutive weights that share a channel scale or are cut into groups.
 * Matrices are arrays of rows with a fixed stride. Decoding gives F32(code - zero) * F32(scale), rounded once
 * (the F32 subtraction is exact), so every kernel that multiplies decoded weights sees the same bits.
 *
 * Row layout for INTb with n weights: codes | scales | zeros, or codes | scales | outliers | places
 *   codes   ceil(n / 32) blocks of 32 codes, 4*b bytes each; codes past n are the zero code of the last group
 *           INT8: byte i = code[i]
 *           INT4: byte i = code[i] | code[i + 16] << 4                                      (i in 0..15)
 *           INT2: byte i = code[i] | code[i + 8] << 2 | code[i + 16] << 4 | code[i + 24] << 6 (i in 0..7)
 *           INT3: 8 bytes as INT2 with the low two bits, then a little-endian u32 whose bit i is the high bit
 *           of code[i]
 *           INT5: 16 bytes as INT4 with the low four bits, then such a u32
 *           INT6: 16 bytes as INT4 with the low four bits, then 8 bytes as INT2 with the high two
 *           INT1: a little-endian u32 whose bit i is half of code[i], which is 0 or 2: on either side of the
 *           zero 1, so that weights are -scale and +scale
 *   scales  one F16 (little-endian) for each group; group 0 ("channel") means one for the row
 *           nested: one F16 for the row, then one byte for each group
 *   zeros   asymmetric: one byte for each group, 0..2^b - 1
 *           nested and asymmetric: b bits for each group, the least significant first, then bits of 0 up to
 *           a whole byte
 *   outliers, places
 *           gaussian only: for every 128 weights of the row, begun or whole, the F16 of one of them, and then
 *           for every 128 one byte, its place among them
 *
 * Codes are unsigned; those of INT1 past n are 2. Trellis: a block of INT2 is two little-endian u32 instead,
 * bit i of the first the coded bit of weight i, of the second its free bit (formats/codec/trellis.h). Shift:
 * blocks of INT2, INT3 and INT4 are free bits, then coded ones (formats/codec/shift.h). MXFP4:
 * codes as INT4, then one byte for each 32 weights (formats/codec/mxfp4.h). Symmetric: code = q + 2^(b-1),
 * zero = 2^(b-1) implied. Gaussian and logarithmic: codes stand for levels (formats/codec/dictionary.h),
 * codes past n are 0. There is no padding.
 *
 * The nested schemes keep scales of scales (Dettmers, Pagnoni, Holtzman & Zettlemoyer, "QLoRA", 2023, double
 * quantization; llama.cpp's k-quants): a group's scale is F32(byte) * F32(scale of the row) * 2^-8, which F32
 * holds exactly. At 2 bits a group of 32 then costs 8 to 10 bits in place of 16 to 24.
 *
 * The scalar functions here define the bytes; kernels are checked against them. Thread rule: pure functions.
 */
#ifndef MOEC_FORMATS_CODEC_H
#define MOEC_FORMATS_CODEC_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum moec_dtype {
    MOEC_DTYPE_F32 = 0,
    MOEC_DTYPE_F16 = 1,
    MOEC_DTYPE_BF16 = 2,
    MOEC_DTYPE_INT2 = 3,
    MOEC_DTYPE_INT3 = 4,
    MOEC_DTYPE_INT4 = 5,
    MOEC_DTYPE_INT8 = 6,
    MOEC_DTYPE_INT5 = 7,
    MOEC_DTYPE_INT6 = 8,
    MOEC_DTYPE_MXFP4 = 9,       /* formats/codec/mxfp4.h; of experts that their checkpoint has so, alone */
    MOEC_DTYPE_MXFP4_DOWN = 10, /* the same of a down projection's rows; files say MXFP4 */
    MOEC_DTYPE_INT1 = 11,
    MOEC_DTYPE_COUNT
};

enum moec_scheme {
    MOEC_SCHEME_SYMMETRIC = 0,
    MOEC_SCHEME_ASYMMETRIC = 1,
    MOEC_SCHEME_GAUSSIAN = 2, /* these two: formats/codec/dictionary.h */
    MOEC_SCHEME_LOGARITHMIC = 3,
    MOEC_SCHEME_SYMMETRIC_NESTED = 4,
    MOEC_SCHEME_ASYMMETRIC_NESTED = 5,
    MOEC_SCHEME_TRELLIS = 6, /* formats/codec/trellis.h */
    MOEC_SCHEME_SHIFT = 7,   /* formats/codec/shift.h */
    MOEC_SCHEME_COUNT
};

/* Who chooses scales and zeros when rows are encoded. Decoding does not depend on it. */
enum moec_quantizer {
    MOEC_QUANTIZER_LINEAR = 0,  /* from the extremes of a group: moec_codec_encode_row */
    MOEC_QUANTIZER_HQQ = 1,     /* half-quadratic: formats/codec/hqq.h */
    MOEC_QUANTIZER_AUTO = 2,    /* of no codec: a profile measures and chooses for each bitwidth */
    MOEC_QUANTIZER_OUTLIER = 3, /* the gaussian scheme's, and no other */
    MOEC_QUANTIZER_LOG = 4,     /* the logarithmic scheme's, and no other */
    MOEC_QUANTIZER_GPTQ = 5,    /* codes by what a matrix is multiplied with, which a row alone does not tell:
                                   compiler/fit/gptq.h */
    MOEC_QUANTIZER_TRELLIS = 6, /* the shift scheme's at 2, 3 and 4 bits, HQQ's at the others */
    MOEC_QUANTIZER_COUNT
};

#define MOEC_CODEC_BLOCK        32  /* codes in a packed block */
#define MOEC_CODEC_OUTLIER_SPAN 128 /* weights of a row of which the gaussian scheme keeps one apart */

/* group: weights that share a scale, 0 (the whole row), 16, 32, 64 or 128. scheme, group and quantizer are 0
 * for float dtypes. Nested schemes have groups; dictionaries have 2, 3, 4 or 8 bits and no groups of 16; the
 * trellis has 2 bits, shift codes 2, 3 or 4, and both no groups; 1 bit is symmetric, nested or not.
 * Files do not store the quantizer, for bytes do not tell it: a codec read from one has 0. */
struct moec_codec {
    uint8_t dtype;  /* enum moec_dtype */
    uint8_t scheme; /* enum moec_scheme */
    uint16_t group;
    uint8_t quantizer; /* enum moec_quantizer: how rows are encoded */
};

/* A table of codecs gives each one a number. Numbers up to 32 are bitwidths and mean the codec that this
 * bitwidth alone names; numbers from MOEC_CODEC_FIRST_OTHER on are further codecs, of whatever bitwidth. F32
 * stands for "none", also at 32, except where a comment says that it is a codec. Files hold codecs, not
 * numbers. */
#define MOEC_CODEC_TABLE       64
#define MOEC_CODEC_FIRST_OTHER 33

/* Linear codec of 1, 2, 3, 4, 5, 6, 8 or 16 bits; 16 is what holds the source's weights as they are, and
 * takes `source_dtype` (F32 sources become BF16, MXFP4 stays). 1 bit takes the symmetric scheme in place of
 * the asymmetric, nested or not. */
MOEC_WARN_UNUSED enum moec_status moec_codec_for_bits(uint32_t bits, enum moec_scheme scheme, uint32_t group,
                                                      enum moec_dtype source_dtype, struct moec_codec *codec,
                                                      struct moec_error *err);

/* Codecs of one quantizer (not AUTO), scheme and group at every bitwidth that they have: entries 1, 2, 3, 4,
 * 5, 6, 8 and 16 of `codecs`, for dictionaries not 1, 5 and 6; there are no others. Of quantizer TRELLIS
 * scheme and group are those of bitwidths other than 2, 3 and 4, whose quantizer is HQQ. Errors as
 * moec_codec_for_bits, MOEC_ERR_USAGE for AUTO. */
MOEC_WARN_UNUSED enum moec_status moec_codec_table(enum moec_quantizer quantizer, enum moec_scheme scheme,
                                                   uint32_t group, enum moec_dtype source_dtype,
                                                   struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                                   struct moec_error *err);

/* Checks a codec that came from a file. `subject` names it in messages. */
MOEC_WARN_UNUSED enum moec_status moec_codec_check(struct moec_codec codec, const char *subject,
                                                   struct moec_error *err);

/* 1, 2, 3, 4, 5, 6, 8, 16 or 32. MXFP4 counts as 16, in whose place it stands: the source's own weights. */
uint32_t moec_codec_bits(struct moec_codec codec);

/* Whether rows are MXFP4, of a down projection or another. */
static inline bool moec_codec_is_mxfp4(struct moec_codec codec)
{
    return codec.dtype == MOEC_DTYPE_MXFP4 || codec.dtype == MOEC_DTYPE_MXFP4_DOWN;
}

/* What a codec asks of those who store, fit or show it, so that they need not know its name. */
struct moec_codec_traits {
    uint8_t rows_together; /* rows that are encoded at once: 1, or 32 whose neurons share scales */
    uint8_t float_dtype;   /* of is_exact: floats of 16 bits that hold decoded weights exactly */
    bool stands_alone;     /* a row decodes without the rows beside it */
    bool is_float;         /* weights as they are, without codes */
    bool is_exact;         /* holds weights that were such codes before, and no others: 16 bits in a table */
    bool is_path;          /* codes of a row are chosen along the row, first to last, with one scale a row */
};
const struct moec_codec_traits *moec_codec_traits(struct moec_codec codec);

/* What a down projection stores, by columns, of which this is the codec in files. */
static inline struct moec_codec moec_codec_for_down(struct moec_codec codec)
{
    if (codec.dtype == MOEC_DTYPE_MXFP4)
        codec.dtype = MOEC_DTYPE_MXFP4_DOWN;
    return codec;
}

/* Whether experts of a model may be stored in this dtype at 16 bits; whether matrices of such rows and columns
 * can, as they are and by columns. */
bool moec_dtype_is_source(uint8_t dtype);
bool moec_codec_fits(struct moec_codec codec, uint32_t rows, uint32_t columns);

/* Bits of a code, or of a float: 4 of MXFP4. */
uint32_t moec_codec_code_bits(struct moec_codec codec);

/* "int4 symmetric channel", "int2 asymmetric nested g64", "bf16", "mxfp4"; a static string for the last two,
 * else `text`. */
const char *moec_codec_name(struct moec_codec codec, char text[static 40]);

/* Same bytes for the same codes: the quantizer is not compared. */
bool moec_codec_equal(struct moec_codec a, struct moec_codec b);

/* Whether codes stand for levels of a dictionary: gaussian and logarithmic. */
static inline bool moec_scheme_is_dictionary(enum moec_scheme scheme)
{
    return scheme == MOEC_SCHEME_GAUSSIAN || scheme == MOEC_SCHEME_LOGARITHMIC;
}

/* Whether rows have a zero point for each group. */
static inline bool moec_scheme_has_zeros(enum moec_scheme scheme)
{
    return scheme == MOEC_SCHEME_ASYMMETRIC || scheme == MOEC_SCHEME_ASYMMETRIC_NESTED;
}

/* Whether the scales of groups are bytes under a scale of the row. */
static inline bool moec_scheme_is_nested(enum moec_scheme scheme)
{
    return scheme == MOEC_SCHEME_SYMMETRIC_NESTED || scheme == MOEC_SCHEME_ASYMMETRIC_NESTED;
}

/* Whether the quantizer makes codes of this scheme at all its bitwidths: linear, hqq, gptq and trellis of
 * those of evenly spaced codes. The trellis and shift schemes, which have few bitwidths, go beside another. */
bool moec_quantizer_makes(enum moec_quantizer quantizer, enum moec_scheme scheme);

/* Whether what the quantizer makes at this bitwidth is of the shift scheme. */
bool moec_quantizer_makes_path(enum moec_quantizer quantizer, uint32_t bits);

/* "linear", "hqq", "auto", "outlier", "log", "gptq", "trellis"; "symmetric", "asymmetric", "gaussian",
 * "logarithmic", "symmetric-nested", "asymmetric-nested", "trellis", "shift". */
const char *moec_quantizer_name(enum moec_quantizer quantizer);
const char *moec_scheme_name(enum moec_scheme scheme);

/* Bytes of one encoded row of n weights (n <= 2^31, checked by the caller through moec_config limits). */
size_t moec_codec_row_bytes(struct moec_codec codec, size_t n);

/* Number of groups in a row, and of outliers; bytes of what a row stores as scales. */
size_t moec_codec_row_groups(struct moec_codec codec, size_t n);
size_t moec_codec_row_outliers(struct moec_codec codec, size_t n);
size_t moec_codec_scales_bytes(struct moec_codec codec, size_t n);

/* Encodes n weights by linear quantisation (D4; EdgeMoE III-B, "channel-wise linear quantization"):
 *   symmetric   s = F16(absmax / (2^(b-1) - 1)),  q = clamp(round-half-even(w / s), -2^(b-1), 2^(b-1) - 1)
 *   asymmetric  s = F16((max - min) / (2^b - 1)), zero = clamp(round-half-even(-min / s), 0, 2^b - 1),
 *               code = clamp(round-half-even(w / s) + zero, 0, 2^b - 1)
 *   1 bit       s = F16(mean of |w|), the least squared error; code 0 where w < 0, else 2
 *
 * with the rounded s (nested: moec_codec_round_scales of the quotients); w / s is one F32 division. max and
 * min are taken over the weights and 0: a row of positive weights would otherwise need a zero point below 0,
 * and 0 stays representable. s = 0 encodes zeros (symmetric: the implied zero code; asymmetric: code 0, zero
 * 0; 1 bit: code 2); that happens when all weights are 0 and, where F16 rounds a group's scale, also when the
 * quotient is below 2^-25. HQQ chooses scale and zero its own way (formats/codec/hqq.h), and so does GPTQ
 * here, which has only the weights. Float dtypes convert with round to nearest even; gaussian and
 * logarithmic: formats/codec/dictionary.h. Shift: the path of least squared error and the scale of least
 * squared error for its levels in turn, from moec_shift_scale; a scale that F16 rounds to 0 encodes zeros.
 * `row` holds moec_codec_row_bytes bytes. Errors: MOEC_ERR_USAGE for the trellis scheme, which is only read;
 * MOEC_ERR_FORMAT when a weight is NaN or infinite, or a scale or a 16-bit float overflows (the message gives
 * the index); MOEC_ERR_LIMIT and MOEC_ERR_MEMORY when there is no memory for the groups or the path of a very
 * long row. */
MOEC_WARN_UNUSED enum moec_status moec_codec_encode_row(struct moec_codec codec, const float *weights,
                                                        size_t n, uint8_t *row, struct moec_error *err);

/* Rounds the scales that a quantizer wants for the groups of a row of n weights, finite and not negative, to
 * those that rows can have: scales[g] becomes the very F32 value that codes of group g are multiplied with,
 * and `stored`, moec_codec_scales_bytes bytes, what a row stores. To F16, or for nested schemes: the row's
 * scale R is the least F16 with R * 255 / 256 >= the largest, a group's byte that of the nearest multiple of
 * R / 256, but at least 1 where the wanted scale is not 0. Integer dtypes only. Errors: MOEC_ERR_FORMAT when
 * a scale overflows F16. */
MOEC_WARN_UNUSED enum moec_status moec_codec_round_scales(struct moec_codec codec, size_t n, float *scales,
                                                          uint8_t *stored, struct moec_error *err);

/* Packs given codes, scales as moec_codec_round_scales stores them, and zeros, one byte for each group (NULL
 * unless the scheme has them): what quantisers other than the linear one call. Of a gaussian row all but the
 * outliers. */
void moec_codec_pack_row(struct moec_codec codec, const uint8_t *codes, const uint8_t *stored,
                         const uint8_t *zeros, size_t n, uint8_t *row);

/* Puts other codes in an encoded row, which keeps its scales and zeros. Not of dictionaries. */
void moec_codec_replace_codes(struct moec_codec codec, const uint8_t *codes, size_t n, uint8_t *row);

/* The scales of an encoded row as codes are multiplied with them, moec_codec_row_groups values, and its zeros
 * (not of dictionaries): what each group subtracts from its codes, 2^(b-1) when symmetric, 0 of a path. */
void moec_codec_row_scales(struct moec_codec codec, const uint8_t *row, size_t n, float *scales,
                           uint8_t *zeros);

/* Scalar reference decoder: writes n F32 weights. Not of MXFP4_DOWN, whose rows do not stand alone:
 * moec_matrix_decode_span. */
void moec_codec_decode_row(struct moec_codec codec, const uint8_t *row, size_t n, float *weights);

/* The same for weights first..first+count-1 of a row of n; `first` is a multiple of MOEC_CODEC_BLOCK. */
void moec_codec_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first, size_t count,
                            float *weights);

/* True when every scale and outlier (or every float of a float dtype) of the row is finite, and every outlier
 * has a place among its weights. Decoding leaves out one that has none. */
bool moec_codec_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n);
/* The first of n_row rows of n weights that is not; n_row where all are. */
size_t moec_codec_find_not_finite(struct moec_codec codec, const uint8_t *rows, size_t stride_bytes,
                                  size_t n_row, size_t n);

#endif
