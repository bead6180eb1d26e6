/* How many activations may count as zero (FloE, Fig. 3(a) and 10): those whose magnitude is under a threshold
 * of their expert, which a wanted share of its activations on the search windows stays under (eq. 6). Three
 * kinds have one threshold for an expert: silu(gate . x), as in CATS (arXiv:2404.08763), up . x, as in FloE,
 * and what down reads. The fourth is CHESS's channel-wise thresholding (arXiv:2409.01366, section 3): the
 * error of leaving out neuron i of a token is taken for |silu(gate_i . x)| E|up_i . x|, the mean over
 * calibration standing for the token's own, and columns of down for equally long; tau is the quantile of
 * these over all neurons and tokens of the expert, and neuron i has the threshold tau / E|up_i . x|. */
#include "profiler/profile/weight_study.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/profile/thresholds.h"

#define N_LEVEL MOEC_STUDY_SPARSITY_LEVELS
#define CHESS   MOEC_PROJECTION_COUNT /* of the kinds, whose others are the projections */

static const double levels[N_LEVEL] = {0.5, 0.6, 0.7, 0.8, 0.9};

/* Thresholds from sweeps over the search windows. */
struct thresholds {
    struct moec_weight_run *run;
    struct moec_mlp_filter *filters; /* (kinds, N_LEVEL, S, E), owned as all arrays */
    uint16_t *up_means;              /* (S, E, n_ff) BF16: E|up_i . x| */
    double *means;                   /* (n_ff) of one expert */
    double pass, before;             /* multiply-adds of a pass, and of sweeps that have ended */
};

uint32_t moec_sparsity_study_kinds(const struct moec_profile_options *options)
{
    return options->memory.place == NULL ? MOEC_STUDY_SPARSITY_KINDS : CHESS;
}

static size_t expert_count(const struct thresholds *thresholds)
{
    const struct moec_profile *profile = thresholds->run->job->profile;
    return (size_t)profile->n_moe_layer * profile->n_expert;
}

static struct moec_mlp_filter *filters_at(const struct thresholds *thresholds, uint32_t kind, uint32_t level)
{
    return thresholds->filters + (kind * N_LEVEL + level) * expert_count(thresholds);
}

static void set_filters(const struct thresholds *thresholds, uint32_t kind, uint32_t ordinal,
                        const struct moec_activations *activations)
{
    const struct moec_profile *profile = thresholds->run->job->profile;
    const enum moec_projection at = kind == CHESS ? MOEC_PROJECTION_GATE : (enum moec_projection)kind;
    for (uint32_t l = 0; l < N_LEVEL; l++) {
        for (uint32_t e = 0; e < profile->n_expert; e++) {
            const size_t place = (size_t)ordinal * profile->n_expert + e;
            filters_at(thresholds, kind, l)[place] = (struct moec_mlp_filter){
                .is_on = true,
                .at = at,
                .threshold = (float)moec_activations_quantile(activations, e, at, levels[l]),
                .scales = kind == CHESS ? thresholds->up_means + place * profile->config.n_ff_expert : NULL};
        }
    }
}

/* One threshold for an expert, and means of up for the next sweep. */
static void layer_done(void *context, uint32_t ordinal, const struct moec_activations *activations)
{
    const struct thresholds *thresholds = context;
    const struct moec_profile *profile = thresholds->run->job->profile;
    const size_t n_ff = profile->config.n_ff_expert;
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
        set_filters(thresholds, p, ordinal, activations);
    for (uint32_t e = 0; e < profile->n_expert; e++) {
        uint16_t *means = thresholds->up_means + ((size_t)ordinal * profile->n_expert + e) * n_ff;
        moec_activations_up_means(activations, e, thresholds->means);
        for (size_t i = 0; i < n_ff; i++)
            means[i] = moec_f32_to_bf16((float)thresholds->means[i]);
    }
}

static void scaled_layer_done(void *context, uint32_t ordinal, const struct moec_activations *activations)
{
    set_filters(context, CHESS, ordinal, activations);
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct thresholds *thresholds = context;
    const double done = (thresholds->before + (double)multiply_adds) / thresholds->pass;
    return moec_progress_report(&thresholds->run->progress, "thresholds", done, 2, err);
}

