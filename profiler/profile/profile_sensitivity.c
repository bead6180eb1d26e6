/* How a profile comes to its sensitivities: the choice between measuring and estimating, and the estimate as
 * a phase of the run. */
#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/profile/profile_cost.h"
#include "profiler/sensitivity/fast_sensitivity.h"
#include "profiler/sensitivity/sensitivity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the choice ---- */

static void say_duration(char text[static 32], double seconds)
{
    if (seconds < 100)
        (void)snprintf(text, 32, "%.0f s", seconds);
    else if (seconds < 6000)
        (void)snprintf(text, 32, "%.0f min", seconds / 60);
    else
        (void)snprintf(text, 32, "%.1f h", seconds / 3600);
}

/* By the pace of the original's evaluation. */
static enum moec_status choose_by_time(const struct moec_profile_job *job, uint8_t *chosen,
                                       struct moec_error *err)
{
    const double limit = job->options->measures.time_limit_seconds;
    uint64_t cost = 0;
    char expected[32], allowed[32];
    MOEC_TRY(moec_profile_cost_exact(job, &cost, err));
    const double seconds = (double)cost * job->seconds_per_multiply_add;
    *chosen = seconds <= limit ? MOEC_SENSITIVITY_EXACT : MOEC_SENSITIVITY_FAST;
    say_duration(expected, seconds);
    say_duration(allowed, limit);
    moec_progress_note(job->options->progress,
                       "sensitivity '%s' is used: 'exact' would take about %.0f passes over the text (%s), "
                       "and the time limit is %s",
                       *chosen == MOEC_SENSITIVITY_EXACT ? "exact" : "fast",
                       (double)cost / (double)moec_cost_pass(job->config, &job->windows), expected, allowed);
    return MOEC_OK;
}

enum moec_status moec_job_choose_sensitivity(struct moec_profile_job *job, struct moec_error *err)
{
    struct moec_profile *profile = job->profile;
    const struct moec_profile_options *options = job->options;
    /* What an encoder's error does to a token of the target is not local. */
    if (options->measures.sensitivity == MOEC_SENSITIVITY_AUTO &&
        moec_config_is_encoder_decoder(job->config)) {
        profile->sensitivity = MOEC_SENSITIVITY_EXACT;
        (void)snprintf(profile->sensitivity_choice, sizeof profile->sensitivity_choice,
                       "auto: there are no estimates with an encoder");
        moec_progress_note(
            options->progress,
            "sensitivity 'exact' is used, because 'fast' does not support models with an encoder");
        return MOEC_OK;
    }
    if (options->measures.sensitivity != MOEC_SENSITIVITY_AUTO) {
        profile->sensitivity = (uint8_t)options->measures.sensitivity;
        (void)snprintf(profile->sensitivity_choice, sizeof profile->sensitivity_choice, "asked for");
        return MOEC_OK;
    }
    /* What was chosen once stays chosen, however fast the machine is now. */
    const struct moec_unit_part part = {&profile->sensitivity, sizeof profile->sensitivity};
    bool found = false;
    const struct moec_unit unit = {"choice", &part, 1};
    MOEC_TRY(moec_unit_find(job->units, &unit, &job->multiply_adds, &found, err));
    if (!found) {
        MOEC_TRY(choose_by_time(job, &profile->sensitivity, err));
        MOEC_TRY(moec_ranks_spread(options->by.ranks, 0, &profile->sensitivity, sizeof profile->sensitivity,
                                   err)); /* by the first one's clock */
        MOEC_TRY(moec_unit_keep(job->units, &unit, 0, err));
    }
    /* Without the estimate, which differs from run to run. */
    (void)snprintf(profile->sensitivity_choice, sizeof profile->sensitivity_choice,
                   "auto: exact was expected to take %s than %g s",
                   profile->sensitivity == MOEC_SENSITIVITY_EXACT ? "less" : "more",
                   options->measures.time_limit_seconds);
    return MOEC_OK;
}

/* ---- the estimate ---- */

static const struct moec_measure *uniform_at(const struct moec_profile *profile, uint32_t bits)
{
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        if (profile->uniform_bits[u] == bits)
            return &profile->uniform[u];
    return NULL;
}

/* Place of code c of a result (the baseline's is the last) among all bitwidths in increasing order. */
static uint32_t place_of(const struct moec_profile *profile, uint32_t code)
{
    uint32_t before = 0;
    if (code < profile->n_bits)
        return code + (profile->bits[code] > profile->baseline_bits);
    while (before < profile->n_bits && profile->bits[before] < profile->baseline_bits)
        before++;
    return before;
}

