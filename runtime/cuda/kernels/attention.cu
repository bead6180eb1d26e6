/* Attention over chunks of positions, as runtime/forward/attention/attention.c has it: a block for a token and
 * some of the heads that share a key and a value goes through the chunks in order. Half warps make a chunk's
 * scores, a position each; then a head each, they find its maximum and total; then threads add values, a
 * column each. */
#include "runtime/cuda/kernels/lanes.cuh"
#include "runtime/kernels/kernels_exp.h"

#define HEADS 8 /* of a block, at most */

/* What a block works on. */
struct query {
    const struct moec_cuda_span *span;
    uint32_t position, from, to; /* it sees the positions from .. to - 1 */
    struct {
        uint32_t first, n;
    } heads;
    size_t offset; /* of keys and values in a position's floats */
    const float *q;
    float *out;
};

/* The positions of a chunk that the query sees; none past the last. */
struct visible {
    uint32_t first, n;
};

__device__ static struct query query_of(const struct moec_cuda_attention &attention)
{
    const uint32_t token = blockIdx.x, parts = (attention.heads.group + HEADS - 1) / HEADS;
    const uint32_t group = blockIdx.y / parts, first = blockIdx.y % parts * HEADS;
    const uint32_t window = attention.sight.is_causal ? attention.sight.window : 0,
                   own_chunk = attention.sight.is_causal ? attention.sight.chunk : 0;
    struct query query;
    query.span = &attention.rows.spans[attention.rows.row_span[token]];
    query.position = query.span->first_position + (token - query.span->first_row);
    query.from = own_chunk > 0                            ? query.position / own_chunk * own_chunk
                 : window > 0 && query.position >= window ? query.position - window + 1
                                                          : 0;
    query.to = attention.sight.is_causal ? query.position + 1 : query.span->n_keys;
    query.heads.first = group * attention.heads.group + first;
    query.heads.n = attention.heads.group - first < HEADS ? attention.heads.group - first : HEADS;
    query.offset = group * attention.heads.group_step;
    query.q =
        attention.q.first + token * attention.q.stride + (size_t)query.heads.first * attention.heads.key_dim;
    query.out =
        attention.out.first + token * attention.out.stride + query.heads.first * attention.heads.out_step;
    return query;
}

/* Chunk `number` of those that the query sees something of. */
__device__ static struct visible chunk_of(const struct query &query, uint32_t number)
{
    const uint32_t begin = (query.from / MOEC_CUDA_CHUNK + number) * MOEC_CUDA_CHUNK,
                   end = begin + MOEC_CUDA_CHUNK;
    const uint32_t first = query.from > begin ? query.from : begin, last = query.to < end ? query.to : end;
    return {first, last > first ? last - first : 0};
}

__device__ static const float *place_of(const struct moec_cuda_attention &attention,
                                        const struct query &query, const float *prefix, const float *own,
                                        uint32_t position)
{
    const uint32_t own_from = query.span->own_from;
    return (position < own_from ? prefix + position * attention.heads.kv_stride
                                : own + (position - own_from) * attention.heads.kv_stride) +
           query.offset;
}

/* q . k, scaled, with the bias of their distance; in all lanes. */
__device__ static float score_of(const struct moec_cuda_attention &attention, const struct query &query,
                                 uint32_t head, uint32_t position)
{
    const float *key = place_of(attention, query, query.span->k_prefix, query.span->k_own, position);
    const float *q = query.q + (size_t)head * attention.heads.key_dim;
    const uint32_t n = attention.heads.key_dim,
                   padded = (n + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    float sum = 0;
#pragma unroll 4
    for (uint32_t i = lane_of_half(); i < padded; i += MOEC_CUDA_LANES)
        sum = fmaf(i < n ? q[i] : 0, i < n ? key[i] : 0, sum);
    sum = lanes_sum(sum);
    if (attention.scores.scale != 0)
        sum = sum * attention.scores.scale;
    if (attention.scores.position_bias != NULL) {
        const int64_t last = (int64_t)attention.scores.bias_width - 1;
        const int64_t distance = (int64_t)position - query.position + attention.scores.bias_limit;
        const int64_t at = distance < 0 ? 0 : distance > last ? last : distance;
        sum =
            sum +
            attention.scores
                .position_bias[(size_t)(query.heads.first + head) * attention.scores.bias_width + (size_t)at];
    }
    return sum;
}

/* The chunk's scores of all heads: MOEC_CUDA_CHUNK places each. */
template <typename SCORES>
__device__ static void make_scores(const struct moec_cuda_attention &attention, const struct query &query,
                                   struct visible chunk, SCORES &scores)
{
    for (uint32_t i = half_of_block(); i < query.heads.n * chunk.n; i += MOEC_CUDA_HALVES) {
        const uint32_t head = i % query.heads.n, at = i / query.heads.n;
        const float score = score_of(attention, query, head, chunk.first + at);
        if (lane_of_half() == 0)
            scores[head * MOEC_CUDA_CHUNK + at] = score;
    }
}

/* The largest of n scores from `first` on: one half warp. */
template <typename SCORES> __device__ static float max_of(SCORES &scores, uint32_t first, uint32_t n)
{
    float lane = -INFINITY;
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES)
        lane = scores[first + i] > lane ? scores[first + i] : lane;
    return lanes_max(lane);
}

