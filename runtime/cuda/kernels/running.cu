/* Layers that keep a state (runtime/forward/attention/running.c): a thread for each channel of a convolution, and for
 * each column of a value head's matrix, passes the tokens of its sequence in order. */
#include "formats/base/elementary_both.h"
#include "runtime/cuda/kernels/lanes.cuh"
#include "runtime/kernels/kernels_exp.h"

/* ---- convolution ---- */

/* The rows of one channel that stand before the one at work, the oldest first. */
struct channel_tail {
    float rows[MOEC_CUDA_MAX_CONVOLUTION];
    uint32_t n;
};

__device__ static void store_tail(const struct channel_tail &tail, uint32_t n_channel, float *state)
{
    for (uint32_t i = 0; i < tail.n; i++)
        state[(size_t)i * n_channel] = tail.rows[i];
}

__global__ static void convolution_kernel(struct moec_cuda_convolution convolution)
{
    const struct moec_cuda_state &state = convolution.states.each[blockIdx.y];
    const uint32_t channel = blockIdx.x * MOEC_CUDA_BLOCK + threadIdx.x, n_channel = convolution.n_channel;
    if (channel >= n_channel)
        return;
    struct channel_tail tail;
    tail.n = convolution.conv_size - 1;
    for (uint32_t i = 0; i < tail.n; i++)
        tail.rows[i] = state.state_in != NULL ? state.state_in[(size_t)i * n_channel + channel] : 0;
    for (uint32_t t = 0; t < state.n_rows; t++) {
        float *at = convolution.x.first + (state.first_row + t) * convolution.x.stride + channel;
        float sum = convolution.bias != NULL ? convolution.bias[channel] : 0;
        if (t == state.n_before_copy && state.state_copy != NULL)
            store_tail(tail, n_channel, state.state_copy + channel);
        tail.rows[tail.n] = *at;
        for (uint32_t i = 0; i <= tail.n; i++)
            sum = sum + convolution.weights.first[i * convolution.weights.stride + channel] * tail.rows[i];
        for (uint32_t i = 0; i < tail.n; i++)
            tail.rows[i] = tail.rows[i + 1];
        *at = convolution.has_silu ? moec_canonical_silu(sum) * 1.0f : sum;
    }
    store_tail(tail, n_channel, state.state_out + channel);
}

extern "C" void moec_cuda_convolution_run(struct moec_gpu_stream *stream,
                                          const struct moec_cuda_convolution *convolution)
{
    if (convolution->states.n > 0 && convolution->n_channel > 0)
        MOEC_CUDA_LAUNCH(
            convolution_kernel,
            dim3(moec_cuda_blocks(convolution->n_channel, MOEC_CUDA_BLOCK), convolution->states.n), stream,
            *convolution);
}

/* ---- rates and decays ---- */

/* log(1 + e^x); from 20 on x, as in torch. */
__device__ static double softplus(double x)
{
    return x > 20 ? x : moec_log_both(1 + moec_exp_both(x));
}

__global__ static void rates_kernel(struct moec_cuda_rates rates)
{
    const uint32_t head = blockIdx.y * MOEC_CUDA_BLOCK + threadIdx.x, n = rates.decay.n;
    if (head >= rates.n_head)
        return;
    float *rate = rates.rates + blockIdx.x * rates.stride + head;
    float *decay = rates.decays + blockIdx.x * rates.stride + (size_t)head * n;
    const float *bias = rates.decay.bias + (size_t)head * n;
    const double factor = moec_exp_both((double)rates.decay.log[head]);
    if (!rates.is_space)
        *rate = 1.0f / (1.0f + moec_canonical_exp(-*rate));
    for (uint32_t i = 0; i < n; i++) {
        const double step = softplus((double)(decay[i] + bias[i]));
        const double least = (double)rates.step_min, dt = step > least ? step : least;
        if (rates.is_space)
            *rate = (float)dt;
        decay[i] = (float)moec_exp_both(-factor * dt);
    }
}

extern "C" void moec_cuda_rates_run(struct moec_gpu_stream *stream, const struct moec_cuda_rates *rates)
{
    if (rates->n_tok > 0 && rates->n_head > 0)
        MOEC_CUDA_LAUNCH(rates_kernel, dim3(rates->n_tok, moec_cuda_blocks(rates->n_head, MOEC_CUDA_BLOCK)),
                         stream, *rates);
}

/* ---- matrices ---- */

