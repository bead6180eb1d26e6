#include "runtime/forward/forward.h"

#include "runtime/forward/linear.h"
#include "runtime/forward/mlp.h"
#include "runtime/forward/model_stream.h"
#include "runtime/forward/moe.h"
#include "runtime/forward/router_answer.h"
#include "runtime/forward/scratch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Multiply-adds that take some hundred microseconds. */
#define BRIEF_WORK ((uint64_t)1 << 20)

size_t moec_forward_stride(const struct moec_config *config)
{
    return moec_lanes_padded(config->n_embd);
}

uint64_t moec_forward_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads)
{
    return moec_scratch_bytes(config, max_tokens, moec_pool_make(n_threads).n_threads);
}

enum moec_status moec_forward_init(struct moec_forward *forward, const struct moec_model *model,
                                   const struct moec_kernels *kernels, int n_threads,
                                   struct moec_experts *experts, uint32_t max_tokens, struct moec_error *err)
{
    if (max_tokens == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "a forward pass needs room for at least one token");
    if (max_tokens > MOEC_MAX_POSITIONS)
        return moec_fail(err, MOEC_ERR_LIMIT, "a batch of %" PRIu32 " tokens is over the limit of %u",
                         max_tokens, MOEC_MAX_POSITIONS);
    *forward = (struct moec_forward){.model = model,
                                     .kernels = kernels,
                                     .pool = moec_pool_make(n_threads),
                                     .experts = experts,
                                     .max_tokens = max_tokens};
    struct moec_scratch *scratch = NULL;
    MOEC_TRY(moec_scratch_create(&model->config, max_tokens, forward->pool.n_threads, &scratch, err));
    forward->scratch = scratch;
    forward->scratch_bytes = moec_scratch_bytes(&model->config, max_tokens, forward->pool.n_threads);
    return MOEC_OK;
}

void moec_forward_release(struct moec_forward *forward)
{
    free(forward->scratch);
    forward->scratch = NULL;
    forward->scratch_bytes = 0;
}

enum moec_status moec_forward_check(const struct moec_forward *forward, uint32_t n_tok,
                                    struct moec_error *err)
{
    if (n_tok > forward->max_tokens)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a batch of %" PRIu32 " tokens is over the %" PRIu32 " made room for", n_tok,
                         forward->max_tokens);
    return MOEC_OK;
}

void moec_forward_run(const struct moec_forward *forward, size_t n_items, uint64_t work,
                      moec_parallel_body *body, void *context)
{
    if (n_items > 1 && work >= moec_forward_scratch(forward)->shared_work_min) {
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

/* One tile of rows of a step that treats each row alone. */
struct rows {
    struct moec_forward *forward;
    uint32_t n_tok;
    const uint32_t *tokens;
    const float *input;
    const float *weight;
    float *out;
};

static uint32_t tile_count(uint32_t n_tok)
{
    return (n_tok + MOEC_TILE_TOKENS - 1) / MOEC_TILE_TOKENS;
}

static void embed_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct rows *rows = context;
    size_t stride = moec_forward_scratch(rows->forward)->stride;
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, rows->n_tok - first);
    for (uint32_t t = first; t < end; t++)
        rows->forward->kernels->decode_rows(&rows->forward->model->embedding, rows->tokens[t], 1,
                                            rows->out + t * stride, stride);
}

/* Row by row; encoded, a row is never longer than as floats. */
static enum moec_status embed_streamed(struct moec_forward *forward, const uint32_t *tokens, uint32_t n_tok,
                                       float *hidden, struct moec_error *err)
{
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    struct moec_matrix row = forward->model->embedding;
    uint8_t *bytes = (uint8_t *)scratch->normed;
    row.rows = 1;
    row.data = bytes;
    for (uint32_t t = 0; t < n_tok; t++) {
        MOEC_TRY(moec_model_stream_embedding(forward->model->stream, tokens[t], bytes, err));
        forward->kernels->decode_rows(&row, 0, 1, hidden + t * scratch->stride, scratch->stride);
    }
    return MOEC_OK;
}

