/* Trellis-coded rows against their definition written out. */
#include "tests/unit/temporary.h"

#include "formats/base/half.h"
#include "formats/codec/codec.h"
#include "formats/codec/trellis.h"

#define MAX_N 600

static const struct moec_codec trellis = {
    .dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS, .quantizer = MOEC_QUANTIZER_TRELLIS};

/* Coded bit of weight t; 0 before the row. */
static int coded_bit(const uint8_t *row, ptrdiff_t t)
{
    return t < 0 ? 0 : (row[t / 32 * 8 + t % 32 / 8] >> (t % 8)) & 1;
}

/* Weight t of a row of n, by the format's text. */
static float naive_weight(const uint8_t *row, size_t n, ptrdiff_t t)
{
    static const int levels[8] = {-8009, -4628, -2639, -858, 858, 2639, 4628, 8009};
    const uint8_t *scale = row + (n + 31) / 32 * 8;
    const int f = (row[t / 32 * 8 + 4 + t % 32 / 8] >> (t % 8)) & 1;
    const int z1 = coded_bit(row, t) ^ coded_bit(row, t - 1) ^ coded_bit(row, t - 6);
    const int z0 = coded_bit(row, t - 2) ^ coded_bit(row, t - 4);
    const float s = moec_f16_to_f32((uint16_t)(scale[0] | scale[1] << 8));
    return (float)levels[4 * f + 2 * z1 + z0] / 4096.0f * s;
}

static void test_trellis__rows_decode_by_the_definition(void **state)
{
    (void)state;
    uint64_t seed = 3;
    uint8_t row[MAX_N / 4 + 16];
    float whole[MAX_N], part[MAX_N];
    for (size_t n = 1; n < MAX_N; n += n < 70 ? 1 : 61) {
        const size_t n_bytes = moec_codec_row_bytes(trellis, n);
        assert_int_equal(n_bytes, (n + 31) / 32 * 8 + 2);
        for (size_t i = 0; i < n_bytes; i++)
            row[i] = (uint8_t)random_u32(&seed);
        row[n_bytes - 1] = 0x30; /* a finite scale */
        assert_true(moec_codec_row_is_finite(trellis, row, n));
        moec_codec_decode_row(trellis, row, n, whole);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(moec_f32_bits(whole[i]), moec_f32_bits(naive_weight(row, n, (ptrdiff_t)i)));
        for (size_t first = 0; first < n; first += 32) {
            const size_t count = n - first < 40 ? n - first : 40;
            moec_codec_decode_span(trellis, row, n, first, count, part);
            assert_memory_equal(part, whole + first, count * sizeof *part);
        }
        row[n_bytes - 1] = 0x7c;
        assert_false(moec_codec_row_is_finite(trellis, row, n));
    }
}

static void test_trellis__codes_pack_and_give_their_levels(void **state)
{
    (void)state;
    uint64_t seed = 4;
    uint8_t codes[100], row[40], stored[2] = {0x00, 0x3c}; /* a scale of 1 */
    float decoded[100];
    for (size_t i = 0; i < 100; i++)
        codes[i] = (uint8_t)(random_u32(&seed) & 3);
    moec_codec_pack_row(trellis, codes, stored, NULL, 100, row);
    moec_codec_decode_row(trellis, row, 100, decoded);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(coded_bit(row, (ptrdiff_t)i), codes[i] & 1);
        assert_int_equal(moec_f32_bits(decoded[i]), moec_f32_bits(naive_weight(row, 100, (ptrdiff_t)i)));
        assert_int_equal(decoded[i] > 0, codes[i] >> 1); /* free bits choose the upper levels */
    }
    for (int i = 0; i < 8; i++) /* what follows the row's last weight */
        assert_int_equal((row[24 + i] >> 4) & (i % 4 == 0 ? 15 : 0), 0);
    for (int i = 1; i < 4; i++)
        assert_int_equal(row[24 + i] | row[28 + i], 0);
}

static void test_trellis__rows_are_no_longer_written(void **state)
{
    (void)state;
    struct moec_error err = {0};
    const float w[40] = {1};
    uint8_t row[64];
    memset(row, 0xa5, sizeof row);
    assert_status(moec_codec_encode_row(trellis, w, 40, row, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "no longer writes");
    for (size_t i = 0; i < sizeof row; i++)
        assert_int_equal(row[i], 0xa5);
}

static void test_trellis__description(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_codec codec, codecs[MOEC_CODEC_TABLE];
    char text[40];
    assert_string_equal(moec_codec_name(trellis, text), "int2 trellis channel");
    assert_int_equal(moec_codec_row_groups(trellis, 100), 1);
    assert_int_equal(moec_codec_row_bytes(trellis, 0), 0);
    assert_status(moec_codec_for_bits(2, MOEC_SCHEME_TRELLIS, 0, MOEC_DTYPE_BF16, &codec, &err), MOEC_OK,
                  err);
    assert_true(moec_codec_equal(codec, trellis));
    assert_status(moec_codec_for_bits(2, MOEC_SCHEME_TRELLIS, 64, MOEC_DTYPE_BF16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "one scale for each row");
    err = (struct moec_error){0};
    assert_status(moec_codec_for_bits(3, MOEC_SCHEME_TRELLIS, 0, MOEC_DTYPE_BF16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_false(moec_quantizer_makes(MOEC_QUANTIZER_TRELLIS, MOEC_SCHEME_TRELLIS));
    assert_false(moec_quantizer_makes(MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_TRELLIS));
    err = (struct moec_error){0};
    assert_status(
        moec_codec_table(MOEC_QUANTIZER_TRELLIS, MOEC_SCHEME_ASYMMETRIC, 64, MOEC_DTYPE_BF16, codecs, &err),
        MOEC_OK, err);
    for (uint32_t bits = 2; bits <= 4; bits++) {
        assert_int_equal(codecs[bits].scheme, MOEC_SCHEME_SHIFT);
        assert_int_equal(codecs[bits].group, 0);
        assert_int_equal(codecs[bits].quantizer, MOEC_QUANTIZER_TRELLIS);
    }
    assert_int_equal(codecs[5].scheme, MOEC_SCHEME_ASYMMETRIC);
    assert_int_equal(codecs[5].quantizer, MOEC_QUANTIZER_HQQ);
    assert_int_equal(codecs[16].quantizer, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trellis__rows_decode_by_the_definition),
        cmocka_unit_test(test_trellis__codes_pack_and_give_their_levels),
        cmocka_unit_test(test_trellis__rows_are_no_longer_written),
        cmocka_unit_test(test_trellis__description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
