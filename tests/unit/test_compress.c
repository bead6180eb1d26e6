#include "tests/unit/temporary.h"

#include "formats/base/compress.h"

#include <sys/resource.h>

#define N 200000

static uint8_t *sample(void)
{
    uint8_t *bytes = malloc(N);
    uint64_t seed = 5;
    assert_non_null(bytes);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)("abcdefgh"[random_u32(&seed) & 7]);
    return bytes;
}

static void test_compress__round_trip(void **state)
{
    (void)state;
    struct moec_error err = {0};
    uint8_t *bytes = sample(), *packed = NULL, *again = NULL, *back = malloc(N);
    size_t n_packed = 0, n_again = 0, n_text = 0;
    char *text = NULL;
    assert_status(moec_compress(bytes, N, &packed, &n_packed, &err), MOEC_OK, err);
    assert_status(moec_compress(bytes, N, &again, &n_again, &err), MOEC_OK, err);
    assert_true(n_packed < N / 2);
    assert_int_equal(n_packed, n_again);
    assert_memory_equal(packed, again, n_packed);
    assert_true(moec_is_zstd(packed, n_packed));
    assert_false(moec_is_zstd(bytes, N));
    assert_false(moec_is_zstd(packed, 3));
    assert_status(moec_decompress_into(packed, n_packed, back, N, "'x'", &err), MOEC_OK, err);
    assert_memory_equal(back, bytes, N);
    assert_status(moec_decompress_all(packed, n_packed, N, &text, &n_text, "'x'", &err), MOEC_OK, err);
    assert_int_equal(n_text, N);
    assert_memory_equal(text, bytes, N);
    assert_int_equal(text[N], 0);
    free(text);
    free(back);
    free(again);
    free(packed);
    free(bytes);
}

static void test_compress__nothing_is_something(void **state)
{
    (void)state;
    struct moec_error err = {0};
    uint8_t *packed = NULL, back[1];
    size_t n_packed = 0, n_text = 1;
    char *text = NULL;
    assert_status(moec_compress("", 0, &packed, &n_packed, &err), MOEC_OK, err);
    assert_status(moec_decompress_into(packed, n_packed, back, 0, "'x'", &err), MOEC_OK, err);
    assert_status(moec_decompress_all(packed, n_packed, 0, &text, &n_text, "'x'", &err), MOEC_OK, err);
    assert_int_equal(n_text, 0);
    assert_string_equal(text, "");
    free(text);
    free(packed);
}

static void test_compress__two_frames_are_one_text(void **state)
{
    (void)state;
    struct moec_error err = {0};
    uint8_t *packed = NULL, twice[256];
    size_t n_packed = 0, n_text = 0;
    char *text = NULL;
    assert_status(moec_compress("abc", 3, &packed, &n_packed, &err), MOEC_OK, err);
    memcpy(twice, packed, n_packed);
    memcpy(twice + n_packed, packed, n_packed);
    assert_status(moec_decompress_all(twice, 2 * n_packed, 6, &text, &n_text, "'x'", &err), MOEC_OK, err);
    assert_int_equal(n_text, 6);
    assert_string_equal(text, "abcabc");
    uint8_t one[3];
    assert_status(moec_decompress_into(twice, 2 * n_packed, one, sizeof one, "section 'x'", &err),
                  MOEC_ERR_FORMAT, err);
    assert_message(err, "section 'x'");
    free(text);
    free(packed);
}

static void test_compress__damage_is_reported(void **state)
{
    (void)state;
    uint8_t *bytes = sample(), *packed = NULL, *back = malloc(N + 1);
    size_t n_packed = 0, n_text = 0;
    char *text = NULL;
    struct moec_error err = {0};
    assert_status(moec_compress(bytes, N, &packed, &n_packed, &err), MOEC_OK, err);
    assert_status(moec_decompress_into(packed, n_packed, back, N + 1, "'x'", &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "expected 200001");
    err = (struct moec_error){0};
    assert_status(moec_decompress_into(packed, n_packed / 2, back, N, "'x'", &err), MOEC_ERR_FORMAT, err);
    err = (struct moec_error){0};
    assert_status(moec_decompress_into("plain text", 10, back, 10, "'x'", &err), MOEC_ERR_FORMAT, err);
    assert_message(err, "not zstd");
    err = (struct moec_error){0};
    assert_status(moec_decompress_all(packed, n_packed, N - 1, &text, &n_text, "'x'", &err), MOEC_ERR_LIMIT,
                  err);
    assert_message(err, "199999");
    err = (struct moec_error){0};
    assert_status(moec_decompress_all(packed, n_packed - 5, N, &text, &n_text, "'x'", &err), MOEC_ERR_FORMAT,
                  err);
    assert_message(err, "truncated");
    err = (struct moec_error){0};
    packed[n_packed / 2] ^= 0xff;
    packed[n_packed / 2 + 1] ^= 0xff;
    enum moec_status status = moec_decompress_into(packed, n_packed, back, N, "'x'", &err);
    if (status ==
        MOEC_OK) /* without a checksum in the frame a flipped literal may pass: then the bytes differ */
        assert_memory_not_equal(back, bytes, N);
    free(back);
    free(packed);
    free(bytes);
}

static void test_compress__a_stated_size_over_the_limit_is_refused_at_once(void **state)
{
    (void)state;
    const size_t n = (size_t)64 << 20;
    uint8_t *packed = NULL;
    size_t n_packed = 0, n_text = 0;
    char *text = NULL;
    struct moec_error err = {0};
    struct rusage before, after;
    char *zeros = calloc(n, 1);
    assert_non_null(zeros);
    assert_ok(moec_compress(zeros, n, &packed, &n_packed, &err), err);
    free(zeros);
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    assert_status(moec_decompress_all(packed, n_packed, n - 1, &text, &n_text, "'x'", &err), MOEC_ERR_LIMIT,
                  err);
    assert_message(err, "holds 67108864 bytes");
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    assert_true(after.ru_minflt - before.ru_minflt < 1000); /* pages touched: not those of the text */
    err = (struct moec_error){0};
    assert_ok(moec_decompress_all(packed, n_packed, n, &text, &n_text, "'x'", &err), err);
    assert_int_equal(n_text, n);
    free(text);
    free(packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compress__round_trip),
        cmocka_unit_test(test_compress__nothing_is_something),
        cmocka_unit_test(test_compress__two_frames_are_one_text),
        cmocka_unit_test(test_compress__damage_is_reported),
        cmocka_unit_test(test_compress__a_stated_size_over_the_limit_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
