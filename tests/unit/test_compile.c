/* A whole compile of the sample on few and short windows: what it promises is what its certificate part says
 * of the plan that it writes; and what a kept measurement is found by. */
#include "compiler/certify/promise.h"
#include "compiler/compile/compile_dense.h"
#include "compiler/compile/compile_internal.h"
#include "compiler/compile/compile_offer.h"
#include "compiler/compile/compile_run.h"
#include "compiler/compile/compile_units.h"
#include "compiler/compile/compile_variants.h"
#include "compiler/compile/compile_wanted.h"

#include "profiler/evaluate/load_model.h"
#include "profiler/profile/profile_run.h"
#include "tests/unit/temporary.h"

#include <inttypes.h>
#include <math.h>

#define MODEL     "datasets/sample/model"
#define N_SEARCH  16u
#define N_CERTIFY 22u

/* A sequence from the safest on, in which 2 bits, which lose most, are not the last. */
static const char policy[] = "local uniform = require('assignment').uniform\n"
                             "return function(moec)\n"
                             "  return {sequence = {uniform(moec, 8), uniform(moec, 2), uniform(moec, 4)}}\n"
                             "end\n";

static const char two_bits[] = "return function(moec) return require('assignment').uniform(moec, 2) end\n";

struct bench {
    char *folder, *policy, *out;
    uint64_t max_bytes; /* that a bundle may have; 0 = any */
    struct moec_checkpoint *checkpoint;
    struct moec_profile profile;
    struct moec_compile_report report;
};

static struct moec_profile_options profile_options(void)
{
    return (struct moec_profile_options){
        .data = {.task = moec_task_text(),
                 .path = "datasets/sample/calibration.txt",
                 .seq_len_tokens = 24,
                 .parts = {.n_part = {[MOEC_PART_SEARCH] = N_SEARCH, [MOEC_PART_CERTIFICATE] = N_CERTIFY},
                           .no_select = true},
                 .seed = 9},
        .measures.sensitivity = MOEC_SENSITIVITY_NONE,
        .codes.baseline_bits = 4,
        .by = {.kernels = moec_kernels_best(), .n_threads = 1}};
}

static int setup(void **state)
{
    static struct bench bench;
    struct bench *b = &bench;
    *b = (struct bench){.folder = temporary_folder()};
    b->policy = temporary_path(b->folder, "sequence.lua");
    b->out = temporary_path(b->folder, "out.moec");
    temporary_write(b->folder, "sequence.lua", policy, sizeof policy - 1);
    MUST(moec_checkpoint_open(MODEL, &b->checkpoint, &err));
    const struct moec_profile_options options = profile_options();
    MUST(moec_profile_run(b->checkpoint, &options, &b->profile, &err));
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    moec_compile_report_release(&b->report);
    moec_profile_release(&b->profile);
    moec_checkpoint_close(b->checkpoint);
    free(b->policy);
    free(b->out);
    temporary_remove(b->folder);
    return 0;
}

static struct moec_compile_options options_of(const struct bench *b, double max_loss)
{
    return (struct moec_compile_options){
        .search.policy = b->policy,
        .target = {.max_loss = max_loss, .max_bytes = b->max_bytes, .confidence = 0.95},
        .dense.bits = 16,
        .by = {.n_threads = 1, .kernels = moec_kernels_best()},
        .source = {.options = "", .model = "sample"}};
}

static enum moec_status compile(struct bench *b, double max_loss, struct moec_error *err)
{
    const uint8_t digest[MOEC_SHA256_BYTES] = {1};
    const struct moec_compile_options options = options_of(b, max_loss);
    moec_compile_report_release(&b->report);
    return moec_compile(&(struct moec_compile_inputs){b->checkpoint, &b->profile, digest}, &options, NULL,
                        b->out, &b->report, err);
}

static void assert_uniform(const struct bench *b, uint32_t bits)
{
    for (size_t i = 0; i < moec_plan_count(&b->report.plan); i++)
        assert_true(moec_variant_equal(b->report.plan.experts[i], moec_variant_uniform(bits)));
}

/* The step of a plan by its bundle's bytes: of those that the policy gave, the last three. */
static const struct moec_sequence_step *step_of(const struct bench *b, uint32_t place)
{
    const struct moec_certificate *certificate = &b->report.certificate;
    assert_true(certificate->n_sequence >= 3);
    return &certificate->sequence[certificate->n_sequence - 3 + place];
}

