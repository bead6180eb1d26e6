#include "tests/unit/temporary.h"

#include "formats/base/half.h"
#include "formats/codec/codec.h"
#include "formats/codec/dictionary.h"

#include <math.h>

#define MAX_N 300

static const uint8_t int_dtypes[] = {MOEC_DTYPE_INT2, MOEC_DTYPE_INT3, MOEC_DTYPE_INT4,
                                     MOEC_DTYPE_INT8, MOEC_DTYPE_INT5, MOEC_DTYPE_INT6};
#define N_DICTIONARY_DTYPES 4 /* the first of them */
static const uint16_t groups[] = {0, 32, 64, 128, 16};
#define N_DICTIONARY_GROUPS 4
static const uint8_t even_schemes[] = {MOEC_SCHEME_SYMMETRIC, MOEC_SCHEME_ASYMMETRIC,
                                       MOEC_SCHEME_SYMMETRIC_NESTED, MOEC_SCHEME_ASYMMETRIC_NESTED};
static const size_t lengths[] = {1,  2,  7,  8,   15,  16,  17,  31,  32,  33, 63,
                                 64, 65, 96, 127, 128, 129, 200, 255, 256, 300};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- an independent, slow computation ---- */

/* All finite non-negative F16 values in order, by their definition. */
static double f16_values[0x7c00];

static int fill_f16_values(void **state)
{
    (void)state;
    for (int bits = 0; bits < 0x7c00; bits++)
        f16_values[bits] = bits < 0x400 ? ldexp(bits, -24) : ldexp(1024 + (bits & 0x3ff), (bits >> 10) - 25);
    return 0;
}

