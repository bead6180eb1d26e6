/* The lanes of NEON: 16 floats in four registers, and the primitives of runtime/kernels/canonical/kernels_lanes.h that
 * no code of weights enters. */
#ifndef MOEC_RUNTIME_LANES_NEON_H
#define MOEC_RUNTIME_LANES_NEON_H

#include "runtime/kernels/lanes/kernels_shape.h"

#include <arm_neon.h>

#define QUARTERS 4

typedef struct {
    float32x4_t of[QUARTERS];
} lanes;

INLINE lanes lanes_set(float value)
{
    const float32x4_t all = vdupq_n_f32(value);
    return (lanes){{all, all, all, all}};
}

INLINE lanes lanes_zero(void)
{
    return lanes_set(0.0f);
}

INLINE lanes lanes_load(const float *p)
{
    return (lanes){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

INLINE void lanes_store(float *p, lanes v)
{
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        vst1q_f32(p + 4 * i, v.of[i]);
}

/* NaN in a or b gives b, which the maximum and minimum of NEON would not. */
INLINE float32x4_t greater_of(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

INLINE float32x4_t less_of(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

#define LANEWISE(name, instruction)                                                                          \
    INLINE lanes name(lanes a, lanes b)                                                                      \
    {                                                                                                        \
        return (lanes){{instruction(a.of[0], b.of[0]), instruction(a.of[1], b.of[1]),                        \
                        instruction(a.of[2], b.of[2]), instruction(a.of[3], b.of[3])}};                      \
    }
LANEWISE(lanes_add, vaddq_f32)
LANEWISE(lanes_sub, vsubq_f32)
LANEWISE(lanes_mul, vmulq_f32)
LANEWISE(lanes_div, vdivq_f32)
LANEWISE(lanes_max, greater_of)
LANEWISE(lanes_min, less_of)

INLINE lanes lanes_fma(lanes a, lanes b, lanes c)
{
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        c.of[i] = vfmaq_f32(c.of[i], a.of[i], b.of[i]);
    return c;
}

INLINE lanes lanes_load_some(const float *p, size_t n)
{
    float padded[LANES] = {0};
    memcpy(padded, p, n * sizeof *p);
    return lanes_load(padded);
}

INLINE void lanes_store_some(float *p, size_t n, lanes v)
{
    float whole[LANES];
    lanes_store(whole, v);
    memcpy(p, whole, n * sizeof *p);
}

INLINE lanes lanes_keep(lanes v, size_t n, lanes other)
{
    static const uint32_t places[4] = {0, 1, 2, 3};
    const uint32x4_t first = vld1q_u32(places);
    UNROLL
    for (uint32_t i = 0; i < QUARTERS; i++) {
        const uint32x4_t place = vaddq_u32(first, vdupq_n_u32(4 * i));
        v.of[i] = vbslq_f32(vcltq_u32(place, vdupq_n_u32((uint32_t)n)), v.of[i], other.of[i]);
    }
    return v;
}

INLINE float lanes_sum(lanes v)
{
    const float32x4_t four =
        vaddq_f32(vaddq_f32(v.of[0], v.of[2]), vaddq_f32(v.of[1], v.of[3])); /* i + 8, then i + 4 */
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

INLINE float lanes_top(lanes v)
{
    const float32x4_t four =
        greater_of(greater_of(v.of[3], v.of[1]), greater_of(v.of[2], v.of[0])); /* upper, then lower */
    const float32x2_t low = vget_low_f32(four), high = vget_high_f32(four);
    const float32x2_t two = vbsl_f32(vcgt_f32(high, low), high, low);
    const float first = vget_lane_f32(two, 0), second = vget_lane_f32(two, 1);
    return second > first ? second : first;
}

INLINE float32x4_t power(float32x4_t p, float32x4_t biased)
{
    const int32x4_t n =
        vsubq_s32(vreinterpretq_s32_f32(biased), vreinterpretq_s32_f32(vdupq_n_f32(EXP_ROUND)));
    const int32x4_t half = vshrq_n_s32(n, 1), one = vreinterpretq_s32_f32(vdupq_n_f32(1.0f));
    const int32x4_t first = vaddq_s32(vshlq_n_s32(half, 23), one);
    const int32x4_t second = vaddq_s32(vshlq_n_s32(vsubq_s32(n, half), 23), one);
    return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

INLINE lanes lanes_power(lanes p, lanes biased)
{
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        p.of[i] = power(p.of[i], biased.of[i]);
    return p;
}

INLINE void lanes_to_f16(uint8_t *p, lanes v)
{
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        vst1_u8(p + 8 * i, vreinterpret_u8_f16(vcvt_f16_f32(v.of[i])));
}

INLINE lanes lanes_cut(lanes v, lanes x, float limit)
{
    const float32x4_t bound = vdupq_n_f32(limit);
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        v.of[i] = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v.of[i]), vcltq_f32(x.of[i], bound)));
    return v;
}

INLINE float f16_at(const uint8_t *at)
{
    __fp16 value;
    memcpy(&value, at, sizeof value);
    return (float)value;
}

INLINE float32x4_t four_halves(const uint8_t *bytes)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes)));
}

INLINE lanes lanes_of_halves(const uint8_t *at, size_t n)
{
    uint8_t padded[2 * LANES] = {0};
    if (n < LANES)
        at = memcpy(padded, at, 2 * n);
    return (lanes){{four_halves(at), four_halves(at + 8), four_halves(at + 16), four_halves(at + 24)}};
}

/* Sixteen bytes, of which each quarter is widened to 32 bits. */
INLINE uint32x4_t quarter_of(uint8x16_t bytes, const int i)
{
    const uint16x8_t eight = i < 2 ? vmovl_u8(vget_low_u8(bytes)) : vmovl_u8(vget_high_u8(bytes));
    return i % 2 == 0 ? vmovl_u16(vget_low_u16(eight)) : vmovl_u16(vget_high_u16(eight));
}

INLINE lanes lanes_of_bytes(const uint8_t *at, size_t n)
{
    uint8_t padded[LANES] = {0};
    if (n < LANES)
        at = memcpy(padded, at, n);
    const uint8x16_t bytes = vld1q_u8(at);
    lanes out;
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        out.of[i] = vcvtq_f32_u32(quarter_of(bytes, i));
    return out;
}

#endif
