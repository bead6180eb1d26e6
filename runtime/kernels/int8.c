/* Which sets of the int8 arithmetic go with which kernels. */
#include "runtime/kernels/int8.h"

#include <string.h>

bool moec_int8_serves(struct moec_codec codec)
{
    const enum moec_scheme scheme = (enum moec_scheme)codec.scheme;
    return moec_codec_bits(codec) <= 8 && codec.group != 16 && !moec_scheme_is_dictionary(scheme) &&
           scheme != MOEC_SCHEME_TRELLIS;
}

const struct moec_int8_kernels *moec_int8_kernels_of(const struct moec_kernels *kernels)
{
    const struct moec_int8_kernels *set = NULL;
    if (strcmp(kernels->name, "avx512-vbmi") == 0)
        set = moec_int8_kernels_avx512_vnni();
    else if (strncmp(kernels->name, "avx", 3) == 0)
        set = moec_int8_kernels_avx2();
    return set != NULL ? set : &moec_int8_kernels_scalar;
}
