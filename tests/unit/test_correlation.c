#include "profiler/common/correlation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

static double spearman(const double *a, const double *b, size_t n)
{
    double rho = 7;
    struct moec_error err = {0};
    if (moec_correlation_spearman(a, b, n, &rho, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    return rho;
}

static void check(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-12))
        fail_msg("%.17g, expected %.17g", got, expected);
}

static void test_correlation__ranks_share_ties(void **state)
{
    (void)state;
    const double values[] = {3, 1, 3, -2, 3, 1};
    const double expected[] = {5, 2.5, 5, 1, 5, 2.5};
    double ranks[6];
    struct moec_error err = {0};
    assert_int_equal(moec_correlation_ranks(values, 6, ranks, &err), MOEC_OK);
    for (size_t i = 0; i < 6; i++)
        check(ranks[i], expected[i]);
    assert_int_equal(moec_correlation_ranks(NULL, 0, NULL, &err), MOEC_OK);
}

/* Expected values by hand: 1 - 6 sum d^2 / (n (n^2 - 1)) without ties; with a tie, Pearson's of the ranks. */
static void test_correlation__spearman_of_known_pairs(void **state)
{
    (void)state;
    const double a[] = {1, 2, 3, 4, 5}, square[] = {1, 4, 9, 16, 25}, falling[] = {5, 4, 3, 2, 1};
    const double mixed[] = {2, 1, 4, 3, 5}, tied[] = {1, 1, 2, 3, 4};
    check(spearman(a, square, 5), 1);
    check(spearman(a, falling, 5), -1);
    check(spearman(a, mixed, 5), 1 - 6.0 * 4 / 120);
    check(spearman(a, tied, 5), 9.5 / sqrt(10 * 9.5));
    check(moec_correlation_pearson(a, square, 5), 60 / sqrt(10 * 374));
}

static void test_correlation__nothing_to_say(void **state)
{
    (void)state;
    const double a[] = {1, 2, 3}, same[] = {4, 4, 4}, holes[] = {NAN, 2, INFINITY}, hole[] = {9, NAN, 10};
    assert_true(isnan(spearman(a, same, 3)));
    assert_true(isnan(spearman(a, a, 1)));
    assert_true(isnan(spearman(NULL, NULL, 0)));
    assert_true(isnan(spearman(a, holes, 3)));
    assert_true(isnan(moec_correlation_pearson(a, holes, 3)));
    check(spearman(a, hole, 3), 1); /* of the two pairs that are whole */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_correlation__ranks_share_ties),
        cmocka_unit_test(test_correlation__spearman_of_known_pairs),
        cmocka_unit_test(test_correlation__nothing_to_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
