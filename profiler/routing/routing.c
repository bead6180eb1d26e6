/* A token's place in the trace is known before the sweep: its window's start, and its source's length for a
 * decoder's layer. Counts are integers and gate weights are summed by window, so ranks and batches do not
 * show. A rank without windows still ends every layer, or the others would wait for it. */
#include "profiler/routing/routing.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/sweep.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct collector {
    const struct moec_config *config;
    struct moec_routing *routing;
    struct moec_rank_windows shared;
    uint32_t n_moe, n_own;           /* windows of this rank */
    uint64_t *trace_start;           /* (W + 1), owned: first token of each window in the trace */
    double *gate_sums;               /* (W, E), owned: gate weights of each window in the layer at work */
    uint32_t *experts;               /* (max_tokens, k): trace of one batch */
    float *weights;                  /* (max_tokens, k) */
    struct moec_router_study *study; /* NULL, or told of every batch */
    const struct moec_progress *progress;
    double pass;
    double total;
};

/* The choices of one token of window w in a layer: to its place in the trace, and into the window's sums. */
static enum moec_status take_token(const struct collector *collector, uint32_t ordinal, uint32_t w,
                                   uint64_t token, const struct moec_token_choices *choices,
                                   struct moec_error *err)
{
    const uint32_t *experts = choices->experts;
    const float *weights = choices->weights;
    const struct moec_routing *routing = collector->routing;
    const uint32_t k = collector->config->top_k, n_expert = collector->config->n_expert;
    uint64_t *activations = routing->activations + (size_t)ordinal * n_expert;
    double *sums = collector->gate_sums + (size_t)w * n_expert;
    const size_t to = (token * collector->n_moe + ordinal) * k;
    for (uint32_t rank = 0; rank < k; rank++) {
        if (!isfinite(weights[rank]))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the router of MoE layer %" PRIu32
                             " gives weights that are not finite; the checkpoint is damaged",
                             ordinal);
        if (experts[rank] == MOEC_ROUTER_NO_EXPERT)
            continue;
        routing->experts[to + rank] = (uint16_t)experts[rank];
        routing->weights[to + rank] = moec_f32_to_f16(weights[rank]);
        activations[experts[rank]]++;
        sums[experts[rank]] += weights[rank];
    }
    return MOEC_OK;
}

/* Together: the layer's sums of the windows' sums. */
static enum moec_status finish_layer(const struct collector *collector, uint32_t ordinal,
                                     struct moec_error *err)
{
    const uint32_t n_expert = collector->config->n_expert, n_window = collector->shared.n_all;
    double *sums = collector->routing->mean_gate_weight + (size_t)ordinal * n_expert;
    MOEC_TRY(moec_ranks_gather(collector->shared.ranks, collector->gate_sums, n_window,
                               n_expert * sizeof *collector->gate_sums, err));
    for (uint32_t w = 0; w < n_window; w++)
        for (uint32_t e = 0; e < n_expert; e++)
            sums[e] += collector->gate_sums[(size_t)w * n_expert + e];
    memset(collector->gate_sums, 0, (size_t)n_window * n_expert * sizeof *collector->gate_sums);
    return collector->study != NULL ? moec_router_study_finish(collector->study, ordinal, err) : MOEC_OK;
}

