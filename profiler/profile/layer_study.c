/* What each layer's experts lose at few bits. Layers before the changed one are the original's: their hidden
 * states are computed once. */
#include "profiler/profile/weight_study.h"

#include "runtime/forward/pass/forward.h"

static enum moec_status assign_layer(struct moec_variants *variants, const struct moec_profile *profile,
                                     uint32_t s, uint32_t bits, struct moec_error *err)
{
    for (uint32_t e = 0; e < profile->n_expert; e++)
        MOEC_TRY(moec_variants_assign_one(variants, profile->moe_layers[s], e, bits, err));
    return MOEC_OK;
}

enum moec_status moec_layer_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile_job *job = run->job;
    struct moec_profile *profile = job->profile;
    const struct moec_study shape = {
        .name = "layer/loss",
        .description = "loss with all experts of this layer at these bits, all other weights the original's",
        .n_axis = 2,
        .axes = {{.name = "moe_layer", .n = profile->n_moe_layer}, moec_weight_run_bits(run)}};
    struct moec_loss_study study;
    struct moec_scorer_variation variation = {0};
    struct moec_states hidden = {0};
    uint32_t layer = 0;
    MOEC_TRY(moec_loss_study_create(&shape, &study, err));
    MOEC_TRY_OUT(moec_states_create(job->windows.work, moec_scorer_state_count(job->scorer),
                                    moec_forward_stride(job->config), "hidden states of the windows", &hidden,
                                    err));
    MOEC_TRY_OUT(moec_scorer_embed(job->scorer, &hidden, err));
    for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
        for (; layer < profile->moe_layers[s]; layer++) {
            MOEC_TRY_OUT(moec_scorer_layer(job->scorer, layer, &hidden, &run->progress, err));
            moec_weight_run_ended(run);
        }
        variation = (struct moec_scorer_variation){.first_layer = layer, .hidden = &hidden};
        for (uint32_t u = 0; u < profile->n_uniform; u++) {
            MOEC_TRY_OUT(assign_layer(job->variants, profile, s, profile->uniform_bits[u], err));
            MOEC_TRY_OUT(moec_weight_run_measure(run, &variation, &study, s * profile->n_uniform + u, err));
        }
        MOEC_TRY_OUT(moec_weight_run_restore(run, err));
    }
    status = moec_loss_study_add(&study, profile, err);
out:
    moec_loss_study_release(&study);
    moec_states_release(&hidden);
    return status;
}
