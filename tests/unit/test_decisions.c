/* Settings of decisions in a bundle: their section, what it refuses, how they come into a bundle and go with
 * the copy they read; and the sequence of candidates that a certificate tests. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "compiler/certify/sequence.h"
#include "formats/base/bytes.h"
#include "formats/bundle/bundle_decisions.h"
#include "formats/bundle/bundle_format.h"
#include "formats/bundle/bundle_strip.h"
#include "runtime/policy/decide/route_settings.h"

#include <math.h>

/* ---- the section ---- */

static struct moec_bundle_decisions sample_decisions(const struct sample *sample)
{
    struct moec_bundle_decisions decisions = {
        .settings = {.route = "cache-prior:0.15",
                     .precision = "hobbit:0.8:1",
                     .n_slots = sample->config.n_expert,
                     .n_low_slots = sample->config.top_k,
                     .low_bits = 2,
                     .keep_top = 1,
                     .starts_frequent = true},
        .certificate = sample->certificate,
        .plain_loss = 0.01,
        .plain_low = 0.005,
        .plain_high = 0.015,
        .traffic = {.n_taken = 100, .n_missed = 12, .token_bytes = 2048.5},
        .plain_traffic = {.n_taken = 101, .n_missed = 40, .token_bytes = 8192},
    };
    struct moec_certificate *certificate = &decisions.certificate;
    certificate->present = true;
    certificate->n_sequence = 2;
    certificate->sequence[0] = moec_sequence_step_of(4096, NULL);
    certificate->sequence[1] = moec_sequence_step_of(2048, NULL);
    certificate->sequence[0].result = certificate->sequence[1].result = MOEC_SEQUENCE_PASSED;
    certificate->sequence[1].is_chosen = true;
    certificate->part_digest[5] = 77;
    return decisions;
}

static void test_decisions__the_section_holds_settings_and_their_certificate(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    uint8_t bytes[MOEC_DECISIONS_BYTES], again[MOEC_DECISIONS_BYTES];
    struct moec_bundle_decisions read;
    sample_make(&sample, 3, 8, 4, 1);
    const struct moec_bundle_decisions decisions = sample_decisions(&sample);
    assert_ok(moec_decisions_encode(&decisions, bytes, &err), err);
    assert_ok(moec_decisions_decode(bytes, sizeof bytes, &sample.config, &read, &err), err);
    assert_string_equal(read.settings.route, "cache-prior:0.15");
    assert_string_equal(read.settings.precision, "hobbit:0.8:1");
    assert_int_equal(read.settings.n_slots, sample.config.n_expert);
    assert_int_equal(read.settings.n_low_slots, sample.config.top_k);
    assert_int_equal(read.settings.low_bits, 2);
    assert_int_equal(read.settings.keep_top, 1);
    assert_true(read.settings.starts_frequent);
    assert_true(read.plain_loss == 0.01 && read.plain_low == 0.005 && read.plain_high == 0.015);
    assert_int_equal(read.traffic.n_missed, 12);
    assert_true(read.plain_traffic.token_bytes == 8192);
    assert_int_equal(read.certificate.n_sequence, 2);
    assert_int_equal(read.certificate.sequence[0].n_bytes, 4096);
    assert_true(read.certificate.sequence[1].is_chosen);
    assert_int_equal(read.certificate.part_digest[5], 77);
    assert_ok(moec_decisions_encode(&read, again, &err), err);
    assert_memory_equal(again, bytes, sizeof bytes);
    sample_release(&sample);
}

