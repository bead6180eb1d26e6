/* For each value head and token, with state S, decay d, rate r, key k, value v and query q:      S <- d S;
 * delta = r (v - k S), or r v of a state space;  S <- S + k delta;  out = q S, plus a skip's v  Tokens of a
 * head go in order on one thread; heads are shared. The convolution is done in place from the last row back,
 * since each row reads those before it. As in torch, softplus is x from 20 on. Decays are made in F64 and
 * rounded once. */
#include "runtime/forward/attention/running.h"

#include "runtime/forward/context/linear.h"
#include "runtime/forward/context/steps.h"

#include <string.h>

#define COLUMNS MOEC_RUNNING_COLUMNS

/* A layer at work on a batch. */
struct running {
    const struct moec_forward *forward;
    const struct moec_layer_kind *kind;
    const struct moec_layer *weights;
    struct moec_batch batch;
    struct moec_running_row layout;
    size_t stride; /* of rows */
    float *rows;   /* (n_tok, stride), in scratch */
};

static void run_tokens(const struct running *r, uint64_t floats_each, moec_parallel_body *body)
{
    moec_forward_run(r->forward, moec_tile_count(r->batch.n_tok), r->batch.n_tok * floats_each, body,
                     (void *)r);
}

/* ---- convolution ---- */

/* A block of channels of a span's rows: first .. first + n - 1. */
struct block {
    const struct moec_span *span;
    uint32_t first, n;
    float *tail; /* (conv_size - 1, COLUMNS): the rows before row 0, oldest first */
};

static void load_tail(const struct running *r, struct block block)
{
    const struct moec_span *span = block.span;
    const uint32_t n = block.n;
    float *tail = block.tail;
    const uint32_t n_tail = r->kind->conv_size - 1, channels = moec_layer_channels(r->kind);
    for (uint32_t i = 0; i < n_tail; i++) {
        if (span->state.in == NULL)
            memset(tail + i * COLUMNS, 0, n * sizeof *tail);
        else
            memcpy(tail + i * COLUMNS, span->state.in + (size_t)i * channels + block.first, n * sizeof *tail);
    }
}

/* The row that stands `back` rows before row t of the span: in the batch, or in the tail. */
static const float *row_before(const struct running *r, struct block block, uint32_t t, uint32_t back)
{
    if (t >= back)
        return r->rows + (size_t)(block.span->first_row + t - back) * r->stride + block.first;
    return block.tail + (r->kind->conv_size - 1 - (back - t)) * COLUMNS;
}

/* The rows that come before row t, as they stand in a state. */
static void store_tail(const struct running *r, struct block block, uint32_t t, float *state)
{
    const uint32_t n_tail = r->kind->conv_size - 1, channels = moec_layer_channels(r->kind);
    for (uint32_t i = 0; i < n_tail && state != NULL; i++)
        memcpy(state + (size_t)i * channels + block.first, row_before(r, block, t, n_tail - i),
               block.n * sizeof *state);
}

/* Every output needs rows that outputs replace, so the last one comes first. */
static void convolve_span(const struct running *r, const struct moec_span *span, uint32_t first, uint32_t n)
{
    const uint32_t n_tail = r->kind->conv_size - 1;
    const size_t weight_stride = moec_lanes_padded(moec_layer_channels(r->kind));
    float tail[(MOEC_MAX_CONVOLUTION - 1) * COLUMNS], sums[COLUMNS], ones[COLUMNS];
    for (uint32_t c = 0; c < COLUMNS; c++)
        ones[c] = 1.0f;
    const struct block block = {span, first, n, tail};
    load_tail(r, block);
    store_tail(r, block, span->state.n_before_copy, span->state.copy);
    store_tail(r, block, span->n_rows, span->state.out);
    for (uint32_t t = span->n_rows; t-- > 0;) {
        if (r->weights->convolution_bias != NULL)
            memcpy(sums, r->weights->convolution_bias + first, n * sizeof *sums);
        else
            memset(sums, 0, n * sizeof *sums);
        for (uint32_t i = 0; i <= n_tail; i++) {
            const float *row = row_before(r, block, t, n_tail - i);
            const float *weight = r->weights->convolution + i * weight_stride + first;
            for (uint32_t c = 0; c < n; c++)
                sums[c] += weight[c] * row[c];
        }
        float *out = r->rows + (size_t)(span->first_row + t) * r->stride + first;
        if (moec_layer_has_matrices(r->kind))
            r->forward->kernels->silu_mul(sums, ones, n, out);
        else
            memcpy(out, sums, n * sizeof *out);
    }
}