/* Scores become their exponentials against `max`; returns their sum: one half warp. */
template <typename SCORES>
__device__ static float exponentiate(SCORES &scores, uint32_t first, uint32_t n, float max)
{
    float lane = 0;
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES) {
        const float e = moec_canonical_exp(scores[first + i] - max);
        scores[first + i] = e;
        lane = lane + e;
    }
    return lanes_sum(lane);
}

/* The chunk's values of a column, weighed. */
template <typename SCORES>
__device__ static float weigh_values(const struct moec_cuda_attention &attention, const struct query &query,
                                     struct visible chunk, SCORES &scores, uint32_t head, uint32_t column)
{
    float part = 0;
#pragma unroll 4
    for (uint32_t at = 0; at < chunk.n; at++)
        part = fmaf(
            scores[head * MOEC_CUDA_CHUNK + at],
            place_of(attention, query, query.span->v_prefix, query.span->v_own, chunk.first + at)[column],
            part);
    return part;
}

/* A head's maximum and total so far, and what its sum is to be scaled by. */
struct running_softmax {
    float max, total, shrink;
};

__device__ static struct running_softmax begin_softmax(const struct moec_cuda_attention &attention,
                                                       uint32_t head)
{
    if (attention.scores.sinks == NULL)
        return {-INFINITY, 0, 1};
    return {attention.scores.sinks[head], 1, 1}; /* e^(sink - sink) */
}

/* Before a chunk whose largest score is `max` is counted. */
__device__ static void raise_max(struct running_softmax &to, float max)
{
    to.shrink = 1;
    if (max > to.max && to.total > 0) {
        to.shrink = moec_canonical_exp(to.max - max);
        to.total = to.total * to.shrink;
    }
    if (max > to.max)
        to.max = max;
}

__global__ static void attention_kernel(struct moec_cuda_attention attention)
{
    MOEC_CUDA_SHARED(float, scores, HEADS *MOEC_CUDA_CHUNK);
    MOEC_CUDA_SHARED(float, shrinks, HEADS);
    MOEC_CUDA_SHARED(float, totals, HEADS);
    const struct query query = query_of(attention);
    const uint32_t half = half_of_block(), value_dim = attention.heads.value_dim;
    struct running_softmax
        running[(HEADS + MOEC_CUDA_HALVES - 1) / MOEC_CUDA_HALVES]; /* of the half warp's heads */
    for (uint32_t head = half, i = 0; head < query.heads.n; head += MOEC_CUDA_HALVES, i++) {
        running[i] = begin_softmax(attention, query.heads.first + head);
        if (lane_of_half() == 0)
            totals[head] = running[i].total;
    }
    for (uint32_t i = threadIdx.x; i < query.heads.n * value_dim; i += MOEC_CUDA_BLOCK)
        query.out[i / value_dim * attention.heads.out_step + i % value_dim] = 0;
    __syncthreads();
    uint32_t number = 0;
    for (struct visible chunk = chunk_of(query, 0); chunk.n > 0; chunk = chunk_of(query, ++number)) {
        make_scores(attention, query, chunk, scores);
        __syncthreads();
        for (uint32_t head = half, i = 0; head < query.heads.n; head += MOEC_CUDA_HALVES, i++) {
            const uint32_t first = head * MOEC_CUDA_CHUNK;
            raise_max(running[i], max_of(scores, first, chunk.n));
            running[i].total = running[i].total + exponentiate(scores, first, chunk.n, running[i].max);
            if (lane_of_half() == 0) {
                shrinks[head] = running[i].shrink;
                totals[head] = running[i].total;
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < query.heads.n * value_dim; i += MOEC_CUDA_BLOCK) {
            const uint32_t head = i / value_dim, column = i % value_dim;
            const float part = weigh_values(attention, query, chunk, scores, head, column);
            float *out = query.out + head * attention.heads.out_step + column;
            *out = *out * shrinks[head] + part;
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < query.heads.n * value_dim; i += MOEC_CUDA_BLOCK) {
        float *out = query.out + i / value_dim * attention.heads.out_step + i % value_dim;
        *out = *out / totals[i / value_dim];
    }
}

extern "C" void moec_cuda_attention_run(struct moec_gpu_stream *stream,
                                        const struct moec_cuda_attention *attention)
{
    if (attention->rows.n_tok == 0 || attention->heads.n_head == 0)
        return;
    const uint32_t n_part =
        attention->heads.n_head / attention->heads.group * moec_cuda_blocks(attention->heads.group, HEADS);
    MOEC_CUDA_LAUNCH(attention_kernel, dim3(attention->rows.n_tok, n_part), stream, *attention);
}
