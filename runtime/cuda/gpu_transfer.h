/* Copies between the process's memory, pinned or not, and a GPU's, by way of two pinned pieces: one is filled
 * or emptied while the other is on its way. Thread rule: one thread at a time. */
#ifndef MOEC_RUNTIME_GPU_TRANSFER_H
#define MOEC_RUNTIME_GPU_TRANSFER_H

#include "runtime/cuda/gpu.h"

/* Pinned bytes of both pieces. */
#define MOEC_GPU_TRANSFER_BYTES ((uint64_t)2 << 20)

struct moec_gpu_transfer {
    struct moec_gpu *gpu; /* borrowed, as the stream */
    /* That copies are given to; changed when it has nothing left to do. NULL: none are given. */
    struct moec_gpu_stream *stream;
    uint8_t *pieces;                /* owned */
    struct moec_gpu_event *done[2]; /* owned: each piece's last copy */
    uint32_t next;
};

/* Errors: the device's; then there is nothing to release. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_transfer_create(struct moec_gpu *gpu,
                                                           struct moec_gpu_stream *stream,
                                                           struct moec_gpu_transfer *transfer,
                                                           struct moec_error *err);
/* Waits for what is under way. A zeroed struct is allowed. */
void moec_gpu_transfer_release(struct moec_gpu_transfer *transfer);

/* Returns when `from` has been read; work that is given to the stream afterwards finds the bytes at `to`. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_transfer_up(struct moec_gpu_transfer *transfer, void *to,
                                                       const void *from, uint64_t n_bytes,
                                                       struct moec_error *err);
/* After what was given to the stream; returns when the bytes are there. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_transfer_down(struct moec_gpu_transfer *transfer, void *to,
                                                         const void *from, uint64_t n_bytes,
                                                         struct moec_error *err);

#endif
