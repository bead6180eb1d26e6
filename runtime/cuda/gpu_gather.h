/* Pairs of an expert's neurons on their way to a GPU (FloE, section 3.4.2): threads put those that are wanted
 * side by side into pinned memory, chunk by chunk; a chunk is copied in one piece while the next one is
 * gathered, and a kernel on the same stream puts its pairs where they belong. Where that takes longer than
 * copying all pairs as they lie in the record, they are copied so.
 *
 * Which of the two is sooner, and how large chunks are, is told or measured when this is made: some megabytes
 * are gathered and copied in chunks of several sizes, and as they lie. Thread rule: one thread at a time.
 * Only speed depends on the times. */
#ifndef MOEC_RUNTIME_GPU_GATHER_H
#define MOEC_RUNTIME_GPU_GATHER_H

#include "runtime/cuda/gpu.h"
#include "runtime/cuda/gpu_kernels.h"
#include "runtime/threads/parallel.h"

struct moec_gpu_gather;

#define MOEC_GPU_GATHER_CHUNKS      4u
#define MOEC_GPU_GATHER_CHUNK_BYTES ((uint64_t)1 << 20) /* the most, unless a pair is larger */

/* What pairs take on the bus. */
struct moec_gpu_gather_speed {
    uint64_t chunk_bytes;    /* that are gathered at once; at most what chunks have room for */
    double gathered_byte_ns; /* of pairs that are gathered and copied at the same time */
    double copied_byte_ns;   /* of pairs that are copied as they lie */
};

/* What gathering is measured with. */
struct moec_gpu_gather_sample {
    const uint8_t *memory; /* pinned; borrowed for the call */
    uint64_t n_bytes;      /* of it; 0: nothing is measured */
};

struct moec_gpu_gather_setup {
    struct moec_gpu *gpu;           /* this and the three that follow: borrowed until freed */
    struct moec_gpu_stream *stream; /* of copies */
    const struct moec_gpu_kernels *kernels;
    struct moec_pool threads; /* that gather */
    uint32_t n_neuron;        /* of an expert, at most */
    uint64_t pair_bytes;      /* likewise, of one neuron */
    struct moec_gpu_gather_sample sample;
    struct moec_gpu_gather_speed speed; /* chunk_bytes 0: measured */
};

/* Bytes of the device's memory, and as many pinned ones. */
uint64_t moec_gpu_gather_bytes(uint32_t n_neuron, uint64_t pair_bytes);

/* Errors: the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_gather_create(const struct moec_gpu_gather_setup *setup,
                                                         struct moec_gpu_gather **out,
                                                         struct moec_error *err);
void moec_gpu_gather_free(struct moec_gpu_gather *gather); /* NULL-safe; waits for what is under way */

struct moec_gpu_gather_speed moec_gpu_gather_speed_of(const struct moec_gpu_gather *gather);

/* Whether n pairs of n_all are there sooner by copying all of them as they lie. */
bool moec_gpu_gather_copies_all(const struct moec_gpu_gather *gather, uint32_t n, uint32_t n_all);

/* Pairs of one record. */
struct moec_gpu_gathering {
    const uint8_t *pairs; /* in pinned memory, neuron i's at i * step */
    size_t step;
    const uint32_t *places; /* (n_neuron) rows of `to` that the pairs of the neurons go to, or
                               MOEC_CUDA_NOWHERE: that pair is not sent, or not kept */
    uint32_t n_neuron;
    uint8_t *to; /* the device's, as the last: rows of to_step bytes */
    size_t to_step;
    uint32_t *device_places; /* (n_neuron) written for every pair that is kept */
};

/* Sends the pairs of the neurons that `list` names (n, increasing), gathered, or all pairs as they lie. The
 * record stays until the stream has passed this where it is copied as it lies, else it is done with at once.
 * *n_bytes counts what is copied, in case of an error too. Errors: the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_gather_some(struct moec_gpu_gather *gather,
                                                       const struct moec_gpu_gathering *gathering,
                                                       const uint32_t *list, uint32_t n, uint64_t *n_bytes,
                                                       struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_gpu_gather_all(struct moec_gpu_gather *gather,
                                                      const struct moec_gpu_gathering *gathering,
                                                      uint64_t *n_bytes, struct moec_error *err);

#endif
