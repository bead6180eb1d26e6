/* A GPU as the runtime uses one: memory of its own, queues of work, and copies that pass while it computes.
 *
 * One table of operations has two implementations: CUDA's runtime (runtime/cuda/cudart, built where nvcc is),
 * and a stand-in for tests (runtime/cuda/host) that runs the same work on the processor in every order that
 * the rules below allow. The rules are those of CUDA's streams and events (CUDA C++ Programming Guide,
 * section 3.2.8):
 *
 *  1. Work given to one stream is done in the order in which it was given. Work of different streams is done
 *     in any order, or at the same time.
 *  2. record() marks a place in a stream. wait() holds a stream's later work until what stood before the mark
 *     that the event has at the time of the call is done. An event without a mark holds nothing.
 *  3. A copy or a launch returns before it is done. Until then the bytes that it writes are undefined, and
 *     those that it reads must stay.
 *  4. The host side of a copy is pinned memory: of alloc_pinned, or within a range given to pin.
 *  5. Memory may be freed while work that uses it is under way: that work is waited for.
 *
 * Errors: MOEC_ERR_MEMORY where memory is used up, by which nothing else changes. MOEC_ERR_IO for everything
 * else that a device can report; after an error of work that had begun the device is lost: every later call
 * but those that free answers so, nothing that was under way can be relied on, and the process goes on
 * without it.
 *
 * Thread rule: any thread. Functions without a status cannot fail, and take NULL where they free. */
#ifndef MOEC_RUNTIME_GPU_H
#define MOEC_RUNTIME_GPU_H

#include "formats/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct moec_gpu_stream; /* what launch functions are given: cudaStream_t in CUDA's implementation */
struct moec_gpu_event;
struct moec_gpu;

enum moec_gpu_copy {
    MOEC_GPU_TO_DEVICE, /* from pinned memory */
    MOEC_GPU_TO_HOST,   /* to pinned memory */
    MOEC_GPU_WITHIN,    /* from the device's memory to the same; ranges do not overlap */
};

/* Bytes that are copied. */
struct moec_gpu_move {
    enum moec_gpu_copy kind;
    void *to;
    const void *from;
    uint64_t n_bytes;
};

struct moec_gpu_info {
    char name[256];
    uint32_t capability;              /* CUDA's compute capability, 80 for 8.0 */
    uint64_t total_bytes, free_bytes; /* of the device's memory */
};

struct moec_gpu_ops {
    void (*close)(struct moec_gpu *gpu); /* everything that was made of it has been freed */
    enum moec_status (*info)(struct moec_gpu *gpu, struct moec_gpu_info *info, struct moec_error *err);

    /* Memory of the device, at a multiple of 256; `what` names it in messages. n_bytes > 0. */
    enum moec_status (*alloc)(struct moec_gpu *gpu, uint64_t n_bytes, const char *what, void **out,
                              struct moec_error *err);
    void (*free)(struct moec_gpu *gpu, void *memory);
    /* Memory of the process that copies can be made from and to, and such memory of what is there already:
     * whole pages, which stay allocated until they are unpinned. */
    enum moec_status (*alloc_pinned)(struct moec_gpu *gpu, uint64_t n_bytes, const char *what, void **out,
                                     struct moec_error *err);
    void (*free_pinned)(struct moec_gpu *gpu, void *memory);
    enum moec_status (*pin)(struct moec_gpu *gpu, void *memory, uint64_t n_bytes, const char *what,
                            struct moec_error *err);
    void (*unpin)(struct moec_gpu *gpu, void *memory);

    enum moec_status (*stream_create)(struct moec_gpu *gpu, struct moec_gpu_stream **out,
                                      struct moec_error *err);
    void (*stream_free)(struct moec_gpu *gpu, struct moec_gpu_stream *stream); /* when its work is done */
    enum moec_status (*event_create)(struct moec_gpu *gpu, struct moec_gpu_event **out,
                                     struct moec_error *err);
    void (*event_free)(struct moec_gpu *gpu, struct moec_gpu_event *event);

    enum moec_status (*copy)(struct moec_gpu *gpu, struct moec_gpu_stream *stream, struct moec_gpu_move move,
                             struct moec_error *err);
    /* Zero bytes of the device's memory. */
    enum moec_status (*clear)(struct moec_gpu *gpu, struct moec_gpu_stream *stream, void *memory,
                              uint64_t n_bytes, struct moec_error *err);
    enum moec_status (*record)(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                               struct moec_gpu_event *event, struct moec_error *err);
    enum moec_status (*wait)(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                             const struct moec_gpu_event *event, struct moec_error *err);
    /* What launches since the last call had to report: launch functions answer nothing themselves. */
    enum moec_status (*check)(struct moec_gpu *gpu, struct moec_error *err);

    /* Whether what stood before the event's mark is done. */
    enum moec_status (*is_done)(struct moec_gpu *gpu, const struct moec_gpu_event *event, bool *done,
                                struct moec_error *err);
    /* Return when it is, and when a stream has nothing left to do. */
    enum moec_status (*finish_event)(struct moec_gpu *gpu, const struct moec_gpu_event *event,
                                     struct moec_error *err);
    enum moec_status (*finish)(struct moec_gpu *gpu, struct moec_gpu_stream *stream, struct moec_error *err);
};

/* First member of every implementation. */
struct moec_gpu {
    const struct moec_gpu_ops *ops;
};

#ifdef __cplusplus
}
#endif

#endif
