#include "profiler/sweep.h"

#include "formats/memory.h"
#include "profiler/cost.h"

#include <inttypes.h>
#include <string.h>

uint32_t moec_sweep_max_tokens(const struct moec_windows *windows)
{
    const struct moec_work_memory *work = windows->work;
    const bool bounded = work != NULL && work->batch_tokens > 0 && work->batch_tokens < MOEC_SWEEP_TOKENS;
    uint32_t longest = bounded ? work->batch_tokens : MOEC_SWEEP_TOKENS;
    uint64_t all = 0;
    for (uint32_t w = 0; w < windows->n_window; w++) {
        longest = windows->length[w] > longest ? windows->length[w] : longest;
        all += windows->length[w];
    }
    return all < longest ? (uint32_t)all : longest;
}

static uint32_t rows_of(const struct moec_sweep *sweep, uint32_t w)
{
    return (uint32_t)(sweep->row_start[w + 1] - sweep->row_start[w]);
}

enum moec_status moec_sweep_create(struct moec_forward *forward, const struct moec_windows *windows,
                                   bool whole, struct moec_sweep *sweep, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    *sweep = (struct moec_sweep){.forward = forward,
                                 .windows = windows,
                                 .whole = whole,
                                 .kv_stride = (size_t)config->n_kv_head * config->head_dim};
    MOEC_TRY_OUT(moec_alloc((void **)&sweep->row_start, (uint64_t)windows->n_window + 1, sizeof(uint64_t),
                            "rows of the windows", err));
    for (uint32_t w = 0; w < windows->n_window; w++) {
        uint32_t n = whole ? windows->length[w] : windows->scored[w];
        if (n > forward->max_tokens) {
            status = moec_fail(err, MOEC_ERR_LIMIT,
                               "window %" PRIu32 " has %" PRIu32 " tokens, more than a batch of %" PRIu32, w,
                               n, forward->max_tokens);
            goto out;
        }
        sweep->row_start[w + 1] = sweep->row_start[w] + n;
    }
    uint64_t n_kv = (uint64_t)forward->max_tokens * sweep->kv_stride;
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&sweep->k, n_kv, sizeof(float), "keys of a batch", err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&sweep->v, n_kv, sizeof(float), "values of a batch", err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&sweep->spans, windows->n_window, sizeof *sweep->spans, "spans of a batch", err));
out:
    if (status != MOEC_OK)
        moec_sweep_release(sweep);
    return status;
}

void moec_sweep_release(struct moec_sweep *sweep)
{
    free(sweep->row_start);
    free(sweep->k);
    free(sweep->v);
    free(sweep->spans);
    *sweep = (struct moec_sweep){0};
}

/* Windows that go through a layer together. */
struct batch {
    uint32_t first, n;  /* windows */
    uint64_t first_row; /* within the rows of this run */
    uint32_t n_rows;
};

static struct batch next_batch(const struct moec_sweep *sweep, uint32_t base, uint32_t first, uint32_t end)
{
    struct batch batch = {.first = first, .first_row = sweep->row_start[first] - sweep->row_start[base]};
    while (first + batch.n < end &&
           batch.n_rows + rows_of(sweep, first + batch.n) <= sweep->forward->max_tokens)
        batch.n_rows += rows_of(sweep, first + batch.n++);
    return batch;
}

static enum moec_status embed(struct moec_sweep *sweep, const struct batch *batch, float *hidden,
                              struct moec_error *err)
{
    const struct moec_windows *windows = sweep->windows;
    const size_t stride = moec_forward_stride(&sweep->forward->model->config);
    for (uint32_t i = 0; i < batch->n; i++) {
        uint32_t w = batch->first + i;
        const uint32_t *tokens = windows->tokens + (size_t)w * windows->seq_len_tokens;
        MOEC_TRY(moec_forward_embed(sweep->forward, tokens, rows_of(sweep, w), hidden, err));
        hidden += rows_of(sweep, w) * stride;
    }
    return MOEC_OK;
}

static uint64_t batch_cost(const struct moec_sweep *sweep, const struct batch *batch, uint32_t layer)
{
    const struct moec_config *config = &sweep->forward->model->config;
    uint64_t cost = moec_cost_mlp(config, layer, batch->n_rows);
    for (uint32_t i = 0; i < batch->n; i++)
        cost += moec_cost_attention(config, 0, rows_of(sweep, batch->first + i));
    return cost;
}

