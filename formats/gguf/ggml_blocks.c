/* Each decoder repeats ggml's operations in ggml's order, each rounded to F32: another order gives other
 * bits. `halves` of a type's row says where its block keeps F16 scales. Only those and an exponent of MXFP4
 * can make a weight infinite or NaN. The check for finite numbers looks at nothing else. */
#include "formats/gguf/ggml_blocks.h"

#include "formats/base/bytes.h"
#include "formats/base/half.h"
#include "formats/gguf/ggml_grids.h"

#include <math.h>
#include <stdbool.h>

enum { SMALL = 32, LARGE = 256 }; /* weights of a block */
enum { IQ1_M = 29 };

static float half_at(const uint8_t *at)
{
    return moec_f16_to_f32(moec_get_u16(at));
}

/* ---- blocks of 32 ---- */

/* Codes 0..15: of the first half of the weights in the low nibbles, of the second in the high ones. */
static uint32_t nibble(const uint8_t *codes, uint32_t half, uint32_t i)
{
    return i < half ? codes[i] & 15u : codes[i - half] >> 4;
}

static void decode_q8_0(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += SMALL, block += 34) {
        const float d = half_at(block);
        for (uint32_t i = 0; i < SMALL; i++)
            weights[i] = (float)(int8_t)block[2 + i] * d;
    }
}

static void decode_q4_0(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += SMALL, block += 18) {
        const float d = half_at(block);
        for (uint32_t i = 0; i < SMALL; i++)
            weights[i] = d * (float)((int32_t)nibble(block + 2, 16, i) - 8);
    }
}

static void decode_q4_1(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += SMALL, block += 20) {
        const float d = half_at(block), least = half_at(block + 2);
        for (uint32_t i = 0; i < SMALL; i++)
            weights[i] = d * (float)nibble(block + 4, 16, i) + least;
    }
}

static void decode_q5_0(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += SMALL, block += 22) {
        const float d = half_at(block);
        const uint32_t high = moec_get_u32(block + 2);
        for (uint32_t i = 0; i < SMALL; i++)
            weights[i] = d * (float)((int32_t)(nibble(block + 6, 16, i) | (high >> i & 1u) << 4) - 16);
    }
}

static void decode_q5_1(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += SMALL, block += 24) {
        const float d = half_at(block), least = half_at(block + 2);
        const uint32_t high = moec_get_u32(block + 4);
        for (uint32_t i = 0; i < SMALL; i++)
            weights[i] = d * (float)(nibble(block + 8, 16, i) | (high >> i & 1u) << 4) + least;
    }
}

/* Codes of IQ4: sixteen steps that are finer near zero. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static void decode_iq4_nl(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += SMALL, block += 18) {
        const float d = half_at(block);
        for (uint32_t i = 0; i < SMALL; i++)
            weights[i] = d * (float)iq4_values[nibble(block + 2, 16, i)];
    }
}

/* Twice the values of E2M1; the scale, a power of two, is halved for it. */
static const int8_t e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float e8m0_half(uint8_t exponent)
{
    return moec_f32_from_bits(exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23);
}

static void decode_mxfp4(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += SMALL, block += 17) {
        const float d = e8m0_half(block[0]);
        for (uint32_t i = 0; i < SMALL; i++)
            weights[i] = d * (float)e2m1_doubled[nibble(block + 1, 16, i)];
    }
}

/* ---- blocks of 256 ---- */

/* Two bits of weight i of a half block of 128: four times 32 weights share 32 bytes. */
static uint32_t two_bits(const uint8_t *bytes, uint32_t i)
{
    return (uint32_t)bytes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3u;
}

static void decode_q2_k(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += LARGE, block += 84) {
        const float d = half_at(block + 80), least = half_at(block + 82);
        for (uint32_t i = 0; i < LARGE; i++) {
            const uint8_t scale = block[i / 16];
            weights[i] =
                d * (float)(scale & 15u) * (float)two_bits(block + 16, i) - least * (float)(scale >> 4);
        }
    }
}

