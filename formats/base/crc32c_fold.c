/* Folding (Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
 * Intel, 2009): 128 bits that stand D bits before others may be replaced by something added to those, the sum
 * of their two halves times x^D and x^(D + 64) modulo the polynomial. Four registers of four such each run
 * through the bytes, then fold into the last 128 bits, which have the CRC of everything. */
#include "formats/base/crc32c_fold.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <pthread.h>

#define TARGET __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

#define POLYNOMIAL 0x82f63b78u /* with its bits reversed, as the CRC has them */

/* Far enough for the memory's latency, near enough to be still in the cache when it is wanted. */
#define FETCH_AHEAD_BYTES 2048

/* x^n modulo the polynomial, bits reversed and one to the left, since a product of two reversed numbers is
 * one bit short of the reversed product. */
static uint64_t power_of_x(uint32_t n)
{
    uint32_t power = UINT32_C(1) << 31;
    for (; n > 0; n--)
        power = (power >> 1) ^ (power & 1 ? POLYNOMIAL : 0);
    return (uint64_t)power << 1;
}

/* Factors of the two halves for folding over so many bits: the first half, which is the low one, stands 64
 * bits further from the end. */
struct factors {
    uint64_t low, high;
};

static struct factors over_2048, over_1536, over_1024, over_512, over_384, over_256, over_128;
static pthread_once_t factors_once = PTHREAD_ONCE_INIT;

static struct factors factors_over(uint32_t n_bits)
{
    return (struct factors){power_of_x(n_bits + 32), power_of_x(n_bits - 32)};
}

static void factors_fill(void)
{
    over_2048 = factors_over(2048);
    over_1536 = factors_over(1536);
    over_1024 = factors_over(1024);
    over_512 = factors_over(512);
    over_384 = factors_over(384);
    over_256 = factors_over(256);
    over_128 = factors_over(128);
}

TARGET static inline __m512i four_times(const struct factors *factors)
{
    return _mm512_set_epi64((long long)factors->high, (long long)factors->low, (long long)factors->high,
                            (long long)factors->low, (long long)factors->high, (long long)factors->low,
                            (long long)factors->high, (long long)factors->low);
}

TARGET static inline __m512i fold_four(__m512i from, __m512i factors, __m512i into)
{
    const __m512i low = _mm512_clmulepi64_epi128(from, factors, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(from, factors, 0x11);
    return _mm512_xor_si512(_mm512_xor_si512(low, high), into);
}

TARGET static inline __m128i fold_one(__m128i from, const struct factors *factors, __m128i into)
{
    const __m128i by = _mm_set_epi64x((long long)factors->high, (long long)factors->low);
    return _mm_xor_si128(
        _mm_xor_si128(_mm_clmulepi64_si128(from, by, 0x00), _mm_clmulepi64_si128(from, by, 0x11)), into);
}

/* The state behind four times 128 bits. */
TARGET static uint32_t finish(__m512i four)
{
    __m128i last = _mm512_extracti32x4_epi32(four, 3);
    last = fold_one(_mm512_extracti32x4_epi32(four, 0), &over_384, last);
    last = fold_one(_mm512_extracti32x4_epi32(four, 1), &over_256, last);
    last = fold_one(_mm512_extracti32x4_epi32(four, 2), &over_128, last);
    const uint64_t state = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(last, 0));
    return (uint32_t)_mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(last, 1));
}

TARGET static uint32_t fold(uint32_t state, const uint8_t *bytes, size_t n)
{
    const __m512i factors = four_times(&over_2048);
    __m512i sums[4];
    for (int i = 0; i < 4; i++)
        sums[i] = _mm512_loadu_si512(bytes + 64 * i);
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    for (size_t at = MOEC_CRC32C_FOLD_BYTES; at < n; at += MOEC_CRC32C_FOLD_BYTES)
        for (int i = 0; i < 4; i++) {
            _mm_prefetch((const char *)bytes + at + 64 * i + FETCH_AHEAD_BYTES, _MM_HINT_T0);
            sums[i] = fold_four(sums[i], factors, _mm512_loadu_si512(bytes + at + 64 * i));
        }
    __m512i last = fold_four(sums[0], four_times(&over_1536), sums[3]);
    last = fold_four(sums[1], four_times(&over_1024), last);
    return finish(fold_four(sums[2], four_times(&over_512), last));
}

bool moec_crc32c_folds(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") &&
           __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.2");
}

uint32_t moec_crc32c_fold(uint32_t state, const uint8_t *bytes, size_t n)
{
    (void)pthread_once(&factors_once, factors_fill);
    return fold(state, bytes, n);
}

#else
bool moec_crc32c_folds(void)
{
    return false;
}

uint32_t moec_crc32c_fold(uint32_t state, const uint8_t *bytes, size_t n)
{
    (void)bytes;
    (void)n;
    return state;
}
#endif
