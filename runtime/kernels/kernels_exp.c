/* F32 exp and SiLU as every kernel computes them; formats/base/elementary.h holds the functions of F64. */
#include "runtime/kernels/kernels_exp.h"
#include "runtime/kernels/kernels.h"

float moec_exp_f32(float x)
{
    return moec_canonical_exp(x);
}

float moec_silu_f32(float x)
{
    return moec_canonical_silu(x);
}
