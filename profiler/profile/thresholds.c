/* A layer is over when the first batch of the next one arrives, and the last one when the sweep is. What it
 * counted is then handed on and cleared, so that only one layer's counts are in memory. Experts with too few
 * tokens take their layer's quantiles. */
#include "profiler/profile/thresholds.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/sweep.h"

struct sweeping {
    const struct moec_thresholds_job *job;
    const struct moec_config *config;
    struct moec_activations *activations; /* owned, as the arrays */
    uint32_t *experts;                    /* (max_tokens, k): trace of a batch */
    float *weights;                       /* (max_tokens, k) likewise */
    float *input;                         /* (max_tokens, stride) */
    uint32_t ordinal;                     /* layer that is being counted */
    uint64_t multiply_adds;
};

static void close_layer(struct sweeping *sweeping)
{
    sweeping->job->hooks.layer_done(sweeping->job->hooks.context, sweeping->ordinal, sweeping->activations);
    moec_activations_clear(sweeping->activations);
}

static void open_layer(struct sweeping *sweeping, uint32_t ordinal)
{
    const struct moec_config *config = sweeping->config;
    const uint16_t *scales = sweeping->job->gate_scales;
    sweeping->ordinal = ordinal;
    if (scales != NULL)
        moec_activations_scale_gate(sweeping->activations,
                                    scales + (size_t)ordinal * config->n_expert * config->n_ff_expert);
}

static enum moec_status traced(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                               struct moec_error *err)
{
    struct sweeping *sweeping = context;
    if (ordinal != sweeping->ordinal)
        close_layer(sweeping);
    open_layer(sweeping, ordinal);
    return moec_activations_add(sweeping->activations, moec_config_moe_layer(sweeping->config, ordinal),
                                batch->n_rows, sweeping->input,
                                &(struct moec_token_choices){sweeping->experts, sweeping->weights}, err);
}

static uint64_t work_so_far(const struct sweeping *sweeping)
{
    return sweeping->multiply_adds + moec_activations_multiply_adds(sweeping->activations);
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct sweeping *sweeping = context;
    sweeping->multiply_adds += multiply_adds;
    if (sweeping->job->hooks.worked == NULL)
        return MOEC_OK;
    return sweeping->job->hooks.worked(sweeping->job->hooks.context, work_so_far(sweeping), err);
}

enum moec_status moec_thresholds_sweep(const struct moec_thresholds_job *job, uint64_t *multiply_adds,
                                       struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &job->of.model->config;
    const struct moec_windows *windows = job->of.windows;
    struct moec_forward forward = {0};
    struct moec_sweep sweep = {0};
    struct moec_states hidden = {0};
    struct sweeping sweeping = {.job = job, .config = config};
    const uint64_t row = moec_forward_stride(config) * sizeof(float);
    const uint32_t max_tokens = moec_sweep_max_tokens(windows);
    MOEC_TRY_OUT(moec_forward_init(&forward, job->of.model, job->kernels, job->n_threads, job->of.experts,
                                   max_tokens, err));
    MOEC_TRY_OUT(moec_sweep_create(&forward, windows, false, &sweep, err));
    MOEC_TRY_OUT(moec_activations_create(&forward, job->of.experts, &sweeping.activations, err));
    if (job->finds_turnover)
        MOEC_TRY_OUT(moec_activations_keep_up(sweeping.activations, MOEC_TURNOVER_TOKENS, err));
    MOEC_TRY_OUT(moec_alloc((void **)&sweeping.experts, (uint64_t)max_tokens * config->top_k,
                            sizeof *sweeping.experts, "routing of a batch", err));
    MOEC_TRY_OUT(moec_alloc((void **)&sweeping.weights, (uint64_t)max_tokens * config->top_k,
                            sizeof *sweeping.weights, "routing of a batch", err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&sweeping.input, max_tokens, row, "inputs of a batch", err));
    MOEC_TRY_OUT(moec_states_create(windows->work, moec_windows_state_count(windows),
                                    moec_forward_stride(config), "hidden states of the windows", &hidden,
                                    err));
    const struct moec_mlp_trace trace = {
        .experts = sweeping.experts, .weights = sweeping.weights, .input = sweeping.input};
    const struct moec_sweep_store store = {
        .states = &hidden, .trace = &trace, .traced = traced, .worked = worked, .context = &sweeping};
    MOEC_TRY_OUT(
        moec_sweep_run(&sweep, (struct moec_window_range){0, windows->n_window}, hidden.rows, &store, err));
    close_layer(&sweeping);
    *multiply_adds = work_so_far(&sweeping);
out:
    moec_states_release(&hidden);
    free(sweeping.input);
    free(sweeping.experts);
    free(sweeping.weights);
    moec_activations_free(sweeping.activations);
    moec_sweep_release(&sweep);
    moec_forward_release(&forward);
    return status;
}