static enum moec_status add_study(struct moec_profile *profile, const struct moec_study *shape,
                                  struct moec_study **added, struct moec_error *err)
{
    struct moec_study study = *shape;
    double layers[MOEC_MAX_LAYERS], bits[MOEC_PROFILE_MAX_BITS + 1];
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        layers[s] = profile->moe_layers[s];
    for (uint32_t code = 0; code <= profile->n_bits; code++)
        bits[place_of(profile, code)] = code < profile->n_bits ? profile->bits[code] : profile->baseline_bits;
    for (uint32_t a = 0; a < study.n_axis; a++) {
        struct moec_study_axis *axis = &study.axes[a];
        const bool is_layer = strcmp(axis->name, "moe_layer") == 0, is_bits = strcmp(axis->name, "bits") == 0;
        axis->n = is_layer ? profile->n_moe_layer : is_bits ? profile->n_bits + 1 : profile->n_expert;
        axis->values = is_layer ? layers : is_bits ? bits : NULL;
    }
    return moec_studies_add(&profile->studies, &study, added, err);
}

static enum moec_status add_studies(struct moec_profile *profile, const struct moec_fast_result *result,
                                    struct moec_error *err)
{
    static const struct moec_study error_shape = {
        .name = "fast/local_error",
        .units = "1",
        .description = "squared error of an expert's output at some bits over the squared output, on the "
                       "tokens that it receives",
        .n_axis = 3,
        .axes = {{.name = "moe_layer"}, {.name = "expert"}, {.name = "bits", .units = "bit"}}};
    static const struct moec_study gain_shape = {
        .name = "fast/gain",
        .units = "nats",
        .description = "KL divergence for a unit of an expert's error, weighted by its gate and relative to "
                       "the residual stream, at the lowest bitwidth",
        .n_axis = 2,
        .axes = {{.name = "moe_layer"}, {.name = "expert"}}};
    static const struct moec_study small_shape = {
        .name = "fast/small_gain",
        .units = "1",
        .description = "gain of a layer for changes of half the size, relative to changes of the whole size",
        .n_axis = 1,
        .axes = {{.name = "moe_layer"}}};
    static const struct moec_study ratio_shape = {
        .name = "fast/nll_ratio",
        .units = "1",
        .description = "change of NLL for one of KL divergence when all experts of the layer "
                       "have the lowest bitwidth",
        .n_axis = 1,
        .axes = {{.name = "moe_layer"}}};
    static const struct moec_study bits_shape = {
        .name = "fast/bits_gain",
        .units = "1",
        .description =
            "measured loss of the whole model at a bitwidth over the sum of its experts' estimates",
        .n_axis = 1,
        .axes = {{.name = "bits", .units = "bit"}}};
    const size_t n_expert = (size_t)profile->n_moe_layer * profile->n_expert;
    const uint32_t n_code = profile->n_bits + 1;
    struct moec_study *study = NULL;
    MOEC_TRY(add_study(profile, &error_shape, &study, err));
    for (size_t i = 0; i < n_expert; i++)
        for (uint32_t code = 0; code < n_code; code++)
            study->values[i * n_code + place_of(profile, code)] = result->local_error[i * n_code + code];
    MOEC_TRY(add_study(profile, &gain_shape, &study, err));
    memcpy(study->values, result->gain, n_expert * sizeof *result->gain);
    MOEC_TRY(add_study(profile, &small_shape, &study, err));
    memcpy(study->values, result->small_gain, profile->n_moe_layer * sizeof *result->small_gain);
    MOEC_TRY(add_study(profile, &ratio_shape, &study, err));
    memcpy(study->values, result->nll_ratio, profile->n_moe_layer * sizeof *result->nll_ratio);
    MOEC_TRY(add_study(profile, &bits_shape, &study, err));
    for (uint32_t code = 0; code < n_code; code++)
        study->values[place_of(profile, code)] = result->bits_gain[code];
    return MOEC_OK;
}

/* The original in the arithmetic of the estimate, which compares with it; released by the caller. */
static enum moec_status measure_original(struct moec_profile_job *job, struct moec_measure *original,
                                         struct moec_error *err)
{
    static const char what[] = "the original in another arithmetic";
    const uint32_t n_window = job->profile->n_window;
    if (job->options->by.arithmetic == MOEC_ARITHMETIC_CANONICAL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&original->nll, n_window, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&original->kl, n_window, sizeof(double), what, err));
    MOEC_TRY(moec_variants_assign_all(job->variants, moec_variants_source_bits(job->variants), err));
    return moec_job_score(job, "original by arithmetic", original, err);
}