enum moec_status moec_forward_embed(struct moec_forward *forward, const uint32_t *tokens, uint32_t n_tok,
                                    float *hidden, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_config *config = &forward->model->config;
    for (uint32_t t = 0; t < n_tok; t++) {
        if (tokens[t] >= config->n_vocab)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "token id %" PRIu32 " is outside the vocabulary of %" PRIu32
                             ", does the text belong to "
                             "another tokenizer?",
                             tokens[t], config->n_vocab);
    }
    moec_router_answer_reset(forward);
    if (forward->model->stream != NULL)
        return embed_streamed(forward, tokens, n_tok, hidden, err);
    struct rows rows = {.forward = forward, .n_tok = n_tok, .tokens = tokens, .out = hidden};
    moec_forward_run(forward, tile_count(n_tok), (uint64_t)n_tok * config->n_embd, embed_tile, &rows);
    return MOEC_OK;
}

static void norm_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct rows *rows = context;
    size_t at = item * MOEC_TILE_TOKENS * moec_forward_scratch(rows->forward)->stride;
    uint32_t n = moec_min_u32(MOEC_TILE_TOKENS, rows->n_tok - (uint32_t)item * MOEC_TILE_TOKENS);
    moec_forward_norm(rows->forward, rows->weight, n, rows->input + at, rows->out + at);
}

void moec_forward_norm_batch(struct moec_forward *forward, const float *weight, uint32_t n_tok,
                             const float *hidden, float *out)
{
    struct rows rows = {.forward = forward, .n_tok = n_tok, .input = hidden, .weight = weight, .out = out};
    moec_forward_run(forward, tile_count(n_tok), (uint64_t)n_tok * forward->model->config.n_embd, norm_tile,
                     &rows);
}

enum moec_status moec_forward_encoded(struct moec_forward *forward, uint32_t n_tok, const float *hidden,
                                      float *encoded, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    moec_forward_norm_batch(forward, forward->model->encoder_norm, n_tok, hidden, encoded);
    return MOEC_OK;
}

enum moec_status moec_forward_head(struct moec_forward *forward, uint32_t n_tok, const float *hidden,
                                   float *logits, size_t logits_stride, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_model *model = forward->model;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    moec_forward_norm_batch(forward, model->final_norm, n_tok, hidden, scratch->normed);
    if (model->config.scaled_head)
        moec_scale_lanes(scratch->normed, n_tok * scratch->stride,
                         (float)(1 / sqrt((double)model->config.n_embd)));
    struct moec_linear head = {
        .forward = forward, .x = scratch->normed, .x_stride = scratch->stride, .n_tok = n_tok, .n_parts = 1};
    for (uint32_t row = 0; row < model->config.n_vocab;) {
        struct moec_matrix rows;
        MOEC_TRY(moec_model_acquire_head(model, row, &rows, err));
        if (row > 0) /* its inputs have been seen */
            rows.entry = NULL;
        head.parts[0] =
            (struct moec_linear_part){&rows, NULL, moec_linear_store, logits + row, logits_stride};
        moec_linear_run(&head);
        moec_model_release_head(model, row);
        row += rows.rows;
    }
    moec_trace_compute(forward->trace, "head", MOEC_TRACE_NONE, begin_ns);
    return MOEC_OK;
}

void moec_forward_expert(struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                         const float *input, float *out)
{
    struct moec_mlp_job job = {.mlp = *mlp, .pairs_per_row = 1, .n = n_tok, .input = input, .out = out};
    moec_mlp_run(forward, &job, 1);
}

static enum moec_status run_mlp(struct moec_forward *forward, const struct moec_layer *weights,
                                uint32_t layer, uint32_t n_tok, float *hidden,
                                const struct moec_mlp_trace *trace, struct moec_error *err)
{
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    if (weights->is_moe)
        return moec_moe_run(forward, weights, layer, n_tok, hidden, trace, err);

    const uint64_t begin_ns = moec_trace_now(forward->trace);
    moec_forward_norm_batch(forward, weights->mlp_norm, n_tok, hidden, scratch->normed);
    moec_forward_expert(forward, &weights->dense, n_tok, scratch->normed, scratch->shared_output);
    for (uint32_t t = 0; t < n_tok; t++)
        forward->kernels->add(scratch->shared_output + t * scratch->stride, forward->model->config.n_embd,
                              hidden + t * scratch->stride);
    moec_trace_compute(forward->trace, "mlp", layer, begin_ns);
    return MOEC_OK;
}

enum moec_status moec_forward_mlp(struct moec_forward *forward, uint32_t layer, uint32_t n_tok, float *hidden,
                                  const struct moec_mlp_trace *trace, struct moec_error *err)
{
    const struct moec_layer *weights = NULL;
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    enum moec_status status = run_mlp(forward, weights, layer, n_tok, hidden, trace, err);
    moec_model_release_layer(forward->model, layer);
    return status;
}
