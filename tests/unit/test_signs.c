/* Rows of one bit a weight against the format's text: signs, their scales, what stands past the end, and
 * codes that GPTQ chooses. */
#include "tests/unit/temporary.h"

#include "compiler/fit/gptq.h"
#include "formats/base/half.h"
#include "formats/codec/codec.h"

#include <math.h>

#define MAX_N 300

static const uint16_t groups[] = {0, 16, 32, 64, 128};
static const size_t lengths[] = {1, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 200, 300};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static float random_weight(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*seed >> 40) / 8388608.0 - 1);
}

static struct moec_codec codec_of(uint16_t group, bool is_nested, enum moec_quantizer quantizer)
{
    return (struct moec_codec){.dtype = MOEC_DTYPE_INT1,
                               .scheme = is_nested ? MOEC_SCHEME_SYMMETRIC_NESTED : MOEC_SCHEME_SYMMETRIC,
                               .group = group,
                               .quantizer = (uint8_t)quantizer};
}

/* The stored scale of group g, by the format's text. */
static float naive_scale(const uint8_t *scales, bool is_nested, size_t g)
{
    if (!is_nested)
        return moec_f16_to_f32((uint16_t)(scales[2 * g] | scales[2 * g + 1] << 8));
    return (float)scales[2 + g] * (moec_f16_to_f32((uint16_t)(scales[0] | scales[1] << 8)) / 256);
}

/* Scales that F16 or a byte rounds are near the wanted ones. */
static void check_scale(const float *w, size_t n, enum moec_quantizer quantizer, bool is_nested, float scale)
{
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        sum += fabs((double)w[i]);
        square += (double)w[i] * (double)w[i];
    }
    const double wanted = quantizer == MOEC_QUANTIZER_LINEAR || sum == 0 ? sum / (double)n : square / sum;
    if (!is_nested)
        assert_true(fabs(scale - wanted) <= wanted / 2000 + 1e-7);
    else
        assert_true(fabs(scale - wanted) <= 1.0 / 256);
}

static void check_row(uint16_t group, bool is_nested, enum moec_quantizer quantizer, size_t n)
{
    const struct moec_codec codec = codec_of(group, is_nested, quantizer);
    const size_t n_blocks = (n + 31) / 32, width = group == 0 ? n : group, n_groups = (n + width - 1) / width;
    const size_t n_bytes = 4 * n_blocks + (is_nested ? 2 + n_groups : 2 * n_groups);
    uint8_t row[512];
    float w[MAX_N], decoded[MAX_N], part[32];
    struct moec_error err = {0};
    uint64_t seed = n;
    for (size_t i = 0; i < n; i++)
        w[i] = random_weight(&seed);
    w[n / 2] = 0;
    assert_int_equal(moec_codec_row_bytes(codec, n), n_bytes);
    assert_int_equal(moec_codec_bits(codec), 1);
    assert_ok(moec_codec_encode_row(codec, w, n, row, &err), err);
    assert_true(moec_codec_row_is_finite(codec, row, n));
    moec_codec_decode_row(codec, row, n, decoded);
    for (size_t i = 0; i < 32 * n_blocks; i++) {
        const int bit = row[i / 8] >> i % 8 & 1;
        assert_int_equal(bit, i >= n || w[i] >= 0);
        const float scale = i < n ? naive_scale(row + 4 * n_blocks, is_nested, i / width) : 0;
        assert_true(i >= n || decoded[i] == (bit ? scale : -scale));
        if (i < n && i % width == 0)
            check_scale(w + i, n - i < width ? n - i : width, quantizer, is_nested, scale);
    }
    for (size_t at = 0; at < n; at += 32) {
        const size_t count = n - at < 32 ? n - at : 32;
        moec_codec_decode_span(codec, row, n, at, count, part);
        assert_memory_equal(part, decoded + at, count * sizeof *part);
    }
}

static void test_signs__rows_are_signs_and_scales(void **state)
{
    (void)state;
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (size_t g = 0; g < COUNT(groups); g++)
            for (int nested = 0; nested < (groups[g] == 0 ? 1 : 2); nested++) {
                check_row(groups[g], nested == 1, MOEC_QUANTIZER_LINEAR, lengths[l]);
                check_row(groups[g], nested == 1, MOEC_QUANTIZER_HQQ, lengths[l]);
            }
}

