#include "profiler/common/random.h"
#include "profiler/evaluate/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#define N 64

/* cmocka compares as float, which is too coarse here. */
static void check_near(double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%.17g is not within %g of %.17g", got, tolerance, expected);
}

static struct moec_loss measure(const double *reference, const double *variant, const uint32_t *scored,
                                uint32_t n, enum moec_part part, struct moec_loss_options options)
{
    struct moec_error err = {0};
    struct moec_loss loss;
    const struct moec_loss_windows windows = {.n_window = n, .scored = scored, .part = part};
    if (moec_loss_measure(&windows, &(struct moec_paired_nll){reference, variant, NULL}, &options, &loss,
                          &err) != MOEC_OK)
        fail_msg("%s", err.message);
    return loss;
}

/* Sum of twelve uniform numbers: near enough to normal, variance 1. */
static double normal(struct moec_random *random)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(moec_random_next(random) >> 11) * 0x1p-53;
    return sum;
}

static void test_metrics__random_is_splitmix64(void **state)
{
    (void)state;
    /* First outputs for seed 1234567, as published with the algorithm's reference code. */
    static const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                        4593380528125082431u, 16408922859458223821u};
    struct moec_random random = {1234567};
    for (size_t i = 0; i < 5; i++)
        assert_true(moec_random_next(&random) == expected[i]);
    uint32_t seen[7] = {0};
    for (int i = 0; i < 70000; i++)
        seen[moec_random_below(&random, 7)]++;
    for (size_t i = 0; i < 7; i++)
        assert_in_range(seen[i], 9600, 10400);
}

static void test_metrics__loss_is_the_definition(void **state)
{
    (void)state;
    static const double reference[] = {10, 20, 30, 44}, variant[] = {11, 20, 33, 40};
    static const double kl[] = {0.5, 1, 2, 3};
    static const uint32_t scored[] = {5, 10, 15, 20};
    struct moec_loss_options options = moec_loss_options_default();
    struct moec_error err = {0};
    struct moec_loss loss;
    const struct moec_loss_windows windows = {.n_window = 4, .scored = scored, .part = MOEC_PART_ALL};
    assert_int_equal(
        moec_loss_measure(&windows, &(struct moec_paired_nll){reference, variant, kl}, &options, &loss, &err),
        MOEC_OK);
    check_near(loss.reference, exp(104.0 / 50), 1e-12);
    check_near(loss.compiled, exp(104.0 / 50), 1e-12);
    check_near(loss.loss, 0, 1e-15);
    check_near(loss.mean_kl, 6.5 / 50, 1e-15);
    loss = measure(reference, variant, scored, 4, MOEC_PART_SEARCH, options);
    check_near(loss.loss, exp(44.0 / 20) / exp(40.0 / 20) - 1, 1e-12);
    assert_int_equal(loss.n_window, 2);
    assert_int_equal(loss.n_token, 20);
    loss = measure(reference, variant, scored, 4, MOEC_PART_CERTIFICATE, options);
    check_near(loss.loss, exp(60.0 / 30) / exp(64.0 / 30) - 1, 1e-12);
    options.confidence = MOEC_CONFIDENCE_POINT;
    loss = measure(reference, variant, scored, 4, MOEC_PART_SEARCH, options);
    assert_true(loss.low == loss.loss && loss.high == loss.loss);
}

static void test_metrics__interval_of_equal_windows_is_a_point(void **state)
{
    (void)state;
    double reference[N], variant[N];
    uint32_t scored[N];
    for (uint32_t w = 0; w < N; w++) {
        reference[w] = 100 + w;
        variant[w] = reference[w] + 0.25;
        scored[w] = 250;
    }
    struct moec_loss loss =
        measure(reference, variant, scored, N, MOEC_PART_ALL, moec_loss_options_default());
    check_near(loss.loss, expm1(0.001), 1e-12);
    check_near(loss.low, loss.loss, 1e-12);
    check_near(loss.high, loss.loss, 1e-12);
}

