/* Pinned memory for tests/gpu/pinned.h, and the main that runs a test's own on a pinned stack. Ends with 77
 * where there is no device. */
#include "tests/gpu/pinned.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define STACK_BYTES ((size_t)8 << 20)

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    (void)fprintf(stderr, "the device failed to %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

extern "C" void *moec_pinned_alloc(size_t n_bytes)
{
    void *memory = NULL;
    must(cudaHostAlloc(&memory, n_bytes > 0 ? n_bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped),
         "give pinned memory");
    return memory;
}

extern "C" void *moec_pinned_zeroed(size_t n, size_t size)
{
    void *memory = moec_pinned_alloc(n * size);
    memset(memory, 0, n * size);
    return memory;
}

extern "C" void moec_pinned_free(void *memory)
{
    struct cudaPointerAttributes attributes;
    if (memory == NULL)
        return;
    must(cudaPointerGetAttributes(&attributes, memory), "say whose memory it is");
    if (attributes.type == cudaMemoryTypeHost)
        must(cudaFreeHost(memory), "free pinned memory");
    else
        free(memory);
}

extern "C" void moec_pinned_finish(void)
{
    must(cudaGetLastError(), "launch a kernel");
    must(cudaDeviceSynchronize(), "run a kernel");
}

static void *run(void *status)
{
    *(int *)status = moec_pinned_main();
    return NULL;
}

int main(void)
{
    int n_device = 0, status = 1;
    pthread_t thread;
    pthread_attr_t attributes;
    const cudaError_t error = cudaGetDeviceCount(&n_device);
    if (error != cudaSuccess || n_device == 0) {
        (void)fprintf(stderr, "there is no GPU: %s\n", cudaGetErrorString(error));
        return 77;
    }
    must(cudaSetDevice(0), "answer");
    void *stack = moec_pinned_alloc(STACK_BYTES);
    if (pthread_attr_init(&attributes) != 0 || pthread_attr_setstack(&attributes, stack, STACK_BYTES) != 0 ||
        pthread_create(&thread, &attributes, run, &status) != 0) {
        (void)fprintf(stderr, "no thread with a pinned stack could be made\n");
        return 1;
    }
    (void)pthread_join(thread, NULL);
    (void)pthread_attr_destroy(&attributes);
    moec_pinned_free(stack);
    return status;
}
