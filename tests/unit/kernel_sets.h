/* The vector instruction sets that a test can run here: those of this processor and, if it was built on one
 * without AVX-512, that source translated to AVX2 by SIMDe (tests/unit/kernels_avx512_simde.c), so that its
 * bits are checked on every x86-64 machine. */
#ifndef MOEC_TESTS_KERNEL_SETS_H
#define MOEC_TESTS_KERNEL_SETS_H

#include "runtime/kernels/kernels.h"

const struct moec_kernels *moec_kernels_avx512_simde(void);

#define KERNEL_SETS_MAX 5

/* Sets with index 0, 1, ..., then NULL. Found once: a virtual machine takes long to say what its processor
 * has. One thread at a time. */
static inline const struct moec_kernels *kernel_set(size_t index)
{
    static const struct moec_kernels *sets[KERNEL_SETS_MAX + 1];
    const struct moec_kernels *set = NULL;
    struct moec_error err = {0};
    size_t n = 0;
    if (sets[0] == NULL) {
        if (moec_kernels_find("avx512-vbmi", &set, &err) == MOEC_OK)
            sets[n++] = set;
        if (moec_kernels_find("avx512", &set, &err) == MOEC_OK)
            sets[n++] = set;
#if defined(__aarch64__)
        if (moec_kernels_find("neon", &set, &err) == MOEC_OK)
            sets[n++] = set;
#endif
#if defined(__x86_64__)
        if (moec_kernels_find("avx2-gfni", &set, &err) == MOEC_OK)
            sets[n++] = set;
        if (moec_kernels_find("avx2", &set, &err) == MOEC_OK) {
            sets[n++] = set;
#if defined(MOEC_TESTS_SIMDE)
            sets[n++] = moec_kernels_avx512_simde();
#endif
        }
#endif
    }
    return index < KERNEL_SETS_MAX ? sets[index] : NULL;
}

static inline size_t n_kernel_sets(void)
{
    size_t n = 0;
    while (kernel_set(n) != NULL)
        n++;
    return n;
}

#endif
