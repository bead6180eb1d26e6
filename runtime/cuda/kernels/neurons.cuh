/* What MLPs make of their products, in either arithmetic: activations, filters of neurons, which pair of
 * token and rank is which row. */
#ifndef MOEC_RUNTIME_CUDA_NEURONS_CUH
#define MOEC_RUNTIME_CUDA_NEURONS_CUH

#include "runtime/cuda/kernels/quads.cuh"
#include "runtime/kernels/kernels_exp.h"

/* activation(v), as runtime/forward/moe/mlp.c's activate_alone. */
__device__ static float activate_alone(uint8_t activation, float v)
{
    if (activation == MOEC_CUDA_ACTIVATION_RELU || activation == MOEC_CUDA_ACTIVATION_RELU_SQUARED) {
        v = v < 0 ? 0 : v;
        return activation == MOEC_CUDA_ACTIVATION_RELU ? v : v * v;
    }
    const float z = activation == MOEC_CUDA_ACTIVATION_SILU
                        ? -v
                        : -1.59576912160573f * (0.044715f * v * v * v + v); /* GELU by tanh */
    return v / (1.0f + moec_canonical_exp(z));
}

__device__ static __forceinline__ float clamped(float value, float low, float high)
{
    return value > high ? high : value < low ? low : value;
}

/* Whether a filter leaves out what it compares at a projection; at the up product, see leaves_up. */
__device__ static __forceinline__ bool leaves_out(const struct moec_cuda_mlp_job &job, uint8_t at,
                                                  float value)
{
    return job.filter.is_set && job.filter.at == at && fabsf(value) < job.filter.threshold;
}

__device__ static float activate_gated(const struct moec_cuda_mlp_job &job, uint8_t activation, float gate,
                                       float up)
{
    const bool is_clamped = activation == MOEC_CUDA_ACTIVATION_CLAMPED_SILU;
    if (is_clamped) {
        gate = clamped(gate, -INFINITY, 10.0f);
        up = clamped(up, -10.0f, 10.0f);
    }
    float value;
    if (is_clamped || activation == MOEC_CUDA_ACTIVATION_SILU) {
        const float silu = moec_canonical_silu(gate);
        if (leaves_out(job, MOEC_CUDA_GATE, silu))
            up = 0;
        value = silu * up;
    } else if (activation == MOEC_CUDA_ACTIVATION_CLAMPED_GLU) {
        gate = gate > 7.0f ? 7.0f : gate;
        const float e = moec_canonical_exp(-(1.702f * gate));
        value = (clamped(up, -7.0f, 7.0f) + 1.0f) * (gate / (1.0f + e));
    } else {
        value = activate_alone(activation, gate);
        value = leaves_out(job, MOEC_CUDA_GATE, value) ? 0 : value;
        value = value * up;
    }
    return leaves_out(job, MOEC_CUDA_DOWN, value) ? 0 : value;
}

__device__ static float activate_plain(const struct moec_cuda_mlp_job &job, uint8_t activation, float up)
{
    const float value = activate_alone(activation, up);
    return leaves_out(job, MOEC_CUDA_DOWN, value) ? 0 : value;
}

/* Whether a filter of the up product leaves out neuron n of row i of a job. */
__device__ static __forceinline__ bool leaves_up(const struct moec_cuda_mlp &mlp,
                                                 const struct moec_cuda_mlp_job &job, uint32_t i, uint32_t n,
                                                 float up)
{
    if (!job.filter.is_set || job.filter.at != MOEC_CUDA_UP)
        return false;
    const float scale = job.filter.scales != NULL ? moec_bf16_to_f32(job.filter.scales[n]) : 1;
    return fabsf(up) * scale <
           (mlp.filtered.limits != NULL ? mlp.filtered.limits[job.first + i] : job.filter.threshold);
}

/* Whether neurons that the up product leaves out need no other product. */
__device__ static __forceinline__ bool skips_neurons(const struct moec_cuda_mlp_job &job, uint8_t activation)
{
    return job.filter.is_set && job.filter.at == MOEC_CUDA_UP && job.gate.matrix.rows > 0 &&
           job.up.bias == NULL && activation != MOEC_CUDA_ACTIVATION_CLAMPED_GLU;
}

__device__ static __forceinline__ uint32_t pair_of(const struct moec_cuda_mlp &mlp,
                                                   const struct moec_cuda_mlp_job &job, uint32_t i)
{
    return mlp.pairs.list != NULL ? mlp.pairs.list[job.first + i] : job.first + i;
}

/* What the down projection reads of one neuron and row. With is_idle its gate was not computed. */
__device__ static __forceinline__ float neuron_of(const struct moec_cuda_mlp &mlp,
                                                  const struct moec_cuda_mlp_job &job, uint32_t row,
                                                  uint32_t neuron, bool is_idle, float up, float gate)
{
    const bool has_gate = job.gate.matrix.rows > 0;
    if (job.up.bias != NULL)
        up = up + job.up.bias[neuron];
    if (has_gate && job.gate.bias != NULL)
        gate = gate + job.gate.bias[neuron];
    if (leaves_up(mlp, job, row, neuron, up))
        up = 0;
    else if (mlp.filtered.n_active != NULL)
        atomicAdd(&mlp.filtered.n_active[blockIdx.z], 1);
    if (is_idle)
        return 0;
    return has_gate ? activate_gated(job, mlp.shape.activation, gate, up)
                    : activate_plain(job, mlp.shape.activation, up);
}

__device__ static __forceinline__ float *output_of(const struct moec_cuda_mlp &mlp,
                                                   const struct moec_cuda_mlp_job &job, uint32_t i)
{
    return mlp.out.first + (pair_of(mlp, job, i) - mlp.pairs.first) * mlp.out.stride;
}

#endif
