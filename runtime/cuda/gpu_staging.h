/* Small tables on their way to a GPU: pinned memory that the process fills, and memory of the device of the
 * same size that it is copied to, on one stream. A step begins with room for all its pieces, which then stay
 * until the stream has passed what the step gives to it. Thread rule: one thread at a time. */
#ifndef MOEC_RUNTIME_GPU_STAGING_H
#define MOEC_RUNTIME_GPU_STAGING_H

#include "runtime/cuda/gpu.h"

struct moec_gpu_staging {
    struct moec_gpu *gpu;           /* borrowed, as the stream */
    struct moec_gpu_stream *stream; /* that uses the tables */
    uint8_t *pinned, *device;       /* owned */
    uint64_t n_bytes, used_bytes;
};

/* n_bytes: of all pieces between two times that the stream is waited for; less costs waits alone, as long as
 * it is what one step takes. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_staging_create(struct moec_gpu *gpu,
                                                          struct moec_gpu_stream *stream, uint64_t n_bytes,
                                                          struct moec_gpu_staging *staging,
                                                          struct moec_error *err);
/* The stream is done with them. A zeroed struct is allowed. */
void moec_gpu_staging_release(struct moec_gpu_staging *staging);

/* What a piece of so many bytes takes. */
uint64_t moec_gpu_staging_piece_bytes(uint64_t n_bytes);

/* A step begins, whose pieces take up to n_bytes: waits for the stream where these are not free. Errors:
 * MOEC_ERR_LIMIT for more than there is at all; the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_staging_begin(struct moec_gpu_staging *staging, uint64_t n_bytes,
                                                         struct moec_error *err);

/* A piece of the step: the process writes to the answer, then sends it, and work that is given to the stream
 * afterwards finds the same at *device. */
void *moec_gpu_staging_take(struct moec_gpu_staging *staging, uint64_t n_bytes);
MOEC_WARN_UNUSED enum moec_status moec_gpu_staging_send(struct moec_gpu_staging *staging, const void *piece,
                                                        uint64_t n_bytes, const void **device,
                                                        struct moec_error *err);
/* Both for what stands somewhere else. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_staging_put(struct moec_gpu_staging *staging, const void *from,
                                                       uint64_t n_bytes, const void **device,
                                                       struct moec_error *err);

/* Everything that was given to the stream is done, as the caller knows: all pieces are free. */
static inline void moec_gpu_staging_clear(struct moec_gpu_staging *staging)
{
    staging->used_bytes = 0;
}

#endif
