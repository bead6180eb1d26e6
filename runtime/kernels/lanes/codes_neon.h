/* Codes of weights, taken out of their bits by NEON: what the canonical and the int8 kernels share. */
#ifndef MOEC_RUNTIME_CODES_NEON_H
#define MOEC_RUNTIME_CODES_NEON_H

#include "runtime/kernels/lanes/kernels_shape.h"

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

/* ---- shift codes (formats/codec/shift.h) ---- */

INLINE uint8x16_t shift_places(const uint32_t bits, uint16x8_t windows)
{
    static const uint8_t low[3][16] = {{MOEC_SHIFT_2_LOW}, {MOEC_SHIFT_3_LOW}, {MOEC_SHIFT_4_LOW}};
    static const uint8_t high[3][16] = {{MOEC_SHIFT_2_HIGH}, {MOEC_SHIFT_3_HIGH}, {MOEC_SHIFT_4_HIGH}};
    const uint8x16_t bytes = vreinterpretq_u8_u16(windows);
    return veorq_u8(vqtbl1q_u8(vld1q_u8(low[bits - 2]), vandq_u8(bytes, vdupq_n_u8(15))),
                    vqtbl1q_u8(vld1q_u8(high[bits - 2]), vshrq_n_u8(bytes, 4)));
}

INLINE uint8x16x4_t shift_table(const int8_t *levels)
{
    uint8x16x4_t table;
    UNROLL
    for (int i = 0; i < 4; i++)
        table.val[i] = vreinterpretq_u8_s8(vld1q_s8(levels + 16 * i));
    return table;
}

INLINE uint8x16_t shift_levels(const uint32_t bits, uint8x16_t places)
{
    static const int8_t two[64] = {MOEC_SHIFT_2_LEVELS}, three[64] = {MOEC_SHIFT_3_LEVELS},
                        four[128] = {MOEC_SHIFT_4_LEVELS};
    const uint8x16_t found = vqtbl4q_u8(shift_table(bits == 2 ? two : bits == 3 ? three : four), places);
    return bits == 4 ? vqtbx4q_u8(found, shift_table(four + 64), vsubq_u8(places, vdupq_n_u8(64))) : found;
}

/* The 32 levels of the block at `at`, behind the byte `before`, as bytes with a sign. */
INLINE void shift_block_levels(const uint32_t bits, const uint8_t *at, uint32_t before, uint8x16_t out[2])
{
    const uint8x8_t coded = vld1_u8(at + moec_shift_free_bytes(bits));
    const uint8x8_t earlier = vext_u8(vdup_n_u8((uint8_t)before), coded, 7);
    const uint16x8_t pairs =
        vreinterpretq_u16_u8(vcombine_u8(vzip1_u8(earlier, coded), vzip2_u8(earlier, coded)));
    const uint16x8_t low = vdupq_n_u16(0x00ff), high = vdupq_n_u16(0xff00);
    const uint16x8_t first = vbslq_u16(low, vshrq_n_u16(pairs, 2), vshlq_n_u16(pairs, 4));
    const uint16x8_t second = vbslq_u16(high, pairs, vshrq_n_u16(pairs, 6));
    uint8x16_t above[2] = {vdupq_n_u8(0), vdupq_n_u8(0)};
    if (bits == 3)
        add_bit(at, 32, above);
    if (bits == 4) {
        two_bit_codes(at, above);
        above[0] = vshlq_n_u8(above[0], 5);
        above[1] = vshlq_n_u8(above[1], 5);
    }
    out[0] = shift_levels(bits, vorrq_u8(shift_places(bits, vzip1q_u16(first, second)), above[0]));
    out[1] = shift_levels(bits, vorrq_u8(shift_places(bits, vzip2q_u16(first, second)), above[1]));
}

#endif
