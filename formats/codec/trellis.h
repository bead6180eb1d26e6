/* Trellis-coded rows of 2 bits a weight, which bundles from before shift codes have (formats/codec/shift.h): they are
 * read, and no longer written (Marcellin & Fischer, "Trellis Coded Quantization of Memoryless and Gauss-Markov
 * Sources", 1990; for weights of language models: Tseng et al., "QTIP", 2024).
 *
 * There are eight levels. A weight's free bit chooses the lower or the upper four; which of those it is
 * follows from its coded bit x_t and the six before it, by Ungerboeck's convolutional code of 64 states
 * ("Channel Coding with Multilevel/Phase Signals", 1982, octal 103 and 024), with x of 0 before the row:
 *
 *     z1 = x_t ^ x_(t-1) ^ x_(t-6)    z0 = x_(t-2) ^ x_(t-4)    weight = levels[4 f_t + 2 z1 + z0] * scale
 *
 * Words of 32 bits are decoded by shifts and exclusive ors, and decoding can begin at any block with the six
 * bits before it. Levels are for weights of root mean square 1, as integers over 4096 with 13 bits: a product
 * with an F16 scale is exact in F32.
 *
 * Thread rule: pure functions. */
#ifndef MOEC_FORMATS_TRELLIS_H
#define MOEC_FORMATS_TRELLIS_H

#include <stddef.h>
#include <stdint.h>

#define MOEC_TRELLIS_LEVELS 8u

extern const float moec_trellis_levels[MOEC_TRELLIS_LEVELS];

/* z1 and z0 of 32 weights, one a bit. `before` has the coded bits of the block before, 0 at a row's start. */
struct moec_trellis_words {
    uint32_t z1, z0;
};

static inline struct moec_trellis_words moec_trellis_words(uint32_t coded, uint32_t before)
{
    const uint64_t both = (uint64_t)coded << 32 | before;
    return (struct moec_trellis_words){coded ^ (uint32_t)(both >> 31) ^ (uint32_t)(both >> 26),
                                       (uint32_t)(both >> 30) ^ (uint32_t)(both >> 28)};
}

#endif
