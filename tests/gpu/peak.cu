/* What the device multiplies at most: every thread into registers of its own. Prints multiplications and
 * additions in TFLOP/s, what prefill is compared with. Ends with 77 where there is no device.
 *
 *     peak f32    fused multiply-adds of the F32 units
 *     peak bf16   mma.sync of BF16 with F32 sums, what the arithmetic bf16 is made of. Devices from compute
 *                 capability 9.0 on have instructions beside it that reach more. */
#include "runtime/cuda/kernels/mma.cuh"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAINS  16 /* of a thread, which hide how long one operation takes */
#define ROUNDS  16384
#define THREADS 256
#define REPEATS 10

__global__ static void multiply_and_add(float factor, float *out)
{
    float sums[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sums[i] = (float)(threadIdx.x + i);
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            sums[i] = fmaf(sums[i], factor, 1.0f);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < CHAINS; i++)
        sum = sum + sums[i];
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

#define MMA_CHAINS 8    /* of a warp, 4 sums of a thread each */
#define MMA_FLOP   4096 /* 16 rows by 8 columns by 16 places of k, twice */

__global__ static void multiply_fragments(float factor, float *out)
{
    float sums[MMA_CHAINS][4];
    const uint32_t word = bf16_word(factor, -factor), both = bf16_word(factor, factor); /* sums stay small */
    const uint32_t a[4] = {word + threadIdx.x % 32, word, word, word}, b[2] = {both, both};
#pragma unroll
    for (int i = 0; i < MMA_CHAINS * 4; i++)
        sums[i / 4][i % 4] = (float)i;
    for (int round = 0; round < ROUNDS; round++)
#pragma unroll
        for (int i = 0; i < MMA_CHAINS; i++)
            multiply_add(a, b, sums[i]);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < MMA_CHAINS * 4; i++)
        sum = sum + sums[i / 4][i % 4];
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

static void must(cudaError_t error)
{
    if (error == cudaSuccess)
        return;
    (void)fprintf(stderr, "the device failed: %s\n", cudaGetErrorString(error));
    exit(1);
}

int main(int argc, char **argv)
{
    const bool is_bf16 = argc == 2 && strcmp(argv[1], "bf16") == 0;
    int n_device = 0, n_multiprocessor = 0;
    float *out = NULL, best_ms = 0;
    cudaEvent_t begun, ended;
    if (!is_bf16 && (argc != 2 || strcmp(argv[1], "f32") != 0)) {
        (void)fprintf(stderr, "usage: peak f32 | peak bf16\n");
        return 2;
    }
    if (cudaGetDeviceCount(&n_device) != cudaSuccess || n_device == 0) {
        (void)fprintf(stderr, "there is no GPU\n");
        return 77;
    }
    must(cudaDeviceGetAttribute(&n_multiprocessor, cudaDevAttrMultiProcessorCount, 0));
    const unsigned n_blocks = (unsigned)n_multiprocessor * 16;
    must(cudaMalloc((void **)&out, sizeof *out * n_blocks * THREADS));
    must(cudaEventCreate(&begun));
    must(cudaEventCreate(&ended));
    for (int i = 0; i < REPEATS; i++) {
        float ms = 0;
        must(cudaEventRecord(begun, NULL));
        if (is_bf16)
            multiply_fragments<<<n_blocks, THREADS>>>(0.999f, out);
        else
            multiply_and_add<<<n_blocks, THREADS>>>(0.999f, out);
        must(cudaEventRecord(ended, NULL));
        must(cudaEventSynchronize(ended));
        must(cudaGetLastError());
        must(cudaEventElapsedTime(&ms, begun, ended));
        best_ms = i == 0 || ms < best_ms ? ms : best_ms;
    }
    const double n_flop =
        is_bf16 ? (double)MMA_FLOP * MMA_CHAINS / MOEC_CUDA_WARP : 2.0 * CHAINS; /* a thread's */
    printf("%.3f\n", n_flop * ROUNDS * THREADS * n_blocks / (best_ms * 1e9));
    return 0;
}
