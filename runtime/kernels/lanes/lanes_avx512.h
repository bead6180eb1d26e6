/* The lanes of AVX-512 F, BW, DQ, VL: 16 floats in a register, and the primitives of
 * runtime/kernels/canonical/kernels_lanes.h that no code of weights enters. */
#ifndef MOEC_RUNTIME_LANES_AVX512_H
#define MOEC_RUNTIME_LANES_AVX512_H

#include "runtime/kernels/lanes/kernels_x86.h"

/* For _mm512_ternarylogic_epi32(mask, a, b, .): the bits of a where the mask has ones, else those of b. */
#define TAKE_SECOND_WHERE_SET 0xca

/* For _mm512_gf2p8affine_epi64_epi8: the level of a trellis from a weight's seven coded bits, the newest
 * highest, and its free bit above them. Its rows name the bits whose exclusive or is z0 (0x14), z1 (0x61) and
 * the free bit (0x80). */
#define TRELLIS_BITS 0x1461800000000000

typedef __m512 lanes;

INLINE lanes lanes_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE lanes lanes_set(float value)
{
    return _mm512_set1_ps(value);
}

INLINE lanes lanes_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void lanes_store(float *p, lanes v)
{
    _mm512_storeu_ps(p, v);
}

#define LANEWISE(name, instruction)                                                                          \
    INLINE lanes name(lanes a, lanes b)                                                                      \
    {                                                                                                        \
        return instruction(a, b);                                                                            \
    }
LANEWISE(lanes_add, _mm512_add_ps)
LANEWISE(lanes_sub, _mm512_sub_ps)
LANEWISE(lanes_mul, _mm512_mul_ps)
LANEWISE(lanes_div, _mm512_div_ps)
LANEWISE(lanes_max, _mm512_max_ps)
LANEWISE(lanes_min, _mm512_min_ps)

INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE __mmask16 first_lanes(size_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

INLINE lanes lanes_load_some(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

INLINE void lanes_store_some(float *p, size_t n, lanes v)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}

INLINE lanes lanes_keep(lanes v, size_t n, lanes other)
{
    return _mm512_mask_mov_ps(other, first_lanes(n), v);
}

INLINE __m256 upper_half(lanes v)
{
    return _mm512_extractf32x8_ps(v, 1);
}

/* The first step of the tree: a[i] + a[i + 8]. */
INLINE __m256 halves_added(lanes v)
{
    return _mm256_add_ps(_mm512_castps512_ps256(v), upper_half(v));
}

INLINE float lanes_sum(lanes v)
{
    return tree_of_one(halves_added(v));
}

INLINE float lanes_top(lanes v)
{
    __m256 eight = _mm256_max_ps(upper_half(v), _mm512_castps512_ps256(v));
    __m128 s = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    s = _mm_max_ps(_mm_movehl_ps(s, s), s);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(s), s));
}

INLINE lanes lanes_power(lanes p, lanes biased)
{
    __m512i n = _mm512_sub_epi32(_mm512_castps_si512(biased), _mm512_castps_si512(_mm512_set1_ps(EXP_ROUND)));
    __m512i half = _mm512_srai_epi32(n, 1), one = _mm512_castps_si512(_mm512_set1_ps(1.0f));
    __m512i first = _mm512_add_epi32(_mm512_slli_epi32(half, 23), one);
    __m512i second = _mm512_add_epi32(_mm512_slli_epi32(_mm512_sub_epi32(n, half), 23), one);
    return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(first)), _mm512_castsi512_ps(second));
}

INLINE void lanes_to_f16(uint8_t *p, lanes v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

INLINE lanes lanes_cut(lanes v, lanes x, float limit)
{
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LT_OQ),
                              _mm512_setzero_ps());
}

INLINE lanes lanes_of_halves(const uint8_t *at, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), at));
}

INLINE lanes lanes_of_bytes(const uint8_t *at, size_t n)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), at)));
}

/* v[i] lane j becomes v[j] lane i. */
INLINE void lanes_transpose(lanes v[static LANES])
{
    lanes a[LANES], b[LANES];
    UNROLL
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < LANES; i += 4) {
        UNROLL
        for (int j = 0; j < 2; j++) {
            const __m512d even = _mm512_castps_pd(a[i + j]), odd = _mm512_castps_pd(a[i + j + 2]);
            b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(even, odd));
            b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd));
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) { /* lanes i, i + 4, i + 8, i + 12 of four rows each */
        a[i] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(b[i + 8], b[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xdd);
    }
}

#endif
