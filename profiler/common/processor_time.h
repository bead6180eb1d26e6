/* What processors have spent on this process. Thread rule: any thread. */
#ifndef MOEC_PROFILER_PROCESSOR_TIME_H
#define MOEC_PROFILER_PROCESSOR_TIME_H

#include <stdint.h>
#include <time.h>

/* Of all threads together. */
static inline uint64_t moec_processor_ns(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

#endif
