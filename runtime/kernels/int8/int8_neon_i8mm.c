/* The int8 arithmetic on ARMv8.2 with dot products and products of matrices of bytes: Neoverse V1 and N2,
 * Cortex-A510, A710 and X2, Apple's M2 and later. */
#include "runtime/kernels/int8.h"

#if defined(__aarch64__)
#define SET_DOT  1
#define SET_I8MM 1
#include "runtime/kernels/int8/int8_neon.h"

static const struct moec_int8_kernels kernels = INT8_KERNELS("neon-i8mm");

const struct moec_int8_kernels *moec_int8_kernels_neon_i8mm(void)
{
    return &kernels;
}
#else
const struct moec_int8_kernels *moec_int8_kernels_neon_i8mm(void)
{
    return NULL;
}
#endif