/* Against the formula, in nats a token: mean +- 1.645 standard errors where there are many windows. */
static void test_metrics__interval_is_that_of_t(void **state)
{
    (void)state;
    enum { MANY = 400 };
    static double reference[MANY], variant[MANY];
    static uint32_t scored[MANY];
    struct moec_random random = {5};
    double sum = 0, squares = 0;
    for (uint32_t w = 0; w < MANY; w++) {
        double difference = 0.3 + 0.8 * normal(&random);
        reference[w] = 700;
        variant[w] = 700 + difference;
        scored[w] = 255;
        sum += difference;
        squares += difference * difference;
    }
    double mean = sum / (double)MANY, deviation = sqrt((squares - sum * mean) / (MANY - 1));
    double error = deviation / sqrt(MANY) / 255;
    struct moec_loss loss =
        measure(reference, variant, scored, MANY, MOEC_PART_ALL, moec_loss_options_default());
    check_near(loss.loss, expm1(mean / 255), 1e-12);
    check_near(loss.error, error, 1e-9 * error);
    assert_int_equal(loss.n_unit, MANY);
    /* A little more to one side where the windows are skewed. */
    check_near(loss.high, expm1(mean / 255 + 1.6487 * error), 0.06 * error);
    check_near(loss.low, expm1(mean / 255 - 1.6487 * error), 0.06 * error);
    struct moec_loss again =
        measure(reference, variant, scored, MANY, MOEC_PART_ALL, moec_loss_options_default());
    assert_memory_equal(&loss, &again, sizeof loss);
    /* A test at the level of the interval says the same as its end. */
    check_near(moec_loss_p_value(&loss, loss.high), 0.05, 1e-9);
    assert_true(moec_loss_p_value(&loss, loss.high + 1e-6) < 0.05);
    assert_true(moec_loss_p_value(&loss, loss.loss) > 0.4);
}

/* Sum of `shape` exponential numbers: skewness 2 / sqrt(shape). */
static double gamma_number(struct moec_random *random, int shape)
{
    double product = 1;
    for (int i = 0; i < shape; i++)
        product *= (double)((moec_random_next(random) >> 11) + 1) * 0x1p-53;
    return -log(product);
}

/* Share of draws whose upper end is at or above the true loss: skewed windows of unequal size, each a
 * document by itself or in pairs that are alike. */
static double coverage(uint32_t n_window, int shape, bool pairs, uint64_t seed)
{
    enum { DRAWS = 2000, MOST = 128 };
    const struct moec_loss_options options = moec_loss_options_default();
    struct moec_random random = {seed};
    int covered = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        double reference[MOST], variant[MOST], harm = 0;
        uint32_t scored[MOST];
        uint64_t documents[MOST];
        for (uint32_t w = 0; w < n_window; w++) {
            /* In parts of the shape's mean; pairs share theirs. */
            harm = pairs && w % 2 != 0 ? harm : gamma_number(&random, shape) / shape;
            scored[w] = 128 + (uint32_t)moec_random_below(&random, 128);
            reference[w] = 600 + 50 * normal(&random);
            variant[w] = reference[w] + 0.02 * harm * scored[w];
            documents[w] = w / 2;
        }
        const struct moec_loss_windows windows = {.n_window = n_window,
                                                  .scored = scored,
                                                  .documents = pairs ? documents : NULL,
                                                  .part = MOEC_PART_ALL};
        struct moec_error err = {0};
        struct moec_loss loss;
        if (moec_loss_measure(&windows, &(struct moec_paired_nll){reference, variant, NULL}, &options, &loss,
                              &err) != MOEC_OK)
            fail_msg("%s", err.message);
        assert_int_equal(loss.n_unit, pairs ? n_window / 2 : n_window);
        covered += loss.high >= expm1(0.02);
        assert_true((loss.high <= 0.03) == (moec_loss_p_value(&loss, 0.03) <= 0.05));
    }
    return (double)covered / (double)DRAWS;
}

