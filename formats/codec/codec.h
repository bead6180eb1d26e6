/* How a row of weights is stored: 16- and 32-bit floats as they are, or INT2, INT3, INT4, INT8 codes with
 * scales.
 *
 * A *row* is the unit of encoding: n consecutive weights that share a channel scale or are cut into groups.
 * Matrices are arrays of rows with a fixed stride. Decoding gives F32(code - zero) * F32(scale), rounded once
 * (the F32 subtraction is exact), so every kernel that multiplies decoded weights sees the same bits.
 *
 * Row layout for INTb with n weights: codes | scales | zeros, or codes | scales | outliers | places
 *   codes   ceil(n / 32) blocks of 32 codes, 4*b bytes each; codes past n are the zero code
 *           INT8: byte i = code[i]
 *           INT4: byte i = code[i] | code[i + 16] << 4                                      (i in 0..15)
 *           INT2: byte i = code[i] | code[i + 8] << 2 | code[i + 16] << 4 | code[i + 24] << 6 (i in 0..7)
 *           INT3: 8 bytes as INT2 with the low two bits, then a little-endian u32 whose bit i is the high bit
 *           of code[i]
 *   scales  one F16 (little-endian) for each group; group 0 ("channel") means one for the row
 *   zeros   asymmetric only: one byte for each group, 0..2^b - 1
 *   outliers, places
 *           gaussian only: for every 128 weights of the row, begun or whole, the F16 of one of them, and then
 *           for every 128 one byte, its place among them
 * Codes are unsigned. Symmetric: code = q + 2^(b-1), zero = 2^(b-1) implied. Gaussian and logarithmic: codes
 * stand for levels (formats/codec/dictionary.h), codes past n are 0. There is no padding.
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
    MOEC_DTYPE_COUNT
};

enum moec_scheme {
    MOEC_SCHEME_SYMMETRIC = 0,
    MOEC_SCHEME_ASYMMETRIC = 1,
    MOEC_SCHEME_GAUSSIAN = 2, /* these two: formats/codec/dictionary.h */
    MOEC_SCHEME_LOGARITHMIC = 3,
    MOEC_SCHEME_COUNT
};

/* Who chooses scales and zeros when rows are encoded. Decoding does not depend on it. */
enum moec_quantizer {
    MOEC_QUANTIZER_LINEAR = 0,  /* from the extremes of a group: moec_codec_encode_row */
    MOEC_QUANTIZER_HQQ = 1,     /* half-quadratic: formats/codec/hqq.h */
    MOEC_QUANTIZER_AUTO = 2,    /* of no codec: a profile measures and chooses for each bitwidth */
    MOEC_QUANTIZER_OUTLIER = 3, /* the gaussian scheme's, and no other */
    MOEC_QUANTIZER_LOG = 4,     /* the logarithmic scheme's, and no other */
    MOEC_QUANTIZER_COUNT
};

#define MOEC_CODEC_BLOCK        32  /* codes in a packed block */
#define MOEC_CODEC_OUTLIER_SPAN 128 /* weights of a row of which the gaussian scheme keeps one apart */

/* group: weights that share a scale, 0 (the whole row), 32, 64 or 128. scheme, group and quantizer are 0 for
 * float dtypes. Files do not store the quantizer, for bytes do not tell it: a codec read from one has 0. */
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

/* Linear codec for a bitwidth in {2, 3, 4, 8, 16}; 16 takes `source_dtype` (F32 sources become BF16). */
MOEC_WARN_UNUSED enum moec_status moec_codec_for_bits(uint32_t bits, enum moec_scheme scheme, uint32_t group,
                                                      enum moec_dtype source_dtype, struct moec_codec *codec,
                                                      struct moec_error *err);

/* Codecs of one quantizer (not AUTO), scheme and group at every bitwidth that experts may have: entries 2, 3,
 * 4, 8 and 16 of `codecs`; there are no others. Errors as moec_codec_for_bits,
 * MOEC_ERR_USAGE for AUTO. */
MOEC_WARN_UNUSED enum moec_status moec_codec_table(enum moec_quantizer quantizer, enum moec_scheme scheme,
                                                   uint32_t group, enum moec_dtype source_dtype,
                                                   struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                                   struct moec_error *err);