static enum moec_status collect(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                                struct moec_error *err)
{
    const struct collector *collector = context;
    const struct moec_windows *windows = &collector->shared.own;
    const uint32_t k = collector->config->top_k;
    const enum moec_stack stack =
        moec_config_stack(collector->config, moec_config_moe_layer(collector->config, ordinal));
    size_t row = 0;
    for (size_t c = 0; c < (size_t)batch->n_rows * k; c++)
        if (moec_choice_is_passed(collector->config, collector->weights[c]))
            collector->experts[c] = MOEC_ROUTER_NO_EXPERT;
    for (uint32_t w = batch->first; w < batch->first + batch->n; w++) {
        /* A window's source stands before what its decoder reads. */
        const uint32_t number = moec_rank_windows_number(&collector->shared, w);
        const uint64_t first = collector->trace_start[number] +
                               (stack == MOEC_STACK_ENCODER ? 0 : moec_windows_source(windows, w));
        for (uint32_t t = 0; t < moec_windows_read(windows, stack, w); t++, row++)
            MOEC_TRY(take_token(
                collector, ordinal, number, first + t,
                &(struct moec_token_choices){collector->experts + row * k, collector->weights + row * k},
                err));
    }
    const struct moec_token_choices choices = {collector->experts, collector->weights};
    if (collector->study != NULL)
        MOEC_TRY(moec_router_study_batch(collector->study, ordinal, batch->first_row, batch->n_rows, &choices,
                                         err));
    return batch->first + batch->n == collector->n_own ? finish_layer(collector, ordinal, err) : MOEC_OK;
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    const struct collector *collector = context;
    collector->routing->multiply_adds += multiply_adds;
    return moec_progress_report(collector->progress, "routing",
                                (double)collector->routing->multiply_adds / collector->pass,
                                collector->total / collector->pass, err);
}

static void clear(const struct collector *collector)
{
    const struct moec_routing *routing = collector->routing;
    const struct moec_config *config = collector->config;
    const size_t n_cell = (size_t)collector->n_moe * config->n_expert;
    const uint64_t n_choice =
        moec_windows_token_count(collector->shared.all) * collector->n_moe * config->top_k;
    for (uint64_t i = 0; i < n_choice; i++)
        routing->experts[i] = MOEC_PROFILE_NO_EXPERT;
    memset(routing->weights, 0, n_choice * sizeof *routing->weights);
    memset(routing->activations, 0, n_cell * sizeof *routing->activations);
    memset(routing->mean_gate_weight, 0, n_cell * sizeof *routing->mean_gate_weight);
}

static enum moec_status allocate(struct collector *collector, uint32_t max_tokens, struct moec_error *err)
{
    const struct moec_windows *own = &collector->shared.own, *all = collector->shared.all;
    const struct moec_config *config = collector->config;
    const char *what = "routing of a batch";
    collector->pass = (double)moec_cost_pass(config, own);
    for (uint32_t w = 0; w < own->n_window; w++) {
        const uint32_t n = moec_windows_read(own, MOEC_STACK_DECODER, w);
        collector->total += (double)(moec_cost_from_layer(config, 0, moec_windows_source(own, w), 0, n) -
                                     moec_cost_head(config, n));
    }
    MOEC_TRY(moec_alloc((void **)&collector->trace_start, (uint64_t)all->n_window + 1, sizeof(uint64_t),
                        "routing of the windows", err));
    for (uint32_t w = 0; w < all->n_window; w++)
        collector->trace_start[w + 1] = collector->trace_start[w] + moec_windows_traced(all, w);
    MOEC_TRY(moec_alloc((void **)&collector->gate_sums, (uint64_t)all->n_window * config->n_expert,
                        sizeof(double), "routing of the windows", err));
    const uint64_t n_choice = (uint64_t)max_tokens * config->top_k;
    MOEC_TRY(moec_alloc((void **)&collector->experts, n_choice, sizeof(uint32_t), what, err));
    return moec_alloc((void **)&collector->weights, n_choice, sizeof(float), what, err);
}

