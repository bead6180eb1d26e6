/* How a block of 32 codes is packed. At 2 bits byte i holds codes i, i + 8, i + 16 and i + 24; at 4 bits
 * codes i and i + 16. 3 bits are 2 and a plane of bit 2; 5 bits are 4 and a plane of bit 4; 6 bits are 4
 * and 2. One bit tells code 0 from code 2. Bundles and kernels rely on this order. A short last block is filled
 * up with a fixed code, so that a row's bytes depend on its weights alone. */
#include "formats/base/bytes.h"
#include "formats/base/half.h"
#include "formats/codec/codec_internal.h"

#include <string.h>

/* ---- blocks ---- */

#define BYTES(value) (0x0101010101010101u * (value))

static void pack_two_bits(const uint8_t codes[static BLOCK], uint8_t *out)
{
    uint64_t bytes = 0;
    for (int part = 0; part < 4; part++)
        bytes |= (moec_get_u64(codes + 8 * part) & BYTES(3u)) << (2 * part);
    moec_put_u64(out, bytes);
}

static void unpack_two_bits(const uint8_t *in, uint8_t codes[static BLOCK])
{
    for (int i = 0; i < 8; i++)
        for (int part = 0; part < 4; part++)
            codes[i + 8 * part] = (uint8_t)((in[i] >> (2 * part)) & 3);
}

static void pack_four_bits(const uint8_t codes[static BLOCK], uint8_t *out)
{
    for (int i = 0; i < 16; i += 8)
        moec_put_u64(out + i, (moec_get_u64(codes + i) & BYTES(15u)) |
                                  (moec_get_u64(codes + 16 + i) & BYTES(15u)) << 4);
}

static void unpack_four_bits(const uint8_t *in, uint8_t codes[static BLOCK])
{
    for (int i = 0; i < 16; i++) {
        codes[i] = in[i] & 15;
        codes[i + 16] = in[i] >> 4;
    }
}

/* Bit `place` of every code. Of eight at a time: the product moves byte i's bit to bit 56 + i, and no two of
 * its terms fall together. */
uint32_t moec_codec_gather_bit(const uint8_t codes[static BLOCK], int place)
{
    uint32_t bits = 0;
    for (int i = 0; i < BLOCK; i += 8) {
        const uint64_t of_eight = (moec_get_u64(codes + i) >> place) & BYTES(1u);
        bits |= (uint32_t)((of_eight * 0x0102040810204080u) >> 56) << i;
    }
    return bits;
}

static void scatter_bit(uint32_t bits, int place, uint8_t codes[static BLOCK])
{
    for (int i = 0; i < BLOCK; i++)
        codes[i] = (uint8_t)(codes[i] | ((bits >> i) & 1) << place);
}

void moec_codec_pack_block(uint32_t bits, const uint8_t *codes, uint8_t *out)
{
    uint8_t high[BLOCK];
    switch (bits) {
    case 1:
        store_u32(out, moec_codec_gather_bit(codes, 1));
        break;
    case 2:
        pack_two_bits(codes, out);
        break;
    case 3:
        pack_two_bits(codes, out);
        store_u32(out + 8, moec_codec_gather_bit(codes, 2));
        break;
    case 4:
        pack_four_bits(codes, out);
        break;
    case 5:
        pack_four_bits(codes, out);
        store_u32(out + 16, moec_codec_gather_bit(codes, 4));
        break;
    case 6:
        for (int i = 0; i < BLOCK; i++)
            high[i] = (uint8_t)(codes[i] >> 4);
        pack_four_bits(codes, out);
        pack_two_bits(high, out + 16);
        break;
    default:
        memcpy(out, codes, BLOCK);
        break;
    }
}

void moec_codec_unpack_block(uint32_t bits, const uint8_t *in, uint8_t codes[static BLOCK])
{
    uint8_t high[BLOCK];
    switch (bits) {
    case 1:
        memset(codes, 0, BLOCK);
        scatter_bit(load_u32(in), 1, codes);
        break;
    case 2:
        unpack_two_bits(in, codes);
        break;
    case 3:
        unpack_two_bits(in, codes);
        scatter_bit(load_u32(in + 8), 2, codes);
        break;
    case 4:
        unpack_four_bits(in, codes);
        break;
    case 5:
        unpack_four_bits(in, codes);
        scatter_bit(load_u32(in + 16), 4, codes);
        break;
    case 6:
        unpack_four_bits(in, codes);
        unpack_two_bits(in + 16, high);
        for (int i = 0; i < BLOCK; i++)
            codes[i] = (uint8_t)(codes[i] | high[i] << 4);
        break;
    default:
        memcpy(codes, in, BLOCK);
        break;
    }
}