static void test_decisions__refuses_other_sections(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    uint8_t bytes[MOEC_DECISIONS_BYTES];
    struct moec_bundle_decisions read;
    static const struct {
        size_t at;
        uint8_t value;
        const char *message;
    } wrong[] = {
        {4, 4, "flags 0x4, expected 0 to 3"},
        {4, 2, "has version 1, expected version 2"},
        {8, 0, "0 cache slots"},
        {9, 1, "cache slots"},
        {13, 1, "low-precision slots"},
        {12, 0, "expected slots and bits above 0 if a precision"},
        {16, 0, "expected slots and bits above 0 if a precision"},
        {16, 17, "17 bits"},
        {20, 9, "keeps the first 9 experts"},
        {24, 'A', "byte 0 of the route in the bundle's decisions section is 0x41"},
        {24 + 20, 'a', "byte 20 of the route"},
        {56, '\n', "byte 0 of the precision"},
        {56 + 5, '\0', "of the precision"},
        {88 + 7, 0x7f, "expected finite numbers"}, /* with the byte below it NaN or infinite */
        {112, 1, "12 misses of 1 experts"},
        {128 + 7, 0xc0, "bytes per token"},
        {160, 0, "reserved byte"},
    };
    sample_make(&sample, 3, 8, 4, 1);
    const struct moec_bundle_decisions decisions = sample_decisions(&sample);
    assert_ok(moec_decisions_encode(&decisions, bytes, &err), err);
    for (size_t n = 0; n < sizeof bytes; n++)
        assert_status(moec_decisions_decode(bytes, n, &sample.config, &read, &err), MOEC_ERR_FORMAT, err);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint8_t changed[MOEC_DECISIONS_BYTES];
        memcpy(changed, bytes, sizeof changed);
        changed[wrong[i].at] = wrong[i].value;
        if (wrong[i].at == 88 + 7)
            changed[88 + 6] = 0xf0;
        err = (struct moec_error){0};
        assert_status(moec_decisions_decode(changed, sizeof changed, &sample.config, &read, &err),
                      MOEC_ERR_FORMAT, err);
        assert_message(err, wrong[i].message);
        assert_false(moec_decision_settings_are_on(&read.settings));
    }
    bytes[0] = 3;
    assert_status(moec_decisions_decode(bytes, sizeof bytes, &sample.config, &read, &err),
                  MOEC_ERR_UNSUPPORTED, err);
    sample_release(&sample);
}

/* Prompts that are left out, and how long they were. */
static void test_decisions__prompts_can_be_left_out(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    uint8_t bytes[MOEC_DECISIONS_PROMPT_BYTES];
    struct moec_bundle_decisions read;
    struct moec_route route;
    sample_make(&sample, 3, 8, 4, 1);
    struct moec_bundle_decisions decisions = sample_decisions(&sample);
    decisions.settings.decode_only = true;
    decisions.prompt_tokens = 24;
    assert_int_equal(moec_decisions_bytes(&decisions.settings), sizeof bytes);
    assert_ok(moec_decisions_encode(&decisions, bytes, &err), err);
    assert_ok(moec_decisions_decode(bytes, sizeof bytes, &sample.config, &read, &err), err);
    assert_true(read.settings.decode_only && read.settings.starts_frequent && read.prompt_tokens == 24);
    read.settings.starts_frequent = false;
    assert_ok(moec_route_from_settings(&read.settings, &sample.config, NULL, "a.moec", &route, &err), err);
    assert_true(route.decode_only);
    bytes[4] = 1; /* without the flag it would be a prefill's version */
    assert_status(moec_decisions_decode(bytes, sizeof bytes, &sample.config, &read, &err), MOEC_ERR_FORMAT,
                  err);
    assert_message(err, "has version 2, expected version 1, because it has no prefill setting");
    sample_release(&sample);
}

