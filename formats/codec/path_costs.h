/* Costs of the states of a Viterbi search over 64 states (internal to formats/codec): what codes that are paths
 * share. Four states are compared at a time. */
#ifndef MOEC_FORMATS_PATH_COSTS_H
#define MOEC_FORMATS_PATH_COSTS_H

#include <stdint.h>

enum {
    MOEC_PATH_STATES = 64,
    MOEC_PATH_SETTLED = 32 /* weights after which costs are counted from the least again */
};

typedef float moec_four __attribute__((vector_size(16)));
typedef int32_t moec_four_masks __attribute__((vector_size(16)));

/* Where `b` is less than `a`, which `is_second` says, that, else `a`. */
static inline moec_four moec_four_lesser(moec_four a, moec_four b, moec_four_masks *is_second)
{
    *is_second = b < a;
    return (moec_four)(((moec_four_masks)b & *is_second) | ((moec_four_masks)a & ~*is_second));
}

/* Rows begin with bits of 0. */
static inline void moec_path_begin(float costs[static MOEC_PATH_STATES])
{
    for (uint32_t s = 0; s < MOEC_PATH_STATES; s++)
        costs[s] = s == 0 ? 0 : 1e30f;
}

static inline uint32_t moec_path_least(const float costs[static MOEC_PATH_STATES])
{
    uint32_t best = 0;
    for (uint32_t s = 1; s < MOEC_PATH_STATES; s++)
        best = costs[s] < costs[best] ? s : best;
    return best;
}

static inline void moec_path_settle(float costs[static MOEC_PATH_STATES])
{
    const float least = costs[moec_path_least(costs)];
    for (uint32_t s = 0; s < MOEC_PATH_STATES; s++)
        costs[s] -= least;
}

#endif
