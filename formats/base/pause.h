/* What a thread does that watches memory for a change instead of sleeping. */
#ifndef MOEC_FORMATS_PAUSE_H
#define MOEC_FORMATS_PAUSE_H

#include "formats/base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>

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

/* Pauses a little; false when the time is over (CLOCK_MONOTONIC). */
static inline bool moec_pause_until(uint64_t until_ns)
{
    for (int i = 0; i < 16; i++)
        moec_pause();
    return moec_now_ns() < until_ns;
}

#endif
