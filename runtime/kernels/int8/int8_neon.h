/* The int8 arithmetic on NEON, where 64 bytes are four registers, one a block: compiled once for any 64-bit
 * ARM (int8_neon.c), once with the dot products of ARMv8.2 (int8_neon_dot.c), and once with products of
 * matrices of bytes beside them (int8_neon_i8mm.c). SET_DOT and SET_I8MM say which. */
#ifndef MOEC_RUNTIME_INT8_NEON_H
#define MOEC_RUNTIME_INT8_NEON_H

#include "runtime/kernels/int8.h"
#include "runtime/kernels/lanes/codes_neon.h"
#include "runtime/kernels/lanes/lanes_neon.h"

#define MANY_TOKENS 5

#if SET_I8MM
/* One operand has no sign, and four pairs of rows by four of tokens are sixteen registers of sums. */
#define HAS_MATRICES
#define ROWS_OF_TILE  8
#define HELD          8
#define OFFSET(dtype) ((void)(dtype), 0)
#else
#define ROWS_OF_TILE   4
/* Products are those of bytes with a sign, which codes of eight bits are less 128. */
#define IS_WIDE(dtype) ((dtype) == MOEC_DTYPE_INT8 || IS_PATH(dtype))
#define OFFSET(dtype)  (IS_WIDE(dtype) ? 128 : 0)
#endif
#define TILE_OFFSET(dtype)  OFFSET(dtype)
#define MIXES_HALVES(dtype) ((void)(dtype), false)

typedef struct {
    int32x4_t of[QUARTERS];
} words;

typedef float32x4_t fours;

struct codes {
    words half[2];
};

INLINE words words_load(const void *at)
{
    words w;
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        w.of[i] = vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)at + 16 * i));
    return w;
}

INLINE void words_store(void *at, words w)
{
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        vst1q_u8((uint8_t *)at + 16 * i, vreinterpretq_u8_s32(w.of[i]));
}

INLINE words words_set(int32_t value)
{
    const int32x4_t all = vdupq_n_s32(value);
    return (words){{all, all, all, all}};
}

INLINE words words_zero(void)
{
    return words_set(0);
}

#define WORDWISE(name, instruction)                                                                          \
    INLINE words name(words a, words b)                                                                      \
    {                                                                                                        \
        UNROLL                                                                                               \
        for (int i = 0; i < QUARTERS; i++)                                                                   \
            a.of[i] = instruction(a.of[i], b.of[i]);                                                         \
        return a;                                                                                            \
    }
WORDWISE(words_and, vandq_s32)
WORDWISE(words_or, vorrq_s32)
WORDWISE(words_sub, vsubq_s32)
WORDWISE(words_top, vmaxq_s32)

INLINE words words_up(words w, const int bits)
{
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        w.of[i] = vshlq_s32(w.of[i], vdupq_n_s32(bits));
    return w;
}

INLINE words words_down(words w, const int bits)
{
    return words_up(w, -bits);
}

