/* Each thread has a share of the items, first and end in one word. It takes from the beginning, an eighth of
 * what is left at once. One whose share is empty takes over the later half of another's. The caller works as
 * thread 0. In a brief region it wakes sleepers only once it has worked as long as waking takes. How threads
 * find a job and leave it is told below, at `team`. */
#include "runtime/threads/parallel.h"

#include "formats/base/clock.h"
#include "formats/base/control_group.h"
#include "formats/base/pause.h"
#include "formats/base/work_tally.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define MAX_THREADS  256
#define MOST_WAKE_NS 200000u /* what takes longer says nothing of waking */

/* Of the process; NULL: the team runs everything. */
static const struct moec_parallel_runner *runner;

/* The limit of a container does not change while a process runs, and is in files. */
static int group_cpus;
static pthread_once_t group_cpus_once = PTHREAD_ONCE_INIT;

static void read_group_cpus(void)
{
    group_cpus = moec_control_group_cpus("/proc", "/sys/fs/cgroup");
}

int moec_cpu_count(void)
{
    cpu_set_t allowed;
    int n = 0;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        n = CPU_COUNT(&allowed);
    else /* more CPUs than the set holds */
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    (void)pthread_once(&group_cpus_once, read_group_cpus);
    return group_cpus > 0 && group_cpus < n ? group_cpus : n;
}

struct moec_pool moec_pool_make(int n_threads)
{
    if (n_threads <= 0 && runner != NULL)
        n_threads = runner->default_threads();
    if (n_threads <= 0)
        n_threads = moec_cpu_count();
    if (n_threads < 1)
        n_threads = 1;
    return (struct moec_pool){.n_threads = n_threads < MAX_THREADS ? n_threads : MAX_THREADS};
}

/* Items taken at once: one while there are few, as each may be long; an eighth of what a thread has left when
 * there are many, so that taking them costs nothing and the end stays even. */
