/* What a promise rests on: a sequence ends at its first failure, and what certifies is the certificate part.
 */
#include "compiler/certify/prefix.h"
#include "compiler/certify/promise.h"
#include "compiler/certify/trial.h"
#include "compiler/sparsify/sparsify.h"
#include "compiler/tune/tune.h"

#include "tests/unit/bench_of_parts.h"

#include <math.h>

/* ---- a sequence ---- */

#define TARGET 0.02

struct told {
    double high[MOEC_MAX_SEQUENCE]; /* upper ends, as the certificate part would give them */
    uint32_t n_measured, n_judged;
};

static enum moec_status give_loss(void *context, uint32_t i, struct moec_loss *loss, struct moec_error *err)
{
    struct told *told = context;
    (void)err;
    assert_int_equal(i, told->n_measured++);
    /* The loss itself is always within the target: its upper end decides. */
    *loss = (struct moec_loss){.loss = TARGET / 2, .low = 0, .high = told->high[i], .n_unit = 2, .error = 1};
    return MOEC_OK;
}

static void note_test(void *context, uint32_t i, const struct moec_loss *loss)
{
    struct told *told = context;
    assert_int_equal(i, told->n_judged++);
    assert_true(loss->high == told->high[i]);
}

static uint32_t run_sequence(struct told *told, uint32_t n, double target, struct moec_sequence_step *steps)
{
    uint32_t n_passed = 99;
    for (uint32_t i = 0; i < n; i++)
        steps[i] = moec_sequence_step_of(1000 - i, NULL);
    const struct moec_sequence_tests tests = {
        .steps = steps, .n = n, .target = target, .measure = give_loss, .judged = note_test, .context = told};
    MUST(moec_sequence_test(&tests, &n_passed, &err));
    return n_passed;
}

static void test_certify__a_sequence_ends_at_its_first_failure(void **state)
{
    (void)state;
    struct moec_sequence_step steps[MOEC_MAX_SEQUENCE];
    /* What comes after the failure would pass, and is smaller. */
    struct told told = {.high = {0.001, 0.02, 0.0201, 0.015, 0.019}};
    assert_int_equal(run_sequence(&told, 5, TARGET, steps), 2);
    assert_int_equal(told.n_measured, 3);
    assert_int_equal(told.n_judged, 3);
    static const enum moec_sequence_result results[] = {MOEC_SEQUENCE_PASSED, MOEC_SEQUENCE_PASSED,
                                                        MOEC_SEQUENCE_FAILED, MOEC_SEQUENCE_NOT_TESTED,
                                                        MOEC_SEQUENCE_NOT_TESTED};
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(steps[i].result, results[i]);
    assert_true(steps[2].high == 0.0201 && isnan(steps[3].high));
}

static void test_certify__sequences_that_fail_at_once_or_never(void **state)
{
    (void)state;
    struct moec_sequence_step steps[MOEC_MAX_SEQUENCE];
    struct told fails = {.high = {0.03, 0.01}};
    assert_int_equal(run_sequence(&fails, 2, TARGET, steps), 0);
    assert_int_equal(fails.n_measured, 1);
    struct told passes = {.high = {0.001, 0.002, 0.003}};
    assert_int_equal(run_sequence(&passes, 3, TARGET, steps), 3);
    struct told untargeted = {.high = {9}};
    assert_int_equal(run_sequence(&untargeted, 1, (double)NAN, steps), 1);
}

/* Losses on the first half: a test that ends with them has failed, however low they are. */
static enum moec_status give_half(void *context, uint32_t i, struct moec_loss *loss, struct moec_error *err)
{
    (void)context;
    (void)err;
    *loss = (struct moec_loss){.loss = 0.001, .low = 0, .high = 0.002, .n_window = i == 0 ? 128 : 64};
    return MOEC_OK;
}

static void take_no_note(void *context, uint32_t i, const struct moec_loss *loss)
{
    (void)context;
    (void)i;
    (void)loss;
}

