/* What makes a GPU usable, and where it is found: libmoert-cuda.so, which nvcc builds beside libmoert, opened
 * when a program asks for a device, so that programs run where there is none. It has one symbol,
 * `moec_gpu_entry`. Thread rule: any thread. */
#ifndef MOEC_RUNTIME_GPU_LIBRARY_H
#define MOEC_RUNTIME_GPU_LIBRARY_H

#include "runtime/cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

struct moec_gpu_kernels;

struct moec_gpu_entry {
    const char *version; /* of its build: structs of another one may differ */
    /* The device of this number, from 0 on. Errors: MOEC_ERR_UNSUPPORTED where there is none. */
    enum moec_status (*open)(uint32_t number, struct moec_gpu **out, struct moec_error *err);
    const struct moec_gpu_kernels *kernels;
};

/* The library from the folder of the program or library that this is part of, or from where the system looks.
 * It stays open. Errors: MOEC_ERR_UNSUPPORTED, in one sentence. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_library_open(const struct moec_gpu_entry **out,
                                                        struct moec_error *err);

/* "cuda" or "cuda:N". Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_number_read(const char *text, uint32_t *number,
                                                       struct moec_error *err);

#ifdef __cplusplus
}
#endif

#endif
