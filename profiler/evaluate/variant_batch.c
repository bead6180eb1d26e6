/* Spans go through each layer in tiles that the forward pass holds, in their order. Positions before a span
 * take keys and values from the baseline, whose prefix they share. After the last layer, rows that equal the
 * baseline's bit for bit are not scored: its sums count for them. So a variant that changes nothing has
 * exactly the baseline's loss. */
#include "profiler/evaluate/variant_batch.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/score.h"

#include <string.h>

uint64_t moec_variant_batch_row_bytes(const struct moec_config *config)
{
    const uint64_t n_hidden = moec_config_is_encoder_decoder(config) ? 2 : 1;
    return n_hidden * moec_forward_stride(config) * sizeof(float) + sizeof(struct moec_variant_span) +
           3 * sizeof(uint32_t) + 2 * sizeof(double);
}

enum moec_status moec_variant_batch_create(struct moec_variant_batch *batch,
                                           const struct moec_forward *forward, uint32_t capacity,
                                           struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    const char *what = "rows of the variants";
    *batch = (struct moec_variant_batch){.forward = forward, .rows.capacity = capacity};
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&batch->rows.hidden, capacity,
                                    moec_forward_stride(config) * sizeof(float), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->spans.items, capacity, sizeof *batch->spans.items, what, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&batch->spans.of, forward->max_tokens, sizeof *batch->spans.of, what, err));
    MOEC_TRY_OUT(moec_kv_state_create(
        config, (struct moec_kv_layers){0, config->n_layer, MOEC_KV_ONE_LAYER, forward->max_tokens}, what,
        &batch->rows.kv, err));
    MOEC_TRY_OUT(
        moec_batch_sequences_create(config, forward->max_tokens, NULL, &batch->spans.sequences, err));
    if (moec_config_is_encoder_decoder(config)) {
        MOEC_TRY_OUT(moec_alloc_aligned((void **)&batch->rows.sources, capacity,
                                        moec_forward_stride(config) * sizeof(float), what, err));
        MOEC_TRY_OUT(moec_kv_state_create(
            config, (struct moec_kv_layers){0, config->n_layer, MOEC_KV_ONE_LAYER, forward->max_tokens}, what,
            &batch->rows.source_kv, err));
    }
    MOEC_TRY_OUT(moec_alloc((void **)&batch->scores.changed, capacity, sizeof(uint32_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->scores.targets, capacity, sizeof(uint32_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->scores.reference_rows, capacity, sizeof(uint32_t), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->scores.nll, capacity, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&batch->scores.kl, capacity, sizeof(double), what, err));
out:
    if (status != MOEC_OK)
        moec_variant_batch_release(batch);
    return status;
}

void moec_variant_batch_release(struct moec_variant_batch *batch)
{
    free(batch->rows.hidden);
    free(batch->spans.items);
    free(batch->spans.of);
    moec_kv_state_release(&batch->rows.kv);
    free(batch->rows.sources);
    moec_kv_state_release(&batch->rows.source_kv);
    moec_batch_sequences_release(&batch->spans.sequences);
    free(batch->scores.changed);
    free(batch->scores.targets);
    free(batch->scores.reference_rows);
    free(batch->scores.nll);
    free(batch->scores.kl);
    *batch = (struct moec_variant_batch){0};
}

float *moec_variant_batch_add(struct moec_variant_batch *batch, const struct moec_variant_span *span)
{
    const size_t stride = moec_forward_stride(&batch->forward->model->config);
    struct moec_variant_span *item = &batch->spans.items[batch->spans.n++];
    *item = *span;
    item->first_row = batch->rows.n;
    item->first_source = batch->rows.n_source;
    batch->rows.n += span->n_rows;
    batch->rows.n_source += span->n_source;
    return span->n_source > 0 ? batch->rows.sources + item->first_source * stride
                              : batch->rows.hidden + item->first_row * stride;
}

/* Spans first .. first + n - 1 go through a layer together: rows of its stack. */
struct tile {
    uint32_t layer;
    uint32_t first, n;
    uint32_t n_rows;
    uint32_t n_source; /* rows of their sources, where these are changed */
};

static enum moec_status run_encoder_tile(struct moec_variant_batch *batch, const struct tile *tile,
                                         float *hidden, struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    uint32_t row = 0;
    uint64_t cost = moec_cost_mlp(config, tile->layer, tile->n_source);
    moec_batch_sequences_clear(&batch->spans.sequences);
    for (uint32_t i = 0; i < tile->n; i++) {
        const struct moec_variant_span *item = &batch->spans.items[tile->first + i];
        const struct moec_kv_rows own = moec_kv_state_rows(&batch->rows.kv, tile->layer, row);
        batch->spans.of[i] = (struct moec_span){.first_row = row,
                                                .n_rows = item->n_source,
                                                .keys.k_own = own.keys,
                                                .keys.v_own = own.values,
                                                .keys.forgets_own = true};
        moec_batch_sequences_add(&batch->spans.sequences, NULL, item->n_source, 0);
        row += item->n_source;
        cost += moec_cost_encoder_attention(config, tile->layer, item->n_source);
    }
    MOEC_TRY(moec_forward_attention(batch->forward, tile->layer,
                                    (struct moec_batch){batch->spans.of, tile->n, row}, hidden, err));
    MOEC_TRY(moec_forward_mlp(
        batch->forward, tile->layer,
        &(struct moec_mlp_batch){
            .n_tok = row, .hidden = hidden, .sequences = moec_batch_sequences_batch(&batch->spans.sequences)},
        err));
    return batch->worked(batch->context, cost, err);
}

/* Attention of the tile's rows to their sources: to keys and values made anew where the sources changed. */
static enum moec_status cross(struct moec_variant_batch *batch, const struct moec_baseline *baseline,
                              const struct tile *tile, float *hidden, uint64_t *cost, struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    const uint64_t *start = baseline->group.source_start;
    const uint32_t first_source = batch->spans.items[tile->first].first_source;
    const struct moec_kv_rows changed = moec_kv_state_rows(&batch->rows.source_kv, tile->layer, 0);
    if (tile->n_source > 0)
        MOEC_TRY(moec_forward_cross_keys(batch->forward, tile->layer, tile->n_source,
                                         batch->rows.sources + first_source * baseline->states.stride,
                                         changed, err));
    for (uint32_t i = 0; i < tile->n; i++) {
        const struct moec_variant_span *item = &batch->spans.items[tile->first + i];
        const bool is_changed = item->n_source > 0;
        const struct moec_kv_rows rows =
            is_changed
                ? moec_kv_state_rows(&batch->rows.source_kv, tile->layer, item->first_source - first_source)
                : moec_kv_state_rows(&baseline->states.source_kv, tile->layer, start[item->window]);
        struct moec_span *span = &batch->spans.of[i];
        *span = (struct moec_span){.first_row = span->first_row,
                                   .n_rows = span->n_rows,
                                   .first_position = span->first_position,
                                   .n_source = (uint32_t)(start[item->window + 1] - start[item->window]),
                                   .keys = {.k_prefix = rows.keys, .v_prefix = rows.values}};
        *cost += moec_cost_cross_attention(config, tile->layer, span->n_source, item->n_rows) +
                 moec_cost_source_keys(config, tile->layer, item->n_source);
    }
    return moec_forward_cross(batch->forward, tile->layer,
                              (struct moec_batch){batch->spans.of, tile->n, tile->n_rows}, hidden, err);
}

static enum moec_status run_decoder_tile(struct moec_variant_batch *batch,
                                         const struct moec_baseline *baseline, const struct tile *tile,
                                         float *hidden, struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    uint32_t row = 0;
    uint64_t cost = moec_cost_mlp(config, tile->layer, tile->n_rows);
    moec_batch_sequences_clear(&batch->spans.sequences);
    for (uint32_t i = 0; i < tile->n; i++) {
        const struct moec_variant_span *item = &batch->spans.items[tile->first + i];
        const struct moec_kv_rows prefix =
            moec_kv_state_rows(&baseline->states.kv, tile->layer, baseline->group.row_start[item->window]);
        const struct moec_kv_rows own = moec_kv_state_rows(&batch->rows.kv, tile->layer, row);
        const bool has_prefix = item->first_position > 0;
        batch->spans.of[i] = (struct moec_span){.first_row = row,
                                                .n_rows = item->n_rows,
                                                .first_position = item->first_position,
                                                .keys.k_prefix = has_prefix ? prefix.keys : NULL,
                                                .keys.v_prefix = has_prefix ? prefix.values : NULL,
                                                .keys.k_own = own.keys,
                                                .keys.v_own = own.values,
                                                .keys.forgets_own = true};
        const uint32_t *tokens =
            moec_windows_target(baseline->group.windows, baseline->group.first_window + item->window);
        moec_batch_sequences_add(&batch->spans.sequences, tokens + item->first_position, item->n_rows, 0);
        row += item->n_rows;
        cost += moec_cost_attention(config, tile->layer, item->first_position, item->n_rows);
    }
    MOEC_TRY(moec_forward_attention(batch->forward, tile->layer,
                                    (struct moec_batch){batch->spans.of, tile->n, row}, hidden, err));
    if (baseline->group.source_start != NULL)
        MOEC_TRY(cross(batch, baseline, tile, hidden, &cost, err));
    MOEC_TRY(moec_forward_mlp(
        batch->forward, tile->layer,
        &(struct moec_mlp_batch){
            .n_tok = row, .hidden = hidden, .sequences = moec_batch_sequences_batch(&batch->spans.sequences)},
        err));
    return batch->worked(batch->context, cost, err);
}

/* Rows of the tile, which the forward pass holds. */
static enum moec_status run_tile(struct moec_variant_batch *batch, const struct moec_baseline *baseline,
                                 const struct tile *tile, struct moec_error *err)
{
    const struct moec_variant_span *first = &batch->spans.items[tile->first];
    const bool is_encoder =
        moec_config_stack(&batch->forward->model->config, tile->layer) == MOEC_STACK_ENCODER;
    float *hidden = is_encoder ? batch->rows.sources + first->first_source * baseline->states.stride
                               : batch->rows.hidden + first->first_row * baseline->states.stride;
    moec_forward_hold(batch->forward, is_encoder ? tile->n_source : tile->n_rows, hidden);
    enum moec_status status = is_encoder ? run_encoder_tile(batch, tile, hidden, err)
                                         : run_decoder_tile(batch, baseline, tile, hidden, err);
    if (status == MOEC_OK)
        status = moec_forward_update(batch->forward, err);
    moec_forward_let_go(batch->forward);
    return status;
}

static enum moec_status run_layer(struct moec_variant_batch *batch, const struct moec_baseline *baseline,
                                  uint32_t layer, struct moec_error *err)
{
    const uint32_t most = batch->forward->max_tokens;
    for (uint32_t first = 0; first < batch->spans.n;) {
        struct tile tile = {.layer = layer, .first = first};
        while (first + tile.n < batch->spans.n &&
               batch->spans.items[first + tile.n].n_rows <= most - tile.n_rows &&
               batch->spans.items[first + tile.n].n_source <= most - tile.n_source) {
            tile.n_rows += batch->spans.items[first + tile.n].n_rows;
            tile.n_source += batch->spans.items[first + tile.n++].n_source;
        }
        MOEC_TRY(run_tile(batch, baseline, &tile, err));
        first += tile.n;
    }
    return MOEC_OK;
}

/* Between the stacks: the sources are finished, and the rows of the targets begin. */
static enum moec_status enter_decoder(struct moec_variant_batch *batch, const struct moec_baseline *baseline,
                                      struct moec_error *err)
{
    const uint32_t most = batch->forward->max_tokens;
    for (uint32_t row = 0; row < batch->rows.n_source;) {
        const uint32_t left = batch->rows.n_source - row, n = left < most ? left : most;
        float *rows = batch->rows.sources + row * baseline->states.stride;
        MOEC_TRY(moec_forward_encoded(batch->forward, n, rows, rows, err));
        row += n;
    }
    for (uint32_t i = 0; i < batch->spans.n; i++) {
        const struct moec_variant_span *item = &batch->spans.items[i];
        MOEC_TRY(moec_forward_embed(
            batch->forward,
            moec_windows_target(baseline->group.windows, baseline->group.first_window + item->window),
            item->n_rows, batch->rows.hidden + item->first_row * baseline->states.stride, err));
    }
    return MOEC_OK;
}

static enum moec_status run_layers(struct moec_variant_batch *batch, const struct moec_baseline *baseline,
                                   uint32_t first_layer, struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    for (uint32_t layer = first_layer; layer < config->n_layer; layer++) {
        if (layer == config->n_encoder_layer && batch->rows.n_source > 0)
            MOEC_TRY(enter_decoder(batch, baseline, err));
        MOEC_TRY(run_layer(batch, baseline, layer, err));
    }
    return MOEC_OK;
}

/* Moves the rows that differ from the baseline's to the front and notes which they are. */
static uint32_t gather_changed(struct moec_variant_batch *batch, const struct moec_baseline *baseline)
{
    const size_t stride = baseline->states.stride, row_bytes = stride * sizeof(float);
    uint32_t n_changed = 0;
    for (uint32_t i = 0; i < batch->spans.n; i++) {
        const struct moec_variant_span *item = &batch->spans.items[i];
        const uint64_t base = baseline->group.row_start[item->window] + item->first_position;
        for (uint32_t r = 0; r < item->n_rows; r++) {
            const float *row = batch->rows.hidden + (item->first_row + r) * stride;
            if (memcmp(row, baseline->states.final_hidden + (base + r) * stride, row_bytes) == 0)
                continue;
            batch->scores.changed[n_changed] = item->first_row + r;
            batch->scores.targets[n_changed] = baseline->scores.targets[base + r];
            batch->scores.reference_rows[n_changed] = (uint32_t)(base + r);
            if (n_changed < item->first_row + r)
                memcpy(batch->rows.hidden + n_changed * stride, row, row_bytes);
            n_changed++;
        }
    }
    return n_changed;
}

/* Sums of each span's window: positions before it and unchanged rows count as in the baseline. */
static enum moec_status sum_spans(const struct moec_variant_batch *batch,
                                  const struct moec_baseline *baseline, uint32_t layer, uint32_t n_changed,
                                  struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    uint32_t next = 0;
    for (uint32_t i = 0; i < batch->spans.n; i++) {
        const struct moec_variant_span *item = &batch->spans.items[i];
        const uint64_t base = baseline->group.row_start[item->window];
        double nll = moec_score_sum(baseline->scores.nll + base, item->first_position);
        double kl = moec_score_sum(baseline->scores.kl + base, item->first_position);
        const uint32_t first_changed = next;
        for (uint32_t r = 0; r < item->n_rows; r++) {
            const uint64_t row = base + item->first_position + r;
            const bool changed = next < n_changed && batch->scores.changed[next] == item->first_row + r;
            nll += changed ? batch->scores.nll[next] : baseline->scores.nll[row];
            kl += changed ? batch->scores.kl[next] : baseline->scores.kl[row];
            next += changed;
        }
        MOEC_TRY(moec_score_check(nll, baseline->group.first_window + item->window, err));
        *item->nll = nll;
        *item->kl = kl;
        /* The head is computed for changed rows alone. */
        if (item->multiply_adds != NULL)
            *item->multiply_adds +=
                moec_cost_after_layer(
                    config, layer,
                    moec_windows_source(baseline->group.windows, baseline->group.first_window + item->window),
                    item->first_position, item->n_rows) -
                moec_cost_head(config, item->n_rows) + moec_cost_head(config, next - first_changed);
    }
    return MOEC_OK;
}

enum moec_status moec_variant_batch_run(struct moec_variant_batch *batch,
                                        const struct moec_baseline *baseline, uint32_t layer,
                                        struct moec_error *err)
{
    const struct moec_config *config = &batch->forward->model->config;
    MOEC_TRY(run_layers(batch, baseline, layer + 1, err));
    const uint32_t n_changed = gather_changed(batch, baseline);
    batch->scores.skipped += moec_cost_head(config, batch->rows.n - n_changed);
    /* In pieces, so that progress shows and a stop is heard. */
    for (uint32_t done = 0; done < n_changed;) {
        const uint32_t left = n_changed - done, most = batch->forward->max_tokens,
                       n = left < most ? left : most;
        MOEC_TRY(moec_token_scorer_run(
            batch->tokens, batch->forward,
            &(struct moec_final_states){n, batch->rows.hidden + done * baseline->states.stride},
            &(struct moec_scored_tokens){.targets = batch->scores.targets + done,
                                         .reference = &baseline->scores.reference,
                                         .reference_rows = batch->scores.reference_rows + done,
                                         .nll = batch->scores.nll + done,
                                         .kl = batch->scores.kl + done},
            err));
        MOEC_TRY(batch->worked(batch->context, moec_cost_head(config, n), err));
        done += n;
    }
    MOEC_TRY(sum_spans(batch, baseline, layer, n_changed, err));
    batch->spans.n = 0;
    batch->rows.n = 0;
    batch->rows.n_source = 0;
    return MOEC_OK;
}