static void test_certify__a_test_may_end_early_but_never_as_passed(void **state)
{
    (void)state;
    struct moec_sequence_step steps[3];
    uint32_t n_passed = 0;
    for (uint32_t i = 0; i < 3; i++)
        steps[i] = moec_sequence_step_of(1000 - i, NULL);
    const struct moec_sequence_tests tests = {.steps = steps,
                                              .n = 3,
                                              .target = TARGET,
                                              .n_window = 128,
                                              .measure = give_half,
                                              .judged = take_no_note};
    MUST(moec_sequence_test(&tests, &n_passed, &err));
    assert_int_equal(n_passed, 1);
    assert_int_equal(steps[1].result, MOEC_SEQUENCE_FAILED);
    assert_true(steps[1].loss == 0.001 && isnan(steps[1].low) && isnan(steps[1].high) && isnan(steps[1].kl));
    assert_int_equal(steps[2].result, MOEC_SEQUENCE_NOT_TESTED);
    assert_int_equal(moec_sequence_look(63), 0);
    assert_int_equal(moec_sequence_look(64), 32);
    assert_int_equal(moec_sequence_look(129), 64);
    assert_false(moec_sequence_ends(&(struct moec_loss){.loss = TARGET}, TARGET));
    assert_true(moec_sequence_ends(&(struct moec_loss){.loss = 0.0201}, TARGET));
    assert_false(moec_sequence_ends(&(struct moec_loss){.loss = 9}, (double)NAN));
}

/* ---- parts ---- */

/* On the certificate part, whole, and nothing else. */
static void assert_certified(const struct bench_of_parts *b, const struct moec_certificate *certificate)
{
    struct moec_windows windows;
    uint8_t digest[MOEC_SHA256_BYTES];
    MUST(moec_windows_part(&b->windows, MOEC_PART_CERTIFICATE, &windows, &err));
    moec_promise_digest_windows(b->data_digest, &windows, digest);
    assert_int_equal(certificate->n_window, N_WINDOW - N_SEARCH - N_SELECT);
    assert_memory_equal(certificate->part_digest, digest, sizeof digest);
    moec_windows_release(&windows);
}

static void test_certify__sparsify_certifies_on_the_certificate_part(void **state)
{
    (void)state;
    struct bench_of_parts b;
    struct moec_sparsify_report report;
    open_parts(&b, true);
    const struct moec_sparsify_options options = {
        .trial = trial_options(5), .by = MOEC_SPARSITY_BY_NEURON, .tries = {true, true}};
    MUST(moec_sparsify(&b.inputs, &options, NULL, &report, &err));
    assert_certified(&b, &report.plan.certificate);
    assert_true(report.plan.certificate.n_sequence > 0);
    assert_int_equal(report.candidates[0].search.n_window, N_SEARCH);
    assert_int_equal(report.plain.n_window, N_SEARCH);
    /* Of up and the gate the one that loses less. */
    assert_int_equal(report.tried[0].n_window, N_SEARCH);
    assert_true(report.plan.is_at_gate == (report.tried[1].loss < report.tried[0].loss));
    moec_sparsify_report_release(&report);
    close_parts(&b);
}

/* And bytes a token are those of the requests for records that it misses, of all layers: which differ by where a record begins
 * in its block. */
static void test_certify__tune_certifies_on_the_certificate_part(void **state)
{
    (void)state;
    struct bench_of_parts b;
    static struct moec_tune_report report;
    open_parts(&b, false);
    const struct moec_config *config = b.bundle.config;
    const struct moec_tune_options options = {.trial = trial_options(5),
                                              .with_route = true,
                                              .shared = {.n_slots = config->n_expert - 1, .keep_top = 1}};
    MUST(moec_tune(&b.inputs, &options, NULL, NULL, &report, &err));
    assert_certified(&b, &report.certificate);
    assert_int_equal(report.plain[0].search.n_window, N_SEARCH);
    assert_true(report.n_candidate > 0 && report.n_sequence > 0);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t e = 0; e < moec_config_moe_count(config) * config->n_expert; e++) {
        const uint64_t bytes = b.bundle.record_bytes[0][e];
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    for (uint32_t i = 0; i < report.n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report.candidates[i];
        const double bytes = moec_tune_token_bytes(candidate), misses = candidate->token_misses;
        assert_int_equal(candidate->search.n_window, N_SEARCH);
        assert_true(bytes > 0 && bytes >= misses * (double)least * (1 - 1e-9) &&
                    bytes <= misses * (double)most * (1 + 1e-9));
    }
    moec_tune_report_release(&report);
    close_parts(&b);
}