/* Nearest F16 of a non-negative number, ties to the even code; 0x7c00 when it rounds to infinity. */
static uint16_t naive_f16(double value)
{
    int low = 0, high = 0x7c00;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (f16_values[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    double above = low == 0x7bff ? 65536.0 : f16_values[low + 1];
    double to_low = value - f16_values[low], to_high = above - value;
    if (to_low < to_high || (to_low == to_high && low % 2 == 0))
        return (uint16_t)low;
    return (uint16_t)(low + 1);
}

static int naive_bits(struct moec_codec codec)
{
    static const int bits[MOEC_DTYPE_COUNT] = {0, 0, 0, 2, 3, 4, 8, 5, 6, 4, 4, 1};
    return bits[codec.dtype];
}

static bool is_nested(struct moec_codec codec)
{
    return codec.scheme >= 4;
}

static bool has_zeros(struct moec_codec codec)
{
    return codec.scheme == 1 || codec.scheme == 5;
}

static size_t naive_code_bytes(struct moec_codec codec, size_t n)
{
    return (n + 31) / 32 * 4 * (size_t)naive_bits(codec);
}

static size_t naive_groups(struct moec_codec codec, size_t n)
{
    return codec.group == 0 ? 1 : (n + codec.group - 1) / codec.group;
}

static size_t naive_scales_bytes(struct moec_codec codec, size_t n)
{
    return is_nested(codec) ? 2 + naive_groups(codec, n) : 2 * naive_groups(codec, n);
}

static size_t naive_row_bytes(struct moec_codec codec, size_t n)
{
    const size_t n_groups = naive_groups(codec, n);
    const size_t zeros = is_nested(codec) ? (n_groups * (size_t)naive_bits(codec) + 7) / 8 : n_groups;
    return naive_code_bytes(codec, n) + naive_scales_bytes(codec, n) + (has_zeros(codec) ? zeros : 0);
}

/* Zero of group g, by the layout that codec.h describes. */
static int naive_zero(struct moec_codec codec, const uint8_t *row, size_t n, size_t g)
{
    const uint8_t *zeros = row + naive_code_bytes(codec, n) + naive_scales_bytes(codec, n);
    int zero = 0;
    if (!has_zeros(codec))
        return 1 << (naive_bits(codec) - 1);
    if (!is_nested(codec))
        return zeros[g];
    for (size_t i = 0; i < (size_t)naive_bits(codec); i++) {
        const size_t bit = g * (size_t)naive_bits(codec) + i;
        zero |= ((zeros[bit / 8] >> (bit % 8)) & 1) << i;
    }
    return zero;
}

/* Code i of a row, by the layout that codec.h describes. */
static int naive_code(struct moec_codec codec, const uint8_t *row, size_t i)
{
    const uint8_t *block = row + i / 32 * 4 * (size_t)naive_bits(codec);
    size_t j = i % 32;
    switch (codec.dtype) {
    case MOEC_DTYPE_INT2:
        return (block[j % 8] >> (2 * (j / 8))) & 3;
    case MOEC_DTYPE_INT3: {
        int low = (block[j % 8] >> (2 * (j / 8))) & 3;
        return low | ((block[8 + j / 8] >> (j % 8)) & 1) << 2;
    }
    case MOEC_DTYPE_INT4:
        return (block[j % 16] >> (j < 16 ? 0 : 4)) & 15;
    case MOEC_DTYPE_INT5:
        return ((block[j % 16] >> (j < 16 ? 0 : 4)) & 15) | ((block[16 + j / 8] >> (j % 8)) & 1) << 4;
    case MOEC_DTYPE_INT6:
        return ((block[j % 16] >> (j < 16 ? 0 : 4)) & 15) | ((block[16 + j % 8] >> (2 * (j / 8))) & 3) << 4;
    default:
        return block[j];
    }
}

static double clamp(double value, double low, double high)
{
    return value < low ? low : value > high ? high : value;
}

/* What codes of weights [from, to) should be divided by, before it is rounded, and their least. */
static float naive_width(struct moec_codec codec, const float *w, size_t from, size_t to, float *min)
{
    const int bits = naive_bits(codec);
    float top = 0, max = 0;
    *min = 0;
    for (size_t i = from; i < to; i++) {
        top = fmaxf(top, fabsf(w[i]));
        *min = fminf(*min, w[i]);
        max = fmaxf(max, w[i]);
    }
    if (!has_zeros(codec))
        return top / (float)((1 << (bits - 1)) - 1);
    return (max - *min) / (float)((1 << bits) - 1);
}

/* Scales of all groups as they should be stored; the largest decides about the scale of the row. */
static void naive_scales(struct moec_codec codec, const float *wanted, size_t n_groups, uint8_t *stored,
                         double *scales)
{
    float top = 0;
    uint16_t half = 0;
    for (size_t g = 0; g < n_groups; g++)
        top = fmaxf(top, wanted[g]);
    while (is_nested(codec) && f16_values[half] * 255 / 256 < (double)top)
        half++;
    stored[0] = (uint8_t)half;
    stored[1] = (uint8_t)(half >> 8);
    for (size_t g = 0; g < n_groups; g++) {
        if (is_nested(codec)) {
            const float step = (float)(f16_values[half] / 256);
            stored[2 + g] = wanted[g] > 0 ? (uint8_t)clamp(rint((double)(wanted[g] / step)), 1, 255) : 0;
            scales[g] = stored[2 + g] * (double)step;
            continue;
        }
        half = naive_f16((double)wanted[g]);
        stored[2 * g] = (uint8_t)half;
        stored[2 * g + 1] = (uint8_t)(half >> 8);
        scales[g] = f16_values[half];
    }
}

static void assert_row_is(struct moec_codec codec, const float *w, size_t n, const uint8_t *row)
{
    int bits = naive_bits(codec);
    size_t n_groups = naive_groups(codec, n), group = codec.group == 0 ? n : codec.group;
    float decoded[MAX_N], wanted[MAX_N / 16 + 1], mins[MAX_N / 16 + 1], got_scales[MAX_N / 16 + 1];
    double scales[MAX_N / 16 + 1];
    uint8_t stored[2 * MAX_N / 16 + 2], got_zeros[MAX_N / 16 + 1];
    moec_codec_decode_row(codec, row, n, decoded);
    moec_codec_row_scales(codec, row, n, got_scales, got_zeros);
    assert_true(moec_codec_row_is_finite(codec, row, n));
    for (size_t g = 0; g < n_groups; g++)
        wanted[g] = naive_width(codec, w, g * group, g * group + group < n ? g * group + group : n, &mins[g]);
    naive_scales(codec, wanted, n_groups, stored, scales);
    assert_memory_equal(row + naive_code_bytes(codec, n), stored, naive_scales_bytes(codec, n));
    for (size_t g = 0; g < n_groups; g++) {
        size_t from = g * group, to = from + group < n ? from + group : n;
        const float s = (float)scales[g];
        int zero = 1 << (bits - 1);
        if (has_zeros(codec))
            zero = s == 0 ? 0 : (int)clamp(rint((double)(-mins[g] / s)), 0, (1 << bits) - 1);
        assert_int_equal(naive_zero(codec, row, n, g), zero);
        assert_int_equal(got_zeros[g], zero);
        assert_true(got_scales[g] == s);
        for (size_t i = from; i < to; i++) {
            int expected = zero;
            if (s != 0)
                expected = (int)clamp(rint((double)(w[i] / s)) + zero, 0, (1 << bits) - 1);
            assert_int_equal(naive_code(codec, row, i), expected);
            assert_true(decoded[i] == (float)((double)(expected - zero) * (double)s));
        }
        if (g == n_groups - 1)
            for (size_t i = to; i < (n + 31) / 32 * 32; i++)
                assert_int_equal(naive_code(codec, row, i), zero);
    }
}

/* Encodes into a buffer with a canary behind the row. */
static enum moec_status encode(struct moec_codec codec, const float *w, size_t n, uint8_t *row,
                               struct moec_error *err)
{
    size_t n_bytes = moec_codec_row_bytes(codec, n);
    row[n_bytes] = 0xa5;
    enum moec_status status = moec_codec_encode_row(codec, w, n, row, err);
    assert_int_equal(row[n_bytes], 0xa5);
    return status;
}

/* ---- halves ---- */

static void test_codec__every_f16_converts(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = moec_f16_to_f32((uint16_t)bits);
        uint32_t magnitude = bits & 0x7fff;
        if (magnitude > 0x7c00) {
            assert_true(isnan(value));
            assert_true((moec_f32_to_f16(value) & 0x7fff) > 0x7c00);
            continue;
        }
        if (magnitude < 0x7c00)
            assert_true((double)fabsf(value) == f16_values[magnitude]);
        assert_int_equal(signbit(value) != 0, bits >> 15);
        assert_int_equal(moec_f32_to_f16(value), bits);
    }
    assert_true(isinf(moec_f16_to_f32(0x7c00)));
}

static void test_codec__f32_rounds_to_f16(void **state)
{
    (void)state;
    uint64_t seed = 9;
    for (int i = 0; i < 200000; i++) {
        float value = fabsf(moec_f32_from_bits(random_u32(&seed)));
        if (!isfinite(value))
            continue;
        if (i % 2 == 0) /* random bits are seldom in F16's range */
            value = ldexpf(frexpf(value, &(int){0}), (int)(random_u32(&seed) % 44) - 27);
        assert_int_equal(moec_f32_to_f16(value), naive_f16((double)value));
        assert_int_equal(moec_f32_to_f16(-value), naive_f16((double)value) | 0x8000);
    }
    for (int bits = 0; bits < 0x7bff; bits++) { /* every tie */
        float middle = (float)((f16_values[bits] + f16_values[bits + 1]) / 2);
        assert_int_equal(moec_f32_to_f16(middle), bits % 2 == 0 ? bits : bits + 1);
    }
    assert_int_equal(moec_f32_to_f16(65519.99f), 0x7bff);
    assert_int_equal(moec_f32_to_f16(65520.0f), 0x7c00);
}

static void test_codec__bf16_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = moec_bf16_to_f32((uint16_t)bits);
        assert_int_equal(moec_f32_bits(value), bits << 16);
        if (!isnan(value))
            assert_int_equal(moec_f32_to_bf16(value), bits);
        else
            assert_true((moec_f32_to_bf16(value) & 0x7fff) > 0x7f80);
    }
    assert_int_equal(moec_f32_to_bf16(moec_f32_from_bits(0x3f808000)), 0x3f80);
    assert_int_equal(moec_f32_to_bf16(moec_f32_from_bits(0x3f808001)), 0x3f81);
    assert_int_equal(moec_f32_to_bf16(moec_f32_from_bits(0x3f818000)), 0x3f82);
    assert_int_equal(moec_f32_to_bf16(moec_f32_from_bits(0x7f7fffff)), 0x7f80);
    assert_true((moec_f32_to_bf16(moec_f32_from_bits(0x7f800001)) & 0x7fff) > 0x7f80);
}

