/* Windows of a batch share products but never keys: each is a span of its own. So batches do not show in
 * results. Batches share the rows evenly, since a small last one would decode its experts for few tokens.
 * Keys and values have room for one layer and batch, unless the caller keeps them. An encoder's rows stand
 * before all others of the run. */
#include "profiler/evaluate/sweep.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "runtime/forward/moe/decide.h"

#include <inttypes.h>
#include <string.h>

/* Rows of window w in layers of a stack. */
static uint32_t rows_of(const struct moec_sweep *sweep, enum moec_stack stack, uint32_t w)
{
    const uint64_t *start = stack == MOEC_STACK_ENCODER ? sweep->source_start : sweep->row_start;
    return (uint32_t)(start[w + 1] - start[w]);
}

uint32_t moec_sweep_max_tokens(const struct moec_windows *windows)
{
    const struct moec_work_memory *work = windows->work;
    const bool bounded = work != NULL && work->batch_tokens > 0 && work->batch_tokens < MOEC_SWEEP_TOKENS;
    uint32_t longest = bounded ? work->batch_tokens : MOEC_SWEEP_TOKENS;
    uint64_t n_source = 0, n_other = 0;
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const uint32_t source = moec_windows_source(windows, w), other = windows->length[w] - source;
        longest = source > longest ? source : longest;
        longest = other > longest ? other : longest;
        n_source += source;
        n_other += other;
    }
    const uint64_t all = n_source > n_other ? n_source : n_other;
    return all < longest ? (uint32_t)all : longest;
}

/* starts (W + 1): sums of what each window has in the layers of a stack. */
static enum moec_status list_rows(const struct moec_sweep *sweep, enum moec_stack stack, uint64_t **starts,
                                  struct moec_error *err)
{
    const struct moec_windows *windows = sweep->windows;
    MOEC_TRY(moec_alloc((void **)starts, (uint64_t)windows->n_window + 1, sizeof(uint64_t),
                        "rows of the windows", err));
    for (uint32_t w = 0; w < windows->n_window; w++) {
        uint32_t n = stack == MOEC_STACK_ENCODER ? windows->source[w]
                     : sweep->whole              ? moec_windows_read(windows, stack, w)
                                                 : windows->scored[w];
        if (n > sweep->forward->max_tokens)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "window %" PRIu32 " has %" PRIu32 " tokens, but a batch holds at most %" PRIu32,
                             w, n, sweep->forward->max_tokens);
        (*starts)[w + 1] = (*starts)[w] + n;
    }
    return MOEC_OK;
}

/* Sources and the decoder's rows never are at work together. */
static enum moec_status create_predicted(struct moec_sweep *sweep, struct moec_error *err)
{
    const uint32_t n = sweep->windows->n_window;
    const uint64_t n_source = moec_sweep_source_rows(sweep, 0, n), n_row = moec_sweep_rows(sweep, 0, n);
    return moec_alloc((void **)&sweep->predicted,
                      (n_source > n_row ? n_source : n_row) *
                          moec_precision_predicted_words(&sweep->forward->model->config),
                      sizeof *sweep->predicted, "experts that layers foresee", err);
}

/* What attention needs. */
static enum moec_status create_keys(struct moec_sweep *sweep, struct moec_error *err)
{
    const struct moec_forward *forward = sweep->forward;
    const struct moec_config *config = &forward->model->config;
    const struct moec_kv_layers layers = {0, config->n_layer, MOEC_KV_ONE_LAYER, forward->max_tokens};
    MOEC_TRY(moec_kv_state_create(config, layers, "keys and values of a batch", &sweep->kv, err));
    if (sweep->windows->source == NULL)
        return MOEC_OK;
    return moec_kv_state_create(config, layers, "keys and values of sources", &sweep->source_kv, err);
}

