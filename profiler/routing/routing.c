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
    const struct moec_windows *windows;
    uint32_t n_moe;
    uint64_t *trace_start;           /* (W), owned: first token of each window in the trace */
    uint32_t *experts;               /* (max_tokens, k): trace of one batch */
    float *weights;                  /* (max_tokens, k) */
    struct moec_router_study *study; /* NULL, or told of every batch */
    const struct moec_progress *progress;
    double pass;
    double total;
};

/* One token's choices in a layer: to its place in the trace, and into the layer's sums. */
static enum moec_status take_token(const struct collector *collector, uint32_t ordinal, uint64_t token,
                                   const uint32_t *experts, const float *weights, struct moec_error *err)
{
    const struct moec_routing *routing = collector->routing;
    const uint32_t k = collector->config->top_k, n_expert = collector->config->n_expert;
    uint64_t *activations = routing->activations + (size_t)ordinal * n_expert;
    double *sums = routing->mean_gate_weight + (size_t)ordinal * n_expert;
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

static enum moec_status collect(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                                struct moec_error *err)
{
    const struct collector *collector = context;
    const struct moec_windows *windows = collector->windows;
    const uint32_t k = collector->config->top_k;
    const enum moec_stack stack =
        moec_config_stack(collector->config, moec_config_moe_layer(collector->config, ordinal));
    size_t row = 0;
    for (size_t c = 0; c < (size_t)batch->n_rows * k; c++)
        if (moec_choice_is_passed(collector->config, collector->weights[c]))
            collector->experts[c] = MOEC_ROUTER_NO_EXPERT;
    for (uint32_t w = batch->first; w < batch->first + batch->n; w++) {
        /* A window's source stands before what its decoder reads. */
        const uint64_t first =
            collector->trace_start[w] + (stack == MOEC_STACK_ENCODER ? 0 : moec_windows_source(windows, w));
        for (uint32_t t = 0; t < moec_windows_read(windows, stack, w); t++, row++)
            MOEC_TRY(take_token(collector, ordinal, first + t, collector->experts + row * k,
                                collector->weights + row * k, err));
    }
    if (collector->study == NULL)
        return MOEC_OK;
    return moec_router_study_batch(collector->study, ordinal, batch->first_row, batch->n_rows,
                                   collector->experts, collector->weights, err);
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    const struct collector *collector = context;
    collector->routing->multiply_adds += multiply_adds;
    return moec_progress_report(collector->progress, "routing",
                                (double)collector->routing->multiply_adds / collector->pass,
                                collector->total / collector->pass, err);
}

enum moec_status moec_routing_run(const struct moec_model *model, struct moec_experts *experts,
                                  const struct moec_kernels *kernels, int n_threads,
                                  const struct moec_windows *windows, struct moec_routing *routing,
                                  const struct moec_progress *progress, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &model->config;
    const uint64_t n_token = moec_windows_token_count(windows);
    const uint32_t n_moe = moec_config_moe_count(config), max_tokens = moec_sweep_max_tokens(windows);
    const size_t n_cell = (size_t)n_moe * config->n_expert;
    struct moec_forward forward = {0};
    struct moec_sweep sweep = {0};
    struct moec_states hidden = {0};
    struct collector collector = {
        .config = config, .routing = routing, .windows = windows, .n_moe = n_moe, .progress = progress};
    collector.pass = (double)moec_cost_pass(config, windows);
    for (uint32_t w = 0; w < windows->n_window; w++) {
        const uint32_t n = moec_windows_read(windows, MOEC_STACK_DECODER, w);
        collector.total += (double)(moec_cost_from_layer(config, 0, moec_windows_source(windows, w), 0, n) -
                                    moec_cost_head(config, n));
    }
    routing->multiply_adds = 0;
    for (uint64_t i = 0; i < n_token * n_moe * config->top_k; i++)
        routing->experts[i] = MOEC_PROFILE_NO_EXPERT;
    memset(routing->weights, 0, n_token * n_moe * config->top_k * sizeof *routing->weights);
    memset(routing->activations, 0, n_cell * sizeof *routing->activations);
    memset(routing->mean_gate_weight, 0, n_cell * sizeof *routing->mean_gate_weight);
    MOEC_TRY_OUT(moec_forward_init(&forward, model, kernels, n_threads, experts, max_tokens, err));
    MOEC_TRY_OUT(moec_sweep_create(&forward, windows, true, &sweep, err));
    MOEC_TRY_OUT(moec_states_create(windows->work, n_token, moec_forward_stride(config),
                                    "hidden states of the windows", &hidden, err));
    MOEC_TRY_OUT(moec_alloc((void **)&collector.trace_start, windows->n_window, sizeof(uint64_t),
                            "routing of the windows", err));
    for (uint32_t w = 1; w < windows->n_window; w++)
        collector.trace_start[w] = collector.trace_start[w - 1] + moec_windows_traced(windows, w - 1);
    MOEC_TRY_OUT(moec_alloc((void **)&collector.experts, (uint64_t)max_tokens * config->top_k,
                            sizeof(uint32_t), "routing of a batch", err));
    MOEC_TRY_OUT(moec_alloc((void **)&collector.weights, (uint64_t)max_tokens * config->top_k, sizeof(float),
                            "routing of a batch", err));
    struct moec_mlp_trace trace = {.experts = collector.experts, .weights = collector.weights};
    if (routing->results != NULL) {
        MOEC_TRY_OUT(moec_router_study_create(&forward, experts, kernels, n_threads, windows, max_tokens,
                                              routing->results, &collector.study, err));
        moec_router_study_trace(collector.study, &trace);
    }
    const struct moec_sweep_store store = {
        .states = &hidden,
        .trace = &trace,
        .traced = collect,
        .worked = worked,
        .context = &collector,
        .attention_in = collector.study != NULL ? moec_router_study_attention(collector.study) : NULL};
    MOEC_TRY_OUT(moec_sweep_run(&sweep, 0, windows->n_window, hidden.rows, &store, err));
    for (size_t i = 0; i < n_cell; i++) {
        if (routing->activations[i] > 0)
            routing->mean_gate_weight[i] /= (double)routing->activations[i];
    }
    if (collector.study != NULL)
        routing->multiply_adds += moec_router_study_multiply_adds(collector.study);
    if (routing->hidden != NULL) {
        *routing->hidden = hidden;
        hidden = (struct moec_states){0};
    }
out:
    moec_router_study_free(collector.study);
    moec_sweep_release(&sweep);
    moec_forward_release(&forward);
    free(collector.trace_start);
    free(collector.experts);
    free(collector.weights);
    moec_states_release(&hidden);
    return status;
}