static void convolve_item(void *context, size_t item, int thread)
{
    (void)thread;
    const struct running *r = context;
    const uint32_t channels = moec_layer_channels(r->kind), n_blocks = (channels - 1) / COLUMNS + 1;
    const uint32_t first = (uint32_t)(item % n_blocks) * COLUMNS;
    convolve_span(r, &r->batch.spans[item / n_blocks], first, moec_min_u32(COLUMNS, channels - first));
}

static void convolve(const struct running *r)
{
    const uint32_t channels = moec_layer_channels(r->kind);
    const size_t n_items = (size_t)r->batch.n_spans * ((channels - 1) / COLUMNS + 1);
    moec_forward_run(r->forward, n_items, (uint64_t)r->batch.n_tok * channels * r->kind->conv_size,
                     convolve_item, (void *)r);
}

/* ---- products ---- */

static void multiply(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                     uint32_t row, uint32_t n, const float *y)
{
    (void)linear;
    float *out = part->out + token * part->out_stride + row;
    for (uint32_t i = 0; i < n; i++)
        out[i] *= y[i];
}

static struct moec_linear product_of(const struct running *r)
{
    const struct moec_scratch *scratch = moec_forward_scratch(r->forward);
    return (struct moec_linear){
        .forward = r->forward, .x = scratch->normed, .x_stride = scratch->stride, .n_tok = r->batch.n_tok};
}

static void add_part(const struct running *r, struct moec_linear *linear, const struct moec_matrix *matrix,
                     moec_linear_sink *sink, size_t at)
{
    linear->parts[linear->n_parts++] = (struct moec_linear_part){matrix, NULL, sink, r->rows + at, r->stride};
}

/* The output product of what stands where values stood, into the hidden state: at once, or by way of
 * `normed`, whose inputs are used up. */
static void add_outputs(const struct running *r, float *hidden)
{
    struct moec_scratch *scratch = moec_forward_scratch(r->forward);
    const float *post_norm = r->weights->attention_post_norm;
    const bool is_plain = moec_forward_adds_plainly(r->forward, post_norm);
    const size_t n_out = moec_layer_out_dim(r->kind), padded = moec_lanes_padded(n_out);
    for (uint32_t t = 0; t < r->batch.n_tok; t++)
        memset(r->rows + t * r->stride + r->layout.values + n_out, 0, (padded - n_out) * sizeof(float));
    struct moec_linear o = {.forward = r->forward,
                            .x = r->rows + r->layout.values,
                            .x_stride = r->stride,
                            .n_tok = r->batch.n_tok,
                            .n_parts = 1};
    o.parts[0] =
        (struct moec_linear_part){&r->weights->o, NULL, is_plain ? moec_linear_add : moec_linear_store,
                                  is_plain ? hidden : scratch->normed, scratch->stride};
    moec_linear_run(&o);
    if (!is_plain)
        moec_forward_add_batch(r->forward, post_norm, r->batch.n_tok, scratch->normed, hidden);
}

/* ---- short convolution ---- */

static void run_convolution(const struct running *r)
{
    struct moec_linear values = product_of(r), gate = product_of(r), output_gate = product_of(r);
    add_part(r, &values, &r->weights->v, moec_linear_store, r->layout.values);
    moec_linear_run(&values);
    add_part(r, &gate, &r->weights->input_gate, multiply, r->layout.values);
    moec_linear_run(&gate);
    convolve(r);
    add_part(r, &output_gate, &r->weights->output_gate, multiply, r->layout.values);
    moec_linear_run(&output_gate);
}

