/* Guessed records on their way to a GPU: a thread copies one at a time, piece by piece, on a stream of its
 * own, beside what is demanded and what is computed. Between two pieces a prefetch that turned out wrong is
 * given up; one that turned out right is sent to its end at once.
 *
 * Whose turn it is, and where it goes, is the caller's business (runtime/cuda/gpu_preload.c). The record is
 * held behind until its last piece has landed, and given back by the thread without any lock of the caller's,
 * so that a session which waits behind for room gets it. Nothing is allocated after creation.
 *
 * Thread rule: any thread. The caller's lock may be held in every call but free; `next` and `ended` take it.
 */
#ifndef MOEC_RUNTIME_GPU_PREFETCHES_H
#define MOEC_RUNTIME_GPU_PREFETCHES_H

#include "runtime/cuda/gpu.h"
#include "runtime/seam/experts.h"

struct moec_gpu_prefetches;

struct moec_gpu_prefetch {
    struct moec_expert_request request; /* held behind */
    uint32_t key;                       /* of the caller's */
    const uint8_t *from;                /* pinned */
    uint8_t *to; /* the device's; whoever used it before has been waited for by stream */
    uint64_t n_bytes;
};

struct moec_gpu_prefetches_setup {
    struct moec_gpu *gpu;        /* this and behind: borrowed until freed */
    struct moec_experts *behind; /* which offers borrow */
    uint64_t piece_bytes;        /* 0: a mebibyte */
    /* Called by the thread: begins a prefetch (moec_gpu_prefetches_begin) and says so, or there is none now. */
    bool (*next)(void *context);
    /* Nothing of it is under way any more. `is_whole`: all of it is there; copy_ns: how long that took, 0
     * where it was not alone on its way. */
    void (*ended)(void *context, const struct moec_gpu_prefetch *prefetch, bool is_whole, uint64_t copy_ns);
    void *context;
};

MOEC_WARN_UNUSED enum moec_status moec_gpu_prefetches_create(const struct moec_gpu_prefetches_setup *setup,
                                                             struct moec_gpu_prefetches **out,
                                                             struct moec_error *err);
/* Ends the thread when the piece at work has landed. NULL-safe. */
void moec_gpu_prefetches_free(struct moec_gpu_prefetches *prefetches);

/* That `next` uses, for waits before what it begins. */
struct moec_gpu_stream *moec_gpu_prefetches_stream(const struct moec_gpu_prefetches *prefetches);
/* In `next` alone. */
void moec_gpu_prefetches_begin(struct moec_gpu_prefetches *prefetches,
                               const struct moec_gpu_prefetch *prefetch);

/* There may be something to begin. */
void moec_gpu_prefetches_wake(struct moec_gpu_prefetches *prefetches);
/* No further piece of this key's prefetch is sent. Whether it was under way. */
bool moec_gpu_prefetches_cancel(struct moec_gpu_prefetches *prefetches, uint32_t key);
/* What is left of this key's prefetch is sent at once, and `stream` waits for it; true: all of it will come.
 * False where the prefetch was given up. Errors: the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_prefetches_finish(struct moec_gpu_prefetches *prefetches,
                                                             uint32_t key, struct moec_gpu_stream *stream,
                                                             bool *comes, struct moec_error *err);
/* `stream` waits for every piece that was sent so far. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_prefetches_wait(struct moec_gpu_prefetches *prefetches,
                                                           struct moec_gpu_stream *stream,
                                                           struct moec_error *err);

#endif
