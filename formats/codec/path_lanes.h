/* Sixteen states of a path at a time, one in each element of a vector: the compiler makes of it what an instruction set
 * has. Functions marked MOEC_CLONES are compiled once for each set: products and sums stay apart
 * (-ffp-contract=off) and elements in their places, so bits are the same. */
#ifndef MOEC_FORMATS_PATH_LANES_H
#define MOEC_FORMATS_PATH_LANES_H

#include "formats/base/sanitizers.h"

#include <stdint.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&                 \
    !MOEC_HAS_ASAN && !MOEC_HAS_TSAN
#define MOEC_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MOEC_CLONES
#endif

#define MOEC_PATH_LANES 16u

typedef float moec_lanes __attribute__((vector_size(MOEC_PATH_LANES * sizeof(float))));
typedef uint32_t moec_lane_bits __attribute__((vector_size(MOEC_PATH_LANES * sizeof(uint32_t))));

/* b where the mask is set, else a: of bits, and of floats. */
#define MOEC_CHOSEN_BITS(mask, a, b) (((a) & ~(mask)) | ((b) & (mask)))
#define MOEC_CHOSEN(mask, a, b)      ((moec_lanes)MOEC_CHOSEN_BITS(mask, (moec_lane_bits)(a), (moec_lane_bits)(b)))

#endif