/* One layer for one batch; n_rows is that of the whole run, for the places of what is kept. */
static enum moec_status run_layer(struct moec_sweep *sweep, const struct batch *batch, uint32_t layer,
                                  uint64_t n_rows, float *hidden, const struct moec_sweep_store *store,
                                  struct moec_error *err)
{
    struct moec_forward *forward = sweep->forward;
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config);
    float *k = sweep->k, *v = sweep->v;
    if (store->k != NULL) {
        k = store->k + (layer * n_rows + batch->first_row) * sweep->kv_stride;
        v = store->v + (layer * n_rows + batch->first_row) * sweep->kv_stride;
    }
    uint32_t row = 0;
    for (uint32_t i = 0; i < batch->n; i++) {
        uint32_t n = rows_of(sweep, batch->first + i);
        sweep->spans[i] = (struct moec_span){.first_row = row,
                                             .n_rows = n,
                                             .k_own = k + row * sweep->kv_stride,
                                             .v_own = v + row * sweep->kv_stride};
        row += n;
    }
    MOEC_TRY(moec_forward_attention(forward, layer, sweep->spans, batch->n, batch->n_rows, hidden, err));
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    if (ordinal >= 0 && store->attention_out != NULL)
        memcpy(store->attention_out + ((uint32_t)ordinal * n_rows + batch->first_row) * stride, hidden,
               batch->n_rows * stride * sizeof(float));
    const struct moec_mlp_trace *trace = ordinal >= 0 ? store->trace : NULL;
    MOEC_TRY(moec_forward_mlp(forward, layer, batch->n_rows, hidden, trace, err));
    if (trace != NULL)
        MOEC_TRY(store->traced(store->context, (uint32_t)ordinal, batch->first_row, batch->n_rows, err));
    if (store->worked != NULL)
        MOEC_TRY(store->worked(store->context, batch_cost(sweep, batch, layer), err));
    return MOEC_OK;
}

static void leave(const struct moec_sweep_store *store, const float *rows, uint32_t n_rows)
{
    if (store->states != NULL)
        moec_states_leave(store->states, (uint64_t)(rows - store->states->rows) / store->states->stride,
                          n_rows);
}

static const struct moec_sweep_store nothing = {0};

enum moec_status moec_sweep_embed(struct moec_sweep *sweep, uint32_t first, uint32_t n, float *hidden,
                                  const struct moec_sweep_store *store, struct moec_error *err)
{
    const size_t stride = moec_forward_stride(&sweep->forward->model->config);
    const uint32_t end = first + n;
    for (uint32_t w = first; w < end;) {
        struct batch batch = next_batch(sweep, first, w, end);
        float *rows = hidden + batch.first_row * stride;
        MOEC_TRY(embed(sweep, &batch, rows, err));
        leave(store != NULL ? store : &nothing, rows, batch.n_rows);
        w += batch.n;
    }
    return MOEC_OK;
}

enum moec_status moec_sweep_layer(struct moec_sweep *sweep, uint32_t layer, uint32_t first, uint32_t n,
                                  float *hidden, const struct moec_sweep_store *store, struct moec_error *err)
{
    const size_t stride = moec_forward_stride(&sweep->forward->model->config);
    const uint32_t end = first + n;
    const uint64_t n_rows = sweep->row_start[end] - sweep->row_start[first];
    if (store == NULL)
        store = &nothing;
    for (uint32_t w = first; w < end;) {
        struct batch batch = next_batch(sweep, first, w, end);
        float *rows = hidden + batch.first_row * stride;
        MOEC_TRY(run_layer(sweep, &batch, layer, n_rows, rows, store, err));
        leave(store, rows, batch.n_rows);
        w += batch.n;
    }
    return MOEC_OK;
}

enum moec_status moec_sweep_run(struct moec_sweep *sweep, uint32_t first, uint32_t n, float *hidden,
                                const struct moec_sweep_store *store, struct moec_error *err)
{
    const uint32_t n_layer = sweep->forward->model->config.n_layer;
    MOEC_TRY(moec_sweep_embed(sweep, first, n, hidden, store, err));
    for (uint32_t layer = 0; layer < n_layer; layer++)
        MOEC_TRY(moec_sweep_layer(sweep, layer, first, n, hidden, store, err));
    return MOEC_OK;
}
