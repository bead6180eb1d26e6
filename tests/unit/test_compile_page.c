/* The report of a compile: the trace keeps each measurement once, shares add up to the file, and the page has
 * every part whatever was measured. */
#include "compiler/compile/compile_variants.h"
#include "compiler/page/compile_page.h"
#include "formats/checkpoint/checkpoint.h"
#include "profiler/profile/codes_study.h"
#include "tests/unit/dense_load.h"
#include "tests/unit/temporary.h"

#include <math.h>

#define FIXTURE "tests/fixtures/families/olmoe"

static void add_point(struct moec_search_trace *trace, enum moec_trace_part part, uint32_t uniform_bits,
                      uint64_t n_bytes, double loss)
{
    const struct moec_trace_point point = {.part = part,
                                           .is_alike = uniform_bits > 0,
                                           .alike = moec_variant_uniform(uniform_bits),
                                           .uniform_bits = uniform_bits,
                                           .dense_bits = 16,
                                           .n_bytes = n_bytes,
                                           .loss = loss,
                                           .low = loss - 0.01,
                                           .high = loss + 0.01};
    assert_int_equal(moec_search_trace_add(trace, &point, NULL), MOEC_OK);
}

static void test_trace__keeps_each_measurement_once(void **state)
{
    (void)state;
    struct moec_search_trace trace = {0};
    add_point(&trace, MOEC_TRACE_SEARCH, 2, 1000, 0.5);
    add_point(&trace, MOEC_TRACE_SEARCH, 0, 1500, 0.015);
    add_point(&trace, MOEC_TRACE_SEARCH, 0, 1500, 0.015);
    add_point(&trace, MOEC_TRACE_SEARCH, 3, 2000, 0.01);
    add_point(&trace, MOEC_TRACE_CERTIFICATE, 0, 1500, 0.015);
    add_point(&trace, MOEC_TRACE_CERTIFICATE, 0, 1, 0.001);
    assert_int_equal(trace.n, 5);
    struct moec_trace_point dense = {.dense_bits = 16};
    assert_int_equal(moec_search_trace_uniform(&trace, 3, &dense)->n_bytes, 2000);
    assert_null(moec_search_trace_uniform(&trace, 4, &dense));
    dense.dense_bits = 8;
    assert_null(moec_search_trace_uniform(&trace, 3, &dense));
    dense = (struct moec_trace_point){.dense_bits = 16, .dense_digest = 1};
    assert_null(moec_search_trace_uniform(&trace, 3, &dense));
    assert_int_equal(moec_search_trace_smallest(&trace, 0.026)->n_bytes, 1500);
    assert_int_equal(moec_search_trace_smallest(&trace, 0.021)->n_bytes, 2000);
    assert_null(moec_search_trace_smallest(&trace, 0.001));
    moec_search_trace_release(&trace);
    assert_int_equal(trace.n, 0);
}

/* A plan of its own, by KL: the loss of a few windows can say anything. */
static void add_kl_point(struct moec_search_trace *trace, bool is_alike, uint64_t n_bytes, double loss,
                         double kl)
{
    const struct moec_trace_point point = {.part = MOEC_TRACE_SEARCH,
                                           .is_alike = is_alike,
                                           .alike = moec_variant_uniform(is_alike ? 2 : 0),
                                           .n_bytes = n_bytes,
                                           .loss = loss,
                                           .kl = kl};
    assert_int_equal(moec_search_trace_add(trace, &point, NULL), MOEC_OK);
}