static enum moec_status create(const struct moec_forward *forward, const struct moec_windows *windows,
                               bool whole, bool attends, struct moec_sweep *sweep, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    *sweep = (struct moec_sweep){.forward = forward, .windows = windows, .whole = whole};
    MOEC_TRY_OUT(list_rows(sweep, MOEC_STACK_DECODER, &sweep->row_start, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&sweep->spans, windows->n_window, sizeof *sweep->spans, "spans of a batch", err));
    const uint32_t most = forward->max_tokens;
    const struct moec_route *route = forward->decider != NULL ? forward->decider->route : NULL;
    MOEC_TRY_OUT(moec_batch_sequences_create(config, windows->n_window < most ? windows->n_window : most,
                                             route, &sweep->sequences, err));
    if (windows->source != NULL)
        MOEC_TRY_OUT(list_rows(sweep, MOEC_STACK_ENCODER, &sweep->source_start, err));
    if (attends)
        MOEC_TRY_OUT(create_keys(sweep, err));
    if (route != NULL && route->precision.kind == MOEC_PRECISION_FATE)
        MOEC_TRY_OUT(create_predicted(sweep, err));
out:
    if (status != MOEC_OK)
        moec_sweep_release(sweep);
    return status;
}

enum moec_status moec_sweep_create(const struct moec_forward *forward, const struct moec_windows *windows,
                                   bool whole, struct moec_sweep *sweep, struct moec_error *err)
{
    return create(forward, windows, whole, true, sweep, err);
}

enum moec_status moec_sweep_create_shown(const struct moec_forward *forward,
                                         const struct moec_windows *windows, struct moec_sweep *sweep,
                                         struct moec_error *err)
{
    return create(forward, windows, false, false, sweep, err);
}

void moec_sweep_release(struct moec_sweep *sweep)
{
    free(sweep->row_start);
    free(sweep->source_start);
    moec_kv_state_release(&sweep->kv);
    moec_kv_state_release(&sweep->source_kv);
    free(sweep->spans);
    moec_batch_sequences_release(&sweep->sequences);
    free(sweep->predicted);
    *sweep = (struct moec_sweep){0};
}

/* A run: windows, and the rows that it has in each stack. */
struct run {
    uint32_t first, end;
    uint64_t n_source, n_row;
};

static struct run run_of(const struct moec_sweep *sweep, struct moec_window_range windows)
{
    return (struct run){.first = windows.first,
                        .end = windows.first + windows.n,
                        .n_source = moec_sweep_source_rows(sweep, windows.first, windows.n),
                        .n_row = moec_sweep_rows(sweep, windows.first, windows.n)};
}

/* Rows of the run before those of the stack, and before a batch's sources. */
static uint64_t rows_before(const struct run *run, enum moec_stack stack)
{
    return stack == MOEC_STACK_ENCODER ? 0 : run->n_source;
}

/* The next windows that fit the forward together, in the decoder with their sources. As many batches as there
 * must be share the rows evenly: the few that would be left for a last one cost its experts as much to
 * decode.
 */
static struct moec_sweep_batch next_batch(const struct moec_sweep *sweep, const struct run *run,
                                          enum moec_stack stack, uint32_t first)
{
    const uint64_t *start = stack == MOEC_STACK_ENCODER ? sweep->source_start : sweep->row_start;
    const uint32_t most = sweep->forward->max_tokens;
    const uint64_t left = start[run->end] - start[first], n_batch = (left + most - 1) / most;
    struct moec_sweep_batch batch = {.first = first, .first_row = start[first] - start[run->first]};
    while (first + batch.n < run->end && (batch.n == 0 || batch.n_rows * n_batch < left) &&
           batch.n_rows + rows_of(sweep, stack, first + batch.n) <= most &&
           moec_sweep_source_rows(sweep, first, batch.n + 1) <= most)
        batch.n_rows += rows_of(sweep, stack, first + batch.n++);
    return batch;
}

uint32_t moec_sweep_count_batches(const struct moec_sweep *sweep, struct moec_window_range windows)
{
    const struct run run = run_of(sweep, windows);
    uint32_t n = 0;
    for (uint32_t w = run.first; w < run.end; n++)
        w += next_batch(sweep, &run, MOEC_STACK_DECODER, w).n;
    return n;
}

/* The tokens that a window's rows begin with. */
static const uint32_t *tokens_of(const struct moec_sweep *sweep, enum moec_stack stack, uint32_t window)
{
    return stack == MOEC_STACK_ENCODER ? moec_windows_tokens(sweep->windows, window)
                                       : moec_windows_target(sweep->windows, window);
}

static enum moec_status embed(struct moec_sweep *sweep, enum moec_stack stack,
                              const struct moec_sweep_batch *batch, float *hidden, struct moec_error *err)
{
    const size_t stride = moec_forward_stride(&sweep->forward->model->config);
    for (uint32_t w = batch->first; w < batch->first + batch->n; w++) {
        const uint32_t n = rows_of(sweep, stack, w);
        MOEC_TRY(moec_forward_embed(sweep->forward, tokens_of(sweep, stack, w), n, hidden, err));
        hidden += n * stride;
    }
    return MOEC_OK;
}