/* A model that guesses has nothing to lose: no part of its text certifies, unless that is marked. */
static void test_certify__chance_is_refused_or_marked(void **state)
{
    (void)state;
    struct bench_of_parts b;
    struct moec_trial trial;
    struct moec_loss loss;
    struct moec_certificate certificate = {0};
    struct moec_error refused = {0};
    struct moec_trial_options options = trial_options(5);
    open_parts(&b, false);
    options.goes_on_by_chance = false;
    moec_trial_init(&b.inputs, &options, NULL, &trial);
    assert_status(moec_trial_open(&trial, MOEC_PART_SEARCH, &refused), MOEC_ERR_MISMATCH, refused);
    assert_message(refused, "no better than chance: its perplexity");
    moec_trial_close(&trial);
    options.goes_on_by_chance = true;
    MUST(moec_trial_open(&trial, MOEC_PART_CERTIFICATE, &err));
    MUST(moec_trial_measure(&trial, &loss, &err));
    moec_trial_certify(&trial, &loss, &loss, &certificate);
    assert_true(certificate.is_chance);
    assert_true(certificate.reference > 96);
    moec_trial_close(&trial);
    close_parts(&b);
}

static void test_certify__tune_knows_what_is_better(void **state)
{
    (void)state;
    const struct moec_tune_cost before = {.read_bytes = 1000, .computed_share = 1}, none = {INFINITY, 1};
    assert_true(moec_tune_is_better((struct moec_tune_cost){999, 1}, before));
    assert_true(moec_tune_is_better((struct moec_tune_cost){1005, 0.6}, before)); /* a plan, read whole */
    assert_true(moec_tune_is_better((struct moec_tune_cost){5000, 1}, none));
    assert_false(moec_tune_is_better(before, before));
    assert_false(moec_tune_is_better((struct moec_tune_cost){1001, 1}, before));
    assert_false(moec_tune_is_better((struct moec_tune_cost){1600, 0.6}, before)); /* 960 by what stays */
}

/* ---- tests of a trial ---- */

static const char *name_nothing(void *context, uint32_t i)
{
    (void)context;
    (void)i;
    return "all neurons";
}

static enum moec_status prepare_nothing(void *context, uint32_t i, struct moec_error *err)
{
    (void)context;
    (void)i;
    (void)err;
    return MOEC_OK;
}

static void count_passed(void *context, uint32_t i)
{
    assert_int_equal(i, (*(uint32_t *)context)++);
}

static void test_certify__a_trial_writes_the_last_that_passed(void **state)
{
    (void)state;
    struct bench_of_parts b;
    struct moec_trial trial;
    struct moec_loss first, search = {.loss = 0.125, .high = 0.25};
    struct moec_certificate certificate = {0};
    uint32_t n_passed = 0, n_told = 0;
    open_parts(&b, true);
    const struct moec_trial_options wide = trial_options(1e6), narrow = trial_options(-0.9);
    const struct moec_trial_sequence sequence = {.n = 2,
                                                 .n_bytes = {30, 20},
                                                 .search = {&search, &search},
                                                 .name = name_nothing,
                                                 .prepare = prepare_nothing,
                                                 .passed = count_passed,
                                                 .context = &n_told};
    moec_trial_init(&b.inputs, &wide, NULL, &trial);
    MUST(moec_trial_open(&trial, MOEC_PART_CERTIFICATE, &err));
    MUST(moec_trial_test(&trial, &sequence, &first, &n_passed, &certificate, &err));
    assert_int_equal(n_passed, 2);
    assert_int_equal(n_told, 2);
    assert_certified(&b, &certificate);
    assert_int_equal(certificate.n_sequence, 2);
    assert_true(!certificate.sequence[0].is_chosen && certificate.sequence[1].is_chosen);
    assert_true(certificate.loss_high == first.high && certificate.search_loss == 0.125);
    assert_false(certificate.missed);

    trial.options = &narrow;
    n_told = 0;
    MUST(moec_trial_test(&trial, &sequence, &first, &n_passed, &certificate, &err));
    assert_int_equal(n_passed, 0);
    assert_int_equal(n_told, 0);
    moec_trial_close(&trial);
    close_parts(&b);
}

