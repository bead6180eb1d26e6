/* What the device's F32 units do at most: every thread multiplies and adds into registers of its own. Prints
 * fused multiply-adds a second times two, in TFLOP/s: what prefill is compared with. Ends with 77 where there
 * is no device. */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>

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

static void must(cudaError_t error)
{
    if (error == cudaSuccess)
        return;
    (void)fprintf(stderr, "the device failed: %s\n", cudaGetErrorString(error));
    exit(1);
}

int main(void)
{
    int n_device = 0, n_multiprocessor = 0;
    float *out = NULL, best_ms = 0;
    cudaEvent_t begun, ended;
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
        multiply_and_add<<<n_blocks, THREADS>>>(0.999f, out);
        must(cudaEventRecord(ended, NULL));
        must(cudaEventSynchronize(ended));
        must(cudaGetLastError());
        must(cudaEventElapsedTime(&ms, begun, ended));
        best_ms = i == 0 || ms < best_ms ? ms : best_ms;
    }
    printf("%.3f\n", 2.0 * CHAINS * ROUNDS * THREADS * n_blocks / (best_ms * 1e9));
    return 0;
}
