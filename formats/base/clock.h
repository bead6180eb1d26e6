/* The one clock that durations are measured with. */
#ifndef MOEC_FORMATS_CLOCK_H
#define MOEC_FORMATS_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC. Thread rule: any thread, signal handlers too. */
static inline uint64_t moec_now_ns(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

#endif
