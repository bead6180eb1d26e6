/* AVX2, FMA, F16C and GFNI: Alder Lake and later, which lack AVX-512. */
#include "runtime/kernels/kernels.h"

#if defined(__x86_64__)
#include "runtime/kernels/canonical/kernels_avx2.h"

static const struct moec_kernels kernels_avx2_gfni = LANES_KERNELS("avx2-gfni");

const struct moec_kernels *moec_kernels_avx2_gfni(void)
{
    return &kernels_avx2_gfni;
}
#else
const struct moec_kernels *moec_kernels_avx2_gfni(void)
{
    return NULL;
}
#endif