INLINE void words_store_low_bytes(void *at, words w)
{
    const int16x8_t low = vcombine_s16(vmovn_s32(w.of[0]), vmovn_s32(w.of[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(w.of[2]), vmovn_s32(w.of[3]));
    vst1q_s8(at, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

INLINE words words_of_lanes(lanes v)
{
    words w;
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        w.of[i] = vcvtnq_s32_f32(v.of[i]);
    return w;
}

INLINE lanes lanes_of_words(words w)
{
    lanes v;
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        v.of[i] = vcvtq_f32_s32(w.of[i]);
    return v;
}

INLINE words lanes_as_words(lanes v)
{
    words w;
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        w.of[i] = vreinterpretq_s32_f32(v.of[i]);
    return w;
}

INLINE lanes words_as_lanes(words w)
{
    lanes v;
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        v.of[i] = vreinterpretq_f32_s32(w.of[i]);
    return v;
}

INLINE lanes lanes_of_packed(const uint8_t *at, size_t n, const uint32_t bits)
{
    uint8_t packed[2 * LANES] = {0}, numbers[LANES];
    memcpy(packed, at, (n * bits + 7) / 8);
    UNROLL
    for (size_t i = 0; i < LANES; i++)
        numbers[i] =
            (uint8_t)((uint32_t)load_u16(packed + i * bits / 8) >> (i * bits % 8) & ((1u << bits) - 1));
    return lanes_of_bytes(numbers, LANES);
}

INLINE uint16x8_t pairs_of(uint8x16_t bytes)
{
    return vreinterpretq_u16_u8(bytes);
}

INLINE void words_quads(const words w[4], words out[4])
{
    UNROLL
    for (int b = 0; b < QUARTERS; b++) {
        const uint8x16_t row0 = vreinterpretq_u8_s32(w[0].of[b]), row1 = vreinterpretq_u8_s32(w[1].of[b]);
        const uint8x16_t row2 = vreinterpretq_u8_s32(w[2].of[b]), row3 = vreinterpretq_u8_s32(w[3].of[b]);
        const uint16x8_t low01 = pairs_of(vzip1q_u8(row0, row1)), high01 = pairs_of(vzip2q_u8(row0, row1));
        const uint16x8_t low23 = pairs_of(vzip1q_u8(row2, row3)), high23 = pairs_of(vzip2q_u8(row2, row3));
        out[0].of[b] = vreinterpretq_s32_u16(vzip1q_u16(low01, low23));
        out[1].of[b] = vreinterpretq_s32_u16(vzip2q_u16(low01, low23));
        out[2].of[b] = vreinterpretq_s32_u16(vzip1q_u16(high01, high23));
        out[3].of[b] = vreinterpretq_s32_u16(vzip2q_u16(high01, high23));
    }
}

/* Which of four each lane takes: the places of its bytes. */
INLINE words spread_places(const int per_span)
{
    words places;
    UNROLL
    for (int b = 0; b < QUARTERS; b++)
        places.of[b] = vdupq_n_s32(0x03020100 + 0x04040404 * (b * per_span / QUARTERS));
    return places;
}

INLINE uint8x16_t four_spread(uint8x16_t four, words places, const int b)
{
    return vqtbl1q_u8(four, vreinterpretq_u8_s32(places.of[b]));
}

INLINE words words_spread(const int32_t *at, words places)
{
    const uint8x16_t four = vreinterpretq_u8_s32(vld1q_s32(at));
    words w;
    UNROLL
    for (int b = 0; b < QUARTERS; b++)
        w.of[b] = vreinterpretq_s32_u8(four_spread(four, places, b));
    return w;
}

INLINE lanes lanes_spread(lanes v, words places)
{
    const uint8x16_t four = vreinterpretq_u8_f32(v.of[0]);
    UNROLL
    for (int b = 0; b < QUARTERS; b++)
        v.of[b] = vreinterpretq_f32_u8(four_spread(four, places, b));
    return v;
}

INLINE void blocks_store(const lanes f[4], float *out)
{
    UNROLL
    for (int b = 0; b < QUARTERS; b++) {
        UNROLL
        for (int u = 0; u < 4; u++)
            vst1q_f32(out + BLOCK * b + 4 * u, f[u].of[b]);
    }
}

INLINE words words_by_fours(const words w[4])
{
    words sums;
    UNROLL
    for (int b = 0; b < QUARTERS; b++)
        sums.of[b] = vpaddq_s32(vpaddq_s32(w[0].of[b], w[1].of[b]), vpaddq_s32(w[2].of[b], w[3].of[b]));
    return sums;
}

INLINE void lanes_by_fours(const lanes v[4], lanes out[4])
{
    UNROLL
    for (int l = 0; l < QUARTERS; l++) {
        const float32x4_t low02 = vzip1q_f32(v[0].of[l], v[2].of[l]);
        const float32x4_t high02 = vzip2q_f32(v[0].of[l], v[2].of[l]);
        const float32x4_t low13 = vzip1q_f32(v[1].of[l], v[3].of[l]);
        const float32x4_t high13 = vzip2q_f32(v[1].of[l], v[3].of[l]);
        out[0].of[l] = vzip1q_f32(low02, low13);
        out[1].of[l] = vzip2q_f32(low02, low13);
        out[2].of[l] = vzip1q_f32(high02, high13);
        out[3].of[l] = vzip2q_f32(high02, high13);
    }
}

INLINE fours lanes_four(lanes v, const int b)
{
    return v.of[b];
}

INLINE fours fours_load(const float *at)
{
    return vld1q_f32(at);
}

INLINE void fours_store(float *at, fours v)
{
    vst1q_f32(at, v);
}

INLINE fours fours_set(float value)
{
    return vdupq_n_f32(value);
}

INLINE fours fours_fma(fours a, fours b, fours c)
{
    return vfmaq_f32(c, a, b);
}

INLINE fours words_totals(const words w[4])
{
    const words sums = words_by_fours(w);
    return vcvtq_f32_s32(vaddq_s32(vaddq_s32(sums.of[0], sums.of[1]), vaddq_s32(sums.of[2], sums.of[3])));
}

/* Four 32-bit integers of `sums` plus four products each. */
INLINE int32x4_t dot_of(const int dtype, int32x4_t sums, uint8x16_t codes, int8x16_t q)
{
#if SET_I8MM
    (void)dtype;
    return vusdotq_s32(sums, codes, q);
#else
    const int8x16_t less = vreinterpretq_s8_u8(IS_WIDE(dtype) ? veorq_u8(codes, vdupq_n_u8(0x80)) : codes);
#if SET_DOT
    return vdotq_s32(sums, less, q);
#else
    /* Two products are within 2 * 128 * 127, which 16 bits hold. */
    const int16x8_t low = vmull_s8(vget_low_s8(less), vget_low_s8(q));
    return vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(less, q)));
#endif
#endif
}

INLINE words words_dot(const int dtype, words sums, words codes, words q)
{
    UNROLL
    for (int b = 0; b < QUARTERS; b++)
        sums.of[b] =
            dot_of(dtype, sums.of[b], vreinterpretq_u8_s32(codes.of[b]), vreinterpretq_s8_s32(q.of[b]));
    return sums;
}

INLINE words words_sum_quads(words sums, words q)
{
    UNROLL
    for (int b = 0; b < QUARTERS; b++)
        sums.of[b] = vpadalq_s16(sums.of[b], vpaddlq_s8(vreinterpretq_s8_s32(q.of[b])));
    return sums;
}

/* ---- codes ---- */

INLINE struct codes nibbles_of(words bytes)
{
    struct codes codes;
    UNROLL
    for (int b = 0; b < QUARTERS; b++) {
        const uint8x16_t both = vreinterpretq_u8_s32(bytes.of[b]);
        codes.half[0].of[b] = vreinterpretq_s32_u8(vandq_u8(both, vdupq_n_u8(15)));
        codes.half[1].of[b] = vreinterpretq_s32_u8(vshrq_n_u8(both, 4));
    }
    return codes;
}

/* The levels of a block of a trellis, as codes. */
INLINE void trellis_codes(const struct trellis_bits *bits, uint8x16_t codes[2])
{
    static const int8_t levels[8] = {MOEC_INT8_TRELLIS_LEVELS};
    const uint8x8_t table = veor_u8(vreinterpret_u8_s8(vld1_s8(levels)), vdup_n_u8(0x80));
    codes[0] = codes[1] = vdupq_n_u8(0);
    add_bit((const uint8_t *)&bits->words.z0, 1, codes);
    add_bit((const uint8_t *)&bits->words.z1, 2, codes);
    add_bit((const uint8_t *)&bits->upper, 4, codes);
    UNROLL
    for (int half = 0; half < 2; half++)
        codes[half] = vqtbl1q_u8(vcombine_u8(table, table), codes[half]);
}

/* The levels of a span of shift codes, as codes. */
INLINE void shift_span_codes(const uint32_t bits, const uint8_t *bytes, const bool is_first,
                             struct codes *codes)
{
    const size_t block = moec_shift_block_bytes(bits);
    UNROLL
    for (int b = 0; b < QUARTERS; b += 2) {
        const uint8_t *at = bytes + (size_t)b * block;
        uint8x16_t levels[4];
        shift_blocks_levels(bits, 2, at, b == 0 && is_first ? 0 : at[-1], levels);
        UNROLL
        for (int i = 0; i < 4; i++)
            codes->half[i % 2].of[b + i / 2] = vreinterpretq_s32_u8(veorq_u8(levels[i], vdupq_n_u8(0x80)));
    }
}

INLINE struct codes codes_at(const int dtype, const uint8_t *bytes, const bool is_first)
{
    const size_t bits = dtype == TRELLIS           ? 2
                        : IS_PATH(dtype)           ? (size_t)(dtype - SHIFT)
                        : dtype == MOEC_DTYPE_INT2 ? 2
                        : dtype == MOEC_DTYPE_INT3 ? 3
                        : dtype == MOEC_DTYPE_INT4 ? 4
                        : dtype == MOEC_DTYPE_INT5 ? 5
                        : dtype == MOEC_DTYPE_INT6 ? 6
                                                   : 8;
    struct codes codes;
    uint32_t before = 0;
    if (dtype > SHIFT) {
        shift_span_codes((uint32_t)bits, bytes, is_first, &codes);
        return codes;
    }
    if (dtype == TRELLIS && !is_first)
        memcpy(&before, bytes - BEFORE, sizeof before);
    UNROLL
    for (int b = 0; b < QUARTERS; b++, bytes += 4 * bits) {
        uint8x16_t of_block[2];
        if (dtype == TRELLIS) {
            const struct trellis_bits at = trellis_bits_at(bytes, &before);
            trellis_codes(&at, of_block);
        } else {
            codes_of(dtype, bytes, of_block);
        }
        codes.half[0].of[b] = vreinterpretq_s32_u8(of_block[0]);
        codes.half[1].of[b] = vreinterpretq_s32_u8(of_block[1]);
    }
    return codes;
}

INLINE void codes_store(struct codes codes, const int less, uint8_t *at)
{
    (void)less; /* is 0 here */
    UNROLL
    for (int b = 0; b < QUARTERS; b++) {
        UNROLL
        for (int half = 0; half < 2; half++)
            vst1q_u8(at + BLOCK * b + 16 * half, vreinterpretq_u8_s32(codes.half[half].of[b]));
    }
}

#include "runtime/kernels/int8/int8_set.h"

#endif