static void decode_q3_k(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += LARGE, block += 110) {
        const uint8_t *scales = block + 96;
        const float d = half_at(block + 108);
        for (uint32_t i = 0; i < LARGE; i++) {
            const uint32_t s = i / 16;
            const uint32_t low = s < 8 ? scales[s] & 15u : scales[s - 8] >> 4;
            const uint32_t high = scales[8 + s % 4] >> (s / 4 * 2) & 3u;
            const int32_t scale = (int32_t)(low | high << 4) - 32;
            /* A clear bit of the mask stands for minus four. */
            const int32_t code =
                (int32_t)two_bits(block + 32, i) - ((block[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
            weights[i] = d * (float)scale * (float)code;
        }
    }
}

/* Scale and minimum of the 32 weights number s in 0..7, six bits each, of Q4_K and Q5_K. */
static void scale_and_least(const uint8_t *packed, uint32_t s, float d, float m, float *scale, float *least)
{
    uint32_t a, b;
    if (s < 4) {
        a = packed[s] & 63u;
        b = packed[4 + s] & 63u;
    } else {
        a = (packed[4 + s] & 15u) | (packed[s - 4] >> 2 & 0x30u);
        b = (uint32_t)(packed[4 + s] >> 4) | (packed[s] >> 2 & 0x30u);
    }
    *scale = d * (float)a;
    *least = m * (float)b;
}

static void decode_q4_k(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += LARGE, block += 144) {
        const float d = half_at(block), m = half_at(block + 2);
        for (uint32_t s = 0; s < LARGE / 32; s++) {
            const uint8_t *codes = block + 16 + s / 2 * 32;
            float scale, least;
            scale_and_least(block + 4, s, d, m, &scale, &least);
            for (uint32_t i = 0; i < 32; i++)
                weights[s * 32 + i] = scale * (float)(codes[i] >> s % 2 * 4 & 15) - least;
        }
    }
}

static void decode_q5_k(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += LARGE, block += 176) {
        const float d = half_at(block), m = half_at(block + 2);
        for (uint32_t s = 0; s < LARGE / 32; s++) {
            const uint8_t *codes = block + 48 + s / 2 * 32, *high = block + 16;
            float scale, least;
            scale_and_least(block + 4, s, d, m, &scale, &least);
            for (uint32_t i = 0; i < 32; i++)
                weights[s * 32 + i] =
                    scale * (float)((codes[i] >> s % 2 * 4 & 15) | (high[i] >> s & 1) << 4) - least;
        }
    }
}

static void decode_q6_k(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += LARGE, block += 210) {
        const float d = half_at(block + 208);
        for (uint32_t i = 0; i < LARGE; i++) {
            const uint8_t low = block[i / 128 * 64 + i % 64];
            const uint32_t code = (i % 128 < 64 ? low & 15u : low >> 4) | two_bits(block + 128, i) << 4;
            weights[i] = d * (float)(int8_t)block[192 + i / 16] * (float)((int32_t)code - 32);
        }
    }
}

static void decode_iq4_xs(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += LARGE, block += 136) {
        const float d = half_at(block);
        const uint32_t high = moec_get_u16(block + 2);
        for (uint32_t s = 0; s < LARGE / 32; s++) {
            const uint32_t low = (uint32_t)block[4 + s / 2] >> s % 2 * 4 & 15u;
            const float scale = d * (float)((int32_t)(low | (high >> 2 * s & 3u) << 4) - 32);
            for (uint32_t i = 0; i < 32; i++)
                weights[s * 32 + i] = scale * (float)iq4_values[nibble(block + 8 + s * 16, 16, i)];
        }
    }
}

/* ---- grids: eight or four weights by an entry of a table ---- */

/* Values of an entry's codes: IQ2 and IQ1 have two bits for each of eight weights, IQ3 three for each of
 * four. */
static const float iq2_values[4] = {8, 25, 43, 0}, iq1_values[4] = {-1, 0, 1, 0},
                   iq3_xxs_values[8] = {4, 12, 20, 28, 36, 44, 52, 62},
                   iq3_s_values[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Eight signs of seven bits: the eighth makes their number even. */
static uint32_t even_signs(uint32_t bits)
{
    return bits | (uint32_t)__builtin_parity(bits) << 7;
}

static void put_eight(uint16_t entry, float scale, uint32_t signs, float *weights)
{
    for (uint32_t i = 0; i < 8; i++)
        weights[i] = scale * iq2_values[entry >> 2 * i & 3] * ((signs >> i & 1) != 0 ? -1.0f : 1.0f);
}

static void put_four(uint16_t entry, const float *values, float scale, uint32_t signs, float *weights)
{
    for (uint32_t i = 0; i < 4; i++)
        weights[i] = scale * values[entry >> 3 * i & 7] * ((signs >> i & 1) != 0 ? -1.0f : 1.0f);
}

static void decode_iq2_xxs(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; block += 66) {
        const float d = half_at(block);
        for (const uint8_t *at = block + 2; at < block + 66; at += 8) {
            const uint32_t packed = moec_get_u32(at + 4);
            const float scale = d * (0.5f + (float)(packed >> 28)) * 0.25f;
            for (uint32_t k = 0; k < 4; k++, weights += 8)
                put_eight(iq2_xxs_grid[at[k]], scale, even_signs(packed >> 7 * k & 127), weights);
        }
    }
}

