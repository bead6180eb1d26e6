/* Running layers on a GPU, as runtime/forward/attention/running.c has them. */
#include "runtime/cuda/gpu_pass.h"
#include "runtime/forward/attention/running.h"

/* A layer at work on a batch. */
struct running {
    const struct moec_gpu_backend *b;
    const struct moec_layer_kind *kind;
    const struct moec_layer *weights;
    uint32_t n_tok, n_spans;
    const struct moec_cuda_state *states; /* of the spans, the device's */
    struct moec_running_row row;
};

static struct moec_cuda_rows rows_at(const struct running *r, size_t offset)
{
    return moec_gpu_rows(r->b->room.mixer + offset, r->b->strides.mixer);
}

/* A product of the normed rows. */
static void multiply(const struct running *r, const struct moec_matrix *matrix, size_t to,
                     enum moec_cuda_sink sink)
{
    moec_gpu_multiply(r->b, (struct moec_gpu_dense){matrix, NULL}, r->n_tok,
                      moec_gpu_rows(r->b->room.inputs.normed, r->b->strides.row), rows_at(r, to), sink);
}

/* What rates are made of. */
static void multiply_canonical(const struct running *r, const struct moec_matrix *matrix, size_t to)
{
    moec_gpu_multiply_canonical(r->b, matrix, r->n_tok,
                                moec_gpu_rows(r->b->room.inputs.normed, r->b->strides.row), rows_at(r, to));
}

/* The product of a latent, which the normed rows give first. */
static void multiply_latent(const struct running *r, const struct moec_matrix *down, size_t latent,
                            const struct moec_matrix *matrix, size_t to)
{
    multiply(r, down, latent, MOEC_CUDA_STORE);
    moec_gpu_pad(r->b, r->n_tok, r->kind->head_dim, rows_at(r, latent));
    moec_gpu_multiply(r->b, (struct moec_gpu_dense){matrix, NULL}, r->n_tok, rows_at(r, latent),
                      rows_at(r, to), MOEC_CUDA_STORE);
}

static void multiply_latent_canonical(const struct running *r, const struct moec_matrix *down, size_t latent,
                                      const struct moec_matrix *matrix, size_t to)
{
    multiply_canonical(r, down, latent);
    moec_gpu_pad(r->b, r->n_tok, r->kind->head_dim, rows_at(r, latent));
    moec_gpu_multiply_canonical(r->b, matrix, r->n_tok, rows_at(r, latent), rows_at(r, to));
}

static void convolve(const struct running *r)
{
    const uint32_t n_channel = moec_layer_channels(r->kind);
    const struct moec_cuda_convolution step = {
        .states = {.each = r->states, .n = r->n_spans},
        .n_channel = n_channel,
        .conv_size = r->kind->conv_size,
        .weights = {.first = r->weights->convolution, .stride = moec_lanes_padded(n_channel)},
        .bias = r->weights->convolution_bias,
        .has_silu = moec_layer_has_matrices(r->kind),
        .x = {.first = r->b->room.mixer, .stride = r->b->strides.mixer}};
    r->b->kernels->convolution(r->b->stream, &step);
}

static void run_convolution(const struct running *r)
{
    multiply(r, &r->weights->v, r->row.values, MOEC_CUDA_STORE);
    multiply(r, &r->weights->input_gate, r->row.values, MOEC_CUDA_MULTIPLY);
    convolve(r);
    multiply(r, &r->weights->output_gate, r->row.values, MOEC_CUDA_MULTIPLY);
}

/* ---- layers with matrices ---- */

static void project(const struct running *r)
{
    const struct moec_layer *weights = r->weights;
    multiply(r, &weights->q, r->row.queries, MOEC_CUDA_STORE);
    multiply(r, &weights->k, r->row.keys, MOEC_CUDA_STORE);
    multiply(r, &weights->v, r->row.values, MOEC_CUDA_STORE);
    if (moec_layer_is_delta(r->kind))
        multiply_canonical(r, &weights->delta_rate, r->row.rate);
    if (r->kind->mixer == MOEC_MIXER_CHANNEL_DELTA) {
        multiply_latent(r, &weights->output_gate_down, r->row.gate_latent, &weights->output_gate,
                        r->row.gate);
        multiply_latent_canonical(r, &weights->delta_decay_down, r->row.decay_latent, &weights->delta_decay,
                                  r->row.decay);
    } else {
        multiply(r, &weights->output_gate, r->row.gate, MOEC_CUDA_STORE);
        multiply_canonical(r, &weights->delta_decay, r->row.decay);
    }
}

