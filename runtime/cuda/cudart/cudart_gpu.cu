/* CUDA keeps the current device for each thread, so every operation enters its device first. An error that
 * is reported is taken off CUDA's record (cudaGetLastError), or a later check would report it again. The
 * table's order is that of struct moec_gpu_ops, since C++ has no designated initialisers here. */
extern "C" {
#include "formats/base/error.h"
}
#include "runtime/cuda/gpu_kernels.h"
#include "runtime/cuda/gpu_library.h"

#include <cuda_runtime_api.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct cudart_gpu {
    struct moec_gpu gpu; /* first */
    int number;
};

static enum moec_status fail(struct moec_error *err, cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* an error that is reported here is not reported once more by check() */
    return moec_fail(err, error == cudaErrorMemoryAllocation ? MOEC_ERR_MEMORY : MOEC_ERR_IO,
                     "the device failed to %s: %s", what, cudaGetErrorString(error));
}

/* The calling thread's device from here on: CUDA keeps one for each thread. */
static enum moec_status enter(struct moec_gpu *gpu, struct moec_error *err)
{
    const cudaError_t error = cudaSetDevice(((struct cudart_gpu *)gpu)->number);
    return error == cudaSuccess ? MOEC_OK : fail(err, error, "answer");
}

static enum moec_status answer(struct moec_error *err, cudaError_t error, const char *what)
{
    return error == cudaSuccess ? MOEC_OK : fail(err, error, what);
}

static cudaStream_t cuda_stream(struct moec_gpu_stream *stream)
{
    return (cudaStream_t)stream;
}

static cudaEvent_t cuda_event(const struct moec_gpu_event *event)
{
    return (cudaEvent_t)(uintptr_t)event;
}

static void gpu_close(struct moec_gpu *gpu)
{
    free(gpu);
}

static enum moec_status gpu_info(struct moec_gpu *gpu, struct moec_gpu_info *info, struct moec_error *err)
{
    struct cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    MOEC_TRY(enter(gpu, err));
    MOEC_TRY(answer(err, cudaGetDeviceProperties(&properties, ((struct cudart_gpu *)gpu)->number),
                    "report its properties"));
    MOEC_TRY(answer(err, cudaMemGetInfo(&free_bytes, &total_bytes), "report its free memory"));
    (void)snprintf(info->name, sizeof info->name, "%s", properties.name);
    info->capability = (uint32_t)(10 * properties.major + properties.minor);
    info->total_bytes = total_bytes;
    info->free_bytes = free_bytes;
    return MOEC_OK;
}

static enum moec_status no_memory(struct moec_error *err, cudaError_t error, uint64_t n_bytes,
                                  const char *what, const char *where)
{
    if (error != cudaErrorMemoryAllocation)
        return fail(err, error, "give memory");
    (void)cudaGetLastError();
    return moec_fail(err, MOEC_ERR_MEMORY, "%s has no room for %s of %" PRIu64 " bytes", where, what,
                     n_bytes);
}

static enum moec_status gpu_alloc(struct moec_gpu *gpu, uint64_t n_bytes, const char *what, void **out,
                                  struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    const cudaError_t error = cudaMalloc(out, n_bytes);
    return error == cudaSuccess ? MOEC_OK : no_memory(err, error, n_bytes, what, "the device");
}

static void gpu_free(struct moec_gpu *gpu, void *memory)
{
    if (memory != NULL && enter(gpu, NULL) == MOEC_OK)
        (void)cudaFree(memory);
}

static enum moec_status gpu_alloc_pinned(struct moec_gpu *gpu, uint64_t n_bytes, const char *what, void **out,
                                         struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    const cudaError_t error = cudaHostAlloc(out, n_bytes, cudaHostAllocPortable);
    return error == cudaSuccess ? MOEC_OK : no_memory(err, error, n_bytes, what, "pinned memory");
}

static void gpu_free_pinned(struct moec_gpu *gpu, void *memory)
{
    if (memory != NULL && enter(gpu, NULL) == MOEC_OK)
        (void)cudaFreeHost(memory);
}

static enum moec_status gpu_pin(struct moec_gpu *gpu, void *memory, uint64_t n_bytes, const char *what,
                                struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    const cudaError_t error = cudaHostRegister(memory, n_bytes, cudaHostRegisterPortable);
    return error == cudaSuccess ? MOEC_OK : no_memory(err, error, n_bytes, what, "pinned memory");
}

static void gpu_unpin(struct moec_gpu *gpu, void *memory)
{
    if (memory != NULL && enter(gpu, NULL) == MOEC_OK)
        (void)cudaHostUnregister(memory);
}

