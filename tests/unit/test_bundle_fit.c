/* What a bundle was fitted for: its section, what it refuses, how it comes into a bundle, and who takes it. */
#include "tests/unit/temporary.h"

#include "tests/unit/fixture_bundle.h"
#include "tests/unit/sample_bundle.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_fit.h"
#include "formats/bundle/bundle_strip.h"
#include "runtime/engine/mode.h"

#include <math.h>

static const struct moec_bundle_fit usual = {.memory_bytes = 1 << 20,
                                             .buffer_bytes = 4096,
                                             .n_context = 256,
                                             .bytes_per_second = 80000000,
                                             .latency_ns = 500000,
                                             .token_ns = 2e6,
                                             .compiled_ns = 3e6,
                                             .resident_ns = 1e6,
                                             .evict = "lfu",
                                             .predict = "path+gate"};

static void test_bundle_fit__round_trip_and_damage(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_bundle_fit read;
    uint8_t bytes[MOEC_BUNDLE_FIT_BYTES], damaged[MOEC_BUNDLE_FIT_BYTES];
    assert_status(moec_bundle_fit_encode(&usual, bytes, &err), MOEC_OK, err);
    assert_status(moec_bundle_fit_decode(bytes, sizeof bytes, &read, &err), MOEC_OK, err);
    assert_memory_equal(&read, &usual, sizeof usual);
    for (size_t n = 0; n < sizeof bytes; n++)
        assert_status(moec_bundle_fit_decode(bytes, n, &read, &err), MOEC_ERR_FORMAT, err);
    static const struct {
        size_t at;
        uint8_t byte;
        const char *message;
    } wrong[] = {{10, 0, "a memory of 0 bytes"},
                 {19, 255, "no more bytes for experts than the memory has"},
                 {47, 255, "expected finite times"},
                 {64, 'L', "other than a word of lower-case letters"},
                 {64, 0, "other than a word of lower-case letters"},
                 {95, 'a', "other than a word of lower-case letters"},
                 {100, 1, "in byte 100, expected 0"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (struct moec_error){0};
        memcpy(damaged, bytes, sizeof bytes);
        damaged[wrong[i].at] = wrong[i].byte;
        if (wrong[i].at == 95)
            memset(damaged + 80, 'a', 16);
        assert_status(moec_bundle_fit_decode(damaged, sizeof damaged, &read, &err), MOEC_ERR_FORMAT, err);
        assert_message(err, wrong[i].message);
        assert_false(moec_bundle_fit_is_there(&read));
    }
    err = (struct moec_error){0};
    bytes[0] = 2;
    assert_status(moec_bundle_fit_decode(bytes, sizeof bytes, &read, &err), MOEC_ERR_UNSUPPORTED, err);
}

static const char *evict_of(const struct moec_bundle *bundle, struct moec_mode_request request,
                            const char *predict)
{
    struct moec_mode_choice choice;
    struct moec_error err = {0};
    assert_status(moec_mode_choose(bundle, &request, &choice, &err), MOEC_OK, err);
    assert_string_equal(choice.predict->name, predict);
    return choice.evict.ops->name;
}

/* It stays when a copy goes, another takes its place, and modes that take any policy run by it. */
static void test_bundle_fit__in_a_bundle(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_bundle_fit read, other = usual;
    struct moec_bundle_stripped stripped;
    struct moec_certificate certificate;
    char *folder = temporary_folder(), *plain = temporary_path(folder, "plain.moec"),
         *with = temporary_path(folder, "with.moec");
    const uint32_t bits = 2;
    sample_make(&sample, 3, 8, 4, 1);
    (void)sample_write(&sample, plain);
    assert_status(moec_bundle_open(plain, &bundle, &err), MOEC_OK, err);
    certificate = bundle->certificate;
    assert_string_equal(bundle->fitted_evict, "");
    assert_string_equal(evict_of(bundle, (struct moec_mode_request){0}, "gate"), "hobbit");
    moec_bundle_close(bundle);
    assert_status(moec_bundle_put_fit(plain, &usual, NULL, NULL, with, &err), MOEC_OK, err);
    memset(other.predict, 0, sizeof other.predict);
    memcpy(other.predict, "none", 4);
    certificate.present = true;
    certificate.loss_high = 0.0125;
    assert_status(moec_bundle_put_fit(with, &other, NULL, &certificate, with, &err), MOEC_OK, err);
    assert_status(moec_bundle_strip(with, &bits, 1, plain, &stripped, &err), MOEC_OK, err);
    assert_status(moec_bundle_verify(plain, NULL, NULL, &err), MOEC_OK, err);
    assert_status(moec_bundle_open(plain, &bundle, &err), MOEC_OK, err);
    assert_status(moec_bundle_load_fit(bundle, &read, &err), MOEC_OK, err);
    assert_memory_equal(&read, &other, sizeof other);
    assert_true(bundle->certificate.present && bundle->certificate.loss_high == 0.0125);
    assert_string_equal(evict_of(bundle, (struct moec_mode_request){0}, "none"), "lfu");
    assert_string_equal(evict_of(bundle, (struct moec_mode_request){.evict = "lru"}, "none"), "lru");
    assert_string_equal(evict_of(bundle, (struct moec_mode_request){.predict = "gate"}, "gate"), "lfu");
    assert_string_equal(evict_of(bundle, (struct moec_mode_request){.mode = "moe-offloading"}, "gate"),
                        "lru");
    moec_bundle_close(bundle);
    other.memory_bytes = 0;
    assert_status(moec_bundle_put_fit(with, &other, NULL, NULL, with, &err), MOEC_ERR_FORMAT, err);
    sample_release(&sample);
    free(plain);
    free(with);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundle_fit__round_trip_and_damage),
        cmocka_unit_test(test_bundle_fit__in_a_bundle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
