/* AVX-512 F, BW, DQ, VL, VBMI and GFNI: Ice Lake, Zen 4 and later. */
#include "runtime/kernels/kernels.h"

#if defined(__x86_64__)
#define SET_VBMI 1
#include "runtime/kernels/canonical/kernels_avx512.h"

static const struct moec_kernels kernels_avx512_vbmi = LANES_KERNELS("avx512-vbmi");

const struct moec_kernels *moec_kernels_avx512_vbmi(void)
{
    return &kernels_avx512_vbmi;
}
#else
const struct moec_kernels *moec_kernels_avx512_vbmi(void)
{
    return NULL;
}
#endif
