/* How scores are spread: of a trace whose scores are known, as thresholds, and as bytes of a bundle. */
#include "tests/unit/synthetic_profile.h"
#include "tests/unit/temporary.h"

#include "formats/base/bytes.h"
#include "formats/base/half.h"
#include "profiler/routing/score_study.h"

#include <math.h>

#define N_TOKEN 8

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) < 1e-12))
        fail_msg("%g, expected %g", a, b);
}

/* One layer of top-4. Every token weighs its experts 1, 4, 2 and 1 in the trace's order, so that they have
 * scores 7/8 or 6/8, 0, 4/8 and the other of the first two; the last token's second expert was full, so that
 * its three have scores 0, 2/4 and 3/4. */
static void make_profile(struct moec_profile *profile)
{
    static const float weights[] = {0.125f, 0.5f, 0.25f, 0.125f};
    const struct synthetic_shape shape = {
        .n_moe_layer = 1, .n_expert = 8, .top_k = 4, .n_window = 1, .seq_len_tokens = N_TOKEN};
    assert_int_equal(synthetic_profile(&shape, profile), MOEC_OK);
    assert_int_equal(profile->n_trace_token, N_TOKEN);
    for (size_t i = 0; i < (size_t)N_TOKEN * 4; i++) {
        profile->trace_experts[i] = (uint16_t)(i % 4);
        profile->trace_weights[i] = moec_f32_to_f16(weights[i % 4]);
    }
    profile->trace_experts[(N_TOKEN - 1) * 4 + 1] = MOEC_PROFILE_NO_EXPERT;
}

static void test_score_study__counts_scores(void **state)
{
    (void)state;
    struct moec_profile profile;
    struct moec_error err = {0};
    double shares[MOEC_SCORE_COUNT];
    float *taken = NULL;
    make_profile(&profile);
    assert_status(moec_score_study_run(&profile, &err), MOEC_OK, err);
    const struct moec_study *study = moec_studies_find(&profile.studies, MOEC_SCORE_STUDY);
    assert_non_null(study);
    assert_int_equal(study->axes[1].n, 4);
    assert_true(study->axes[1].values[0] == 1 && study->axes[2].values[100] == 1);
    const double all = 7 * 4 + 3;
    const double *first = study->values, *second = first + MOEC_SCORE_COUNT;
    assert_near(first[0], 8 / all);
    assert_near(first[100], 8 / all);
    assert_true(second[49] == 0);
    assert_near(second[50], 8 / all);
    assert_true(moec_score_study_shares(study, shares));
    static const struct {
        size_t step;
        double n;
    } expected[] = {{0, 8}, {49, 8}, {50, 16}, {74, 16}, {75, 24}, {87, 24}, {88, 31}, {100, 31}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_near(shares[expected[i].step], expected[i].n / all);
    assert_status(moec_score_study_take(&profile, &taken, &err), MOEC_OK, err);
    assert_true(taken[0] == (float)shares[0] && taken[100] == 1);
    assert_int_equal(moec_score_threshold(taken, 0.25), 0);
    assert_int_equal(moec_score_threshold(taken, 0.5), 50);
    assert_int_equal(moec_score_threshold(taken, 0.67), 75);
    assert_int_equal(moec_score_threshold(taken, 1), 88);
    free(taken);
    moec_profile_release(&profile);
}

static void test_score_study__knows_when_there_is_nothing(void **state)
{
    (void)state;
    const struct synthetic_shape shape = {
        .n_moe_layer = 2, .n_expert = 4, .top_k = 1, .n_window = 2, .seq_len_tokens = 4};
    struct moec_profile profile;
    struct moec_error err = {0};
    float *taken = NULL;
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    assert_status(moec_score_study_run(&profile, &err), MOEC_OK, err);
    assert_null(moec_studies_find(&profile.studies, MOEC_SCORE_STUDY));
    assert_status(moec_score_study_take(&profile, &taken, &err), MOEC_OK, err);
    assert_null(taken);
    moec_profile_release(&profile);
    /* Values that are no shares, as a file may have them. */
    make_profile(&profile);
    assert_status(moec_score_study_run(&profile, &err), MOEC_OK, err);
    struct moec_study *study = (struct moec_study *)moec_studies_find(&profile.studies, MOEC_SCORE_STUDY);
    study->values[3] = 7;
    assert_status(moec_score_study_take(&profile, &taken, &err), MOEC_OK, err);
    assert_null(taken);
    moec_profile_release(&profile);
}

static void test_score_shares__round_trip_and_damage(void **state)
{
    (void)state;
    float shares[MOEC_SCORE_COUNT], *read = NULL;
    uint8_t bytes[MOEC_SCORES_BYTES], damaged[MOEC_SCORES_BYTES];
    struct moec_error err = {0};
    for (uint32_t i = 0; i < MOEC_SCORE_COUNT; i++)
        shares[i] = (float)i / (float)MOEC_SCORE_STEPS;
    moec_score_shares_encode(shares, bytes);
    assert_status(moec_score_shares_decode(bytes, sizeof bytes, &read, &err), MOEC_OK, err);
    assert_memory_equal(read, shares, sizeof shares);
    free(read);
    read = NULL;
    for (size_t n = 0; n < sizeof bytes; n++)
        assert_status(moec_score_shares_decode(bytes, n, &read, &err), MOEC_ERR_FORMAT, err);
    static const struct {
        size_t at;
        float value;
    } wrong[] = {{0, -0.1f}, {50, 0.4f}, {50, NAN}, {99, 1.5f}, {100, 0.99f}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (struct moec_error){0};
        memcpy(damaged, bytes, sizeof bytes);
        moec_put_f32(damaged + 8 + 4 * wrong[i].at, wrong[i].value);
        assert_status(moec_score_shares_decode(damaged, sizeof damaged, &read, &err), MOEC_ERR_FORMAT, err);
        assert_non_null(strstr(err.message, "share of experts with scores up to"));
    }
    err = (struct moec_error){0};
    memcpy(damaged, bytes, sizeof bytes);
    damaged[0] = 2;
    assert_status(moec_score_shares_decode(damaged, sizeof damaged, &read, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_null(read);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_score_study__counts_scores),
        cmocka_unit_test(test_score_study__knows_when_there_is_nothing),
        cmocka_unit_test(test_score_shares__round_trip_and_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
