/* LayerNorm subtracts the mean, which is summed in a dot's order, then is an RMS norm, then adds the bias.
 * Whether threads share a step depends on its size alone, and never changes a result. */
#include "runtime/forward/context/steps.h"

#include "formats/base/work_tally.h"

#include <inttypes.h>
#include <string.h>

/* Multiply-adds that take some hundred microseconds. */
#define BRIEF_WORK ((uint64_t)1 << 20)

enum moec_status moec_forward_check(const struct moec_forward *forward, uint32_t n_tok,
                                    struct moec_error *err)
{
    if (n_tok > forward->max_tokens)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a batch of %" PRIu32 " tokens is larger than the %" PRIu32
                         " tokens that memory is reserved for",
                         n_tok, forward->max_tokens);
    return MOEC_OK;
}

void moec_forward_run(const struct moec_forward *forward, size_t n_items, uint64_t work,
                      moec_parallel_body *body, void *context)
{
    moec_work_count(MOEC_WORK_PRODUCTS, work);
    if (n_items > 1 &&
        (work >= MOEC_SHARED_WORK || moec_forward_scratch(forward)->test_hook.shares_all_work)) {
        if (work < BRIEF_WORK)
            moec_parallel_for_brief(&forward->pool, n_items, body, context);
        else
            moec_parallel_for(&forward->pool, n_items, body, context);
        return;
    }
    for (size_t item = 0; item < n_items; item++)
        body(context, item, 0);
}

/* out = x less its mean, the sum of which is taken in the order of a dot product. */
static void subtract_mean(const float *x, uint32_t n, float *out)
{
    float sums[MOEC_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        sums[i % MOEC_LANES] += x[i];
    for (uint32_t width = MOEC_LANES / 2; width > 0; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            sums[i] += sums[i + width];
    const float mean = sums[0] / (float)n;
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] - mean;
}

void moec_forward_decode(const struct moec_kernels *kernels, const struct moec_matrix *matrix, uint32_t row,
                         uint32_t n_rows, float *weights, size_t stride)
{
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_DECODING);
    kernels->decode_rows(matrix, row, n_rows, weights, stride);
    moec_work_end(MOEC_WORK_DECODING, begun_ns, (uint64_t)n_rows * matrix->columns);
}

/* One row, by an RMS norm, or by a LayerNorm with biases behind the weights. */
static void norm_row(const struct moec_forward *forward, const float *weight, const float *x, float *out)
{
    const struct moec_config *config = &forward->model->config;
    const struct moec_kernels *kernels = forward->kernels;
    if (!config->layer_norm) {
        kernels->rms_norm(x, weight, (float)config->rms_eps, config->n_embd, out);
        return;
    }
    subtract_mean(x, config->n_embd, out);
    kernels->rms_norm(out, weight, (float)config->rms_eps, config->n_embd, out);
    kernels->add(weight + moec_lanes_padded(config->n_embd), config->n_embd, out);
}

void moec_forward_norm(const struct moec_forward *forward, const float *weight, uint32_t n_tok,
                       const float *hidden, float *out)
{
    const struct moec_config *config = &forward->model->config;
    size_t stride = moec_forward_scratch(forward)->stride;
    for (uint32_t t = 0; t < n_tok; t++, hidden += stride, out += stride) {
        if (weight == NULL)
            memcpy(out, hidden, config->n_embd * sizeof *out);
        else
            norm_row(forward, weight, hidden, out);
        memset(out + config->n_embd, 0, (stride - config->n_embd) * sizeof(float));
    }
}

/* A batch to be normed, tile by tile. */
struct norm {
    const struct moec_forward *forward;
    const float *weight;
    uint32_t n_tok;
    const float *hidden;
    float *out;
};

static void norm_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct norm *norm = context;
    size_t at = item * MOEC_TILE_TOKENS * moec_forward_scratch(norm->forward)->stride;
    uint32_t n = moec_min_u32(MOEC_TILE_TOKENS, norm->n_tok - (uint32_t)item * MOEC_TILE_TOKENS);
    moec_forward_norm(norm->forward, norm->weight, n, norm->hidden + at, norm->out + at);
}

void moec_forward_norm_batch(const struct moec_forward *forward, const float *weight, uint32_t n_tok,
                             const float *hidden, float *out)
{
    struct norm norm = {forward, weight, n_tok, hidden, out};
    moec_forward_run(forward, moec_tile_count(n_tok), (uint64_t)n_tok * forward->model->config.n_embd,
                     norm_tile, &norm);
}

bool moec_forward_adds_plainly(const struct moec_forward *forward, const float *post_norm)
{
    return post_norm == NULL && forward->model->config.scale.residual == 0;
}

void moec_forward_add(const struct moec_forward *forward, const float *post_norm, float *update,
                      float *hidden)
{
    const struct moec_config *config = &forward->model->config;
    if (post_norm != NULL)
        norm_row(forward, post_norm, update, update);
    for (uint32_t i = 0; i < config->n_embd && config->scale.residual != 0; i++)
        update[i] *= config->scale.residual;
    forward->kernels->add(update, config->n_embd, hidden);
}

void moec_forward_scale_layer(const struct moec_forward *forward, const struct moec_layer *layer,
                              uint32_t n_tok, float *hidden)
{
    if (layer->layer_scale != NULL)
        moec_scale_lanes(hidden, n_tok * moec_forward_scratch(forward)->stride, layer->layer_scale[0]);
}

/* A batch of updates, tile by tile. */
struct addition {
    const struct moec_forward *forward;
    const float *post_norm;
    uint32_t n_tok;
    float *updates;
    float *hidden;
};

static void add_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct addition *addition = context;
    const size_t stride = moec_forward_scratch(addition->forward)->stride;
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, addition->n_tok - first);
    for (uint32_t t = first; t < end; t++)
        moec_forward_add(addition->forward, addition->post_norm, addition->updates + t * stride,
                         addition->hidden + t * stride);
}

void moec_forward_add_batch(const struct moec_forward *forward, const float *post_norm, uint32_t n_tok,
                            float *updates, float *hidden)
{
    struct addition addition = {forward, post_norm, n_tok, updates, hidden};
    moec_forward_run(forward, moec_tile_count(n_tok), (uint64_t)n_tok * forward->model->config.n_embd,
                     add_tile, &addition);
}
