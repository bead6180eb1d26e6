/* NEON of 64-bit ARM: 16 lanes are four registers. */
#include "runtime/kernels/kernels.h"

#if defined(__aarch64__)
#include "runtime/kernels/lanes/codes_neon.h"
#include "runtime/kernels/lanes/lanes_neon.h"

#define SUM_VECTORS    1
#define ROWS_AT_ONCE   2
#define CODE_ROWS      2
#define FEW_ROWS       2
#define FEW_TOKENS     3
#define SET_LIFTS      0
#define SET_BLOCKS     2
#define SET_CONTIGUOUS 0
#define SET_ACROSS     0

/* Floats looked up by codes: 4, 8 or 16 of them in as many sixteenths of 64 bytes. */
typedef uint8x16x4_t trellis_table;

/* ---- decoding ---- */

/* Integers: weight = (code - zero) * scale, as it is defined; the difference is one of 16-bit integers, which
 * any zero of a byte fits. Dictionaries: the levels times the scale, or where a register does not hold them
 * (INT8) the levels in memory. */
struct decoder {
    int16x8_t zero;
    float32x4_t scale;
    uint8x16x4_t table;
    const float *levels;
};

INLINE bool decoder_needs_regular(const int dtype)
{
    (void)dtype;
    return false;
}

INLINE struct decoder decoder_make(const int dtype, float scale, float zero)
{
    (void)dtype;
    return (struct decoder){.zero = vdupq_n_s16((int16_t)zero), .scale = vdupq_n_f32(scale)};
}

INLINE uint8x16_t scaled_levels(const float *levels, float scale)
{
    return vreinterpretq_u8_f32(vmulq_f32(vld1q_f32(levels), vdupq_n_f32(scale)));
}

INLINE struct decoder decoder_of_levels(const int dtype, float scale, const float *levels)
{
    struct decoder decoder = {.scale = vdupq_n_f32(scale), .levels = levels};
    const int n = PLAIN(dtype) == MOEC_DTYPE_INT2   ? 4
                  : PLAIN(dtype) == MOEC_DTYPE_INT3 ? 8
                  : PLAIN(dtype) == MOEC_DTYPE_INT4 ? 16
                                                    : 0;
    UNROLL
    for (int i = 0; i < n / 4; i++)
        decoder.table.val[i] = scaled_levels(levels + 4 * i, scale);
    return decoder;
}

INLINE lanes weights_of(uint8x16_t codes, const struct decoder *decoder)
{
    lanes out;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const uint8x8_t eight = i == 0 ? vget_low_u8(codes) : vget_high_u8(codes);
        const int16x8_t less = vsubq_s16(vreinterpretq_s16_u16(vmovl_u8(eight)), decoder->zero);
        const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(less)));
        const float32x4_t high = vcvtq_f32_s32(vmovl_s16(vget_high_s16(less)));
        out.of[2 * i] = vmulq_f32(low, decoder->scale);
        out.of[2 * i + 1] = vmulq_f32(high, decoder->scale);
    }
    return out;
}

/* Sixteen floats of a table with n of them: the bytes of each stand at four times its code. */
INLINE lanes looked_up(const int n, const uint8x16x4_t *table, uint8x16_t codes)
{
    lanes out;
    UNROLL
    for (int i = 0; i < QUARTERS; i++) {
        const uint32x4_t at =
            vaddq_u32(vmulq_n_u32(quarter_of(codes, i), 0x04040404), vdupq_n_u32(0x03020100));
        const uint8x16_t places = vreinterpretq_u8_u32(at);
        const uint8x16_t found = n == 4   ? vqtbl1q_u8(table->val[0], places)
                                 : n == 8 ? vqtbl2q_u8((uint8x16x2_t){{table->val[0], table->val[1]}}, places)
                                          : vqtbl4q_u8(*table, places);
        out.of[i] = vreinterpretq_f32_u8(found);
    }
    return out;
}

INLINE lanes gathered(const uint8_t *bytes, const struct decoder *decoder)
{
    float levels[LANES];
    for (int i = 0; i < LANES; i++)
        levels[i] = decoder->levels[bytes[i]];
    lanes out = lanes_load(levels);
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        out.of[i] = vmulq_f32(out.of[i], decoder->scale);
    return out;
}

INLINE void decode_levels(const int dtype, const uint8_t *bytes, const struct decoder *decoder, lanes out[2])
{
    const int n = PLAIN(dtype) == MOEC_DTYPE_INT2 ? 4 : PLAIN(dtype) == MOEC_DTYPE_INT3 ? 8 : 16;
    uint8x16_t codes[2];
    if (PLAIN(dtype) == MOEC_DTYPE_INT8) {
        out[0] = gathered(bytes, decoder);
        out[1] = gathered(bytes + LANES, decoder);
        return;
    }
    codes_of(dtype, bytes, codes);
    out[0] = looked_up(n, &decoder->table, codes[0]);
    out[1] = looked_up(n, &decoder->table, codes[1]);
}

/* A BF16 is the upper half of an F32. */
INLINE lanes from_bf16(const uint8_t *bytes)
{
    lanes out;
    UNROLL
    for (int i = 0; i < QUARTERS; i++)
        out.of[i] =
            vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(bytes + (size_t)(8 * i))), 16));
    return out;
}

