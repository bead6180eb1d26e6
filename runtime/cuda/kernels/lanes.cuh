/* Half warps: the 16 partial sums of a dot product (runtime/kernels/kernels.h) are 16 neighbouring threads,
 * and the tree that adds them four exchanges. The halves of a warp go their own ways. */
#ifndef MOEC_RUNTIME_CUDA_LANES_CUH
#define MOEC_RUNTIME_CUDA_LANES_CUH

#include "runtime/cuda/blocks/dialect.h"
#include "runtime/cuda/kernels/cuda_kernels.h"

#define MOEC_CUDA_LANES 16
#define MOEC_CUDA_CHUNK 64 /* of a weighted sum: MOEC_SUM_CHUNK */

/* Half warps of a block. */
#define MOEC_CUDA_HALVES (MOEC_CUDA_BLOCK / MOEC_CUDA_LANES)

__device__ static __forceinline__ uint32_t lane_of_half()
{
    return threadIdx.x % MOEC_CUDA_LANES;
}

/* The caller's half, among those of the block. */
__device__ static __forceinline__ uint32_t half_of_block()
{
    return threadIdx.x / MOEC_CUDA_LANES;
}

__device__ static __forceinline__ uint32_t half_mask()
{
    return 0xffffu << (threadIdx.x & MOEC_CUDA_LANES);
}

/* s[i] + s[i + 8], s[i] + s[i + 4], ..: every lane has the sum. */
__device__ static __forceinline__ float lanes_sum(float lane)
{
    const uint32_t mask = half_mask();
    for (int width = MOEC_CUDA_LANES / 2; width > 0; width /= 2)
        lane = lane + __shfl_xor_sync(mask, lane, width);
    return lane;
}

/* The sums of N values of each lane, a share of them in each: lane l has those of values l N / 16 .. (l + 1)
 * N / 16 - 1, as its first ones. */
template <uint32_t N, uint32_t WIDTH = MOEC_CUDA_LANES / 2>
__device__ static __forceinline__ void lanes_sums(float *values)
{
    const uint32_t mask = half_mask();
    const bool is_upper = (lane_of_half() & WIDTH) != 0;
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++) {
        const float own = is_upper ? values[N / 2 + i] : values[i],
                    other = is_upper ? values[i] : values[N / 2 + i];
        values[i] = own + __shfl_xor_sync(mask, other, (int)WIDTH);
    }
    if constexpr (WIDTH > 1)
        lanes_sums<N / 2, WIDTH / 2>(values);
}

/* The same tree of the largest, as the scalar set compares: the later one only where it is greater. */
__device__ static __forceinline__ float lanes_max(float lane)
{
    const uint32_t mask = half_mask();
    for (int width = MOEC_CUDA_LANES / 2; width > 0; width /= 2) {
        const float other = __shfl_xor_sync(mask, lane, width);
        const bool is_first = (lane_of_half() & (uint32_t)width) == 0;
        const float low = is_first ? lane : other, high = is_first ? other : lane;
        lane = high > low ? high : low;
    }
    return lane;
}

/* A value of the half's first lane, for all. */
__device__ static __forceinline__ float lanes_first(float value)
{
    return __shfl_sync(half_mask(), value, (int)(threadIdx.x & MOEC_CUDA_LANES));
}

__device__ static __forceinline__ float *row_of(const struct moec_cuda_rows &rows, uint32_t row)
{
    return rows.each != NULL ? rows.each[row] : rows.first + row * rows.stride;
}

#endif
