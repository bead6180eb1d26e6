/* Which sets of the int8 arithmetic go with which kernels. */
#include "runtime/kernels/int8.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Tiles' registers are given to a process that asks (arch_prctl(2)), by a kernel that saves them. */
static bool cpu_has_tiles(void)
{
    const uint32_t needed = 1u << 24 | 1u << 25; /* AMX-TILE, AMX-INT8 */
    const long request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & needed) == needed &&
           syscall(SYS_arch_prctl, request, tile_data) == 0;
}
#else
static bool cpu_has_tiles(void)
{
    return false;
}
#endif

#if defined(__aarch64__)
#include <sys/auxv.h>

#include <asm/hwcap.h>

static bool cpu_has_dot(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

static bool cpu_has_matrices(void)
{
    return cpu_has_dot() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
}
#else
static bool cpu_has_dot(void)
{
    return false;
}

static bool cpu_has_matrices(void)
{
    return false;
}
#endif

bool moec_int8_serves(struct moec_codec codec)
{
    const bool is_even = codec.scheme == MOEC_SCHEME_SYMMETRIC || codec.scheme == MOEC_SCHEME_ASYMMETRIC ||
                         moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    if (moec_codec_traits(codec)->is_path)
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

/* Span s of one token at place t of a tile. The 32-bit integers of a span are those of a tile's column, with
 * both halves of blocks together. */
static void lay_span(const struct moec_int8_span *span, uint32_t t, struct moec_int8_tile *out)
{
    for (size_t i = 0; i < MOEC_INT8_SPAN / 4; i++) {
        const size_t half = i / 4 % 2, block = i / 8;
        memcpy(out->q[i][t], span->q + 64 * half + 16 * block + i % 4 * 4, 4);
    }
    for (size_t block = 0; block < MOEC_INT8_SPAN / MOEC_CODEC_BLOCK; block++)
        out->sums[block][t] = span->sums[4 * block];
    out->scales[t] = span->scale;
}

void moec_int8_lay(const struct moec_int8_span *const *x, uint32_t n_tok, size_t n_spans,
                   struct moec_int8_tile *out)
{
    static const struct moec_int8_span none;
    const uint32_t places = (n_tok + MOEC_LANES - 1) / MOEC_LANES * MOEC_LANES;
    for (uint32_t t = 0; t < places; t++) {
        struct moec_int8_tile *tiles = out + t / MOEC_LANES * n_spans;
        for (size_t s = 0; s < n_spans; s++)
            lay_span(t < n_tok ? x[t] + s : &none, t % MOEC_LANES, tiles + s);
    }
}

const struct moec_int8_kernels *moec_int8_kernels_of(const struct moec_kernels *kernels)
{
    const struct moec_int8_kernels *set = NULL;
    if (strcmp(kernels->name, "avx512-vbmi") == 0)
        set = cpu_has_tiles() ? moec_int8_kernels_avx512_amx() : moec_int8_kernels_avx512_vnni();
    else if (strcmp(kernels->name, "avx2-gfni") == 0)
        set = moec_int8_kernels_avx2_vnni();
    else if (strncmp(kernels->name, "avx", 3) == 0)
        set = moec_int8_kernels_avx2();
    else if (strcmp(kernels->name, "neon") == 0)
        set = cpu_has_matrices() ? moec_int8_kernels_neon_i8mm()
              : cpu_has_dot()    ? moec_int8_kernels_neon_dot()
                                 : moec_int8_kernels_neon();
    return set != NULL ? set : &moec_int8_kernels_scalar;
}
