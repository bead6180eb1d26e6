/* Routers: a block for each token makes scores of its logits, finds the best experts and weighs them. */
#include "formats/base/elementary_both.h"
#include "runtime/cuda/kernels/lanes.cuh"
#include "runtime/kernels/kernels_exp.h"

#define SOFT_SUM  1e-6f
#define LEAST_SUM 1e-20f
#define NOBODY    0xffffffffu

/* ---- scores ---- */

/* softmax of n values, in place: one half warp. */
template <typename VALUES> __device__ static void softmax(VALUES &values, uint32_t n)
{
    float lane = -INFINITY;
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES)
        lane = values[i] > lane ? values[i] : lane;
    const float max = lanes_max(lane);
    lane = 0;
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES) {
        const float e = moec_canonical_exp(values[i] - max);
        values[i] = e;
        lane = lane + e;
    }
    const float sum = lanes_sum(lane);
    for (uint32_t i = lane_of_half(); i < n; i += MOEC_CUDA_LANES)
        values[i] = values[i] / sum;
}

/* From 20 on log(1 + e^x) is x, as in torch. */
__device__ static float root_softplus(float value)
{
    const double x = (double)value;
    return (float)sqrt(x > 20 ? x : moec_log_both(1 + moec_exp_both(x)));
}

__device__ static void score(const struct moec_cuda_router &router, float *scores)
{
    if (router.kind == MOEC_CUDA_ROUTER_SOFTMAX && half_of_block() == 0)
        softmax(scores, router.n_expert);
    for (uint32_t e = threadIdx.x; e < router.n_expert; e += MOEC_CUDA_BLOCK) {
        if (router.kind == MOEC_CUDA_ROUTER_SIGMOID)
            scores[e] = 1.0f / (1.0f + moec_canonical_exp(-scores[e]));
        else if (router.kind == MOEC_CUDA_ROUTER_ROOT_SOFTPLUS)
            scores[e] = root_softplus(scores[e]);
    }
}

/* ---- groups ---- */

/* What a group is chosen by, from what its experts are compared by. */
template <typename VALUES>
__device__ static float group_score(const struct moec_cuda_router &router, VALUES &values, uint32_t first,
                                    uint32_t n)
{
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t e = first; e < first + n; e++) {
        const float value = values[e];
        if (value > best) {
            second = best;
            best = value;
        } else if (value > second) {
            second = value;
        }
    }
    return router.group_score == MOEC_CUDA_GROUP_BEST_TWO ? best + second : best;
}

/* Experts outside the best groups compare as minus infinity. */
template <typename VALUES, typename SCORES>
__device__ static void keep_groups(const struct moec_cuda_router &router, VALUES &compared, SCORES &scores)
{
    const uint32_t size = router.n_expert / router.n_group;
    for (uint32_t g = threadIdx.x; g < router.n_group; g += MOEC_CUDA_BLOCK)
        scores[g] = group_score(router, compared, g * size, size);
    __syncthreads();
    for (uint32_t g = threadIdx.x; g < router.n_group; g += MOEC_CUDA_BLOCK) {
        uint32_t n_better = 0;
        for (uint32_t other = 0; other < router.n_group; other++)
            n_better += scores[other] > scores[g] || (scores[other] == scores[g] && other < g);
        for (uint32_t e = g * size; e < (g + 1) * size && n_better >= router.n_top_group; e++)
            compared[e] = -INFINITY;
    }
    __syncthreads();
}

/* ---- the choice ---- */

/* Expert e before another in the order of the choice: a higher value, or the same and a lower number. */
__device__ static __forceinline__ bool is_before(float value, uint32_t e, float other_value, uint32_t other)
{
    return e != NOBODY && (other == NOBODY || value > other_value || (value == other_value && e < other));
}

/* The best of all that are not taken (NaN), in every thread. */
template <typename COMPARED, typename VALUES, typename PLACES>
__device__ static uint32_t find_best(uint32_t n, COMPARED &compared, VALUES &values, PLACES &places)
{
    const uint32_t own = threadIdx.x;
    float best = 0;
    uint32_t place = NOBODY;
    for (uint32_t e = own; e < n; e += MOEC_CUDA_BLOCK) {
        const float value = compared[e];
        if (value == value && is_before(value, e, best, place)) {
            best = value;
            place = e;
        }
    }
    values[own] = best;
    places[own] = place;
    __syncthreads();
    for (uint32_t width = MOEC_CUDA_BLOCK / 2; width > 0; width /= 2) {
        if (own < width && is_before(values[own + width], places[own + width], values[own], places[own])) {
            values[own] = values[own + width];
            places[own] = places[own + width];
        }
        __syncthreads();
    }
    const uint32_t found = places[0];
    __syncthreads();
    return found;
}

/* The experts of a table, the highest score first, ties to the lower number: one thread. */
__device__ static void order_given(const uint32_t *given, uint32_t k, const float *scores, uint32_t *experts)
{
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t expert = given[i];
        uint32_t at = i;
        for (; at > 0 && (scores[experts[at - 1]] < scores[expert] ||
                          (scores[experts[at - 1]] == scores[expert] && experts[at - 1] > expert));
             at--)
            experts[at] = experts[at - 1];
        experts[at] = expert;
    }
}