/* Checks a codec that came from a file. `subject` names it in messages. */
MOEC_WARN_UNUSED enum moec_status moec_codec_check(struct moec_codec codec, const char *subject,
                                                   struct moec_error *err);

/* 2, 3, 4, 8, 16 or 32. */
uint32_t moec_codec_bits(struct moec_codec codec);

/* "int4 symmetric channel", "int2 asymmetric g64", "bf16"; a static string for floats, else `text`. */
const char *moec_codec_name(struct moec_codec codec, char text[static 40]);

/* Same bytes for the same codes: the quantizer is not compared. */
bool moec_codec_equal(struct moec_codec a, struct moec_codec b);

/* Whether codes stand for levels of a dictionary: gaussian and logarithmic. */
static inline bool moec_scheme_is_dictionary(enum moec_scheme scheme)
{
    return scheme >= MOEC_SCHEME_GAUSSIAN;
}

/* Whether the quantizer makes codes of this scheme: linear and hqq symmetric and asymmetric ones. */
bool moec_quantizer_makes(enum moec_quantizer quantizer, enum moec_scheme scheme);

/* "linear", "hqq", "auto", "outlier", "log"; "symmetric", "asymmetric", "gaussian", "logarithmic". */
const char *moec_quantizer_name(enum moec_quantizer quantizer);
const char *moec_scheme_name(enum moec_scheme scheme);

/* Bytes of one encoded row of n weights (n <= 2^31, checked by the caller through moec_config limits). */
size_t moec_codec_row_bytes(struct moec_codec codec, size_t n);

/* Number of scales in a row, and of outliers. */
size_t moec_codec_row_groups(struct moec_codec codec, size_t n);
size_t moec_codec_row_outliers(struct moec_codec codec, size_t n);

/* Encodes n weights by linear quantisation (D4; EdgeMoE III-B, "channel-wise linear quantization"):
 *   symmetric   s = F16(absmax / (2^(b-1) - 1)),  q = clamp(round-half-even(w / s), -2^(b-1), 2^(b-1) - 1)
 *   asymmetric  s = F16((max - min) / (2^b - 1)), zero = clamp(round-half-even(-min / s), 0, 2^b - 1),
 *               code = clamp(round-half-even(w / s) + zero, 0, 2^b - 1)
 * with the rounded s; w / s is one F32 division. max and min are taken over the weights and 0: a row of
 * positive weights would otherwise need a zero point below 0, and 0 stays representable. s = 0 encodes zeros
 * (symmetric: the implied zero code; asymmetric: code 0, zero 0); that happens when all weights are 0 and
 * also when the quotient is below 2^-25 and F16 rounds it to 0. Float dtypes convert with round to nearest
 * even; gaussian and logarithmic: formats/codec/dictionary.h. `row` holds moec_codec_row_bytes bytes. Errors:
 * MOEC_ERR_FORMAT when a weight is NaN or infinite, or a scale or a 16-bit float overflows (the message gives
 * the index). */
MOEC_WARN_UNUSED enum moec_status moec_codec_encode_row(struct moec_codec codec, const float *weights,
                                                        size_t n, uint8_t *row, struct moec_error *err);

/* Packs given codes, F16 scales and zeros (NULL unless asymmetric): what quantisers other than the linear one
 * call. Of a gaussian row all but the outliers. */
void moec_codec_pack_row(struct moec_codec codec, const uint8_t *codes, const uint16_t *scales,
                         const uint8_t *zeros, size_t n, uint8_t *row);

/* The scales of an encoded row, moec_codec_row_groups F16 values, and its zeros (not of dictionaries): what
 * each group subtracts from its codes, 2^(b-1) when symmetric. */
void moec_codec_row_scales(struct moec_codec codec, const uint8_t *row, size_t n, uint16_t *scales,
                           uint8_t *zeros);

/* Scalar reference decoder: writes n F32 weights. */
void moec_codec_decode_row(struct moec_codec codec, const uint8_t *row, size_t n, float *weights);

/* The same for weights first..first+count-1 of a row of n; `first` is a multiple of MOEC_CODEC_BLOCK. */
void moec_codec_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first, size_t count,
                            float *weights);

/* True when every scale and outlier (or every float of a float dtype) of the row is finite, and every outlier
 * has a place among its weights. Decoding leaves out one that has none. */
bool moec_codec_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n);

#endif
