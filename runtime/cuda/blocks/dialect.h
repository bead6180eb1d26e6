/* What CUDA C has beside C++, for compilers that know only C++; where CUDA's own compiles, the same names as
 * there. Kernels include this, start threads by MOEC_CUDA_LAUNCH and declare shared memory by
 * MOEC_CUDA_SHARED; the rest of what they use is CUDA's own words (CUDA C++ Programming Guide,
 * sections 10.4, 10.6, 10.22):
 *
 *   __global__ __device__ threadIdx blockIdx blockDim gridDim __syncthreads __syncwarp
 *   __shfl_sync __shfl_xor_sync __ballot_sync (of 32 bits: float, uint32_t, int)
 *   atomicAdd atomicOr (of whole numbers)
 *   __launch_bounds__ (without effect)
 *
 * On the processor an index outside of shared memory ends the program, and a block begins with shared memory
 * full of NaN. Blocks have one dimension and MOEC_CUDA_BLOCK threads. */
#ifndef MOEC_RUNTIME_DIALECT_H
#define MOEC_RUNTIME_DIALECT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)

#define MOEC_CUDA_BLOCK                 128
#define MOEC_CUDA_SHARED(type, name, n) __shared__ __align__(16) type name[n]
#define MOEC_CUDA_LAUNCH(kernel, grid, stream, argument)                                                     \
    kernel<<<(grid), MOEC_CUDA_BLOCK, 0, (cudaStream_t)(stream)>>>(argument)

#else

#include "runtime/cuda/blocks/blocks.h"

#include <string.h>
#include <type_traits>

#define MOEC_CUDA_BLOCK 64

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (moec_blocks_here->thread)
#define blockIdx  (moec_blocks_here->block)
#define blockDim  (moec_blocks_here->n_threads)
#define gridDim   (moec_blocks_here->n_blocks)

struct dim3 : moec_blocks_size {
    dim3(uint32_t n_x, uint32_t n_y = 1, uint32_t n_z = 1)
    {
        x = n_x;
        y = n_y;
        z = n_z;
    }
};

static inline void __syncthreads()
{
    moec_blocks_barrier();
}

static inline void __syncwarp(uint32_t mask = 0xffffffffu)
{
    (void)moec_blocks_ballot(mask, 0);
}

static inline uint32_t __ballot_sync(uint32_t mask, int value)
{
    return moec_blocks_ballot(mask, (uint32_t)value);
}

static inline uint32_t atomicAdd(uint32_t *address, uint32_t value)
{
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

static inline unsigned long long atomicAdd(unsigned long long *address, unsigned long long value)
{
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}

static inline uint32_t atomicOr(uint32_t *address, uint32_t value)
{
    return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}

template <typename T> static inline T __shfl_sync(uint32_t mask, T value, int lane)
{
    static_assert(sizeof(T) == sizeof(uint32_t), "exchanges are of 32 bits");
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = moec_blocks_exchange(mask, bits, (uint32_t)lane);
    memcpy(&value, &bits, sizeof bits);
    return value;
}

template <typename T> static inline T __shfl_xor_sync(uint32_t mask, T value, int lane)
{
    return __shfl_sync(mask, value, (int)(threadIdx.x % MOEC_BLOCKS_WARP) ^ lane);
}

/* A value of shared memory, and who used it last, under which number of moec_blocks_epoch. */
template <typename T> struct moec_cuda_shared_value {
    T value;
    uint32_t writer, reader;
    uint64_t written, read;
    bool has_readers; /* several */
};

/* What an index of shared memory stands for: reads and writes are told apart. */
template <typename T> struct moec_cuda_shared_place {
    moec_cuda_shared_value<T> &at;

    operator T() const
    {
        const uint32_t own = threadIdx.x;
        if (at.written == moec_blocks_epoch && at.writer != own)
            moec_blocks_refuse_race(at.writer);
        at.has_readers = at.read == moec_blocks_epoch && (at.has_readers || at.reader != own);
        at.reader = own;
        at.read = moec_blocks_epoch;
        return at.value;
    }

    moec_cuda_shared_place &operator=(T value)
    {
        const uint32_t own = threadIdx.x;
        if (at.written == moec_blocks_epoch && at.writer != own)
            moec_blocks_refuse_race(at.writer);
        if (at.read == moec_blocks_epoch && (at.has_readers || at.reader != own))
            moec_blocks_refuse_race(at.reader);
        at.value = value;
        at.writer = own;
        at.written = moec_blocks_epoch;
        return *this;
    }

    moec_cuda_shared_place &operator=(const moec_cuda_shared_place &other)
    {
        return *this = T(other);
    }
};

/* Shared memory of a block: all threads of the operating system's thread that runs the block see it. */
template <typename T, uint32_t N> struct moec_cuda_shared_array {
    moec_cuda_shared_value<T> values[N];
    uint64_t serial; /* of the block that it belongs to */

    moec_cuda_shared_place<T> operator[](uint64_t index)
    {
        if (index >= N)
            moec_blocks_refuse_index(index, N);
        if (serial != moec_blocks_here->serial) {
            for (uint32_t i = 0; i < N; i++)
                memset(&values[i].value, 0xff, sizeof values[i].value);
            serial = moec_blocks_here->serial;
        }
        return {values[index]};
    }
};

/* Of the operating system's thread, but not thread-local: small stacks have no room for that. */
#define MOEC_CUDA_SHARED(type, name, n)                                                                      \
    static char name##_key;                                                                                  \
    moec_cuda_shared_array<type, n> &name = *static_cast<moec_cuda_shared_array<type, n> *>(                 \
        moec_blocks_shared(&name##_key, sizeof(moec_cuda_shared_array<type, n>)))

template <typename T> struct moec_cuda_call {
    void (*kernel)(T);
    T argument;
};

template <typename T> static void moec_cuda_run(const void *memory)
{
    const moec_cuda_call<T> *call = static_cast<const moec_cuda_call<T> *>(memory);
    call->kernel(call->argument);
}

template <typename T>
static inline void moec_cuda_launch(void (*kernel)(T), dim3 grid, struct moec_gpu_stream *stream,
                                    const T &argument)
{
    static_assert(std::is_trivially_copyable<T>::value, "arguments are copied as bytes");
    const moec_cuda_call<T> call = {kernel, argument};
    moec_blocks_launch(stream, grid, MOEC_CUDA_BLOCK, moec_cuda_run<T>, &call, sizeof call);
}

#define MOEC_CUDA_LAUNCH(kernel, grid, stream, argument)                                                     \
    moec_cuda_launch((kernel), (grid), (stream), (argument))

#endif

/* Blocks that n items need, `each` of them in a block. */
__host__ __device__ static inline uint32_t moec_cuda_blocks(uint64_t n, uint32_t each)
{
    return (uint32_t)((n + each - 1) / each);
}

#endif
