/* Blocks of codes and the parts of a row, for the files that make up the codec (internal to formats/codec).
 */
#ifndef MOEC_FORMATS_CODEC_INTERNAL_H
#define MOEC_FORMATS_CODEC_INTERNAL_H

#include "formats/codec/codec.h"

#define BLOCK    MOEC_CODEC_BLOCK
#define SPAN     MOEC_CODEC_OUTLIER_SPAN
#define F32_INF  0x7f800000u
#define F16_INF  0x7c00u
#define BF16_INF 0x7f80u

static inline bool dtype_is_float(uint8_t dtype)
{
    return dtype <= MOEC_DTYPE_BF16;
}

/* Bits of a code, 0 for floats. */
static inline uint32_t code_bits(uint8_t dtype)
{
    static const uint8_t bits[MOEC_DTYPE_COUNT] = {
        [MOEC_DTYPE_INT1] = 1, [MOEC_DTYPE_INT2] = 2,  [MOEC_DTYPE_INT3] = 3,
        [MOEC_DTYPE_INT4] = 4, [MOEC_DTYPE_INT5] = 5,  [MOEC_DTYPE_INT6] = 6,
        [MOEC_DTYPE_INT8] = 8, [MOEC_DTYPE_MXFP4] = 4, [MOEC_DTYPE_MXFP4_DOWN] = 4,
    };
    return bits[dtype];
}

/* Bytes of the codes of a row, which scales follow, and of its zeros, which follow those. */
static inline size_t codes_bytes(struct moec_codec codec, size_t n)
{
    return (n + BLOCK - 1) / BLOCK * 4 * code_bits(codec.dtype);
}

size_t moec_codec_zeros_bytes(struct moec_codec codec, size_t n);

static inline void store_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value & 0xff);
    at[1] = (uint8_t)(value >> 8);
}

static inline uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)at[1] << 8);
}

static inline void store_u32(uint8_t *at, uint32_t value)
{
    store_u16(at, (uint16_t)(value & 0xffff));
    store_u16(at + 2, (uint16_t)(value >> 16));
}

static inline uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

/* One block of codes, 4 * bits bytes (formats/codec/codec_row.c). */
void moec_codec_pack_block(uint32_t bits, const uint8_t codes[static BLOCK], uint8_t *out);
void moec_codec_unpack_block(uint32_t bits, const uint8_t *in, uint8_t codes[static BLOCK]);

/* Puts the zeros of all groups, one byte each, where a row has them. */
void moec_codec_store_zeros(struct moec_codec codec, const uint8_t *zeros, size_t n, uint8_t *row);

#endif
