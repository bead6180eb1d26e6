/* Inputs and outputs of kernel tests: random numbers and matrices of encoded rows, strange ones among them,
 * with nothing behind their last byte; outputs between canaries; bit equality. One thread at a time. */
#ifndef MOEC_TESTS_KERNEL_INPUTS_H
#define MOEC_TESTS_KERNEL_INPUTS_H

#include "formats/base/half.h"
#include "formats/model/dense.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CANARY 0x7fa5a5a5u
#define GUARD  16 /* floats before and after an output */

static uint64_t random_state = 88172645463325252ull;

static inline uint32_t random_u32(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static inline uint32_t random_below(uint32_t n)
{
    return (uint32_t)((uint64_t)random_u32() * n >> 32);
}

enum kind { KIND_ORDINARY, KIND_DENORMAL, KIND_EXTREME, KIND_COUNT };

static inline float random_float(enum kind kind)
{
    static const float extremes[] = {0.0f,   -0.0f,   FLT_MAX,  -FLT_MAX,  FLT_MIN,   -FLT_MIN,
                                     1e-45f, -1e-45f, 1e30f,    -1e30f,    1e-30f,    -1e-30f,
                                     1.0f,   -1.0f,   INFINITY, -INFINITY, 88.72f,    -87.34f,
                                     89.0f,  -104.0f, 0x1p23f,  -0x1p24f,  0x1.fp-7f, NAN};
    const uint32_t n_extremes = sizeof extremes / sizeof *extremes;
    float ordinary = (float)(int32_t)random_u32() * 0x1p-30f;
    switch (kind) {
    case KIND_ORDINARY:
        return ordinary;
    case KIND_DENORMAL:
        return ordinary * (random_below(2) ? 0x1p-75f : 0x1p-126f);
    default: /* mostly finite, or every sum would be NaN */
        return random_below(8) ? ordinary * 0x1p60f : extremes[random_below(n_extremes)];
    }
}

/* n floats at the end of an allocation, so that a sanitizer sees what is read past them. */
static inline float *random_floats(size_t n, enum kind kind)
{
    float *values = malloc(n > 0 ? n * sizeof *values : 1);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++)
        values[i] = random_float(kind);
    return values;
}

/* Rows of `k` values padded with zeros to a multiple of 16. */
static inline float *random_rows(size_t n_rows, size_t k, size_t stride, enum kind kind)
{
    float *rows = calloc(n_rows * stride + 1, sizeof *rows);
    assert_non_null(rows);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t i = 0; i < k; i++)
            rows[r * stride + i] = random_float(kind);
    return rows;
}

/* An output of n floats between canaries. */
static inline float *guarded(size_t n)
{
    float *all = malloc((n + 2 * GUARD) * sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        all[i] = moec_f32_from_bits(CANARY);
    return all + GUARD;
}

static inline void release_guarded(float *values, size_t n)
{
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(moec_f32_bits(values[-1 - (ptrdiff_t)i]), CANARY);
        assert_int_equal(moec_f32_bits(values[n + i]), CANARY);
    }
    free(values - GUARD);
}

/* Which NaN comes out is not part of the arithmetic, that one comes out is. */
static inline uint32_t comparable_bits(float value)
{
    return value != value ? 0x7fc00000u : moec_f32_bits(value);
}

/* Bit equality of n floats, untouched canaries included. */
static inline void expect_same(const float *want, const float *got, size_t n, const char *set,
                               const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (comparable_bits(want[i]) == comparable_bits(got[i]))
            continue;
        print_error("%s of %s: element %zu of %zu is %a, expected %a\n", what, set, i, n, got[i], want[i]);
        fail();
    }
}

enum scales { SCALES_ORDINARY, SCALES_STRANGE };

static inline uint16_t random_scale(enum scales scales)
{
    static const uint16_t strange[] = {0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e00,
                                       0xbc00, 0x0001, 0x8001, 0x7bff, 0x03ff};
    if (scales == SCALES_STRANGE && random_below(2))
        return strange[random_below(sizeof strange / sizeof *strange)];
    return (uint16_t)(0x1000 + random_below(0x2000));
}

