/* libmoert-cuda.so for tests of the command line on machines without a GPU: the stand-in of runtime/cuda/host
 * with the kernels compiled for the processor. A program finds it beside itself, as it finds the real one;
 * the environment says what goes wrong: MOEC_STANDIN_LOSE_AT, the piece of work by which the device is lost,
 * MOEC_STANDIN_CAPACITY, bytes of its memory, and MOEC_STANDIN_CAPABILITY, such as 75. */
#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_kernels.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/cuda/host/host_gpu.h"

#include <stdlib.h>

extern const __attribute__((visibility("default"))) struct moec_gpu_entry moec_gpu_entry;

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : 0;
}

static enum moec_status standin_open(uint32_t number, struct moec_gpu **out, struct moec_error *err)
{
    const struct moec_host_gpu_faults faults = {.capacity_bytes = number_of("MOEC_STANDIN_CAPACITY"),
                                                .lose_at = number_of("MOEC_STANDIN_LOSE_AT"),
                                                .capability = (uint32_t)number_of("MOEC_STANDIN_CAPABILITY")};
    moec_blocks_divert(moec_host_gpu_launch);
    MOEC_TRY(moec_host_gpu_open(1 + number, out, err));
    moec_host_gpu_set_faults(*out, &faults);
    return MOEC_OK;
}

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;
const struct moec_gpu_entry moec_gpu_entry = {MOEC_VERSION, standin_open, &kernels};