/* A precision with blocks tells prompts apart, too. */
static void test_decisions__blocks_keep_the_length_of_prompts(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    uint8_t bytes[MOEC_DECISIONS_PROMPT_BYTES];
    struct moec_bundle_decisions read;
    struct moec_route route;
    sample_make(&sample, 3, 8, 4, 1);
    struct moec_bundle_decisions decisions = sample_decisions(&sample);
    decisions.settings.starts_frequent = false;
    assert_int_equal(moec_decisions_bytes(&decisions.settings), MOEC_DECISIONS_BYTES);
    (void)snprintf(decisions.settings.precision, sizeof decisions.settings.precision, "hobbit:0.6:0.9:32");
    decisions.prompt_tokens = 24;
    assert_int_equal(moec_decisions_bytes(&decisions.settings), sizeof bytes);
    assert_ok(moec_decisions_encode(&decisions, bytes, &err), err);
    assert_ok(moec_decisions_decode(bytes, sizeof bytes, &sample.config, &read, &err), err);
    assert_true(!read.settings.decode_only && read.prompt_tokens == 24);
    assert_ok(moec_route_from_settings(&read.settings, &sample.config, NULL, "a.moec", &route, &err), err);
    assert_int_equal(route.precision.block_tokens, 32);
    bytes[0] = 1;
    assert_status(moec_decisions_decode(bytes, MOEC_DECISIONS_BYTES, &sample.config, &read, &err),
                  MOEC_ERR_FORMAT, err);
    assert_message(err, "has version 1, expected version 2");
    sample_release(&sample);
}

/* A prefill makes the section longer, and other settings leave it as it was. */
static void test_decisions__a_prefill_has_a_version_of_its_own(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    uint8_t bytes[MOEC_DECISIONS_PROMPT_BYTES], again[MOEC_DECISIONS_PROMPT_BYTES];
    struct moec_bundle_decisions read;
    static const struct {
        size_t at;
        uint8_t value;
        const char *message;
    } wrong[] = {
        {0, 1, "1272 bytes, expected 1232"},
        {1232, 0, "byte 1 of the prefill"},
        {1232 + 3, ' ', "byte 3 of the prefill"},
        {1268, 1, "of version 2 ends with the number 1, expected 0"},
    };
    sample_make(&sample, 3, 8, 4, 1);
    struct moec_bundle_decisions decisions = sample_decisions(&sample);
    memset(decisions.settings.precision, 0, sizeof decisions.settings.precision);
    (void)snprintf(decisions.settings.prefill, sizeof decisions.settings.prefill, "unpopular:0.25:64");
    decisions.prompt_tokens = 128;
    assert_int_equal(moec_decisions_bytes(&decisions.settings), sizeof bytes);
    assert_ok(moec_decisions_encode(&decisions, bytes, &err), err);
    assert_ok(moec_decisions_decode(bytes, sizeof bytes, &sample.config, &read, &err), err);
    assert_string_equal(read.settings.prefill, "unpopular:0.25:64");
    assert_int_equal(read.prompt_tokens, 128);
    assert_int_equal(read.settings.low_bits, 2);
    assert_ok(moec_decisions_encode(&read, again, &err), err);
    assert_memory_equal(again, bytes, sizeof bytes);
    for (size_t n = 0; n < sizeof bytes; n++) {
        err = (struct moec_error){0};
        assert_status(moec_decisions_decode(bytes, n, &sample.config, &read, &err), MOEC_ERR_FORMAT, err);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(again, bytes, sizeof again);
        again[wrong[i].at] = wrong[i].value;
        err = (struct moec_error){0};
        assert_status(moec_decisions_decode(again, sizeof again, &sample.config, &read, &err),
                      MOEC_ERR_FORMAT, err);
        assert_message(err, wrong[i].message);
    }
    /* What looks at tokens to come is never a bundle's. */
    struct moec_route route;
    err = (struct moec_error){0};
    assert_ok(moec_decisions_decode(bytes, sizeof bytes, &sample.config, &read, &err), err);
    assert_ok(moec_route_from_settings(&read.settings, &sample.config, &sample.paths, "a.moec", &route, &err),
              err);
    assert_int_equal(route.prefill.block_tokens, 64);
    assert_ptr_equal(route.prefill.frequency, sample.paths.frequency);
    static const char *const ahead[] = {"whole:0.25", "popular:0.25"};
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(read.settings.prefill, sizeof read.settings.prefill, "%s", ahead[i]);
        err = (struct moec_error){0};
        assert_status(
            moec_route_from_settings(&read.settings, &sample.config, &sample.paths, "a.moec", &route, &err),
            MOEC_ERR_USAGE, err);
        assert_message(err, "cannot be certified");
    }
    sample_release(&sample);
}

