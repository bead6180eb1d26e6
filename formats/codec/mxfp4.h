/* MXFP4 (OCP Microscaling Formats, version 1.0): weights of E2M1, sixteen levels of which the high bit of a
 * code is the sign, in groups of 32 that share a scale of E8M0, 2^(byte - 127). Experts that a checkpoint
 * has so are kept so: the encoder takes weights that such a group holds exactly, and no others.
 *
 * A row of n weights, n a multiple of 32, is n / 2 bytes of codes in blocks as INT4's, then n / 32 bytes.
 *
 *   MOEC_DTYPE_MXFP4       A group is 32 weights of the row. Byte g is the scale of weights
 *                          32 g .. 32 g + 31.
 *   MOEC_DTYPE_MXFP4_DOWN  A group is 32 weights of a column, in the rows of a *block*: rows
 *                          32 i .. 32 i + 31 of a matrix, whose rows are a multiple of 32. Down projections
 *                          are stored by columns (formats/model/record.h) and scaled along the neurons. Byte
 *                          g of row r of a block is the scale of its column 32 g + r, so that all rows are
 *                          equally long.
 *
 * Thread rule: pure functions. */
#ifndef MOEC_FORMATS_MXFP4_H
#define MOEC_FORMATS_MXFP4_H

#include "formats/base/half.h"
#include "formats/codec/codec.h"

#define MOEC_MXFP4_GROUP     32
#define MOEC_MXFP4_MAX_SCALE 252 /* the largest byte with which all levels are finite in F32 */

/* By code. */
extern const float moec_mxfp4_levels[16];

/* 2^(byte - 127). */
static inline float moec_mxfp4_scale(uint8_t byte)
{
    return moec_f32_from_bits((uint32_t)byte << 23 | (uint32_t)(byte == 0) << 22);
}

/* Whether a matrix of such rows and columns has whole groups both ways. */
bool moec_mxfp4_fits(uint32_t rows, uint32_t columns);

/* Weights first .. first + count - 1 of a row of n, `first` a multiple of MOEC_CODEC_BLOCK: of MXFP4, and of
 * row `row` of the block of MXFP4_DOWN that begins at `block`, rows stride_bytes apart. */
void moec_mxfp4_decode_span(const uint8_t *row, size_t n, size_t first, size_t count, float *weights);
void moec_mxfp4_decode_block_span(const uint8_t *block, size_t stride_bytes, uint32_t row, size_t n,
                                  size_t first, size_t count, float *weights);

/* Encodes a row of n weights of MXFP4, or 32 rows of MXFP4_DOWN (weights: (32, n) row-major). Errors:
 * MOEC_ERR_FORMAT for weights that are not the same afterwards (the message gives the first one's index). */
MOEC_WARN_UNUSED enum moec_status moec_mxfp4_encode_row(const float *weights, size_t n, uint8_t *row,
                                                        struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_mxfp4_encode_block(const float *weights, size_t n, uint8_t *block,
                                                          size_t stride_bytes, struct moec_error *err);

#endif
