/* What the x86 vector sets share: the tree of eight dots, and halves. */
#ifndef MOEC_RUNTIME_KERNELS_X86_H
#define MOEC_RUNTIME_KERNELS_X86_H

#include "runtime/kernels/lanes/kernels_shape.h"

#include <immintrin.h>

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

INLINE float f16_at(const uint8_t *at)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(at))));
}

INLINE float tree_of_one(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#endif