static void test_decisions__a_bundle_takes_settings_and_loses_them_with_their_copy(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    char *folder = temporary_folder(), *path = temporary_path(folder, "a.moec"),
         *out = temporary_path(folder, "b.moec");
    struct moec_bundle *bundle = NULL;
    struct moec_bundle_stripped stripped;
    struct moec_bundle_decisions read;
    const uint32_t bits[] = {2};
    sample_make(&sample, 3, 8, 4, 1);
    (void)sample_write(&sample, path);
    struct moec_bundle_decisions decisions = sample_decisions(&sample);
    assert_ok(moec_bundle_put_decisions(path, &decisions, out, &err), err);
    (void)snprintf(decisions.settings.route, sizeof decisions.settings.route, "cache-prior:0.3");
    assert_ok(moec_bundle_put_decisions(out, &decisions, out, &err), err); /* a second time, in place */
    assert_ok(moec_bundle_verify(out, NULL, NULL, &err), err);
    assert_ok(moec_bundle_open(out, &bundle, &err), err);
    assert_ok(moec_bundle_load_decisions(bundle, &read, &err), err);
    assert_string_equal(read.settings.route, "cache-prior:0.3");
    assert_string_equal(bundle->provenance.options, "--bits 4; tune");
    moec_bundle_close(bundle);
    decisions.settings.n_slots = sample.config.n_expert + 1;
    assert_status(moec_bundle_put_decisions(path, &decisions, out, &err), MOEC_ERR_FORMAT, err);
    assert_ok(moec_bundle_strip(out, bits, 1, out, &stripped, &err), err);
    assert_true(stripped.drops_decisions);
    assert_ok(moec_bundle_verify(out, NULL, NULL, &err), err);
    assert_ok(moec_bundle_open(out, &bundle, &err), err);
    assert_ok(moec_bundle_load_decisions(bundle, &read, &err), err);
    assert_false(moec_decision_settings_are_on(&read.settings));
    moec_bundle_close(bundle);
    sample_release(&sample);
    temporary_remove(folder);
    free(path);
    free(out);
}

