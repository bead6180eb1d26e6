/* How many activations may count as zero (FloE, Fig. 3(a)): those whose magnitude is under a threshold of
 * their expert, which a wanted share of its activations on the search windows stays under (eq. 6). */
#include "profiler/profile/weight_study.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/profile/thresholds.h"

#define N_LEVEL MOEC_STUDY_SPARSITY_LEVELS

static const double levels[N_LEVEL] = {0.5, 0.6, 0.7, 0.8, 0.9};

/* Thresholds from a sweep over the search windows. */
struct thresholds {
    struct moec_weight_run *run;
    struct moec_mlp_filter *filters; /* (projections, N_LEVEL, S, E) */
    double pass;
};

static struct moec_mlp_filter *filters_at(const struct thresholds *thresholds, uint32_t projection,
                                          uint32_t level)
{
    const struct moec_profile *profile = thresholds->run->job->profile;
    const size_t n = (size_t)profile->n_moe_layer * profile->n_expert;
    return thresholds->filters + (projection * N_LEVEL + level) * n;
}

static void layer_done(void *context, uint32_t ordinal, const struct moec_activations *activations)
{
    const struct thresholds *thresholds = context;
    const uint32_t n_expert = thresholds->run->job->profile->n_expert;
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        for (uint32_t l = 0; l < N_LEVEL; l++) {
            struct moec_mlp_filter *filters = filters_at(thresholds, p, l) + (size_t)ordinal * n_expert;
            for (uint32_t e = 0; e < n_expert; e++)
                filters[e] =
                    (struct moec_mlp_filter){.is_on = true,
                                             .at = (enum moec_projection)p,
                                             .threshold = (float)moec_activations_quantile(
                                                 activations, e, (enum moec_projection)p, levels[l])};
        }
    }
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct thresholds *thresholds = context;
    return moec_progress_report(&thresholds->run->progress, "thresholds",
                                (double)multiply_adds / thresholds->pass, 1, err);
}

static enum moec_status find_thresholds(struct thresholds *thresholds, struct moec_error *err)
{
    struct moec_profile_job *job = thresholds->run->job;
    struct moec_windows windows = {0};
    uint64_t multiply_adds = 0;
    MOEC_TRY(moec_windows_part(&job->windows, MOEC_PART_SEARCH, &windows, err));
    thresholds->pass = (double)moec_cost_pass(job->config, &job->windows);
    const struct moec_thresholds_job sweep = {.model = job->model,
                                              .experts = moec_variants_experts(job->variants),
                                              .kernels = job->options->kernels,
                                              .n_threads = job->options->n_threads,
                                              .windows = &windows,
                                              .layer_done = layer_done,
                                              .worked = worked,
                                              .context = thresholds};
    const enum moec_status status = moec_thresholds_sweep(&sweep, &multiply_adds, err);
    moec_windows_release(&windows);
    if (status != MOEC_OK)
        return status;
    job->multiply_adds += multiply_adds;
    moec_weight_run_ended(thresholds->run);
    return MOEC_OK;
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