static enum moec_status find_thresholds(struct thresholds *thresholds, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile_job *job = thresholds->run->job;
    struct moec_windows windows = {0};
    MOEC_TRY(moec_windows_part(&job->windows, MOEC_PART_SEARCH, &windows, err));
    thresholds->pass = (double)moec_cost_pass(job->config, &job->windows);
    struct moec_thresholds_job sweep = {
        .of = {.model = job->model, .experts = moec_variants_experts(job->variants), .windows = &windows},
        .kernels = job->options->by.kernels,
        .n_threads = job->options->by.n_threads,
        .hooks = {.layer_done = layer_done, .worked = worked, .context = thresholds}};
    const uint32_t n_sweep = 1 + moec_sparsity_study_kinds(job->options) - CHESS;
    for (uint32_t i = 0; i < n_sweep; i++) {
        uint64_t multiply_adds = 0;
        MOEC_TRY_OUT(moec_thresholds_sweep(&sweep, &multiply_adds, err));
        job->multiply_adds += multiply_adds;
        thresholds->before += (double)multiply_adds;
        sweep.hooks.layer_done = scaled_layer_done;
        sweep.gate_scales = thresholds->up_means;
    }
    moec_weight_run_ended(thresholds->run);
out:
    moec_windows_release(&windows);
    return status;
}

static enum moec_status allocate(struct thresholds *thresholds, uint32_t n_kind, struct moec_error *err)
{
    const uint64_t n_expert = expert_count(thresholds),
                   n_ff = thresholds->run->job->profile->config.n_ff_expert;
    MOEC_TRY(moec_alloc((void **)&thresholds->filters, n_expert * n_kind * N_LEVEL,
                        sizeof *thresholds->filters, "thresholds", err));
    MOEC_TRY(moec_alloc((void **)&thresholds->up_means, n_expert * n_ff, sizeof *thresholds->up_means,
                        "sizes of neurons' up products", err));
    return moec_alloc((void **)&thresholds->means, n_ff, sizeof *thresholds->means,
                      "sizes of neurons' up products", err);
}

enum moec_status moec_sparsity_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile_job *job = run->job;
    struct moec_profile *profile = job->profile;
    char labels[MOEC_STUDY_SPARSITY_KINDS][MOEC_STUDY_LABEL] = {"gate", "up", "down", "gate by neuron"};
    double shares[N_LEVEL];
    const uint32_t n_kind = moec_sparsity_study_kinds(job->options);
    const struct moec_study shape = {
        .name = "sparsity/loss",
        .description = "loss when this share of an expert's activations, the smallest, counts as zero: of "
                       "silu(gate) (CATS), of up (FloE), of what down reads, or of silu(gate) times the "
                       "neuron's mean |up| (CHESS); thresholds from the search windows",
        .source = "FloE, Fig. 3(a), eq. 6; CHESS, section 3",
        .n_axis = 2,
        .axes = {{.name = "projection", .n = n_kind, .labels = labels},
                 {.name = "sparsity", .n = N_LEVEL, .values = shares}}};
    struct moec_loss_study study;
    struct thresholds thresholds = {.run = run};
    for (uint32_t l = 0; l < N_LEVEL; l++)
        shares[l] = levels[l];
    MOEC_TRY(moec_loss_study_create(&shape, &study, err));
    MOEC_TRY_OUT(allocate(&thresholds, n_kind, err));
    MOEC_TRY_OUT(find_thresholds(&thresholds, err));
    for (uint32_t k = 0; k < n_kind; k++) {
        for (uint32_t l = 0; l < N_LEVEL; l++) {
            moec_variants_set_filters(job->variants, filters_at(&thresholds, k, l));
            MOEC_TRY_OUT(moec_weight_run_measure(run, NULL, &study, k * N_LEVEL + l, err));
        }
    }
    status = moec_loss_study_add(&study, profile, err);
out:
    moec_variants_set_filters(job->variants, NULL);
    free(thresholds.filters);
    free(thresholds.up_means);
    free(thresholds.means);
    moec_loss_study_release(&study);
    return status;
}