/* Of windows that the profile has left alone. */
static double original_perplexity(const struct bench *b, const struct moec_windows *windows)
{
    struct moec_model *model = NULL;
    struct moec_variants *variants = NULL;
    struct moec_scorer *scorer = NULL;
    double *nll = calloc(windows->n_window, sizeof *nll);
    const struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = 1}};
    MUST(moec_load_model(b->checkpoint, 16, 0, 0, &model, &err));
    MUST(moec_variants_create(b->checkpoint, &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, 1},
                              &variants, &err));
    MUST(moec_variants_assign_all(variants, moec_variants_source_bits(variants), &err));
    MUST(moec_scorer_create(model, moec_variants_experts(variants), windows, &options, &scorer, &err));
    MUST(moec_scorer_set_reference(scorer, model, moec_variants_experts(variants), nll, NULL, &err));
    const double perplexity = moec_profile_perplexity(nll, windows->scored, windows->n_window);
    moec_scorer_free(scorer);
    moec_variants_free(variants);
    moec_model_free(model);
    free(nll);
    return perplexity;
}

static void test_compile__certifies_on_the_certificate_part(void **state)
{
    struct bench *b = *state;
    struct moec_windows windows;
    uint8_t digest[MOEC_SHA256_BYTES];
    MUST(compile(b, 100, &err));
    const struct moec_certificate *certificate = &b->report.certificate;
    MUST(moec_windows_from_profile(&b->profile, MOEC_PART_CERTIFICATE, &windows, &err));
    moec_promise_digest_windows(b->profile.data_digest, &windows, digest);
    assert_int_equal(windows.n_window, N_CERTIFY);
    assert_int_equal(certificate->n_window, N_CERTIFY);
    assert_memory_equal(certificate->part_digest, digest, sizeof digest);
    assert_true(certificate->reference == original_perplexity(b, &windows));
    moec_windows_release(&windows);
    /* Everything passes such a target: the last is written, with its own loss. */
    assert_uniform(b, 4);
    assert_true(step_of(b, 2)->is_chosen && certificate->loss_high == step_of(b, 2)->high);
}

static bool has_unit(const char *journal, const char *key)
{
    static char bytes[1 << 20];
    FILE *file = fopen(journal, "rb");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    assert_true(n < sizeof bytes);
    (void)fclose(file);
    return memmem(bytes, n, key, strlen(key)) != NULL;
}

/* A window of the certificate part that no model can read stops the compile where a model first looks at it: not
 * before sequence, order and number of windows are kept. */
static void test_compile__looks_at_no_certificate_window_before_all_is_fixed(void **state)
{
    struct bench *b = *state;
    const uint8_t digest[MOEC_SHA256_BYTES] = {1};
    struct moec_compile_options options = options_of(b, 100);
    struct moec_error err = {0};
    char *journal = temporary_path(b->folder, "journal");
    assert_int_equal(b->profile.n_window, N_SEARCH);
    assert_int_equal(b->profile.n_drawn, N_SEARCH + N_CERTIFY);
    options.journal.path = journal;
    for (uint32_t w = b->profile.n_window; w < b->profile.n_drawn; w++) {
        uint32_t *token = b->profile.window_tokens + (size_t)w * b->profile.seq_len_tokens;
        *token += 1u << 20;
    }
    moec_compile_report_release(&b->report);
    assert_int_equal(moec_compile(&(struct moec_compile_inputs){b->checkpoint, &b->profile, digest}, &options,
                                  NULL, b->out, &b->report, &err),
                     MOEC_ERR_MISMATCH);
    assert_non_null(strstr(err.message, "outside the model's vocabulary"));
    assert_true(has_unit(journal, "certificate/22"));
    assert_true(has_unit(journal, "sequence/"));
    assert_false(has_unit(journal, "original/1"));
    for (uint32_t w = b->profile.n_window; w < b->profile.n_drawn; w++) {
        uint32_t *token = b->profile.window_tokens + (size_t)w * b->profile.seq_len_tokens;
        *token -= 1u << 20;
    }
    (void)remove(journal);
    free(journal);
}

