/* Which sets of the int8 arithmetic go with which kernels. */
#include "runtime/kernels/int8.h"

#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>

#include <asm/hwcap.h>

static bool cpu_has_dot(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#else
static bool cpu_has_dot(void)
{
    return false;
}
#endif

bool moec_int8_serves(struct moec_codec codec)
{
    const bool is_even = codec.scheme == MOEC_SCHEME_SYMMETRIC || codec.scheme == MOEC_SCHEME_ASYMMETRIC ||
                         moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    if (codec.scheme == MOEC_SCHEME_TRELLIS)
        return true;
    switch (codec.dtype) {
    case MOEC_DTYPE_INT2:
    case MOEC_DTYPE_INT3:
    case MOEC_DTYPE_INT4:
    case MOEC_DTYPE_INT5:
    case MOEC_DTYPE_INT6:
    case MOEC_DTYPE_INT8:
        return is_even && codec.group != 16;
    default:
        return false;
    }
}

const struct moec_int8_kernels *moec_int8_kernels_of(const struct moec_kernels *kernels)
{
    const struct moec_int8_kernels *set = NULL;
    if (strcmp(kernels->name, "avx512-vbmi") == 0)
        set = moec_int8_kernels_avx512_vnni();
    else if (strncmp(kernels->name, "avx", 3) == 0)
        set = moec_int8_kernels_avx2();
    else if (strcmp(kernels->name, "neon") == 0)
        set = cpu_has_dot() ? moec_int8_kernels_neon_dot() : moec_int8_kernels_neon();
    return set != NULL ? set : &moec_int8_kernels_scalar;
}
