/* Attention of one layer: norm, q/k/v products, rotation, softmax over the positions that a query sees,
 * output product. In a decoder these are the past; in an encoder and across from a decoder to it they are the
 * whole source.
 *
 * Latent attention is the same with one key/value head for all query heads, whose keys are latent and rotated
 * part and whose values are the latent (runtime/forward/attention/latent.h). */
#include "runtime/forward/attention/attention.h"

#include "runtime/forward/attention/attention_block.h"
#include "runtime/forward/attention/latent.h"
#include "runtime/forward/attention/running.h"
#include "runtime/forward/context/backend.h"
#include "runtime/forward/context/linear.h"
#include "runtime/forward/context/steps.h"
#include "runtime/forward/weights/rope.h"

#include <math.h>
#include <string.h>

static void norm_rows(void *context, size_t item, int thread)
{
    (void)thread;
    const struct moec_attention *attention = context;
    const struct moec_forward *forward = attention->forward;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t n = moec_min_u32(MOEC_TILE_TOKENS, attention->rows.n_tok - first);
    moec_forward_norm(forward, attention->weights.norm, n, attention->rows.hidden + first * scratch->stride,
                      scratch->normed + first * scratch->stride);
}

/* Where the keys or values of a token are kept. */
static float *kept_row(const struct moec_attention *attention, uint32_t token, bool value)
{
    const struct moec_span *span =
        &attention->rows.spans[moec_forward_scratch(attention->forward)->mixer.row_span[token]];
    return (value ? span->keys.v_own : span->keys.k_own) +
           (attention->rows.first + token - span->first_row) * attention->layout.kv_room;
}

/* Where they are made, as floats: there, unless they are then rounded. */
static float *own_row(const struct moec_attention *attention, uint32_t token, bool value)
{
    if (!moec_layer_rounds_kv(attention->kind))
        return kept_row(attention, token, value);
    return moec_forward_scratch(attention->forward)->mixer.own_kv +
           (2 * (size_t)token + value) * attention->layout.kv_stride;
}

/* Keys or values of a token from where they are made to where they are kept, head by head. */
static void round_row(const struct moec_attention *attention, uint32_t token, bool value)
{
    const struct moec_kernels *kernels = attention->forward->kernels;
    const float *made = own_row(attention, token, value);
    uint8_t *kept = (uint8_t *)kept_row(attention, token, value);
    for (uint32_t head = 0; head < attention->kind->n_kv_head; head++) {
        if (attention->kind->kv.dtype == MOEC_DTYPE_F16)
            kernels->round_f16(made, attention->layout.key_dim, kept);
        else
            kernels->round_int8(made, attention->layout.key_dim, kept);
        made += attention->layout.key_dim;
        kept += attention->layout.head_bytes;
    }
}

static void round_rows(void *context, size_t item, int thread)
{
    (void)thread;
    const struct moec_attention *attention = context;
    const bool has_values = moec_layer_has_values(attention->kind);
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, attention->rows.n_tok - first);
    for (uint32_t token = first; token < end; token++)
        for (int value = 0; value <= has_values; value++)
            round_row(attention, token, value);
}

static void store_key(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                      uint32_t row, uint32_t n, const float *y)
{
    (void)part;
    memcpy(own_row(linear->context, token, false) + row, y, n * sizeof(float));
}

static void store_value(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                        uint32_t row, uint32_t n, const float *y)
{
    (void)part;
    memcpy(own_row(linear->context, token, true) + row, y, n * sizeof(float));
}

static void clip(float limit, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}

/* Positions into a token's queries and keys. */
static void rotate_token(const struct moec_attention *attention, uint32_t token, uint32_t position, float *q,
                         float *k)
{
    const struct moec_layer_kind *kind = attention->kind;
    const uint32_t dim = moec_layer_rotary_dim(kind);
    float *cosine = attention->positions.rope + (size_t)token * dim;
    float *sine = cosine + dim / 2;
    if (attention->positions.rope_position[token] != position) {
        moec_rope_angles(&attention->forward->model->config, kind, attention->positions.inverse_frequency,
                         position, cosine, sine);
        attention->positions.rope_position[token] = position;
    }
    moec_rope_rotate(kind, cosine, sine, kind->n_head, q);
    moec_rope_rotate(kind, cosine, sine, kind->n_kv_head, k);
}