static void test_trace__mixing_is_compared_at_one_loss(void **state)
{
    (void)state;
    struct moec_search_trace trace = {0};
    const struct moec_trace_point limit = {.kl = 0.0100, .loss = 0.012}, by_loss = {.loss = 0.012};
    add_kl_point(&trace, true, 900, 0.5, 0.5);      /* loses too much */
    add_kl_point(&trace, true, 1100, 0.02, 0.0102); /* as much, within what policies tell apart */
    add_kl_point(&trace, true, 1500, 0.001, 0.001);
    assert_false(moec_search_trace_mixing(&trace, &limit).is_known);
    add_kl_point(&trace, false, 1045, 0.011, 0.0104); /* a little more */
    assert_false(moec_search_trace_mixing(&trace, &limit).is_known);
    add_kl_point(&trace, false, 1067, 0.012, 0.0100);
    struct moec_mixing_gain gain = moec_search_trace_mixing(&trace, &limit);
    assert_true(gain.is_known && gain.single.n_bytes == 1100 && gain.mixed.n_bytes == 1067);
    assert_true(fabs(gain.saving - 0.03) < 1e-12);
    /* Without KL the loss counts, to the point. */
    gain = moec_search_trace_mixing(&trace, &by_loss);
    assert_true(gain.is_known && gain.single.n_bytes == 1500 && gain.mixed.n_bytes == 1045);
    /* One plan for all may be the smaller one. */
    add_kl_point(&trace, true, 970, 0.012, 0.0090);
    assert_true(fabs(moec_search_trace_mixing(&trace, &limit).saving + 0.1) < 1e-12);
    moec_search_trace_release(&trace);
}