/* Together: what was traced of the ranks' windows, and the means of all. */
static enum moec_status finish(const struct collector *collector, struct moec_error *err)
{
    struct moec_routing *routing = collector->routing;
    const struct moec_rank_windows *shared = &collector->shared;
    const uint32_t n_cell = collector->n_moe * collector->config->n_expert;
    const size_t row_bytes = (size_t)collector->n_moe * collector->config->top_k * sizeof(uint16_t);
    MOEC_TRY(moec_rank_windows_gather_rows(shared, shared->n_all, collector->trace_start, routing->experts,
                                           row_bytes, err));
    MOEC_TRY(moec_rank_windows_gather_rows(shared, shared->n_all, collector->trace_start, routing->weights,
                                           row_bytes, err));
    MOEC_TRY(moec_ranks_sum(shared->ranks, routing->activations, n_cell, err));
    for (uint32_t i = 0; i < n_cell; i++)
        if (routing->activations[i] > 0)
            routing->mean_gate_weight[i] /= (double)routing->activations[i];
    if (collector->study != NULL)
        routing->multiply_adds += moec_router_study_multiply_adds(collector->study);
    return moec_ranks_sum(shared->ranks, &routing->multiply_adds, 1, err);
}

/* This rank's windows through the layers; a rank without any takes part in the layers' ends. */
static enum moec_status run_layers(struct collector *collector, struct moec_sweep *sweep,
                                   const struct moec_states *hidden, const struct moec_mlp_trace *trace,
                                   struct moec_error *err)
{
    const struct moec_sweep_store store = {
        .states = hidden,
        .trace = trace,
        .traced = collect,
        .worked = worked,
        .context = collector,
        .attention_in = collector->study != NULL ? moec_router_study_attention(collector->study) : NULL};
    if (collector->n_own > 0)
        return moec_sweep_run(sweep, (struct moec_window_range){0, collector->n_own}, hidden->rows, &store,
                              err);
    for (uint32_t ordinal = 0; ordinal < collector->n_moe; ordinal++)
        MOEC_TRY(finish_layer(collector, ordinal, err));
    return MOEC_OK;
}

enum moec_status moec_routing_run(const struct moec_runner *runner, const struct moec_windows *windows,
                                  struct moec_routing *routing, const struct moec_progress *progress,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &runner->model->config;
    struct moec_forward forward = {0};
    struct moec_sweep sweep = {0};
    struct moec_states hidden = {0};
    struct collector collector = {
        .config = config, .routing = routing, .n_moe = moec_config_moe_count(config), .progress = progress};
    struct moec_rank_windows *shared = &collector.shared;
    routing->multiply_adds = 0;
    MOEC_TRY_OUT(moec_rank_windows_make(routing->ranks, windows, shared, err));
    const uint32_t max_tokens = moec_sweep_max_tokens(&shared->own);
    collector.n_own = moec_rank_windows_count(shared, windows->n_window);
    clear(&collector);
    MOEC_TRY_OUT(moec_forward_init(&forward, runner->model, runner->kernels, runner->n_threads,
                                   runner->experts, max_tokens, err));
    MOEC_TRY_OUT(moec_sweep_create(&forward, &shared->own, true, &sweep, err));
    MOEC_TRY_OUT(moec_states_create(windows->work, moec_windows_token_count(&shared->own),
                                    moec_forward_stride(config), "hidden states of the windows", &hidden,
                                    err));
    MOEC_TRY_OUT(allocate(&collector, max_tokens, err));
    struct moec_mlp_trace trace = {.experts = collector.experts, .weights = collector.weights};
    if (routing->results != NULL) {
        MOEC_TRY_OUT(moec_router_study_create(&forward, runner->experts, shared, routing->results,
                                              &collector.study, err));
        moec_router_study_trace(collector.study, &trace);
    }
    MOEC_TRY_OUT(run_layers(&collector, &sweep, &hidden, &trace, err));
    MOEC_TRY_OUT(finish(&collector, err));
    if (routing->hidden != NULL) {
        *routing->hidden = hidden;
        hidden = (struct moec_states){0};
    }
out:
    moec_router_study_free(collector.study);
    moec_sweep_release(&sweep);
    moec_forward_release(&forward);
    free(collector.trace_start);
    free(collector.gate_sums);
    free(collector.experts);
    free(collector.weights);
    moec_states_release(&hidden);
    moec_rank_windows_release(shared);
    return status;
}
