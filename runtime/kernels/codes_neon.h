/* Codes of weights, taken out of their bits by NEON: what the canonical and the int8 kernels share. */
#ifndef MOEC_RUNTIME_CODES_NEON_H
#define MOEC_RUNTIME_CODES_NEON_H

#include "runtime/kernels/kernels_shape.h"

#include <arm_neon.h>

/* Sixteen bytes, each with the same bit of its place in two bytes of `bits`: all ones where that is set. */
INLINE uint8x16_t set_bits(const uint8_t *bits)
{
    static const uint8_t places[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    return vtstq_u8(vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1])), vld1q_u8(places));
}

/* Codes of two bits: the first eight weights have the lowest two bits of eight bytes, and so on. */
INLINE void two_bit_codes(const uint8_t *bytes, uint8x16_t codes[2])
{
    const uint8x8_t v = vld1_u8(bytes);
    const uint8x16_t low_bits = vdupq_n_u8(3);
    codes[0] = vandq_u8(vcombine_u8(v, vshr_n_u8(v, 2)), low_bits);
    codes[1] = vandq_u8(vcombine_u8(vshr_n_u8(v, 4), vshr_n_u8(v, 6)), low_bits);
}

INLINE void four_bit_codes(const uint8_t *bytes, uint8x16_t codes[2])
{
    const uint8x16_t v = vld1q_u8(bytes);
    codes[0] = vandq_u8(v, vdupq_n_u8(15));
    codes[1] = vshrq_n_u8(v, 4);
}

/* Adds `value` to the codes whose bit among 32 is set. */
INLINE void add_bit(const uint8_t *bits, const uint8_t value, uint8x16_t codes[2])
{
    UNROLL
    for (int i = 0; i < 2; i++)
        codes[i] = vorrq_u8(codes[i], vandq_u8(set_bits(bits + 2 * i), vdupq_n_u8(value)));
}

/* The 32 codes of a block. */
INLINE void codes_of(const int dtype, const uint8_t *bytes, uint8x16_t codes[2])
{
    uint8x16_t upper[2];
    switch (PLAIN(dtype)) {
    case MOEC_DTYPE_INT1:
        codes[0] = codes[1] = vdupq_n_u8(0);
        add_bit(bytes, 2, codes);
        break;
    case MOEC_DTYPE_INT2:
        two_bit_codes(bytes, codes);
        break;
    case MOEC_DTYPE_INT3:
        two_bit_codes(bytes, codes);
        add_bit(bytes + 8, 4, codes);
        break;
    case MOEC_DTYPE_INT4:
        four_bit_codes(bytes, codes);
        break;
    case MOEC_DTYPE_INT5:
        four_bit_codes(bytes, codes);
        add_bit(bytes + 16, 16, codes);
        break;
    case MOEC_DTYPE_INT6:
        four_bit_codes(bytes, codes);
        two_bit_codes(bytes + 16, upper);
        codes[0] = vorrq_u8(codes[0], vshlq_n_u8(upper[0], 4));
        codes[1] = vorrq_u8(codes[1], vshlq_n_u8(upper[1], 4));
        break;
    default:
        codes[0] = vld1q_u8(bytes);
        codes[1] = vld1q_u8(bytes + LANES);
        break;
    }
}

#endif