/* A profile's verdict is about the codes that compile offers, but for who chooses them. */
static void test_codes__of_profiles_are_those_of_compiles(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_codec offered[MOEC_CODEC_TABLE] = {0};
    assert_status(moec_compile_further_codecs(offered, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < MOEC_CODES_COUNT; i++) {
        struct moec_codec codec;
        uint32_t number = MOEC_CODEC_FIRST_OTHER;
        assert_status(moec_codes_codec(i, &codec, &err), MOEC_OK, err);
        while (number < MOEC_CODEC_TABLE &&
               !(moec_codec_equal(offered[number], codec) && moec_compile_is_for_experts(number)))
            number++;
        assert_int_not_equal(number, MOEC_CODEC_TABLE);
    }
}

static void test_shares__add_up_to_the_file(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_dense dense = {0};
    struct moec_bundle_plan *bundle = NULL;
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {0};
    struct moec_plan plan = {0};
    struct moec_bundle_shares shares = {0};
    static const uint8_t copies[] = {2, 8};
    assert_status(moec_checkpoint_open(FIXTURE, &checkpoint, &err), MOEC_OK, err);
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    assert_status(dense_load(checkpoint, 16, 0, &dense, &err), MOEC_OK, err);
    assert_status(
        moec_codec_table(MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SYMMETRIC, 32, MOEC_DTYPE_BF16, codecs, &err),
        MOEC_OK, err);
    const struct moec_bundle_parts parts = {
        .config = config, .dense = &dense, .codecs = codecs, .alignment = MOEC_BUNDLE_ALIGNMENT};
    assert_status(moec_bundle_plan_create(&parts, &bundle, &err), MOEC_OK, err);
    assert_status(moec_plan_create(&plan, config, &err), MOEC_OK, err);
    for (size_t i = 0; i < moec_plan_count(&plan); i++)
        plan.experts[i] = moec_variant_uniform(i % 2 ? 3 : 8);
    plan.experts[0].codecs[MOEC_PROJECTION_DOWN] = 2;
    uint64_t *alone = calloc(dense.n_entries, sizeof *alone); /* the embedding, of 7 bytes */
    assert_non_null(alone);
    for (uint32_t i = 0; i < dense.n_entries; i++)
        alone[i] = dense.entries[i].role == MOEC_ROLE_EMBEDDING ? 7 : 0;
    for (uint32_t n_copy = 0; n_copy <= 2; n_copy++) {
        uint64_t n_bytes = 0, sum = 0, n_weight = 0, n_matrix = 0;
        assert_status(moec_bundle_plan_bytes(bundle,
                                             &(struct moec_bundle_assignment){.experts = plan.experts,
                                                                              .copy_bits = copies,
                                                                              .n_extra = n_copy},
                                             &n_bytes, &err),
                      MOEC_OK, err);
        const struct moec_bundle_shares_request request = {.bundle = bundle,
                                                           .config = config,
                                                           .codecs = codecs,
                                                           .dense = &dense,
                                                           .dense_bytes = n_copy == 1 ? alone : NULL,
                                                           .plan = &plan,
                                                           .copy_bits = copies,
                                                           .n_copy_bits = n_copy};
        assert_status(moec_bundle_shares_make(&request, &shares, &err), MOEC_OK, err);
        for (size_t i = 0; i < shares.n; i++) {
            sum += shares.items[i].n_bytes;
            if (strcmp(shares.items[i].name, "embedding") == 0 && n_copy == 1)
                assert_int_equal(shares.items[i].n_bytes, 7);
            if (strcmp(shares.items[i].name, "down of experts") == 0) {
                n_weight += shares.items[i].n_weight;
                n_matrix += shares.items[i].n_matrix;
            }
        }
        assert_int_equal(sum, n_bytes);
        assert_int_equal(n_matrix, moec_plan_count(&plan));
        assert_int_equal(n_weight, moec_plan_count(&plan) * config->n_ff_expert * config->n_embd);
        moec_bundle_shares_release(&shares);
    }
    free(alone);
    moec_plan_release(&plan);
    moec_bundle_plan_free(bundle);
    moec_dense_release(&dense);
    moec_checkpoint_close(checkpoint);
}

/* A report as a search with a sequence of eight leaves it. */
static void fill_report(struct moec_compile_report *report, const struct moec_config *config)
{
    assert_int_equal(moec_plan_create(&report->plan, config, NULL), MOEC_OK);
    assert_int_equal(moec_codec_table(MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_BF16,
                                      report->codecs, NULL),
                     MOEC_OK);
    moec_plan_fill(&report->plan, 3);
    report->plan.experts[1].codecs[MOEC_PROJECTION_DOWN] = 4;
    report->source_bytes = 9000;
    report->n_bytes = 1500;
    for (uint32_t i = 0; i < 700; i++) /* more than a table of a figure holds */
        add_point(&report->trace, MOEC_TRACE_SEARCH, 0, 1500 + i, 0.02 + 0.001 * i);
    add_point(&report->trace, MOEC_TRACE_SEARCH, 2, 1000, 1.5);
    add_point(&report->trace, MOEC_TRACE_SELECT, 0, 1501, 0.017);
    report->trace.has_chosen = true;
    report->trace.chosen = report->trace.points[0];
    report->trace.n_sequence = MOEC_MAX_SEQUENCE;
    for (uint32_t i = 0; i < MOEC_MAX_SEQUENCE; i++)
        report->trace.sequence[i] = (struct moec_sequence_step){
            .n_bytes = 5000 - 500 * i,
            .search_loss = (double)NAN,
            .search_high = (double)NAN,
            .loss = i < 7 ? 0.001 * i : (double)NAN,
            .low = i < 7 ? 0 : (double)NAN,
            .p_value = i < 7 ? 0.01 : (double)NAN,
            .high = i < 6 ? 0.002 * i : (double)NAN, /* the test of plan 6 ended early */
            .result = i < 6    ? MOEC_SEQUENCE_PASSED
                      : i == 6 ? MOEC_SEQUENCE_FAILED
                               : MOEC_SEQUENCE_NOT_TESTED,
            .is_chosen = i == 5,
        };
    void *items = calloc(1, sizeof *report->shares.items);
    assert_non_null(items);
    report->shares = (struct moec_bundle_shares){.n = 1, .items = items, .capacity = 1};
    report->shares.items[0] =
        (struct moec_bundle_share){.part = "tokenizer", .name = "tokenizer", .n_bytes = 1500};
}

static uint32_t count(const char *text, const char *word)
{
    uint32_t n = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        n++;
    return n;
}

static char *write_page(const struct moec_compile_page *page, const char *folder)
{
    struct moec_error err = {0};
    char *path = temporary_path(folder, "page.html");
    size_t n = 0;
    assert_status(moec_compile_page_write(page, path, &err), MOEC_OK, err);
    free(path);
    return (char *)temporary_read(folder, "page.html", &n);
}

static void test_page__has_every_part(void **state)
{
    (void)state;
    static const char *const parts[] = {"result", "curve", "bytes", "bits", "certificate", "settings"};
    static const char *const figures[] = {"curve", "curve_near", "bytes", "bits", "bits_gate", "bits_down"};
    static const uint8_t digest[MOEC_SHA256_BYTES] = {1};
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = NULL;
    assert_status(moec_checkpoint_open(FIXTURE, &checkpoint, &err), MOEC_OK, err);
    struct moec_compile_report report = {0};
    const struct moec_compile_options options = {
        .search.policy = "<b>mine</b>.lua",
        .target = {.max_loss = 0.03, .max_bytes = 2000, .confidence = 0.95},
        .source = {.options = "max-loss=0.03", .model = "<script>a</script>"}};
    fill_report(&report, moec_checkpoint_config(checkpoint));
    struct moec_compile_page page = {.report = &report,
                                     .options = &options,
                                     .config = moec_checkpoint_config(checkpoint),
                                     .model_digest = digest};
    char *folder = temporary_folder(), *text = write_page(&page, folder), word[64];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        (void)snprintf(word, sizeof word, "<section id=\"%s\"", parts[i]);
        assert_int_equal(count(text, word), 1);
        (void)snprintf(word, sizeof word, "href=\"#%s\"", parts[i]);
        assert_int_equal(count(text, word), 1);
    }
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        (void)snprintf(word, sizeof word, "<figure id=\"figure-%s\"", figures[i]);
        assert_int_equal(count(text, word), 1);
    }
    assert_int_equal(
        count(text, "<p class=\"lead\">The plan, which was not written, takes 0.0015 MB, 16.7 % of the "
                    "weights that it came from.</p>"),
        1);
    assert_int_equal(count(text, "<td>passed</td>"), 5);
    assert_int_equal(count(text, "<td>passed, chosen</td>"), 1);
    assert_int_equal(count(text, "<td>failed on the first half of the windows</td>"), 1);
    assert_int_equal(count(text, "<td>not tested</td>"), 1);
    assert_int_equal(count(text, "<script"), 0);
    assert_int_equal(count(text, "<b>"), 0);
    assert_int_equal(count(text, "&lt;script&gt;a&lt;/script&gt;"), 3);
    char *again = write_page(&page, folder);
    assert_string_equal(text, again);
    free(again);
    free(text);
    moec_compile_report_release(&report);
    temporary_remove(folder);
    moec_checkpoint_close(checkpoint);
}

