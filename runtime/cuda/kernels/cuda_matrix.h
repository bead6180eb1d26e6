/* From matrices as the runtime has them to matrices as the kernels of a GPU read them. For C alone.
 * Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_CUDA_MATRIX_H
#define MOEC_RUNTIME_CUDA_MATRIX_H

#include "formats/model/dense.h"
#include "runtime/cuda/kernels/cuda_kernels.h"

/* `matrix` with its rows at `data`, in the device's memory; a matrix without rows becomes one. */
struct moec_cuda_matrix moec_cuda_matrix_make(const struct moec_matrix *matrix, const uint8_t *data);

#endif
