/* Which instruction sets this processor and operating system offer. */
#include "runtime/kernels/kernels.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

#define BIT(n) (1u << (n))

/* State that the operating system saves for us: register XCR0. */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool cpu_has(bool avx512)
{
    const uint32_t leaf1_needed = BIT(12) | BIT(27) | BIT(28) | BIT(29); /* FMA, OSXSAVE, AVX, F16C */
    uint32_t leaf7_needed = BIT(5);                                      /* AVX2 */
    uint64_t state_needed = 0x6;                                         /* SSE and AVX registers */
    if (avx512) {
        leaf7_needed |= BIT(16) | BIT(17) | BIT(30) | BIT(31); /* AVX-512 F, DQ, BW, VL */
        state_needed |= 0xe0;                                  /* mask and 512-bit registers */
    }
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & leaf1_needed) != leaf1_needed)
        return false;
    if ((saved_state() & state_needed) != state_needed)
        return false;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & leaf7_needed) == leaf7_needed;
}
#else
static bool cpu_has(bool avx512)
{
    (void)avx512;
    return false;
}
#endif

static const struct moec_kernels *usable_avx2(void)
{
    return cpu_has(false) ? moec_kernels_avx2() : NULL;
}

static const struct moec_kernels *usable_avx512(void)
{
    return cpu_has(true) ? moec_kernels_avx512() : NULL;
}

const struct moec_kernels *moec_kernels_best(void)
{
    const struct moec_kernels *set = usable_avx512();
    if (set == NULL)
        set = usable_avx2();
    return set != NULL ? set : &moec_kernels_scalar;
}

enum moec_status moec_kernels_find(const char *name, const struct moec_kernels **out, struct moec_error *err)
{
    const struct moec_kernels *set = NULL;
    if (strcmp(name, "auto") == 0)
        set = moec_kernels_best();
    else if (strcmp(name, "scalar") == 0)
        set = &moec_kernels_scalar;
    else if (strcmp(name, "avx2") == 0)
        set = usable_avx2();
    else if (strcmp(name, "avx512") == 0)
        set = usable_avx512();
    else
        return moec_fail(err, MOEC_ERR_USAGE,
                         "unknown instruction set '%s', expected 'auto', 'scalar', 'avx2' or 'avx512'", name);
    if (set == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "this processor cannot run instruction set '%s'; 'auto' takes the best it can run",
                         name);
    *out = set;
    return MOEC_OK;
}
