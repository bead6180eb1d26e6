/* How many activations may count as zero (FloE, Fig. 3(a)): those whose magnitude is under a threshold of
 * their expert, which a wanted share of its activations on the search windows stays under (eq. 6). */
#include "profiler/profile/weight_study.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/sweep.h"
#include "profiler/profile/activations.h"

#define N_LEVEL MOEC_STUDY_SPARSITY_LEVELS

static const double levels[N_LEVEL] = {0.5, 0.6, 0.7, 0.8, 0.9};

/* Thresholds from a sweep over the search windows. */
struct thresholds {
    struct moec_weight_run *run;
    struct moec_activations *activations;
    struct moec_mlp_filter *filters; /* (projections, N_LEVEL, S, E) */
    uint32_t *experts;               /* (max_tokens, k): trace of a batch */
    float *input;                    /* (max_tokens, stride) */
    uint32_t ordinal;                /* layer that is being counted */
    uint64_t multiply_adds;
    double pass;
};

static struct moec_mlp_filter *filters_at(const struct thresholds *thresholds, uint32_t projection,
                                          uint32_t level)
{
    const struct moec_profile *profile = thresholds->run->job->profile;
    const size_t n = (size_t)profile->n_moe_layer * profile->n_expert;
    return thresholds->filters + (projection * N_LEVEL + level) * n;
}

static void close_layer(struct thresholds *thresholds)
{
    const uint32_t n_expert = thresholds->run->job->profile->n_expert;
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        for (uint32_t l = 0; l < N_LEVEL; l++) {
            struct moec_mlp_filter *filters =
                filters_at(thresholds, p, l) + (size_t)thresholds->ordinal * n_expert;
            for (uint32_t e = 0; e < n_expert; e++)
                filters[e] = (struct moec_mlp_filter){
                    .is_on = true,
                    .at = (enum moec_projection)p,
                    .threshold = (float)moec_activations_quantile(thresholds->activations, e,
                                                                  (enum moec_projection)p, levels[l])};
        }
    }
    moec_activations_clear(thresholds->activations);
}

static enum moec_status traced(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                               struct moec_error *err)
{
    struct thresholds *thresholds = context;
    if (ordinal != thresholds->ordinal)
        close_layer(thresholds);
    thresholds->ordinal = ordinal;
    return moec_activations_add(thresholds->activations,
                                moec_config_moe_layer(thresholds->run->job->config, ordinal), batch->n_rows,
                                thresholds->input, thresholds->experts, err);
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct thresholds *thresholds = context;
    thresholds->multiply_adds += multiply_adds;
    const uint64_t all = thresholds->multiply_adds + moec_activations_multiply_adds(thresholds->activations);
    return moec_progress_report(&thresholds->run->progress, "thresholds", (double)all / thresholds->pass, 1,
                                err);
}

static enum moec_status find_thresholds(struct thresholds *thresholds, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile_job *job = thresholds->run->job;
    const struct moec_config *config = job->config;
    struct moec_experts *experts = moec_variants_experts(job->variants);
    struct moec_windows windows = {0};
    struct moec_forward forward = {0};
    struct moec_sweep sweep = {0};
    struct moec_states hidden = {0};
    const uint64_t row = moec_forward_stride(config) * sizeof(float);
    MOEC_TRY(moec_windows_part(&job->windows, MOEC_PART_SEARCH, &windows, err));
    const uint32_t max_tokens = moec_sweep_max_tokens(&windows);
    thresholds->pass = (double)moec_cost_pass(config, &job->windows);
    MOEC_TRY_OUT(moec_forward_init(&forward, job->model, job->options->kernels, job->options->n_threads,
                                   experts, max_tokens, err));
    MOEC_TRY_OUT(moec_sweep_create(&forward, &windows, false, &sweep, err));
    MOEC_TRY_OUT(moec_activations_create(&forward, experts, &thresholds->activations, err));
    MOEC_TRY_OUT(moec_alloc((void **)&thresholds->experts, (uint64_t)max_tokens * config->top_k,
                            sizeof(uint32_t), "routing of a batch", err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&thresholds->input, max_tokens, row, "inputs of a batch", err));
    MOEC_TRY_OUT(moec_states_create(windows.work, moec_windows_state_count(&windows),
                                    moec_forward_stride(config), "hidden states of the windows", &hidden,
                                    err));
    const struct moec_mlp_trace trace = {.experts = thresholds->experts, .input = thresholds->input};
    const struct moec_sweep_store store = {
        .states = &hidden, .trace = &trace, .traced = traced, .worked = worked, .context = thresholds};
    MOEC_TRY_OUT(moec_sweep_run(&sweep, 0, windows.n_window, hidden.rows, &store, err));
    close_layer(thresholds);
    job->multiply_adds += thresholds->multiply_adds + moec_activations_multiply_adds(thresholds->activations);
    moec_weight_run_ended(thresholds->run);
out:
    moec_states_release(&hidden);
    free(thresholds->input);
    free(thresholds->experts);
    moec_activations_free(thresholds->activations);
    moec_sweep_release(&sweep);
    moec_forward_release(&forward);
    moec_windows_release(&windows);
    return status;
}

enum moec_status moec_sparsity_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile_job *job = run->job;
    struct moec_profile *profile = job->profile;
    char labels[MOEC_PROJECTION_COUNT][MOEC_STUDY_LABEL] = {"gate", "up", "down"};
    double shares[N_LEVEL];
    const struct moec_study shape = {
        .name = "sparsity/loss",
        .description = "loss when this share of an expert's activations, the smallest, counts as zero: of "
                       "silu(gate), of up, or of what down reads; thresholds from the search windows",
        .source = "FloE, Fig. 3(a) and eq. 6",
        .n_axis = 2,
        .axes = {{.name = "projection", .n = MOEC_PROJECTION_COUNT, .labels = labels},
                 {.name = "sparsity", .n = N_LEVEL, .values = shares}}};
    struct moec_loss_study study;
    struct thresholds thresholds = {.run = run};
    for (uint32_t l = 0; l < N_LEVEL; l++)
        shares[l] = levels[l];
    MOEC_TRY(moec_loss_study_create(&shape, &study, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&thresholds.filters,
                   (uint64_t)profile->n_moe_layer * profile->n_expert * MOEC_PROJECTION_COUNT * N_LEVEL,
                   sizeof *thresholds.filters, "thresholds", err));
    MOEC_TRY_OUT(find_thresholds(&thresholds, err));
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        for (uint32_t l = 0; l < N_LEVEL; l++) {
            moec_variants_set_filters(job->variants, filters_at(&thresholds, p, l));
            MOEC_TRY_OUT(moec_weight_run_measure(run, NULL, &study, p * N_LEVEL + l, err));
        }
    }
    status = moec_loss_study_add(&study, profile, err);
out:
    moec_variants_set_filters(job->variants, NULL);
    free(thresholds.filters);
    moec_loss_study_release(&study);
    return status;
}
