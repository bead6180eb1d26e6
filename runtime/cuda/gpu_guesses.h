/* Guessed records on their way to a GPU: a thread copies one at a time, piece by piece, on a stream of its
 * own, beside what is demanded and what is computed. Between two pieces a guess that turned out wrong is
 * given up; one that turned out right is sent to its end at once.
 *
 * Whose turn it is, and where it goes, is the caller's business (runtime/cuda/gpu_preload.c). The record is
 * held behind until its last piece has landed, and given back by the thread without any lock of the caller's,
 * so that a session which waits behind for room gets it. Nothing is allocated after creation.
 *
 * Thread rule: any thread. The caller's lock may be held in every call but free; `next` and `ended` take it.
 */
#ifndef MOEC_RUNTIME_GPU_GUESSES_H
#define MOEC_RUNTIME_GPU_GUESSES_H

#include "runtime/cuda/gpu.h"
#include "runtime/seam/experts.h"

struct moec_gpu_guesses;

struct moec_gpu_guess {
    struct moec_expert_request request; /* held behind */
    uint32_t key;                       /* of the caller's */
    const uint8_t *from;                /* pinned */
    uint8_t *to; /* the device's; whoever used it before has been waited for by stream */
    uint64_t n_bytes;
};

struct moec_gpu_guesses_setup {
    struct moec_gpu *gpu;        /* this and behind: borrowed until freed */
    struct moec_experts *behind; /* which offers borrow */
    uint64_t piece_bytes;        /* 0: a mebibyte */
    /* Called by the thread: begins a guess (moec_gpu_guesses_begin) and says so, or there is none now. */
    bool (*next)(void *context);
    /* Nothing of it is under way any more. `is_whole`: all of it is there; copy_ns: how long that took, 0
     * where it was not alone on its way. */
    void (*ended)(void *context, const struct moec_gpu_guess *guess, bool is_whole, uint64_t copy_ns);
    void *context;
};

MOEC_WARN_UNUSED enum moec_status moec_gpu_guesses_create(const struct moec_gpu_guesses_setup *setup,
                                                          struct moec_gpu_guesses **out,
                                                          struct moec_error *err);
/* Ends the thread when the piece at work has landed. NULL-safe. */
void moec_gpu_guesses_free(struct moec_gpu_guesses *guesses);

/* That `next` uses, for waits before what it begins. */
struct moec_gpu_stream *moec_gpu_guesses_stream(const struct moec_gpu_guesses *guesses);
/* In `next` alone. */
void moec_gpu_guesses_begin(struct moec_gpu_guesses *guesses, const struct moec_gpu_guess *guess);

/* There may be something to begin. */
void moec_gpu_guesses_wake(struct moec_gpu_guesses *guesses);
/* No further piece of this key's guess is sent. Whether it was under way. */
bool moec_gpu_guesses_cancel(struct moec_gpu_guesses *guesses, uint32_t key);
/* What is left of this key's guess is sent at once, and `stream` waits for it; true: all of it will come.
 * False where the guess was given up. Errors: the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_guesses_finish(struct moec_gpu_guesses *guesses, uint32_t key,
                                                          struct moec_gpu_stream *stream, bool *comes,
                                                          struct moec_error *err);
/* `stream` waits for every piece that was sent so far. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_guesses_wait(struct moec_gpu_guesses *guesses,
                                                        struct moec_gpu_stream *stream,
                                                        struct moec_error *err);

#endif