static void grow_queries(const struct moec_attention *attention, uint32_t position, size_t n, float *q)
{
    const float factor =
        moec_rope_query_factor(&attention->forward->model->config, attention->kind, position);
    for (size_t i = 0; i < n && factor != 1; i++)
        q[i] *= factor;
}

/* A latent (n) by its norm, and times what the model multiplies it by. */
static void norm_latent(const struct moec_attention *attention, const float *weight, float scale, size_t n,
                        float *latent)
{
    attention->forward->kernels->rms_norm(latent, weight, MOEC_LATENT_NORM_EPS, n, latent);
    for (size_t i = 0; scale != 0 && i < n; i++)
        latent[i] *= scale;
}

/* The latent of queries is normed before their product, so that has a step of its own. */
static void norm_query_latent(void *context, size_t item, int thread)
{
    (void)thread;
    const struct moec_attention *attention = context;
    const struct moec_layer_kind *kind = attention->kind;
    const size_t n = kind->q_latent_dim, room = moec_lanes_padded(n);
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, attention->rows.n_tok - first);
    float *latents = moec_forward_scratch(attention->forward)->mixer.q + moec_latent_query_latent(kind);
    for (uint32_t token = first; token < end; token++) {
        float *latent = latents + token * attention->queries.stride;
        norm_latent(attention, attention->weights.latent.q_down_norm,
                    attention->forward->model->config.scale.q_latent, n, latent);
        memset(latent + n, 0, (room - n) * sizeof *latent);
    }
}

/* The latent is normed; what follows it, and the ends of query heads, are rotated where the model rotates. */
static void place_latents(void *context, size_t item, int thread)
{
    (void)thread;
    const struct moec_attention *attention = context;
    const struct moec_layer_kind *kind = attention->kind;
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS, n = kind->latent_dim;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, attention->rows.n_tok - first);
    for (uint32_t token = first; token < end; token++) {
        const struct moec_span *span = &attention->rows.spans[scratch->mixer.row_span[token]];
        const uint32_t position = span->first_position + (attention->rows.first + token - span->first_row);
        float *queries = scratch->mixer.q + token * attention->queries.stride + moec_latent_queries(kind);
        float *latent = own_row(attention, token, false);
        norm_latent(attention, attention->weights.latent.kv_down_norm,
                    attention->forward->model->config.scale.latent, n, latent);
        if (attention->positions.rope != NULL)
            rotate_token(attention, token, position, queries + moec_layer_plain_dim(kind), latent + n);
        grow_queries(attention, position, (size_t)kind->n_head * kind->head_dim, queries);
    }
}

/* q and k of a token, each head by itself or all together. */
static void norm_token(const struct moec_attention *attention, float *q, float *k)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    const struct moec_projections *weights = &attention->weights;
    const float eps = (float)forward->model->config.rms_eps;
    const bool is_whole = kind->qk_norm == MOEC_QK_NORM_WHOLE;
    const uint32_t n_q = is_whole ? 1 : kind->n_head, n_k = is_whole ? 1 : kind->n_kv_head;
    const size_t q_dim = moec_layer_q_dim(kind) / n_q, k_dim = moec_layer_kv_dim(kind) / n_k;
    for (uint32_t head = 0; head < n_q; head++)
        forward->kernels->rms_norm(q + head * q_dim, weights->q.norm, eps, q_dim, q + head * q_dim);
    for (uint32_t head = 0; head < n_k; head++)
        forward->kernels->rms_norm(k + head * k_dim, weights->k.norm, eps, k_dim, k + head * k_dim);
}

static void norm_values(const struct moec_attention *attention, float *v)
{
    const struct moec_forward *forward = attention->forward;
    const uint32_t dim = attention->kind->head_dim;
    for (uint32_t head = 0; head < attention->kind->n_kv_head; head++)
        forward->kernels->rms_norm(v + (size_t)head * dim, attention->weights.v.norm,
                                   (float)forward->model->config.rms_eps, dim, v + (size_t)head * dim);
}

