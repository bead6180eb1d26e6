/* exp, log, sine and cosine of our own: libm's differ from version to version, and a flipped bit may flip a
 * top-k choice (D1) or a byte of a file. Only additions, multiplications, fused multiply-adds and conversions
 * are used, all correctly rounded by IEEE 754, so every machine gives the same bits. Arguments are reduced in
 * the way of Cody and Waite, "Software Manual for the Elementary Functions" (1980), with the products fused.
 * Errors are below 1 ulp. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_ELEMENTARY_H
#define MOEC_FORMATS_ELEMENTARY_H

double moec_exp_f64(double x); /* 0 where the result would be denormal */
double moec_log_f64(double x);
void moec_sincos_f64(double x, double *sine, double *cosine);

#endif