/* Fills a row with random codes, or with floats of the row's type. */
static inline void random_row(struct moec_codec codec, size_t n, enum scales scales, uint8_t *row)
{
    uint32_t bits = moec_codec_bits(codec);
    if (bits >= 16) {
        for (size_t i = 0; i < n; i++) {
            float value = random_float(scales == SCALES_STRANGE ? KIND_EXTREME : KIND_ORDINARY);
            uint16_t half = codec.dtype == MOEC_DTYPE_F16 ? moec_f32_to_f16(value) : moec_f32_to_bf16(value);
            if (bits == 32)
                memcpy(row + 4 * i, &value, sizeof value);
            else
                memcpy(row + 2 * i, &half, sizeof half);
        }
        return;
    }
    uint8_t codes[1040], zeros[66], stored[132];
    assert_true(n <= sizeof codes);
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)random_below(1u << bits);
    const bool is_nested = moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    for (size_t i = 0; i < moec_codec_scales_bytes(codec, n); i++)
        stored[i] = (uint8_t)random_below(256);
    for (size_t g = 0; g < (is_nested ? 1 : moec_codec_row_groups(codec, n)); g++) {
        const uint16_t scale = random_scale(scales);
        memcpy(stored + 2 * g, &scale, sizeof scale);
    }
    for (size_t g = 0; g < moec_codec_row_groups(codec, n); g++) {
        zeros[g] = (uint8_t)random_below(scales == SCALES_STRANGE ? 256 : 1u << bits);
    }
    moec_codec_pack_row(codec, codes, stored, zeros, n, row);
    const size_t n_outlier = moec_codec_row_outliers(codec, n);
    uint8_t *outliers = row + moec_codec_row_bytes(codec, n) - 3 * n_outlier;
    for (size_t i = 0; i < n_outlier; i++) {
        const uint16_t value = random_scale(scales);
        memcpy(outliers + 2 * i, &value, sizeof value);
        outliers[2 * n_outlier + i] = (uint8_t)random_below(scales == SCALES_STRANGE ? 256 : 128);
    }
    if (scales == SCALES_STRANGE) /* codes past the row's end, which no weight may come from */
        for (size_t i = n; i % MOEC_CODEC_BLOCK != 0 && bits == 8; i++)
            row[i] = (uint8_t)random_u32();
}

static inline struct moec_matrix random_matrix(struct moec_codec codec, uint32_t rows, uint32_t columns,
                                               enum scales scales)
{
    size_t row_bytes = moec_codec_row_bytes(codec, columns), stride = row_bytes + random_below(4);
    uint8_t *data = malloc((rows - 1) * stride + row_bytes);
    assert_non_null(data);
    for (uint32_t r = 0; r < rows; r++)
        random_row(codec, columns, scales, data + r * stride);
    return (struct moec_matrix){
        .codec = codec, .rows = rows, .columns = columns, .stride_bytes = stride, .data = data};
}

static inline struct moec_matrix mxfp4_matrix(struct moec_codec codec, uint32_t rows, uint32_t columns)
{
    const size_t stride = moec_codec_row_bytes(codec, columns) + random_below(4);
    uint8_t *data = malloc(rows * stride);
    assert_non_null(data);
    for (size_t i = 0; i < rows * stride; i++)
        data[i] = (uint8_t)random_below(256);
    return (struct moec_matrix){
        .codec = codec, .rows = rows, .columns = columns, .stride_bytes = stride, .data = data};
}

/* Every codec but MXFP4, which tests/unit/test_mxfp4.c has. */
static inline void check_each_codec(void (*check)(struct moec_codec codec))
{
    static const uint16_t groups[] = {0, 16, 32, 64, 128};
    for (int dtype = MOEC_DTYPE_F32; dtype <= MOEC_DTYPE_BF16; dtype++)
        check((struct moec_codec){.dtype = (uint8_t)dtype});
    for (int dtype = MOEC_DTYPE_INT2; dtype < MOEC_DTYPE_COUNT; dtype++)
        for (int scheme = MOEC_SCHEME_SYMMETRIC; scheme < MOEC_SCHEME_COUNT; scheme++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                const struct moec_codec codec = {
                    .dtype = (uint8_t)dtype, .scheme = (uint8_t)scheme, .group = groups[g]};
                struct moec_error err = {0};
                if (moec_codec_check(codec, "a codec", &err) == MOEC_OK && codec.dtype != MOEC_DTYPE_MXFP4)
                    check(codec);
            }
}

#endif
