/* Seeded pseudo-random numbers for draws and resampling: SplitMix64 (Steele, Lea and Flood, "Fast splittable
 * pseudorandom number generators", 2014, as printed in Java's SplittableRandom and by Vigna). The same seed
 * gives the same numbers on every machine. Not for secrets. Thread rule: a generator belongs to one thread.
 */
#ifndef MOEC_PROFILER_RANDOM_H
#define MOEC_PROFILER_RANDOM_H

#include <stdint.h>

struct moec_random {
    uint64_t state; /* start with the seed */
};

static inline uint64_t moec_random_next(struct moec_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in 0..n-1 without bias, n >= 1: values past the last whole multiple of n are drawn again. */
static inline uint64_t moec_random_below(struct moec_random *random, uint64_t n)
{
    const uint64_t excess = (0u - n) % n; /* 2^64 mod n */
    for (;;) {
        uint64_t value = moec_random_next(random);
        if (value >= excess)
            return value % n;
    }
}

/* The first n_draw of items[n_item] become draws without replacement (Fisher and Yates): draw i swaps place i
 * with a place in i..n_item-1. */
static inline void moec_random_draw(struct moec_random *random, uint64_t *items, uint64_t n_item,
                                    uint64_t n_draw)
{
    for (uint64_t i = 0; i < n_draw; i++) {
        uint64_t j = i + moec_random_below(random, n_item - i);
        uint64_t taken = items[j];
        items[j] = items[i];
        items[i] = taken;
    }
}

#endif
