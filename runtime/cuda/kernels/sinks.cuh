/* What becomes of a product's outputs. */
#ifndef MOEC_RUNTIME_CUDA_SINKS_CUH
#define MOEC_RUNTIME_CUDA_SINKS_CUH

#include "runtime/cuda/kernels/lanes.cuh"
#include "runtime/kernels/kernels_exp.h"

/* `value`, its bias added, as enum moec_cuda_sink says. */
__device__ static void sink_output(const struct moec_cuda_product &product, float value, float *to)
{
    if (product.y.sink == MOEC_CUDA_STORE)
        *to = value;
    else if (product.y.sink == MOEC_CUDA_ADD)
        *to = *to + value;
    else if (product.y.sink == MOEC_CUDA_MULTIPLY)
        *to = *to * value;
    else if (product.y.sink == MOEC_CUDA_MULTIPLY_SIGMOID)
        *to = *to * (1.0f / (1.0f + moec_canonical_exp(-value)));
    else if (product.y.sink == MOEC_CUDA_SIGMOID)
        *to = 1.0f / (1.0f + moec_canonical_exp(-value));
    else if (product.y.sink == MOEC_CUDA_SILU)
        *to = moec_canonical_silu(value);
    else { /* tanh |z| = (1 - e^(-2 |z|)) / (1 + e^(-2 |z|)) */
        const float e = moec_canonical_exp(-2 * fabsf(value / product.y.cap));
        *to = copysignf(product.y.cap * ((1 - e) / (1 + e)), value);
    }
}

#endif
