#include "profiler/variant_batch.h"

#include "formats/memory.h"
#include "profiler/cost.h"
#include "profiler/score.h"

#include <string.h>

uint64_t moec_variant_batch_row_bytes(const struct moec_config *config)
{
    return moec_forward_stride(config) * sizeof(float) + sizeof(struct moec_variant_span) +
           3 * sizeof(uint32_t) + 2 * sizeof(double);
}

enum moec_status moec_variant_batch_create(struct moec_variant_batch *batch, struct moec_forward *forward,
                                           uint32_t capacity, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    const uint64_t kv = (uint64_t)config->n_kv_head * config->head_dim;
    const char *what = "rows of the variants";
    *batch = (struct moec_variant_batch){.forward = forward, .capacity = capacity};
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&batch->hidden, capacity,
                                    moec_forward_stride(config) * sizeof(float), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->items, capacity, sizeof *batch->items, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->spans, forward->max_tokens, sizeof *batch->spans, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&batch->k, forward->max_tokens, kv * sizeof(float), what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&batch->v, forward->max_tokens, kv * sizeof(float), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->changed, capacity, sizeof(uint32_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->targets, capacity, sizeof(uint32_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->reference_rows, capacity, sizeof(uint32_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->nll, capacity, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->kl, capacity, sizeof(double), what, err));
out:
    if (status != MOEC_OK)
        moec_variant_batch_release(batch);
    return status;
}

void moec_variant_batch_release(struct moec_variant_batch *batch)
{
    free(batch->hidden);
    free(batch->items);
    free(batch->spans);
    free(batch->k);
    free(batch->v);
    free(batch->changed);
    free(batch->targets);
    free(batch->reference_rows);
    free(batch->nll);
    free(batch->kl);
    *batch = (struct moec_variant_batch){0};
}

float *moec_variant_batch_add(struct moec_variant_batch *batch, const struct moec_variant_span *span)
{
    struct moec_variant_span *item = &batch->items[batch->n_span++];
    *item = *span;
    item->first_row = batch->n_row;
    batch->n_row += span->n_rows;
    return batch->hidden + item->first_row * moec_forward_stride(&batch->forward->model->config);
}

/* One layer for spans first .. first + n - 1, which fit the forward together. */
static enum moec_status run_layer(struct moec_variant_batch *batch, const struct moec_baseline *baseline,
                                  uint32_t layer, uint32_t first, uint32_t n, struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    const size_t kv = baseline->kv_stride;
    uint32_t row = 0;
    uint64_t cost = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct moec_variant_span *item = &batch->items[first + i];
        const size_t prefix = (layer * baseline->n_row + baseline->row_start[item->window]) * kv;
        const bool has_prefix = item->first_position > 0;
        batch->spans[i] = (struct moec_span){.first_row = row,
                                             .n_rows = item->n_rows,
                                             .first_position = item->first_position,
                                             .k_prefix = has_prefix ? baseline->k + prefix : NULL,
                                             .v_prefix = has_prefix ? baseline->v + prefix : NULL,
                                             .k_own = batch->k + row * kv,
                                             .v_own = batch->v + row * kv};
        row += item->n_rows;
        cost += moec_cost_attention(config, item->first_position, item->n_rows);
    }
    float *hidden = batch->hidden + batch->items[first].first_row * baseline->stride;
    MOEC_TRY(moec_forward_attention(batch->forward, layer, batch->spans, n, row, hidden, err));
    MOEC_TRY(moec_forward_mlp(batch->forward, layer, row, hidden, NULL, err));
    return batch->worked(batch->context, cost + moec_cost_mlp(config, layer, row), err);
}

static enum moec_status run_layers(struct moec_variant_batch *batch, const struct moec_baseline *baseline,
                                   uint32_t first_layer, struct moec_error *err)
{
    const uint32_t n_layer = batch->forward->model->config.n_layer;
    for (uint32_t layer = first_layer; layer < n_layer; layer++) {
        for (uint32_t first = 0; first < batch->n_span;) {
            uint32_t n = 0, rows = 0;
            while (first + n < batch->n_span &&
                   batch->items[first + n].n_rows <= batch->forward->max_tokens - rows)
                rows += batch->items[first + n++].n_rows;
            MOEC_TRY(run_layer(batch, baseline, layer, first, n, err));
            first += n;
        }
    }
    return MOEC_OK;
}

