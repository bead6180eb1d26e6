/* Items of a parallel region that count themselves: each runs once, and thread numbers are exclusive. */
#ifndef MOEC_TESTS_UNIT_COUNTED_ITEMS_H
#define MOEC_TESTS_UNIT_COUNTED_ITEMS_H

#include "formats/base/sanitizers.h"
#include "runtime/threads/parallel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_ITEMS   20000
#define MAX_THREADS 256

struct count {
    atomic_int runs[MAX_ITEMS];
    atomic_int busy[MAX_THREADS];
    atomic_int clashes;
    int n_threads;
};

static inline void count_item(void *context, size_t item, int thread)
{
    struct count *count = context;
    if (thread < 0 || thread >= count->n_threads || atomic_fetch_add(&count->busy[thread], 1) != 0)
        atomic_fetch_add(&count->clashes, 1);
    atomic_fetch_add(&count->runs[item], 1);
    if (thread >= 0 && thread < count->n_threads)
        atomic_fetch_sub(&count->busy[thread], 1);
}

static inline void check_sizes(bool is_brief)
{
    static const size_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, MAX_ITEMS};
    static const int threads[] = {1, 2, 5, 16};
    struct count *count = malloc(sizeof *count);
    assert_non_null(count);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            memset(count, 0, sizeof *count);
            struct moec_pool pool = moec_pool_make(threads[t]);
            count->n_threads = pool.n_threads;
            if (is_brief)
                moec_parallel_for_brief(&pool, sizes[s], count_item, count);
            else
                moec_parallel_for(&pool, sizes[s], count_item, count);
            assert_int_equal(atomic_load(&count->clashes), 0);
            for (size_t i = 0; i < MAX_ITEMS; i++)
                assert_int_equal(atomic_load(&count->runs[i]), i < sizes[s] ? 1 : 0);
        }
    }
    free(count);
}

/* ---- forks ---- */

static inline void note_thread(void *context, size_t item, int thread)
{
    (void)item;
    atomic_fetch_or((atomic_uint *)context, 1u << thread);
    (void)usleep(1000);
}

/* In a child: 0 when several threads took part in a region, and it came to its end. */
static inline int run_in_child(void)
{
    const struct moec_pool pool = moec_pool_make(4);
    atomic_uint threads = 0;
    (void)alarm(20);
    moec_parallel_for(&pool, 200, note_thread, &threads);
    return atomic_load(&threads) > 1 ? 0 : 1;
}

static inline void fork_and_run(void)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(run_in_child());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status)); /* no alarm: it did not hang */
    assert_int_equal(WEXITSTATUS(status), 0);
}

#endif