static enum moec_status run_fast(struct moec_profile_job *job, const double *original_nll,
                                 struct moec_fast_result *result, struct moec_error *err)
{
    const struct moec_profile *profile = job->profile;
    const struct moec_measure *uniform[MOEC_PROFILE_MAX_BITS] = {0};
    for (uint32_t b = 0; b < profile->n_bits; b++)
        uniform[b] = uniform_at(profile, profile->bits[b]);
    const double pass = (double)moec_cost_pass(job->config, &job->windows);
    struct moec_fast_options fast = {.of = moec_job_subject(job),
                                     .by = job->options->by,
                                     .baseline = &profile->baseline,
                                     .uniform = uniform,
                                     .reference_nll = original_nll,
                                     .limit_multiply_adds =
                                         moec_fast_sensitivity_limit(job->config, &job->sensitivity_windows)};
    const uint64_t n_expert = (uint64_t)profile->n_moe_layer * profile->n_expert;
    const uint64_t n_row = n_expert * profile->n_bits * profile->n_sensitivity_window,
                   n_code = profile->n_bits + 1;
    const struct moec_unit_part parts[] = {
        {result->expert_nll, n_row * sizeof(double)},
        {result->expert_kl, n_row * sizeof(double)},
        {result->local_error, n_expert * n_code * sizeof(double)},
        {result->gain, n_expert * sizeof(double)},
        {result->small_gain, profile->n_moe_layer * sizeof(double)},
        {result->nll_ratio, profile->n_moe_layer * sizeof(double)},
        {result->bits_gain, n_code * sizeof(double)},
    };
    const uint32_t n_part = sizeof parts / sizeof *parts;
    bool found = false;
    const struct moec_unit unit = {"fast", parts, n_part};
    MOEC_TRY(moec_unit_find(job->units, &unit, &job->multiply_adds, &found, err));
    if (found)
        return MOEC_OK;
    struct moec_job_progress scaled;
    fast.progress = moec_job_progress_scale(job, (double)fast.limit_multiply_adds / pass, &scaled);
    MOEC_TRY(moec_fast_sensitivity_run(&fast, result, err));
    job->multiply_adds += result->multiply_adds;
    return moec_unit_keep(job->units, &unit, result->multiply_adds, err);
}

enum moec_status moec_job_estimate_sensitivity(struct moec_profile_job *job, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile *profile = job->profile;
    const uint64_t n_expert = (uint64_t)profile->n_moe_layer * profile->n_expert,
                   n_code = profile->n_bits + 1;
    struct moec_fast_result result = {.expert_nll = profile->expert_nll, .expert_kl = profile->expert_kl};
    struct moec_measure original = {NULL, NULL};
    const char *what = "estimates of sensitivity";
    MOEC_TRY_OUT(moec_alloc((void **)&result.local_error, n_expert * n_code, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&result.gain, n_expert, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&result.small_gain, profile->n_moe_layer, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&result.nll_ratio, profile->n_moe_layer, sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&result.bits_gain, n_code, sizeof(double), what, err));
    MOEC_TRY_OUT(measure_original(job, &original, err));
    MOEC_TRY_OUT(run_fast(job, original.nll != NULL ? original.nll : profile->reference.nll, &result, err));
    MOEC_TRY_OUT(add_studies(profile, &result, err));
out:
    free(original.nll);
    free(original.kl);
    free(result.local_error);
    free(result.gain);
    free(result.small_gain);
    free(result.nll_ratio);
    free(result.bits_gain);
    return status;
}

/* ---- measured ---- */

enum moec_status moec_job_measure_sensitivity(struct moec_profile_job *job, struct moec_error *err)
{
    struct moec_profile *profile = job->profile;
    struct moec_sensitivity_options sweep = {.of = moec_job_subject(job),
                                             .by = job->options->by,
                                             .reference_hidden = moec_scorer_reference_hidden(job->scorer),
                                             .reference_states = moec_scorer_reference_states(job->scorer),
                                             .work_bytes = job->options->memory.work_bytes,
                                             .units = job->units};
    struct moec_profile_cost cost;
    struct moec_job_progress scaled;
    moec_profile_cost_estimate(job, &cost);
    sweep.progress = moec_job_progress_scale(job, cost.passes[MOEC_PHASE_SENSITIVITY], &scaled);
    struct moec_sensitivity result = {
        .baseline = profile->baseline, .expert_nll = profile->expert_nll, .expert_kl = profile->expert_kl};
    MOEC_TRY(moec_sensitivity_run(&sweep, &result, err));
    job->multiply_adds += result.multiply_adds;
    return MOEC_OK;
}
