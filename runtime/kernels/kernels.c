/* Which instruction sets this processor and operating system offer. */
#include "runtime/kernels/kernels.h"

#include <stdatomic.h>
#include <string.h>

enum set { SET_AVX2, SET_AVX2_GFNI, SET_AVX512, SET_AVX512_VBMI, SET_NEON };

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

static bool cpu_has(enum set set)
{
    const uint32_t leaf1_needed = BIT(12) | BIT(27) | BIT(28) | BIT(29); /* FMA, OSXSAVE, AVX, F16C */
    uint32_t leaf7_ebx = BIT(5), leaf7_ecx = 0;                          /* AVX2 */
    uint64_t state_needed = 0x6;                                         /* SSE and AVX registers */
    if (set == SET_AVX2_GFNI)
        leaf7_ecx |= BIT(8);
    if (set == SET_AVX512 || set == SET_AVX512_VBMI) {
        leaf7_ebx |= BIT(16) | BIT(17) | BIT(30) | BIT(31); /* AVX-512 F, DQ, BW, VL */
        state_needed |= 0xe0;                               /* mask and 512-bit registers */
    }
    if (set == SET_AVX512_VBMI)
        leaf7_ecx |= BIT(1) | BIT(8) | BIT(11); /* AVX-512 VBMI, GFNI, AVX-512 VNNI */
    uint32_t eax, ebx, ecx, edx;
    if (set == SET_NEON)
        return false;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & leaf1_needed) != leaf1_needed)
        return false;
    if ((saved_state() & state_needed) != state_needed)
        return false;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (ebx & leaf7_ebx) != leaf7_ebx ||
        (ecx & leaf7_ecx) != leaf7_ecx)
        return false;
    return set != SET_AVX2_GFNI ||
           (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & BIT(4)) != 0); /* AVX-VNNI */
}
#else
/* 64-bit ARM is not there without it. */
static bool cpu_has(enum set set)
{
    return set == SET_NEON;
}
#endif

static const struct {
    const char *name;
    enum set set;
    const struct moec_kernels *(*kernels)(void);
} sets[] = {{"avx512-vbmi", SET_AVX512_VBMI, moec_kernels_avx512_vbmi},
            {"avx512", SET_AVX512, moec_kernels_avx512},
            {"avx2-gfni", SET_AVX2_GFNI, moec_kernels_avx2_gfni},
            {"avx2", SET_AVX2, moec_kernels_avx2},
            {"neon", SET_NEON, moec_kernels_neon}}; /* the best of a machine first */
#define N_SETS (sizeof sets / sizeof *sets)

static const struct moec_kernels *find_best(void)
{
    for (size_t i = 0; i < N_SETS; i++)
        if (cpu_has(sets[i].set) && sets[i].kernels() != NULL)
            return sets[i].kernels();
    return &moec_kernels_scalar;
}

/* Kept, because each draw of a token asks, and a virtual machine takes microseconds for a CPUID. */
const struct moec_kernels *moec_kernels_best(void)
{
    static _Atomic(const struct moec_kernels *) best;
    const struct moec_kernels *known = atomic_load_explicit(&best, memory_order_relaxed);
    if (known == NULL) {
        known = find_best();
        atomic_store_explicit(&best, known, memory_order_relaxed);
    }
    return known;
}

enum moec_status moec_kernels_find(const char *name, const struct moec_kernels **out, struct moec_error *err)
{
    const struct moec_kernels *set = NULL;
    if (strcmp(name, "auto") == 0)
        set = moec_kernels_best();
    else if (strcmp(name, "scalar") == 0)
        set = &moec_kernels_scalar;
    else {
        size_t i = 0;
        while (i < N_SETS && strcmp(name, sets[i].name) != 0)
            i++;
        if (i == N_SETS)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "unknown instruction set '%s', expected 'auto', 'scalar', 'avx2', 'avx2-gfni', "
                             "'avx512', 'avx512-vbmi' or 'neon'",
                             name);
        set = cpu_has(sets[i].set) ? sets[i].kernels() : NULL;
    }
    if (set == NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "this processor or this build does not support instruction set '%s': 'auto' takes the best set "
            "that both support",
            name);
    *out = set;
    return MOEC_OK;
}
