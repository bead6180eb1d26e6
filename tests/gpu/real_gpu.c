/* A real device in the place of the stand-in (runtime/cuda/host/host_gpu.h), for tests of whole models that
 * are linked with the kernels by nvcc. What only the stand-in can do is skipped: faults at a given place. It
 * counts nothing, so that tests find nothing left over. */
#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/cuda/host/host_gpu.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

extern const struct moec_gpu_entry moec_gpu_entry;

enum moec_status moec_host_gpu_open(uint64_t seed, struct moec_gpu **out, struct moec_error *err)
{
    (void)seed;
    return moec_gpu_entry.open(0, out, err);
}

void moec_host_gpu_set_faults(struct moec_gpu *gpu, const struct moec_host_gpu_faults *faults)
{
    (void)gpu;
    if (faults->capacity_bytes > 0 || faults->fail_alloc_at > 0 || faults->fail_copy_at > 0 ||
        faults->fail_launch_at > 0 || faults->lose_at > 0)
        skip();
}

struct moec_host_gpu_counts moec_host_gpu_counts(struct moec_gpu *gpu)
{
    (void)gpu;
    return (struct moec_host_gpu_counts){0};
}

void moec_host_gpu_launch(struct moec_gpu_stream *stream, moec_host_gpu_body *body, const void *arguments,
                          size_t n_bytes)
{
    (void)stream;
    (void)body;
    (void)arguments;
    (void)n_bytes;
}

/* The kernels that are linked go to CUDA's streams by themselves. */
void moec_blocks_divert(moec_blocks_enqueue *enqueue)
{
    (void)enqueue;
}