static void test_compile__writes_the_last_that_passed_before_one_failed(void **state)
{
    struct bench *b = *state;
    struct moec_bundle *bundle = NULL;
    MUST(compile(b, 100, &err));
    const double high_2 = step_of(b, 1)->high, high_4 = step_of(b, 2)->high, high_8 = step_of(b, 0)->high;
    const uint64_t bytes_8 = step_of(b, 0)->n_bytes;
    assert_true(high_8 < high_4 && high_4 < high_2);
    MUST(compile(b, (high_4 + high_2) / 2, &err));
    assert_int_equal(step_of(b, 0)->result, MOEC_SEQUENCE_PASSED);
    assert_int_equal(step_of(b, 1)->result, MOEC_SEQUENCE_FAILED);
    assert_int_equal(step_of(b, 2)->result, MOEC_SEQUENCE_NOT_TESTED);
    assert_uniform(b, 8);
    assert_true(b->report.certificate.loss_high == high_8 && !b->report.certificate.missed);
    MUST(moec_bundle_open(b->out, &bundle, &err));
    assert_int_equal(bundle->file.n_bytes, bytes_8);
    assert_true(moec_variant_equal(moec_bundle_record(bundle, 0, 1, 3)->variant, moec_variant_uniform(8)));
    assert_true(bundle->certificate.loss_high == high_8);
    moec_bundle_close(bundle);
}

/* With no room for a safer plan there is nothing to fall back to. */
static void test_compile__writes_nothing_that_is_not_proven(void **state)
{
    struct bench *b = *state;
    struct moec_error why = {0};
    char *sequence = b->policy;
    b->policy = temporary_path(b->folder, "two.lua");
    temporary_write(b->folder, "two.lua", two_bits, sizeof two_bits - 1);
    MUST(compile(b, 100, &err));
    const double target = b->report.certificate.search_loss + 1e-9; /* is met on the search part */
    b->max_bytes = b->report.n_bytes;
    assert_true(target < b->report.certificate.loss_high);
    assert_int_equal(unlink(b->out), 0);
    assert_status(compile(b, target, &why), MOEC_ERR_TARGET, why);
    assert_message(why, "nothing was written");
    assert_int_equal(access(b->out, F_OK), -1);
    b->max_bytes = 0;
    free(b->policy);
    b->policy = sequence;
}

/* ---- tests that end early ---- */

#define N_LOOK 32u

static bool has_test(const char *journal, uint32_t n_window)
{
    char key[64];
    (void)snprintf(key, sizeof key, "plan/%d/%" PRIu32 "/", (int)MOEC_PART_CERTIFICATE, n_window);
    return has_unit(journal, key);
}

/* A test fails by the first half of its windows alone, whatever a journal has of the others; and what is kept of the
 * half is the half of a whole test. */
static void test_compile__a_test_ends_early_as_failed(void **state)
{
    struct bench own = *(struct bench *)*state, *b = &own;
    const uint8_t digest[MOEC_SHA256_BYTES] = {1};
    struct moec_profile_options profiled = profile_options();
    struct moec_sequence_step steps[3];
    char *journal = temporary_path(b->folder, "tests.journal");
    profiled.data.parts.n_part[MOEC_PART_CERTIFICATE] = 2 * N_LOOK;
    memset(&b->profile, 0, sizeof b->profile);
    memset(&b->report, 0, sizeof b->report);
    MUST(moec_profile_run(b->checkpoint, &profiled, &b->profile, &err));
    MUST(compile(b, 100, &err));
    const struct moec_sequence_step whole = *step_of(b, 1);
    const double target = (whole.high + step_of(b, 2)->high) / 2;
    for (size_t i = 0; i < 3; i++) {
        struct moec_compile_options options = options_of(b, i == 1 ? 100 : target);
        options.journal.path = journal;
        options.journal.stays = true;
        moec_compile_report_release(&b->report);
        MUST(moec_compile(&(struct moec_compile_inputs){b->checkpoint, &b->profile, digest}, &options, NULL,
                          b->out, &b->report, &err));
        steps[i] = *step_of(b, 1);
        assert_true(has_test(journal, N_LOOK));
        assert_true(has_test(journal, 2 * N_LOOK)); /* of the safest plan */
        assert_true(b->report.certificate.n_window == 2 * N_LOOK && !b->report.certificate.missed);
        assert_uniform(b, i == 1 ? 4 : 8);
    }
    assert_int_equal(steps[0].result, MOEC_SEQUENCE_FAILED);
    assert_true(steps[0].loss > target && isnan(steps[0].high) && isnan(steps[0].p_value));
    assert_memory_equal(&steps[1], &whole, sizeof whole);
    assert_memory_equal(&steps[2], &steps[0], sizeof *steps);
    moec_compile_report_release(&b->report);
    moec_profile_release(&b->profile);
    (void)remove(journal);
    free(journal);
}