static uint64_t batch_cost(const struct moec_sweep *sweep, const struct moec_sweep_batch *batch,
                           uint32_t layer)
{
    const struct moec_config *config = &sweep->forward->model->config;
    uint64_t cost = moec_cost_mlp(config, layer, batch->n_rows);
    for (uint32_t w = batch->first; w < batch->first + batch->n; w++)
        cost += moec_cost_mixing(config, layer, moec_windows_source(sweep->windows, w), 0,
                                 rows_of(sweep, MOEC_STACK_DECODER, w));
    return cost;
}

static void leave(const struct moec_sweep_store *store, const float *rows, uint32_t n_rows)
{
    if (store->states != NULL)
        moec_states_leave(store->states, (uint64_t)(rows - store->states->rows) / store->states->stride,
                          n_rows);
}

/* One layer of a run. */
struct layer_run {
    const struct run *run;
    uint32_t layer;
    const float *all; /* hidden states of the run's rows */
    const struct moec_sweep_store *store;
};

/* Keys and values that a layer writes: the caller's, or room for the batch. */
static struct moec_kv_rows own_rows(const struct moec_sweep *sweep, uint32_t layer,
                                    const struct moec_sweep_batch *batch,
                                    const struct moec_sweep_store *store)
{
    const struct moec_config *config = &sweep->forward->model->config;
    if (store->kv == NULL || moec_config_stack(config, layer) == MOEC_STACK_ENCODER)
        return moec_kv_state_rows(&sweep->kv, layer, 0);
    return moec_kv_state_rows(store->kv, layer, batch->first_row);
}

static struct moec_kv_rows source_rows(const struct moec_sweep *sweep, const struct layer_run *at,
                                       const struct moec_sweep_batch *batch)
{
    const struct run *run = at->run;
    if (at->store->source_kv == NULL)
        return moec_kv_state_rows(&sweep->source_kv, at->layer, 0);
    return moec_kv_state_rows(at->store->source_kv, at->layer,
                              moec_sweep_source_rows(sweep, run->first, batch->first - run->first));
}

/* What routers and choices are told of the batch's windows. */
static void make_sequences(struct moec_sweep *sweep, uint32_t layer, const struct moec_sweep_batch *batch)
{
    const struct moec_config *config = &sweep->forward->model->config;
    const enum moec_stack stack = moec_config_stack(config, layer);
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    const uint64_t *starts = stack == MOEC_STACK_ENCODER ? sweep->source_start : sweep->row_start;
    moec_batch_sequences_clear(&sweep->sequences);
    moec_batch_sequences_set_layer(&sweep->sequences, ordinal >= 0 ? (uint32_t)ordinal : 0);
    for (uint32_t i = 0; i < batch->n; i++) {
        const uint32_t n = rows_of(sweep, stack, batch->first + i);
        moec_batch_sequences_add(&sweep->sequences, tokens_of(sweep, stack, batch->first + i), n,
                                 stack == MOEC_STACK_ENCODER ? n : sweep->n_prompt);
        if (sweep->predicted != NULL)
            sweep->sequences.spans[i].decides.predicted =
                sweep->predicted + starts[batch->first + i] * moec_precision_predicted_words(config);
    }
}

/* Spans of the batch's windows. */
static void make_spans(struct moec_sweep *sweep, enum moec_stack stack, const struct moec_sweep_batch *batch,
                       struct moec_kv_rows own, bool forgets_own)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < batch->n; i++) {
        const uint32_t n = rows_of(sweep, stack, batch->first + i);
        sweep->spans[i] = (struct moec_span){.first_row = row,
                                             .n_rows = n,
                                             .keys = {.k_own = own.keys + row * own.stride,
                                                      .v_own = own.values + row * own.stride,
                                                      .forgets_own = forgets_own}};
        row += n;
    }
}

