/* Two pinned halves take turns. A half is filled only when its last copy is done; a half that came down is
 * emptied before it is given again. At most one copy is under way that was not taken yet, so the order of
 * bytes is kept. */
#include "runtime/cuda/gpu_transfer.h"

#include <string.h>

#define PIECE_BYTES (MOEC_GPU_TRANSFER_BYTES / 2)

enum moec_status moec_gpu_transfer_create(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                          struct moec_gpu_transfer *transfer, struct moec_error *err)
{
    *transfer = (struct moec_gpu_transfer){.gpu = gpu, .stream = stream};
    enum moec_status status = gpu->ops->alloc_pinned(gpu, MOEC_GPU_TRANSFER_BYTES, "copies to the device",
                                                     (void **)&transfer->pieces, err);
    for (int i = 0; i < 2 && status == MOEC_OK; i++)
        status = gpu->ops->event_create(gpu, &transfer->done[i], err);
    if (status != MOEC_OK)
        moec_gpu_transfer_release(transfer);
    return status;
}

void moec_gpu_transfer_release(struct moec_gpu_transfer *transfer)
{
    struct moec_gpu *gpu = transfer->gpu;
    if (gpu == NULL)
        return;
    if (transfer->stream != NULL)
        (void)gpu->ops->finish(gpu, transfer->stream, NULL);
    gpu->ops->free_pinned(gpu, transfer->pieces);
    for (int i = 0; i < 2; i++)
        gpu->ops->event_free(gpu, transfer->done[i]);
    *transfer = (struct moec_gpu_transfer){0};
}

static uint64_t piece_of(uint64_t n_left)
{
    return n_left < PIECE_BYTES ? n_left : PIECE_BYTES;
}

/* Gives a copy by way of the next piece, which is free. */
static enum moec_status give(struct moec_gpu_transfer *transfer, enum moec_gpu_copy kind, void *to,
                             const void *from, uint64_t n_bytes, struct moec_error *err)
{
    const struct moec_gpu_ops *ops = transfer->gpu->ops;
    MOEC_TRY(
        ops->copy(transfer->gpu, transfer->stream, (struct moec_gpu_move){kind, to, from, n_bytes}, err));
    MOEC_TRY(ops->record(transfer->gpu, transfer->stream, transfer->done[transfer->next], err));
    transfer->next = 1 - transfer->next;
    return MOEC_OK;
}

enum moec_status moec_gpu_transfer_up(struct moec_gpu_transfer *transfer, void *to, const void *from,
                                      uint64_t n_bytes, struct moec_error *err)
{
    for (uint64_t done = 0; done < n_bytes;) {
        const uint64_t n = piece_of(n_bytes - done);
        uint8_t *piece = transfer->pieces + transfer->next * PIECE_BYTES;
        MOEC_TRY(transfer->gpu->ops->finish_event(transfer->gpu, transfer->done[transfer->next], err));
        memcpy(piece, (const uint8_t *)from + done, n);
        MOEC_TRY(give(transfer, MOEC_GPU_TO_DEVICE, (uint8_t *)to + done, piece, n, err));
        done += n;
    }
    return MOEC_OK;
}

enum moec_status moec_gpu_transfer_down(struct moec_gpu_transfer *transfer, void *to, const void *from,
                                        uint64_t n_bytes, struct moec_error *err)
{
    uint64_t taken = 0;
    for (uint64_t done = 0; taken < n_bytes;) {
        if (done < n_bytes) { /* at most one is under way that was not taken yet */
            const uint64_t n = piece_of(n_bytes - done);
            uint8_t *piece = transfer->pieces + transfer->next * PIECE_BYTES;
            MOEC_TRY(transfer->gpu->ops->finish_event(transfer->gpu, transfer->done[transfer->next], err));
            MOEC_TRY(give(transfer, MOEC_GPU_TO_HOST, piece, (const uint8_t *)from + done, n, err));
            done += n;
            if (done < n_bytes && done <= PIECE_BYTES)
                continue;
        }
        /* The older of the two, or the only one. */
        const uint64_t n = piece_of(n_bytes - taken);
        const uint32_t at = done - taken > PIECE_BYTES ? transfer->next : 1 - transfer->next;
        MOEC_TRY(transfer->gpu->ops->finish_event(transfer->gpu, transfer->done[at], err));
        memcpy((uint8_t *)to + taken, transfer->pieces + at * PIECE_BYTES, n);
        taken += n;
    }
    return MOEC_OK;
}