/* ---- what is kept ---- */

/* A run, as far as the key of a measurement looks at it. */
static void key_of(const struct bench *b, const struct moec_compile_options *options, enum moec_part part,
                   uint32_t changed, char key[static MOEC_JOURNAL_MAX_KEY])
{
    struct moec_compile_report report = {0};
    /* As many windows of both parts: their number alone must not tell them apart. */
    struct moec_compile_run run = {.options = options,
                                   .profile = &b->profile,
                                   .checkpoint = b->checkpoint,
                                   .report = &report,
                                   .n_certify = N_SEARCH};
    run.scope = *moec_compile_scope_at(0);
    struct moec_plan plan;
    MUST(moec_plan_create(&plan, moec_checkpoint_config(b->checkpoint), &err));
    moec_plan_fill(&plan, 4);
    report.plan.dense_bits = changed == 1 ? 8 : 16;
    plan.experts[moec_plan_count(&plan) - 1].codecs[MOEC_PROJECTION_DOWN] = changed == 2 ? 3 : 4;
    plan.dense[plan.n_dense - 1] = changed == 3 ? 8 : 0;
    run.codecs[4].group = changed == 4 ? 32 : 0;
    run.codecs[4].scheme = changed == 5 ? MOEC_SCHEME_ASYMMETRIC : MOEC_SCHEME_SYMMETRIC;
    run.codecs[4].quantizer = changed == 6 ? MOEC_QUANTIZER_HQQ : MOEC_QUANTIZER_LINEAR;
    run.offer.fitted[4] = changed == 7;
    moec_compile_units_name(&run, part, &plan, key);
    moec_plan_release(&plan);
}

/* Each thing that changes what is measured changes the key. */
static void test_compile__a_kept_measurement_is_found_by_all_that_it_depends_on(void **state)
{
    const struct bench *b = *state;
    char keys[12][MOEC_JOURNAL_MAX_KEY], again[MOEC_JOURNAL_MAX_KEY];
    struct moec_compile_options options = options_of(b, 0.02);
    for (uint32_t changed = 0; changed < 8; changed++)
        key_of(b, &options, MOEC_PART_SEARCH, changed, keys[changed]);
    key_of(b, &options, MOEC_PART_CERTIFICATE, 0, keys[8]);
    key_of(b, &options, MOEC_PART_SELECT, 0, keys[9]);
    options.by.arithmetic = MOEC_ARITHMETIC_INT8;
    key_of(b, &options, MOEC_PART_SEARCH, 0, keys[10]);
    options.by.arithmetic = MOEC_ARITHMETIC_CANONICAL;
    moec_checkpoint_set_frequent(b->checkpoint, 64);
    key_of(b, &options, MOEC_PART_SEARCH, 0, keys[11]);
    moec_checkpoint_set_frequent(b->checkpoint, 0);
    for (size_t i = 0; i < 12; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(keys[i], keys[j]);
    options = options_of(b, 0.05); /* a target is no part of it */
    key_of(b, &options, MOEC_PART_SEARCH, 0, again);
    assert_string_equal(again, keys[0]);
}

/* What is left out is fixed where a journal begins: another limit later changes nothing. */
static void test_compile__a_journal_keeps_what_is_left_out(void **state)
{
    struct bench *b = *state;
    static const struct {
        uint32_t asked, taken;
        bool is_new; /* the journal */
    } runs[] = {{3, 3, true}, {0, 3, false}, {1, 3, false}, {0, 0, true}, {2, 0, false}};
    const uint8_t digest[MOEC_SHA256_BYTES] = {1};
    struct moec_compile_options options = options_of(b, 100);
    char *journal = temporary_path(b->folder, "scope.journal");
    options.journal.path = journal;
    options.journal.stays = true;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        if (runs[i].is_new)
            (void)remove(journal);
        options.target.scope = runs[i].asked;
        moec_compile_report_release(&b->report);
        MUST(moec_compile(&(struct moec_compile_inputs){b->checkpoint, &b->profile, digest}, &options, NULL,
                          b->out, &b->report, &err));
        assert_int_equal(b->report.scope, runs[i].taken);
        assert_int_equal(b->report.certificate.n_window, N_CERTIFY);
    }
    (void)remove(journal);
    free(journal);
}

