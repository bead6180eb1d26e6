/* A quotient is found by multiplying with the inverse of the divisor, which is several times as fast. For
 * clamped quotients q of at most 255.5 the product lies within 3 * 2^-24 * |q| < 5e-5 of the rounded
 * quotient: both round to the same integer unless the product is closer to the middle of two than FAR leaves.
 * Such blocks are divided. */
#include "formats/codec/encode_loops.h"

#include "formats/codec/codec_internal.h"

#define FAR   0.4999f
#define MAGIC 0x1.8p23f /* as in formats/codec/encode_loops.c */

/* Inverses of smaller ones may be infinite; of the largest they are subnormal, but quotients then less
 * than 4. */
#define LEAST_DIVISOR 0x1p-100f

#ifdef __x86_64__
#include <immintrin.h>
#include <stdbool.h>

static bool can_invert(float divisor)
{
    return divisor >= LEAST_DIVISOR;
}

/* ---- AVX-512 ---- */

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

AVX512 static struct moec_range range_avx512(const float *w, size_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i tops[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512 mins[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, maxs[2] = {mins[0], mins[0]};
    for (size_t i = 0; i < n; i += BLOCK)
        for (size_t half = 0; half < 2; half++) {
            const __m512 value = _mm512_loadu_ps(w + i + 16 * half);
            tops[half] =
                _mm512_max_epi32(tops[half], _mm512_and_si512(_mm512_castps_si512(value), magnitude));
            mins[half] = _mm512_min_ps(value, mins[half]); /* the second where one is NaN */
            maxs[half] = _mm512_max_ps(value, maxs[half]);
        }
    return (struct moec_range){.top_bits =
                                   (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(tops[0], tops[1])),
                               .min = _mm512_reduce_min_ps(_mm512_min_ps(mins[0], mins[1])),
                               .max = _mm512_reduce_max_ps(_mm512_max_ps(maxs[0], maxs[1]))};
}

AVX512 static void quantise_avx512(const struct moec_coding *coding, const float *w, size_t n, uint8_t *codes)
{
    const __m512 divisor = _mm512_set1_ps(coding->divisor), inverse = _mm512_set1_ps(1 / coding->divisor);
    const __m512 low = _mm512_set1_ps(coding->low), high = _mm512_set1_ps(coding->high);
    const __m512 magic = _mm512_set1_ps(MAGIC), most = _mm512_set1_ps(FAR);
    const __m512i zero = _mm512_set1_epi32((int)coding->zero);
    const __mmask16 divides = can_invert(coding->divisor) ? 0 : 1;
    for (size_t i = 0; i < n; i += 16) {
        const __m512 weight = _mm512_loadu_ps(w + i);
        __m512 q = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(weight, inverse), low), high);
        __m512 rounded = _mm512_add_ps(q, magic);
        const __m512 left = _mm512_abs_ps(_mm512_sub_ps(q, _mm512_sub_ps(rounded, magic)));
        if (__builtin_expect((_mm512_cmp_ps_mask(left, most, _CMP_NLE_UQ) | divides) != 0, 0)) {
            q = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(weight, divisor), low), high);
            rounded = _mm512_add_ps(q, magic);
        }
        _mm_storeu_si128((__m128i_u *)(codes + i),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_castps_si512(rounded), zero)));
    }
}

AVX512 static void to_bf16_avx512(const float *w, size_t n, uint8_t *row)
{
    const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
    for (size_t i = 0; i < n; i += 16) {
        const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(w + i));
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, half), odd);
        _mm256_storeu_si256((__m256i_u *)(row + 2 * i),
                            _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
    }
}

