/* The definition of the loops, which sets of instructions must match to the bit. The largest magnitude is
 * the largest bit pattern as an integer, so a NaN or an infinity is always found. Minimum and maximum begin
 * at 0, and a NaN changes neither. */
#include "formats/codec/encode_loops.h"

#include "formats/base/half.h"
#include "formats/codec/codec_internal.h"

#include <string.h>

/* Loops here run over whole blocks: a constant trip count is what lets the compiler use vector instructions
 * at -O2. */
static struct moec_range range_of(const float *w, size_t n)
{
    int32_t tops[BLOCK] = {0};
    float mins[BLOCK] = {0}, maxs[BLOCK] = {0};
    for (size_t i = 0; i < n; i += BLOCK) {
        int32_t magnitudes[BLOCK];
        memcpy(magnitudes, w + i, sizeof magnitudes);
        for (int j = 0; j < BLOCK; j++) {
            int32_t magnitude = magnitudes[j] & 0x7fffffff;
            tops[j] = magnitude > tops[j] ? magnitude : tops[j];
        }
        for (int j = 0; j < BLOCK; j++) {
            float value = w[i + (size_t)j];
            mins[j] = value < mins[j] ? value : mins[j];
            maxs[j] = value > maxs[j] ? value : maxs[j];
        }
    }
    struct moec_range range = {0};
    for (int j = 0; j < BLOCK; j++) {
        range.top_bits = (uint32_t)tops[j] > range.top_bits ? (uint32_t)tops[j] : range.top_bits;
        range.min = mins[j] < range.min ? mins[j] : range.min;
        range.max = maxs[j] > range.max ? maxs[j] : range.max;
    }
    return range;
}

/* Adding 1.5 * 2^23 rounds to an integer in the processor's mode, which is to nearest even, and leaves it in
 * the low bits; clamping to integers first gives what clamping after rounding gives. */
static void quantise(const struct moec_coding *coding, const float *w, size_t n, uint8_t *codes)
{
    const float magic = 0x1.8p23f, divisor = coding->divisor, low = coding->low, high = coding->high;
    const uint32_t zero = coding->zero;
    for (size_t i = 0; i < n; i += BLOCK) {
        float q[BLOCK];
        uint32_t bits[BLOCK];
        for (int j = 0; j < BLOCK; j++) {
            float value = w[i + (size_t)j] / divisor;
            value = value < low ? low : value;
            value = value > high ? high : value;
            q[j] = value + magic;
        }
        memcpy(bits, q, sizeof bits);
        for (int j = 0; j < BLOCK; j++)
            codes[i + (size_t)j] = (uint8_t)((bits[j] + zero) & 0xff);
    }
}

static void to_bf16(const float *w, size_t n, uint8_t *row)
{
    for (size_t i = 0; i < n; i++)
        store_u16(row + 2 * i, moec_f32_to_bf16(w[i]));
}

static void from_bf16(const uint8_t *row, size_t n, float *w)
{
    for (size_t i = 0; i < n; i++)
        w[i] = moec_bf16_to_f32(load_u16(row + 2 * i));
}

static const struct moec_encode_loops plain = {
    .range = range_of, .quantise = quantise, .to_bf16 = to_bf16, .from_bf16 = from_bf16};

const struct moec_encode_loops *moec_encode_loops_of(enum moec_encode_set set)
{
    if (set == MOEC_ENCODE_PLAIN)
        return &plain;
#ifdef __x86_64__
    if (set == MOEC_ENCODE_AVX2
            ? __builtin_cpu_supports("avx2")
            : __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return moec_encode_loops_x86(set);
#endif
    return NULL;
}

const struct moec_encode_loops *moec_encode_loops(void)
{
    for (int set = MOEC_ENCODE_SETS; set-- > 0;) {
        const struct moec_encode_loops *loops = moec_encode_loops_of((enum moec_encode_set)set);
        if (loops != NULL)
            return loops;
    }
    return &plain;
}
