/* Copies of experts in a GPU's memory, of sources in the process's memory that any code may change between
 * two passes: bundles' caches and the profiler's variants. What a copy is of is told by the source (struct
 * moec_expert_bytes), so that a copy serves as long as the weights are the same, whatever else is assigned
 * meanwhile.
 *
 * All sources of a device share one bound. The copy that was used longest ago makes room, and its memory
 * serves the next record of the same size. Records come by way of pinned pieces, on the stream that computes,
 * and are given back to the source before acquire returns: who holds a copy holds nothing there.
 *
 * Thread rule: one thread at a time for all sources of a device. */
#ifndef MOEC_RUNTIME_GPU_COPIES_H
#define MOEC_RUNTIME_GPU_COPIES_H

#include "formats/model/config.h"
#include "runtime/cuda/gpu_transfer.h"
#include "runtime/seam/experts.h"

struct moec_gpu_expert_copy {
    struct moec_expert_bytes bytes;
    struct moec_mlp mlp;     /* with the device's pointers */
    uint8_t *memory;         /* the device's, owned; NULL: no copy */
    uint64_t n_bytes;        /* of it */
    uint32_t held, expected; /* expected: answers that count on it */
    uint32_t asked;          /* demands that the source was told of, and that nobody took yet */
    struct moec_gpu_expert_copy *older, *newer; /* in the list of those with memory */
};

/* What all sources of a device share. Zeroed but for the first two members. */
struct moec_gpu_copies {
    struct moec_gpu *gpu;               /* borrowed, as transfer */
    struct moec_gpu_transfer *transfer; /* on the stream that computes */
    uint64_t limit_bytes, used_bytes;
    struct moec_gpu_expert_copy *oldest, *newest;
};

/* Frees copies that nobody holds until so many bytes or fewer are in use. Whether they are. */
bool moec_gpu_copies_shrink(struct moec_gpu_copies *copies, uint64_t n_bytes);

/* A source of the copies of another one's experts; both and the config are borrowed until freed. Errors:
 * MOEC_ERR_UNSUPPORTED where `behind` does not tell bytes, or gives parts. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_copies_open(struct moec_gpu_copies *copies,
                                                       const struct moec_config *config,
                                                       struct moec_experts *behind, struct moec_experts **out,
                                                       struct moec_error *err);
/* NULL-safe. No expert is held. */
void moec_gpu_copies_close(struct moec_experts *source);

#endif
