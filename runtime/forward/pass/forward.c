/* A row of a hidden state may be followed by what the experts of a layer gave. That joins it at the next
 * dense MLP. It is zero from the embedding on. Rows of an embedding that is read late are brought by all
 * threads without errors. A second walk in order then tells of the first that failed. */
#include "runtime/forward/pass/forward.h"

#include "runtime/forward/context/backend.h"
#include "runtime/forward/context/linear.h"
#include "runtime/forward/context/steps.h"
#include "runtime/forward/moe/mlp.h"
#include "runtime/forward/moe/router_answer.h"
#include "runtime/forward/weights/model_stream.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Tokens whose embeddings are looked up, tile by tile. */
struct lookup {
    const struct moec_forward *forward;
    const uint32_t *tokens;
    uint32_t n_tok;
    float *out;
};

/* What follows a hidden state in its row, which is not there yet. */
static void clear_late(const struct moec_forward *forward, float *row)
{
    const size_t late = moec_forward_late(&forward->model->config);
    if (late > 0)
        memset(row + late, 0, (moec_forward_scratch(forward)->stride - late) * sizeof *row);
}

static void scale_embedding(const struct moec_forward *forward, float *row)
{
    const float scale = forward->model->config.scale.embedding;
    if (scale != 0)
        moec_scale_lanes(row, moec_forward_scratch(forward)->stride, scale);
}

static void embed_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct lookup *lookup = context;
    size_t stride = moec_forward_scratch(lookup->forward)->stride;
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, lookup->n_tok - first);
    for (uint32_t t = first; t < end; t++) {
        uint32_t row = lookup->tokens[t];
        const struct moec_matrix *rows = moec_token_rows_of(&lookup->forward->model->embedding, &row);
        lookup->forward->kernels->decode_rows(rows, row, 1, lookup->out + t * stride, stride);
        clear_late(lookup->forward, lookup->out + t * stride);
        scale_embedding(lookup->forward, lookup->out + t * stride);
    }
}

/* Row by row; encoded, a row is never longer than as floats. */
static enum moec_status embed_streamed(const struct moec_forward *forward, const uint32_t *tokens,
                                       uint32_t n_tok, float *hidden, struct moec_error *err)
{
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    uint8_t *bytes = (uint8_t *)scratch->normed;
    for (uint32_t t = 0; t < n_tok; t++) {
        uint32_t at = tokens[t];
        struct moec_matrix row = *moec_token_rows_of(&forward->model->embedding, &at);
        row.rows = 1;
        row.data = bytes;
        MOEC_TRY(moec_model_stream_embedding(forward->model->stream, tokens[t], bytes, err));
        forward->kernels->decode_rows(&row, 0, 1, hidden + t * scratch->stride, scratch->stride);
        clear_late(forward, hidden + t * scratch->stride);
        scale_embedding(forward, hidden + t * scratch->stride);
    }
    return MOEC_OK;
}

static void bring_row(void *context, size_t item, int thread)
{
    (void)thread;
    const struct lookup *lookup = context;
    struct moec_error ignored = {0}; /* the first in order is told of below */
    (void)!moec_model_bring_embedding(lookup->forward->model, lookup->tokens[item], &ignored);
}

/* The threads share what is not there yet; then nothing is left but to see that all is. */
static enum moec_status bring_rows(struct lookup *lookup, struct moec_error *err)
{
    const struct moec_model *model = lookup->forward->model;
    if (model->dense.late == NULL)
        return MOEC_OK;
    if (lookup->n_tok > 1)
        moec_parallel_for(&lookup->forward->pool, lookup->n_tok, bring_row, lookup);
    for (uint32_t t = 0; t < lookup->n_tok; t++)
        MOEC_TRY(moec_model_bring_embedding(model, lookup->tokens[t], err));
    return MOEC_OK;
}

enum moec_status moec_forward_embed(const struct moec_forward *forward, const uint32_t *tokens,
                                    uint32_t n_tok, float *hidden, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_config *config = &forward->model->config;
    for (uint32_t t = 0; t < n_tok; t++) {
        if (tokens[t] >= config->n_vocab)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "token id %" PRIu32 " is outside the model's vocabulary of %" PRIu32
                             " tokens: check that the ids come from this model's tokenizer",
                             tokens[t], config->n_vocab);
    }
    moec_router_answer_reset(forward);
    if (forward->backend != NULL)
        return forward->backend->ops->embed(forward->backend, tokens, n_tok, hidden, err);
    if (forward->model->stream != NULL)
        return embed_streamed(forward, tokens, n_tok, hidden, err);
    struct lookup lookup = {forward, tokens, n_tok, hidden};
    MOEC_TRY(bring_rows(&lookup, err));
    moec_forward_run(forward, moec_tile_count(n_tok), (uint64_t)n_tok * config->n_embd, embed_tile, &lookup);
    return MOEC_OK;
}