static enum moec_status stream_create(struct moec_gpu *gpu, struct moec_gpu_stream **out,
                                      struct moec_error *err)
{
    cudaStream_t stream;
    MOEC_TRY(enter(gpu, err));
    MOEC_TRY(answer(err, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream"));
    *out = (struct moec_gpu_stream *)stream;
    return MOEC_OK;
}

static void stream_free(struct moec_gpu *gpu, struct moec_gpu_stream *stream)
{
    if (stream == NULL || enter(gpu, NULL) != MOEC_OK)
        return;
    (void)cudaStreamSynchronize(cuda_stream(stream));
    (void)cudaStreamDestroy(cuda_stream(stream));
}

static enum moec_status event_create(struct moec_gpu *gpu, struct moec_gpu_event **out,
                                     struct moec_error *err)
{
    cudaEvent_t event;
    MOEC_TRY(enter(gpu, err));
    MOEC_TRY(answer(err, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event"));
    *out = (struct moec_gpu_event *)event;
    return MOEC_OK;
}

static void event_free(struct moec_gpu *gpu, struct moec_gpu_event *event)
{
    if (event != NULL && enter(gpu, NULL) == MOEC_OK)
        (void)cudaEventDestroy(cuda_event(event));
}

static enum moec_status gpu_copy(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                 struct moec_gpu_move move, struct moec_error *err)
{
    const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                         cudaMemcpyDeviceToDevice};
    MOEC_TRY(enter(gpu, err));
    return answer(err,
                  cudaMemcpyAsync(move.to, move.from, move.n_bytes, kinds[move.kind], cuda_stream(stream)),
                  "copy");
}

static enum moec_status gpu_clear(struct moec_gpu *gpu, struct moec_gpu_stream *stream, void *memory,
                                  uint64_t n_bytes, struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    return answer(err, cudaMemsetAsync(memory, 0, n_bytes, cuda_stream(stream)), "clear memory");
}

static enum moec_status gpu_record(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                   struct moec_gpu_event *event, struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    return answer(err, cudaEventRecord(cuda_event(event), cuda_stream(stream)), "record an event");
}

static enum moec_status gpu_wait(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                 const struct moec_gpu_event *event, struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    return answer(err, cudaStreamWaitEvent(cuda_stream(stream), cuda_event(event), 0), "wait for an event");
}

static enum moec_status gpu_check(struct moec_gpu *gpu, struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    return answer(err, cudaGetLastError(), "run a kernel");
}

static enum moec_status gpu_is_done(struct moec_gpu *gpu, const struct moec_gpu_event *event, bool *done,
                                    struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    const cudaError_t error = cudaEventQuery(cuda_event(event));
    *done = error == cudaSuccess;
    if (error != cudaErrorNotReady)
        return answer(err, error, "finish its work");
    (void)cudaGetLastError();
    return MOEC_OK;
}

static enum moec_status finish_event(struct moec_gpu *gpu, const struct moec_gpu_event *event,
                                     struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    return answer(err, cudaEventSynchronize(cuda_event(event)), "finish its work");
}

static enum moec_status gpu_finish(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                   struct moec_error *err)
{
    MOEC_TRY(enter(gpu, err));
    return answer(err, cudaStreamSynchronize(cuda_stream(stream)), "finish its work");
}

/* In the order of struct moec_gpu_ops. */
static const struct moec_gpu_ops gpu_ops = {
    gpu_close,  gpu_info,      gpu_alloc,   gpu_free,     gpu_alloc_pinned, gpu_free_pinned, gpu_pin,
    gpu_unpin,  stream_create, stream_free, event_create, event_free,       gpu_copy,        gpu_clear,
    gpu_record, gpu_wait,      gpu_check,   gpu_is_done,  finish_event,     gpu_finish};

static enum moec_status gpu_open(uint32_t number, struct moec_gpu **out, struct moec_error *err)
{
    int n_device = 0;
    const cudaError_t error = cudaGetDeviceCount(&n_device);
    if (error != cudaSuccess)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "CUDA finds no device: %s", cudaGetErrorString(error));
    if (number >= (uint32_t)n_device)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "there is no device %u: CUDA finds %d devices, numbered from 0", number, n_device);
    struct cudart_gpu *gpu = (struct cudart_gpu *)calloc(1, sizeof *gpu);
    if (gpu == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: the state of a device");
    gpu->gpu.ops = &gpu_ops;
    gpu->number = (int)number;
    *out = &gpu->gpu;
    return MOEC_OK;
}

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;

extern "C" __attribute__((visibility("default")))
const struct moec_gpu_entry moec_gpu_entry = {MOEC_VERSION, gpu_open, &kernels};
