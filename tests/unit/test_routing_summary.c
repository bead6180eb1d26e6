/* The main figures of routing studies: means of what is known, words for them, nothing out of nothing. */
#include "profiler/routing/routing_summary.h"
#include "tests/unit/synthetic_profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define assert_near(a, b) assert_true(fabs((a) - (b)) <= 1e-12)

static const struct synthetic_shape shape = {.n_dense = 1,
                                             .n_moe_layer = 3,
                                             .n_expert = 4,
                                             .top_k = 2,
                                             .n_window = 2,
                                             .seq_len_tokens = 8,
                                             .n_bits = 1};

static void add(struct moec_profile *profile, const char *name, uint32_t n_axis,
                const struct moec_study_axis *axes, double *values)
{
    struct moec_study study = {.n_axis = n_axis, .values = values};
    struct moec_error err = {0};
    (void)snprintf(study.name, sizeof study.name, "%s", name);
    memcpy(study.axes, axes, n_axis * sizeof *axes);
    if (moec_profile_add_study(profile, &study, NULL, &err) != MOEC_OK)
        fail_msg("%s", err.message);
}

static void test_routing_summary__means_of_what_is_known(void **state)
{
    (void)state;
    double quantiles[] = {0.05, 0.5}, counts[] = {1, 10, 12}, fractions[] = {0.2, 1};
    double margin[] = {0.01, 0.1, 0.02, 0.2, 0.03, 0.3};
    double cosine[] = {0.9, 0.7, NAN}, entropy[] = {1, 0.5, 0.75};
    double full[] = {0.25, 0.8, 1}, fraction[] = {0.5, 1}, recall[27];
    const struct moec_study_axis layer = {.name = "moe_layer", .n = 3};
    struct moec_profile profile;
    struct moec_routing_summary summary;
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    assert_false(moec_routing_summary_make(&profile, &summary));
    assert_true(isnan(summary.entropy) && isnan(summary.recall[2][2]) && isnan(summary.cosine_lowest));
    assert_int_equal(summary.n_path, 0);

    /* Layer 0 is out: no predictor has a layer before it. */
    for (uint32_t i = 0; i < 27; i++)
        recall[i] = i < 9 ? NAN : i < 18 ? 0.01 * (i - 9) : 0.5 + 0.01 * (i - 18);
    add(&profile, "routing/entropy", 1, &layer, entropy);
    add(&profile, "routing/margin", 2,
        (struct moec_study_axis[]){layer, {.name = "quantile", .n = 2, .values = quantiles}}, margin);
    add(&profile, "predict/cosine", 1, &layer, cosine);
    add(&profile, "predict/recall", 3,
        (struct moec_study_axis[]){layer, {.name = "predictor", .n = 3}, {.name = "cut", .n = 3}}, recall);
    add(&profile, "paths/full", 1,
        (struct moec_study_axis[]){{.name = "popular_paths", .n = 3, .values = counts}}, full);
    add(&profile, "paths/full_fraction", 1,
        (struct moec_study_axis[]){{.name = "path_fraction", .n = 2, .values = fractions}}, fraction);
    assert_true(moec_routing_summary_make(&profile, &summary));
    assert_near(summary.entropy, 0.75);
    assert_near(summary.margin_small, 0.02);
    assert_near(summary.margin_median, 0.2);
    assert_near(summary.cosine, 0.8);
    assert_near(summary.cosine_lowest, 0.7);
    assert_int_equal(summary.cosine_lowest_layer, 2);
    assert_int_equal(summary.n_path, 12);
    assert_int_equal(summary.n_token, 15);
    assert_near(summary.top_ten, 0.8);
    assert_near(summary.top_fifth, 0.5);
    for (uint32_t i = 0; i < 9; i++)
        assert_near(summary.recall[i / 3][i % 3], 0.25 + 0.01 * i);
    assert_true(isnan(summary.weight_correlation));

    struct moec_paragraphs paragraphs = {0};
    moec_routing_summary_describe(&profile, &summary, &paragraphs);
    assert_int_equal(paragraphs.n, 4);
    assert_non_null(strstr(paragraphs.items[0], "the next-layer gate is the best at naming"));
    assert_non_null(strstr(paragraphs.items[0], "31.0% of them with k = 2 predictions"));
    assert_non_null(strstr(paragraphs.items[0], "from layer 2 to the next"));
    assert_non_null(strstr(paragraphs.items[1], "Load: uneven"));
    assert_non_null(strstr(paragraphs.items[2], "Paths: 15 tokens take 12 distinct paths"));
    assert_non_null(strstr(paragraphs.items[3], "by less than 0.0200 for one token in twenty"));
    moec_profile_release(&profile);
}

/* Studies of the same names with other axes are not misread. */
static void test_routing_summary__other_axes(void **state)
{
    (void)state;
    double one[] = {0.5}, nine[9] = {0};
    const struct moec_study_axis single = {.name = "other", .n = 1, .values = one};
    struct moec_profile profile;
    struct moec_routing_summary summary;
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    add(&profile, "routing/margin", 1, &single, one);
    add(&profile, "predict/recall", 0, &single, one);
    assert_false(moec_routing_summary_make(&profile, &summary));
    add(&profile, "routing/margin", 2, (struct moec_study_axis[]){single, {.name = "x", .n = 1}}, one);
    add(&profile, "predict/recall", 3,
        (struct moec_study_axis[]){single, {.name = "y", .n = 9}, {.name = "z", .n = 1}}, nine);
    add(&profile, "paths/full", 1, &single, one);
    assert_true(moec_routing_summary_make(&profile, &summary));
    assert_true(isnan(summary.margin_median) && isnan(summary.recall[0][0]));
    assert_int_equal(summary.n_path, 0);
    struct moec_paragraphs paragraphs = {0};
    moec_routing_summary_describe(&profile, &summary, &paragraphs);
    assert_int_equal(paragraphs.n, 0);
    moec_profile_release(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routing_summary__means_of_what_is_known),
        cmocka_unit_test(test_routing_summary__other_axes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
