/* AVX2, FMA and F16C: Haswell, Zen and later. */
#include "runtime/kernels/kernels.h"

#if defined(__x86_64__)
#include "runtime/kernels/canonical/kernels_avx2.h"

static const struct moec_kernels kernels_avx2 = LANES_KERNELS("avx2");

const struct moec_kernels *moec_kernels_avx2(void)
{
    return &kernels_avx2;
}
#else
const struct moec_kernels *moec_kernels_avx2(void)
{
    return NULL;
}
#endif
