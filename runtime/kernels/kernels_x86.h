/* What the x86 vector sets share: shapes of the tiles and the tree of eight dots. */
#ifndef MOEC_RUNTIME_KERNELS_X86_H
#define MOEC_RUNTIME_KERNELS_X86_H

#include "formats/codec/trellis.h"
#include "runtime/kernels/kernels.h"
#include "runtime/kernels/kernels_exp.h"

#include <immintrin.h>
#include <string.h>

#define LANES  MOEC_LANES
#define BLOCK  MOEC_CODEC_BLOCK
#define INLINE static inline __attribute__((always_inline))
/* Loops with a constant count over arrays of registers are unrolled whole; else the arrays live in memory. */
#if defined(__clang__)
#define UNROLL    _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define UNROLL    _Pragma("GCC unroll 32")
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif

#define DOT_ROWS   8   /* rows of a tile of dot: the results of one token fill a 256-bit register */
#define DOT_TOKENS 3   /* tokens of a tile */
#define DOT_DEPTH  512 /* longest k of a tile: 11 rows of 2 KiB in the first-level cache */
#define DOT_CUT    30  /* tokens whose sums wait between the cuts */
#define SUM_TOKENS 6   /* tokens of a tile of a weighted sum */

#define LINE 64 /* bytes of a cache line */

/* Added to a dtype where codes stand for levels (formats/codec/dictionary.h), where the scales of groups are
 * bytes under a scale of the row, and where a block has two groups of 16, nested or not. */
#define DICTIONARY 16
#define NESTED     32
#define HALVES     64

/* dtype without them. */
#define PLAIN(dtype) ((dtype) & (DICTIONARY - 1))

/* Of the decoders of a block that of its second half. */
#define UPPER(dtype) ((dtype)&HALVES ? 1 : 0)

/* Rows of codes are read faster than the hardware's prefetchers follow, which have to learn each row anew, so
 * rows are asked for ahead of time: into the second-level cache. On Zen 4, INT4 rows of 1152 bytes, one core
 * read 7.8 GB/s without, 11.5 with prefetches into the first-level cache, which probably has too few places
 * for lines on their way, and 15.4 with these, all that computing allowed; 8 rows ahead or 16 made no
 * difference. What is asked for past the last row of a call belongs to the next call's rows. */
#define AHEAD_BYTES 8192

/* A range of k of DOT_ROWS rows of the weights. */
struct slice {
    const float *w[DOT_ROWS];
    size_t k;
};

/* Eight dots at once: v[r] holds a[i] + a[i + 8] of row r; the result holds the dots of rows 0..7. Each step
 * puts the halves to be added of two rows side by side, at the cost of a blend and a shuffle for both. */
INLINE __m256 tree_of_eight(const __m256 v[8])
{
    __m256 four[4], two[2];
    UNROLL
    for (int i = 0; i < 4; i++) {
        /* rows 0|4, 1|5, 2|6, 3|7 in the two halves: s[i] + s[i + 4] */
        __m256 straight = _mm256_blend_ps(v[i], v[i + 4], 0xf0);
        __m256 crossed = _mm256_permute2f128_ps(v[i], v[i + 4], 0x21);
        four[i] = _mm256_add_ps(straight, crossed);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        /* rows 0,1|4,5 and 2,3|6,7: s[i] + s[i + 2] */
        __m256 straight = _mm256_blend_ps(four[2 * i], four[2 * i + 1], 0xcc);
        __m256 crossed = _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x4e);
        two[i] = _mm256_add_ps(straight, crossed);
    }
    return _mm256_hadd_ps(two[0], two[1]);
}

INLINE uint16_t load_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* A block of a trellis as bits of words, for sets that decode it so. */
struct trellis_bits {
    struct moec_trellis_words words;
    uint32_t upper; /* the free bits, which choose the upper four levels */
};

/* `before` has the coded bits of the block before, and then those of this one. */
INLINE struct trellis_bits trellis_bits_at(const uint8_t *at, uint32_t *before)
{
    uint32_t coded, upper;
    memcpy(&coded, at, sizeof coded);
    memcpy(&upper, at + sizeof coded, sizeof upper);
    const struct trellis_bits bits = {moec_trellis_words(coded, *before), upper};
    *before = coded;
    return bits;
}

INLINE float f16_at(const uint8_t *at)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(at))));
}

INLINE const uint8_t *row_at(const struct moec_matrix *matrix, uint32_t row)
{
    return matrix->data + (size_t)row * matrix->stride_bytes;
}

INLINE float tree_of_one(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#endif
