/* Which projection of the experts loses most at few bits (FloE, Fig. 3(b)): for all experts at once, and for
 * each expert alone. */
#include "profiler/profile/weight_study.h"

#include "formats/base/memory.h"
#include "profiler/sensitivity/sensitivity.h"

#include <string.h>

enum moec_status moec_projection_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_variants *variants = run->job->variants;
    char labels[MOEC_PROJECTION_COUNT][MOEC_STUDY_LABEL] = {"gate", "up", "down"};
    const uint32_t n_bits = run->job->profile->n_uniform;
    const struct moec_study shape = {
        .name = "projection/loss",
        .description =
            "loss with this projection of all experts at these bits, all other weights the original's",
        .source = "FloE, Fig. 3(b)",
        .n_axis = 2,
        .axes = {{.name = "projection", .n = MOEC_PROJECTION_COUNT, .labels = labels},
                 moec_weight_run_bits(run)}};
    struct moec_loss_study study;
    MOEC_TRY(moec_loss_study_create(&shape, &study, err));
    MOEC_TRY_OUT(moec_variants_set_rest(variants, moec_variants_source_bits(variants), err));
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        for (uint32_t u = 0; u < n_bits; u++) {
            const uint8_t code =
                moec_variants_projection_code(run->job->profile->uniform_bits[u], (enum moec_projection)p);
            MOEC_TRY_OUT(moec_variants_assign_all(variants, code, err));
            MOEC_TRY_OUT(moec_weight_run_measure(run, NULL, &study, p * n_bits + u, err));
        }
    }
    status = moec_loss_study_add(&study, run->job->profile, err);
out:
    moec_loss_study_release(&study);
    return status;
}

/* Losses from the sums of every variant: values (S, E, projections, B). */
static enum moec_status add_expert_losses(struct moec_profile *profile, const double *nll,
                                          struct moec_error *err)
{
    char labels[MOEC_PROJECTION_COUNT][MOEC_STUDY_LABEL] = {"gate", "up", "down"};
    const struct moec_study study = {
        .name = "projection/expert_loss",
        .description = "loss with this projection of one expert at these bits, all other experts and "
                       "projections at the baseline",
        .source = "EdgeMoE III-B, Fig. 7(a), by projection",
        .n_axis = 4,
        .axes = {{.name = "moe_layer", .n = profile->n_moe_layer},
                 {.name = "expert", .n = profile->n_expert},
                 {.name = "projection", .n = MOEC_PROJECTION_COUNT, .labels = labels},
                 {.name = "bits", .n = profile->n_bits}}};
    struct moec_study *added = NULL;
    MOEC_TRY(moec_profile_add_study(profile, &study, &added, err));
    const uint64_t n = moec_study_count(added);
    for (uint64_t i = 0; i < n; i++)
        added->values[i] = moec_profile_sensitivity_loss(profile, nll + i * profile->n_sensitivity_window);
    return MOEC_OK;
}

enum moec_status moec_expert_projection_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile_job *job = run->job;
    struct moec_profile *profile = job->profile;
    uint32_t codes[MOEC_PROJECTION_COUNT * MOEC_PROFILE_MAX_BITS], n_code = 0;
    struct moec_sensitivity result = {.baseline = run->measure};
    for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        for (uint32_t b = 0; b < profile->n_bits; b++)
            codes[n_code++] = moec_variants_projection_code(profile->bits[b], (enum moec_projection)p);
    }
    const uint64_t n = (uint64_t)profile->n_moe_layer * profile->n_expert * n_code;
    struct moec_sensitivity_options sweep = {.of = moec_job_subject(job),
                                             .by = job->options->by,
                                             .reference_hidden = moec_scorer_reference_hidden(job->scorer),
                                             .reference_states = moec_scorer_reference_states(job->scorer),
                                             .work_bytes = job->options->memory.work_bytes,
                                             .progress = &run->progress,
                                             .units = job->units,
                                             .unit_name = "expert projections"};
    sweep.of.bits = codes;
    sweep.of.n_bits = n_code;
    const char *what = "losses of single projections";
    const uint64_t row = profile->n_sensitivity_window * sizeof(double);
    MOEC_TRY_OUT(moec_variants_set_rest(job->variants, profile->baseline_bits, err));
    MOEC_TRY_OUT(moec_alloc((void **)&result.expert_nll, n, row, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&result.expert_kl, n, row, what, err));
    MOEC_TRY_OUT(moec_sensitivity_run(&sweep, &result, err));
    job->multiply_adds += result.multiply_adds;
    status = add_expert_losses(profile, result.expert_nll, err);
out:
    free(result.expert_nll);
    free(result.expert_kl);
    return status;
}
