/* What is done row by row: norms, additions, rotations, sums over ranks. */
#include "runtime/cuda/kernels/lanes.cuh"

/* ---- norms ---- */

/* The mean of n floats, their sum in the order of a dot product; 0 for an RMS norm. Half warps that call this
 * do so with all their lanes. */
__device__ static float mean_of(const float *x, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES)
        sum = sum + x[i];
    return lanes_sum(sum) / (float)n;
}

__device__ static float inverse_of(const float *x, uint32_t n, float mean, bool has_mean, float eps)
{
    float sum = 0;
#pragma unroll 8
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES) {
        const float value = has_mean ? x[i] - mean : x[i];
        sum = fmaf(value, value, sum);
    }
    return 1.0f / sqrtf(lanes_sum(sum) / (float)n + eps);
}

/* A block for each part of a row: its first half warp sums, all threads write. */
__global__ static void norm_kernel(struct moec_cuda_norm norm)
{
    MOEC_CUDA_SHARED(float, found, 2); /* mean, inverse */
    const size_t part = blockIdx.y;
    const float *x =
        row_of(norm.x, blockIdx.x) + part * (norm.parts.x_step > 0 ? norm.parts.x_step : norm.parts.n);
    float *row = row_of(norm.out, blockIdx.x),
          *out = row + part * (norm.parts.out_step > 0 ? norm.parts.out_step : norm.parts.n);
    const float *weight = norm.by.weight + part * norm.by.step;
    const bool has_mean = norm.by.bias != NULL;
    if (half_of_block() == 0 && norm.by.weight != NULL) {
        const float mean = has_mean ? mean_of(x, norm.parts.n) : 0;
        const float inverse = inverse_of(x, norm.parts.n, mean, has_mean, norm.by.eps);
        if (lane_of_half() == 0) {
            found[0] = mean;
            found[1] = inverse;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < norm.parts.n; i += MOEC_CUDA_BLOCK) {
        float value = x[i];
        if (norm.by.weight != NULL)
            value = (has_mean ? value - found[0] : value) * found[1] * weight[i];
        out[i] = has_mean && norm.by.weight != NULL ? value + norm.by.bias[i] : value;
    }
    for (uint32_t i = norm.parts.n_part * norm.parts.n + threadIdx.x; part == 0 && i < norm.padded;
         i += MOEC_CUDA_BLOCK)
        row[i] = 0;
}

extern "C" void moec_cuda_norm_run(struct moec_gpu_stream *stream, const struct moec_cuda_norm *norm)
{
    if (norm->n_tok > 0 && norm->parts.n_part > 0 && norm->parts.n > 0)
        MOEC_CUDA_LAUNCH(norm_kernel, dim3(norm->n_tok, norm->parts.n_part), stream, *norm);
}

/* ---- element by element ---- */

/* A grid of a thread for each of n floats of each row. */
static dim3 grid_of(uint32_t n_tok, uint32_t n)
{
    return dim3(n_tok, moec_cuda_blocks(n, MOEC_CUDA_BLOCK));
}

/* The float of the row that the caller is for. */
__device__ static __forceinline__ uint32_t own_column()
{
    return blockIdx.y * MOEC_CUDA_BLOCK + threadIdx.x;
}

__global__ static void addition_kernel(struct moec_cuda_addition addition)
{
    const uint32_t i = own_column();
    if (i >= addition.n)
        return;
    const float x = row_of(addition.x, blockIdx.x)[i];
    float *y = row_of(addition.y, blockIdx.x) + i;
    *y = *y + (addition.scale != 0 ? x * addition.scale : x);
}

extern "C" void moec_cuda_addition_run(struct moec_gpu_stream *stream,
                                       const struct moec_cuda_addition *addition)
{
    if (addition->n_tok > 0 && addition->n > 0)
        MOEC_CUDA_LAUNCH(addition_kernel, grid_of(addition->n_tok, addition->n), stream, *addition);
}

__global__ static void scaling_kernel(struct moec_cuda_scaling scaling)
{
    const uint32_t i = own_column();
    if (i >= scaling.n)
        return;
    float *at = row_of(scaling.x, blockIdx.x) + i;
    const float x = *at, limit = scaling.limit;
    if (limit > 0)
        *at = x > limit ? limit : x < -limit ? -limit : x;
    else
        *at = x * (scaling.factors != NULL ? scaling.factors[blockIdx.x] : scaling.factor);
}

extern "C" void moec_cuda_scaling_run(struct moec_gpu_stream *stream, const struct moec_cuda_scaling *scaling)
{
    if (scaling->n_tok > 0 && scaling->n > 0)
        MOEC_CUDA_LAUNCH(scaling_kernel, grid_of(scaling->n_tok, scaling->n), stream, *scaling);
}

__global__ static void combination_kernel(struct moec_cuda_combination combination)
{
    const uint32_t i = own_column(), token = blockIdx.x;
    if (i >= combination.n)
        return;
    const float *outputs =
        combination.ranks.outputs + (size_t)token * combination.ranks.top_k * combination.stride + i;
    const float *weights = combination.ranks.weights + (size_t)token * combination.ranks.top_k;
    float sum = 0;
    for (uint32_t rank = 0; rank < combination.ranks.top_k; rank++) {
        const bool passes_by =
            combination.ranks.passes_by != NULL &&
            combination.ranks.passes_by[(size_t)token * combination.ranks.top_k + rank] != 0;
        sum = fmaf(weights[rank], passes_by ? 0 : outputs[rank * combination.stride], sum);
    }
    if (combination.shared.outputs != NULL) {
        const float shared = combination.shared.outputs[token * combination.stride + i];
        sum =
            sum + (combination.shared.factors != NULL ? shared * combination.shared.factors[token] : shared);
    }
    if (combination.scale != 0)
        sum = sum * combination.scale;
    float *out = row_of(combination.out, token) + i;
    *out = combination.adds ? *out + sum : sum;
}

extern "C" void moec_cuda_combination_run(struct moec_gpu_stream *stream,
                                          const struct moec_cuda_combination *combination)
{
    if (combination->n_tok > 0 && combination->n > 0)
        MOEC_CUDA_LAUNCH(combination_kernel, grid_of(combination->n_tok, combination->n), stream,
                         *combination);
}

/* ---- rotations ---- */

__global__ static void rotation_kernel(struct moec_cuda_rotation rotation)
{
    const uint32_t at = own_column(), n = rotation.n_pair;
    if (at >= rotation.n_head * n)
        return;
    const float *angles = rotation.angles + (size_t)blockIdx.x * 2 * n;
    const uint32_t head = at / n, i = at % n;
    float *x = row_of(rotation.x, blockIdx.x) + (size_t)head * rotation.head_dim + i;
    const float a = x[0], b = x[n], cosine = angles[i], sine = angles[n + i];
    x[0] = a * cosine - b * sine;
    x[n] = b * cosine + a * sine;
}

extern "C" void moec_cuda_rotation_run(struct moec_gpu_stream *stream,
                                       const struct moec_cuda_rotation *rotation)
{
    if (rotation->n_tok > 0 && rotation->n_head * rotation->n_pair > 0)
        MOEC_CUDA_LAUNCH(rotation_kernel, grid_of(rotation->n_tok, rotation->n_head * rotation->n_pair),
                         stream, *rotation);
}
