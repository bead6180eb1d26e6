/* The model that variants change, on one group of windows at a time: what of it variants are compared with
 * and continue from. */
#include "profiler/sensitivity/sensitivity_internal.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/score.h"

#include <inttypes.h>
#include <string.h>

static enum moec_status create_kv(const struct sensitivity *job, uint64_t n_rows, const char *what,
                                  struct moec_kv_state *state, struct moec_error *err)
{
    const struct moec_config *config = job->model.config;
    return moec_kv_state_create(config,
                                (struct moec_kv_layers){config->n_encoder_layer,
                                                        config->n_layer - config->n_encoder_layer,
                                                        MOEC_KV_EACH_LAYER, n_rows},
                                what, state, err);
}

/* Arrays of the group's sources. */
static enum moec_status allocate_sources(struct sensitivity *job, struct moec_error *err)
{
    struct moec_baseline *baseline = &job->passes.baseline;
    const char *what = "keys and values of the sources";
    if (job->options->of.windows->source == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&job->group.source_start, (uint64_t)baseline->group.windows->n_window + 1,
                        sizeof(uint64_t), what, err));
    MOEC_TRY(create_kv(job, job->group.source_capacity, what, &baseline->states.source_kv, err));
    baseline->group.source_start = job->group.source_start;
    return MOEC_OK;
}

enum moec_status moec_sensitivity_baseline_create(struct sensitivity *job, struct moec_error *err)
{
    const uint64_t n = job->group.capacity, row = job->model.stride * sizeof(float);
    const uint64_t n_traced = moec_stacked_rows(
        job->model.n_moe, moec_config_moe_encoder_count(job->model.config), job->group.source_capacity, n);
    struct moec_baseline *baseline = &job->passes.baseline;
    const char *what = "activations of the baseline";
    *baseline =
        (struct moec_baseline){.group.windows = job->passes.windows, .states.stride = job->model.stride};
    MOEC_TRY(moec_alloc((void **)&job->group.row_start, (uint64_t)baseline->group.windows->n_window + 1,
                        sizeof(uint64_t), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&baseline->states.attention_out, n_traced, row, what, err));
    MOEC_TRY(create_kv(job, n, what, &baseline->states.kv, err));
    MOEC_TRY(moec_alloc_aligned((void **)&baseline->states.hidden, job->group.source_capacity + n, row, what,
                                err));
    MOEC_TRY(moec_alloc((void **)&baseline->scores.targets, n, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&baseline->scores.nll, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&baseline->scores.kl, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->group.row_numbers, n, sizeof(uint32_t), what, err));
    for (uint32_t i = 0; i < n; i++)
        job->group.row_numbers[i] = i;
    baseline->group.row_start = job->group.row_start;
    MOEC_TRY(allocate_sources(job, err));
    return moec_reference_create(job->model.config, (uint32_t)n, &baseline->scores.reference, err);
}