/* Attention of the batch's rows to its sources, whose rows are in those of the run. */
static enum moec_status cross(struct moec_sweep *sweep, const struct layer_run *at,
                              const struct moec_sweep_batch *batch, float *hidden, struct moec_error *err)
{
    const struct run *run = at->run;
    const uint32_t layer = at->layer;
    const struct moec_forward *forward = sweep->forward;
    const size_t stride = moec_forward_stride(&forward->model->config);
    const struct moec_kv_rows rows = source_rows(sweep, at, batch);
    const uint64_t first = moec_sweep_source_rows(sweep, run->first, batch->first - run->first);
    const uint32_t n = (uint32_t)moec_sweep_source_rows(sweep, batch->first, batch->n);
    uint64_t source = 0;
    MOEC_TRY(moec_forward_cross_keys(forward, layer, n, at->all + first * stride, rows, err));
    for (uint32_t i = 0; i < batch->n; i++) {
        struct moec_span *span = &sweep->spans[i];
        *span = (struct moec_span){.first_row = span->first_row,
                                   .n_rows = span->n_rows,
                                   .n_source = rows_of(sweep, MOEC_STACK_ENCODER, batch->first + i),
                                   .keys = {.k_prefix = rows.keys + source * rows.stride,
                                            .v_prefix = rows.values + source * rows.stride}};
        source += span->n_source;
    }
    return moec_forward_cross(forward, layer, (struct moec_batch){sweep->spans, batch->n, batch->n_rows},
                              hidden, err);
}

/* Whether a caller keeps keys and values that a layer writes. */
static bool keeps_own(const struct moec_sweep *sweep, uint32_t layer, const struct moec_sweep_store *store)
{
    const struct moec_config *config = &sweep->forward->model->config;
    return store->kv != NULL && moec_config_stack(config, layer) != MOEC_STACK_ENCODER;
}

/* One layer for one batch, whose rows are `hidden` in those of the run, and held by the forward pass. */
static enum moec_status run_steps(struct moec_sweep *sweep, const struct layer_run *at,
                                  const struct moec_sweep_batch *batch, float *hidden, struct moec_error *err)
{
    const struct run *run = at->run;
    const struct moec_sweep_store *store = at->store;
    const uint32_t layer = at->layer;
    const struct moec_forward *forward = sweep->forward;
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config);
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    const enum moec_stack stack = moec_config_stack(config, layer);
    make_spans(sweep, stack, batch, own_rows(sweep, layer, batch, store), !keeps_own(sweep, layer, store));
    make_sequences(sweep, layer, batch);
    if (ordinal >= 0 && store->attention_in != NULL)
        memcpy(store->attention_in, hidden, batch->n_rows * stride * sizeof(float));
    MOEC_TRY(moec_forward_attention(forward, layer,
                                    (struct moec_batch){sweep->spans, batch->n, batch->n_rows}, hidden, err));
    if (stack == MOEC_STACK_DECODER && sweep->source_start != NULL)
        MOEC_TRY(cross(sweep, at, batch, hidden, err));
    if (ordinal >= 0 && store->attention_out != NULL) {
        const uint64_t first = moec_stacked_rows((uint32_t)ordinal, moec_config_moe_encoder_count(config),
                                                 run->n_source, run->n_row);
        MOEC_TRY(moec_forward_update(forward, err));
        memcpy(store->attention_out + (first + batch->first_row) * stride, hidden,
               batch->n_rows * stride * sizeof(float));
    }
    if (store->entered != NULL) {
        MOEC_TRY(moec_forward_update(forward, err));
        memcpy(store->entered + batch->first_row * stride, hidden, batch->n_rows * stride * sizeof(float));
    }
    const struct moec_mlp_trace *trace = ordinal >= 0 ? store->trace : NULL;
    MOEC_TRY(
        moec_forward_mlp(forward, layer,
                         &(struct moec_mlp_batch){.n_tok = batch->n_rows,
                                                  .hidden = hidden,
                                                  .sequences = moec_batch_sequences_batch(&sweep->sequences),
                                                  .trace = trace},
                         err));
    moec_batch_sequences_replay(&sweep->sequences);
    return moec_forward_update(forward, err);
}

static enum moec_status run_layer(struct moec_sweep *sweep, const struct layer_run *at,
                                  const struct moec_sweep_batch *batch, float *hidden, struct moec_error *err)
{
    const struct moec_sweep_store *store = at->store;
    const uint32_t layer = at->layer;
    const struct moec_forward *forward = sweep->forward;
    const struct moec_config *config = &forward->model->config;
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    moec_forward_hold(forward, batch->n_rows, hidden);
    const enum moec_status status = run_steps(sweep, at, batch, hidden, err);
    moec_forward_let_go(forward);
    MOEC_TRY(status);
    if (ordinal >= 0 && store->trace != NULL)
        MOEC_TRY(store->traced(store->context, (uint32_t)ordinal, batch, err));
    if (layer + 1 == config->n_encoder_layer)
        MOEC_TRY(moec_forward_encoded(forward, batch->n_rows, hidden, hidden, err));
    if (store->worked != NULL)
        MOEC_TRY(store->worked(store->context, batch_cost(sweep, batch, layer), err));
    return MOEC_OK;
}

