/* The definitions of formats/base/elementary.h, which the kernels of a GPU compile too. */
#ifndef MOEC_FORMATS_ELEMENTARY_BOTH_H
#define MOEC_FORMATS_ELEMENTARY_BOTH_H

#include "formats/base/both.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

MOEC_BOTH double moec_f64_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MOEC_BOTH uint64_t moec_f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 2^n for n in -1022..1023. */
MOEC_BOTH double moec_f64_power_of_two(int n)
{
    return moec_f64_from_bits((uint64_t)(n + 1023) << 52);
}

/* coefficients[0] + x * (coefficients[1] + x * (...)). */
MOEC_BOTH double moec_f64_polynomial(double x, const double *coefficients, int n)
{
    double sum = coefficients[n - 1];
    for (int i = n - 2; i >= 0; i--)
        sum = fma(sum, x, coefficients[i]);
    return sum;
}

MOEC_BOTH double moec_exp_both(double x)
{
    static const double inverse_factorials[] = {1.0,
                                                1.0,
                                                1.0 / 2,
                                                1.0 / 6,
                                                1.0 / 24,
                                                1.0 / 120,
                                                1.0 / 720,
                                                1.0 / 5040,
                                                1.0 / 40320,
                                                1.0 / 362880,
                                                1.0 / 3628800,
                                                1.0 / 39916800,
                                                1.0 / 479001600,
                                                1.0 / 6227020800};
    if (x != x || x > 709.782712893384) /* log of the largest double */
        return x + (double)INFINITY;
    if (x < -708.0)
        return 0.0;
    double n = (x * 0x1.71547652b82fep+0 + 0x1.8p52) - 0x1.8p52;
    double r = fma(-n, 0x1.62e42fefa39efp-1, x);
    r = fma(-n, 0x1.abc9e3b39803fp-56, r);
    double p =
        moec_f64_polynomial(r, inverse_factorials, sizeof inverse_factorials / sizeof *inverse_factorials);
    int exponent = (int)n, half = exponent / 2;
    return p * moec_f64_power_of_two(half) * moec_f64_power_of_two(exponent - half);
}

/* log(m * 2^e) with m in [sqrt(1/2), sqrt(2)): with f = m - 1 and s = f / (2 + f), log(1 + f) = 2 atanh(s)
 * = f - f^2/2 + s * (f^2/2 + R), R = 2 s^2/3 + 2 s^4/5 + ...; the large parts f and e * log(2) come last. */
MOEC_BOTH double moec_log_both(double x)
{
    static const double odd_inverses[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                                          2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23, 2.0 / 25};
    if (x != x || x > 0x1.fffffffffffffp+1023)
        return x < 0 ? (double)NAN : x + x;
    if (x < 0)
        return (double)NAN;
    if (x == 0)
        return -(double)INFINITY;
    int exponent = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        exponent = -54;
    }
    uint64_t bits = moec_f64_bits(x);
    exponent += (int)(bits >> 52) - 1023;
    double m = moec_f64_from_bits((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        exponent++;
    }
    double f = m - 1.0, s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f, e = exponent;
    double tail = z * moec_f64_polynomial(z, odd_inverses, sizeof odd_inverses / sizeof *odd_inverses);
    /* log(2) in two parts; the first ends in 20 zero bits, so that its product with e is exact */
    double small = fma(s, half_square + tail, e * 0x1.473de6af278edp-34);
    return e * 0x1.62e42fefp-1 - ((half_square - small) - f);
}

/* x less n * pi/2, with pi/2 in three parts, is r plus a rest below the last bit of r;
 * Taylor terms do the rest. */
MOEC_BOTH void moec_sincos_both(double x, double *sine, double *cosine)
{
    static const double sine_terms[] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
    static const double cosine_terms[] = {
        1.0 / 24,        -1.0 / 720,         1.0 / 40320,          -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000};
    double n = (x * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
    double high = fma(-n, 0x1.921fb54442d18p+0, x);
    double part = n * 0x1.1a62633145c07p-54;
    double part_rest = fma(n, 0x1.1a62633145c07p-54, -part);
    double r = high - part;
    double taken = high - r; /* Knuth's two-sum: what rounding r lost */
    double rest = (high - (r + taken)) + (taken - part);
    rest = fma(n, 0x1.f1976b7ed8fbcp-110, rest - part_rest);

    double z = r * r;
    double s = z * r * moec_f64_polynomial(z, sine_terms, sizeof sine_terms / sizeof *sine_terms);
    s = r + (s + rest * (1.0 - 0.5 * z));
    /* 1 - z/2 is rounded once and what the rounding lost goes to the small terms */
    double half = 0.5 * z, top = 1.0 - half;
    double c = z * z * moec_f64_polynomial(z, cosine_terms, sizeof cosine_terms / sizeof *cosine_terms);
    c = top + (((1.0 - top) - half) + (c - r * rest));

    switch ((unsigned)(int64_t)n & 3u) {
    case 0:
        *sine = s;
        *cosine = c;
        break;
    case 1:
        *sine = c;
        *cosine = -s;
        break;
    case 2:
        *sine = -s;
        *cosine = -c;
        break;
    default:
        *sine = -c;
        *cosine = s;
        break;
    }
}

#endif