/* The true loss lies under the upper end about 95 times in 100, of skewed windows too. */
static void test_metrics__interval_covers(void **state)
{
    (void)state;
    for (uint32_t n = 16; n <= 64; n *= 2) {
        const double mild = coverage(n, 16, false, n), skewed = coverage(n, 4, false, n + 1),
                     pairs = coverage(2 * n, 4, true, n + 2);
        print_message("%u windows: %.4f of skewness 0.5, %.4f of 1, %.4f in documents of two\n", (unsigned)n,
                      mild, skewed, pairs);
        assert_true(mild >= 0.935 && mild <= 0.975);
        assert_true(skewed >= 0.935 && skewed <= 0.975);
        assert_true(pairs >= 0.935 && pairs <= 0.975);
    }
    /* Exponential ones, twice as skewed: t alone would cover 92 %. */
    assert_true(coverage(64, 1, false, 7) >= 0.935);
}

/* Rows that score 0 to 1 and lose a tenth of it in one row of three. */
static void test_metrics__interval_of_scores_covers(void **state)
{
    (void)state;
    enum { DRAWS = 400 };
    struct moec_loss_options options = moec_loss_options_default();
    options.n_resample = 1000;
    for (uint32_t n = 16; n <= 64; n *= 2) {
        struct moec_random random = {n};
        int covered = 0;
        for (int draw = 0; draw < DRAWS; draw++) {
            double reference[64], variant[64];
            struct moec_error err = {0};
            struct moec_loss loss;
            for (uint32_t i = 0; i < n; i++) {
                reference[i] = (double)moec_random_below(&random, 1000) / 1000;
                variant[i] = reference[i] * (moec_random_below(&random, 3) == 0 ? 0.7 : 1);
            }
            if (moec_loss_measure_scores(reference, variant, n, &options, &loss, &err) != MOEC_OK)
                fail_msg("%s", err.message);
            covered += loss.high >= 0.1;
        }
        print_message("%u rows: %.4f\n", (unsigned)n, (double)covered / (double)DRAWS);
        assert_true(covered >= DRAWS * 92 / 100);
    }
}

/* Few rows change, or none: neither is proof that others do not. */
static void test_metrics__rare_losses_of_scores(void **state)
{
    (void)state;
    double reference[32], variant[32];
    struct moec_error err = {0};
    struct moec_loss loss;
    struct moec_loss_options options = moec_loss_options_default();
    for (uint32_t i = 0; i < 32; i++)
        reference[i] = variant[i] = 1;
    assert_int_equal(moec_loss_measure_scores(reference, variant, 32, &options, &loss, &err), MOEC_OK);
    assert_true(loss.high == 0 && loss.low == 0);
    options.is_promise = true;
    assert_int_equal(moec_loss_measure_scores(reference, variant, 32, &options, &loss, &err), MOEC_OK);
    check_near(loss.high, 1 - pow(0.05, 1.0 / 32), 1e-12); /* Clopper and Pearson's end of 0 in 32 */
    variant[5] = 0;
    assert_int_equal(moec_loss_measure_scores(reference, variant, 32, &options, &loss, &err), MOEC_OK);
    check_near(loss.loss, 1.0 / 32, 1e-12);
    assert_true(loss.high > 0.08 && loss.high < 0.2); /* Clopper and Pearson: 0.14 */
}