void moec_forward_hold(const struct moec_forward *forward, uint32_t n_tok, float *hidden)
{
    if (forward->backend != NULL && forward->backend->ops->hold != NULL)
        forward->backend->ops->hold(forward->backend, hidden, n_tok);
}

enum moec_status moec_forward_update(const struct moec_forward *forward, struct moec_error *err)
{
    if (forward->backend == NULL || forward->backend->ops->update == NULL)
        return MOEC_OK;
    return forward->backend->ops->update(forward->backend, err);
}

void moec_forward_let_go(const struct moec_forward *forward)
{
    if (forward->backend != NULL && forward->backend->ops->let_go != NULL)
        forward->backend->ops->let_go(forward->backend);
}

enum moec_status moec_forward_encoded(const struct moec_forward *forward, uint32_t n_tok, const float *hidden,
                                      float *encoded, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    if (forward->backend != NULL)
        return forward->backend->ops->encoded(forward->backend, n_tok, hidden, encoded, err);
    moec_forward_norm_batch(forward, forward->model->encoder_norm, n_tok, hidden, encoded);
    return MOEC_OK;
}

/* Capped logits: cap tanh(y / cap). */
static void store_capped(const struct moec_linear *linear, const struct moec_linear_part *part,
                         uint32_t token, uint32_t row, uint32_t n, const float *y)
{
    moec_linear_tanh(linear, linear->forward->model->config.scale.logit_cap, y, n,
                     part->out + token * part->out_stride + row);
}

static void store_silu(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                       uint32_t row, uint32_t n, const float *y)
{
    (void)linear;
    float *out = part->out + token * part->out_stride + row;
    for (uint32_t i = 0; i < n; i++)
        out[i] = moec_silu_f32(y[i]);
}

static enum moec_status run_head(const struct moec_forward *forward, uint32_t n_tok, const float *hidden,
                                 float *logits, size_t logits_stride, struct moec_error *err)
{
    const struct moec_model *model = forward->model;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    if (model->config.head.projects_output)
        moec_linear_run_one(forward,
                            &(struct moec_linear_part){.matrix = &model->output_projection,
                                                       .bias = model->output_projection_bias,
                                                       .sink = store_silu,
                                                       .out = scratch->normed},
                            n_tok, hidden);
    else
        moec_forward_norm_batch(forward, model->final_norm, n_tok, hidden, scratch->normed);
    if (model->config.head.is_scaled)
        moec_scale_lanes(scratch->normed, n_tok * scratch->stride,
                         (float)(1 / sqrt((double)model->config.n_embd)));
    if (model->config.scale.logit_divisor != 0)
        moec_scale_lanes(scratch->normed, n_tok * scratch->stride, 1.0f / model->config.scale.logit_divisor);
    struct moec_linear head = {
        .forward = forward, .x = scratch->normed, .x_stride = scratch->stride, .n_tok = n_tok, .n_parts = 1};
    for (uint32_t row = 0; row < model->config.n_vocab;) {
        struct moec_matrix rows;
        MOEC_TRY(moec_model_acquire_head(model, row, &rows, err));
        if (row > 0 && row != model->config.n_frequent) /* its inputs have been seen */
            rows.entry = NULL;
        head.parts[0] =
            (struct moec_linear_part){&rows, model->head_bias != NULL ? model->head_bias + row : NULL,
                                      model->config.scale.logit_cap > 0 ? store_capped : moec_linear_store,
                                      logits + row, logits_stride};
        moec_linear_run(&head);
        moec_model_release_head(model, row);
        row += rows.rows;
    }
    return MOEC_OK;
}

enum moec_status moec_forward_head(const struct moec_forward *forward, uint32_t n_tok, const float *hidden,
                                   float *logits, size_t logits_stride, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    if (forward->backend != NULL)
        MOEC_TRY(forward->backend->ops->head(forward->backend, n_tok, hidden, logits, logits_stride, err));
    else
        MOEC_TRY(run_head(forward, n_tok, hidden, logits, logits_stride, err));
    moec_trace_compute(forward->trace, "head", MOEC_TRACE_NONE, begin_ns);
    return MOEC_OK;
}

bool moec_forward_chooses(const struct moec_forward *forward)
{
    return forward->backend != NULL && forward->backend->ops->choose != NULL;
}