INLINE void decode_block(const int dtype, const uint8_t *bytes, const struct decoder *decoders, lanes out[2])
{
    uint8x16_t codes[2];
    switch (dtype) {
    case MOEC_DTYPE_F32:
        out[0] = lanes_load((const float *)(const void *)bytes);
        out[1] = lanes_load((const float *)(const void *)(bytes + 64));
        break;
    case MOEC_DTYPE_F16:
        out[0] = lanes_of_halves(bytes, LANES);
        out[1] = lanes_of_halves(bytes + 32, LANES);
        break;
    case MOEC_DTYPE_BF16:
        out[0] = from_bf16(bytes);
        out[1] = from_bf16(bytes + 32);
        break;
    default:
        if (dtype & DICTIONARY) {
            decode_levels(dtype, bytes, &decoders[0], out);
            break;
        }
        codes_of(dtype, bytes, codes);
        out[0] = weights_of(codes[0], &decoders[0]);
        out[1] = weights_of(codes[1], &decoders[UPPER(dtype)]);
        break;
    }
}

/* ---- trellis ---- */

INLINE trellis_table trellis_make(const float levels[static 8], float scale)
{
    const uint8x16_t none = vdupq_n_u8(0);
    return (trellis_table){{scaled_levels(levels, scale), scaled_levels(levels + 4, scale), none, none}};
}

typedef uint32_t trellis_carry;

INLINE trellis_carry trellis_begin(void)
{
    return 0;
}

INLINE void trellis_block(trellis_table table, const uint8_t *at, trellis_carry *before, lanes out[2])
{
    const struct trellis_bits bits = trellis_bits_at(at, before);
    const uint32_t words[3] = {bits.words.z0, bits.words.z1, bits.upper};
    uint8x16_t codes[2] = {vdupq_n_u8(0), vdupq_n_u8(0)};
    UNROLL
    for (int i = 0; i < 3; i++)
        add_bit((const uint8_t *)&words[i], (uint8_t)(1 << i), codes);
    out[0] = looked_up(8, &table, codes[0]);
    out[1] = looked_up(8, &table, codes[1]);
}

/* Sixteen weights from their levels. */
INLINE lanes lanes_of_levels(uint8x16_t levels, float32x4_t scale)
{
    const int8x16_t sixteen = vreinterpretq_s8_u8(levels);
    lanes out;
    UNROLL
    for (int i = 0; i < 2; i++) {
        const int16x8_t eight = vmovl_s8(i == 0 ? vget_low_s8(sixteen) : vget_high_s8(sixteen));
        out.of[2 * i] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(eight))), scale);
        out.of[2 * i + 1] = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(eight))), scale);
    }
    return out;
}

INLINE void shift_block(const uint32_t bits, float scale, const uint8_t *at, const uint8_t *front,
                        lanes out[2])
{
    uint8x16_t levels[2];
    shift_blocks_levels(bits, 1, at, front[BEFORE - 1], levels);
    out[0] = lanes_of_levels(levels[0], vdupq_n_f32(scale));
    out[1] = lanes_of_levels(levels[1], vdupq_n_f32(scale));
}

struct shift_levels {
    uint8x16_t of[2 * SET_BLOCKS];
};

INLINE struct shift_levels shift_open(const uint32_t bits, const uint8_t *at, bool is_first)
{
    struct shift_levels levels;
    shift_blocks_levels(bits, SET_BLOCKS, at, is_first ? 0 : at[-1], levels.of);
    return levels;
}

INLINE lanes shift_lanes(const struct shift_levels *levels, const int k, const struct decoder *decoder)
{
    return lanes_of_levels(levels->of[k], decoder->scale);
}

INLINE struct decoder shift_decoder(float scale)
{
    return (struct decoder){.scale = vdupq_n_f32(scale)};
}

INLINE void lanes_sum_rows(const lanes v[static CODE_ROWS], float y[static CODE_ROWS])
{
    UNROLL
    for (int r = 0; r < CODE_ROWS; r++)
        y[r] = lanes_sum(v[r]);
}

/* ---- tile of dot ---- */

/* 3 tokens by 2 rows: 24 accumulators, which hide the latency of a fused operation, of 32 registers. */
INLINE void dot_tile(const int nt, const float *x, size_t x_stride, const struct slice *slice,
                     const bool first, const bool last, float acc[][DOT_ROWS][LANES], float *y,
                     size_t y_stride)
{
    const int nr = nt == 1 ? 4 : 2, n = nt * nr;
    NO_UNROLL
    for (int row = 0; row < DOT_ROWS; row += nr) {
        lanes sums[2 * DOT_TOKENS];
        UNROLL
        for (int i = 0; i < n; i++)
            sums[i] = first ? lanes_zero() : lanes_load(acc[i % nt][row + i / nt]);
        for (size_t k = 0; k < slice->k; k += LANES) {
            UNROLL
            for (int q = 0; q < QUARTERS; q++) {
                float32x4_t tokens[DOT_TOKENS], weights = vdupq_n_f32(0);
                UNROLL
                for (int t = 0; t < nt; t++)
                    tokens[t] = vld1q_f32(x + (size_t)t * x_stride + k + 4 * (size_t)q);
                UNROLL
                for (int i = 0; i < n; i++) {
                    if (i % nt == 0)
                        weights = vld1q_f32(slice->w[row + i / nt] + k + 4 * (size_t)q);
                    sums[i].of[q] = vfmaq_f32(sums[i].of[q], tokens[i % nt], weights);
                }
            }
        }
        UNROLL
        for (int i = 0; i < n; i++) {
            if (last)
                y[(size_t)(i % nt) * y_stride + (size_t)(row + i / nt)] = lanes_sum(sums[i]);
            else
                lanes_store(acc[i % nt][row + i / nt], sums[i]);
        }
    }
}

#include "runtime/kernels/canonical/kernels_lanes.h"

static const struct moec_kernels kernels_neon = LANES_KERNELS("neon");

const struct moec_kernels *moec_kernels_neon(void)
{
    return &kernels_neon;
}
#else
const struct moec_kernels *moec_kernels_neon(void)
{
    return NULL;
}
#endif