static void place_rows(void *context, size_t item, int thread)
{
    (void)thread;
    const struct moec_attention *attention = context;
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const bool norms_after = kind->qk_norm >= MOEC_QK_NORM_HEAD_AFTER;
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, attention->rows.n_tok - first);
    const size_t n_q = moec_layer_q_dim(kind);
    for (uint32_t token = first; token < end; token++) {
        const struct moec_span *span = &attention->rows.spans[scratch->mixer.row_span[token]];
        uint32_t position = span->first_position + (attention->rows.first + token - span->first_row);
        float *q = scratch->mixer.q + token * attention->queries.stride;
        float *k = own_row(attention, token, false);
        if (attention->weights.v.matrix == NULL)
            memcpy(own_row(attention, token, true), k, attention->layout.kv_stride * sizeof(float));
        if (attention->weights.v.norm != NULL)
            norm_values(attention, own_row(attention, token, true));
        if (attention->weights.q.norm != NULL && !norms_after)
            norm_token(attention, q, k);
        if (kind->clip_qkv > 0) {
            clip(kind->clip_qkv, n_q, q);
            clip(kind->clip_qkv, attention->layout.kv_stride, k);
            clip(kind->clip_qkv, attention->layout.kv_stride, own_row(attention, token, true));
        }
        if (attention->positions.rope != NULL)
            rotate_token(attention, token, position, q, k);
        grow_queries(attention, position, moec_layer_q_dim(kind), q);
        if (norms_after)
            norm_token(attention, q, k);
    }
}

static void mark_rows(const struct moec_attention *attention)
{
    struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    for (uint32_t i = 0; i < attention->rows.n_spans; i++) {
        const struct moec_span *span = &attention->rows.spans[i];
        for (uint32_t row = 0; row < span->n_rows; row++)
            scratch->mixer.row_span[span->first_row - attention->rows.first + row] = i;
    }
}

/* q of the batch's inputs `x` into scratch, and their keys and values to where the spans want them. */
static void project(const struct moec_attention *attention, const float *x)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_projections *weights = &attention->weights;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const size_t n_q = moec_layer_q_dim(attention->kind);
    struct moec_linear qkv = {.forward = forward,
                              .x = x,
                              .x_stride = scratch->stride,
                              .n_tok = attention->rows.n_tok,
                              .context = attention,
                              .n_parts = !attention->rows.has_own_keys ? 1
                                         : weights->v.matrix != NULL   ? 3
                                                                       : 2};
    qkv.parts[0] = (struct moec_linear_part){weights->q.matrix, weights->q.bias, moec_linear_store,
                                             scratch->mixer.q, attention->queries.stride};
    qkv.parts[1] = (struct moec_linear_part){weights->k.matrix, weights->k.bias, store_key, NULL, 0};
    qkv.parts[2] = (struct moec_linear_part){weights->v.matrix, weights->v.bias, store_value, NULL, 0};
    moec_linear_run(&qkv);
    for (uint32_t token = 0; token < attention->rows.n_tok && n_q < attention->queries.stride; token++)
        memset(scratch->mixer.q + token * attention->queries.stride + n_q, 0,
               (attention->queries.stride - n_q) * sizeof(float));
}

/* The same with a latent: its row to where the spans want it, and queries that attend to latents. */
static void project_latent(struct moec_attention *attention, const float *x)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    const struct moec_projections *weights = &attention->weights;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const size_t n_tiles = moec_tile_count(attention->rows.n_tok);
    const struct moec_linear_part queries = {weights->q.matrix, NULL, moec_linear_store,
                                             scratch->mixer.q + moec_latent_queries(kind),
                                             attention->queries.stride};
    struct moec_linear down = {.forward = forward,
                               .x = x,
                               .x_stride = scratch->stride,
                               .n_tok = attention->rows.n_tok,
                               .context = attention,
                               .n_parts = 2};
    float *query_latents = scratch->mixer.q + moec_latent_query_latent(kind);
    down.parts[0] = (struct moec_linear_part){weights->latent.kv_down, NULL, store_key, NULL, 0};
    down.parts[1] = kind->q_latent_dim == 0
                        ? queries
                        : (struct moec_linear_part){weights->latent.q_down, NULL, moec_linear_store,
                                                    query_latents, attention->queries.stride};
    moec_linear_run(&down);
    if (kind->q_latent_dim > 0) {
        moec_forward_run(forward, n_tiles, (uint64_t)attention->rows.n_tok * kind->q_latent_dim,
                         norm_query_latent, attention);
        struct moec_linear up = {.forward = forward,
                                 .x = query_latents,
                                 .x_stride = attention->queries.stride,
                                 .n_tok = attention->rows.n_tok,
                                 .n_parts = 1,
                                 .parts = {queries}};
        moec_linear_run(&up);
    }
    moec_forward_run(forward, n_tiles, (uint64_t)attention->rows.n_tok * attention->layout.kv_stride,
                     place_latents, attention);
    moec_latent_absorb(forward, kind, weights->latent.kv_up, attention->rows.n_tok);
}