AVX512 static void from_bf16_avx512(const uint8_t *row, size_t n, float *w)
{
    for (size_t i = 0; i < n; i += 16) {
        const __m256i halves = _mm256_loadu_si256((const __m256i_u *)(row + 2 * i));
        _mm512_storeu_si512(w + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
}

/* ---- AVX2 ---- */

#define AVX2 __attribute__((target("avx2")))

AVX2 static struct moec_range range_avx2(const float *w, size_t n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i tops = _mm256_setzero_si256();
    __m256 mins = _mm256_setzero_ps(), maxs = mins;
    for (size_t i = 0; i < n; i += 8) {
        const __m256 value = _mm256_loadu_ps(w + i);
        tops = _mm256_max_epi32(tops, _mm256_and_si256(_mm256_castps_si256(value), magnitude));
        mins = _mm256_min_ps(value, mins); /* the second where one is NaN */
        maxs = _mm256_max_ps(value, maxs);
    }
    struct moec_range range = {0};
    uint32_t top[8];
    float min[8], max[8];
    _mm256_storeu_si256((__m256i_u *)top, tops);
    _mm256_storeu_ps(min, mins);
    _mm256_storeu_ps(max, maxs);
    for (int j = 0; j < 8; j++) {
        range.top_bits = top[j] > range.top_bits ? top[j] : range.top_bits;
        range.min = min[j] < range.min ? min[j] : range.min;
        range.max = max[j] > range.max ? max[j] : range.max;
    }
    return range;
}

/* Rounded quotients of eight weights, in the low bits of MAGIC + quotient. */
AVX2 static __m256i eight_quotients(const struct moec_coding *coding, float inverse, const float *w)
{
    const __m256 low = _mm256_set1_ps(coding->low), high = _mm256_set1_ps(coding->high);
    const __m256 magic = _mm256_set1_ps(MAGIC), sign = _mm256_set1_ps(-0.0f), weight = _mm256_loadu_ps(w);
    __m256 q = _mm256_min_ps(_mm256_max_ps(_mm256_mul_ps(weight, _mm256_set1_ps(inverse)), low), high);
    __m256 rounded = _mm256_add_ps(q, magic);
    const __m256 left = _mm256_andnot_ps(sign, _mm256_sub_ps(q, _mm256_sub_ps(rounded, magic)));
    const __m256 near = _mm256_cmp_ps(left, _mm256_set1_ps(FAR), _CMP_NLE_UQ);
    if (__builtin_expect(_mm256_movemask_ps(near) != 0 || !can_invert(coding->divisor), 0)) {
        q = _mm256_min_ps(_mm256_max_ps(_mm256_div_ps(weight, _mm256_set1_ps(coding->divisor)), low), high);
        rounded = _mm256_add_ps(q, magic);
    }
    return _mm256_castps_si256(rounded);
}

AVX2 static void quantise_avx2(const struct moec_coding *coding, const float *w, size_t n, uint8_t *codes)
{
    const float inverse = 1 / coding->divisor;
    const __m256i zero = _mm256_set1_epi32((int)coding->zero), byte = _mm256_set1_epi32(0xff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (size_t i = 0; i < n; i += BLOCK) {
        __m256i eights[4];
        for (size_t e = 0; e < 4; e++)
            eights[e] = _mm256_and_si256(
                _mm256_add_epi32(eight_quotients(coding, inverse, w + i + 8 * e), zero), byte);
        const __m256i packed = _mm256_packus_epi16(_mm256_packs_epi32(eights[0], eights[1]),
                                                   _mm256_packs_epi32(eights[2], eights[3]));
        _mm256_storeu_si256((__m256i_u *)(codes + i), _mm256_permutevar8x32_epi32(packed, order));
    }
}

AVX2 static __m256i eight_bf16(const float *w)
{
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(w));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}

AVX2 static void to_bf16_avx2(const float *w, size_t n, uint8_t *row)
{
    for (size_t i = 0; i < n; i += 16) {
        const __m256i packed = _mm256_packus_epi32(eight_bf16(w + i), eight_bf16(w + i + 8));
        _mm256_storeu_si256((__m256i_u *)(row + 2 * i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
}

AVX2 static void from_bf16_avx2(const uint8_t *row, size_t n, float *w)
{
    for (size_t i = 0; i < n; i += 8) {
        const __m128i halves = _mm_loadu_si128((const __m128i_u *)(row + 2 * i));
        _mm256_storeu_si256((__m256i_u *)(w + i), _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
}

static const struct moec_encode_loops avx512 = {.range = range_avx512,
                                                .quantise = quantise_avx512,
                                                .to_bf16 = to_bf16_avx512,
                                                .from_bf16 = from_bf16_avx512};
static const struct moec_encode_loops avx2 = {
    .range = range_avx2, .quantise = quantise_avx2, .to_bf16 = to_bf16_avx2, .from_bf16 = from_bf16_avx2};

const struct moec_encode_loops *moec_encode_loops_x86(enum moec_encode_set set)
{
    return set == MOEC_ENCODE_AVX512 ? &avx512 : set == MOEC_ENCODE_AVX2 ? &avx2 : NULL;
}

#else
const struct moec_encode_loops *moec_encode_loops_x86(enum moec_encode_set set)
{
    (void)set;
    return NULL;
}
#endif
