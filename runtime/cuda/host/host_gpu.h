/* A GPU for tests on machines without one: the rules of runtime/cuda/gpu.h on the processor, with the freedom
 * that they leave used to the full.
 *
 * Work waits in queues until a call has it done: each call does some of it, drawn from a seed, and a call
 * that waits does as much as it must, always of streams drawn by chance. So orders that a real device shows
 * once in a million runs come up in a few dozen seeds, and come up again with the same seed. Memory of the
 * device is filled with MOEC_HOST_GPU_POISON when it is allocated, and what a copy writes when the copy
 * begins, until it lands some steps later: whoever reads without having waited reads NaN. A copy to or from
 * memory that is not pinned, and one past the end of the device's memory, is an error.
 *
 * Launches come through moec_host_gpu_launch, in the order of their stream. Not part of libmoert: tests alone
 * link it. Thread rule: as gpu.h; work is done under the device's lock, on whichever thread calls. */
#ifndef MOEC_RUNTIME_HOST_GPU_H
#define MOEC_RUNTIME_HOST_GPU_H

#include "runtime/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOEC_HOST_GPU_POISON 0xff

/* What goes wrong; all zero: nothing. Numbers count from 1 and from the call that sets them. */
struct moec_host_gpu_faults {
    uint32_t capability;     /* that it says it has (struct moec_gpu_info); 0 = 80 */
    uint64_t capacity_bytes; /* of the device's memory; 0 = as much as the machine has */
    uint64_t fail_alloc_at;  /* this allocation, of whatever memory, finds none */
    uint64_t fail_copy_at;   /* this copy is refused */
    uint64_t fail_launch_at; /* this launch is refused, which check() reports */
    uint64_t lose_at;        /* the device is lost as it does this piece of work */
};

/* What exists now, and what was done since the device was opened. */
struct moec_host_gpu_counts {
    uint64_t allocations, bytes; /* of the device's memory */
    uint64_t peak_bytes;
    uint64_t pinned_bytes, peak_pinned_bytes;
    uint64_t pinned, streams, events;
    uint64_t n_allocs, n_copies, n_launches, n_works;
    uint64_t to_host_bytes; /* copied */
};

MOEC_WARN_UNUSED enum moec_status moec_host_gpu_open(uint64_t seed, struct moec_gpu **out,
                                                     struct moec_error *err);
void moec_host_gpu_set_faults(struct moec_gpu *gpu, const struct moec_host_gpu_faults *faults);
struct moec_host_gpu_counts moec_host_gpu_counts(struct moec_gpu *gpu);

/* Gives a stream work: body(arguments), with a copy of n_bytes of arguments, which need no more than the
 * alignment of max_align_t. */
typedef void moec_host_gpu_body(void *arguments);
void moec_host_gpu_launch(struct moec_gpu_stream *stream, moec_host_gpu_body *body, const void *arguments,
                          size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