static void test_signs__zeros_stay_zero_and_bad_weights_are_named(void **state)
{
    (void)state;
    const struct moec_codec codec = codec_of(32, false, MOEC_QUANTIZER_HQQ);
    struct moec_error err = {0};
    float w[64] = {0}, decoded[64];
    uint8_t row[64];
    w[40] = 1;
    assert_ok(moec_codec_encode_row(codec, w, 64, row, &err), err);
    moec_codec_decode_row(codec, row, 64, decoded);
    for (int i = 0; i < 32; i++)
        assert_true(decoded[i] == 0 && !signbit(decoded[i]));
    w[7] = NAN;
    assert_status(moec_codec_encode_row(codec, w, 64, row, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "weight 7");
    w[7] = 3e38f;
    err = (struct moec_error){0};
    assert_status(moec_codec_encode_row(codec, w, 64, row, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "overflows F16");
}

/* Of weights that a Gaussian gives, signs with the mean size lose 1 - 2 / pi of their squares. */
static void test_signs__lose_what_theory_says(void **state)
{
    (void)state;
    const struct moec_codec codec = codec_of(0, false, MOEC_QUANTIZER_LINEAR);
    static float w[4096], decoded[4096];
    static uint8_t row[1024];
    struct moec_error err = {0};
    uint64_t seed = 5;
    double error = 0, square = 0;
    for (int i = 0; i < 4096; i++)
        for (int k = 0; k < 12; k++)
            w[i] += random_weight(&seed);
    assert_ok(moec_codec_encode_row(codec, w, 4096, row, &err), err);
    moec_codec_decode_row(codec, row, 4096, decoded);
    for (int i = 0; i < 4096; i++) {
        error += pow((double)(w[i] - decoded[i]), 2);
        square += pow((double)w[i], 2);
    }
    assert_true(fabs(error / square - (1 - 2 / M_PI)) < 0.02);
}

/* Asked for with a zero point, 1 bit has none. */
static void test_signs__are_symmetric(void **state)
{
    (void)state;
    struct moec_codec codecs[MOEC_CODEC_TABLE], codec;
    struct moec_error err = {0};
    char text[40];
    assert_ok(moec_codec_table(MOEC_QUANTIZER_HQQ, MOEC_SCHEME_SYMMETRIC, 64, MOEC_DTYPE_BF16, codecs, &err),
              err);
    assert_string_equal(moec_codec_name(codecs[1], text), "int1 symmetric g64");
    assert_int_equal(codecs[1].quantizer, MOEC_QUANTIZER_HQQ);
    assert_ok(moec_codec_table(MOEC_QUANTIZER_HQQ, MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_DTYPE_BF16, codecs,
                               &err),
              err);
    assert_string_equal(moec_codec_name(codecs[1], text), "int1 symmetric nested g64");
    assert_ok(
        moec_codec_table(MOEC_QUANTIZER_LOG, MOEC_SCHEME_LOGARITHMIC, 64, MOEC_DTYPE_BF16, codecs, &err),
        err);
    assert_int_equal(codecs[1].dtype, MOEC_DTYPE_F32);
    assert_status(moec_codec_for_bits(1, MOEC_SCHEME_LOGARITHMIC, 64, MOEC_DTYPE_BF16, &codec, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "1 bit that is not symmetric");
}

/* Codes that make up for each other on the inputs lose less of the outputs than signs alone. */
static void test_signs__gptq_chooses_them(void **state)
{
    (void)state;
    enum { N = 64, N_ROW = 24, N_TOKEN = 256 };
    static float w[N_ROW * N], x[N_TOKEN * N];
    const struct moec_codec codec = codec_of(32, false, MOEC_QUANTIZER_GPTQ);
    const size_t row_bytes = moec_codec_row_bytes(codec, N);
    struct moec_gptq_matrix matrix = {.weights = w, .n_row = N_ROW, .columns = N};
    struct moec_gptq *gptq = NULL;
    const struct moec_pool pool = {2};
    struct moec_error err = {0};
    double lost[2] = {0};
    uint64_t seed = 9;
    uint8_t *rows = calloc(N_ROW, row_bytes);
    for (int i = 0; i < N_ROW * N; i++)
        w[i] = random_weight(&seed);
    for (int t = 0; t < N_TOKEN; t++) {
        const float shared = random_weight(&seed);
        for (int i = 0; i < N; i++)
            x[t * N + i] = 0.5f * random_weight(&seed) + shared;
    }
    assert_ok(moec_gptq_create(N, MOEC_GPTQ_QUICK, &gptq, &err), err);
    moec_gptq_add(gptq, &pool, x, N, NULL, N_TOKEN);
    assert_ok(moec_gptq_factor(gptq, MOEC_GPTQ_BY_GROUP, &pool, &err), err);
    for (int way = 0; way < 2; way++) {
        if (way == 1)
            assert_ok(moec_gptq_encode(gptq, &pool, &matrix, codec, rows, &err), err);
        for (int r = 0; r < N_ROW; r++) {
            float decoded[N];
            if (way == 0)
                assert_ok(moec_codec_encode_row(codec_of(32, false, MOEC_QUANTIZER_LINEAR), w + r * N, N,
                                                rows + (size_t)r * row_bytes, &err),
                          err);
            moec_codec_decode_row(codec, rows + (size_t)r * row_bytes, N, decoded);
            for (int t = 0; t < N_TOKEN; t++) {
                double error = 0;
                for (int i = 0; i < N; i++)
                    error += (double)(w[r * N + i] - decoded[i]) * (double)x[t * N + i];
                lost[way] += error * error;
            }
        }
    }
    assert_true(lost[1] < 0.8 * lost[0]);
    moec_gptq_free(gptq);
    free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signs__rows_are_signs_and_scales),
        cmocka_unit_test(test_signs__zeros_stay_zero_and_bad_weights_are_named),
        cmocka_unit_test(test_signs__lose_what_theory_says),
        cmocka_unit_test(test_signs__are_symmetric),
        cmocka_unit_test(test_signs__gptq_chooses_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
