/* Shift-coded rows against their definition written out, the search against all codes that there are. */
#include "tests/unit/temporary.h"

#include "formats/base/half.h"
#include "formats/codec/codec.h"
#include "formats/codec/shift.h"
#include "formats/codec/shift_levels.h"

#include <math.h>

#define MAX_N 400

static const uint8_t dtypes[] = {MOEC_DTYPE_INT2, MOEC_DTYPE_INT3, MOEC_DTYPE_INT4};

static struct moec_codec codec_of(int bits)
{
    return (struct moec_codec){.dtype = dtypes[bits - 2], .scheme = MOEC_SCHEME_SHIFT};
}

/* Coded bit `which` of weight t; 0 before the row. */
static int coded_bit(const uint8_t *row, int bits, ptrdiff_t t, int which)
{
    return t < 0 ? 0 : (row[t / 32 * 4 * bits + 4 * bits - 8 + t % 32 / 4] >> (t % 4 * 2 + which)) & 1;
}

/* Level of weight t by the format's text. */
static int naive_level(const uint8_t *row, int bits, ptrdiff_t t)
{
    static const int columns[3][8] = {{MOEC_SHIFT_2_COLUMNS}, {MOEC_SHIFT_3_COLUMNS}, {MOEC_SHIFT_4_COLUMNS}};
    static const int two[] = {MOEC_SHIFT_2_LEVELS}, three[] = {MOEC_SHIFT_3_LEVELS},
                     four[] = {MOEC_SHIFT_4_LEVELS};
    const uint8_t *block = row + t / 32 * 4 * bits;
    const int i = (int)(t % 32);
    int place = 0;
    for (int age = 0; age < 4; age++)
        for (int which = 0; which < 2; which++)
            if (coded_bit(row, bits, t - age, which))
                place ^= columns[bits - 2][6 - 2 * age + which];
    if (bits == 3)
        return three[(block[i / 8] >> i % 8 & 1) << 5 | place];
    return bits == 2 ? two[place] : four[(block[i % 8] >> i / 8 * 2 & 3) << 5 | place];
}

static void test_shift__rows_decode_by_the_definition(void **state)
{
    (void)state;
    uint64_t seed = 3;
    uint8_t row[MAX_N];
    float whole[MAX_N], part[MAX_N];
    for (int bits = 2; bits <= 4; bits++) {
        const struct moec_codec codec = codec_of(bits);
        for (size_t n = 1; n < MAX_N; n += n < 70 ? 1 : 61) {
            const size_t n_bytes = moec_codec_row_bytes(codec, n);
            assert_int_equal(n_bytes, (n + 31) / 32 * 4 * (size_t)bits + 2);
            for (size_t i = 0; i < n_bytes; i++)
                row[i] = (uint8_t)random_u32(&seed);
            row[n_bytes - 1] = 0x30; /* a finite scale */
            const float scale = moec_f16_to_f32((uint16_t)(row[n_bytes - 2] | 0x3000));
            assert_true(moec_codec_row_is_finite(codec, row, n));
            moec_codec_decode_row(codec, row, n, whole);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(moec_f32_bits(whole[i]),
                                 moec_f32_bits((float)naive_level(row, bits, (ptrdiff_t)i) * scale));
            for (size_t first = 0; first < n; first += 32) {
                const size_t count = n - first < 40 ? n - first : 40;
                moec_codec_decode_span(codec, row, n, first, count, part);
                assert_memory_equal(part, whole + first, count * sizeof *part);
            }
            row[n_bytes - 1] = 0x7c;
            assert_false(moec_codec_row_is_finite(codec, row, n));
        }
    }
}