/* ---- weights ---- */

/* The weight of experts[rank]: its share among those that the ranks before it left. */
__device__ static float mixed_share(const struct moec_cuda_router &router, const float *logits,
                                    const uint32_t *experts, uint32_t rank)
{
    const float own = logits[experts[rank]];
    float sum = 0;
    for (uint32_t e = 0; e < router.n_expert; e++) {
        bool is_left = true;
        for (uint32_t before = 0; before < rank; before++)
            is_left = is_left && experts[before] != e;
        const float size = fabsf(logits[e]), range = size < own ? own : size;
        if (is_left && !((own - logits[e]) / range > 2 * router.jitter))
            sum = sum + moec_canonical_exp(logits[e] - own);
    }
    return 1.0f / sum;
}

template <typename KEPT>
__device__ static void divide_by_sum(const struct moec_cuda_router &router, KEPT &kept)
{
    float sum = 0;
    for (uint32_t i = 0; i < router.top_k; i++)
        sum = sum + kept[i];
    const bool has_least = router.kind == MOEC_CUDA_ROUTER_SIGMOID ||
                           router.kind == MOEC_CUDA_ROUTER_ROOT_SOFTPLUS ||
                           router.kind == MOEC_CUDA_ROUTER_SIGMOID_CHOSEN;
    sum = sum + (router.has_soft_sum ? SOFT_SUM : has_least ? LEAST_SUM : 0);
    for (uint32_t i = 0; i < router.top_k && sum != 0; i++)
        kept[i] = kept[i] / sum;
}

template <typename KEPT>
__device__ static void weigh(const struct moec_cuda_router &router, const float *scores,
                             const uint32_t *experts, KEPT &kept, float *weights)
{
    for (uint32_t rank = threadIdx.x; rank < router.top_k; rank += MOEC_CUDA_BLOCK) {
        kept[rank] = router.kind == MOEC_CUDA_ROUTER_SPARSEMIXER ? mixed_share(router, scores, experts, rank)
                                                                 : scores[experts[rank]];
        if (router.kind == MOEC_CUDA_ROUTER_SIGMOID_CHOSEN)
            kept[rank] = 1.0f / (1.0f + moec_canonical_exp(-kept[rank]));
    }
    __syncthreads();
    if (router.kind == MOEC_CUDA_ROUTER_SOFTMAX_CHOSEN && half_of_block() == 0)
        softmax(kept, router.top_k);
    __syncthreads();
    if (router.norms_weights && threadIdx.x == 0)
        divide_by_sum(router, kept);
    __syncthreads();
    for (uint32_t rank = threadIdx.x; rank < router.top_k; rank += MOEC_CUDA_BLOCK) {
        float weight = kept[rank];
        if (router.scale != 0)
            weight = weight * router.scale;
        if (router.expert_scale != NULL)
            weight = weight * router.expert_scale[experts[rank]];
        weights[rank] = weight;
    }
}

__global__ static void router_kernel(struct moec_cuda_router router)
{
    MOEC_CUDA_SHARED(float, compared, MOEC_CUDA_MAX_EXPERTS);
    MOEC_CUDA_SHARED(float, group_scores, MOEC_CUDA_MAX_EXPERTS);
    MOEC_CUDA_SHARED(float, values, MOEC_CUDA_BLOCK);
    MOEC_CUDA_SHARED(uint32_t, places, MOEC_CUDA_BLOCK);
    MOEC_CUDA_SHARED(float, kept, MOEC_CUDA_MAX_TOP_K);
    const size_t token = blockIdx.x;
    float *scores = router.scores + token * router.scores_stride;
    uint32_t *experts = router.experts + token * router.top_k;
    score(router, scores);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < router.n_expert && router.given == NULL; e += MOEC_CUDA_BLOCK)
        compared[e] = scores[e] + (router.choice_bias != NULL ? router.choice_bias[e] : 0);
    __syncthreads();
    if (router.n_group > 0 && router.given == NULL)
        keep_groups(router, compared, group_scores);
    for (uint32_t e = threadIdx.x; e < router.n_expert && router.given == NULL; e += MOEC_CUDA_BLOCK)
        compared[e] = compared[e] == compared[e] ? compared[e] : -INFINITY;
    __syncthreads();
    for (uint32_t rank = 0; rank < router.top_k && router.given == NULL; rank++) {
        const uint32_t best = find_best(router.n_expert, compared, values, places);
        if (threadIdx.x == 0) {
            experts[rank] = best;
            compared[best] = NAN;
        }
        __syncthreads();
    }
    if (router.given != NULL && threadIdx.x == 0)
        order_given(router.given + token * router.top_k, router.top_k, scores, experts);
    __syncthreads();
    weigh(router, scores, experts, kept, router.weights + token * router.top_k);
}

extern "C" void moec_cuda_router_run(struct moec_gpu_stream *stream, const struct moec_cuda_router *router)
{
    if (router->n_tok > 0)
        MOEC_CUDA_LAUNCH(router_kernel, dim3(router->n_tok), stream, *router);
}
