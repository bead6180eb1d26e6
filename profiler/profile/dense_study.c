/* Experts alone against all weights at few bits (EdgeMoE, Fig. 6): whether experts bear quantisation better
 * than what every token needs. */
#include "profiler/evaluate/load_model.h"
#include "profiler/profile/weight_study.h"

enum moec_status moec_weight_run_measure_all(struct moec_weight_run *run, uint32_t bits,
                                             struct moec_loss_study *study, uint64_t at,
                                             struct moec_error *err)
{
    const struct moec_profile_job *job = run->job;
    const struct moec_codec codec = moec_variants_codec(job->variants, bits);
    struct moec_dense dense = {0};
    struct moec_model *model = NULL;
    MOEC_TRY(moec_checkpoint_stream_dense_as(job->checkpoint, bits < 16 ? &codec : NULL, &dense, err));
    MOEC_TRY(moec_load_dense_model(job->config, &dense, job->dense_keep_bytes, &model, err));
    const struct moec_scorer_variation variation = {.model = model};
    enum moec_status status =
        moec_offload_if_room(job->options->memory.place, model, job->options->progress, err);
    if (status == MOEC_OK)
        status = moec_variants_assign_all(job->variants, bits, err);
    if (status == MOEC_OK)
        status = moec_weight_run_measure(run, &variation, study, at, err);
    moec_model_free(model);
    return status;
}

enum moec_status moec_dense_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_profile *profile = run->job->profile;
    char labels[2][MOEC_STUDY_LABEL] = {"experts only", "all weights"};
    const struct moec_study shape = {
        .name = "dense/loss",
        .description = "loss with the experts, or with the dense weights as well (attention, shared experts, "
                       "dense MLPs, embedding, head), at these bits",
        .source = "EdgeMoE III-B, Fig. 6",
        .n_axis = 2,
        .axes = {{.name = "weights", .n = 2, .labels = labels}, moec_weight_run_bits(run)}};
    const uint32_t n_bits = profile->n_uniform;
    struct moec_loss_study study;
    MOEC_TRY(moec_loss_study_create(&shape, &study, err));
    for (uint32_t u = 0; u < n_bits; u++) {
        MOEC_TRY_OUT(moec_loss_study_set(&study, u, profile, &profile->uniform[u], err));
        MOEC_TRY_OUT(moec_weight_run_measure_all(run, profile->uniform_bits[u], &study, n_bits + u, err));
    }
    status = moec_loss_study_add(&study, profile, err);
out:
    moec_loss_study_release(&study);
    return status;
}