/* The sum over i of h[i] S[i], in chunks; rows of S are `step` floats apart. */
__device__ static float sum_state(const float *h, const float *s, uint32_t n, size_t step)
{
    float sum = 0;
    for (uint32_t first = 0; first < n; first += MOEC_CUDA_CHUNK) {
        const uint32_t end = n - first < MOEC_CUDA_CHUNK ? n : first + MOEC_CUDA_CHUNK;
        float part = 0;
#pragma unroll 4
        for (uint32_t i = first; i < end; i++)
            part = fmaf(h[i], s[i * step], part);
        sum = first == 0 ? part : sum + part;
    }
    return sum;
}

/* One token passes a column of a head's matrix. */
__device__ static void pass_token(const struct moec_cuda_recurrence &recurrence, uint32_t head, float *row,
                                  float *v, float *s, size_t step)
{
    const uint32_t dim = recurrence.heads.key_dim,
                   key_head = head / (recurrence.heads.n_head / recurrence.heads.n_key_head);
    const float *q = row + recurrence.at.queries + (size_t)key_head * dim,
                *k = row + recurrence.at.keys + (size_t)key_head * dim;
    const float *decay = row + recurrence.at.decays + (size_t)head * recurrence.heads.n_decay;
    for (uint32_t i = 0; i < dim; i++)
        s[i * step] = s[i * step] * decay[recurrence.heads.n_decay > 1 ? i : 0];
    const float seen = recurrence.skip == NULL ? sum_state(k, s, dim, step) : 0;
    const float delta = row[recurrence.at.rates + head] * (*v - seen);
    for (uint32_t i = 0; i < dim; i++)
        s[i * step] = fmaf(k[i], delta, s[i * step]);
    const float out = sum_state(q, s, dim, step);
    *v = recurrence.skip == NULL ? out : out + recurrence.skip[head] * *v;
}

/* Columns up to whole lanes are copied, those of values alone are passed. */
__global__ static void recurrence_kernel(struct moec_cuda_recurrence recurrence)
{
    const struct moec_cuda_state &state = recurrence.states.each[blockIdx.z];
    const uint32_t column = blockIdx.x * MOEC_CUDA_BLOCK + threadIdx.x, head = blockIdx.y,
                   dim = recurrence.heads.key_dim;
    const size_t step =
        ((size_t)recurrence.heads.value_dim + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    const size_t first = recurrence.state_offset + (size_t)head * dim * step + column;
    if (column >= step)
        return;
    float *s = state.state_out + first;
    for (uint32_t i = 0; i < dim; i++)
        s[i * step] = state.state_in != NULL ? state.state_in[first + i * step] : 0;
    for (uint32_t t = 0; t < state.n_rows; t++) {
        float *row = recurrence.x.first + (state.first_row + t) * recurrence.x.stride;
        for (uint32_t i = 0; i < dim && t == state.n_before_copy && state.state_copy != NULL; i++)
            state.state_copy[first + i * step] = s[i * step];
        if (column < recurrence.heads.value_dim)
            pass_token(recurrence, head, row,
                       row + recurrence.at.values + (size_t)head * recurrence.heads.value_dim + column, s,
                       step);
    }
}

extern "C" void moec_cuda_recurrence_run(struct moec_gpu_stream *stream,
                                         const struct moec_cuda_recurrence *recurrence)
{
    const uint32_t n_blocks =
        moec_cuda_blocks((uint64_t)recurrence->heads.value_dim + MOEC_CUDA_LANES - 1, MOEC_CUDA_BLOCK);
    if (recurrence->states.n > 0 && recurrence->heads.n_head > 0 && recurrence->heads.value_dim > 0)
        MOEC_CUDA_LAUNCH(recurrence_kernel, dim3(n_blocks, recurrence->heads.n_head, recurrence->states.n),
                         stream, *recurrence);
}

/* ---- gates ---- */

__global__ static void gating_kernel(struct moec_cuda_gating gating)
{
    const uint32_t i = blockIdx.y * MOEC_CUDA_BLOCK + threadIdx.x;
    if (i >= gating.n)
        return;
    const float gate = row_of(gating.gate, blockIdx.x)[i];
    float *y = row_of(gating.y, blockIdx.x) + i;
    *y =
        gating.is_sigmoid ? *y * (1.0f / (1.0f + moec_canonical_exp(-gate))) : moec_canonical_silu(gate) * *y;
}

extern "C" void moec_cuda_gating_run(struct moec_gpu_stream *stream, const struct moec_cuda_gating *gating)
{
    if (gating->n_tok > 0 && gating->n > 0)
        MOEC_CUDA_LAUNCH(gating_kernel, dim3(gating->n_tok, moec_cuda_blocks(gating->n, MOEC_CUDA_BLOCK)),
                         stream, *gating);
}