void moec_sensitivity_baseline_release(struct sensitivity *job)
{
    struct moec_baseline *baseline = &job->passes.baseline;
    moec_reference_release(&baseline->scores.reference);
    moec_kv_state_release(&baseline->states.kv);
    moec_kv_state_release(&baseline->states.source_kv);
    void *const owned[] = {baseline->states.attention_out, baseline->states.hidden, baseline->scores.targets,
                           baseline->scores.nll,           baseline->scores.kl,     job->group.row_start,
                           job->group.source_start,        job->group.row_numbers};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* Every variant of the window that is not measured yet starts as the baseline. */
static void start_variants(struct sensitivity *job, uint32_t w)
{
    struct moec_sensitivity *result = job->result;
    const uint32_t n_expert = job->model.config->n_expert, n_variant = n_expert * job->options->of.n_bits;
    for (uint32_t s = 0; s < job->model.n_moe; s++) {
        for (uint32_t v = *moec_sensitivity_units_variants(&job->kept, w, s); v < n_variant; v++) {
            *sensitivity_cell(job, result->expert_nll, s, v % n_expert, v / n_expert, w) =
                result->baseline.nll[w];
            *sensitivity_cell(job, result->expert_kl, s, v % n_expert, v / n_expert, w) =
                result->baseline.kl[w];
        }
    }
}

/* Sums of the group's windows. */
static enum moec_status store_baseline(struct sensitivity *job, struct moec_error *err)
{
    const struct moec_baseline *baseline = &job->passes.baseline;
    struct moec_sensitivity *result = job->result;
    for (uint32_t i = 0; i < baseline->group.n_window; i++) {
        const uint32_t n = baseline->group.windows->scored[baseline->group.first_window + i],
                       w = moec_rank_windows_number(&job->passes.shared, baseline->group.first_window + i);
        const double nll = moec_score_sum(baseline->scores.nll + baseline->group.row_start[i], n);
        const double kl = moec_score_sum(baseline->scores.kl + baseline->group.row_start[i], n);
        MOEC_TRY(moec_score_check(nll, w, err));
        if (job->kept.baseline[w] && (result->baseline.nll[w] != nll || result->baseline.kl[w] != kl))
            return moec_fail(
                err, MOEC_ERR_MISMATCH,
                "window %" PRIu32
                ": the baseline's losses differ from those in the journal, which another build or "
                "a faulty machine may have written; delete the journal to start over",
                w);
        result->baseline.nll[w] = nll;
        result->baseline.kl[w] = kl;
        start_variants(job, w);
    }
    return MOEC_OK;
}

void moec_sensitivity_baseline_open(struct sensitivity *job, uint32_t first, uint32_t n)
{
    struct moec_baseline *baseline = &job->passes.baseline;
    const struct moec_windows *windows = baseline->group.windows;
    baseline->group.first_window = first;
    baseline->group.n_window = n;
    baseline->group.n_row = moec_sweep_rows(&job->passes.sweep, first, n);
    baseline->group.n_source = moec_sweep_source_rows(&job->passes.sweep, first, n);
    baseline->states.final_hidden = baseline->states.hidden + baseline->group.n_source * job->model.stride;
    for (uint32_t i = 0; i <= n; i++)
        job->group.row_start[i] = moec_sweep_rows(&job->passes.sweep, first, i);
    for (uint32_t i = 0; job->group.source_start != NULL && i <= n; i++)
        job->group.source_start[i] = moec_sweep_source_rows(&job->passes.sweep, first, i);
    for (uint32_t i = 0; i < n; i++)
        memcpy(baseline->scores.targets + job->group.row_start[i],
               moec_windows_target(windows, first + i) + 1,
               windows->scored[first + i] * sizeof *windows->tokens);
}

/* This rank's windows of the group. `*cost`: what it adds to that of the sweep. */
static enum moec_status run_baseline(struct sensitivity *job, bool again, uint64_t *cost,
                                     struct moec_error *err)
{
    struct moec_baseline *baseline = &job->passes.baseline;
    const float *reference = job->options->reference_hidden;
    const struct moec_states *states = job->options->reference_states;
    const uint32_t first = baseline->group.first_window, n = baseline->group.n_window;
    const uint64_t first_row = job->passes.sweep.row_start[first];
    for (uint32_t w = first; w < first + n; w++)
        *cost += moec_sensitivity_window_cost(job, w);
    if (again)
        job->progress.planned += *cost;
    const struct moec_sweep_store store = {.attention_out = baseline->states.attention_out,
                                           .kv = &baseline->states.kv,
                                           .source_kv = &baseline->states.source_kv,
                                           .worked = moec_sensitivity_worked,
                                           .context = job};
    MOEC_TRY(moec_sweep_run(&job->passes.sweep, (struct moec_window_range){first, n}, baseline->states.hidden,
                            &store, err));
    /* The original's head, again for each group instead of kept for all windows. */
    const uint32_t n_row = (uint32_t)baseline->group.n_row;
    MOEC_TRY(
        moec_token_scorer_refer(&job->passes.tokens, &job->passes.canonical,
                                &(struct moec_final_states){n_row, reference + first_row * job->model.stride},
                                &baseline->scores.reference, 0, err));
    if (states != NULL)
        moec_states_leave(states, (uint64_t)(reference - states->rows) / states->stride + first_row, n_row);
    MOEC_TRY(moec_token_scorer_run(&job->passes.tokens, &job->passes.forward,
                                   &(struct moec_final_states){n_row, baseline->states.final_hidden},
                                   &(struct moec_scored_tokens){.targets = baseline->scores.targets,
                                                                .reference = &baseline->scores.reference,
                                                                .reference_rows = job->group.row_numbers,
                                                                .nll = baseline->scores.nll,
                                                                .kl = baseline->scores.kl},
                                   err));
    const uint64_t head = moec_cost_head(job->model.config, n_row);
    job->progress.planned += head;
    *cost += head;
    MOEC_TRY(moec_sensitivity_worked(job, 2 * head, err));
    return store_baseline(job, err);
}

enum moec_status moec_sensitivity_baseline_share(struct sensitivity *job, struct moec_error *err)
{
    struct moec_sensitivity *result = job->result;
    const bool again = job->kept.baseline[job->group.first_window]; /* for its states alone */
    uint64_t cost = 0;
    if (job->passes.baseline.group.n_window > 0)
        MOEC_TRY(run_baseline(job, again, &cost, err));
    if (again)
        return MOEC_OK;
    MOEC_TRY(moec_ranks_gather(job->passes.shared.ranks, result->baseline.nll, job->passes.shared.n_all,
                               sizeof(double), err));
    MOEC_TRY(moec_ranks_gather(job->passes.shared.ranks, result->baseline.kl, job->passes.shared.n_all,
                               sizeof(double), err));
    MOEC_TRY(moec_ranks_sum(job->passes.shared.ranks, &cost, 1, err));
    result->multiply_adds += cost;
    return moec_sensitivity_units_keep_baseline(&job->kept, result, job->group.first_window,
                                                job->group.n_window, cost, err);
}