enum moec_status moec_forward_choose(const struct moec_forward *forward, const float *hidden,
                                     const struct moec_draw *how, struct moec_chosen *chosen,
                                     struct moec_error *err)
{
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    MOEC_TRY(forward->backend->ops->choose(forward->backend, hidden, how, chosen, err));
    moec_trace_compute(forward->trace, "head", MOEC_TRACE_NONE, begin_ns);
    return MOEC_OK;
}

void moec_forward_expert(const struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                         const float *input, float *out)
{
    struct moec_mlp_job job = {.mlp = *mlp, .pairs = {.n = n_tok, .per_row = 1}, .input = input, .out = out};
    moec_mlp_run(forward, &job, 1);
}

enum moec_status moec_forward_routed(const struct moec_forward *forward, struct moec_expert_request request,
                                     uint32_t n_tok, const float *input, float *out, struct moec_error *err)
{
    struct moec_experts *source = forward->experts;
    struct moec_backend *backend = forward->backend;
    struct moec_mlp mlp;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    MOEC_TRY(source->ops->acquire(source, request, &mlp, err));
    moec_layer_expert_biases(&forward->model->layers[request.layer], request.expert, &mlp);
    if (backend != NULL)
        status = backend->ops->expert(backend, request, &mlp, n_tok, input, out, err);
    else
        moec_forward_expert(forward, &mlp, n_tok, input, out);
    source->ops->release(source, request);
    return status;
}

void moec_forward_shared(const struct moec_forward *forward, const struct moec_layer *layer, uint32_t n_tok,
                         const float *input, float *out)
{
    if (layer->bypass.rows > 0)
        moec_moe_bypass(forward, layer, n_tok, input, out);
    else
        moec_forward_expert(forward, &layer->shared, n_tok, input, out);
}

void moec_forward_activations(const struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                              const float *input, float *out, size_t out_stride)
{
    moec_mlp_activations(forward, mlp, n_tok, input, out, out_stride);
}

/* What the experts of the layer before gave joins the hidden state. */
static void join_late(const struct moec_forward *forward, float *row)
{
    const size_t late = moec_forward_late(&forward->model->config);
    if (late > 0)
        forward->kernels->add(row + late, forward->model->config.n_embd, row);
    clear_late(forward, row);
}

static enum moec_status run_mlp(const struct moec_forward *forward, const struct moec_layer *weights,
                                uint32_t layer, const struct moec_mlp_batch *batch, struct moec_error *err)
{
    const uint32_t n_tok = batch->n_tok;
    float *hidden = batch->hidden;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    if (weights->is_moe)
        return moec_moe_run(forward, weights, layer, batch, err);

    const uint64_t begin_ns = moec_trace_now(forward->trace);
    if (forward->backend != NULL) {
        MOEC_TRY(forward->backend->ops->dense(forward->backend, layer, n_tok, hidden, err));
        moec_trace_compute(forward->trace, "mlp", layer, begin_ns);
        return MOEC_OK;
    }
    moec_forward_norm_batch(forward, weights->mlp_norm, n_tok, hidden, scratch->normed);
    moec_forward_expert(forward, &weights->dense, n_tok, scratch->normed, scratch->moe.rows.shared);
    for (uint32_t t = 0; t < n_tok; t++) {
        moec_forward_add(forward, weights->mlp_post_norm, scratch->moe.rows.shared + t * scratch->stride,
                         hidden + t * scratch->stride);
        join_late(forward, hidden + t * scratch->stride);
    }
    moec_forward_scale_layer(forward, weights, n_tok, hidden);
    moec_trace_compute(forward->trace, "mlp", layer, begin_ns);
    return MOEC_OK;
}

enum moec_status moec_forward_mlp(const struct moec_forward *forward, uint32_t layer,
                                  const struct moec_mlp_batch *batch, struct moec_error *err)
{
    const struct moec_sequences *sequences = batch->sequences;
    const struct moec_layer *weights = NULL;
    MOEC_TRY(moec_forward_check(forward, batch->n_tok, err));
    if (moec_config_layer(&forward->model->config, layer)->routes_by_token &&
        (sequences == NULL || sequences->n_spans == 0 || sequences->spans[0].tokens == NULL))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "layer %" PRIu32 " routes by token, but the tokens of its rows are missing", layer);
    if (moec_config_layer(&forward->model->config, layer)->no_mlp)
        return MOEC_OK;
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    enum moec_status status = run_mlp(forward, weights, layer, batch, err);
    moec_model_release_layer(forward->model, layer);
    return status;
}