/* ---- scales and zeros ---- */

/* The scale of group g, from the scales of a row: codes are multiplied with it. */
static float scale_at(struct moec_codec codec, const uint8_t *stored, size_t g)
{
    if (!moec_scheme_is_nested((enum moec_scheme)codec.scheme))
        return moec_f16_to_f32(load_u16(stored + 2 * g));
    return (float)stored[2 + g] * (moec_f16_to_f32(load_u16(stored)) * 0x1p-8f);
}

/* The zero of group g, from the zeros of a row: what its codes are taken less; 0 where codes stand for
 * levels, of which none may be 0. */
static uint8_t zero_at(struct moec_codec codec, const uint8_t *zeros, size_t g)
{
    const uint32_t bits = code_bits(codec.dtype);
    if (codec.scheme == MOEC_SCHEME_ASYMMETRIC)
        return zeros[g];
    if (moec_codec_form(codec)->has_levels)
        return 0;
    if (codec.scheme != MOEC_SCHEME_ASYMMETRIC_NESTED)
        return (uint8_t)(1u << (bits - 1));
    const uint32_t shift = (uint32_t)(g % 8) * bits % 8;
    const uint8_t *at = zeros + g / 8 * bits + g % 8 * bits / 8;
    const uint32_t pair = shift + bits > 8 ? (uint32_t)at[0] | (uint32_t)at[1] << 8 : at[0];
    return (uint8_t)((pair >> shift) & ((1u << bits) - 1));
}

void moec_codec_store_zeros(struct moec_codec codec, const uint8_t *zeros, size_t n, uint8_t *row)
{
    const uint32_t bits = code_bits(codec.dtype);
    const size_t groups = moec_codec_row_groups(codec, n), n_bytes = moec_codec_zeros_bytes(codec, n);
    uint8_t *at = row + codes_bytes(codec, n) + moec_codec_scales_bytes(codec, n);
    if (codec.scheme == MOEC_SCHEME_ASYMMETRIC)
        memcpy(at, zeros, groups);
    if (codec.scheme != MOEC_SCHEME_ASYMMETRIC_NESTED)
        return;
    memset(at, 0, n_bytes);
    for (size_t g = 0, bit = 0; g < groups; g++)
        for (uint32_t i = 0; i < bits; i++, bit++)
            at[bit / 8] = (uint8_t)(at[bit / 8] | ((zeros[g] >> i) & 1) << bit % 8);
}

/* The least F16 whose 255 parts of 256 are no less than `top`; infinity where there is none. */
static uint16_t row_scale_over(float top)
{
    uint16_t scale = moec_f32_to_f16(top * (256.0f / 255.0f));
    while (scale > 0 && moec_f16_to_f32((uint16_t)(scale - 1)) * (255 * 0x1p-8f) >= top)
        scale--;
    while (scale < F16_INF && moec_f16_to_f32(scale) * (255 * 0x1p-8f) < top)
        scale++;
    return scale;
}

enum moec_status moec_codec_round_scales(struct moec_codec codec, size_t n, float *scales, uint8_t *stored,
                                         struct moec_error *err)
{
    const size_t groups = moec_codec_row_groups(codec, n);
    const bool is_nested = moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    float top = 0;
    for (size_t g = 0; g < groups; g++) {
        const uint16_t half = moec_f32_to_f16(scales[g]);
        if (half >= F16_INF) /* and where it is negative or NaN */
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the scale %g of a group overflows F16, expected 0 to 65504", scales[g]);
        top = scales[g] > top ? scales[g] : top;
        if (!is_nested)
            store_u16(stored + 2 * g, half);
    }
    if (is_nested && groups > 0) {
        const uint16_t half = row_scale_over(top);
        if (half >= F16_INF)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the scale %g of a group needs a row scale that overflows F16, whose largest "
                             "number is 65504",
                             top);
        store_u16(stored, half);
        const float step = moec_f16_to_f32(half) * 0x1p-8f;
        for (size_t g = 0; g < groups; g++) {
            const float code = scales[g] > 0 ? (scales[g] / step + 0x1.8p23f) - 0x1.8p23f : 0;
            stored[2 + g] = (uint8_t)(scales[g] > 0 && code < 1 ? 1 : code);
        }
    }
    for (size_t g = 0; g < groups; g++)
        scales[g] = scale_at(codec, stored, g);
    return MOEC_OK;
}

