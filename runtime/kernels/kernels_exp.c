/* F32 exp and SiLU as every kernel computes them; formats/base/elementary.h holds the functions of F64. */
#include "runtime/kernels/kernels_exp.h"
#include "runtime/kernels/kernels.h"

#include "formats/base/half.h"

#include <math.h>

float moec_exp_f32(float x)
{
    float y = x > EXP_HIGH ? EXP_HIGH : x;
    y = y < EXP_LOW ? EXP_LOW : y;
    float biased = fmaf(y, EXP_LOG2_E, EXP_ROUND);
    float n = biased - EXP_ROUND;
    float r = fmaf(-n, EXP_LN2_HIGH, y);
    r = fmaf(-n, EXP_LN2_LOW, r);
    float p = EXP_C6;
    p = fmaf(p, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* Two factors, because 2^128 is no F32 while p * 2^128 may be. */
    uint32_t exponent = moec_f32_bits(biased) - moec_f32_bits(EXP_ROUND);
    uint32_t half = (exponent >> 1) | (exponent & 0x80000000u);
    float first = moec_f32_from_bits((half << 23) + 0x3f800000u);
    float second = moec_f32_from_bits(((exponent - half) << 23) + 0x3f800000u);
    return x < EXP_LOW ? 0.0f : p * first * second;
}

float moec_silu_f32(float x)
{
    return x / (1.0f + moec_exp_f32(-x));
}
