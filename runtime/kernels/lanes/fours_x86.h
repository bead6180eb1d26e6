/* Four floats side by side on x86, as runtime/kernels/int8/int8_lanes.h wants them. */
#ifndef MOEC_RUNTIME_KERNELS_FOURS_X86_H
#define MOEC_RUNTIME_KERNELS_FOURS_X86_H

#include "runtime/kernels/lanes/kernels_x86.h"

typedef __m128 fours;

INLINE fours fours_load(const float *at)
{
    return _mm_loadu_ps(at);
}

INLINE void fours_store(float *at, fours v)
{
    _mm_storeu_ps(at, v);
}

INLINE fours fours_set(float value)
{
    return _mm_set1_ps(value);
}

INLINE fours fours_fma(fours a, fours b, fours c)
{
    return _mm_fmadd_ps(a, b, c);
}

#endif
