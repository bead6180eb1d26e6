/* Shares with intervals, over windows and over documents. */
#include "tests/unit/status.h"

#include "profiler/routing/study_share.h"

#include <math.h>

static void test_study_share__is_a_ratio_of_sums(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_study_share share;
    const double parts[] = {1, 3, 2, 4}, wholes[] = {4, 4, 4, 8};
    const struct moec_windows windows = {.n_window = 4};
    assert_ok(moec_study_share_make(&windows, parts, wholes, &share, &err), err);
    assert_true(share.value == 0.5);
    /* Residuals -1, 1, 0, 0: error = sqrt(4 / 3 * 2) / 20; t of three degrees at 95 % is 2.3534. */
    const double half = 2.3534 * sqrt(8.0 / 3) / 20;
    assert_true(fabs(share.high - 0.5 - half) < 1e-5 && fabs(0.5 - share.low - half) < 1e-5);
}

static void test_study_share__takes_documents_as_units(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_study_share share;
    uint64_t documents[] = {7, 3, 7, 3};
    const double parts[] = {1, 4, 1, 0}, wholes[] = {4, 4, 4, 4};
    const struct moec_windows windows = {.n_window = 4, .document = documents, .by_document = true};
    assert_ok(moec_study_share_make(&windows, parts, wholes, &share, &err), err);
    /* Two units, 2 of 8 and 4 of 8: residuals -1 and 1; t of one degree at 95 % is 6.3138. */
    assert_true(fabs(share.value - 0.375) < 1e-12);
    assert_true(fabs(share.high - share.value - 6.3138 * 2 / 16) < 1e-4);
    documents[1] = documents[3] = 7; /* one unit says nothing of how far off it is */
    assert_ok(moec_study_share_make(&windows, parts, wholes, &share, &err), err);
    assert_true(fabs(share.value - 0.375) < 1e-12 && isnan(share.low) && isnan(share.high));
}

static void test_study_share__of_nothing_is_not_a_number(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_study_share share;
    const double none[2] = {0, 0};
    const struct moec_windows windows = {.n_window = 2};
    assert_ok(moec_study_share_make(&windows, none, none, &share, &err), err);
    assert_true(isnan(share.value) && isnan(share.low) && isnan(share.high));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_study_share__is_a_ratio_of_sums),
        cmocka_unit_test(test_study_share__takes_documents_as_units),
        cmocka_unit_test(test_study_share__of_nothing_is_not_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
