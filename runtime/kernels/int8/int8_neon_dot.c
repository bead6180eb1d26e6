/* The int8 arithmetic on ARMv8.2 with dot products of bytes: Cortex-A55, A75, Apple's A11 and later. */
#include "runtime/kernels/int8.h"

#if defined(__aarch64__)
#define SET_DOT  1
#define SET_I8MM 0
#include "runtime/kernels/int8/int8_neon.h"

static const struct moec_int8_kernels kernels = INT8_KERNELS("neon-dot");

const struct moec_int8_kernels *moec_int8_kernels_neon_dot(void)
{
    return &kernels;
}
#else
const struct moec_int8_kernels *moec_int8_kernels_neon_dot(void)
{
    return NULL;
}
#endif
