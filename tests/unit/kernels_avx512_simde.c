/* runtime/kernels/canonical/kernels_avx512.c translated to AVX2 by SIMDe, so that its bits are checked on processors
 * without AVX-512. A fused multiply-add of 512 bits becomes two of 256, fused as well. What the packaged
 * SIMDe lacks is defined here. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wshadow"
#define SIMDE_ENABLE_NATIVE_ALIASES
#define __mmask64 __mmask64 /* or SIMDe declares it again, of another type than clang */
#include <simde/x86/avx512.h>
#pragma GCC diagnostic pop

#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps simde_maskz_loadu_ps
static inline __m512 simde_maskz_loadu_ps(__mmask16 mask, const void *p)
{
    float lanes[16] = {0};
    for (int i = 0; i < 16; i++)
        if ((mask >> i) & 1)
            memcpy(&lanes[i], (const float *)p + i, sizeof lanes[i]);
    return _mm512_loadu_ps(lanes);
}

#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps simde_mask_storeu_ps
static inline void simde_mask_storeu_ps(void *p, __mmask16 mask, __m512 v)
{
    float lanes[16];
    _mm512_storeu_ps(lanes, v);
    for (int i = 0; i < 16; i++)
        if ((mask >> i) & 1)
            memcpy((float *)p + i, &lanes[i], sizeof lanes[i]);
}

#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16 simde_first_halves
static inline __m256i simde_first_halves(__mmask16 mask, const void *p)
{
    uint16_t lanes[16] = {0};
    for (int i = 0; i < 16; i++)
        if ((mask >> i) & 1)
            memcpy(&lanes[i], (const uint8_t *)p + 2 * i, sizeof lanes[i]);
    return _mm256_loadu_si256((const __m256i *)lanes);
}

#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph simde_halves_of
static inline __m256i simde_halves_of(__m512 v, const int rounding)
{
    float lanes[16];
    __m128i halves[2];
    (void)rounding; /* to nearest alone */
    _mm512_storeu_ps(lanes, v);
    for (int i = 0; i < 2; i++)
        halves[i] = _mm256_cvtps_ph(_mm256_loadu_ps(lanes + 8 * i), _MM_FROUND_TO_NEAREST_INT);
    return _mm256_loadu_si256((const __m256i *)(const void *)halves);
}

#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 simde_first_bytes
static inline __m128i simde_first_bytes(__mmask16 mask, const void *p)
{
    uint8_t lanes[16] = {0};
    for (int i = 0; i < 16; i++)
        if ((mask >> i) & 1)
            lanes[i] = ((const uint8_t *)p)[i];
    return _mm_loadu_si128((const __m128i *)lanes);
}

static inline __m512i simde_two_halves(__m256i low, __m256i high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(v, half) _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), half))

#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 simde_cvtepu8_epi32
static inline __m512i simde_cvtepu8_epi32(__m128i bytes)
{
    return simde_two_halves(_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}

#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 simde_cvtepi8_epi32
static inline __m512i simde_cvtepi8_epi32(__m128i bytes)
{
    return simde_two_halves(_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
}

#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 simde_cvtepu16_epi32
static inline __m512i simde_cvtepu16_epi32(__m256i halves)
{
    return simde_two_halves(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(halves)),
                            _mm256_cvtepu16_epi32(_mm256_extracti128_si256(halves, 1)));
}

#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps simde_cvtph_ps
static inline __m512 simde_cvtph_ps(__m256i halves)
{
    return _mm512_castsi512_ps(
        simde_two_halves(_mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(halves))),
                         _mm256_castps_si256(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)))));
}

static inline __m256i simde_half(__m512i v, int half)
{
    __m256i halves[2];
    memcpy(halves, &v, sizeof halves);
    return halves[half];
}

#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps simde_cvtepi32_ps
static inline __m512 simde_cvtepi32_ps(__m512i v)
{
    return _mm512_castsi512_ps(simde_two_halves(_mm256_castps_si256(_mm256_cvtepi32_ps(simde_half(v, 0))),
                                                _mm256_castps_si256(_mm256_cvtepi32_ps(simde_half(v, 1)))));
}

#undef _mm512_srai_epi32
#define _mm512_srai_epi32(v, n)                                                                              \
    simde_two_halves(_mm256_srai_epi32(simde_half(v, 0), n), _mm256_srai_epi32(simde_half(v, 1), n))

#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4(a, b, which)                                                                    \
    _mm512_castsi512_ps(_mm512_shuffle_i32x4(_mm512_castps_si512(a), _mm512_castps_si512(b), which))

#undef _mm512_movehdup_ps
#define _mm512_movehdup_ps(v) _mm512_shuffle_ps(v, v, 0xf5)

/* SIMDe before 0.7.4, as Ubuntu 24.04 has it. */
#ifndef _mm512_setzero_ps
#define _mm512_setzero_ps() simde_mm512_setzero_ps()
#endif
#ifndef _mm512_insertf32x8
#define _mm512_insertf32x8(v, w, half)                                                                       \
    _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(v), _mm256_castps_pd(w), half))
#endif
#ifndef _mm512_shuffle_ps
#define SHUFFLED_HALF(a, b, half, order)                                                                     \
    _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(simde_half(_mm512_castps_si512(a), half)),     \
                                          _mm256_castsi256_ps(simde_half(_mm512_castps_si512(b), half)),     \
                                          order))
#define _mm512_shuffle_ps(a, b, order)                                                                       \
    _mm512_castsi512_ps(simde_two_halves(SHUFFLED_HALF(a, b, 0, order), SHUFFLED_HALF(a, b, 1, order)))
#endif
#ifndef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 simde_unpacklo_epi32
static inline __m512i simde_unpacklo_epi32(__m512i a, __m512i b)
{
    return simde_two_halves(_mm256_unpacklo_epi32(simde_half(a, 0), simde_half(b, 0)),
                            _mm256_unpacklo_epi32(simde_half(a, 1), simde_half(b, 1)));
}
#endif
#ifndef _mm512_unpacklo_epi64
#define _mm512_unpacklo_epi64 simde_unpacklo_epi64
static inline __m512i simde_unpacklo_epi64(__m512i a, __m512i b)
{
    return simde_two_halves(_mm256_unpacklo_epi64(simde_half(a, 0), simde_half(b, 0)),
                            _mm256_unpacklo_epi64(simde_half(a, 1), simde_half(b, 1)));
}
#endif
#ifndef _mm512_unpacklo_ps
#define _mm512_unpacklo_ps(a, b)                                                                             \
    _mm512_castsi512_ps(_mm512_unpacklo_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)))
#endif
#ifndef _mm512_unpacklo_pd
#define _mm512_unpacklo_pd(a, b)                                                                             \
    _mm512_castsi512_pd(_mm512_unpacklo_epi64(_mm512_castpd_si512(a), _mm512_castpd_si512(b)))
#endif

const struct moec_kernels *moec_kernels_avx512_simde(void);

#define KEEP_IN_REGISTER(v) ((void)(v))
#define moec_kernels_avx512 moec_kernels_avx512_simde
#include "runtime/kernels/canonical/kernels_avx512.c"
