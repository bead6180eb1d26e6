/* 16-bit floats: IEEE binary16 (F16) and bfloat16 (BF16), rounding to nearest even. The only home of these
 * conversions; kernels may use instructions that give the same bits. */
#ifndef MOEC_FORMATS_HALF_H
#define MOEC_FORMATS_HALF_H

#include "formats/base/both.h"

#include <stdint.h>
#include <string.h>

MOEC_BOTH float moec_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MOEC_BOTH uint32_t moec_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

MOEC_BOTH float moec_bf16_to_f32(uint16_t half)
{
    return moec_f32_from_bits((uint32_t)half << 16);
}

/* NaN stays NaN (quiet bit set), so that a check after conversion still finds it. */
MOEC_BOTH uint16_t moec_f32_to_bf16(float value)
{
    uint32_t bits = moec_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

MOEC_BOTH float moec_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) /* zero and subnormals: mantissa * 2^-24 is exact in F32 */
        return moec_f32_from_bits(sign | moec_f32_bits((float)mantissa * 0x1p-24f));
    if (exponent == 31)
        return moec_f32_from_bits(sign | 0x7f800000u | (mantissa << 13));
    return moec_f32_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

MOEC_BOTH uint16_t moec_f32_to_f16(float value)
{
    uint32_t bits = moec_f32_bits(value);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the rounded mantissa in the low bits */
        uint32_t shifted = moec_f32_bits(moec_f32_from_bits(magnitude) + 0.5f);
        return (uint16_t)(sign | (uint16_t)(shifted - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | (uint16_t)((rounded - 0x38000000u) >> 13));
}

#endif
