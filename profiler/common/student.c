/* The distribution is a regularised incomplete beta function, by a continued fraction (Abramowitz & Stegun
 * 26.5.8). Both x and 1 - x are passed, since one of them is exact where the other cancels. Quantiles are
 * bisected and the upper end is returned: its distribution is never below p. */
#include "profiler/common/student.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

/* Continued fraction of the incomplete beta function (Abramowitz and Stegun, 26.5.8) by the method of Lentz
 * (1976), which builds it from the front: it converges fast for x < (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x)
{
    double c = 1, d = 1 / fmax(1 - (a + b) * x / (a + 1), DBL_MIN), fraction = d;
    for (int m = 1; m < 10000; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        const double steps[] = {even, odd};
        double change = 1;
        for (int i = 0; i < 2; i++) {
            d = 1 + steps[i] * d;
            c = 1 + steps[i] / c;
            d = 1 / (fabs(d) < DBL_MIN ? DBL_MIN : d);
            c = fabs(c) < DBL_MIN ? DBL_MIN : c;
            change = c * d;
            fraction *= change;
        }
        if (fabs(change - 1) < DBL_EPSILON)
            break;
    }
    return fraction;
}

/* The regularised incomplete beta function I_x(a, b); `y` is 1 - x, which may be known better than x. */
static double incomplete_beta(double a, double b, double x, double y)
{
    if (!(x > 0))
        return 0;
    if (!(y > 0))
        return 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(y));
    if (x < (a + 1) / (a + b + 2))
        return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, y) / b;
}

double moec_student_cdf(double t, double df)
{
    if (isinf(t))
        return t > 0 ? 1 : 0;
    const double square = t * t,
                 tail = incomplete_beta(df / 2, 0.5, df / (df + square), square / (df + square)) / 2;
    return t > 0 ? 1 - tail : tail;
}

/* Of a tail, p <= 1/2: t is negative. */
static double lower_quantile(double p, double df)
{
    double low = -1, high = 0;
    while (moec_student_cdf(low, df) > p && low > -DBL_MAX / 4) {
        high = low;
        low *= 2;
    }
    for (int i = 0; i < 200; i++) {
        const double middle = low + (high - low) / 2;
        const bool is_low = moec_student_cdf(middle, df) < p;
        low = is_low ? middle : low;
        high = is_low ? high : middle;
    }
    return high;
}

double moec_student_quantile(double p, double df)
{
    return p <= 0.5 ? lower_quantile(p, df) : -lower_quantile(1 - p, df);
}