/* Settings give the route that their words on the command line do. */
static void test_decisions__settings_are_a_route(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    struct moec_route route;
    sample_make(&sample, 3, 8, 4, 1);
    struct moec_decision_settings settings = sample_decisions(&sample).settings;
    assert_ok(moec_route_from_settings(&settings, &sample.config, &sample.paths, "a.moec", &route, &err),
              err);
    assert_int_equal(route.kind, MOEC_ROUTE_CACHE_PRIOR);
    assert_true(route.share == 0.15f && route.keep_top == 1 && route.n_slots == settings.n_slots);
    assert_int_equal(route.precision.kind, MOEC_PRECISION_HOBBIT);
    assert_true(route.precision.high_score == 0.8f && route.precision.low_score == 1);
    assert_int_equal(route.n_low_slots, settings.n_low_slots);
    assert_ptr_equal(route.initial, sample.paths.frequency);
    assert_status(moec_route_from_settings(&settings, &sample.config, NULL, "a.moec", &route, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "'a.moec' does not say how often experts are used");
    err = (struct moec_error){0};
    (void)snprintf(settings.precision, sizeof settings.precision, "shared:0.8:1");
    assert_status(moec_route_from_settings(&settings, &sample.config, &sample.paths, "a.moec", &route, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "a.moec: precision shared:0.8:1 decides by the experts in memory");
    settings.route[0] = 'x';
    assert_status(moec_route_from_settings(&settings, &sample.config, &sample.paths, "a.moec", &route, &err),
                  MOEC_ERR_USAGE, err);
    sample_release(&sample);
}

/* ---- the sequence ---- */

static void test_decisions__a_sequence_is_dense_where_tests_may_fail(void **state)
{
    (void)state;
    struct moec_sequence_candidate front[40];
    bool taken[40];
    const struct moec_loss last = {.n_unit = 100, .error = 0.001};
    const struct moec_sequence_spacing spacing = moec_sequence_spacing_of(0.02, &last, 100, 100, 0.95);
    uint32_t n = 0, n_late = 0;
    assert_true(spacing.search_error == 0.001 && spacing.certify_error == 0.001);
    assert_true(moec_sequence_certain(&spacing, 1) < moec_sequence_certain(&spacing, 0));
    assert_true(moec_sequence_certain(&spacing, 0) < 0.02 - 1.6 * 0.001);
    for (uint32_t i = 0; i < 40; i++)
        front[i] = (struct moec_sequence_candidate){.n_bytes = 4000 - 50 * i, .difference = 0.0005 * (i + 1)};
    moec_sequence_choose(front, 40, &spacing, front[39].n_bytes, 4400, taken);
    for (uint32_t i = 0; i < 40; i++) {
        n += taken[i];
        n_late += taken[i] && front[i].difference > 0.01;
    }
    assert_int_equal(n, MOEC_SEQUENCE_MAX_BETWEEN);
    assert_true(n_late >= 4);
    assert_false(taken[39]); /* the smallest stands in the sequence anyway */
}

static void test_decisions__a_test_passes_where_its_interval_does(void **state)
{
    (void)state;
    struct moec_loss loss = {.loss = 0.01,
                             .low = 0.005,
                             .high = 0.02,
                             .n_unit = 50,
                             .n_window = 50,
                             .difference = 0.00995,
                             .error = 0.003};
    struct moec_sequence_step step = moec_sequence_step_of(10, &loss);
    char text[MOEC_SEQUENCE_ADVICE_BYTES];
    assert_true(step.search_loss == 0.01 && step.search_high == 0.02 && isnan(step.loss));
    moec_sequence_judge(&step, &loss, 0.02, true);
    assert_int_equal(step.result, MOEC_SEQUENCE_PASSED);
    assert_true(step.p_value > 0 && step.p_value < 0.05 && step.high == 0.02);
    moec_sequence_judge(&step, &loss, 0.0199, false);
    assert_int_equal(step.result, MOEC_SEQUENCE_FAILED);
    moec_sequence_judge(&step, &loss, NAN, true);
    assert_int_equal(step.result, MOEC_SEQUENCE_PASSED);
    assert_non_null(strstr(moec_sequence_advice(&loss, 0.015, "windows", text),
                           "about 314 windows would prove the target in four of five cases"));
    assert_non_null(strstr(moec_sequence_advice(&loss, 0.005, "rows", text), "more rows do not help"));
    assert_non_null(strstr(text, "the 50 measured ones prove --max-loss 2.000%"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decisions__the_section_holds_settings_and_their_certificate),
        cmocka_unit_test(test_decisions__refuses_other_sections),
        cmocka_unit_test(test_decisions__prompts_can_be_left_out),
        cmocka_unit_test(test_decisions__blocks_keep_the_length_of_prompts),
        cmocka_unit_test(test_decisions__a_prefill_has_a_version_of_its_own),
        cmocka_unit_test(test_decisions__a_bundle_takes_settings_and_loses_them_with_their_copy),
        cmocka_unit_test(test_decisions__settings_are_a_route),
        cmocka_unit_test(test_decisions__a_sequence_is_dense_where_tests_may_fail),
        cmocka_unit_test(test_decisions__a_test_passes_where_its_interval_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
