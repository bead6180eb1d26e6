/* Codes of weights, taken out of their bits by NEON: what the canonical and the int8 kernels share. */
#ifndef MOEC_RUNTIME_CODES_NEON_H
#define MOEC_RUNTIME_CODES_NEON_H

#include "runtime/kernels/lanes/shift_parts.h"

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

/* The nibbles of bytes, each in a byte. */
struct shift_nibbles {
    uint8x16_t low, high;
};

INLINE struct shift_nibbles shift_nibbles(uint8x16_t bytes)
{
    return (struct shift_nibbles){vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8(bytes, 4)};
}

INLINE uint8x16_t shift_look(const uint32_t bits, const enum shift_part part, uint8x16_t nibbles)
{
    return vqtbl1q_u8((uint8x16_t)shift_part_of(part, shift_low_half(bits), shift_high_half(bits)), nibbles);
}

/* The numbers of the levels, without free bits, of the weights of two blocks in order, from their coded bytes and the
 * byte before each. */
INLINE void shift_numbers(const uint32_t bits, uint8x16_t coded, uint8x16_t earlier, uint8x16_t out[4])
{
    const struct shift_nibbles here = shift_nibbles(coded), before = shift_nibbles(earlier);
    const uint8x16_t first = veorq_u8(
        veorq_u8(shift_look(bits, SHIFT_NEWEST, here.low), shift_look(bits, SHIFT_MIDDLE, before.high)),
        shift_look(bits, SHIFT_OLDEST, before.low));
    const uint8x16_t second =
        veorq_u8(shift_look(bits, SHIFT_UPPER, here.low), shift_look(bits, SHIFT_LOWER, before.high));
    const uint8x16_t third = veorq_u8(
        veorq_u8(shift_look(bits, SHIFT_NEWEST, here.high), shift_look(bits, SHIFT_MIDDLE, here.low)),
        shift_look(bits, SHIFT_OLDEST, before.high));
    const uint8x16_t fourth =
        veorq_u8(shift_look(bits, SHIFT_UPPER, here.high), shift_look(bits, SHIFT_LOWER, here.low));
    const uint16x8_t low01 = vreinterpretq_u16_u8(vzip1q_u8(first, second)),
                     high01 = vreinterpretq_u16_u8(vzip2q_u8(first, second));
    const uint16x8_t low23 = vreinterpretq_u16_u8(vzip1q_u8(third, fourth)),
                     high23 = vreinterpretq_u16_u8(vzip2q_u8(third, fourth));
    out[0] = vreinterpretq_u8_u16(vzip1q_u16(low01, low23));
    out[1] = vreinterpretq_u8_u16(vzip2q_u16(low01, low23));
    out[2] = vreinterpretq_u8_u16(vzip1q_u16(high01, high23));
    out[3] = vreinterpretq_u8_u16(vzip2q_u16(high01, high23));
}

/* The numbers of a block with the free bits that it begins with. */
INLINE void shift_add_free(const uint32_t bits, const uint8_t *at, uint8x16_t numbers[2])
{
    static const int8_t ups[2][16] = {{5, 5, 5, 5, 5, 5, 5, 5, 3, 3, 3, 3, 3, 3, 3, 3},
                                      {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
    static const uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint8_t places[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint32_t one_each;
    memcpy(&one_each, at, sizeof one_each);
    UNROLL
    for (int i = 0; i < 2; i++) {
        uint8x16_t free_bits;
        if (bits == 3) {
            const uint8x16_t which = vaddq_u8(vld1q_u8(bytes), vdupq_n_u8((uint8_t)(2 * i)));
            const uint8x16_t all = vreinterpretq_u8_u32(vdupq_n_u32(one_each));
            free_bits = vtstq_u8(vqtbl1q_u8(all, which), vld1q_u8(places));
        } else {
            const uint8x8_t eight = vld1_u8(at);
            free_bits = vshlq_u8(vcombine_u8(eight, eight), vld1q_s8(ups[i]));
        }
        numbers[i] = vbslq_u8(vdupq_n_u8(bits == 3 ? 0x20 : 0x60), free_bits, numbers[i]);
    }
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

/* The levels of n blocks at `at`, one or two, behind the byte `before`, as bytes with a sign. */
INLINE void shift_blocks_levels(const uint32_t bits, const int n, const uint8_t *at, uint32_t before,
                                uint8x16_t *out)
{
    const uint8_t *coded = at + moec_shift_free_bytes(bits), *second = at + moec_shift_block_bytes(bits);
    const uint8x16_t here =
        vcombine_u8(vld1_u8(coded), n == 1 ? vdup_n_u8(0) : vld1_u8(coded + moec_shift_block_bytes(bits)));
    uint8x16_t numbers[4];
    shift_numbers(bits, here, vextq_u8(vdupq_n_u8((uint8_t)before), here, 15), numbers);
    if (bits > 2)
        shift_add_free(bits, at, numbers);
    if (bits > 2 && n == 2)
        shift_add_free(bits, second, numbers + 2);
    UNROLL
    for (int i = 0; i < 2 * n; i++)
        out[i] = shift_levels(bits, numbers[i]);
}

#endif
