/* Reading with worker threads and pread, for kernels and sandboxes that have no io_uring, and mapping with
 * them. */
#include "runtime/storage/reader_internal.h"

#include "formats/base/memory.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* More threads than this wait on each other rather than on a device. */
#define MAX_THREADS 64

/* Address space of a worker; it touches the last pages of it only. */
#define STACK_BYTES   (128 * 1024)
#define TOUCHED_BYTES (12 * 1024)

struct threads_reader {
    struct moec_reader base;
    struct moec_reader_target target;
    pthread_mutex_t lock;
    pthread_cond_t submitted; /* `waiting` grew, its first may begin, or the end */
    pthread_cond_t changed;   /* `done` grew, or woken */
    struct moec_read_list waiting;
    struct moec_read_load load; /* of those at work */
    struct moec_read_list done;
    bool is_woken;
    bool is_ending;
    uint32_t n_threads;
    pthread_t threads[MAX_THREADS];
};

static int64_t read_piece(const struct threads_reader *self, const struct moec_read *read,
                          struct moec_read_piece piece)
{
    ssize_t n =
        pread(self->target.fd, read->buffer + piece.skip, piece.n_bytes, (off_t)(read->offset + piece.skip));
    return n < 0 ? -(int64_t)errno : (int64_t)n;
}

static void read_whole(const struct threads_reader *self, struct moec_read *read)
{
    struct moec_read_piece piece;
    if (self->target.is_mapped && moec_read_map(&self->target, read))
        return;
    do
        piece = moec_read_next_piece(read, self->base.alignment);
    while (!moec_read_take_answer(read, piece, read_piece(self, read, piece), self->target.fd));
}

/* Few threads map, and what they wait for is read ahead: a device would be idle while pages are mapped. */
static bool may_begin(const struct threads_reader *self, const struct moec_read *read)
{
    return self->target.is_mapped || moec_read_may_begin(&self->load, read, MAX_THREADS);
}

static void *work(void *context)
{
    struct threads_reader *self = context;
    (void)pthread_mutex_lock(&self->lock);
    for (;;) {
        struct moec_read *read = self->waiting.first;
        if (read == NULL && self->is_ending)
            break;
        if (read == NULL || !may_begin(self, read)) {
            (void)pthread_cond_wait(&self->submitted, &self->lock);
            continue;
        }
        read = moec_read_list_pop(&self->waiting);
        moec_read_load_add(&self->load, read);
        if (self->waiting.first != NULL) /* another may begin too */
            (void)pthread_cond_signal(&self->submitted);
        (void)pthread_mutex_unlock(&self->lock);
        read->at.begun_ns = moec_now_ns();
        read_whole(self, read);
        moec_read_sum_end(read);
        (void)pthread_mutex_lock(&self->lock);
        moec_read_load_remove(&self->load, read);
        moec_read_list_push(&self->done, read);
        (void)pthread_cond_signal(&self->changed);
    }
    (void)pthread_mutex_unlock(&self->lock);
    return NULL;
}

static void threads_submit(struct moec_reader *base, struct moec_read *read)
{
    struct threads_reader *self = (struct threads_reader *)base;
    moec_read_reset(read);
    (void)pthread_mutex_lock(&self->lock);
    moec_read_list_push(&self->waiting, read);
    (void)pthread_cond_signal(&self->submitted);
    (void)pthread_mutex_unlock(&self->lock);
}

static bool threads_cancel(struct moec_reader *base, struct moec_read *read)
{
    struct threads_reader *self = (struct threads_reader *)base;
    (void)pthread_mutex_lock(&self->lock);
    bool found = moec_read_list_remove(&self->waiting, read);
    (void)pthread_mutex_unlock(&self->lock);
    return found;
}