/* ---- layers with matrices: gated delta rule and state space ---- */

/* log(1 + e^x); from 20 on x, as in torch. */
static double softplus(double x)
{
    return x > 20 ? x : moec_log_f64(1 + moec_exp_f64(x));
}

/* Rate and decays of a value head: dt = softplus(a + bias), at least step_min; decay exp(-e^A dt); the rate
 * of a state space is dt, that of the delta rule sigmoid(b). */
static void prepare_head(const struct running *r, uint32_t head, float *row)
{
    const uint32_t n = moec_layer_decays(r->kind) / r->kind->n_head;
    const float *bias = r->weights->decay_bias + (size_t)head * n;
    float *rate = row + r->layout.rate + head, *decay = row + r->layout.decay + (size_t)head * n;
    const double factor = moec_exp_f64((double)r->weights->decay_log[head]);
    if (r->kind->mixer != MOEC_MIXER_SPACE)
        *rate = 1.0f / (1.0f + moec_exp_f32(-*rate));
    for (uint32_t i = 0; i < n; i++) {
        const double step = softplus((double)(decay[i] + bias[i]));
        const double least = (double)r->kind->step_min, dt = step > least ? step : least;
        if (r->kind->mixer == MOEC_MIXER_SPACE)
            *rate = (float)dt;
        decay[i] = (float)moec_exp_f64(-factor * dt);
    }
}

/* What each value head needs; of the delta rule also queries and keys of length 1, queries times
 * head_dim^-0.5. */
static void prepare_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct running *r = context;
    const struct moec_layer_kind *kind = r->kind;
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS, dim = kind->head_dim;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, r->batch.n_tok - first);
    const float eps = MOEC_DELTA_NORM_EPS / (float)dim;
    for (uint32_t t = first; t < end; t++) {
        float *row = r->rows + t * r->stride, *keys = row + r->layout.keys;
        for (uint32_t head = 0; moec_layer_is_delta(kind) && head < kind->n_kv_head; head++) {
            float *q = row + (size_t)head * dim, *k = keys + (size_t)head * dim;
            r->forward->kernels->rms_norm(q, r->weights->q_norm, eps, dim, q);
            r->forward->kernels->rms_norm(k, r->weights->k_norm, eps, dim, k);
        }
        for (uint32_t head = 0; head < kind->n_head; head++)
            prepare_head(r, head, row);
    }
}

/* out[c] = sum over i of h[i] S[i][c]. */
static void sum_state(const struct running *r, const float *h, const float *s, uint32_t columns, float *out)
{
    float part[COLUMNS];
    for (uint32_t i = 0; i < r->kind->head_dim; i += MOEC_SUM_CHUNK) {
        const uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, r->kind->head_dim - i);
        r->forward->kernels->sum_chunk(h + i, n, 1, s + (size_t)i * COLUMNS, COLUMNS, n, columns,
                                       i == 0 ? out : part, COLUMNS);
        if (i > 0)
            r->forward->kernels->add(part, columns, out);
    }
}

/* Columns of one value head's state, and the token that passes it. */
struct columns {
    uint32_t head, first, n;
    float *s; /* (head_dim, COLUMNS) */
};

static void decay_state(const struct running *r, const struct columns *at, const float *row)
{
    const uint32_t dim = r->kind->head_dim;
    const float *decay = row + r->layout.decay;
    if (r->kind->mixer != MOEC_MIXER_CHANNEL_DELTA) {
        moec_scale_lanes(at->s, (size_t)dim * COLUMNS, decay[at->head]);
        return;
    }
    for (uint32_t i = 0; i < dim; i++)
        moec_scale_lanes(at->s + (size_t)i * COLUMNS, COLUMNS, decay[(size_t)at->head * dim + i]);
}

