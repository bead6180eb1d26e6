/* The int8 arithmetic on any 64-bit ARM. */
#include "runtime/kernels/int8.h"

#if defined(__aarch64__)
#define SET_DOT  0
#define SET_I8MM 0
#include "runtime/kernels/int8/int8_neon.h"

static const struct moec_int8_kernels kernels = INT8_KERNELS("neon");

const struct moec_int8_kernels *moec_int8_kernels_neon(void)
{
    return &kernels;
}
#else
const struct moec_int8_kernels *moec_int8_kernels_neon(void)
{
    return NULL;
}
#endif
