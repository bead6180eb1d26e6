/* One thread, one prefetch at a time. Its lock is taken after the caller's, so the thread calls back (next,
 * ended, release) only without it. A cancelled prefetch sends no more pieces, but ends only when those that
 * were sent have landed. Whoever needs the record now sends the rest itself and waits on the stream. The
 * time of a copy counts only if nobody hurried it. */
#include "runtime/cuda/gpu_prefetches.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"

#include <pthread.h>
#include <string.h>

#define PIECE_BYTES ((uint64_t)1 << 20)
#define STACK_BYTES ((size_t)256 << 10)

struct moec_gpu_prefetches {
    struct moec_gpu_prefetches_setup setup;
    const struct moec_gpu_ops *ops;
    struct moec_gpu_stream *stream;
    struct moec_gpu_event *sent_event; /* behind everything that was sent */
    pthread_mutex_t lock;              /* taken after the caller's */
    pthread_cond_t work;
    pthread_t thread;
    bool has_thread, is_stopping;
    uint64_t n_wake;

    /* the prefetch at work */
    struct moec_gpu_prefetch prefetch;
    bool is_active, is_cancelled, is_hurried, has_failed;
    uint64_t sent_bytes;
};

/* The next n_bytes of the prefetch at work. */
static enum moec_status send(struct moec_gpu_prefetches *g, uint64_t n_bytes, struct moec_error *err)
{
    const struct moec_gpu_prefetch *prefetch = &g->prefetch;
    struct moec_gpu *gpu = g->setup.gpu;
    enum moec_status status =
        g->ops->copy(gpu, g->stream,
                     (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, prefetch->to + g->sent_bytes,
                                            prefetch->from + g->sent_bytes, n_bytes},
                     err);
    if (status == MOEC_OK) {
        g->sent_bytes += n_bytes;
        status = g->ops->record(gpu, g->stream, g->sent_event, err);
    }
    g->has_failed = status != MOEC_OK;
    return status;
}

static void send_piece(struct moec_gpu_prefetches *g)
{
    const uint64_t left = g->prefetch.n_bytes - g->sent_bytes;
    if (left > 0 && !g->is_cancelled && !g->has_failed)
        (void)send(g, left < g->setup.piece_bytes ? left : g->setup.piece_bytes, NULL);
}

/* Copies the prefetch at work, as far as it is wanted. With the lock held, which it releases meanwhile. */
static void copy_prefetch(struct moec_gpu_prefetches *g)
{
    const uint64_t begin_ns = moec_now_ns();
    bool is_done = false;
    while (!is_done) {
        send_piece(g);
        const uint64_t sent = g->sent_bytes;
        const bool has_failed = g->has_failed;
        (void)pthread_mutex_unlock(&g->lock);
        const enum moec_status status =
            has_failed ? MOEC_OK : g->ops->finish_event(g->setup.gpu, g->sent_event, NULL);
        (void)pthread_mutex_lock(&g->lock);
        g->has_failed = g->has_failed || status != MOEC_OK;
        is_done =
            g->has_failed || (sent == g->sent_bytes && (g->is_cancelled || sent == g->prefetch.n_bytes));
    }
    const struct moec_gpu_prefetch prefetch = g->prefetch;
    const bool is_whole = g->sent_bytes == prefetch.n_bytes && !g->has_failed;
    const uint64_t copy_ns = is_whole && !g->is_hurried ? moec_now_ns() - begin_ns : 0;
    if (g->has_failed) /* what was given may still read the record */
        (void)g->ops->finish(g->setup.gpu, g->stream, NULL);
    (void)pthread_mutex_unlock(&g->lock);
    g->setup.behind->ops->release(g->setup.behind, prefetch.request);
    g->setup.ended(g->setup.context, &prefetch, is_whole, copy_ns);
    (void)pthread_mutex_lock(&g->lock);
    g->is_active = false;
}