/* formats/bundle/FORMAT.md */
static void test_shift__examples_of_the_format(void **state)
{
    static const uint8_t bytes[16] = {0x1f, 0x73, 0x31, 0x59, 0xeb, 0xe7, 0x4d, 0x1d,
                                      0x57, 0xfb, 0x09, 0x81, 0x63, 0xaf, 0x65, 0x85};
    static const float levels[3][12] = {{35, 24, -28, -29, 50, -50, 23, 72, 44, 102, -24, -50},
                                        {55, 40, 64, 85, 19, -39, -85, -45, 3, 4, -33, -19},
                                        {64, 104, -22, 0, 127, 46, -17, -9, 51, -70, -104, 8}};
    (void)state;
    for (int bits = 2; bits <= 4; bits++) {
        uint8_t row[18];
        float decoded[32];
        memcpy(row, bytes, 4 * (size_t)bits);
        row[4 * bits] = 0x00; /* a scale of 1 */
        row[4 * bits + 1] = 0x3c;
        moec_codec_decode_row(codec_of(bits), row, 32, decoded);
        assert_memory_equal(decoded, levels[bits - 2], sizeof levels[0]);
    }
}

static void test_shift__codes_pack_and_give_their_levels(void **state)
{
    (void)state;
    uint64_t seed = 4;
    uint8_t codes[100], row[80], stored[2] = {0x00, 0x3c}; /* a scale of 1 */
    float values[100], decoded[100];
    for (int bits = 2; bits <= 4; bits++) {
        for (size_t i = 0; i < 100; i++)
            codes[i] = (uint8_t)(random_u32(&seed) & ((1u << bits) - 1));
        moec_codec_pack_row(codec_of(bits), codes, stored, NULL, 100, row);
        moec_codec_decode_row(codec_of(bits), row, 100, decoded);
        moec_shift_values((uint32_t)bits, codes, 100, values);
        assert_memory_equal(values, decoded, sizeof values);
        for (int i = 1; i < 8; i++) /* coded bits that follow the row's last weight */
            assert_int_equal(row[3 * 4 * bits + 4 * bits - 8 + i], 0);
    }
}

/* The mirrored halves that kernels count on, and tables that follow from the columns. */
static void test_shift__tables_agree(void **state)
{
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        const struct moec_shift *shift = moec_shift_of(bits);
        const uint64_t rows = bits == 2   ? MOEC_SHIFT_2_ROWS
                              : bits == 3 ? MOEC_SHIFT_3_ROWS
                                          : MOEC_SHIFT_4_ROWS;
        assert_int_equal(shift->n_levels, 1u << (shift->coded_bits + shift->free_bits));
        assert_int_equal(shift->free_bits, bits - 2);
        for (uint32_t i = 0; i < shift->n_levels; i++)
            assert_int_equal(shift->levels[i], -shift->levels[shift->n_levels - 1 - i]);
        for (uint32_t i = shift->n_levels / 2; i < shift->n_levels; i++) /* AVX2 counts on one that is not */
            assert_true(shift->levels[i] >= 0 || (bits == 2 && i == shift->n_levels / 2));
        for (uint32_t i = 1u << shift->coded_bits; i < shift->n_levels; i++)
            assert_true(shift->levels[i] > shift->levels[i - (1u << shift->coded_bits)]);
        for (uint32_t window = 0; window < 256; window++) {
            uint32_t place = 0;
            for (uint32_t bit = 0; bit < 8; bit++)
                place ^= (window >> bit & 1) * shift->columns[bit];
            assert_int_equal(moec_shift_place(shift, window), place);
            for (uint32_t bit = 0; bit < 8; bit++)
                assert_int_equal(__builtin_parity((uint32_t)(rows >> (56 - 8 * bit)) & window),
                                 place >> bit & 1);
        }
    }
}

static double error_of(uint32_t bits, const float *w, const uint8_t *codes, size_t n, float scale)
{
    float values[MAX_N];
    double error = 0;
    moec_shift_values(bits, codes, n, values);
    for (size_t i = 0; i < n; i++)
        error += ((double)w[i] - (double)values[i] * (double)scale) *
                 ((double)w[i] - (double)values[i] * (double)scale);
    return error;
}

