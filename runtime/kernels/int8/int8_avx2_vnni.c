/* The int8 arithmetic on AVX2, FMA, F16C, GFNI and AVX-VNNI: Alder Lake and later, which lack AVX-512. */
#include "runtime/kernels/int8.h"

#if defined(__x86_64__)
#include "runtime/kernels/int8/int8_avx2.h"

static const struct moec_int8_kernels kernels = INT8_KERNELS("avx2-vnni");

const struct moec_int8_kernels *moec_int8_kernels_avx2_vnni(void)
{
    return &kernels;
}
#else
const struct moec_int8_kernels *moec_int8_kernels_avx2_vnni(void)
{
    return NULL;
}
#endif
