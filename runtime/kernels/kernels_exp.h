/* The F32 exp: its constants, shared by all instruction sets, and the definition, which the kernels of a GPU
 * compile too.
 *
 * exp(x) = 2^n * p(r), n = round(x / log 2), r = x - n log 2, |r| <= 0.3466 and
 *   p(r) = 1 + r (1 + r (C2 + r (C3 + r (C4 + r (C5 + r C6))))),
 *
 * the polynomial of least relative error (4.2e-9 with these F32 coefficients), every step a fused
 * multiply-add. Results that would be denormal are 0, so that a processor's flush-to-zero mode changes
 * nothing; NaN stays NaN; large arguments overflow to infinity. The largest error is below 1 ulp. */
#ifndef MOEC_RUNTIME_KERNELS_EXP_H
#define MOEC_RUNTIME_KERNELS_EXP_H

#include "formats/base/half.h"

#include <math.h>

#define EXP_LOW      -0x1.5d589ep+6f /* smallest argument whose exp is a normal F32 */
#define EXP_HIGH     89.0f           /* exp overflows here */
#define EXP_LOG2_E   0x1.715476p+0f
#define EXP_ROUND    0x1.8p23f /* adding it rounds to an integer, found in the low bits */
#define EXP_LN2_HIGH 0x1.62e43p-1f
#define EXP_LN2_LOW  -0x1.05c61p-29f
#define EXP_C2       0x1.fffffcp-2f
#define EXP_C3       0x1.55549p-3f
#define EXP_C4       0x1.5558f8p-5f
#define EXP_C5       0x1.123b02p-7f
#define EXP_C6       0x1.6a2256p-10f

MOEC_BOTH float moec_canonical_exp(float x)
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

MOEC_BOTH float moec_canonical_silu(float x)
{
    return x / (1.0f + moec_canonical_exp(-x));
}

#endif