/* Outputs in scratch times the sigmoid of their gate. */
static void multiply_sigmoid(const struct moec_linear *linear, const struct moec_linear_part *part,
                             uint32_t token, uint32_t row, uint32_t n, const float *y)
{
    (void)linear;
    float *out = part->out + token * part->out_stride + row;
    for (uint32_t i = 0; i < n; i++)
        out[i] *= 1.0f / (1.0f + moec_exp_f32(-y[i]));
}

static void gate_outputs(const struct moec_attention *attention, const float *x)
{
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    struct moec_linear gate = {.forward = attention->forward,
                               .x = x,
                               .x_stride = scratch->stride,
                               .n_tok = attention->rows.n_tok,
                               .n_parts = 1};
    gate.parts[0] = (struct moec_linear_part){attention->weights.gate, NULL, multiply_sigmoid,
                                              scratch->mixer.q, attention->queries.stride};
    moec_linear_run(&gate);
}

/* The output product into the hidden state: at once, or by way of `normed`, whose inputs are used up. */
static void add_outputs(const struct moec_attention *attention)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_projections *weights = &attention->weights;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const bool is_plain = moec_forward_adds_plainly(forward, weights->o.norm);
    struct moec_linear o = {.forward = forward,
                            .x = scratch->mixer.q + attention->queries.outputs,
                            .x_stride = attention->queries.stride,
                            .n_tok = attention->rows.n_tok,
                            .n_parts = 1};
    o.parts[0] = (struct moec_linear_part){
        weights->o.matrix, weights->o.bias, is_plain ? moec_linear_add : moec_linear_store,
        is_plain ? attention->rows.hidden : scratch->normed, scratch->stride};
    moec_linear_run(&o);
    if (!is_plain)
        moec_forward_add_batch(forward, weights->o.norm, attention->rows.n_tok, scratch->normed,
                               attention->rows.hidden);
}

static void run_block(const struct moec_attention *whole, struct moec_batch batch, uint32_t first_row)
{
    const struct moec_forward *forward = whole->forward;
    const struct moec_config *config = &forward->model->config;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    struct moec_attention attention = *whole;
    attention.rows = (struct moec_attention_rows){.spans = batch.spans,
                                                  .n_spans = batch.n_spans,
                                                  .first = first_row,
                                                  .n_tok = batch.n_tok,
                                                  .hidden = whole->rows.hidden + first_row * scratch->stride,
                                                  .has_own_keys = whole->rows.has_own_keys};
    const uint32_t n_tok = batch.n_tok;
    mark_rows(&attention);
    const size_t n_tiles = (n_tok + MOEC_TILE_TOKENS - 1) / MOEC_TILE_TOKENS;
    moec_forward_run(forward, n_tiles, (uint64_t)n_tok * config->n_embd, norm_rows, &attention);
    const bool is_latent = attention.kind->latent_dim > 0;
    if (is_latent)
        project_latent(&attention, scratch->normed);
    else
        project(&attention, scratch->normed);
    if (config->position.n_bucket == 0 && !is_latent)
        moec_forward_run(forward, n_tiles, n_tok * (uint64_t)moec_layer_q_dim(attention.kind), place_rows,
                         &attention);
    if (moec_layer_rounds_kv(attention.kind))
        moec_forward_run(forward, n_tiles, n_tok * (uint64_t)attention.layout.kv_stride, round_rows,
                         &attention);
    moec_attend(&attention);
    if (is_latent)
        moec_latent_expand(forward, attention.kind, attention.weights.latent.kv_up, n_tok);
    if (attention.weights.gate != NULL)
        gate_outputs(&attention, scratch->normed);
    add_outputs(&attention);
}

/* Whether each span begins where the one before it ends, from row 0 on. */
static bool spans_are_in_order(struct moec_batch batch)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < batch.n_spans; i++) {
        if (batch.spans[i].first_row != row)
            return false;
        row += batch.spans[i].n_rows;
    }
    return true;
}