void moec_codec_row_scales(struct moec_codec codec, const uint8_t *row, size_t n, float *scales,
                           uint8_t *zeros)
{
    const size_t groups = moec_codec_row_groups(codec, n);
    const uint8_t *stored = row + codes_bytes(codec, n);
    for (size_t g = 0; g < groups; g++) {
        scales[g] = scale_at(codec, stored, g);
        zeros[g] = zero_at(codec, stored + moec_codec_scales_bytes(codec, n), g);
    }
}

/* ---- packing ---- */

static void pack_codes(struct moec_codec codec, const uint8_t *codes, size_t n, uint8_t *row)
{
    const uint32_t bits = code_bits(codec.dtype);
    const size_t groups = moec_codec_row_groups(codec, n);
    const uint8_t *zeros = row + codes_bytes(codec, n) + moec_codec_scales_bytes(codec, n);
    void (*const pack)(uint32_t, const uint8_t *, uint8_t *) = moec_codec_form(codec)->pack;
    for (size_t i = 0; i < n; i += BLOCK, row += (size_t)4 * bits) {
        const uint8_t *block = codes + i;
        uint8_t last[BLOCK];
        if (n - i < BLOCK) {
            memset(last, bits == 1 ? 2 : zero_at(codec, zeros, groups - 1), sizeof last);
            memcpy(last, block, n - i);
            block = last;
        }
        pack(bits, block, row);
    }
}

void moec_codec_pack_row(struct moec_codec codec, const uint8_t *codes, const uint8_t *stored,
                         const uint8_t *zeros, size_t n, uint8_t *row)
{
    memcpy(row + codes_bytes(codec, n), stored, moec_codec_scales_bytes(codec, n));
    moec_codec_store_zeros(codec, zeros, n, row);
    pack_codes(codec, codes, n, row);
}

void moec_codec_replace_codes(struct moec_codec codec, const uint8_t *codes, size_t n, uint8_t *row)
{
    pack_codes(codec, codes, n, row);
}

/* ---- decoding ---- */

void moec_integers_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
                               size_t count, float *weights)
{
    const uint32_t bits = code_bits(codec.dtype);
    const uint8_t *stored = row + codes_bytes(codec, n);
    const uint8_t *zeros = stored + moec_codec_scales_bytes(codec, n);
    const size_t run = codec.group == 16 ? 16 : BLOCK; /* codes of a block that share a scale */
    row += first / BLOCK * 4 * bits;
    for (size_t i = 0; i < count; i += BLOCK, row += (size_t)4 * bits) {
        const size_t left = count - i < BLOCK ? count - i : BLOCK;
        uint8_t codes[BLOCK];
        moec_codec_unpack_block(bits, row, codes);
        for (size_t j = 0; j < left; j += run) {
            const size_t group = codec.group == 0 ? 0 : (first + i + j) / codec.group;
            const float scale = scale_at(codec, stored, group);
            const int zero = zero_at(codec, zeros, group);
            for (size_t k = j; k < left && k < j + run; k++)
                weights[i + k] = (float)((int)codes[k] - zero) * scale;
        }
    }
}

void moec_codec_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first, size_t count,
                            float *weights)
{
    moec_codec_form(codec)->decode(codec, row, n, first, count, weights);
}

void moec_codec_decode_row(struct moec_codec codec, const uint8_t *row, size_t n, float *weights)
{
    moec_codec_decode_span(codec, row, n, 0, n, weights);
}

/* What is at least infinity carries into its sign's place, which was cleared, and stays found. Whole blocks
 * have a constant trip count, so that vectors look at them. */
static void look_for_infinity(const uint8_t *halves, size_t n, uint32_t infinity,
                              uint16_t found[static BLOCK])
{
    const uint16_t carry = (uint16_t)(0x8000u - infinity);
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        uint16_t some[BLOCK];
        memcpy(some, halves + 2 * i, sizeof some);
        for (int j = 0; j < BLOCK; j++)
            found[j] = (uint16_t)(found[j] | ((some[j] & 0x7fffu) + carry));
    }
    for (; i < n; i++)
        found[0] = (uint16_t)(found[0] | ((load_u16(halves + 2 * i) & 0x7fffu) + carry));
}

