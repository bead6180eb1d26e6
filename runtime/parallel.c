#include "runtime/parallel.h"

#include <sched.h>
#include <unistd.h>

#define MAX_THREADS 256

struct moec_pool moec_pool_make(int n_threads)
{
    if (n_threads <= 0) {
        cpu_set_t allowed;
        CPU_ZERO(&allowed);
        if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
            n_threads = CPU_COUNT(&allowed);
        else /* more CPUs than the set holds */
            n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    }
    if (n_threads < 1)
        n_threads = 1;
    return (struct moec_pool){.n_threads = n_threads < MAX_THREADS ? n_threads : MAX_THREADS};
}

/* Items taken at once: one while there are few, as each may be long; an eighth of a thread's share when there
 * are many, so that taking them costs nothing and the end stays even. */
static size_t items_at_once(size_t n_items, int n_threads)
{
    size_t share = n_items / ((size_t)n_threads * 8);
    return share > 1 ? share : 1;
}

static void run_alone(size_t n_items, moec_parallel_body *body, void *context)
{
    for (size_t item = 0; item < n_items; item++)
        body(context, item, 0);
}

#ifdef MOEC_PTHREADS
#include <pthread.h>
#include <stdatomic.h>

struct job {
    moec_parallel_body *body;
    void *context;
    size_t n_items;
    size_t at_once;
    atomic_size_t next;
};

struct worker {
    struct job *job;
    int thread;
};

static void *work(void *argument)
{
    const struct worker *worker = argument;
    struct job *job = worker->job;
    for (;;) {
        size_t first = atomic_fetch_add(&job->next, job->at_once);
        if (first >= job->n_items)
            return NULL;
        size_t left = job->n_items - first;
        size_t end = first + (left < job->at_once ? left : job->at_once);
        for (size_t item = first; item < end; item++)
            job->body(job->context, item, worker->thread);
    }
}

static void run_together(int n_threads, size_t n_items, moec_parallel_body *body, void *context)
{
    struct job job = {.body = body, .context = context, .n_items = n_items};
    struct worker workers[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    int started = 1;
    job.at_once = items_at_once(n_items, n_threads);
    workers[0] = (struct worker){.job = &job, .thread = 0};
    for (; started < n_threads; started++) {
        workers[started] = (struct worker){.job = &job, .thread = started};
        if (pthread_create(&threads[started], NULL, work, &workers[started]) != 0)
            break; /* those that run do the whole work */
    }
    (void)work(&workers[0]);
    for (int i = 1; i < started; i++)
        (void)pthread_join(threads[i], NULL);
}
#else
#include <omp.h>

static void run_together(int n_threads, size_t n_items, moec_parallel_body *body, void *context)
{
    size_t at_once = items_at_once(n_items, n_threads);
#pragma omp parallel for schedule(dynamic, at_once) num_threads(n_threads)
    for (size_t item = 0; item < n_items; item++)
        body(context, item, omp_get_thread_num());
}
#endif

void moec_parallel_for(const struct moec_pool *pool, size_t n_items, moec_parallel_body *body, void *context)
{
    if (pool->n_threads <= 1 || n_items <= 1) {
        run_alone(n_items, body, context);
        return;
    }
    /* Always the whole pool: OpenMP ends and starts threads when the size of a team changes. */
    run_together(pool->n_threads, n_items, body, context);
}
