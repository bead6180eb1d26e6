#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_quantiles__are_the_inverse_distribution(void **state)
{
    (void)state;
    float values[] = {4, 1, 3, 2}, scratch[4];
    const double at[] = {0, 0.25, 0.26, 0.5, 0.75, 0.99, 1};
    const double expected[] = {1, 1, 2, 2, 3, 4, 4};
    double found[7];
    moec_quantiles(values, scratch, 4, at, 7, found);
    for (size_t i = 0; i < 7; i++)
        assert_true(found[i] == expected[i]);
    assert_true(values[0] == 1 && values[1] == 2 && values[2] == 3 && values[3] == 4);
    moec_quantiles(values, scratch, 1, at, 7, found);
    assert_true(found[0] == 1 && found[6] == 1);
    moec_quantiles(values, scratch, 0, at, 7, found);
    assert_true(isnan(found[0]) && isnan(found[6]));
}

static void test_quantiles__of_finite_values_are_the_nearest(void **state)
{
    (void)state;
    const double values[] = {4, NAN, 1, INFINITY, 3, 2};
    double scratch[6];
    assert_true(moec_quantile_of_finite(values, 6, 0, scratch) == 1);
    assert_true(moec_quantile_of_finite(values, 6, 0.5, scratch) == 3);
    assert_true(moec_quantile_of_finite(values, 6, 1, scratch) == 4);
    assert_true(scratch[0] == 1 && scratch[1] == 2 && scratch[2] == 3 && scratch[3] == 4);
    assert_true(isnan(moec_quantile_of_finite(values + 1, 1, 0.5, scratch)));
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Every magnitude that a float has, subnormal and infinite ones too. */
static void test_quantiles__sort_as_qsort(void **state)
{
    (void)state;
    enum { N = 5000 };
    float *values = calloc(N, sizeof *values), *sorted = calloc(N, sizeof *sorted);
    float *scratch = calloc(N, sizeof *scratch);
    struct moec_random random = {3};
    for (size_t i = 0; i < N; i++) {
        const uint32_t bits = (uint32_t)moec_random_below(&random, 0x7f800001);
        memcpy(&values[i], &bits, sizeof bits);
        values[i] = i % 7 == 0 ? values[i / 2] : values[i];
        sorted[i] = values[i];
    }
    qsort(sorted, N, sizeof *sorted, compare);
    const double at[] = {0.3};
    double found[1];
    moec_quantiles(values, scratch, N, at, 1, found);
    assert_memory_equal(values, sorted, N * sizeof *values);
    assert_true(found[0] == sorted[1499]);
    free(values);
    free(sorted);
    free(scratch);
}

/* The smallest value that at least this share of all is no larger than: bootstraps take the ends of intervals
 * so. */
static void test_quantiles__of_sorted_values_are_the_inverse_distribution(void **state)
{
    (void)state;
    double sorted[20];
    for (size_t i = 0; i < 20; i++)
        sorted[i] = (double)(i + 1);
    static const struct {
        size_t n;
        double p, expected;
    } cases[] = {{20, 0, 1},     {20, 0.04, 1},  {20, 0.05, 1}, {20, 0.06, 2},  {20, 0.5, 10},
                 {20, 0.94, 19}, {20, 0.96, 20}, {20, 1, 20},   {10, 0.025, 1}, {10, 0.975, 10},
                 {3, 0.5, 2},    {1, 0.1, 1},    {1, 0.9, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        assert_true(moec_quantile_of_sorted(sorted, cases[c].n, cases[c].p) == cases[c].expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles__are_the_inverse_distribution),
        cmocka_unit_test(test_quantiles__of_finite_values_are_the_nearest),
        cmocka_unit_test(test_quantiles__of_sorted_values_are_the_inverse_distribution),
        cmocka_unit_test(test_quantiles__sort_as_qsort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
