#include "runtime/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
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

/* One team of threads for the process. A call posts its job, works on it itself and takes in whoever of the
 * team comes by; it waits only for those who did come. A thread that the system does not run just now
 * therefore costs nothing, which a barrier over all threads (OpenMP's) does not give: on a machine whose
 * cores are shared, decoding spends most of its time in such barriers.
 *
 *   team.job == NULL --post--> open --close (caller out of items)--> NULL, caller waits until n_inside == 0
 *
 * Invariants, under the lock: n_inside counts team threads between joining and leaving; a job's n_joined
 * hands out thread numbers 1.. and never passes n_threads - 1; a job on the caller's stack is reached only
 * while open or n_inside > 0. */
struct job {
    moec_parallel_body *body;
    void *context;
    size_t n_items;
    size_t at_once;
    int n_threads;
    int n_joined;
    atomic_size_t next;
};

static struct {
    pthread_mutex_t busy; /* held by the call that uses the team */
    pthread_mutex_t lock;
    pthread_cond_t posted;
    pthread_cond_t left;
    struct job *job;        /* open job, NULL when none */
    int n_inside;           /* team threads at work on a job */
    int n_started;          /* team threads that exist */
    atomic_uint generation; /* rises with each post: what idle threads watch */
    atomic_int n_waiting;   /* team threads asleep on `posted` */
} team = {
    .busy = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .posted = PTHREAD_COND_INITIALIZER,
    .left = PTHREAD_COND_INITIALIZER,
};

/* Decoding opens a region every few dozen microseconds: waking a sleeping thread would take as long as the
 * work. */
#define SPINS_BEFORE_SLEEP 4000

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void run_items(struct job *job, int thread)
{
    for (;;) {
        size_t first = atomic_fetch_add(&job->next, job->at_once);
        if (first >= job->n_items)
            return;
        size_t left = job->n_items - first;
        size_t end = first + (left < job->at_once ? left : job->at_once);
        for (size_t item = first; item < end; item++)
            job->body(job->context, item, thread);
    }
}

/* Returns the generation seen last once a newer one than `seen` exists. */
static unsigned await_post(unsigned seen)
{
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        unsigned now = atomic_load(&team.generation);
        if (now != seen)
            return now;
        pause_briefly();
    }
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.n_waiting, 1);
    while (atomic_load(&team.generation) == seen)
        pthread_cond_wait(&team.posted, &team.lock);
    atomic_fetch_sub(&team.n_waiting, 1);
    pthread_mutex_unlock(&team.lock);
    return atomic_load(&team.generation);
}

static void *serve(void *argument)
{
    (void)argument;
    unsigned seen = 0;
    for (;;) {
        seen = await_post(seen);
        pthread_mutex_lock(&team.lock);
        struct job *job = team.job;
        int thread = 0;
        if (job != NULL && job->n_joined + 1 < job->n_threads) {
            thread = ++job->n_joined;
            team.n_inside++;
        }
        pthread_mutex_unlock(&team.lock);
        if (thread == 0)
            continue;
        run_items(job, thread);
        pthread_mutex_lock(&team.lock);
        if (--team.n_inside == 0)
            pthread_cond_signal(&team.left);
        pthread_mutex_unlock(&team.lock);
    }
    return NULL;
}

/* Starts what is missing; with fewer threads than asked the work is done all the same. Signals are the
 * caller's: team threads block them. */
static void start_threads(int wanted)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (team.n_started < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, NULL) != 0)
            break;
        pthread_detach(thread);
        team.n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void run_together(int n_threads, size_t n_items, moec_parallel_body *body, void *context)
{
    struct job job = {
        .body = body,
        .context = context,
        .n_items = n_items,
        .at_once = items_at_once(n_items, n_threads),
        .n_threads = n_threads,
    };
    start_threads(n_threads - 1);
    pthread_mutex_lock(&team.lock);
    team.job = &job;
    atomic_fetch_add(&team.generation, 1);
    if (atomic_load(&team.n_waiting) > 0)
        pthread_cond_broadcast(&team.posted);
    pthread_mutex_unlock(&team.lock);
    run_items(&job, 0);
    pthread_mutex_lock(&team.lock);
    team.job = NULL;
    while (team.n_inside > 0)
        pthread_cond_wait(&team.left, &team.lock);
    pthread_mutex_unlock(&team.lock);
}

void moec_parallel_for(const struct moec_pool *pool, size_t n_items, moec_parallel_body *body, void *context)
{
    /* Another session's call has the team: this one goes on alone instead of waiting. */
    if (pool->n_threads <= 1 || n_items <= 1 || pthread_mutex_trylock(&team.busy) != 0) {
        run_alone(n_items, body, context);
        return;
    }
    run_together(pool->n_threads, n_items, body, context);
    pthread_mutex_unlock(&team.busy);
}