static void pass_token(const struct running *r, const struct columns *at, float *row)
{
    const uint32_t dim = r->kind->head_dim, key_head = at->head / (r->kind->n_head / r->kind->n_kv_head);
    const float *q = row + r->layout.queries + (size_t)key_head * dim;
    const float *k = row + r->layout.keys + (size_t)key_head * dim;
    float *v = row + r->layout.values + (size_t)at->head * moec_layer_value_dim(r->kind) + at->first;
    const float rate = row[r->layout.rate + at->head];
    const bool is_delta = moec_layer_is_delta(r->kind);
    float delta[COLUMNS] = {0}, out[COLUMNS];
    decay_state(r, at, row);
    if (is_delta)
        sum_state(r, k, at->s, at->n, delta);
    for (uint32_t c = 0; c < at->n; c++)
        delta[c] = rate * (v[c] - delta[c]);
    for (uint32_t i = 0; i < dim; i++)
        r->forward->kernels->add_scaled(k[i], delta, at->n, at->s + (size_t)i * COLUMNS);
    sum_state(r, q, at->s, at->n, out);
    for (uint32_t c = 0; c < at->n; c++)
        v[c] = is_delta ? out[c] : out[c] + r->weights->skip[at->head] * v[c];
}

/* Where the columns' row i stands in a state. */
static size_t place_in_state(const struct running *r, const struct columns *at, uint32_t i)
{
    const size_t stride = moec_lanes_padded(moec_layer_value_dim(r->kind));
    return moec_running_tail_floats(r->kind) + ((size_t)at->head * r->kind->head_dim + i) * stride +
           at->first;
}

static void store_columns(const struct running *r, const struct columns *at, float *state)
{
    for (uint32_t i = 0; i < r->kind->head_dim && state != NULL; i++)
        memcpy(state + place_in_state(r, at, i), at->s + (size_t)i * COLUMNS,
               moec_lanes_padded(at->n) * sizeof(float));
}

static void pass_span(const struct running *r, const struct moec_span *span, const struct columns *at)
{
    const uint32_t dim = r->kind->head_dim;
    memset(at->s, 0, (size_t)dim * COLUMNS * sizeof(float));
    for (uint32_t i = 0; i < dim && span->state.in != NULL; i++)
        memcpy(at->s + (size_t)i * COLUMNS, span->state.in + place_in_state(r, at, i),
               moec_lanes_padded(at->n) * sizeof(float));
    for (uint32_t t = 0; t < span->n_rows; t++) {
        if (t == span->state.n_before_copy)
            store_columns(r, at, span->state.copy);
        pass_token(r, at, r->rows + (size_t)(span->first_row + t) * r->stride);
    }
    store_columns(r, at, span->state.out);
}

static void pass_item(void *context, size_t item, int thread)
{
    const struct running *r = context;
    const uint32_t dim = moec_layer_value_dim(r->kind), n_blocks = (dim - 1) / COLUMNS + 1;
    const uint32_t first = (uint32_t)(item % n_blocks) * COLUMNS;
    const struct columns at = {.head = (uint32_t)(item / n_blocks % r->kind->n_head),
                               .first = first,
                               .n = moec_min_u32(COLUMNS, dim - first),
                               .s = moec_forward_scratch(r->forward)->threads[thread].running};
    pass_span(r, &r->batch.spans[item / n_blocks / r->kind->n_head], &at);
}

/* Outputs of each head normed, then times silu of their gate, or its sigmoid; of a state space the other way
 * round, each group of heads with its part of the weights. */
static void gate_row(const struct running *r, const float *gate, float *out)
{
    const struct moec_kernels *kernels = r->forward->kernels;
    const bool is_space = r->kind->mixer == MOEC_MIXER_SPACE;
    const float eps = (float)r->forward->model->config.rms_eps;
    const uint32_t n = moec_layer_out_dim(r->kind), n_norm = is_space ? r->kind->n_kv_head : r->kind->n_head;
    const size_t dim = n / n_norm;
    if (is_space)
        kernels->silu_mul(gate, out, n, out);
    for (uint32_t i = 0; i < n_norm; i++)
        kernels->rms_norm(out + i * dim, r->weights->delta_norm + (is_space ? i * dim : 0), eps, dim,
                          out + i * dim);
    if (r->kind->mixer == MOEC_MIXER_DELTA)
        kernels->silu_mul(gate, out, n, out);
    for (uint32_t i = 0; r->kind->mixer == MOEC_MIXER_CHANNEL_DELTA && i < n; i++)
        out[i] *= 1.0f / (1.0f + moec_exp_f32(-gate[i]));
}

