/* Which quantizer and group size serve each bitwidth best, for all experts, and what a weight then takes with
 * its share of scales and zeros; and what each quantizer does to all weights. */
#include "profiler/profile/weight_study.h"

#include "formats/base/memory.h"

#include <string.h>

static const struct {
    char label[MOEC_STUDY_LABEL];
    enum moec_quantizer quantizer;
    enum moec_scheme scheme;
} quantizers[] = {
    {"linear symmetric", MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SYMMETRIC},
    {"linear asymmetric", MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_ASYMMETRIC},
    {"hqq symmetric", MOEC_QUANTIZER_HQQ, MOEC_SCHEME_SYMMETRIC},
    {"hqq asymmetric", MOEC_QUANTIZER_HQQ, MOEC_SCHEME_ASYMMETRIC},
    {"outlier gaussian", MOEC_QUANTIZER_OUTLIER, MOEC_SCHEME_GAUSSIAN},
    {"log logarithmic", MOEC_QUANTIZER_LOG, MOEC_SCHEME_LOGARITHMIC},
};
static const uint32_t groups[] = {0, 32, 64, 128};

#define N_QUANTIZER (sizeof quantizers / sizeof *quantizers)
#define N_GROUP     (sizeof groups / sizeof *groups)

_Static_assert(N_QUANTIZER *(N_GROUP + 1) == MOEC_STUDY_QUANTIZERS, "the study costs what it is said to");

struct quantizer_study {
    struct moec_weight_run *run;
    struct moec_loss_study loss;
    struct moec_loss_study all; /* (N_QUANTIZER, U): dense weights too, in the profile's groups */
    double *bits_per_weight;    /* (N_QUANTIZER, N_GROUP, U) */
};

static struct moec_codec codec_of(const struct quantizer_study *study, uint32_t q, uint32_t group,
                                  uint32_t bits)
{
    struct moec_codec codec = moec_variants_codec(study->run->job->variants, bits);
    if (bits >= 16)
        return codec;
    codec.quantizer = (uint8_t)quantizers[q].quantizer;
    codec.scheme = (uint8_t)quantizers[q].scheme;
    codec.group = (uint16_t)group;
    return codec;
}

/* One quantizer, group and bitwidth; the profile's own is measured already. */
static enum moec_status measure(struct quantizer_study *study, uint32_t q, uint32_t g, uint32_t u,
                                struct moec_error *err)
{
    struct moec_profile_job *job = study->run->job;
    struct moec_profile *profile = job->profile;
    const uint32_t bits = profile->uniform_bits[u];
    const uint64_t at = (q * N_GROUP + g) * profile->n_uniform + u;
    const double n_weight = (double)MOEC_PROJECTION_COUNT * job->config->n_ff_expert * job->config->n_embd;
    const struct moec_codec own = moec_variants_codec(job->variants, bits);
    const struct moec_codec codec = codec_of(study, q, groups[g], bits);
    enum moec_status status = MOEC_OK;
    study->bits_per_weight[at] = 8 * (double)moec_record_layout_make(job->config, codec).n_bytes / n_weight;
    if (moec_codec_equal(codec, own) && codec.quantizer == own.quantizer)
        return moec_loss_study_set(&study->loss, at, profile, &profile->uniform[u], err);
    MOEC_TRY(moec_variants_set_codec(job->variants, moec_codec_bits(codec), codec, err));
    MOEC_TRY_OUT(moec_variants_assign_all(job->variants, bits, err));
    status = moec_weight_run_measure(study->run, NULL, &study->loss, at, err);
out:;
    const enum moec_status back =
        moec_variants_set_codec(job->variants, moec_codec_bits(own), own, status == MOEC_OK ? err : NULL);
    return status == MOEC_OK ? back : status;
}

