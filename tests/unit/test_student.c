/* Student's t distribution against values of scipy 1.17.1 (scipy.stats.t). */
#include "profiler/common/student.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

/* cmocka compares as float, which is too coarse here. */
static void check_near(double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%.17g is not within %g of %.17g", got, tolerance, expected);
}

static void test_student__cdf(void **state)
{
    (void)state;
    static const struct {
        double t, df, p;
    } known[] = {
        {-1, 1, 0.25},
        {-2.5, 3, 0.04385332350403278},
        {-12, 7, 3.1791551890925489e-06},
        {-1.7, 15, 0.054883105500668078},
        {0.3, 31, 0.6169101624944856},
        {3, 64, 0.99807800406703961},
        {-40, 511, 7.9652183290715659e-160},
        {1e-9, 5, 0.50000000037960668},
        {-8.5, 2.5, 0.0033037489807361611},
        {0, 9, 0.5},
        {INFINITY, 3, 1},
        {-INFINITY, 3, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        check_near(moec_student_cdf(known[i].t, known[i].df), known[i].p, 1e-12 * known[i].p);
}

static void test_student__quantile(void **state)
{
    (void)state;
    static const struct {
        double p, df, t;
    } known[] = {
        {0.95, 1, 6.3137515146750367},    {0.95, 2, 2.9199855803537242},  {0.95, 7, 1.8945786050900062},
        {0.95, 15, 1.7530503556925721},   {0.95, 31, 1.6955187825458649}, {0.95, 511, 1.6478410089036626},
        {0.9, 15, 1.3406056078504558},    {0.99, 15, 2.6024802950111225}, {0.999, 3, 10.214531852407383},
        {0.975, 100, 1.9839715185235518}, {0.6, 5, 0.26718086570414512},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        check_near(moec_student_quantile(known[i].p, known[i].df), known[i].t, 1e-11 * known[i].t);
        check_near(moec_student_quantile(1 - known[i].p, known[i].df), -known[i].t, 1e-11 * known[i].t);
    }
    check_near(moec_student_quantile(0.5, 4), 0, 1e-12);
    for (double df = 1; df < 3000; df *= 3)
        for (double p = 0.001; p < 1; p += 0.037)
            check_near(moec_student_cdf(moec_student_quantile(p, df), df), p, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_student__cdf),
        cmocka_unit_test(test_student__quantile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