static void run_blocks(const struct moec_attention *attention, struct moec_batch batch)
{
    const struct moec_span *spans = batch.spans;
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    const uint32_t block =
        scratch->test_hook.attention_block > 0 ? scratch->test_hook.attention_block : scratch->mixer.block;
    for (uint32_t first = 0, next = 0; first < batch.n_spans; first = next) {
        uint32_t rows = spans[next++].n_rows;
        while (next < batch.n_spans && rows + spans[next].n_rows <= block)
            rows += spans[next++].n_rows;
        run_block(attention, (struct moec_batch){spans + first, next - first, rows}, spans[first].first_row);
    }
}

static void run(const struct moec_attention *attention, struct moec_batch batch)
{
    if (spans_are_in_order(batch))
        run_blocks(attention, batch);
    else
        run_block(attention, batch, 0);
}

static struct moec_attention_layout layout_of(const struct moec_layer_kind *kind)
{
    const uint32_t key_dim = moec_layer_score_dim(kind), value_dim = moec_layer_weighed_dim(kind);
    const size_t head_bytes = moec_layer_kv_head_bytes(kind);
    return (struct moec_attention_layout){.kv_stride = moec_layer_kv_dim(kind),
                                          .kv_room = moec_layer_kv_room(kind),
                                          .head_bytes = head_bytes,
                                          .group_bytes = kind->latent_dim > 0 ? 0 : head_bytes,
                                          .key_dim = key_dim,
                                          .value_dim = value_dim,
                                          .head_stride = moec_lanes_padded(key_dim),
                                          .value_stride = moec_lanes_padded(value_dim)};
}

/* What both attentions of a layer have in common. */
static struct moec_attention attention_of(const struct moec_forward *forward, uint32_t layer, float *hidden)
{
    const struct moec_config *config = &forward->model->config;
    const uint32_t at = config->layer_kind[layer];
    const struct moec_layer_kind *kind = &config->kinds[at];
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const bool is_latent = kind->latent_dim > 0;
    const uint32_t group = moec_attention_group(kind);
    return (struct moec_attention){
        .forward = forward,
        .kind = kind,
        .rows.hidden = hidden,
        .positions = {.stack = moec_config_stack(config, layer),
                      .inverse_frequency = forward->model->inverse_frequency[at],
                      .rope = scratch->mixer.rope[at],
                      .rope_position = scratch->mixer.rope_position[at]},
        .layout = layout_of(kind),
        .queries = {.stride = is_latent ? moec_latent_token_floats(kind)
                                        : moec_lanes_padded(moec_layer_q_dim(kind)),
                    .outputs = is_latent ? moec_latent_queries(kind) : 0,
                    .scale = kind->score_scale > 0 ? kind->score_scale : 1.0f / sqrtf((float)kind->head_dim)},
        .items = {.tile = moec_attention_tile(kind, forward->max_tokens),
                  .group = group,
                  .n_group = kind->n_head / group,
                  .by_heads = !is_latent && moec_layer_score_dim(kind) % MOEC_CODEC_BLOCK == 0}};
}

static struct moec_projections self_weights(const struct moec_layer *layer)
{
    return (struct moec_projections){
        .norm = layer->attention_norm,
        .q = {&layer->q, layer->q_bias, layer->q_norm},
        .k = {&layer->k, layer->k_bias, layer->k_norm},
        .v = {layer->v.rows > 0 ? &layer->v : NULL, layer->v_bias, layer->v_norm},
        .o = {&layer->o, layer->o_bias, layer->attention_post_norm},
        .gate = layer->output_gate.rows > 0 ? &layer->output_gate : NULL,
        .sinks = layer->sinks,
        .latent = {&layer->q_down, &layer->kv_down, &layer->kv_up, layer->q_down_norm, layer->kv_down_norm}};
}

/* The learned vectors of the spans' positions. */
static void add_positions(const struct moec_forward *forward, const struct moec_matrix *positions,
                          struct moec_batch batch, float *hidden)
{
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    float *row = scratch->threads[0].row;
    for (uint32_t i = 0; i < batch.n_spans; i++) {
        const struct moec_span *span = &batch.spans[i];
        for (uint32_t t = 0; t < span->n_rows; t++) {
            const uint32_t position = moec_min_u32(span->first_position + t, positions->rows - 1);
            forward->kernels->decode_rows(positions, position, 1, row, scratch->stride);
            forward->kernels->add(row, positions->columns, hidden + (span->first_row + t) * scratch->stride);
        }
    }
}