struct heard {
    char lines[1024];
};

static void hear(void *context, const char *line)
{
    struct heard *heard = context;
    (void)strncat(heard->lines, line, sizeof heard->lines - strlen(heard->lines) - 1);
}

/* A journal as a version leaves it whose fits were others: `line` in place of that of this one. */
static void make_older(const char *path, const char *line)
{
    struct moec_journal journal;
    char job[8192] = "";
    MUST(moec_journal_open(&journal, path, NULL, &err));
    const char *own = strstr(journal.job, "fit: ");
    assert_non_null(own);
    const char *rest = strchr(own, '\n') + 1;
    (void)snprintf(job, sizeof job, "%.*s%s%s", (int)(own - journal.job), journal.job, line, rest);
    moec_journal_close(&journal);
    assert_int_equal(unlink(path), 0);
    MUST(moec_journal_create(&journal, path, job, &err));
    MUST(moec_journal_append(&journal, 1, "scope", NULL, 0, &err));
    moec_journal_close(&journal);
}

/* Fits of another version are neither continued nor lost in silence: a journal that was named is refused, another is
 * begun anew. */
static void test_compile__continues_no_fits_of_another_version(void **state)
{
    struct bench *b = *state;
    static const char *const lines[] = {"",
                                        "fit: revision 1\n"}; /* the first of a version without such a line */
    const uint8_t digest[MOEC_SHA256_BYTES] = {1};
    struct heard heard = {""};
    const struct moec_compile_hooks hooks = {.note = hear, .context = &heard};
    struct moec_compile_options options = options_of(b, 100);
    char *journal = temporary_path(b->folder, "older.journal");
    options.journal.path = journal;
    options.journal.stays = true;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct moec_error why = {0};
        (void)remove(journal);
        options.journal.stays = true;
        moec_compile_report_release(&b->report);
        MUST(moec_compile(&(struct moec_compile_inputs){b->checkpoint, &b->profile, digest}, &options, NULL,
                          b->out, &b->report, &err));
        make_older(journal, lines[i]);
        moec_compile_report_release(&b->report);
        assert_status(moec_compile(&(struct moec_compile_inputs){b->checkpoint, &b->profile, digest},
                                   &options, NULL, b->out, &b->report, &why),
                      MOEC_ERR_MISMATCH, why);
        assert_message(why, i == 0 ? "its fit is 'none' (this run: 'revision" : "its fit is 'revision 1'");
        options.journal.stays = false;
        heard.lines[0] = '\0';
        moec_compile_report_release(&b->report);
        MUST(moec_compile(&(struct moec_compile_inputs){b->checkpoint, &b->profile, digest}, &options, &hooks,
                          b->out, &b->report, &err));
        assert_non_null(strstr(heard.lines, "is the journal of another job: its fit is"));
        assert_non_null(strstr(heard.lines, "starting over"));
        assert_int_equal(b->report.n_resumed, 0);
    }
    free(journal);
}

/* How many numbers of projections have finite harm; all of them are fitted, or need no fit. */
static size_t count_offered(const struct moec_compile_run *run)
{
    const struct moec_compile_offer *offer = &run->offer;
    size_t n = 0;
    for (uint32_t s = 0; s < offer->harm.n_layer; s++)
        for (uint32_t e = 0; e < offer->harm.n_expert; e++)
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
                for (uint32_t i = 0; i < offer->n_number; i++) {
                    const uint32_t number = offer->numbers[i];
                    const enum moec_projection projection = (enum moec_projection)p;
                    const bool is_offered = isfinite(moec_harm_expert(&offer->harm, s, e, projection)[i]);
                    assert_int_equal(is_offered,
                                     offer->fitted[number] == 0 ||
                                         moec_compile_expert_error(run, s, e, projection, number, true) >= 0);
                    n += is_offered;
                }
    return n;
}

/* For a large loss the lowest codes alone are fitted; for a small one what plans of it take beside them, in another
 * sweep. */
