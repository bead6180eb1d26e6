/* How a token is drawn, and the whole numbers that it is drawn by. Tokens weigh exp((logit - largest) /
 * temperature), an F32 of at most 1; weights are added as whole numbers of 2^-k, so that sums are the same in
 * any order and on any device. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_KERNELS_DRAW_H
#define MOEC_RUNTIME_KERNELS_DRAW_H

#include "formats/base/both.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* struct moert_sampler (runtime/moert.h) with a random number in place of its state, and without typical_p.
 */
struct moec_draw {
    float temperature; /* 0: the first of the largest logits */
    uint32_t top_k;
    float top_p, min_p;
    double uniform; /* in [0, 1) */
};

struct moec_chosen {
    uint32_t token;
    float largest; /* logit: where it is not finite, no token was chosen */
};

/* 2^k: n weights of at most 1 do not overflow 64 bits. */
MOEC_BOTH float moec_draw_scale(uint32_t n)
{
    float scale = 0x1p62f;
    for (uint32_t more = n - 1; more > 0; more /= 2)
        scale = scale * 0.5f;
    return scale;
}

/* A weight as a whole number; 0 for what is no number. */
MOEC_BOTH uint64_t moec_draw_whole(float weight, float scale)
{
    return weight > 0 ? (uint64_t)(weight * scale) : 0;
}

/* The least sum that has this part of `mass`. */
MOEC_BOTH uint64_t moec_draw_part(uint64_t mass, float part)
{
    const double wanted = (double)mass * (double)part;
    const uint64_t whole = wanted > 0 ? (uint64_t)wanted : 0;
    return (double)whole < wanted ? whole + 1 : whole;
}

/* The first token up to which weights add up to more than this is drawn. mass > 0. */
MOEC_BOTH uint64_t moec_draw_place(uint64_t mass, double uniform)
{
    const uint64_t place = (uint64_t)(uniform * (double)mass);
    return place < mass ? place : mass - 1;
}

#endif