static void run_self(const struct moec_forward *forward, uint32_t layer, const struct moec_layer *weights,
                     struct moec_batch batch, float *hidden)
{
    struct moec_attention attention = attention_of(forward, layer, hidden);
    if (weights->positions.rows > 0)
        add_positions(forward, &weights->positions, batch, hidden);
    attention.weights = self_weights(weights);
    attention.positions.bias = forward->model->position_bias[attention.positions.stack];
    attention.positions.is_causal = attention.positions.stack == MOEC_STACK_DECODER;
    attention.rows.has_own_keys = batch.n_spans == 0 || batch.spans[0].n_source == 0;
    run(&attention, batch);
}

static enum moec_status run_on_backend(const struct moec_forward *forward, uint32_t layer,
                                       struct moec_batch batch, float *hidden, struct moec_error *err)
{
    struct moec_backend *backend = forward->backend;
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    MOEC_TRY(backend->ops->attention(backend, layer, batch, hidden, err));
    moec_trace_compute(forward->trace, "attention", layer, begin_ns);
    return MOEC_OK;
}

enum moec_status moec_forward_attention(const struct moec_forward *forward, uint32_t layer,
                                        struct moec_batch batch, float *hidden, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, batch.n_tok, err));
    const struct moec_layer *weights = NULL;
    if (!moec_layer_mixes(moec_config_layer(&forward->model->config, layer)))
        return MOEC_OK;
    if (forward->backend != NULL)
        return run_on_backend(forward, layer, batch, hidden, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    if (moec_layer_is_running(moec_config_layer(&forward->model->config, layer)))
        moec_running_run(forward, layer, weights, batch, hidden);
    else
        run_self(forward, layer, weights, batch, hidden);
    moec_trace_compute(forward->trace, "attention", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}

enum moec_status moec_forward_cross(const struct moec_forward *forward, uint32_t layer,
                                    struct moec_batch batch, float *hidden, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, batch.n_tok, err));
    const struct moec_layer *weights = NULL;
    if (forward->backend != NULL)
        return forward->backend->ops->cross(forward->backend, layer, batch, hidden, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    struct moec_attention attention = attention_of(forward, layer, hidden);
    attention.weights = (struct moec_projections){
        .norm = weights->cross_norm, .q.matrix = &weights->cross_q, .o.matrix = &weights->cross_o};
    run(&attention, batch);
    moec_trace_compute(forward->trace, "cross", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}

/* Keys and values of inputs `x`. */
static void run_keys(const struct moec_forward *forward, const struct moec_matrix *k,
                     const struct moec_matrix *v, uint32_t n_tok, const float *x, struct moec_kv_rows out)
{
    struct moec_linear linear = {.forward = forward,
                                 .x = x,
                                 .x_stride = moec_forward_scratch(forward)->stride,
                                 .n_tok = n_tok,
                                 .n_parts = 2};
    linear.parts[0] = (struct moec_linear_part){k, NULL, moec_linear_store, out.keys, k->rows};
    linear.parts[1] = (struct moec_linear_part){v, NULL, moec_linear_store, out.values, v->rows};
    moec_linear_run(&linear);
}

enum moec_status moec_forward_keys(const struct moec_forward *forward, uint32_t layer, uint32_t n_tok,
                                   const float *hidden, struct moec_kv_rows out, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_layer *weights = NULL;
    if (forward->backend != NULL)
        return forward->backend->ops->keys(forward->backend, layer, n_tok, hidden, out, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    float *normed = moec_forward_scratch(forward)->normed;
    moec_forward_norm_batch(forward, weights->attention_norm, n_tok, hidden, normed);
    run_keys(forward, &weights->k, &weights->v, n_tok, normed, out);
    moec_trace_compute(forward->trace, "attention", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}

enum moec_status moec_forward_cross_keys(const struct moec_forward *forward, uint32_t layer, uint32_t n_tok,
                                         const float *encoded, struct moec_kv_rows out,
                                         struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_layer *weights = NULL;
    if (forward->backend != NULL)
        return forward->backend->ops->cross_keys(forward->backend, layer, n_tok, encoded, out, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    run_keys(forward, &weights->cross_k, &weights->cross_v, n_tok, encoded, out);
    moec_trace_compute(forward->trace, "cross", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}