/* One window, or one document: nothing is known of others. */
static void test_metrics__one_window_has_no_interval(void **state)
{
    (void)state;
    static const double reference[] = {10, 12}, variant[] = {11, 12};
    static const uint32_t scored[] = {10, 10};
    static const uint64_t same[] = {4, 4};
    const struct moec_loss_options options = moec_loss_options_default();
    struct moec_loss loss = measure(reference, variant, scored, 1, MOEC_PART_ALL, options);
    assert_true(isinf(loss.high) && loss.low == -1 && moec_loss_p_value(&loss, 0.5) == 1);
    const struct moec_loss_windows windows = {
        .n_window = 2, .scored = scored, .documents = same, .part = MOEC_PART_ALL};
    struct moec_error err = {0};
    assert_int_equal(moec_loss_measure(&windows, &(struct moec_paired_nll){reference, variant, NULL},
                                       &options, &loss, &err),
                     MOEC_OK);
    assert_int_equal(loss.n_unit, 1);
    check_near(loss.loss, expm1(0.05), 1e-12);
    assert_true(isinf(loss.high));
}

static void test_metrics__windows_needed(void **state)
{
    (void)state;
    struct moec_loss loss = {.loss = 0.01, .high = 0.03, .n_window = 32};
    assert_int_equal(moec_loss_windows_needed(&loss, 0.03, 0), 32);
    assert_int_equal(moec_loss_windows_needed(&loss, 0.02, 0), 128);
    assert_int_equal(moec_loss_windows_needed(&loss, 0.01, 0), 0);
    assert_int_equal(moec_loss_windows_needed(&loss, 0.001, 0), 0);
}

static void test_metrics__wrong_options(void **state)
{
    (void)state;
    static const double nll[] = {1, 2}, bad[] = {1, NAN};
    static const uint32_t scored[] = {1, 1};
    struct moec_loss_windows windows = {.n_window = 2, .scored = scored, .part = MOEC_PART_ALL};
    struct moec_loss loss;
    struct moec_loss_options options = moec_loss_options_default();
    static const double wrong[] = {0.5, 1, -1, 2, NAN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_error err = {0};
        options.confidence = wrong[i];
        assert_int_equal(
            moec_loss_measure(&windows, &(struct moec_paired_nll){nll, nll, NULL}, &options, &loss, &err),
            MOEC_ERR_USAGE);
    }
    options = moec_loss_options_default();
    struct moec_error err = {0};
    assert_int_equal(
        moec_loss_measure(&windows, &(struct moec_paired_nll){nll, bad, NULL}, &options, &loss, &err),
        MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "window 1"));
    windows.n_window = 1;
    windows.part = MOEC_PART_CERTIFICATE;
    assert_int_equal(
        moec_loss_measure(&windows, &(struct moec_paired_nll){nll, nll, NULL}, &options, &loss, NULL),
        MOEC_ERR_USAGE);
}

/* Two layers of three experts: 0 measured, 1 without activations, 2 routed to by the original alone. */
static void test_metrics__importance_of_unreached_experts(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile profile = {.n_moe_layer = 3,
                                   .n_expert = 3,
                                   .top_k = 1,
                                   .n_window = 2,
                                   .seq_len_tokens = 11,
                                   .n_uniform = 0,
                                   .n_bits = 1,
                                   .n_trace_token = 0};
    assert_int_equal(moec_profile_allocate(&profile, &err), MOEC_OK);
    for (uint32_t w = 0; w < 2; w++) {
        profile.reference.nll[w] = 20;
        profile.baseline.nll[w] = 21;
        profile.window_scored[w] = 10;
        for (uint32_t i = 0; i < 9; i++)
            profile.expert_nll[i * 2 + w] = 21;
    }
    static const uint64_t activations[9] = {5, 0, 7, 4, 4, 0, 0, 1, 0};
    memcpy(profile.activations, activations, sizeof activations);
    profile.expert_nll[0] = 23;         /* (0, 0) */
    profile.expert_nll[2 * 3] = 22;     /* (1, 0) */
    profile.expert_nll[2 * 4 + 1] = 25; /* (1, 1) */
    double importance[9];
    moec_profile_importance(&profile, MOEC_PART_ALL, 0, importance);
    const double first = expm1(4.0 / 20), second = expm1(3.0 / 20), third = expm1(6.0 / 20);
    const double expected[9] = {first, first, first, second, third, third, third, third, third};
    for (size_t i = 0; i < 9; i++)
        check_near(importance[i], expected[i], 1e-12);
    assert_true(moec_profile_expert_reached(&profile, 0, 0));
    assert_false(moec_profile_expert_reached(&profile, 0, 1));
    assert_false(moec_profile_expert_reached(&profile, 0, 2));
    assert_false(moec_profile_expert_reached(&profile, 2, 1));
    moec_profile_release(&profile);
}