/* Queries and keys of the delta rule, rates and decays. */
static void prepare(const struct running *r)
{
    const struct moec_gpu_backend *b = r->b;
    const struct moec_layer_kind *kind = r->kind;
    const float eps = MOEC_DELTA_NORM_EPS / (float)kind->head_dim;
    if (moec_layer_is_delta(kind)) {
        moec_gpu_norm_parts(b, r->weights->q_norm, eps, r->n_tok,
                            (struct moec_gpu_parts){kind->n_kv_head, kind->head_dim},
                            rows_at(r, r->row.queries));
        moec_gpu_norm_parts(b, r->weights->k_norm, eps, r->n_tok,
                            (struct moec_gpu_parts){kind->n_kv_head, kind->head_dim},
                            rows_at(r, r->row.keys));
    }
    const struct moec_cuda_rates step = {.rates = b->room.mixer + r->row.rate,
                                         .decays = b->room.mixer + r->row.decay,
                                         .stride = b->strides.mixer,
                                         .n_tok = r->n_tok,
                                         .n_head = kind->n_head,
                                         .decay = {.n = moec_layer_decays(kind) / kind->n_head,
                                                   .log = r->weights->decay_log,
                                                   .bias = r->weights->decay_bias},
                                         .step_min = kind->step_min,
                                         .is_space = kind->mixer == MOEC_MIXER_SPACE};
    b->kernels->rates(b->stream, &step);
}

static void pass(const struct running *r)
{
    const struct moec_layer_kind *kind = r->kind;
    const struct moec_cuda_recurrence step = {
        .states = {.each = r->states, .n = r->n_spans},
        .heads = {.n_head = kind->n_head,
                  .n_key_head = kind->n_kv_head,
                  .key_dim = kind->head_dim,
                  .value_dim = moec_layer_value_dim(kind),
                  .n_decay = moec_layer_decays(kind) / kind->n_head},
        .state_offset = moec_running_tail_floats(kind),
        .at = {.queries = r->row.queries,
               .keys = r->row.keys,
               .values = r->row.values,
               .rates = r->row.rate,
               .decays = r->row.decay},
        .skip = r->weights->skip,
        .x = {.first = r->b->room.mixer, .stride = r->b->strides.mixer}};
    r->b->kernels->recurrence(r->b->stream, &step);
}

/* Outputs normed and gated; of a state space the other way round, each group of heads with its part of the
 * weights. */
static void gate(const struct running *r)
{
    const struct moec_gpu_backend *b = r->b;
    const bool is_space = r->kind->mixer == MOEC_MIXER_SPACE;
    const uint32_t n = moec_layer_out_dim(r->kind), n_part = is_space ? r->kind->n_kv_head : r->kind->n_head;
    const struct moec_cuda_rows values = rows_at(r, r->row.values);
    const struct moec_cuda_gating step = {.gate = rows_at(r, r->row.gate),
                                          .y = values,
                                          .n_tok = r->n_tok,
                                          .n = n,
                                          .is_sigmoid = r->kind->mixer == MOEC_MIXER_CHANNEL_DELTA};
    const struct moec_cuda_norm norm = {.x = values,
                                        .out = values,
                                        .n_tok = r->n_tok,
                                        .parts = {.n_part = n_part, .n = n / n_part},
                                        .by = {.weight = r->weights->delta_norm,
                                               .step = is_space ? n / n_part : 0,
                                               .eps = (float)b->config->rms_eps}};
    if (is_space)
        b->kernels->gating(b->stream, &step);
    b->kernels->norm(b->stream, &norm);
    if (!is_space)
        b->kernels->gating(b->stream, &step);
}

/* ---- the layer ---- */

static enum moec_status send_states(struct moec_gpu_backend *b, struct moec_batch batch,
                                    const struct moec_cuda_state **out, struct moec_error *err)
{
    const uint64_t n_bytes = batch.n_spans * sizeof(struct moec_cuda_state);
    struct moec_cuda_state *states = moec_gpu_staging_take(&b->staging, n_bytes);
    const void *device = NULL;
    for (uint32_t i = 0; i < batch.n_spans; i++)
        states[i] = (struct moec_cuda_state){.first_row = batch.spans[i].first_row,
                                             .n_rows = batch.spans[i].n_rows,
                                             .n_before_copy = batch.spans[i].state.n_before_copy,
                                             .state_in = batch.spans[i].state.in,
                                             .state_out = batch.spans[i].state.out,
                                             .state_copy = batch.spans[i].state.copy};
    MOEC_TRY(moec_gpu_staging_send(&b->staging, states, n_bytes, &device, err));
    *out = device;
    return MOEC_OK;
}

enum moec_status moec_gpu_running(struct moec_gpu_backend *b, uint32_t layer, struct moec_batch batch,
                                  float *hidden, struct moec_error *err)
{
    const struct moec_layer *weights = &b->model->layers[layer];
    struct running r = {.b = b,
                        .kind = moec_config_layer(b->config, layer),
                        .weights = weights,
                        .n_tok = batch.n_tok,
                        .n_spans = batch.n_spans};
    r.row = moec_running_row_of(r.kind);
    MOEC_TRY(send_states(b, batch, &r.states, err));
    moec_gpu_norm(b, weights->attention_norm, batch.n_tok, hidden, b->room.inputs.normed);
    if (moec_layer_has_matrices(r.kind)) {
        project(&r);
        convolve(&r);
        prepare(&r);
        pass(&r);
        gate(&r);
    } else {
        run_convolution(&r);
    }
    moec_gpu_add_outputs(b, (struct moec_gpu_dense){&weights->o, NULL}, weights->attention_post_norm,
                         batch.n_tok, rows_at(&r, r.row.values), hidden);
    return moec_gpu_check(b, err);
}