static void test_compile__fits_what_is_wanted(void **state)
{
    struct bench *b = *state;
    struct moec_compile_options options = options_of(b, 3);
    struct moec_compile_run run = {
        .checkpoint = b->checkpoint, .profile = &b->profile, .options = &options, .report = &b->report};
    const struct moec_policy_variants *variants = NULL;
    const uint64_t n_unit = MOEC_PROJECTION_COUNT *
                            (uint64_t)moec_config_moe_count(moec_checkpoint_config(b->checkpoint)) *
                            moec_checkpoint_config(b->checkpoint)->n_expert;
    struct moec_plan plan;
    options.search.policy = "hull";
    options.search.offers_variants = options.dense.is_planned = true;
    moec_compile_report_release(&b->report);
    MUST(moec_compile_start(&run, &err));
    MUST(moec_compile_dense_bind(&run, 16, &err));
    MUST(moec_compile_variants(&run, &variants, &err));
    assert_int_equal(run.offer.n_fit, 1);
    assert_int_equal(b->report.fit.n_matrix, n_unit);
    assert_int_equal(count_offered(&run), n_unit * 3); /* 8 and 16 bits beside it */
    MUST(moec_plan_create(&plan, moec_checkpoint_config(b->checkpoint), &err));
    moec_plan_fill(&plan, run.offer.numbers[0]);
    assert_true(moec_compile_is_fitted(&run, &plan));
    moec_plan_fill(&plan, run.offer.numbers[1]);
    assert_false(moec_compile_is_fitted(&run, &plan));
    options.target.max_loss = 1e-4;
    moec_harm_release(&run.offer.harm);
    MUST(moec_compile_wanted_settle(&run, &err));
    assert_int_equal(run.offer.n_fit, 2);
    assert_true(b->report.fit.n_matrix > n_unit && b->report.fit.n_matrix < 3 * n_unit);
    assert_int_equal(count_offered(&run), b->report.fit.n_matrix + 2 * n_unit);
    moec_plan_release(&plan);
    moec_compile_finish(&run);
}

/* Each level takes less; a model of 48 layers and 128 experts no more than 2,900 windows. */
static void test_compile__forecasts_fall_with_the_scope(void **state)
{
    const struct bench *b = *state;
    struct moec_compile_options options = {.search.offers_variants = true, .dense.is_planned = true};
    struct moec_config config = *moec_checkpoint_config(b->checkpoint);
    struct moec_compile_request request = {.config = &config, .options = &options, .seq_len_tokens = 256};
    request.n_part[MOEC_PART_SEARCH] = 256;
    request.n_part[MOEC_PART_SELECT] = 128;
    request.n_part[MOEC_PART_CERTIFICATE] = 512;
    double before = INFINITY;
    uint64_t bytes_before = UINT64_MAX;
    for (options.target.scope = 0; options.target.scope < MOEC_COMPILE_SCOPES; options.target.scope++) {
        const struct moec_compile_forecast forecast = moec_compile_estimate(&request);
        double sum = 0;
        for (uint32_t i = 0; i < forecast.n_phase; i++)
            sum += forecast.phases[i].windows + forecast.phases[i].weights / forecast.window_multiply_adds;
        assert_true(fabs(sum - forecast.windows - forecast.weights / forecast.window_multiply_adds) <
                    1e-6 * sum);
        assert_true(sum < before && forecast.fitted_bytes <= bytes_before);
        before = sum;
        bytes_before = forecast.fitted_bytes;
    }
    options.target.scope = 0;
    const uint32_t n_layer = config.n_layer;
    for (uint32_t layer = n_layer; layer < 48; layer++)
        config.layer_kind[layer] = config.layer_kind[n_layer - 1];
    config.n_layer = 48;
    config.n_expert = 128;
    assert_true(384 + moec_compile_estimate(&request).windows <= 2900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile__certifies_on_the_certificate_part),
        cmocka_unit_test(test_compile__looks_at_no_certificate_window_before_all_is_fixed),
        cmocka_unit_test(test_compile__writes_the_last_that_passed_before_one_failed),
        cmocka_unit_test(test_compile__writes_nothing_that_is_not_proven),
        cmocka_unit_test(test_compile__a_test_ends_early_as_failed),
        cmocka_unit_test(test_compile__a_kept_measurement_is_found_by_all_that_it_depends_on),
        cmocka_unit_test(test_compile__a_journal_keeps_what_is_left_out),
        cmocka_unit_test(test_compile__continues_no_fits_of_another_version),
        cmocka_unit_test(test_compile__fits_what_is_wanted),
        cmocka_unit_test(test_compile__forecasts_fall_with_the_scope),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
