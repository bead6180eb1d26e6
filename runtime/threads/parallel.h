/* The one way to use several cores (D11): every parallel region of moec goes through moec_parallel_for.
 *
 * Plain threads, one team for the process. OpenMP would end every region in a barrier over all its threads:
 * where other programs want the same cores, decoding was measured 20 to 40 times slower for it (one thread
 * not running holds up all). Here a region waits only for threads that took work. A program that works
 * offline, whose regions last milliseconds and more, may have them run by OpenMP all the same
 * (moec_parallel_use). Items must be independent: results never depend on which thread runs an item, or in
 * which order. Thread rule: any thread may call; while one call has the team, others run alone. A process
 * that forks may go on calling in parent and child; a child that was forked inside an item may not return
 * from it. */
#ifndef MOEC_RUNTIME_PARALLEL_H
#define MOEC_RUNTIME_PARALLEL_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_pool {
    int n_threads; /* >= 1 */
};

/* CPUs that this process may use: those of its affinity, and no more than the time limits of its control
 * groups come to (a container's), rounded up: more threads would only be stopped in turn. */
int moec_cpu_count(void);

/* n_threads 0 = moec_cpu_count, or what the runner says. At most 256. */
struct moec_pool moec_pool_make(int n_threads);

/* Calls body(context, item, thread) for each item in 0..n_items-1; thread is in 0..pool->n_threads-1 and no
 * two items run at once with the same thread number (use it to pick scratch memory).
 * Returns when all are done. */
typedef void moec_parallel_body(void *context, size_t item, int thread);
void moec_parallel_for(const struct moec_pool *pool, size_t n_items, moec_parallel_body *body, void *context);

/* Another way to run regions that are not brief. */
struct moec_parallel_runner {
    int (*default_threads)(void); /* of moec_pool_make(0) */
    /* As moec_parallel_for, n_threads >= 2; items are handed out in portions of n_at_once. */
    void (*run)(int n_threads, size_t n_items, size_t n_at_once, moec_parallel_body *body, void *context);
};

/* Lets the whole process use a runner (borrowed), before anything else does; NULL = the team. A forked child
 * has the team again. */
void moec_parallel_use(const struct moec_parallel_runner *runner);

/* The same for work of some hundred microseconds at most, such as a part of one token: threads of the team
 * that are awake take part; those that sleep are woken only when so much has been done without them
 * that it pays. */
void moec_parallel_for_brief(const struct moec_pool *pool, size_t n_items, moec_parallel_body *body,
                             void *context);

#endif
