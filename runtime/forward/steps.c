#include "runtime/forward/steps.h"

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
                         " that memory was set aside for",
                         n_tok, forward->max_tokens);
    return MOEC_OK;
}

void moec_forward_run(const struct moec_forward *forward, size_t n_items, uint64_t work,
                      moec_parallel_body *body, void *context)
{
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

void moec_forward_norm(const struct moec_forward *forward, const float *weight, uint32_t n_tok,
                       const float *hidden, float *out)
{
    const struct moec_config *config = &forward->model->config;
    size_t stride = moec_forward_scratch(forward)->stride;
    for (uint32_t t = 0; t < n_tok; t++, hidden += stride, out += stride) {
        forward->kernels->rms_norm(hidden, weight, (float)config->rms_eps, config->n_embd, out);
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
