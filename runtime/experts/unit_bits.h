/* Bits of an array of words, bit i % 64 of word i / 64 being element i's (internal to runtime/experts). */
#ifndef MOEC_RUNTIME_UNIT_BITS_H
#define MOEC_RUNTIME_UNIT_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool moec_bit_of(const uint64_t *bits, uint32_t at)
{
    return (bits[at / 64] >> (at % 64) & 1) != 0;
}

static inline void moec_bit_set(uint64_t *bits, uint32_t at)
{
    bits[at / 64] |= (uint64_t)1 << (at % 64);
}

static inline void moec_bit_clear(uint64_t *bits, uint32_t at)
{
    bits[at / 64] &= ~((uint64_t)1 << (at % 64));
}

/* The first bit from `at` on that is set, below n; n where there is none. */
static inline uint32_t moec_bit_next(const uint64_t *bits, uint32_t at, uint32_t n)
{
    while (at < n) {
        const uint64_t word = bits[at / 64] >> (at % 64);
        if (word != 0) {
            at += (uint32_t)__builtin_ctzll(word);
            return at < n ? at : n;
        }
        at = (at / 64 + 1) * 64;
    }
    return n;
}

#endif