static void gate_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct running *r = context;
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, r->batch.n_tok - first);
    for (uint32_t t = first; t < end; t++) {
        float *row = r->rows + t * r->stride;
        gate_row(r, row + r->layout.gate, row + r->layout.values);
    }
}

/* Product of a latent at `from` in each row. */
static void run_latent(const struct running *r, size_t from, const struct moec_matrix *matrix, size_t to)
{
    const size_t dim = r->kind->head_dim, padded = moec_lanes_padded(dim);
    for (uint32_t t = 0; t < r->batch.n_tok; t++)
        memset(r->rows + t * r->stride + from + dim, 0, (padded - dim) * sizeof(float));
    struct moec_linear product = product_of(r);
    product.x = r->rows + from;
    product.x_stride = r->stride;
    add_part(r, &product, matrix, moec_linear_store, to);
    moec_linear_run(&product);
}

static void run_matrices(const struct running *r)
{
    const struct moec_layer_kind *kind = r->kind;
    const uint32_t n_blocks = (moec_layer_value_dim(kind) - 1) / COLUMNS + 1;
    const uint64_t channels = moec_layer_channels(kind);
    const bool has_latents = kind->mixer == MOEC_MIXER_CHANNEL_DELTA;
    const struct moec_matrix *gate = has_latents ? &r->weights->output_gate_down : &r->weights->output_gate;
    const struct moec_matrix *decay = has_latents ? &r->weights->delta_decay_down : &r->weights->delta_decay;
    struct moec_linear inputs = product_of(r);
    add_part(r, &inputs, &r->weights->q, moec_linear_store, r->layout.queries);
    add_part(r, &inputs, &r->weights->k, moec_linear_store, r->layout.keys);
    add_part(r, &inputs, &r->weights->v, moec_linear_store, r->layout.values);
    add_part(r, &inputs, gate, moec_linear_store, has_latents ? r->layout.gate_latent : r->layout.gate);
    if (moec_layer_is_delta(kind))
        add_part(r, &inputs, &r->weights->delta_rate, moec_linear_store, r->layout.rate);
    add_part(r, &inputs, decay, moec_linear_store, has_latents ? r->layout.decay_latent : r->layout.decay);
    moec_linear_run(&inputs);
    if (has_latents) {
        run_latent(r, r->layout.gate_latent, &r->weights->output_gate, r->layout.gate);
        run_latent(r, r->layout.decay_latent, &r->weights->delta_decay, r->layout.decay);
    }
    convolve(r);
    run_tokens(r, channels, prepare_tile);
    moec_forward_run(r->forward, (size_t)r->batch.n_spans * kind->n_head * n_blocks,
                     3 * (uint64_t)r->batch.n_tok * moec_layer_out_dim(kind) * kind->head_dim, pass_item,
                     (void *)r);
    run_tokens(r, channels, gate_tile);
}

void moec_running_run(const struct moec_forward *forward, uint32_t layer, const struct moec_layer *weights,
                      struct moec_batch batch, float *hidden)
{
    const struct moec_layer_kind *kind = moec_config_layer(&forward->model->config, layer);
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const struct moec_running_row layout = moec_running_row_of(kind);
    const struct running r = {.forward = forward,
                              .kind = kind,
                              .weights = weights,
                              .batch = batch,
                              .layout = layout,
                              .stride = layout.end,
                              .rows = scratch->mixer.q};
    moec_forward_norm_batch(forward, weights->attention_norm, batch.n_tok, hidden, scratch->normed);
    if (moec_layer_has_matrices(kind))
        run_matrices(&r);
    else
        run_convolution(&r);
    add_outputs(&r, hidden);
}
