#include "runtime/router.h"

#include "runtime/scratch.h"

struct router {
    struct moec_forward *forward;
    const struct moec_layer *layer;
    uint32_t layer_index;
    uint32_t n_tok;
    const float *hidden;
    float *normed;
    const struct moec_routing *routing;
};

/* logits[t][e] for a tile of tokens. */
static void score(const struct router *router, uint32_t n_tok, const float *x,
                  const struct moec_router_scratch *scratch, size_t logits_stride)
{
    const struct moec_kernels *kernels = router->forward->kernels;
    const struct moec_matrix *matrix = &router->layer->router;
    size_t stride = moec_forward_scratch(router->forward)->stride;
    if (router->n_tok <= MOEC_ENCODED_TOKENS) {
        for (uint32_t t = 0; t < n_tok; t++)
            kernels->dot_encoded(matrix, 0, matrix->rows, x + t * stride,
                                 scratch->logits + t * logits_stride);
        return;
    }
    for (uint32_t row = 0; row < matrix->rows; row += MOEC_ROUTER_ROWS) {
        uint32_t n_rows = moec_min_u32(MOEC_ROUTER_ROWS, matrix->rows - row);
        kernels->decode_rows(matrix, row, n_rows, scratch->weights, stride);
        kernels->dot(x, stride, n_tok, scratch->weights, stride, n_rows, matrix->columns,
                     scratch->logits + row, logits_stride);
    }
}

/* Takes the best of p[0..n-1] and marks it taken. The first that is left stands in where nothing compares
 * greater, so that NaN gives distinct experts too. */
static uint32_t take_best(float *p, uint32_t n, float *value)
{
    uint32_t best = 0;
    while (p[best] < 0)
        best++;
    for (uint32_t e = best + 1; e < n; e++) {
        if (p[e] > p[best])
            best = e;
    }
    *value = p[best];
    p[best] = -1;
    return best;
}

/* Lets the forward pass's own choice decide; p gets back what take_best took. */
static void choose_again(const struct router *router, float *p, uint32_t *experts, float *weights)
{
    const struct moec_choice *choice = router->forward->choice;
    for (uint32_t rank = 0; rank < router->forward->model->config.top_k; rank++)
        p[experts[rank]] = weights[rank];
    choice->choose(choice->context, router->layer_index, p, experts, weights);
}

static void normalise(float *weights, uint32_t k, bool may_be_zero)
{
    float total = 0;
    for (uint32_t rank = 0; rank < k; rank++)
        total += weights[rank];
    if (may_be_zero && total == 0)
        return;
    for (uint32_t rank = 0; rank < k; rank++)
        weights[rank] = weights[rank] / total;
}

static void choose(const struct router *router, uint32_t token, float *p)
{
    const struct moec_config *config = &router->forward->model->config;
    const struct moec_kernels *kernels = router->forward->kernels;
    uint32_t n = config->n_expert;
    uint32_t k = config->top_k;
    uint32_t *experts = router->routing->experts + (size_t)token * k;
    float *weights = router->routing->weights + (size_t)token * k;

    float sum = kernels->exp_sum(p, kernels->max(p, n), n, p);
    for (uint32_t e = 0; e < n; e++)
        p[e] = p[e] / sum;
    for (uint32_t rank = 0; rank < k; rank++)
        experts[rank] = take_best(p, n, &weights[rank]);
    if (router->routing->margins != NULL) {
        float next = 0;
        if (k < n) {
            const uint32_t left = take_best(p, n, &next);
            p[left] = next;
        }
        router->routing->margins[token] = weights[k - 1] - next;
    }
    if (router->forward->choice != NULL)
        choose_again(router, p, experts, weights);
    if (config->norm_topk_prob)
        normalise(weights, k, router->forward->choice != NULL);
}

static float shared_factor(const struct router *router, const float *x)
{
    const float *gate = router->layer->shared_expert_gate;
    size_t stride = moec_forward_scratch(router->forward)->stride;
    float v = 0;
    if (gate == NULL)
        return 1;
    router->forward->kernels->dot(x, stride, 1, gate, stride, 1, router->forward->model->config.n_embd, &v,
                                  1);
    return 1.0f / (1.0f + moec_exp_f32(-v));
}

static void route_tile(void *context, size_t item, int thread)
{
    const struct router *router = context;
    const struct moec_scratch *scratch = moec_forward_scratch(router->forward);
    const struct moec_router_scratch *own = &scratch->threads[thread].router;
    size_t logits_stride = moec_lanes_padded(router->forward->model->config.n_expert);
    uint32_t first = (uint32_t)item * MOEC_ROUTER_TOKENS;
    uint32_t n = moec_min_u32(MOEC_ROUTER_TOKENS, router->n_tok - first);
    float *x = router->normed + first * scratch->stride;
    moec_forward_norm(router->forward, router->layer->mlp_norm, n, router->hidden + first * scratch->stride,
                      x);
    score(router, n, x, own, logits_stride);
    for (uint32_t t = 0; t < n; t++) {
        choose(router, first + t, own->logits + t * logits_stride);
        if (router->layer->has_shared)
            router->routing->shared_gate[first + t] = shared_factor(router, x + t * scratch->stride);
    }
}

void moec_router_run(struct moec_forward *forward, uint32_t layer, uint32_t n_tok, const float *hidden,
                     float *normed, const struct moec_routing *routing)
{
    const struct moec_layer *weights = &forward->model->layers[layer];
    struct router router = {forward, weights, layer, n_tok, hidden, normed, routing};
    size_t n_tiles = (n_tok + MOEC_ROUTER_TOKENS - 1) / MOEC_ROUTER_TOKENS;
    uint64_t work = (uint64_t)n_tok * weights->router.rows * weights->router.columns;
    moec_forward_run(forward, n_tiles, work, route_tile, &router);
}
