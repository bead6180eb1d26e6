/* What stands for the sets that a build for one processor leaves out (make native), as on another architecture. The
 * Makefile names them; in every other build this file is empty. */
#include "runtime/kernels/int8.h"

#ifdef MOEC_ABSENT_kernels_avx2
const struct moec_kernels *moec_kernels_avx2(void)
{
    return NULL;
}
#endif
#ifdef MOEC_ABSENT_kernels_avx2_gfni
const struct moec_kernels *moec_kernels_avx2_gfni(void)
{
    return NULL;
}
#endif
#ifdef MOEC_ABSENT_kernels_avx512
const struct moec_kernels *moec_kernels_avx512(void)
{
    return NULL;
}
#endif
#ifdef MOEC_ABSENT_kernels_avx512_vbmi
const struct moec_kernels *moec_kernels_avx512_vbmi(void)
{
    return NULL;
}
#endif
#ifdef MOEC_ABSENT_int8_avx2
const struct moec_int8_kernels *moec_int8_kernels_avx2(void)
{
    return NULL;
}
#endif
#ifdef MOEC_ABSENT_int8_avx2_vnni
const struct moec_int8_kernels *moec_int8_kernels_avx2_vnni(void)
{
    return NULL;
}
#endif
#ifdef MOEC_ABSENT_int8_avx512_vnni
const struct moec_int8_kernels *moec_int8_kernels_avx512_vnni(void)
{
    return NULL;
}
#endif
#ifdef MOEC_ABSENT_int8_avx512_amx
const struct moec_int8_kernels *moec_int8_kernels_avx512_amx(void)
{
    return NULL;
}
#endif
