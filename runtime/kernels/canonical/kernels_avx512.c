/* AVX-512 F, BW, DQ, VL. */
#include "runtime/kernels/kernels.h"

#if defined(__x86_64__)
#define SET_VBMI 0
#include "runtime/kernels/canonical/kernels_avx512.h"

static const struct moec_kernels kernels_avx512 = LANES_KERNELS("avx512");

const struct moec_kernels *moec_kernels_avx512(void)
{
    return &kernels_avx512;
}
#else
const struct moec_kernels *moec_kernels_avx512(void)
{
    return NULL;
}
#endif