static bool is_found(const uint16_t found[static BLOCK])
{
    uint16_t any = 0;
    for (int j = 0; j < BLOCK; j++)
        any |= found[j];
    return (any & 0x8000u) != 0;
}

bool moec_codec_has_infinity(const uint8_t *halves, size_t n, uint32_t infinity)
{
    uint16_t found[BLOCK] = {0};
    look_for_infinity(halves, n, infinity, found);
    return is_found(found);
}

/* Outliers follow scales. */
bool moec_integers_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n)
{
    const size_t n_outlier = moec_codec_row_outliers(codec, n);
    size_t halves = moec_codec_row_groups(codec, n) + n_outlier;
    row += codes_bytes(codec, n);
    if (moec_scheme_is_nested((enum moec_scheme)codec.scheme))
        halves = halves > 0 ? 1 : 0;
    for (size_t span = 0; span < n_outlier; span++)
        if (row[2 * halves + span] >= (n - span * SPAN < SPAN ? n - span * SPAN : SPAN))
            return false;
    return !moec_codec_has_infinity(row, halves, F16_INF);
}

bool moec_codec_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n)
{
    return moec_codec_form(codec)->is_finite(codec, row, n);
}

#define LINE_BYTES  64
#define ASKED_AHEAD 12 /* rows: their scales lie too far apart for the processor to foresee */
#define LOOKED_OVER 64 /* rows before what was found is asked for */

/* Asks for what is looked at of a row of integers: all that lies behind its codes. */
static void ask_scales(const uint8_t *row, size_t from, size_t end)
{
    const size_t skip = (uintptr_t)(row + from) % LINE_BYTES;
    for (size_t at = from - skip; at < end; at += LINE_BYTES)
        __builtin_prefetch(row + at, 0, 3);
}

static size_t find_row_not_finite(struct moec_codec codec, const uint8_t *rows, size_t stride_bytes,
                                  size_t n_row, size_t n)
{
    const bool is_sparse = moec_codec_form(codec)->scale_bytes == 2;
    const size_t from = is_sparse ? codes_bytes(codec, n) : 0, end = moec_codec_row_bytes(codec, n);
    for (size_t row = 0; row < n_row; row++) {
        if (is_sparse && row + ASKED_AHEAD < n_row)
            ask_scales(rows + (row + ASKED_AHEAD) * stride_bytes, from, end);
        if (!moec_codec_row_is_finite(codec, rows + row * stride_bytes, n))
            return row;
    }
    return n_row;
}

/* Of rows of integers without outliers: only some halves behind the codes can be wrong. */
static size_t find_scale_not_finite(struct moec_codec codec, const uint8_t *rows, size_t stride_bytes,
                                    size_t n_row, size_t n)
{
    const bool is_nested = moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    const size_t from = codes_bytes(codec, n), groups = moec_codec_row_groups(codec, n);
    const size_t halves = is_nested && groups > 0 ? 1 : groups;
    for (size_t row = 0, end; row < n_row; row = end) {
        uint16_t found[BLOCK] = {0};
        const size_t first = row;
        for (end = n_row - row < LOOKED_OVER ? n_row : row + LOOKED_OVER; row < end; row++) {
            if (row + ASKED_AHEAD < n_row)
                ask_scales(rows + (row + ASKED_AHEAD) * stride_bytes, from, from + 2 * halves);
            look_for_infinity(rows + row * stride_bytes + from, halves, F16_INF, found);
        }
        if (is_found(found))
            return first +
                   find_row_not_finite(codec, rows + first * stride_bytes, stride_bytes, end - first, n);
    }
    return n_row;
}

size_t moec_codec_find_not_finite(struct moec_codec codec, const uint8_t *rows, size_t stride_bytes,
                                  size_t n_row, size_t n)
{
    if (moec_codec_form(codec)->scale_bytes == 2 && !moec_codec_form(codec)->has_outliers)
        return find_scale_not_finite(codec, rows, stride_bytes, n_row, n);
    return find_row_not_finite(codec, rows, stride_bytes, n_row, n);
}
