#include "formats/base/elementary.h"

#include "formats/base/elementary_both.h"

double moec_exp_f64(double x)
{
    return moec_exp_both(x);
}

double moec_log_f64(double x)
{
    return moec_log_both(x);
}

void moec_sincos_f64(double x, double *sine, double *cosine)
{
    moec_sincos_both(x, sine, cosine);
}
