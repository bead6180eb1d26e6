/* Attention over chunks of positions, as runtime/forward/attention.c has it: a block for a token and some of
 * the heads that share a key and a value, which goes through the chunks in order. Half warps make scores, a
 * position each; then a head each, they fold the chunk into its maximum and total; then threads add values, a
 * column each. */
#include "runtime/cuda/kernels/lanes.cuh"
#include "runtime/kernels/kernels_exp.h"

#define HEADS 8 /* of a block, at most */

/* What a block works on. */
struct query {
    const struct moec_cuda_span *span;
    uint32_t position;
    uint32_t first_head, n_head;
    size_t offset; /* of keys and values in a position's floats */
    const float *q;
    float *out;
};

/* A chunk's positions that the query sees. */
struct visible {
    uint32_t first, n;
};

__device__ static struct query query_of(const struct moec_cuda_attention &attention)
{
    const uint32_t token = blockIdx.x, parts = (attention.group + HEADS - 1) / HEADS;
    const uint32_t group = blockIdx.y / parts, first = blockIdx.y % parts * HEADS;
    struct query query;
    query.span = &attention.spans[attention.row_span[token]];
    query.position = query.span->first_position + (token - query.span->first_row);
    query.first_head = group * attention.group + first;
    query.n_head = attention.group - first < HEADS ? attention.group - first : HEADS;
    query.offset = group * attention.group_step;
    query.q = attention.q + token * attention.q_stride + (size_t)query.first_head * attention.key_dim;
    query.out = attention.out + token * attention.out_stride + query.first_head * attention.out_step;
    return query;
}

__device__ static const float *place_of(const struct moec_cuda_attention &attention,
                                        const struct query &query, const float *prefix, const float *own,
                                        uint32_t position)
{
    const uint32_t own_from = query.span->own_from;
    return (position < own_from ? prefix + position * attention.kv_stride
                                : own + (position - own_from) * attention.kv_stride) +
           query.offset;
}

/* q . k, scaled, with the bias of their distance; in all lanes. */
__device__ static float score_of(const struct moec_cuda_attention &attention, const struct query &query,
                                 uint32_t head, uint32_t position)
{
    const float *key = place_of(attention, query, query.span->k_prefix, query.span->k_own, position);
    const float *q = query.q + (size_t)head * attention.key_dim;
    const uint32_t n = attention.key_dim,
                   padded = (n + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    float sum = 0;
#pragma unroll 4
    for (uint32_t i = lane_of_half(); i < padded; i += MOEC_CUDA_LANES)
        sum = fmaf(i < n ? q[i] : 0, i < n ? key[i] : 0, sum);
    sum = lanes_sum(sum);
    if (attention.scale != 0)
        sum = sum * attention.scale;
    if (attention.position_bias != NULL) {
        const int64_t last = (int64_t)attention.bias_width - 1;
        const int64_t distance = (int64_t)position - query.position + attention.bias_limit;
        const int64_t at = distance < 0 ? 0 : distance > last ? last : distance;
        sum = sum +
              attention.position_bias[(size_t)(query.first_head + head) * attention.bias_width + (size_t)at];
    }
    return sum;
}

/* The running maximum and total of a head, and what its sum is to be scaled by. */
struct running_softmax {
    float max, total, shrink;
};

/* Folds n scores, which become their exponentials, into `to`: one half warp. */
template <typename SCORES>
__device__ static void fold_scores(SCORES &scores, uint32_t first, uint32_t n, struct running_softmax &to)
{
    float lane = -INFINITY;
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES)
        lane = scores[first + i] > lane ? scores[first + i] : lane;
    const float max = lanes_max(lane);
    to.shrink = 1;
    if (max > to.max && to.total > 0) {
        to.shrink = moec_canonical_exp(to.max - max);
        to.total = to.total * to.shrink;
    }
    if (max > to.max)
        to.max = max;
    lane = 0;
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES) {
        const float e = moec_canonical_exp(scores[first + i] - to.max);
        scores[first + i] = e;
        lane = lane + e;
    }
    to.total = to.total + lanes_sum(lane);
}