/* Moves the rows that differ from the baseline's to the front and notes which they are. */
static uint32_t gather_changed(struct moec_variant_batch *batch, const struct moec_baseline *baseline)
{
    const size_t stride = baseline->stride, row_bytes = stride * sizeof(float);
    uint32_t n_changed = 0;
    for (uint32_t i = 0; i < batch->n_span; i++) {
        const struct moec_variant_span *item = &batch->items[i];
        const uint64_t base = baseline->row_start[item->window] + item->first_position;
        for (uint32_t r = 0; r < item->n_rows; r++) {
            const float *row = batch->hidden + (item->first_row + r) * stride;
            if (memcmp(row, baseline->final_hidden + (base + r) * stride, row_bytes) == 0)
                continue;
            batch->changed[n_changed] = item->first_row + r;
            batch->targets[n_changed] = baseline->targets[base + r];
            batch->reference_rows[n_changed] = (uint32_t)(base + r);
            if (n_changed < item->first_row + r)
                memcpy(batch->hidden + n_changed * stride, row, row_bytes);
            n_changed++;
        }
    }
    return n_changed;
}

/* Sums of each span's window: positions before it and unchanged rows count as in the baseline. */
static enum moec_status sum_spans(const struct moec_variant_batch *batch,
                                  const struct moec_baseline *baseline, uint32_t first_layer,
                                  uint32_t n_changed, struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    uint32_t next = 0;
    for (uint32_t i = 0; i < batch->n_span; i++) {
        const struct moec_variant_span *item = &batch->items[i];
        const uint64_t base = baseline->row_start[item->window];
        double nll = moec_score_sum(baseline->nll + base, item->first_position);
        double kl = moec_score_sum(baseline->kl + base, item->first_position);
        const uint32_t first_changed = next;
        for (uint32_t r = 0; r < item->n_rows; r++) {
            const uint64_t row = base + item->first_position + r;
            const bool changed = next < n_changed && batch->changed[next] == item->first_row + r;
            nll += changed ? batch->nll[next] : baseline->nll[row];
            kl += changed ? batch->kl[next] : baseline->kl[row];
            next += changed;
        }
        MOEC_TRY(moec_score_check(nll, baseline->first_window + item->window, err));
        *item->nll = nll;
        *item->kl = kl;
        /* The head is computed for changed rows alone. */
        if (item->multiply_adds != NULL)
            *item->multiply_adds +=
                moec_cost_from_layer(config, first_layer, item->first_position, item->n_rows) -
                moec_cost_head(config, item->n_rows) + moec_cost_head(config, next - first_changed);
    }
    return MOEC_OK;
}

enum moec_status moec_variant_batch_run(struct moec_variant_batch *batch,
                                        const struct moec_baseline *baseline, uint32_t first_layer,
                                        struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    MOEC_TRY(run_layers(batch, baseline, first_layer, err));
    const uint32_t n_changed = gather_changed(batch, baseline);
    batch->skipped += moec_cost_head(config, batch->n_row - n_changed);
    /* In pieces, so that progress shows and a stop is heard. */
    for (uint32_t done = 0; done < n_changed;) {
        const uint32_t left = n_changed - done, most = batch->forward->max_tokens,
                       n = left < most ? left : most;
        MOEC_TRY(moec_token_scorer_run(
            batch->tokens, batch->forward, n, batch->hidden + done * baseline->stride, batch->targets + done,
            &baseline->reference, batch->reference_rows + done, batch->nll + done, batch->kl + done, err));
        MOEC_TRY(batch->worked(batch->context, moec_cost_head(config, n), err));
        done += n;
    }
    MOEC_TRY(sum_spans(batch, baseline, first_layer, n_changed, err));
    batch->n_span = 0;
    batch->n_row = 0;
    return MOEC_OK;
}
