/* The lanes of AVX2, FMA and F16C: 16 floats in two registers, and the primitives of
 * runtime/kernels/canonical/kernels_lanes.h that no code of weights enters. */
#ifndef MOEC_RUNTIME_LANES_AVX2_H
#define MOEC_RUNTIME_LANES_AVX2_H

#include "runtime/kernels/lanes/kernels_x86.h"

typedef struct {
    __m256 low;
    __m256 high;
} lanes;

INLINE lanes lanes_zero(void)
{
    return (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

INLINE lanes lanes_set(float value)
{
    __m256 all = _mm256_set1_ps(value);
    return (lanes){all, all};
}

INLINE lanes lanes_load(const float *p)
{
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE void lanes_store(float *p, lanes v)
{
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
}

#define LANEWISE(name, instruction)                                                                          \
    INLINE lanes name(lanes a, lanes b)                                                                      \
    {                                                                                                        \
        return (lanes){instruction(a.low, b.low), instruction(a.high, b.high)};                              \
    }
LANEWISE(lanes_add, _mm256_add_ps)
LANEWISE(lanes_sub, _mm256_sub_ps)
LANEWISE(lanes_mul, _mm256_mul_ps)
LANEWISE(lanes_div, _mm256_div_ps)
LANEWISE(lanes_max, _mm256_max_ps)
LANEWISE(lanes_min, _mm256_min_ps)

INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

struct mask {
    __m256i low;
    __m256i high;
};

/* All bits set in the first n lanes, 0 <= n <= 16. */
INLINE struct mask first_lanes(size_t n)
{
    static const int32_t window[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    const int32_t *at = window + LANES - n;
    return (struct mask){_mm256_loadu_si256((const __m256i *)at),
                         _mm256_loadu_si256((const __m256i *)(at + 8))};
}

INLINE lanes lanes_load_some(const float *p, size_t n)
{
    struct mask mask = first_lanes(n);
    return (lanes){_mm256_maskload_ps(p, mask.low), _mm256_maskload_ps(p + 8, mask.high)};
}

INLINE void lanes_store_some(float *p, size_t n, lanes v)
{
    struct mask mask = first_lanes(n);
    _mm256_maskstore_ps(p, mask.low, v.low);
    _mm256_maskstore_ps(p + 8, mask.high, v.high);
}

INLINE lanes lanes_keep(lanes v, size_t n, lanes other)
{
    struct mask mask = first_lanes(n);
    return (lanes){_mm256_blendv_ps(other.low, v.low, _mm256_castsi256_ps(mask.low)),
                   _mm256_blendv_ps(other.high, v.high, _mm256_castsi256_ps(mask.high))};
}

INLINE __m256 halves_added(lanes v)
{
    return _mm256_add_ps(v.low, v.high);
}

INLINE float lanes_sum(lanes v)
{
    return tree_of_one(halves_added(v));
}

INLINE float lanes_top(lanes v)
{
    __m256 eight = _mm256_max_ps(v.high, v.low);
    __m128 s = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    s = _mm_max_ps(_mm_movehl_ps(s, s), s);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(s), s));
}

INLINE __m256 power(__m256 p, __m256 biased)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(biased), _mm256_castps_si256(_mm256_set1_ps(EXP_ROUND)));
    __m256i half = _mm256_srai_epi32(n, 1), one = _mm256_castps_si256(_mm256_set1_ps(1.0f));
    __m256i first = _mm256_add_epi32(_mm256_slli_epi32(half, 23), one);
    __m256i second = _mm256_add_epi32(_mm256_slli_epi32(_mm256_sub_epi32(n, half), 23), one);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

INLINE lanes lanes_power(lanes p, lanes biased)
{
    return (lanes){power(p.low, biased.low), power(p.high, biased.high)};
}

INLINE void lanes_to_f16(uint8_t *p, lanes v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 16), _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
}

INLINE lanes lanes_cut(lanes v, lanes x, float limit)
{
    __m256 bound = _mm256_set1_ps(limit);
    return (lanes){_mm256_andnot_ps(_mm256_cmp_ps(x.low, bound, _CMP_LT_OQ), v.low),
                   _mm256_andnot_ps(_mm256_cmp_ps(x.high, bound, _CMP_LT_OQ), v.high)};
}

INLINE __m256i eight_bytes(const uint8_t *bytes)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
}

INLINE __m128i eight_halves(const uint8_t *bytes)
{
    return _mm_loadu_si128((const __m128i *)bytes);
}

INLINE lanes lanes_of_halves(const uint8_t *at, size_t n)
{
    uint8_t padded[2 * LANES] = {0};
    if (n < LANES)
        at = memcpy(padded, at, 2 * n);
    return (lanes){_mm256_cvtph_ps(eight_halves(at)), _mm256_cvtph_ps(eight_halves(at + 16))};
}

INLINE lanes lanes_of_bytes(const uint8_t *at, size_t n)
{
    uint8_t padded[LANES] = {0};
    if (n < LANES)
        at = memcpy(padded, at, n);
    return (lanes){_mm256_cvtepi32_ps(eight_bytes(at)), _mm256_cvtepi32_ps(eight_bytes(at + 8))};
}

#endif