/* All codes of short rows. */
static void test_shift__search_finds_the_best_codes(void **state)
{
    (void)state;
    uint64_t seed = 5;
    struct moec_shift_choices choices[8];
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (size_t n = 1; n * bits <= 16; n++)
            for (int round = 0; round < (n * bits < 13 ? 30 : 3); round++) {
                float w[8];
                uint8_t codes[8], found[8];
                double least = INFINITY;
                for (size_t i = 0; i < n; i++)
                    w[i] = 3 * random_float(&seed);
                for (uint32_t all = 0; all < 1u << (bits * n); all++) {
                    for (size_t i = 0; i < n; i++)
                        codes[i] = (uint8_t)(all >> (bits * i) & ((1u << bits) - 1));
                    least = fmin(least, error_of(bits, w, codes, n, 0.02f));
                }
                moec_shift_search(bits, w, n, 0.02f, choices, found);
                assert_true(error_of(bits, w, found, n, 0.02f) <= least * (1 + 1e-6) + 1e-9);
            }
}

static void test_shift__normal_numbers_lose_little(void **state)
{
    (void)state;
    static const double most[] = {0.0775, 0.0205, 0.0053};
    uint64_t seed = 6;
    struct moec_error err = {0};
    float w[512], decoded[512];
    uint8_t row[512];
    for (int bits = 2; bits <= 4; bits++) {
        double error = 0, square = 0;
        for (int round = 0; round < 40; round++) {
            for (size_t i = 0; i < 512; i++) {
                const double u = (random_u32(&seed) + 0.5) / 4294967296.0,
                             v = random_u32(&seed) / 4294967296.0;
                w[i] = (float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
            }
            assert_status(moec_codec_encode_row(codec_of(bits), w, 512, row, &err), MOEC_OK, err);
            moec_codec_decode_row(codec_of(bits), row, 512, decoded);
            for (size_t i = 0; i < 512; i++) {
                error += (double)(w[i] - decoded[i]) * (double)(w[i] - decoded[i]);
                square += (double)w[i] * (double)w[i];
            }
        }
        assert_true(error / square < most[bits - 2] && error / square > 0.9 * most[bits - 2]);
    }
}

/* Rows of long tails begin with a wider scale: less error than with a scale for each 64 weights. */
static void test_shift__long_tails_lose_little(void **state)
{
    (void)state;
    uint64_t seed = 8;
    struct moec_error err = {0};
    float w[512], decoded[512];
    uint8_t row[512];
    for (int bits = 2; bits <= 4; bits++) {
        const struct moec_codec even = {.dtype = codec_of(bits).dtype,
                                        .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED,
                                        .group = 64,
                                        .quantizer = MOEC_QUANTIZER_HQQ};
        double errors[2] = {0};
        for (int round = 0; round < 40; round++) {
            for (size_t i = 0; i < 512; i++) {
                const float size = -0.02f * logf(((float)random_u32(&seed) + 0.5f) / 4294967296.0f);
                w[i] = random_u32(&seed) % 2 == 0 ? size : -size;
            }
            for (int k = 0; k < 2; k++) {
                const struct moec_codec codec = k == 0 ? codec_of(bits) : even;
                assert_status(moec_codec_encode_row(codec, w, 512, row, &err), MOEC_OK, err);
                moec_codec_decode_row(codec, row, 512, decoded);
                for (size_t i = 0; i < 512; i++)
                    errors[k] += (double)(w[i] - decoded[i]) * (double)(w[i] - decoded[i]);
            }
        }
        if (errors[0] > 0.65 * errors[1])
            fail_msg("%d bits: error %g, %g of even codes", bits, errors[0], errors[1]);
    }
}

/* Ten times the weights have ten times the scale; costs that are all the same change nothing, those of the largest
 * weights widen it. */
static void test_shift__scales_follow_weights_and_costs(void **state)
{
    (void)state;
    uint64_t seed = 9;
    float w[300], more[300], costs[300];
    for (uint32_t bits = 2; bits <= 4; bits++) {
        for (size_t i = 0; i < 300; i++) {
            w[i] = random_float(&seed) * (i % 50 == 0 ? 4 : 1);
            more[i] = 1024 * w[i];
            costs[i] = 1;
        }
        const float scale = moec_shift_scale(bits, w, NULL, 300);
        assert_true(moec_shift_scale(bits, more, NULL, 300) == 1024 * scale);
        assert_true(moec_shift_scale(bits, w, costs, 300) == scale);
        for (size_t i = 0; i < 300; i += 50)
            costs[i] = 100;
        assert_true(moec_shift_scale(bits, w, costs, 300) > scale);
        memset(more, 0, sizeof more);
        assert_true(moec_shift_scale(bits, more, NULL, 300) == 0);
        more[7] = INFINITY;
        assert_true(isfinite(moec_shift_scale(bits, more, NULL, 300)) == 0);
        more[7] = NAN;
        assert_true(isfinite(moec_shift_scale(bits, more, NULL, 300)) == 0);
    }
}

static void test_shift__odd_rows_encode(void **state)
{
    (void)state;
    struct moec_error err = {0};
    uint8_t row[64];
    float w[40] = {0}, decoded[40];
    for (int bits = 2; bits <= 4; bits++) {
        const struct moec_codec codec = codec_of(bits);
        memset(w, 0, sizeof w);
        memset(row, 0xa5, sizeof row);
        assert_status(moec_codec_encode_row(codec, w, 40, row, &err), MOEC_OK, err);
        assert_int_equal(row[moec_codec_row_bytes(codec, 40)], 0xa5);
        moec_codec_decode_row(codec, row, 40, decoded);
        for (int i = 0; i < 40; i++)
            assert_true(decoded[i] == 0);
        for (int sign = -1; sign <= 1; sign += 2) {
            w[0] = (float)sign * 0.3f;
            assert_status(moec_codec_encode_row(codec, w, 1, row, &err), MOEC_OK, err);
            moec_codec_decode_row(codec, row, 1, decoded);
            assert_true(fabsf(decoded[0] - w[0]) < 1e-3f);
        }
        w[0] = 1e-9f; /* a scale that F16 rounds to 0 */
        assert_status(moec_codec_encode_row(codec, w, 40, row, &err), MOEC_OK, err);
        moec_codec_decode_row(codec, row, 40, decoded);
        assert_true(decoded[0] == 0 && decoded[39] == 0);
        w[0] = 1e8f;
        assert_status(moec_codec_encode_row(codec, w, 1, row, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, "overflows F16");
        err = (struct moec_error){0};
        w[7] = NAN;
        assert_status(moec_codec_encode_row(codec, w, 40, row, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, "weight 7 of the row is NaN");
        err = (struct moec_error){0};
        assert_status(moec_codec_encode_row(codec, w, 0, row, &err), MOEC_OK, err);
    }
}

static void test_shift__description(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_codec codec;
    char text[40];
    assert_string_equal(moec_codec_name(codec_of(3), text), "int3 shift channel");
    assert_int_equal(moec_codec_row_groups(codec_of(4), 100), 1);
    assert_int_equal(moec_codec_row_bytes(codec_of(4), 0), 0);
    assert_status(moec_codec_for_bits(4, MOEC_SCHEME_SHIFT, 0, MOEC_DTYPE_BF16, &codec, &err), MOEC_OK, err);
    assert_true(moec_codec_equal(codec, codec_of(4)));
    assert_true(moec_codec_traits(codec)->is_path);
    assert_status(moec_codec_for_bits(4, MOEC_SCHEME_SHIFT, 64, MOEC_DTYPE_BF16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "one scale for each row");
    err = (struct moec_error){0};
    assert_status(moec_codec_for_bits(5, MOEC_SCHEME_SHIFT, 0, MOEC_DTYPE_BF16, &codec, &err), MOEC_ERR_USAGE,
                  err);
    assert_false(moec_quantizer_makes(MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SHIFT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shift__rows_decode_by_the_definition),
        cmocka_unit_test(test_shift__examples_of_the_format),
        cmocka_unit_test(test_shift__codes_pack_and_give_their_levels),
        cmocka_unit_test(test_shift__tables_agree),
        cmocka_unit_test(test_shift__search_finds_the_best_codes),
        cmocka_unit_test(test_shift__normal_numbers_lose_little),
        cmocka_unit_test(test_shift__long_tails_lose_little),
        cmocka_unit_test(test_shift__scales_follow_weights_and_costs),
        cmocka_unit_test(test_shift__odd_rows_encode),
        cmocka_unit_test(test_shift__description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
