/* The int8 arithmetic on AVX2, FMA and F16C. */
#include "runtime/kernels/int8.h"

#if defined(__x86_64__)
#include "runtime/kernels/int8/int8_avx2.h"

static const struct moec_int8_kernels kernels = INT8_KERNELS("avx2");

const struct moec_int8_kernels *moec_int8_kernels_avx2(void)
{
    return &kernels;
}
#else
const struct moec_int8_kernels *moec_int8_kernels_avx2(void)
{
    return NULL;
}
#endif