static void *run(void *argument)
{
    struct moec_gpu_prefetches *g = argument;
    (void)pthread_mutex_lock(&g->lock);
    while (!g->is_stopping) {
        const uint64_t n_wake = g->n_wake;
        (void)pthread_mutex_unlock(&g->lock);
        const bool has_begun = g->setup.next(g->setup.context);
        (void)pthread_mutex_lock(&g->lock);
        if (has_begun)
            copy_prefetch(g);
        while (!has_begun && !g->is_stopping && n_wake == g->n_wake)
            (void)pthread_cond_wait(&g->work, &g->lock);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return NULL;
}

static enum moec_status start(struct moec_gpu_prefetches *g, struct moec_error *err)
{
    pthread_attr_t attributes;
    MOEC_TRY(g->ops->stream_create(g->setup.gpu, &g->stream, err));
    MOEC_TRY(g->ops->event_create(g->setup.gpu, &g->sent_event, err));
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    const int error = pthread_create(&g->thread, &attributes, run, g);
    (void)pthread_attr_destroy(&attributes);
    if (error != 0)
        return moec_fail(err, MOEC_ERR_MEMORY,
                         "cannot start the thread that prefetches predicted experts to a device: %s",
                         strerror(error));
    g->has_thread = true;
    return MOEC_OK;
}

enum moec_status moec_gpu_prefetches_create(const struct moec_gpu_prefetches_setup *setup,
                                            struct moec_gpu_prefetches **out, struct moec_error *err)
{
    struct moec_gpu_prefetches *g = NULL;
    MOEC_TRY(moec_alloc((void **)&g, 1, sizeof *g, "predicted experts of a device", err));
    g->setup = *setup;
    g->setup.piece_bytes = setup->piece_bytes > 0 ? setup->piece_bytes : PIECE_BYTES;
    g->ops = setup->gpu->ops;
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_cond_init(&g->work, NULL);
    *out = g; /* what the thread calls may ask for it */
    const enum moec_status status = start(g, err);
    if (status != MOEC_OK) {
        *out = NULL;
        moec_gpu_prefetches_free(g);
    }
    return status;
}

void moec_gpu_prefetches_free(struct moec_gpu_prefetches *g)
{
    if (g == NULL)
        return;
    (void)pthread_mutex_lock(&g->lock);
    g->is_stopping = true;
    g->is_cancelled = true;
    (void)pthread_cond_signal(&g->work);
    (void)pthread_mutex_unlock(&g->lock);
    if (g->has_thread)
        (void)pthread_join(g->thread, NULL);
    g->ops->stream_free(g->setup.gpu, g->stream);
    g->ops->event_free(g->setup.gpu, g->sent_event);
    (void)pthread_mutex_destroy(&g->lock);
    (void)pthread_cond_destroy(&g->work);
    free(g);
}

struct moec_gpu_stream *moec_gpu_prefetches_stream(const struct moec_gpu_prefetches *g)
{
    return g->stream;
}

void moec_gpu_prefetches_begin(struct moec_gpu_prefetches *g, const struct moec_gpu_prefetch *prefetch)
{
    (void)pthread_mutex_lock(&g->lock);
    g->prefetch = *prefetch;
    g->sent_bytes = 0;
    g->is_cancelled = g->is_stopping;
    g->is_active = true;
    g->is_hurried = g->has_failed = false;
    (void)pthread_mutex_unlock(&g->lock);
}

void moec_gpu_prefetches_wake(struct moec_gpu_prefetches *g)
{
    (void)pthread_mutex_lock(&g->lock);
    g->n_wake++;
    (void)pthread_cond_signal(&g->work);
    (void)pthread_mutex_unlock(&g->lock);
}

bool moec_gpu_prefetches_cancel(struct moec_gpu_prefetches *g, uint32_t key)
{
    (void)pthread_mutex_lock(&g->lock);
    const bool is_active = g->is_active && g->prefetch.key == key;
    g->is_cancelled = g->is_cancelled || is_active;
    (void)pthread_mutex_unlock(&g->lock);
    return is_active;
}

enum moec_status moec_gpu_prefetches_finish(struct moec_gpu_prefetches *g, uint32_t key,
                                            struct moec_gpu_stream *stream, bool *comes,
                                            struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    (void)pthread_mutex_lock(&g->lock);
    const bool is_active = g->is_active && g->prefetch.key == key;
    const uint64_t left = is_active ? g->prefetch.n_bytes - g->sent_bytes : 0;
    *comes = is_active && !g->has_failed && (!g->is_cancelled || left == 0);
    if (*comes && left > 0) {
        g->is_hurried = true;
        status = send(g, left, err);
    }
    if (*comes && status == MOEC_OK)
        status = g->ops->wait(g->setup.gpu, stream, g->sent_event, err);
    (void)pthread_mutex_unlock(&g->lock);
    return status;
}

enum moec_status moec_gpu_prefetches_wait(struct moec_gpu_prefetches *g, struct moec_gpu_stream *stream,
                                          struct moec_error *err)
{
    (void)pthread_mutex_lock(&g->lock);
    const enum moec_status status = g->ops->wait(g->setup.gpu, stream, g->sent_event, err);
    (void)pthread_mutex_unlock(&g->lock);
    return status;
}
