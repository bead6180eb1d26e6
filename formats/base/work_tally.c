/* Own time of nested work without a stack. A thread's clock is the time minus what its finished work took.
 * Work that ended inside a measurement thus drops out of it. Parallel regions read the plain time: they span
 * work of all threads. */
#include "formats/base/work_tally.h"

#include "formats/base/clock.h"

#include <stdatomic.h>

static atomic_bool is_watched;
static _Thread_local uint64_t worked_ns; /* in work that has ended, without regions */
static struct {
    _Alignas(64) atomic_uint_fast64_t n;
    atomic_uint_fast64_t ns;
} counters[MOEC_WORK_COUNT];

void moec_work_watch(void)
{
    atomic_store_explicit(&is_watched, true, memory_order_relaxed);
}

/* Time of this thread outside of work that has ended; of regions, all time. */
static uint64_t clock_of(enum moec_work work)
{
    return moec_now_ns() - (work == MOEC_WORK_TOGETHER ? 0 : worked_ns);
}

uint64_t moec_work_begin(enum moec_work work)
{
    return atomic_load_explicit(&is_watched, memory_order_relaxed) ? clock_of(work) : 0;
}

void moec_work_end(enum moec_work work, uint64_t begun_ns, uint64_t n)
{
    if (begun_ns == 0)
        return;
    const uint64_t took_ns = clock_of(work) - begun_ns;
    atomic_fetch_add_explicit(&counters[work].n, n, memory_order_relaxed);
    atomic_fetch_add_explicit(&counters[work].ns, took_ns, memory_order_relaxed);
    if (work != MOEC_WORK_TOGETHER)
        worked_ns += took_ns;
}

void moec_work_count(enum moec_work work, uint64_t n)
{
    if (atomic_load_explicit(&is_watched, memory_order_relaxed))
        atomic_fetch_add_explicit(&counters[work].n, n, memory_order_relaxed);
}

struct moec_work_tally moec_work_now(void)
{
    struct moec_work_tally tally;
    for (int work = 0; work < MOEC_WORK_COUNT; work++) {
        tally.n[work] = atomic_load_explicit(&counters[work].n, memory_order_relaxed);
        tally.ns[work] = atomic_load_explicit(&counters[work].ns, memory_order_relaxed);
    }
    return tally;
}