/* Experts and dense weights by one quantizer. */
static enum moec_status measure_all(struct quantizer_study *study, uint32_t q, uint32_t u,
                                    struct moec_error *err)
{
    struct moec_profile_job *job = study->run->job;
    const uint32_t bits = job->profile->uniform_bits[u];
    const struct moec_codec own = moec_variants_codec(job->variants, bits);
    enum moec_status status = MOEC_OK;
    if (bits < 16)
        MOEC_TRY(
            moec_variants_set_codec(job->variants, bits, codec_of(study, q, job->profile->group, bits), err));
    status = moec_weight_run_measure_all(study->run, bits, &study->all,
                                         (uint64_t)q * job->profile->n_uniform + u, err);
    if (bits >= 16)
        return status;
    const enum moec_status back =
        moec_variants_set_codec(job->variants, moec_codec_bits(own), own, status == MOEC_OK ? err : NULL);
    return status == MOEC_OK ? back : status;
}

static enum moec_status add(const struct quantizer_study *study, struct moec_error *err)
{
    struct moec_study bytes = {
        .name = "quantizer/bits_per_weight",
        .units = "bit",
        .description = "bits that an expert's weight takes, its share of scales and zeros included",
        .n_axis = study->loss.shape.n_axis,
        .values = study->bits_per_weight};
    for (uint32_t a = 0; a < bytes.n_axis; a++)
        bytes.axes[a] = study->loss.shape.axes[a];
    MOEC_TRY(moec_loss_study_add(&study->loss, study->run->job->profile, err));
    MOEC_TRY(moec_loss_study_add(&study->all, study->run->job->profile, err));
    return moec_profile_add_study(study->run->job->profile, &bytes, NULL, err);
}

enum moec_status moec_quantizer_study_run(struct moec_weight_run *run, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    char labels[N_QUANTIZER][MOEC_STUDY_LABEL];
    double sizes[N_GROUP];
    const struct moec_study shape = {
        .name = "quantizer/loss",
        .description = "loss with all experts at these bits by this quantizer, a scale for each group of "
                       "weights (0: for a channel)",
        .source = "EdgeMoE III-B; Badri & Shaji, 2023",
        .n_axis = 3,
        .axes = {{.name = "quantizer", .n = N_QUANTIZER, .labels = labels},
                 {.name = "group", .n = N_GROUP, .values = sizes},
                 moec_weight_run_bits(run)}};
    const struct moec_study all_shape = {
        .name = "quantizer_all/loss",
        .description = "loss with all experts and the dense weights at these bits by this quantizer, in the "
                       "profile's groups",
        .source = "EdgeMoE III-B, Fig. 6",
        .n_axis = 2,
        .axes = {{.name = "quantizer", .n = N_QUANTIZER, .labels = labels}, moec_weight_run_bits(run)}};
    const uint32_t n_bits = run->job->profile->n_uniform;
    struct quantizer_study study = {.run = run};
    for (uint32_t q = 0; q < N_QUANTIZER; q++)
        memcpy(labels[q], quantizers[q].label, sizeof labels[q]);
    for (uint32_t g = 0; g < N_GROUP; g++)
        sizes[g] = groups[g];
    MOEC_TRY_OUT(moec_loss_study_create(&shape, &study.loss, err));
    MOEC_TRY_OUT(moec_loss_study_create(&all_shape, &study.all, err));
    MOEC_TRY_OUT(moec_alloc((void **)&study.bits_per_weight, study.loss.n, sizeof(double), "a study", err));
    for (uint32_t q = 0; q < N_QUANTIZER; q++) {
        for (uint32_t g = 0; g < N_GROUP; g++) {
            for (uint32_t u = 0; u < n_bits; u++)
                MOEC_TRY_OUT(measure(&study, q, g, u, err));
        }
    }
    for (uint32_t q = 0; q < N_QUANTIZER; q++)
        for (uint32_t u = 0; u < n_bits; u++)
            MOEC_TRY_OUT(measure_all(&study, q, u, err));
    status = add(&study, err);
out:
    free(study.bits_per_weight);
    moec_loss_study_release(&study.all);
    moec_loss_study_release(&study.loss);
    return status;
}
