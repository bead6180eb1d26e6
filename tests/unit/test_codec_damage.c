/* Encoded rows that are damaged: outliers out of place, scales that are no numbers. */
#include "tests/unit/temporary.h"

#include "formats/codec/codec.h"

static void test_codec_damage__outliers_out_of_place_are_seen_and_left_out(void **state)
{
    (void)state;
    const struct moec_codec codec = {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_GAUSSIAN};
    struct moec_error err = {0};
    float w[200], before[200], after[200];
    uint8_t row[256];
    uint64_t seed = 13;
    for (size_t i = 0; i < 200; i++)
        w[i] = random_float(&seed);
    assert_status(moec_codec_encode_row(codec, w, 200, row, &err), MOEC_OK, err);
    moec_codec_decode_row(codec, row, 200, before);
    const size_t n_bytes = moec_codec_row_bytes(codec, 200), place = row[n_bytes - 1];
    for (int bad = 72; bad < 256; bad += 61) { /* the last span has 72 weights */
        row[n_bytes - 1] = (uint8_t)bad;
        assert_false(moec_codec_row_is_finite(codec, row, 200));
        moec_codec_decode_row(codec, row, 200, after);
        for (size_t i = 0; i < 200; i++)
            assert_true(after[i] == before[i] || i == 128 + place);
    }
    row[n_bytes - 1] = 71;
    assert_true(moec_codec_row_is_finite(codec, row, 200));
    row[n_bytes - 3] = 0x7c; /* its high byte: infinity */
    assert_false(moec_codec_row_is_finite(codec, row, 200));
}

static void test_codec_damage__every_half_that_is_not_finite_is_seen(void **state)
{
    (void)state;
    static const struct {
        enum moec_dtype dtype;
        uint32_t infinity;
    } kinds[] = {{MOEC_DTYPE_F16, 0x7c00}, {MOEC_DTYPE_BF16, 0x7f80}};
    for (size_t k = 0; k < 2; k++)
        for (size_t at = 0; at < 9; at++)
            for (uint32_t bits = 0; bits < 0x10000; bits++) {
                const struct moec_codec codec = {.dtype = (uint8_t)kinds[k].dtype};
                uint8_t row[18] = {0xff, kinds[k].infinity == 0x7c00 ? 0x7b : 0x7e};
                for (size_t i = 2; i < sizeof row; i++) /* large ones beside it */
                    row[i] = row[i - 2];
                row[2 * at] = (uint8_t)bits;
                row[2 * at + 1] = (uint8_t)(bits >> 8);
                assert_int_equal(moec_codec_row_is_finite(codec, row, 9),
                                 (bits & 0x7fff) < kinds[k].infinity);
            }
}

static void test_codec_damage__damaged_scales_are_seen(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_codec codec = {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 32};
    uint8_t row[1024];
    float w[70];
    uint64_t seed = 4;
    for (size_t i = 0; i < 70; i++)
        w[i] = random_float(&seed);
    assert_status(moec_codec_encode_row(codec, w, 70, row, &err), MOEC_OK, err);
    memset(row, 0xff, 36); /* any code is fine */
    assert_true(moec_codec_row_is_finite(codec, row, 70));
    row[36 + 5] = 0x7c;
    assert_false(moec_codec_row_is_finite(codec, row, 70));
    codec.scheme = MOEC_SCHEME_ASYMMETRIC_NESTED;
    assert_status(moec_codec_encode_row(codec, w, 70, row, &err), MOEC_OK, err);
    memset(row + 36 + 2, 0xff, 3 + 2); /* any scale of a group and any zero is fine */
    assert_true(moec_codec_row_is_finite(codec, row, 70));
    row[36 + 1] = 0x7c;
    assert_false(moec_codec_row_is_finite(codec, row, 70));
    const uint8_t f32_inf[8] = {0, 0, 0, 0, 0, 0, 0x80, 0xff}, bf16_nan[4] = {0, 0, 0x81, 0x7f};
    assert_false(moec_codec_row_is_finite((struct moec_codec){.dtype = MOEC_DTYPE_F32}, f32_inf, 2));
    assert_true(moec_codec_row_is_finite((struct moec_codec){.dtype = MOEC_DTYPE_F32}, f32_inf, 1));
    assert_false(moec_codec_row_is_finite((struct moec_codec){.dtype = MOEC_DTYPE_BF16}, bf16_nan, 2));
}

static void test_codec_damage__the_first_damaged_row_is_found(void **state)
{
    (void)state;
    static const struct moec_codec codecs[] = {{.dtype = MOEC_DTYPE_BF16},
                                               {.dtype = MOEC_DTYPE_INT4, .group = 32},
                                               {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_ASYMMETRIC}};
    const size_t columns = 70, rows = 40, behind[] = {140, 2, 3}; /* of the row's end, a float or scale */
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        const size_t n = moec_codec_row_bytes(codecs[c], columns), stride = n + 24;
        const size_t scale = n - behind[c];
        uint8_t *bytes = calloc(rows, stride);
        assert_int_equal(moec_codec_find_not_finite(codecs[c], bytes, stride, rows, columns), rows);
        for (size_t row = rows; row-- > 0;) {
            memset(bytes + row * stride + scale, 0x7f, 2);
            bytes[row * stride + scale] = 0xff;
            assert_int_equal(moec_codec_find_not_finite(codecs[c], bytes, stride, rows, columns), row);
        }
        assert_int_equal(moec_codec_find_not_finite(codecs[c], bytes, stride, 0, columns), 0);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_damage__outliers_out_of_place_are_seen_and_left_out),
        cmocka_unit_test(test_codec_damage__every_half_that_is_not_finite_is_seen),
        cmocka_unit_test(test_codec_damage__damaged_scales_are_seen),
        cmocka_unit_test(test_codec_damage__the_first_damaged_row_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