/* ---- a table ---- */

struct filling {
    const struct moec_progress *progress;
    struct moec_sparsity_table *table;
    double pass; /* multiply-adds of a pass over the windows */
    bool finds_turnover;
    enum moec_projection at;
    uint64_t n_active[MOEC_SPARSITY_MAX_SHARES], n_turn[MOEC_SPARSITY_MAX_SHARES];
};

static void fill_layer(void *context, uint32_t ordinal, const struct moec_activations *activations)
{
    struct filling *filling = context;
    const struct moec_sparsity_table *table = filling->table;
    for (uint32_t e = 0; e < table->n_expert; e++) {
        const bool is_known = moec_activations_tokens(activations, e) >= MOEC_THRESHOLD_TOKENS;
        float *thresholds = moec_sparsity_table_at(table, ordinal, e);
        for (uint32_t i = 0; i < table->n_share; i++) {
            const double q = table->shares[i] * 1e-3;
            thresholds[i] = (float)(is_known ? moec_activations_quantile(activations, e, filling->at, q)
                                             : moec_activations_layer_quantile(activations, filling->at, q));
            if (filling->finds_turnover)
                moec_activations_count_turns(activations, e, thresholds[i], &filling->n_active[i],
                                             &filling->n_turn[i]);
        }
    }
}

/* Shares at which no kept token has an active neuron say nothing, as nothing said of all. */
static void fill_turnover(const struct filling *filling)
{
    struct moec_neuron_turnover *turnover = &filling->table->turnover;
    *turnover = (struct moec_neuron_turnover){0};
    for (uint32_t i = 0; i < filling->table->n_share; i++) {
        if (!filling->finds_turnover || filling->n_active[i] == 0)
            continue;
        turnover->shares[turnover->n_share] = filling->table->shares[i];
        turnover->turnover[turnover->n_share++] =
            (float)((double)filling->n_turn[i] / (double)filling->n_active[i]);
    }
}

static enum moec_status report(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    const struct filling *filling = context;
    const double share = (double)multiply_adds / filling->pass;
    return moec_progress_report(filling->progress, "thresholds", share < 1 ? share : 1, 1, err);
}

enum moec_status moec_thresholds_fill(const struct moec_thresholds_job *job,
                                      const struct moec_progress *progress, struct moec_sparsity_table *table,
                                      struct moec_error *err)
{
    struct filling filling = {.progress = progress,
                              .table = table,
                              .finds_turnover = job->finds_turnover,
                              .at = job->at_gate ? MOEC_PROJECTION_GATE : MOEC_PROJECTION_UP};
    struct moec_thresholds_job own = *job;
    uint64_t multiply_adds = 0;
    /* Counting computes gate and up a second time. */
    filling.pass = 2 * (double)moec_cost_pass(&job->of.model->config, job->of.windows);
    own.hooks.layer_done = fill_layer;
    own.hooks.worked = report;
    own.hooks.context = &filling;
    MOEC_TRY(moec_thresholds_sweep(&own, &multiply_adds, err));
    table->n_token = moec_windows_token_count(job->of.windows);
    fill_turnover(&filling);
    return MOEC_OK;
}
