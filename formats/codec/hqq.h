/* HQQ: scale and zero point of a group of weights by half-quadratic splitting (Badri & Shaji, "Half-Quadratic
 * Quantization of Large Machine Learning Models", 2023; used by Fate III and FloE 3.2), fitted to our codec.
 *
 * HQQ keeps the scale of the extremes and moves the zero point, a float, to minimise the l_p norm, p < 1, of
 * the error e = w - s (q - z). The splitting brings in a sparse copy e' of it and alternates, beta growing by
 * kappa:
 *     q  = clamp(round(w / s + z), 0, 2^b - 1)
 *     e' = shrink(w - s (q - z)),  shrink(x) = sign(x) max(|x| - |x|^(p - 1) / beta, 0)
 *     z  = mean(q - (w - e') / s)
 *
 * Our zero points are integers, and a float rounded to one is worth no more than the linear quantizer's: what
 * moving the zero point gave is lost, and at 2 bits most weights round to 0. So the scale follows, in the
 * same alternation with z held at each of the two integers around the float one and errors taken as they are:
 *     q = clamp(round(w / s) + z, 0, 2^b - 1),  s = sum(w (q - z)) / sum((q - z)^2)
 *
 * This is the scale of least squares; it makes a row smaller than it was (the part of the error that lies
 * along the weights is a loss of length), layer after layer. The scale that is stored is therefore
 *     s = sum(w^2) / sum(w (q - z)),
 *
 * with which the decoded group has the same product with the weights as they have with themselves; the codes
 * stay.
 *
 * With the symmetric scheme there is no zero point to move: the scale alone is fitted. Every result is the
 * same bits on every machine: sums run in 32 lanes added in one order, pow is our own.
 * Thread rule: pure functions. */
#ifndef MOEC_FORMATS_HQQ_H
#define MOEC_FORMATS_HQQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The published settings. */
#define MOEC_HQQ_P      0.7
#define MOEC_HQQ_BETA   10.0
#define MOEC_HQQ_KAPPA  1.01
#define MOEC_HQQ_ROUNDS 20

/* The published stage: the float zero point of one group of n >= 1 finite weights with the scale `scale` > 0,
 * starting from `zero` (-min / scale). Ends when the mean of |e| no longer falls, with the best zero point,
 * or after MOEC_HQQ_ROUNDS. */
float moec_hqq_zero(const float *weights, size_t n, uint32_t bits, float scale, float zero);

struct moec_hqq_fit {
    float code_scale; /* codes are clamp(round-half-even(w / code_scale) + zero, 0, 2^b - 1) */
    float scale;      /* to store; not rounded to F16, and possibly out of its range */
    uint8_t zero;     /* 0..2^b - 1 */
};

/* Scale and integer zero point of one group of n >= 1 finite weights, from those of the linear quantizer
 * (scale > 0). The zero point stays where it is unless `moves_zero`. */
struct moec_hqq_fit moec_hqq_fit(const float *weights, size_t n, uint32_t bits, bool moves_zero, float scale,
                                 uint8_t zero);

#endif