/* ---- descriptions ---- */

static void test_codec__description(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_codec codec;
    char text[40];
    assert_status(moec_codec_for_bits(4, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_BF16, &codec, &err), MOEC_OK,
                  err);
    assert_string_equal(moec_codec_name(codec, text), "int4 symmetric channel");
    assert_int_equal(moec_codec_bits(codec), 4);
    assert_int_equal(moec_codec_row_bytes(codec, 33), 2 * 16 + 2);
    assert_status(moec_codec_for_bits(2, MOEC_SCHEME_ASYMMETRIC, 64, MOEC_DTYPE_BF16, &codec, &err), MOEC_OK,
                  err);
    assert_string_equal(moec_codec_name(codec, text), "int2 asymmetric g64");
    assert_int_equal(moec_codec_row_bytes(codec, 65), 3 * 8 + 2 * 3);
    assert_int_equal(moec_codec_row_groups(codec, 65), 2);
    assert_status(moec_codec_for_bits(3, MOEC_SCHEME_SYMMETRIC, 128, MOEC_DTYPE_F32, &codec, &err), MOEC_OK,
                  err);
    assert_int_equal(moec_codec_row_bytes(codec, 256), 8 * 12 + 2 * 2);
    assert_status(moec_codec_for_bits(16, MOEC_SCHEME_ASYMMETRIC, 64, MOEC_DTYPE_F32, &codec, &err), MOEC_OK,
                  err);
    assert_string_equal(moec_codec_name(codec, text), "bf16");
    assert_status(moec_codec_check(codec, "x", &err), MOEC_OK, err);
    assert_status(moec_codec_for_bits(16, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_F16, &codec, &err), MOEC_OK,
                  err);
    assert_int_equal(codec.dtype, MOEC_DTYPE_F16);
    assert_int_equal(moec_codec_row_bytes(codec, 5), 10);
    assert_true(moec_codec_equal(codec, (struct moec_codec){.dtype = MOEC_DTYPE_F16}));
    assert_false(moec_codec_equal(codec, (struct moec_codec){.dtype = MOEC_DTYPE_BF16}));
    assert_int_equal(moec_codec_bits((struct moec_codec){.dtype = MOEC_DTYPE_F32}), 32);
    assert_status(moec_codec_for_bits(7, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_F16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "bitwidth 7");
    err = (struct moec_error){0};
    assert_status(moec_codec_for_bits(4, MOEC_SCHEME_SYMMETRIC, 48, MOEC_DTYPE_F16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "48");
}

static void test_codec__description_of_nested_scales(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_codec codec, codecs[MOEC_CODEC_TABLE];
    char text[40];
    assert_status(moec_codec_for_bits(2, MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_DTYPE_BF16, &codec, &err),
                  MOEC_OK, err);
    assert_string_equal(moec_codec_name(codec, text), "int2 asymmetric nested g64");
    assert_int_equal(moec_codec_scales_bytes(codec, 65), 2 + 2);
    assert_int_equal(moec_codec_row_bytes(codec, 65), 3 * 8 + 2 + 2 + 1);
    assert_status(moec_codec_for_bits(5, MOEC_SCHEME_SYMMETRIC_NESTED, 16, MOEC_DTYPE_BF16, &codec, &err),
                  MOEC_OK, err);
    assert_string_equal(moec_codec_name(codec, text), "int5 symmetric nested g16");
    assert_int_equal(codec.dtype, MOEC_DTYPE_INT5);
    assert_int_equal(moec_codec_row_bytes(codec, 49), 2 * 20 + 2 + 4);
    assert_status(moec_codec_for_bits(6, MOEC_SCHEME_ASYMMETRIC_NESTED, 32, MOEC_DTYPE_BF16, &codec, &err),
                  MOEC_OK, err);
    assert_int_equal(moec_codec_row_bytes(codec, 96), 3 * 24 + 2 + 3 + 3);
    assert_int_equal(moec_codec_row_bytes(codec, 0), 0);
    for (uint32_t bits = 2; bits <= 16; bits++) {
        const bool has = bits <= 6 || bits == 8 || bits == 16;
        assert_status(moec_codec_table(MOEC_QUANTIZER_GPTQ, MOEC_SCHEME_SYMMETRIC_NESTED, 32, MOEC_DTYPE_F16,
                                       codecs, &err),
                      MOEC_OK, err);
        assert_int_equal(moec_codec_bits(codecs[bits]), has ? bits : 32);
        assert_int_equal(codecs[bits].quantizer, has && bits < 16 ? MOEC_QUANTIZER_GPTQ : 0);
        assert_status(
            moec_codec_table(MOEC_QUANTIZER_LOG, MOEC_SCHEME_LOGARITHMIC, 32, MOEC_DTYPE_F16, codecs, &err),
            MOEC_OK, err);
        assert_int_equal(moec_codec_bits(codecs[bits]), has && bits != 5 && bits != 6 ? bits : 32);
    }
    assert_false(moec_quantizer_makes(MOEC_QUANTIZER_GPTQ, MOEC_SCHEME_GAUSSIAN));
    assert_true(moec_quantizer_makes(MOEC_QUANTIZER_HQQ, MOEC_SCHEME_ASYMMETRIC_NESTED));
    assert_status(moec_codec_for_bits(4, MOEC_SCHEME_SYMMETRIC_NESTED, 0, MOEC_DTYPE_F16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "nested scales without groups");
    err = (struct moec_error){0};
    assert_status(moec_codec_for_bits(5, MOEC_SCHEME_GAUSSIAN, 32, MOEC_DTYPE_F16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "at 5 or 6 bits");
}

static void test_codec__check_refuses(void **state)
{
    (void)state;
    const struct moec_codec bad[] = {
        {.dtype = MOEC_DTYPE_COUNT},
        {.dtype = 255},
        {.dtype = MOEC_DTYPE_BF16, .group = 32},
        {.dtype = MOEC_DTYPE_F32, .scheme = 1},
        {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_COUNT},
        {.dtype = MOEC_DTYPE_INT4, .group = 8},
        {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SYMMETRIC_NESTED},
        {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_GAUSSIAN, .group = 16},
        {.dtype = MOEC_DTYPE_INT5, .scheme = MOEC_SCHEME_LOGARITHMIC, .group = 32},
        {.dtype = MOEC_DTYPE_INT6, .scheme = MOEC_SCHEME_GAUSSIAN},
        {.dtype = MOEC_DTYPE_INT8, .group = 256},
        {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_TRELLIS},
        {.dtype = MOEC_DTYPE_INT1, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 64},
        {.dtype = MOEC_DTYPE_INT1, .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED, .group = 64},
        {.dtype = MOEC_DTYPE_INT1, .scheme = MOEC_SCHEME_GAUSSIAN},
        {.dtype = MOEC_DTYPE_INT1, .scheme = MOEC_SCHEME_TRELLIS},
        {.dtype = MOEC_DTYPE_INT1, .scheme = MOEC_SCHEME_SYMMETRIC_NESTED},
        {.dtype = MOEC_DTYPE_MXFP4_DOWN},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS, .group = 32},
        {.dtype = MOEC_DTYPE_INT5, .scheme = MOEC_SCHEME_SHIFT},
        {.dtype = MOEC_DTYPE_INT1, .scheme = MOEC_SCHEME_SHIFT},
        {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT, .group = 64},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct moec_error err = {0};
        assert_status(moec_codec_check(bad[i], "tensor 'x'", &err), MOEC_ERR_FORMAT, err);
        assert_message(err, "tensor 'x'");
    }
}

/* ---- rows ---- */

static void fill(float *w, size_t n, int kind, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        w[i] = random_float(seed);
        if (kind == 1) /* all positive */
            w[i] = 2 + w[i];
        else if (kind == 2) /* all negative, large */
            w[i] = 1000 * (w[i] - 2);
        else if (kind == 3) /* scales are subnormal F16 */
            w[i] *= 1e-6f;
        else if (kind == 4) /* scales vanish for many codecs */
            w[i] *= 1e-7f;
        else if (kind == 5) /* ties: quarters */
            w[i] = rintf(8 * w[i]) / 4;
        else if (kind == 6) /* mostly zero */
            w[i] = i % 37 == 0 ? w[i] : 0;
        else if (kind == 7)
            w[i] = 0;
        else if (kind == 8) /* groups of very different size */
            w[i] = ldexpf(w[i], -(int)(i / 16));
    }
}

static void test_codec__rows_agree_with_a_naive_computation(void **state)
{
    (void)state;
    uint64_t seed = 77;
    for (size_t d = 0; d < COUNT(int_dtypes); d++)
        for (size_t s = 0; s < COUNT(even_schemes); s++)
            for (size_t g = 0; g < COUNT(groups); g++)
                for (size_t l = 0; l < COUNT(lengths); l++)
                    for (int kind = 0; kind < 9; kind++) {
                        struct moec_codec codec = {
                            .dtype = int_dtypes[d], .scheme = even_schemes[s], .group = groups[g]};
                        struct moec_error err = {0};
                        if (is_nested(codec) && codec.group == 0)
                            continue;
                        size_t n = lengths[l];
                        float w[MAX_N];
                        uint8_t row[2 * MAX_N];
                        fill(w, n, kind, &seed);
                        assert_int_equal(moec_codec_row_bytes(codec, n), naive_row_bytes(codec, n));
                        assert_status(encode(codec, w, n, row, &err), MOEC_OK, err);
                        assert_row_is(codec, w, n, row);
                    }
}

/* Decoding and encoding again gives the same bytes wherever codes of both ends occur in each group. */
static void test_codec__all_codes_round_trip(void **state)
{
    (void)state;
    for (size_t d = 0; d < COUNT(int_dtypes); d++)
        for (size_t s = 0; s < COUNT(even_schemes); s++)
            for (size_t g = 0; g < COUNT(groups); g++) {
                struct moec_codec codec = {
                    .dtype = int_dtypes[d], .scheme = even_schemes[s], .group = groups[g]};
                const size_t n = 256;
                int bits = naive_bits(codec);
                uint8_t codes[256], zeros[16], row[1024], again[1024], stored[32];
                float scales[16], decoded[16];
                float w[256];
                struct moec_error err = {0};
                for (size_t i = 0; i < n; i++) {
                    codes[i] = (uint8_t)((i * 37 + i / 32) % (1u << bits));
                    if (i % 16 == 0) /* the ends fix the scale: -(2^(b-1) - 1) for symmetric, 0 and 2^b - 1 */
                        codes[i] = has_zeros(codec) ? 0 : 1;
                    if (i % 16 == 1)
                        codes[i] = (uint8_t)((1 << bits) - 1);
                    if (!has_zeros(codec) && codes[i] == 0)
                        codes[i] = 1;
                }
                for (int i = 0; i < 16; i++) {
                    decoded[i] = scales[i] = 0.125f * (float)(i + 1);
                    if (is_nested(codec)) /* R = 2: a half of 2, and at its upper end */
                        decoded[i] = scales[i] = i == 0 ? 255 * 0x1p-7f : (float)(3 * i) * 0x1p-7f;
                    zeros[i] = (uint8_t)((5 * i + 3) % (1 << bits));
                }
                if (is_nested(codec) && codec.group == 0)
                    continue;
                assert_int_equal(moec_codec_round_scales(codec, n, scales, stored, &err), MOEC_OK);
                assert_memory_equal(scales, decoded, moec_codec_row_groups(codec, n) * sizeof *scales);
                moec_codec_pack_row(codec, codes, stored, zeros, n, row);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(naive_code(codec, row, i), codes[i]);
                moec_codec_decode_row(codec, row, n, w);
                assert_status(encode(codec, w, n, again, &err), MOEC_OK, err);
                assert_memory_equal(row, again, moec_codec_row_bytes(codec, n));
                memset(again, 0xff, naive_code_bytes(codec, n));
                moec_codec_replace_codes(codec, codes, n, again);
                assert_memory_equal(row, again, moec_codec_row_bytes(codec, n));
            }
}

/* Every code in every place of a block, and what stands past the end. */
static void test_codec__packing_puts_every_code_in_its_place(void **state)
{
    (void)state;
    for (size_t d = 0; d < COUNT(int_dtypes); d++)
        for (size_t s = 0; s < COUNT(even_schemes); s++)
            for (uint16_t group = 16; group <= 32; group += 16)
                for (size_t l = 0; l < COUNT(lengths); l++) {
                    struct moec_codec codec = {
                        .dtype = int_dtypes[d], .scheme = even_schemes[s], .group = group};
                    struct moec_error err = {0};
                    size_t n = lengths[l], n_groups = naive_groups(codec, n);
                    uint32_t levels = 1u << naive_bits(codec);
                    uint8_t codes[MAX_N], zeros[32], row[1024], stored[64];
                    float w[MAX_N], scales[32];
                    for (size_t i = 0; i < n; i++)
                        codes[i] = (uint8_t)((i * 11 + l) % levels);
                    for (size_t g = 0; g < n_groups; g++) {
                        zeros[g] = (uint8_t)((3 * g + 1) % levels);
                        scales[g] = (float)(g + 1);
                    }
                    scales[0] = is_nested(codec) ? 255 : 1; /* R = 256 */
                    assert_status(moec_codec_round_scales(codec, n, scales, stored, &err), MOEC_OK, err);
                    moec_codec_pack_row(codec, codes, stored, has_zeros(codec) ? zeros : NULL, n, row);
                    moec_codec_decode_row(codec, row, n, w);
                    for (size_t i = 0; i < (n + 31) / 32 * 32; i++) {
                        const size_t g = i < n ? i / group : n_groups - 1;
                        const int zero = has_zeros(codec) ? zeros[g] : (int)levels / 2;
                        const int scale = g == 0 && is_nested(codec) ? 255 : (int)g + 1;
                        assert_int_equal(naive_zero(codec, row, n, g), zero);
                        assert_int_equal(naive_code(codec, row, i), i < n ? codes[i] : zero);
                        if (i < n)
                            assert_true(w[i] == (float)((codes[i] - zero) * scale));
                    }
                }
}

/* A group's scale becomes the nearest that the row can hold, and no group with weights is lost. */
static void test_codec__scales_of_scales_are_the_nearest(void **state)
{
    (void)state;
    const struct moec_codec codec = {
        .dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SYMMETRIC_NESTED, .group = 16};
    struct moec_error err = {0};
    uint64_t seed = 21;
    for (int round = 0; round < 2000; round++) {
        float scales[8], wanted[8], top = 0;
        uint8_t stored[10];
        for (int g = 0; g < 8; g++) {
            scales[g] = fabsf(random_float(&seed)) * ldexpf(1, (int)(random_u32(&seed) % 40) - 30);
            if (random_u32(&seed) % 8 == 0)
                scales[g] = 0;
            wanted[g] = scales[g];
            top = fmaxf(top, wanted[g]);
        }
        assert_status(moec_codec_round_scales(codec, 128, scales, stored, &err), MOEC_OK, err);
        const int half = stored[0] | stored[1] << 8;
        const double row_scale = f16_values[half];
        assert_true(row_scale * 255 / 256 >= (double)top);
        assert_true(half == 0 || f16_values[half - 1] * 255 / 256 < (double)top);
        for (int g = 0; g < 8; g++) {
            const double given = (double)scales[g];
            assert_true(given == stored[2 + g] * row_scale / 256);
            assert_int_equal(stored[2 + g] == 0, wanted[g] == 0);
            if (stored[2 + g] > 1)
                assert_true(fabs(given - (double)wanted[g]) <= row_scale / 512 * 1.000001);
        }
    }
    float none[8] = {0}, high[8] = {65248}, over[8] = {65300};
    uint8_t stored[10];
    assert_status(moec_codec_round_scales(codec, 128, none, stored, &err), MOEC_OK, err);
    assert_true(none[0] == 0 && stored[0] == 0 && stored[1] == 0 && stored[2] == 0);
    assert_status(moec_codec_round_scales(codec, 128, high, stored, &err), MOEC_OK, err);
    assert_true(high[0] == 65504.0f * 255 / 256);
    assert_status(moec_codec_round_scales(codec, 128, over, stored, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "overflows");
}

/* Scales in groups of scales lose next to nothing against scales of their own. */
static void test_codec__nested_rows_lose_little(void **state)
{
    (void)state;
    const uint8_t quantizers[] = {MOEC_QUANTIZER_LINEAR, MOEC_QUANTIZER_HQQ, MOEC_QUANTIZER_GPTQ};
    for (size_t d = 0; d < COUNT(int_dtypes); d++)
        for (size_t q = 0; q < COUNT(quantizers); q++)
            for (uint8_t zeros = 0; zeros < 2; zeros++)
                for (uint16_t group = 16; group <= 64; group *= 2) {
                    double error[2] = {0};
                    for (int nested = 0; nested < 2; nested++) {
                        const struct moec_codec codec = {.dtype = int_dtypes[d],
                                                         .scheme = (uint8_t)(zeros + 4 * nested),
                                                         .group = group,
                                                         .quantizer = quantizers[q]};
                        uint64_t seed = 31;
                        for (int r = 0; r < 20; r++) {
                            static float w[2048], decoded[2048];
                            static uint8_t row[4096];
                            struct moec_error err = {0};
                            for (int i = 0; i < 2048; i++)
                                w[i] = random_float(&seed) + random_float(&seed) + random_float(&seed);
                            assert_status(encode(codec, w, 2048, row, &err), MOEC_OK, err);
                            moec_codec_decode_row(codec, row, 2048, decoded);
                            for (int i = 0; i < 2048; i++)
                                error[nested] += pow((double)(w[i] - decoded[i]), 2);
                        }
                    }
                    assert_true(error[1] < (int_dtypes[d] == MOEC_DTYPE_INT8 ? 1.15 : 1.01) * error[0]);
                }
}

static void test_codec__floats_keep_their_bits(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (uint8_t dtype = MOEC_DTYPE_F32; dtype <= MOEC_DTYPE_BF16; dtype++)
        for (size_t l = 0; l < COUNT(lengths); l++) {
            struct moec_codec codec = {.dtype = dtype};
            struct moec_error err = {0};
            size_t n = lengths[l], item = dtype == MOEC_DTYPE_F32 ? 4 : 2;
            float w[MAX_N], decoded[MAX_N];
            uint8_t row[8 * MAX_N], again[8 * MAX_N];
            for (size_t i = 0; i < n; i++)
                w[i] = i % 5 == 0 ? -0.0f : random_float(&seed) * (i % 3 == 0 ? 1e-6f : 8.0f);
            assert_int_equal(moec_codec_row_bytes(codec, n), item * n);
            assert_status(encode(codec, w, n, row, &err), MOEC_OK, err);
            assert_true(moec_codec_row_is_finite(codec, row, n));
            moec_codec_decode_row(codec, row, n, decoded);
            for (size_t i = 0; i < n; i++) {
                float expected = dtype == MOEC_DTYPE_F32   ? w[i]
                                 : dtype == MOEC_DTYPE_F16 ? moec_f16_to_f32(moec_f32_to_f16(w[i]))
                                                           : moec_bf16_to_f32(moec_f32_to_bf16(w[i]));
                assert_int_equal(moec_f32_bits(decoded[i]), moec_f32_bits(expected));
            }
            assert_status(encode(codec, decoded, n, again, &err), MOEC_OK, err);
            assert_memory_equal(row, again, item * n);
        }
}

static void test_codec__ties_go_to_even(void **state)
{
    (void)state;
    struct moec_codec codec = {.dtype = MOEC_DTYPE_INT4};
    const float w[8] = {7.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, -7.0f}; /* s = 1 */
    const float expected[8] = {7, 0, 2, 2, 0, -2, -2, -7};
    struct moec_error err = {0};
    uint8_t row[64];
    float decoded[8];
    assert_status(encode(codec, w, 8, row, &err), MOEC_OK, err);
    moec_codec_decode_row(codec, row, 8, decoded);
    for (int i = 0; i < 8; i++)
        assert_true(decoded[i] == expected[i]);
}

static void test_codec__positive_rows_use_the_whole_range_from_zero(void **state)
{
    (void)state;
    struct moec_codec codec = {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 0};
    const float w[4] = {1.0f, 2.0f, 3.0f, 2.5f}; /* range 0..3: s = 1, zero = 0 */
    const float minus[4] = {-1.0f, -2.0f, -3.0f, -2.5f};
    struct moec_error err = {0};
    uint8_t row[64];
    float decoded[4];
    assert_status(encode(codec, w, 4, row, &err), MOEC_OK, err);
    assert_int_equal(row[10], 0);
    moec_codec_decode_row(codec, row, 4, decoded);
    assert_true(decoded[0] == 1 && decoded[1] == 2 && decoded[2] == 3 && decoded[3] == 2);
    assert_status(encode(codec, minus, 4, row, &err), MOEC_OK, err);
    assert_int_equal(row[10], 3);
    moec_codec_decode_row(codec, row, 4, decoded);
    assert_true(decoded[0] == -1 && decoded[1] == -2 && decoded[2] == -3 && decoded[3] == -2);
}

static void test_codec__bad_weights_are_named(void **state)
{
    (void)state;
    const struct moec_codec codecs[] = {{.dtype = MOEC_DTYPE_F32},
                                        {.dtype = MOEC_DTYPE_F16},
                                        {.dtype = MOEC_DTYPE_BF16},
                                        {.dtype = MOEC_DTYPE_INT2, .scheme = 0, .group = 0},
                                        {.dtype = MOEC_DTYPE_INT4, .scheme = 1, .group = 32},
                                        {.dtype = MOEC_DTYPE_INT5, .scheme = 5, .group = 16},
                                        {.dtype = MOEC_DTYPE_INT8, .scheme = 0, .group = 128}};
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t c = 0; c < COUNT(codecs); c++)
        for (size_t b = 0; b < COUNT(bad); b++)
            for (size_t at = 0; at < 200; at += 33) {
                float w[200] = {0};
                uint8_t row[1024];
                char place[32];
                struct moec_error err = {0};
                w[at] = bad[b];
                assert_status(encode(codecs[c], w, 200, row, &err), MOEC_ERR_FORMAT, err);
                (void)snprintf(place, sizeof place, "weight %zu of the row is ", at);
                assert_message(err, place);
                assert_message(err, b < 2 ? "NaN" : "infinite");
            }
}

static void test_codec__overflow_is_refused(void **state)
{
    (void)state;
    struct moec_error err = {0};
    uint8_t row[1024];
    float w[40] = {0};
    w[35] = 65520.0f;
    assert_status(encode((struct moec_codec){.dtype = MOEC_DTYPE_F16}, w, 40, row, &err), MOEC_ERR_FORMAT,
                  err);
    assert_message(err, "weight 35");
    w[35] = 65519.0f;
    err = (struct moec_error){0};
    assert_status(encode((struct moec_codec){.dtype = MOEC_DTYPE_F16}, w, 40, row, &err), MOEC_OK, err);
    w[35] = 3.4e38f;
    assert_status(encode((struct moec_codec){.dtype = MOEC_DTYPE_BF16}, w, 40, row, &err), MOEC_ERR_FORMAT,
                  err);
    assert_message(err, "BF16");
    for (size_t d = 0; d < COUNT(int_dtypes); d++)
        for (uint8_t scheme = 0; scheme < MOEC_SCHEME_COUNT; scheme++) {
            const struct moec_codec codec = {.dtype = int_dtypes[d], .scheme = scheme, .group = 64};
            err = (struct moec_error){0};
            w[3] = scheme ? -3.4e38f : 0; /* the difference overflows F32 as well */
            if (moec_scheme_is_dictionary((enum moec_scheme)scheme) && d >= N_DICTIONARY_DTYPES)
                continue;
            if (scheme == MOEC_SCHEME_TRELLIS || scheme == MOEC_SCHEME_SHIFT) /* have tests of their own */
                continue;
            assert_status(encode(codec, w, 40, row, &err), MOEC_ERR_FORMAT, err);
            assert_message(err, "overflows F16");
        }
}

/* ---- dictionaries ---- */

static const enum moec_scheme dictionaries[] = {MOEC_SCHEME_GAUSSIAN, MOEC_SCHEME_LOGARITHMIC};

/* Levels by their definitions: centres of mass of a normal density between the middles of neighbours, which
 * only the right ones are, and powers of two. */
static void test_codec__levels_are_what_they_say(void **state)
{
    (void)state;
    static const uint32_t widths[] = {2, 3, 4, 8};
    for (size_t b = 0; b < COUNT(widths); b++) {
        const uint32_t half = 1u << (widths[b] - 1);
        const float *gaussian = moec_dictionary_levels(MOEC_SCHEME_GAUSSIAN, widths[b]);
        const float *log = moec_dictionary_levels(MOEC_SCHEME_LOGARITHMIC, widths[b]);
        double below = 0;
        for (uint32_t i = 0; i < half; i++) {
            const double above = i + 1 < half ? ((double)gaussian[i] + (double)gaussian[i + 1]) / 2 : 40;
            const double mass = (erfc(below / sqrt(2)) - erfc(above / sqrt(2))) / 2;
            const double centre = (exp(-below * below / 2) - exp(-above * above / 2)) / sqrt(2 * M_PI) / mass;
            assert_true(fabs((double)gaussian[i] - centre) <= 4.0 / 4096);
            assert_true(log[i] == (float)exp2(-(double)i / (widths[b] == 8 ? 16 : 1)));
            assert_true(gaussian[half + i] == -gaussian[i] && log[half + i] == -log[i]);
            below = above;
        }
    }
}

/* Codes as a search through all levels finds them; at most half a step from the weight. */
static void test_codec__dictionary_rows_take_the_nearest_level(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (size_t s = 0; s < COUNT(dictionaries); s++)
        for (size_t d = 0; d < N_DICTIONARY_DTYPES; d++)
            for (size_t g = 0; g < N_DICTIONARY_GROUPS; g++)
                for (size_t l = 0; l < COUNT(lengths); l++)
                    for (int kind = 0; kind < 8; kind++) {
                        const struct moec_codec codec = {
                            .dtype = int_dtypes[d], .scheme = (uint8_t)dictionaries[s], .group = groups[g]};
                        const size_t n = lengths[l], n_outlier = moec_codec_row_outliers(codec, n);
                        const float *levels = moec_dictionary_levels(dictionaries[s], moec_codec_bits(codec));
                        float w[MAX_N], decoded[MAX_N], part[32];
                        uint8_t row[2048];
                        struct moec_error err = {0};
                        fill(w, n, kind, &seed);
                        assert_status(encode(codec, w, n, row, &err), MOEC_OK, err);
                        const size_t n_bytes = moec_codec_row_bytes(codec, n);
                        assert_int_equal(n_bytes, naive_code_bytes(codec, n) + 2 * naive_groups(codec, n) +
                                                      (s == 0 ? 3 * ((n + 127) / 128) : 0));
                        assert_true(moec_codec_row_is_finite(codec, row, n));
                        moec_codec_decode_row(codec, row, n, decoded);
                        for (size_t at = 0; at < n; at += 32) {
                            const size_t count = n - at < 32 ? n - at : 32;
                            moec_codec_decode_span(codec, row, n, at, count, part);
                            assert_memory_equal(part, decoded + at, count * sizeof *part);
                        }
                        for (size_t i = 0; i < n; i++) {
                            const uint8_t *scales = row + naive_code_bytes(codec, n);
                            const size_t group = groups[g] == 0 ? 0 : i / groups[g];
                            const float scale =
                                moec_f16_to_f32((uint16_t)(scales[2 * group] | scales[2 * group + 1] << 8));
                            const uint8_t *places = row + n_bytes - n_outlier;
                            const float kept = moec_f16_to_f32(moec_f32_to_f16(w[i]));
                            if (n_outlier > 0 && places[i / 128] == i % 128) {
                                assert_true(decoded[i] == kept);
                                for (size_t j = i / 128 * 128; j < n && j < (i / 128 + 1) * 128; j++)
                                    assert_true(fabsf(w[j]) <= fabsf(w[i]));
                                continue;
                            }
                            bool found = false;
                            for (uint32_t c = 0; c < 1u << moec_codec_bits(codec); c++)
                                found = found || decoded[i] == levels[c] * scale;
                            assert_true(found);
                        }
                    }
}

/* The gaussian quantizer is what a Gaussian with outliers asks for. */
static void test_codec__gaussian_rows_lose_less_than_even_steps(void **state)
{
    (void)state;
    uint64_t seed = 12;
    for (size_t d = 0; d < N_DICTIONARY_DTYPES; d++) {
        double error[4] = {0};
        for (uint8_t scheme = 0; scheme <= MOEC_SCHEME_LOGARITHMIC; scheme++)
            for (int r = 0; r < 20; r++) {
                const struct moec_codec codec = {.dtype = int_dtypes[d], .scheme = scheme};
                float w[256], decoded[256];
                uint8_t row[1024];
                struct moec_error err = {0};
                seed = (uint64_t)r;
                for (size_t i = 0; i < 256; i++) {
                    w[i] = 0;
                    for (int k = 0; k < 12; k++)
                        w[i] += random_float(&seed);
                }
                w[77] *= 8;
                assert_status(encode(codec, w, 256, row, &err), MOEC_OK, err);
                moec_codec_decode_row(codec, row, 256, decoded);
                for (size_t i = 0; i < 256; i++)
                    error[scheme] += (double)((w[i] - decoded[i]) * (w[i] - decoded[i]));
            }
        assert_true(error[MOEC_SCHEME_GAUSSIAN] < 0.7 * error[MOEC_SCHEME_SYMMETRIC]);
        assert_true(error[MOEC_SCHEME_GAUSSIAN] < error[MOEC_SCHEME_LOGARITHMIC]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec__every_f16_converts),
        cmocka_unit_test(test_codec__f32_rounds_to_f16),
        cmocka_unit_test(test_codec__bf16_rounds_to_even),
        cmocka_unit_test(test_codec__description),
        cmocka_unit_test(test_codec__description_of_nested_scales),
        cmocka_unit_test(test_codec__check_refuses),
        cmocka_unit_test(test_codec__scales_of_scales_are_the_nearest),
        cmocka_unit_test(test_codec__nested_rows_lose_little),
        cmocka_unit_test(test_codec__rows_agree_with_a_naive_computation),
        cmocka_unit_test(test_codec__all_codes_round_trip),
        cmocka_unit_test(test_codec__packing_puts_every_code_in_its_place),
        cmocka_unit_test(test_codec__floats_keep_their_bits),
        cmocka_unit_test(test_codec__ties_go_to_even),
        cmocka_unit_test(test_codec__positive_rows_use_the_whole_range_from_zero),
        cmocka_unit_test(test_codec__bad_weights_are_named),
        cmocka_unit_test(test_codec__overflow_is_refused),
        cmocka_unit_test(test_codec__levels_are_what_they_say),
        cmocka_unit_test(test_codec__dictionary_rows_take_the_nearest_level),
        cmocka_unit_test(test_codec__gaussian_rows_lose_less_than_even_steps),
    };
    return cmocka_run_group_tests(tests, fill_f16_values, NULL);
}
