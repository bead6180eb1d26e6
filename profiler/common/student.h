/* Student's t distribution, for tests and intervals of means of few values. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_STUDENT_H
#define MOEC_PROFILER_STUDENT_H

/* P(T <= t) with `df` > 0 degrees of freedom, within 1e-12; t may be infinite. */
double moec_student_cdf(double t, double df);

/* The t with P(T <= t) = p, 0 < p < 1, to about 1e-12 of itself. */
double moec_student_quantile(double p, double df);

#endif