static struct moec_read *threads_wait(struct moec_reader *base)
{
    struct threads_reader *self = (struct threads_reader *)base;
    struct moec_read *read = NULL;
    (void)pthread_mutex_lock(&self->lock);
    while (!self->is_woken && self->done.first == NULL)
        (void)pthread_cond_wait(&self->changed, &self->lock);
    if (!self->is_woken)
        read = moec_read_list_pop(&self->done);
    self->is_woken = false;
    (void)pthread_mutex_unlock(&self->lock);
    return read;
}

static struct moec_read *threads_take(struct moec_reader *base)
{
    struct threads_reader *self = (struct threads_reader *)base;
    (void)pthread_mutex_lock(&self->lock);
    struct moec_read *read = moec_read_list_pop(&self->done);
    (void)pthread_mutex_unlock(&self->lock);
    return read;
}

static void threads_wake(struct moec_reader *base)
{
    struct threads_reader *self = (struct threads_reader *)base;
    (void)pthread_mutex_lock(&self->lock);
    self->is_woken = true;
    (void)pthread_cond_signal(&self->changed);
    (void)pthread_mutex_unlock(&self->lock);
}

static void join_workers(struct threads_reader *self)
{
    (void)pthread_mutex_lock(&self->lock);
    self->is_ending = true;
    (void)pthread_cond_broadcast(&self->submitted);
    (void)pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < self->n_threads; i++)
        (void)pthread_join(self->threads[i], NULL);
    (void)pthread_cond_destroy(&self->changed);
    (void)pthread_cond_destroy(&self->submitted);
    (void)pthread_mutex_destroy(&self->lock);
}

static void threads_destroy(struct moec_reader *base)
{
    if (base == NULL)
        return;
    struct threads_reader *self = (struct threads_reader *)base;
    join_workers(self);
    if (self->target.is_mapped)
        moec_reader_mapped_end(&self->target);
    (void)close(self->target.fd);
    free(self);
}

static const struct moec_reader_ops threads_ops = {
    .submit = threads_submit,
    .cancel = threads_cancel,
    .wait = threads_wait,
    .take = threads_take,
    .wake = threads_wake,
    .destroy = threads_destroy,
};

/* As many of `wanted` as the system gives. The host's signals are not theirs to take. */
static int start_workers(struct threads_reader *self, uint32_t wanted)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int problem = pthread_attr_init(&attributes);
    if (problem != 0)
        return problem;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES + (size_t)PTHREAD_STACK_MIN);
    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGBUS); /* of a mapped file that was cut off: blocked, it would end the process */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    while (problem == 0 && self->n_threads < wanted) {
        problem = pthread_create(&self->threads[self->n_threads], &attributes, work, self);
        self->n_threads += problem == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
    return self->n_threads > 0 ? 0 : problem;
}

uint64_t moec_reader_threads_bytes(uint32_t depth)
{
    return sizeof(struct threads_reader) +
           (uint64_t)(depth < MAX_THREADS ? depth : MAX_THREADS) * TOUCHED_BYTES;
}

enum moec_status moec_reader_threads_create(const struct moec_reader_target *target, struct moec_reader **out,
                                            struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct threads_reader), "reading threads", err));
    struct threads_reader *self = memory;
    self->base.ops = &threads_ops;
    self->base.alignment = target->alignment;
    self->target = *target;
    int problem = pthread_mutex_init(&self->lock, NULL);
    if (problem == 0)
        problem = pthread_cond_init(&self->submitted, NULL);
    if (problem == 0)
        problem = pthread_cond_init(&self->changed, NULL);
    if (problem == 0)
        problem = start_workers(self, target->depth < MAX_THREADS ? target->depth : MAX_THREADS);
    if (problem != 0) {
        free(self);
        return moec_fail(err, MOEC_ERR_MEMORY, "cannot start a reading thread: %s", strerror(problem));
    }
    self->base.depth = self->n_threads;
    (void)snprintf(self->base.description, sizeof self->base.description, "%u threads", self->n_threads);
    *out = &self->base;
    return MOEC_OK;
}
