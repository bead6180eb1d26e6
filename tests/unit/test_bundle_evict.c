/* Weights of eviction in a bundle: their section, what it refuses, and how they come into a bundle. */
#include "tests/unit/temporary.h"

#include "tests/unit/fixture_bundle.h"
#include "tests/unit/sample_bundle.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_evict.h"
#include "formats/bundle/bundle_strip.h"
#include "runtime/engine/engine.h"
#include "runtime/moert.h"

#include <math.h>

static const struct moec_bundle_evict usual = {
    .weights = {0.4f, 0, 0.2f, 0.4f}, .buffer_bytes = 4096, .lost_ns = 1e6, .lost_by_lru_ns = 2e6};

static void test_bundle_evict__round_trip_and_damage(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_bundle_evict read;
    uint8_t bytes[MOEC_BUNDLE_EVICT_BYTES], damaged[MOEC_BUNDLE_EVICT_BYTES];
    assert_status(moec_bundle_evict_encode(&usual, bytes, &err), MOEC_OK, err);
    assert_status(moec_bundle_evict_decode(bytes, sizeof bytes, &read, &err), MOEC_OK, err);
    assert_memory_equal(read.weights, usual.weights, sizeof usual.weights);
    assert_true(read.buffer_bytes == 4096 && read.lost_ns == 1e6 && read.lost_by_lru_ns == 2e6);
    for (size_t n = 0; n < sizeof bytes; n++)
        assert_status(moec_bundle_evict_decode(bytes, n, &read, &err), MOEC_ERR_FORMAT, err);
    static const struct {
        float first;
        double lost;
        uint64_t buffer_bytes;
        uint32_t reserved;
        const char *message;
    } wrong[] = {{-0.1f, 0, 1, 0, "expected none below 0"},
                 {0.9f, 0, 1, 0, "a sum of 1"},
                 {NAN, 0, 1, 0, "a sum of 1"},
                 {0.4f, 0, 0, 0, "expected a buffer"},
                 {0.4f, -1, 1, 0, "expected a buffer"},
                 {0.4f, (double)INFINITY, 1, 0, "expected a buffer"},
                 {0.4f, 0, 1, 7, "in bytes 4 to 7, expected 0"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (struct moec_error){0};
        memcpy(damaged, bytes, sizeof bytes);
        moec_put_u32(damaged + 4, wrong[i].reserved);
        moec_put_f32(damaged + 8, wrong[i].first);
        moec_put_u64(damaged + 24, wrong[i].buffer_bytes);
        moec_put_f64(damaged + 32, wrong[i].lost);
        assert_status(moec_bundle_evict_decode(damaged, sizeof damaged, &read, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, wrong[i].message);
        assert_false(moec_bundle_evict_is_there(&read));
    }
    err = (struct moec_error){0};
    bytes[0] = 2;
    assert_status(moec_bundle_evict_decode(bytes, sizeof bytes, &read, &err), MOEC_ERR_UNSUPPORTED, err);
}

/* They stay when a copy goes, and others take their place. */
static void test_bundle_evict__in_a_bundle(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_bundle_evict read, other = usual;
    struct moec_bundle_stripped stripped;
    char *folder = temporary_folder(), *plain = temporary_path(folder, "plain.moec"),
         *with = temporary_path(folder, "with.moec");
    const uint32_t bits = 2;
    sample_make(&sample, 3, 8, 4, 1);
    (void)sample_write(&sample, plain);
    assert_status(moec_bundle_open(plain, &bundle, &err), MOEC_OK, err);
    assert_status(moec_bundle_load_evict(bundle, &read, &err), MOEC_OK, err);
    assert_false(moec_bundle_evict_is_there(&read));
    moec_bundle_close(bundle);
    assert_status(moec_bundle_put_evict(plain, &usual, with, &err), MOEC_OK, err);
    other.buffer_bytes = 8192;
    assert_status(moec_bundle_put_evict(with, &other, with, &err), MOEC_OK, err);
    assert_status(moec_bundle_strip(with, &bits, 1, plain, &stripped, &err), MOEC_OK, err);
    assert_status(moec_bundle_verify(plain, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(plain, &bundle, &err), MOEC_OK, err);
    assert_status(moec_bundle_load_evict(bundle, &read, &err), MOEC_OK, err);
    assert_int_equal(read.buffer_bytes, 8192);
    moec_bundle_close(bundle);
    other.weights[0] = 2;
    assert_status(moec_bundle_put_evict(with, &other, with, &err), MOEC_ERR_FORMAT, err);
    assert_status(moec_bundle_verify(with, NULL, NULL, &(struct moec_error){0}), MOEC_OK, err);
    sample_release(&sample);
    free(plain);
    free(with);
    temporary_remove(folder);
}

/* Opens the bundle; checks what eviction weighs by: NULL = what the policy has. */
static void check_engine(const char *path, const char *evict, const float *expected)
{
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_error err;
    options.n_threads = 1;
    options.buffer.evict = evict;
    if (moert_engine_open(path, &options, &engine, &err) != MOERT_OK)
        fail_msg("%s", err.message);
    assert_int_equal(engine->choice.evict.has_weights, expected != NULL);
    if (expected != NULL)
        assert_memory_equal(engine->choice.evict.weights, expected, sizeof engine->choice.evict.weights);
    assert_string_equal(moert_engine_info(engine).experts.evict, evict);
    moert_engine_close(engine);
}

static void test_bundle_evict__is_what_hobbit_takes(void **state)
{
    (void)state;
    static const float uses[] = {0, 1, 0, 0};
    struct moec_error err = {0};
    char *folder = temporary_folder(), *path = temporary_path(folder, "m.moec");
    fixture_bundle_write("tests/fixtures/families/olmoe", path, 16, false);
    check_engine(path, "hobbit", NULL);
    assert_status(moec_bundle_put_evict(path, &usual, path, &err), MOEC_OK, err);
    check_engine(path, "hobbit", usual.weights);
    check_engine(path, "hobbit:0:2:0:0", uses);
    check_engine(path, "lru", NULL);
    free(path);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundle_evict__round_trip_and_damage),
        cmocka_unit_test(test_bundle_evict__in_a_bundle),
        cmocka_unit_test(test_bundle_evict__is_what_hobbit_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