static const struct moec_sweep_store nothing = {0};

static enum moec_status embed_stack(struct moec_sweep *sweep, enum moec_stack stack, const struct run *run,
                                    float *hidden, const struct moec_sweep_store *store,
                                    struct moec_error *err)
{
    const size_t stride = moec_forward_stride(&sweep->forward->model->config);
    for (uint32_t w = run->first; w < run->end;) {
        const struct moec_sweep_batch batch = next_batch(sweep, run, stack, w);
        float *rows = hidden + (rows_before(run, stack) + batch.first_row) * stride;
        MOEC_TRY(embed(sweep, stack, &batch, rows, err));
        leave(store, rows, batch.n_rows);
        w += batch.n;
    }
    return MOEC_OK;
}

enum moec_status moec_sweep_embed(struct moec_sweep *sweep, struct moec_window_range windows, float *hidden,
                                  const struct moec_sweep_store *store, struct moec_error *err)
{
    const struct run run = run_of(sweep, windows);
    store = store != NULL ? store : &nothing;
    if (sweep->source_start != NULL)
        MOEC_TRY(embed_stack(sweep, MOEC_STACK_ENCODER, &run, hidden, store, err));
    return embed_stack(sweep, MOEC_STACK_DECODER, &run, hidden, store, err);
}

enum moec_status moec_sweep_layer(struct moec_sweep *sweep, uint32_t layer, struct moec_window_range windows,
                                  float *hidden, const struct moec_sweep_store *store, struct moec_error *err)
{
    const size_t stride = moec_forward_stride(&sweep->forward->model->config);
    const enum moec_stack stack = moec_config_stack(&sweep->forward->model->config, layer);
    const struct run run = run_of(sweep, windows);
    const struct layer_run at = {&run, layer, hidden, store != NULL ? store : &nothing};
    for (uint32_t w = run.first; w < run.end;) {
        const struct moec_sweep_batch batch = next_batch(sweep, &run, stack, w);
        float *rows = hidden + (rows_before(&run, stack) + batch.first_row) * stride;
        MOEC_TRY(run_layer(sweep, &at, &batch, rows, err));
        leave(at.store, rows, batch.n_rows);
        w += batch.n;
    }
    return MOEC_OK;
}

enum moec_status moec_sweep_show(struct moec_sweep *sweep, uint32_t layer, float *entered,
                                 const struct moec_sweep_store *store, struct moec_error *err)
{
    const struct moec_config *config = &sweep->forward->model->config;
    const enum moec_stack stack = moec_config_stack(config, layer);
    const struct run run = run_of(sweep, (struct moec_window_range){0, sweep->windows->n_window});
    for (uint32_t w = 0; w < run.end;) {
        const struct moec_sweep_batch batch = next_batch(sweep, &run, stack, w);
        float *rows = entered + batch.first_row * moec_forward_stride(config);
        make_sequences(sweep, layer, &batch);
        const struct moec_mlp_batch mlp = {.n_tok = batch.n_rows,
                                           .hidden = rows,
                                           .sequences = moec_batch_sequences_batch(&sweep->sequences)};
        MOEC_TRY(moec_forward_mlp(sweep->forward, layer, &mlp, err));
        leave(store, rows, batch.n_rows);
        MOEC_TRY(store->worked(store->context, 0, err));
        w += batch.n;
    }
    return MOEC_OK;
}

enum moec_status moec_sweep_run(struct moec_sweep *sweep, struct moec_window_range windows, float *hidden,
                                const struct moec_sweep_store *store, struct moec_error *err)
{
    const uint32_t n_layer = sweep->forward->model->config.n_layer;
    MOEC_TRY(moec_sweep_embed(sweep, windows, hidden, store, err));
    for (uint32_t layer = 0; layer < n_layer; layer++)
        MOEC_TRY(moec_sweep_layer(sweep, layer, windows, hidden, store, err));
    return MOEC_OK;
}
