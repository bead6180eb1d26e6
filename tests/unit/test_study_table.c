/* Tables of studies: every value stands under its axes, whatever the shape. */
#include "tests/unit/status.h"

#include "formats/profile/profile.h"
#include "profiler/profile/loss_study.h"
#include "profiler/profile/study_table.h"

#include <math.h>
#include <stdlib.h>

static void add(struct moec_studies *studies, const char *name, uint32_t n_axis, uint64_t n, double *values)
{
    static double bits[] = {2, 3, 4};
    static char words[][MOEC_STUDY_LABEL] = {"gate", "down"};
    struct moec_study study = {
        .description = "what it says",
        .n_axis = n_axis,
        .axes = {{.name = "projection", .n = 2, .labels = words}, {.name = "bits", .n = n, .values = bits}},
        .values = values};
    (void)strcpy(study.name, name);
    if (n_axis == 1)
        study.axes[0] = study.axes[1];
    MUST(moec_studies_add(studies, &study, NULL, &err));
}

static char *table_of(const struct moec_studies *studies, const char *name, uint32_t columns)
{
    char *text = NULL;
    const struct moec_study *study = moec_studies_find(studies, name);
    assert_non_null(study);
    MUST(moec_study_table(studies, study, columns, &text, &err));
    return text;
}

static void test_study_table__puts_the_last_axis_across(void **state)
{
    (void)state;
    struct moec_studies studies = {0};
    add(&studies, "projection/loss", 2, 3, (double[]){0.5, 0.0125, NAN, 0.25, 0, -0.001});
    char *text = table_of(&studies, "projection/loss", 80);
    assert_string_equal(text, "projection/loss: what it says\n"
                              "              bits\n"
                              "  projection        2        3        4\n"
                              "  gate         50.00%    1.25%        -\n"
                              "  down         25.00%    0.00%  -0.100%\n");
    free(text);
    moec_studies_release(&studies);
}

static void test_study_table__lists_one_axis_with_its_siblings(void **state)
{
    (void)state;
    struct moec_studies studies = {0};
    add(&studies, "rank/loss", 1, 2, (double[]){0.012, 1.5});
    add(&studies, "rank/loss_low", 1, 2, (double[]){0.01, 1.25});
    add(&studies, "rank/loss_high", 1, 2, (double[]){0.02, 2});
    add(&studies, "rank/kl", 1, 2, (double[]){0.125, 3});
    add(&studies, "rank/tokens", 1, 2, (double[]){7, 123456});
    char *text = table_of(&studies, "rank/loss", 80);
    assert_string_equal(text, "rank/loss: what it says\n"
                              "  bits    loss  loss_low  loss_high     kl\n"
                              "  2       1.2%      1.0%       2.0%  0.125\n"
                              "  3     150.0%    125.0%     200.0%      3\n");
    free(text);
    text = table_of(&studies, "rank/tokens", 80);
    assert_string_equal(text, "rank/tokens: what it says\n"
                              "  bits   value\n"
                              "  2          7\n"
                              "  3     123456\n");
    free(text);
    moec_studies_release(&studies);
}

static void test_study_table__breaks_wide_ones_into_bands(void **state)
{
    (void)state;
    struct moec_studies studies = {0};
    struct moec_study wide = {.name = "routing/load",
                              .units = "tokens",
                              .description = "d",
                              .source = "a paper",
                              .n_axis = 4,
                              .axes = {{.name = "moe_layer", .n = 2},
                                       {.name = "one", .n = 1},
                                       {.name = "rank", .n = 2},
                                       {.name = "expert", .n = 40}}};
    struct moec_study *added = NULL;
    MUST(moec_studies_add(&studies, &wide, &added, &err));
    for (uint32_t i = 0; i < 160; i++)
        added->values[i] = i;
    char *text = table_of(&studies, "routing/load", 0);
    assert_non_null(strstr(text, "routing/load (tokens): d [a paper]; one 0\n"));
    assert_non_null(strstr(text, "  moe_layer  rank    0    1    2"));
    assert_non_null(strstr(text, "  1          1     120  121"));
    assert_non_null(strstr(text, " 159\n"));
    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1)
        assert_true(strchr(line, '\n') - line <= 60);
    free(text);
    moec_studies_release(&studies);
}

static void test_study_table__finds_studies_by_name_and_group(void **state)
{
    (void)state;
    struct moec_studies studies = {0};
    char *text = NULL;
    add(&studies, "rank/loss", 1, 3, NULL);
    const struct moec_study *study = moec_studies_find(&studies, "rank/loss");
    assert_true(moec_study_matches(study, "rank/loss"));
    assert_true(moec_study_matches(study, "rank"));
    assert_true(moec_study_matches(study, "all"));
    assert_false(moec_study_matches(study, "ran"));
    assert_false(moec_study_matches(study, "rank/los"));
    MUST(moec_study_list(&studies, &text, &err));
    assert_string_equal(text, "rank/loss (bits 3): what it says\n");
    free(text);
    moec_studies_release(&studies);
}

/* Siblings come from the same windows: twice the original's perplexity is a loss of 100 %. */
static void test_study_table__loss_studies_have_siblings(void **state)
{
    (void)state;
    double reference[] = {2, 3}, nll[] = {2 + log(2) * 10, 3 + log(2) * 20}, kl[] = {3, 6};
    uint32_t scored[] = {10, 20};
    struct moec_profile profile = {.n_window = 2, .window_scored = scored, .reference = {.nll = reference}};
    const struct moec_measure measure = {nll, kl};
    const struct moec_study shape = {
        .name = "rank/loss", .description = "d", .n_axis = 1, .axes = {{.name = "here", .n = 3}}};
    struct moec_loss_study loss;
    MUST(moec_loss_study_create(&shape, &loss, &err));
    MUST(moec_loss_study_set(&loss, 1, &profile, &measure, &err));
    moec_loss_study_repeat(&loss, 2, 1);
    MUST(moec_loss_study_add(&loss, &profile, &err));
    moec_loss_study_release(&loss);
    assert_int_equal(profile.studies.n, 4);
    const struct moec_study *study = moec_studies_find(&profile.studies, "rank/loss");
    const struct moec_study *mean = moec_study_sibling(&profile.studies, study, "kl");
    assert_true(isnan(study->values[0]));
    assert_true(fabs(study->values[1] - 1) < 1e-12);
    assert_true(fabs(mean->values[2] - 0.3) < 1e-12);
    assert_string_equal(mean->units, "nat");
    assert_true(moec_study_sibling(&profile.studies, study, "loss_low")->values[1] <= study->values[1]);
    assert_true(moec_study_sibling(&profile.studies, study, "loss_high")->values[2] >= study->values[2]);
    assert_null(moec_study_sibling(&profile.studies, mean, "loss_low"));
    moec_studies_release(&profile.studies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_study_table__puts_the_last_axis_across),
        cmocka_unit_test(test_study_table__lists_one_axis_with_its_siblings),
        cmocka_unit_test(test_study_table__breaks_wide_ones_into_bands),
        cmocka_unit_test(test_study_table__finds_studies_by_name_and_group),
        cmocka_unit_test(test_study_table__loss_studies_have_siblings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