/* A search that found nothing: what it measured is shown, and why there is no bundle. */
static void test_page__of_a_search_without_result(void **state)
{
    (void)state;
    static const uint8_t digest[MOEC_SHA256_BYTES] = {1};
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = NULL;
    assert_status(moec_checkpoint_open(FIXTURE, &checkpoint, &err), MOEC_OK, err);
    struct moec_compile_report report = {0};
    const struct moec_compile_options options = {
        .search.policy = "edgemoe", .target.max_loss = 0.0, .source = {.options = "", .model = "m"}};
    const struct moec_compile_page page = {.report = &report,
                                           .options = &options,
                                           .config = moec_checkpoint_config(checkpoint),
                                           .model_digest = digest,
                                           .failure = "the <target> is missed"};
    char *folder = temporary_folder(), *text = write_page(&page, folder);
    assert_int_equal(count(text, "No loss was measured."), 1);
    assert_int_equal(count(text, "the &lt;target&gt; is missed"), 1);
    assert_int_equal(count(text, "<figure"), 0);
    free(text);
    add_point(&report.trace, MOEC_TRACE_SEARCH, 4, 100, -0.5);
    assert_status(moec_codec_for_bits(4, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_F32, &report.codecs[4], &err),
                  MOEC_OK, err);
    text = write_page(&page, folder);
    assert_int_equal(count(text, "<figure"), 1);
    assert_int_equal(count(text, "all in int4 symmetric channel"), 1);
    free(text);
    moec_compile_report_release(&report);
    temporary_remove(folder);
    moec_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace__keeps_each_measurement_once),
        cmocka_unit_test(test_trace__mixing_is_compared_at_one_loss),
        cmocka_unit_test(test_codes__of_profiles_are_those_of_compiles),
        cmocka_unit_test(test_shares__add_up_to_the_file),
        cmocka_unit_test(test_page__has_every_part),
        cmocka_unit_test(test_page__of_a_search_without_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