static uint64_t items_at_once(uint64_t n_left)
{
    return n_left >= 16 ? n_left / 8 : 1;
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
 * Decoding opens a region every few dozen microseconds, so the way in and out takes no lock and no system
 * call while everybody is awake; all atomics are sequentially consistent, and what is written before others
 * are asked for is exchanged: QEMU (7.2) lets a load of 64-bit ARM pass a store that it must not. Invariants:
 * a team thread reads team.job only while it counts in n_inside, and a caller returns only when it has seen
 * n_inside == 0 after it took its job back, so a job on the caller's stack is reached only while the call
 * lasts; a job's n_joined hands out thread numbers, and whoever gets one of n_threads or more leaves. */
struct job {
    moec_parallel_body *body;
    void *context;
    int n_threads;
    atomic_int n_joined; /* the caller is the first */
    /* What is left of each thread's share: the first item, and above it where the share ends. */
    atomic_uint_least64_t shares[MAX_THREADS];
};

#define SHARE_BITS  32
#define SHARE_ITEMS ((uint64_t)1 << SHARE_BITS) /* a region has fewer */

static uint64_t share_of(uint64_t first, uint64_t end)
{
    return end << SHARE_BITS | first;
}

static uint64_t share_first(uint64_t share)
{
    return share % SHARE_ITEMS;
}

static uint64_t share_end(uint64_t share)
{
    return share >> SHARE_BITS;
}

static struct {
    pthread_mutex_t busy; /* held by the call that uses the team */
    pthread_mutex_t lock; /* of those who sleep, and of who wakes them */
    pthread_cond_t posted;
    pthread_cond_t left;
    struct job *_Atomic job;      /* open job, NULL when none */
    atomic_int n_inside;          /* team threads that look at it or work on it */
    atomic_bool is_caller_asleep; /* on `left` */
    atomic_uint generation;       /* rises with each post: what idle threads watch */
    atomic_int n_asleep;          /* team threads, on `posted` */

    /* Of the call that has the team. */
    bool is_fork_watched;
    int n_started;     /* team threads that exist */
    uint64_t wake_ns;  /* what waking the team took the waker, on average */
    uint64_t alone_ns; /* of brief work since the team fell asleep */
    uint64_t end_ns;   /* of the last call that found it asleep */
} team = {
    .busy = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .posted = PTHREAD_COND_INITIALIZER,
    .left = PTHREAD_COND_INITIALIZER,
    .wake_ns = 20000,
};

/* A wake-up takes as long as several regions, more so in a virtual machine, where an idle core has to be
 * asked for. So who waits for the other side first watches for about as long as that takes. */
#define IDLE_SPIN_NS 120000u /* team threads, for the next region */
#define END_SPIN_NS  30000u  /* the caller, for the last item of another thread */

/* Takes items from the beginning of a thread's own share. */
static bool take_own(struct job *job, int thread, uint64_t *first, uint64_t *end)
{
    atomic_uint_least64_t *own = &job->shares[thread];
    uint64_t share = atomic_load(own);
    do {
        *first = share_first(share);
        const uint64_t left = share_end(share) - *first;
        if (left == 0)
            return false;
        *end = *first + items_at_once(left);
    } while (!atomic_compare_exchange_weak(own, &share, share_of(*end, share_end(share))));
    return true;
}

/* Makes the later half of what another thread has left a thread's own share; false when nobody has any. */
static bool take_over(struct job *job, int thread)
{
    for (int i = 1; i < job->n_threads; i++) {
        atomic_uint_least64_t *other = &job->shares[(thread + i) % job->n_threads];
        uint64_t share = atomic_load(other);
        while (share_first(share) < share_end(share)) {
            const uint64_t first = share_first(share), end = share_end(share),
                           middle = first + (end - first) / 2;
            if (!atomic_compare_exchange_weak(other, &share, share_of(first, middle)))
                continue;
            atomic_store(&job->shares[thread], share_of(middle, end));
            return true;
        }
    }
    return false;
}

static bool has_items(const struct job *job)
{
    for (int i = 0; i < job->n_threads; i++) {
        const uint64_t share = atomic_load(&job->shares[i]);
        if (share_first(share) < share_end(share))
            return true;
    }
    return false;
}

/* Takes the next items and works on them; false when there are none left. Items that follow each other go to
 * one thread as far as they can: their weights mostly do too, and a kernel asks for what lies behind its own.
 */
static bool run_next(struct job *job, int thread)
{
    uint64_t first = 0, end = 0;
    while (!take_own(job, thread, &first, &end))
        if (!take_over(job, thread))
            return false;
    for (uint64_t item = first; item < end; item++)
        job->body(job->context, (size_t)item, thread);
    return true;
}

/* Returns the generation seen last once a newer one than `seen` exists. */
static unsigned await_post(unsigned seen)
{
    unsigned now = 0;
    for (uint64_t until_ns = moec_now_ns() + IDLE_SPIN_NS; (now = atomic_load(&team.generation)) == seen;)
        if (!moec_pause_until(until_ns))
            break;
    if (now != seen)
        return now;
    pthread_mutex_lock(&team.lock);
    atomic_fetch_add(&team.n_asleep, 1);
    while ((now = atomic_load(&team.generation)) == seen)
        pthread_cond_wait(&team.posted, &team.lock);
    atomic_fetch_sub(&team.n_asleep, 1);
    pthread_mutex_unlock(&team.lock);
    return now;
}

static void *serve(void *argument)
{
    (void)argument;
    for (unsigned seen = 0;;) {
        seen = await_post(seen);
        atomic_fetch_add(&team.n_inside, 1);
        struct job *job = atomic_load(&team.job);
        if (job != NULL) {
            int thread = atomic_fetch_add(&job->n_joined, 1);
            while (thread < job->n_threads && run_next(job, thread))
                continue;
        }
        if (atomic_fetch_sub(&team.n_inside, 1) == 1 && atomic_load(&team.is_caller_asleep)) {
            pthread_mutex_lock(&team.lock);
            pthread_cond_signal(&team.left);
            pthread_mutex_unlock(&team.lock);
        }
    }
    return NULL;
}

/* Runs in a forked child, which has none of the parent's threads: resets the locks that they held and the
 * counters of their work. The child starts a team of its own when it needs one. */
static void disband(void)
{
    team.busy = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    team.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    team.posted = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    team.left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    atomic_store(&team.job, NULL);
    atomic_store(&team.n_inside, 0);
    atomic_store(&team.is_caller_asleep, false);
    atomic_store(&team.n_asleep, 0);
    team.n_started = 0;
    runner = NULL;
}

static bool watch_forks(void)
{
    team.is_fork_watched = team.is_fork_watched || pthread_atfork(NULL, NULL, disband) == 0;
    return team.is_fork_watched;
}

void moec_parallel_use(const struct moec_parallel_runner *other)
{
    runner = watch_forks() ? other : NULL;
}

/* Starts what is missing; with fewer threads than asked the work is done all the same. Signals are the
 * caller's: team threads block them. */
static void start_threads(int wanted)
{
    sigset_t all, old;
    if (!watch_forks())
        return;
    sigfillset(&all);
    (void)sigdelset(&all, SIGBUS); /* of a mapped file that was cut off: blocked, it would end the process */
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

static void wake_team(uint64_t now_ns)
{
    pthread_mutex_lock(&team.lock);
    pthread_cond_broadcast(&team.posted);
    pthread_mutex_unlock(&team.lock);
    uint64_t took_ns = moec_now_ns() - now_ns;
    took_ns = took_ns < MOST_WAKE_NS ? took_ns : MOST_WAKE_NS;
    team.wake_ns = (7 * team.wake_ns + took_ns) / 8;
    team.alone_ns = 0;
}

/* While the team sleeps the caller works alone, and wakes it when that has lasted as long as waking takes:
 * never more than twice the least, whatever comes. A pause in which the team would fall asleep begins anew:
 * where each record is waited for and then computed in less, nobody is woken for it. */
static void run_beside_sleepers(struct job *job)
{
    const uint64_t begun_ns = moec_now_ns();
    bool is_woken = false;
    if (begun_ns - team.end_ns > IDLE_SPIN_NS)
        team.alone_ns = 0;
    while (run_next(job, 0)) {
        if (is_woken || !has_items(job))
            continue;
        const uint64_t now_ns = moec_now_ns();
        is_woken = team.alone_ns + (now_ns - begun_ns) > team.wake_ns;
        if (is_woken)
            wake_team(now_ns);
    }
    team.end_ns = moec_now_ns();
    if (!is_woken)
        team.alone_ns += team.end_ns - begun_ns;
}

static void await_team(void)
{
    for (uint64_t until_ns = moec_now_ns() + END_SPIN_NS; atomic_load(&team.n_inside) > 0;)
        if (!moec_pause_until(until_ns))
            break;
    if (atomic_load(&team.n_inside) == 0)
        return;
    pthread_mutex_lock(&team.lock);
    (void)atomic_exchange(&team.is_caller_asleep, true);
    while (atomic_load(&team.n_inside) > 0)
        pthread_cond_wait(&team.left, &team.lock);
    atomic_store(&team.is_caller_asleep, false);
    pthread_mutex_unlock(&team.lock);
}

static void run_together(int n_threads, size_t n_items, bool is_brief, moec_parallel_body *body,
                         void *context)
{
    struct job job;
    job.body = body;
    job.context = context;
    job.n_threads = n_threads;
    atomic_init(&job.n_joined, 1);
    for (uint64_t t = 0, n = (uint64_t)n_threads; t < n; t++)
        atomic_init(&job.shares[t], share_of(t * n_items / n, (t + 1) * n_items / n));
    if (team.n_started < n_threads - 1)
        start_threads(n_threads - 1);
    atomic_store(&team.job, &job);
    atomic_fetch_add(&team.generation, 1);
    const bool has_sleepers = atomic_load(&team.n_asleep) > 0;
    if (has_sleepers && is_brief) {
        run_beside_sleepers(&job);
    } else {
        if (has_sleepers)
            wake_team(moec_now_ns());
        while (run_next(&job, 0))
            continue;
    }
    (void)atomic_exchange(&team.job, NULL);
    if (atomic_load(&team.n_inside) > 0)
        await_team();
}

static void run(const struct moec_pool *pool, size_t n_items, bool is_brief, moec_parallel_body *body,
                void *context)
{
    /* Another session's call has the team: this one goes on alone instead of waiting. */
    if (pool->n_threads <= 1 || n_items <= 1 || n_items >= SHARE_ITEMS ||
        pthread_mutex_trylock(&team.busy) != 0) {
        run_alone(n_items, body, context);
        return;
    }
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_TOGETHER);
    if (runner != NULL && !is_brief)
        runner->run(pool->n_threads, n_items, items_at_once(n_items / (size_t)pool->n_threads), body,
                    context);
    else
        run_together(pool->n_threads, n_items, is_brief, body, context);
    moec_work_end(MOEC_WORK_TOGETHER, begun_ns, 1);
    pthread_mutex_unlock(&team.busy);
}

void moec_parallel_for(const struct moec_pool *pool, size_t n_items, moec_parallel_body *body, void *context)
{
    run(pool, n_items, false, body, context);
}

void moec_parallel_for_brief(const struct moec_pool *pool, size_t n_items, moec_parallel_body *body,
                             void *context)
{
    run(pool, n_items, true, body, context);
}
