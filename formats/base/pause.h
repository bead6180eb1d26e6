/* What a thread does that watches memory for a change instead of sleeping. */
#ifndef MOEC_FORMATS_PAUSE_H
#define MOEC_FORMATS_PAUSE_H

#include <stdatomic.h>

/* Some dozen cycles in which the other threads of this core go first. Thread rule: any thread. */
static inline void moec_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

#endif
