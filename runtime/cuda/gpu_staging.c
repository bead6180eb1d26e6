/* Pieces are handed out in order and never reused before the stream has passed them. A step that would not
 * fit after the used ones waits for the stream and begins at the front. Each piece has the same offset in
 * pinned memory and on the device. */
#include "runtime/cuda/gpu_staging.h"

#include <inttypes.h>
#include <string.h>

#define ALIGNMENT 256u

uint64_t moec_gpu_staging_piece_bytes(uint64_t n_bytes)
{
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

enum moec_status moec_gpu_staging_create(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                         uint64_t n_bytes, struct moec_gpu_staging *staging,
                                         struct moec_error *err)
{
    const char *what = "tables of a step";
    *staging = (struct moec_gpu_staging){
        .gpu = gpu, .stream = stream, .n_bytes = moec_gpu_staging_piece_bytes(n_bytes)};
    enum moec_status status =
        gpu->ops->alloc_pinned(gpu, staging->n_bytes, what, (void **)&staging->pinned, err);
    if (status == MOEC_OK)
        status = gpu->ops->alloc(gpu, staging->n_bytes, what, (void **)&staging->device, err);
    if (status != MOEC_OK)
        moec_gpu_staging_release(staging);
    return status;
}

void moec_gpu_staging_release(struct moec_gpu_staging *staging)
{
    if (staging->gpu == NULL)
        return;
    staging->gpu->ops->free_pinned(staging->gpu, staging->pinned);
    staging->gpu->ops->free(staging->gpu, staging->device);
    *staging = (struct moec_gpu_staging){0};
}

enum moec_status moec_gpu_staging_begin(struct moec_gpu_staging *staging, uint64_t n_bytes,
                                        struct moec_error *err)
{
    if (n_bytes > staging->n_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the GPU's tables for a step take %" PRIu64 " bytes, but only %" PRIu64
                         " bytes are reserved for these tables",
                         n_bytes, staging->n_bytes);
    if (n_bytes > staging->n_bytes - staging->used_bytes) {
        MOEC_TRY(staging->gpu->ops->finish(staging->gpu, staging->stream, err));
        moec_gpu_staging_clear(staging);
    }
    return MOEC_OK;
}

void *moec_gpu_staging_take(struct moec_gpu_staging *staging, uint64_t n_bytes)
{
    void *piece = staging->pinned + staging->used_bytes;
    staging->used_bytes += moec_gpu_staging_piece_bytes(n_bytes);
    return piece;
}

enum moec_status moec_gpu_staging_send(struct moec_gpu_staging *staging, const void *piece, uint64_t n_bytes,
                                       const void **device, struct moec_error *err)
{
    uint8_t *to = staging->device + ((const uint8_t *)piece - staging->pinned);
    *device = to;
    if (n_bytes == 0)
        return MOEC_OK;
    return staging->gpu->ops->copy(staging->gpu, staging->stream,
                                   (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, to, piece, n_bytes}, err);
}

enum moec_status moec_gpu_staging_put(struct moec_gpu_staging *staging, const void *from, uint64_t n_bytes,
                                      const void **device, struct moec_error *err)
{
    void *piece = moec_gpu_staging_take(staging, n_bytes);
    if (n_bytes > 0)
        memcpy(piece, from, n_bytes);
    return moec_gpu_staging_send(staging, piece, n_bytes, device, err);
}