static void test_metrics__scores_lose_the_other_way_round(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_loss loss;
    const struct moec_loss_options options = moec_loss_options_default();
    double reference[N], variant[N];
    struct moec_random random = {11};
    for (size_t i = 0; i < N; i++) {
        reference[i] = 0.5 + 0.1 * normal(&random);
        variant[i] = reference[i] - 0.02 + 0.01 * normal(&random);
    }
    assert_int_equal(moec_loss_measure_scores(reference, variant, N, &options, &loss, &err), MOEC_OK);
    double theirs = 0, ours = 0;
    for (size_t i = 0; i < N; i++) {
        theirs += reference[i];
        ours += variant[i];
    }
    check_near(loss.reference, theirs / N, 1e-12);
    check_near(loss.compiled, ours / N, 1e-12);
    check_near(loss.loss, 1 - ours / theirs, 1e-12);
    /* Paired: the noise of the rows themselves cancels. The standard error of a ratio, by the delta method.
     */
    double square = 0;
    for (size_t i = 0; i < N; i++) {
        double off = reference[i] - variant[i] - loss.loss * reference[i];
        square += off * off;
    }
    const double error = sqrt(square / N) / sqrt(N) / loss.reference;
    check_near(loss.high - loss.loss, 1.645 * error, 0.08 * 1.645 * error);
    check_near(loss.loss - loss.low, 1.645 * error, 0.08 * 1.645 * error);
    assert_int_equal(loss.n_window, N);

    /* The same model loses nothing; a better one gains. */
    assert_int_equal(moec_loss_measure_scores(reference, reference, N, &options, &loss, &err), MOEC_OK);
    assert_true(loss.loss == 0 && loss.low == 0 && loss.high == 0);
    assert_int_equal(moec_loss_measure_scores(variant, reference, N, &options, &loss, &err), MOEC_OK);
    assert_true(loss.high < 0);

    /* Mostly zero: resamples without a point are drawn again. */
    double few[3] = {0, 0, 1}, none[3] = {0, 0, 0};
    assert_int_equal(moec_loss_measure_scores(few, none, 3, &options, &loss, &err), MOEC_OK);
    assert_true(loss.loss == 1 && loss.low == 1 && loss.high == 1);
    assert_int_equal(moec_loss_measure_scores(none, few, 3, &options, &loss, &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "scores 0 on every row"));
    err = (struct moec_error){0};
    few[1] = NAN;
    assert_int_equal(moec_loss_measure_scores(few, none, 3, &options, &loss, &err), MOEC_ERR_FORMAT);
    assert_int_equal(moec_loss_measure_scores(few, none, 0, &options, &loss, NULL), MOEC_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics__random_is_splitmix64),
        cmocka_unit_test(test_metrics__loss_is_the_definition),
        cmocka_unit_test(test_metrics__interval_of_equal_windows_is_a_point),
        cmocka_unit_test(test_metrics__interval_is_that_of_t),
        cmocka_unit_test(test_metrics__interval_covers),
        cmocka_unit_test(test_metrics__interval_of_scores_covers),
        cmocka_unit_test(test_metrics__rare_losses_of_scores),
        cmocka_unit_test(test_metrics__one_window_has_no_interval),
        cmocka_unit_test(test_metrics__windows_needed),
        cmocka_unit_test(test_metrics__wrong_options),
        cmocka_unit_test(test_metrics__importance_of_unreached_experts),
        cmocka_unit_test(test_metrics__scores_lose_the_other_way_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