static void decode_iq2_xs(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; block += 74) {
        const float d = half_at(block);
        for (uint32_t k = 0; k < LARGE / 8; k++, weights += 8) {
            const uint32_t code = moec_get_u16(block + 2 + 2 * (size_t)k);
            const float scale = d * (0.5f + (float)(block[66 + k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25f;
            put_eight(iq2_xs_grid[code & 511], scale, even_signs(code >> 9), weights);
        }
    }
}

static void decode_iq2_s(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; block += 82) {
        const float d = half_at(block);
        for (uint32_t k = 0; k < LARGE / 8; k++, weights += 8) {
            const uint32_t high = (uint32_t)block[66 + k / 4] >> k % 4 * 2 & 3u;
            const float scale = d * (0.5f + (float)(block[74 + k / 4] >> k / 2 % 2 * 4 & 15)) * 0.25f;
            put_eight(iq2_s_grid[block[2 + k] | high << 8], scale, block[34 + k], weights);
        }
    }
}

static void decode_iq3_xxs(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; block += 98) {
        const float d = half_at(block);
        for (uint32_t k = 0; k < LARGE / 4; k++, weights += 4) {
            const uint32_t packed = moec_get_u32(block + 66 + k / 8 * (size_t)4);
            const uint32_t signs = even_signs(packed >> k / 2 % 4 * 7 & 127);
            const float scale = d * (0.5f + (float)(packed >> 28)) * 0.5f;
            put_four(iq3_xxs_grid[block[2 + k]], iq3_xxs_values, scale, signs >> k % 2 * 4, weights);
        }
    }
}

static void decode_iq3_s(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; block += 110) {
        const float d = half_at(block);
        for (uint32_t k = 0; k < LARGE / 4; k++, weights += 4) {
            const uint32_t high = (uint32_t)block[66 + k / 8] >> k % 8 & 1u;
            const float scale = d * (float)(1 + 2 * (block[106 + k / 16] >> k / 8 % 2 * 4 & 15));
            put_four(iq3_s_grid[block[2 + k] | high << 8], iq3_s_values, scale,
                     (uint32_t)block[74 + k / 2] >> k % 2 * 4, weights);
        }
    }
}

/* Every weight of eight is moved by an eighth, up or down. */
static void put_moved(uint16_t entry, float scale, bool is_down, float *weights)
{
    for (uint32_t i = 0; i < 8; i++)
        weights[i] = scale * (iq1_values[entry >> 2 * i & 3] + (is_down ? -0.125f : 0.125f));
}

static void decode_iq1_s(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; block += 50) {
        const float d = half_at(block);
        for (uint32_t k = 0; k < LARGE / 8; k++, weights += 8) {
            const uint32_t high = moec_get_u16(block + 34 + k / 4 * (size_t)2);
            const float scale = d * (float)(2 * (high >> 12 & 7) + 1);
            put_moved(iq1_s_grid[block[2 + k] | (high >> k % 4 * 3 & 7) << 8], scale, (high & 0x8000) != 0,
                      weights);
        }
    }
}

/* IQ1_M keeps the bits of its scale in the upper four of four words. */
static uint32_t scattered_scale(const uint8_t *block)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 4; i++)
        bits |= (uint32_t)moec_get_u16(block + 48 + 2 * (size_t)i) >> 12 << 4 * i;
    return bits;
}

static void decode_iq1_m(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; block += 56) {
        const float d = moec_f16_to_f32((uint16_t)scattered_scale(block));
        for (uint32_t k = 0; k < LARGE / 8; k++, weights += 8) {
            const uint32_t high = (uint32_t)block[32 + k / 2] >> k % 2 * 4 & 15u;
            const uint32_t three =
                (uint32_t)moec_get_u16(block + 48 + k / 8 * (size_t)2) >> k / 2 % 4 * 3 & 7u;
            put_moved(iq1_s_grid[block[k] | (high & 7) << 8], d * (float)(2 * three + 1), (high & 8) != 0,
                      weights);
        }
    }
}

/* ---- three values ---- */

/* Five of them in a byte, which is their number in base 3 as a part of 256; the last byte's have four. */
static void decode_tq1_0(const uint8_t *block, size_t n, float *weights)
{
    static const struct {
        uint32_t first, n_bytes, n_digits;
    } parts[] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    for (const float *end = weights + n; weights < end; block += 54) {
        const float d = half_at(block + 52);
        for (size_t p = 0; p < 3; p++)
            for (uint32_t digit = 0, power = 1; digit < parts[p].n_digits; digit++, power *= 3)
                for (uint32_t i = 0; i < parts[p].n_bytes; i++) {
                    const uint32_t rest = block[parts[p].first + i] * power & 255u;
                    *weights++ = d * (float)((int32_t)(rest * 3 >> 8) - 1);
                }
    }
}

