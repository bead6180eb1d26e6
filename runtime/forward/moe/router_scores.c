/* The columns of `kinds` say what each router does, so a new one is a row. Groups are ranked by counting the
 * better ones; in the others each bias becomes -infinity, and the choice itself stays as it is. Weights are
 * made as if skipped experts did not exist. Sums go in the order of ranks, and one that is 0 divides
 * nothing. */
#include "runtime/forward/moe/router_scores.h"

#include "formats/base/elementary.h"

#include <math.h>

#define SOFT_SUM 1e-6f

/* What one kind does; n values are changed in place. */
struct kind {
    void (*score)(const struct moec_kernels *kernels, float *values, uint32_t n); /* NULL: logits compare */
    void (*weigh)(const struct moec_kernels *kernels, float *values, uint32_t n); /* NULL: scores weigh */
    void (*share)(const struct moec_kernels *kernels, float *values, uint32_t n);
    bool shares_sum_to_1;
    float least_sum; /* added to what weights are divided by, as the families of this kind do */
};

static void softmax(const struct moec_kernels *kernels, float *values, uint32_t n)
{
    const float sum = kernels->exp_sum(values, kernels->max(values, n), n, values);
    for (uint32_t i = 0; i < n; i++)
        values[i] = values[i] / sum;
}

static void sigmoid(const struct moec_kernels *kernels, float *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        values[i] = -values[i];
    (void)kernels->exp_sum(values, 0, n, values);
    for (uint32_t i = 0; i < n; i++)
        values[i] = 1.0f / (1.0f + values[i]);
}

/* From 20 on log(1 + e^x) is x, as in torch. */
static void root_softplus(const struct moec_kernels *kernels, float *values, uint32_t n)
{
    (void)kernels;
    for (uint32_t i = 0; i < n; i++) {
        const double x = (double)values[i];
        values[i] = (float)sqrt(x > 20 ? x : moec_log_f64(1 + moec_exp_f64(x)));
    }
}

static const struct kind kinds[MOEC_ROUTER_COUNT] = {
    [MOEC_ROUTER_SOFTMAX] = {.score = softmax, .share = softmax, .shares_sum_to_1 = true},
    [MOEC_ROUTER_SIGMOID] = {.score = sigmoid, .share = sigmoid, .least_sum = 1e-20f},
    [MOEC_ROUTER_SOFTMAX_CHOSEN] = {.weigh = softmax, .share = softmax, .shares_sum_to_1 = true},
    [MOEC_ROUTER_SPARSEMIXER] = {.share = softmax, .shares_sum_to_1 = true},
    [MOEC_ROUTER_SIGMOID_CHOSEN] = {.weigh = sigmoid, .share = sigmoid, .least_sum = 1e-20f},
    [MOEC_ROUTER_ROOT_SOFTPLUS] = {.score = root_softplus, .share = root_softplus, .least_sum = 1e-20f},
};

void moec_router_score(const struct moec_config *config, const struct moec_kernels *kernels, float *logits)
{
    const struct kind *kind = &kinds[config->router.kind];
    if (kind->score != NULL)
        kind->score(kernels, logits, moec_config_choices(config));
}

/* What a group is chosen by, from the values of its experts. */
static float group_score(uint8_t kind, const float *values, uint32_t n)
{
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (values[i] > best) {
            second = best;
            best = values[i];
        } else if (values[i] > second) {
            second = values[i];
        }
    }
    return kind == MOEC_GROUP_BEST_TWO ? best + second : best;
}

void moec_router_group(const struct moec_config *config, const float *scores, const float *router_bias,
                       float *bias)
{
    float group_scores[MOEC_MAX_EXPERTS];
    const uint32_t size = config->n_expert / config->router.n_group;
    for (uint32_t e = 0; e < config->n_expert; e++)
        bias[e] = scores[e] + (router_bias != NULL ? router_bias[e] : 0);
    for (uint32_t g = 0; g < config->router.n_group; g++)
        group_scores[g] = group_score(config->router.group_score, bias + (size_t)g * size, size);
    for (uint32_t g = 0; g < config->router.n_group; g++) {
        uint32_t n_better = 0;
        for (uint32_t other = 0; other < config->router.n_group; other++)
            n_better += group_scores[other] > group_scores[g] ||
                        (group_scores[other] == group_scores[g] && other < g);
        for (uint32_t e = g * size; e < (g + 1) * size; e++)
            bias[e] = n_better >= config->router.n_top_group ? -INFINITY
                      : router_bias != NULL                  ? router_bias[e]
                                                             : 0;
    }
}

/* The weight of an expert: its share among those that the n_taken before it left. */
static float mixed_share(const struct moec_config *config, const float *logits, uint32_t expert,
                         const uint32_t *taken, uint32_t n_taken)
{
    const float own = logits[expert];
    float sum = 0;
    for (uint32_t e = 0; e < config->n_expert; e++) {
        bool is_left = true;
        for (uint32_t before = 0; before < n_taken; before++)
            is_left = is_left && taken[before] != e;
        const float size = fabsf(logits[e]), range = size < own ? own : size;
        if (is_left && !((own - logits[e]) / range > 2 * config->router.jitter))
            sum += moec_exp_f32(logits[e] - own);
    }
    return 1.0f / sum;
}

/* Divides n values by their sum; where that is 0 they are left alone. */
static void divide_by_sum(float *values, uint32_t n, float least_sum)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    sum += least_sum;
    for (uint32_t i = 0; i < n && sum != 0; i++)
        values[i] = values[i] / sum;
}

void moec_router_weigh(const struct moec_config *config, const struct moec_kernels *kernels,
                       const float *scores, const uint32_t *experts, const bool *skips, float *weights)
{
    const struct kind *kind = &kinds[config->router.kind];
    const uint32_t k = config->top_k;
    float kept[MOEC_MAX_TOP_K]; /* of those that are not skipped, as if there were no others */
    uint32_t taken[MOEC_MAX_TOP_K], n_kept = 0;
    for (uint32_t rank = 0; rank < k; rank++) {
        if (skips[rank])
            continue;
        const uint32_t expert = experts[rank];
        taken[n_kept] = expert;
        kept[n_kept] = config->router.kind == MOEC_ROUTER_SPARSEMIXER
                           ? mixed_share(config, scores, expert, taken, n_kept)
                           : scores[expert];
        n_kept++;
    }
    if (kind->weigh != NULL && n_kept > 0)
        kind->weigh(kernels, kept, n_kept);
    if (config->router.norm_topk_prob)
        divide_by_sum(kept, n_kept, config->router.soft_sum ? SOFT_SUM : kind->least_sum);
    for (uint32_t i = 0; i < n_kept && config->router.scale != 0; i++)
        kept[i] *= config->router.scale;
    for (uint32_t rank = 0, i = 0; rank < k; rank++)
        weights[rank] = skips[rank] ? 0 : kept[i++];
}

void moec_router_shares(const struct moec_config *config, const struct moec_kernels *kernels,
                        const float *bias, float *logits)
{
    const struct kind *kind = &kinds[config->router.kind];
    const uint32_t n = moec_config_choices(config);
    kind->share(kernels, logits, n);
    if (bias == NULL && kind->shares_sum_to_1)
        return;
    for (uint32_t e = 0; e < n; e++) {
        const float share = logits[e] + (bias != NULL ? bias[e] : 0);
        logits[e] = share > 0 ? share : 0;
    }
    divide_by_sum(logits, n, 0);
}