__device__ static uint32_t first_visible(const struct moec_cuda_attention &attention, uint32_t position)
{
    const uint32_t window = attention.is_causal ? attention.window : 0;
    return window > 0 && position >= window ? position - window + 1 : 0;
}

__global__ static void attention_kernel(struct moec_cuda_attention attention)
{
    MOEC_CUDA_SHARED(float, scores, HEADS *MOEC_CUDA_CHUNK);
    MOEC_CUDA_SHARED(float, shrinks, HEADS);
    MOEC_CUDA_SHARED(float, totals, HEADS);
    const struct query query = query_of(attention);
    const uint32_t half = half_of_block(), n_half = MOEC_CUDA_HALVES, value_dim = attention.value_dim;
    const uint32_t from = first_visible(attention, query.position);
    const uint32_t to = attention.is_causal ? query.position + 1 : query.span->n_keys;
    struct running_softmax folded[(HEADS + n_half - 1) / n_half]; /* of heads half, half + n_half, .. */
    for (uint32_t head = half, i = 0; head < query.n_head; head += n_half, i++) {
        const bool has_sink = attention.sinks != NULL;
        folded[i].max = has_sink ? attention.sinks[query.first_head + head] : -INFINITY;
        folded[i].total = has_sink ? 1 : 0; /* e^(sink - sink) */
        if (lane_of_half() == 0)
            totals[head] = folded[i].total;
    }
    for (uint32_t i = threadIdx.x; i < query.n_head * value_dim; i += MOEC_CUDA_BLOCK)
        query.out[i / value_dim * attention.out_step + i % value_dim] = 0;
    __syncthreads();
    for (uint32_t chunk = from / MOEC_CUDA_CHUNK * MOEC_CUDA_CHUNK; chunk < to; chunk += MOEC_CUDA_CHUNK) {
        const uint32_t first = from > chunk ? from : chunk;
        const uint32_t n = (to - chunk < MOEC_CUDA_CHUNK ? to : chunk + MOEC_CUDA_CHUNK) - first;
        for (uint32_t i = half; i < query.n_head * n; i += n_half) {
            const uint32_t head = i % query.n_head, at = i / query.n_head;
            const float score = score_of(attention, query, head, first + at);
            if (lane_of_half() == 0)
                scores[head * MOEC_CUDA_CHUNK + at] = score;
        }
        __syncthreads();
        for (uint32_t head = half, i = 0; head < query.n_head; head += n_half, i++) {
            fold_scores(scores, head * MOEC_CUDA_CHUNK, n, folded[i]);
            if (lane_of_half() == 0) {
                shrinks[head] = folded[i].shrink;
                totals[head] = folded[i].total;
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < query.n_head * value_dim; i += MOEC_CUDA_BLOCK) {
            const uint32_t head = i / value_dim, column = i % value_dim;
            float part = 0;
#pragma unroll 4
            for (uint32_t at = 0; at < n; at++)
                part = fmaf(
                    scores[head * MOEC_CUDA_CHUNK + at],
                    place_of(attention, query, query.span->v_prefix, query.span->v_own, first + at)[column],
                    part);
            float *out = query.out + head * attention.out_step + column;
            *out = *out * shrinks[head] + part;
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < query.n_head * value_dim; i += MOEC_CUDA_BLOCK) {
        float *out = query.out + i / value_dim * attention.out_step + i % value_dim;
        *out = *out / totals[i / value_dim];
    }
}

extern "C" void moec_cuda_attention_run(struct moec_gpu_stream *stream,
                                        const struct moec_cuda_attention *attention)
{
    if (attention->n_tok == 0 || attention->n_head == 0)
        return;
    const uint32_t n_group = attention->n_head / attention->group;
    MOEC_CUDA_LAUNCH(attention_kernel,
                     dim3(attention->n_tok, n_group * moec_cuda_blocks(attention->group, HEADS)), stream,
                     *attention);
}