static void decode_tq2_0(const uint8_t *block, size_t n, float *weights)
{
    for (const float *end = weights + n; weights < end; weights += LARGE, block += 66) {
        const float d = half_at(block + 64);
        for (uint32_t i = 0; i < LARGE; i++)
            weights[i] = d * (float)((int32_t)two_bits(block, i) - 1);
    }
}

/* ---- the table ---- */

static const struct moec_ggml_type types[] = {
    {MOEC_GGML_F32, "F32", 1, 4, NULL, 0, {0}},
    {MOEC_GGML_F16, "F16", 1, 2, NULL, 0, {0}},
    {2, "Q4_0", SMALL, 18, decode_q4_0, 1, {0}},
    {3, "Q4_1", SMALL, 20, decode_q4_1, 2, {0, 2}},
    {6, "Q5_0", SMALL, 22, decode_q5_0, 1, {0}},
    {7, "Q5_1", SMALL, 24, decode_q5_1, 2, {0, 2}},
    {8, "Q8_0", SMALL, 34, decode_q8_0, 1, {0}},
    {10, "Q2_K", LARGE, 84, decode_q2_k, 2, {80, 82}},
    {11, "Q3_K", LARGE, 110, decode_q3_k, 1, {108}},
    {12, "Q4_K", LARGE, 144, decode_q4_k, 2, {0, 2}},
    {13, "Q5_K", LARGE, 176, decode_q5_k, 2, {0, 2}},
    {14, "Q6_K", LARGE, 210, decode_q6_k, 1, {208}},
    {16, "IQ2_XXS", LARGE, 66, decode_iq2_xxs, 1, {0}},
    {17, "IQ2_XS", LARGE, 74, decode_iq2_xs, 1, {0}},
    {18, "IQ3_XXS", LARGE, 98, decode_iq3_xxs, 1, {0}},
    {19, "IQ1_S", LARGE, 50, decode_iq1_s, 1, {0}},
    {20, "IQ4_NL", SMALL, 18, decode_iq4_nl, 1, {0}},
    {21, "IQ3_S", LARGE, 110, decode_iq3_s, 1, {0}},
    {22, "IQ2_S", LARGE, 82, decode_iq2_s, 1, {0}},
    {23, "IQ4_XS", LARGE, 136, decode_iq4_xs, 1, {0}},
    {24, "I8", 1, 1, NULL, 0, {0}},
    {25, "I16", 1, 2, NULL, 0, {0}},
    {26, "I32", 1, 4, NULL, 0, {0}},
    {27, "I64", 1, 8, NULL, 0, {0}},
    {28, "F64", 1, 8, NULL, 0, {0}},
    {IQ1_M, "IQ1_M", LARGE, 56, decode_iq1_m, 0, {0}},
    {MOEC_GGML_BF16, "BF16", 1, 2, NULL, 0, {0}},
    {34, "TQ1_0", LARGE, 54, decode_tq1_0, 1, {52}},
    {35, "TQ2_0", LARGE, 66, decode_tq2_0, 1, {64}},
    {MOEC_GGML_MXFP4, "MXFP4", SMALL, 17, decode_mxfp4, 0, {0}},
};

const struct moec_ggml_type *moec_ggml_type_find(uint32_t type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type)
            return &types[i];
    return NULL;
}

static bool half_is_finite(uint32_t bits)
{
    return (bits & 0x7c00u) != 0x7c00u;
}

/* Powers of two are finite; times a code, the largest are not. */
static bool mxfp4_is_finite(const uint8_t *block)
{
    enum { ALWAYS_FINITE = 252 };
    float weights[SMALL];
    bool is_finite = true;
    if (block[0] <= ALWAYS_FINITE)
        return true;
    decode_mxfp4(block, SMALL, weights);
    for (size_t i = 0; i < SMALL; i++)
        is_finite = is_finite && isfinite(weights[i]);
    return is_finite;
}

bool moec_ggml_are_finite(const struct moec_ggml_type *type, const uint8_t *blocks, size_t n_block)
{
    bool are_finite = true;
    for (size_t i = 0; i < n_block; i++, blocks += type->block_bytes) {
        for (uint8_t h = 0; h < type->n_half; h++)
            are_finite &= half_is_finite(moec_get_u16(blocks + type->halves[h]));
        if (type->type == IQ1_M)
            are_finite &= half_is_finite(scattered_scale(blocks));
        if (type->type == MOEC_GGML_MXFP4)
            are_finite &= mxfp4_is_finite(blocks);
    }
    return are_finite;
}
