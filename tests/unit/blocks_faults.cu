/* Kernels with the faults that runtime/cuda/blocks is to find, for test_blocks.c: `value` chooses where. */
#include "runtime/cuda/blocks/dialect.h"

struct fault {
    uint32_t value;
    uint32_t *out;
};

/* Neighbours read what others wrote; without the barrier where value is 0. */
__global__ static void race_kernel(struct fault fault)
{
    MOEC_CUDA_SHARED(uint32_t, shared, MOEC_CUDA_BLOCK);
    shared[threadIdx.x] = threadIdx.x;
    if (fault.value != 0)
        __syncthreads();
    fault.out[threadIdx.x] = shared[(threadIdx.x + 1) % MOEC_CUDA_BLOCK];
}

/* All write to one place after all have read it, with a barrier between where value is not 0. */
__global__ static void overwrite_kernel(struct fault fault)
{
    MOEC_CUDA_SHARED(uint32_t, shared, 1);
    if (threadIdx.x == 0)
        shared[0] = 7;
    __syncthreads();
    fault.out[threadIdx.x] = shared[0];
    if (fault.value != 0)
        __syncthreads();
    if (threadIdx.x == 1)
        shared[0] = 8;
}

/* Reads place `value` of 4, and what nobody wrote. */
__global__ static void index_kernel(struct fault fault)
{
    MOEC_CUDA_SHARED(uint32_t, shared, 4);
    if (threadIdx.x == 0)
        fault.out[0] = shared[fault.value];
}

extern "C" void blocks_race(uint32_t value, uint32_t *out)
{
    const struct fault fault = {value, out};
    MOEC_CUDA_LAUNCH(race_kernel, dim3(1), NULL, fault);
}

extern "C" void blocks_overwrite(uint32_t value, uint32_t *out)
{
    const struct fault fault = {value, out};
    MOEC_CUDA_LAUNCH(overwrite_kernel, dim3(1), NULL, fault);
}

extern "C" void blocks_index(uint32_t value, uint32_t *out)
{
    const struct fault fault = {value, out};
    MOEC_CUDA_LAUNCH(index_kernel, dim3(2), NULL, fault);
}
