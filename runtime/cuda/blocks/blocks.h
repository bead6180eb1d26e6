/* Runs a grid of threads on the processor, for kernels that are compiled without CUDA.
 *
 * Blocks run one after the other. The threads of a block take turns: each has a stack and runs until it ends
 * or waits, at a barrier of its block or for an exchange with other threads of its warp (32 of them, by their
 * number). A wait ends when all whom it concerns have come; threads of a block that have ended concern
 * nobody. Where all wait and no wait can end, which on a GPU is a hang or worse, and where an exchange asks a
 * thread that takes no part, the program ends with a message.
 *
 * AddressSanitizer and ThreadSanitizer are told of every change of stack. Thread rule: any number of
 * operating system threads may run grids, each its own. */
#ifndef MOEC_RUNTIME_BLOCKS_H
#define MOEC_RUNTIME_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define MOEC_BLOCKS_LOCAL thread_local
#else
#define MOEC_BLOCKS_LOCAL _Thread_local
#endif

#define MOEC_BLOCKS_WARP        32
#define MOEC_BLOCKS_MAX_THREADS 64 /* of a block: CUDA would take 1024 */

struct moec_gpu_stream; /* runtime/cuda/gpu.h */

struct moec_blocks_size {
    uint32_t x, y, z;
};

/* Who is running: what CUDA calls threadIdx, blockIdx, blockDim and gridDim. */
struct moec_blocks_place {
    struct moec_blocks_size thread, block, n_threads, n_blocks;
    uint64_t serial; /* another one for every block, from 1 on */
};
extern MOEC_BLOCKS_LOCAL const struct moec_blocks_place *moec_blocks_here;
/* Another one after every barrier and for every block, rising: what threads do under one number has no order.
 */
extern MOEC_BLOCKS_LOCAL uint64_t moec_blocks_epoch;

/* What one thread does, with its kernel's arguments. */
typedef void moec_blocks_body(const void *arguments);

/* A grid: arguments are copied, n_bytes of them with at most the alignment of max_align_t. Empty grids do
 * nothing. */
void moec_blocks_launch(struct moec_gpu_stream *stream, struct moec_blocks_size n_blocks, uint32_t n_threads,
                        moec_blocks_body *body, const void *arguments, size_t n_bytes);

/* Where launches go from now on: to `enqueue`, which calls run(arguments), with a copy of the n_bytes of
 * arguments, when the stream comes to it. NULL, as at first: launches run at once. For the whole process;
 * before any launch. */
typedef void moec_blocks_enqueue(struct moec_gpu_stream *stream, void (*run)(void *arguments),
                                 const void *arguments, size_t n_bytes);
void moec_blocks_divert(moec_blocks_enqueue *enqueue);

/* ---- for threads at work ---- */

/* Returns when all threads of the block that have not ended have called it. */
void moec_blocks_barrier(void);

/* Returns when all lanes of `mask`, which has the caller's, have called it, with the value that lane `from`
 * gave. Lanes of a warp are the bits 0 .. 31 of a mask. */
uint32_t moec_blocks_exchange(uint32_t mask, uint32_t value, uint32_t from);
/* Bit i: lane i is in the mask and gave something other than 0. */
uint32_t moec_blocks_ballot(uint32_t mask, uint32_t value);

/* Returns when all lanes of `mask` have called it and work(own) was called once, with what each of them gave;
 * NULL for lanes that are not of the mask. */
typedef void moec_blocks_work(void *const own[MOEC_BLOCKS_WARP]);
void moec_blocks_together(uint32_t mask, moec_blocks_work *work, void *own);

/* n_bytes for the key, the same for all threads of the blocks of one operating system thread, zero at first.
 */
void *moec_blocks_shared(const void *key, size_t n_bytes);

/* End the program: an index past an array's end, and memory that `other` has used since the last barrier. */
__attribute__((noreturn)) void moec_blocks_refuse_index(uint64_t index, uint64_t length);
__attribute__((noreturn)) void moec_blocks_refuse_race(uint32_t other);

#ifdef __cplusplus
}
#endif

#endif