/* ---- how many windows ---- */

#define N_PART 600

static uint32_t choose(uint32_t n_window, const uint64_t *documents, double target, double error)
{
    const struct moec_prefix_request request = {.n_window = n_window,
                                                .documents = documents,
                                                .target = target,
                                                .confidence = 0.95,
                                                .error = error,
                                                .n_measured = 64};
    return moec_prefix_choose(&request);
}

/* The interval takes 12 % of the target at most: an error on 64 windows of about .0014 for 2 %. */
static void test_certify__windows_follow_from_the_error(void **state)
{
    (void)state;
    assert_int_equal(choose(N_PART, NULL, TARGET, 0.0014), 64);
    assert_int_equal(choose(N_PART, NULL, TARGET, 0.0015), 128);
    assert_int_equal(choose(N_PART, NULL, TARGET, 0.0021), 256);
    assert_int_equal(choose(N_PART, NULL, TARGET, 0.0030), 512);
    assert_int_equal(choose(N_PART, NULL, TARGET, 1), 512);
    assert_int_equal(choose(N_PART, NULL, 2 * TARGET, 0.0030), 128);
    /* All that there are where that is less, or where nothing says how many would do. */
    assert_int_equal(choose(300, NULL, TARGET, 1), 300);
    assert_int_equal(choose(40, NULL, TARGET, 1e-9), 40);
    assert_int_equal(choose(200, NULL, NAN, 0.001), 200);
    assert_int_equal(choose(200, NULL, TARGET, 0), 200);
    const struct moec_prefix_request point = {.n_window = 200,
                                              .target = TARGET,
                                              .confidence = MOEC_CONFIDENCE_POINT,
                                              .error = 1e-9,
                                              .n_measured = 64};
    assert_int_equal(moec_prefix_choose(&point), 200);
}

static void test_certify__windows_are_of_documents_enough(void **state)
{
    (void)state;
    uint64_t documents[N_PART];
    for (uint32_t w = 0; w < N_PART; w++)
        documents[w] = w / 2;
    assert_int_equal(choose(N_PART, documents, TARGET, 1e-9), 64); /* 32 of them */
    for (uint32_t w = 0; w < N_PART; w++)
        documents[w] = w / 5;
    assert_int_equal(choose(N_PART, documents, TARGET, 1e-9), 256); /* 13, 26 and 52 */
    /* One that is most of all counts for little more than itself. */
    for (uint32_t w = 0; w < N_PART; w++)
        documents[w] = w % 3 == 0 ? w : 1;
    assert_int_equal(choose(N_PART, documents, TARGET, 1e-9), 512);
    assert_int_equal(choose(100, documents, TARGET, 1e-9), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_certify__a_sequence_ends_at_its_first_failure),
        cmocka_unit_test(test_certify__sequences_that_fail_at_once_or_never),
        cmocka_unit_test(test_certify__a_test_may_end_early_but_never_as_passed),
        cmocka_unit_test(test_certify__windows_follow_from_the_error),
        cmocka_unit_test(test_certify__windows_are_of_documents_enough),
        cmocka_unit_test(test_certify__sparsify_certifies_on_the_certificate_part),
        cmocka_unit_test(test_certify__tune_certifies_on_the_certificate_part),
        cmocka_unit_test(test_certify__tune_knows_what_is_better),
        cmocka_unit_test(test_certify__chance_is_refused_or_marked),
        cmocka_unit_test(test_certify__a_trial_writes_the_last_that_passed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
