/* Codes are measured from the fewest bits up, and the first that meets the smallest target ends it. All use
 * one codec number, so the records of one make room for the next. A codec that the profile measured already
 * is not run again. The table must follow that of compile_variants.c. */
#include "profiler/profile/codes_study.h"

#include "formats/base/memory.h"
#include "formats/model/record.h"
#include "profiler/profile/loss_study.h"
#include "profiler/profile/mixed.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* As compiler/compile/compile_variants.c has them, but for GPTQ. */
static const struct {
    uint32_t bits;
    enum moec_scheme scheme;
    uint32_t group;
    enum moec_quantizer quantizer;
} table[MOEC_CODES_COUNT] = {
    {2, MOEC_SCHEME_SHIFT, 0, MOEC_QUANTIZER_TRELLIS},
    {3, MOEC_SCHEME_SHIFT, 0, MOEC_QUANTIZER_TRELLIS},
    {4, MOEC_SCHEME_SHIFT, 0, MOEC_QUANTIZER_TRELLIS},
    {8, MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_QUANTIZER_LINEAR},
};

enum moec_status moec_codes_codec(uint32_t index, struct moec_codec *codec, struct moec_error *err)
{
    MOEC_TRY(moec_codec_for_bits(table[index].bits, table[index].scheme, table[index].group, MOEC_DTYPE_F32,
                                 codec, err));
    codec->quantizer = (uint8_t)table[index].quantizer;
    return MOEC_OK;
}

uint32_t moec_codes_windows(const struct moec_profile *profile)
{
    return profile->n_window < MOEC_CODES_WINDOWS ? profile->n_window : MOEC_CODES_WINDOWS;
}

struct codes {
    struct moec_profile_job *job;
    struct moec_codec codecs[MOEC_CODES_COUNT];
    char labels[MOEC_CODES_COUNT][MOEC_STUDY_LABEL];
    double bits[MOEC_CODES_COUNT], bytes[MOEC_CODES_COUNT];
    struct moec_measure measure; /* owned */
    struct moec_study shape;
    struct moec_loss_study losses;
};

static enum moec_status open(struct codes *codes, struct moec_error *err)
{
    const struct moec_profile *profile = codes->job->profile;
    for (uint32_t i = 0; i < MOEC_CODES_COUNT; i++) {
        char name[40];
        MOEC_TRY(moec_codes_codec(i, &codes->codecs[i], err));
        (void)snprintf(codes->labels[i], MOEC_STUDY_LABEL, "%.*s", MOEC_STUDY_LABEL - 1,
                       moec_codec_name(codes->codecs[i], name));
        codes->bits[i] = table[i].bits;
        codes->bytes[i] = (double)moec_record_layout_make(codes->job->config, codes->codecs[i]).n_bytes *
                          profile->n_moe_layer * profile->n_expert;
    }
    codes->shape = (struct moec_study){
        .name = "codes/loss",
        .description =
            "loss with all experts in codes that moec compile takes by default, here by rows alone; "
            "NaN where fewer bits lose little enough",
        .n_axis = 1,
        .axes = {{.name = "codes", .n = MOEC_CODES_COUNT, .labels = codes->labels}}};
    MOEC_TRY(moec_loss_study_create(&codes->shape, &codes->losses, err));
    MOEC_TRY(
        moec_alloc((void **)&codes->measure.nll, profile->n_window, sizeof(double), "window losses", err));
    return moec_alloc((void **)&codes->measure.kl, profile->n_window, sizeof(double), "window losses", err);
}

static enum moec_status measure(struct codes *codes, uint32_t i, struct moec_error *err)
{
    struct moec_profile_job *job = codes->job;
    struct moec_profile *profile = job->profile;
    const struct moec_codec codec = codes->codecs[i];
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        const struct moec_codec own = moec_variants_codec(job->variants, profile->uniform_bits[u]);
        if (moec_codec_equal(own, codec) && own.quantizer == codec.quantizer)
            return moec_loss_study_set(&codes->losses, i, profile, &profile->uniform[u], err);
    }
    char key[MOEC_JOURNAL_MAX_KEY];
    (void)snprintf(key, sizeof key, "codes/%" PRIu32, table[i].bits);
    /* One number for all: the records of one codec make room when the next one takes it. */
    MOEC_TRY(moec_variants_set_codec(job->variants, MOEC_CODEC_FIRST_OTHER, codec, err));
    MOEC_TRY(moec_variants_assign_all(job->variants, MOEC_CODEC_FIRST_OTHER, err));
    MOEC_TRY(moec_job_score_first(job, key, moec_codes_windows(profile), &codes->measure, err));
    return moec_loss_study_set_first(&codes->losses, i, profile, &codes->measure, moec_codes_windows(profile),
                                     err);
}

static enum moec_status add(const struct codes *codes, const char *name, const char *units,
                            const char *description, const double *values, struct moec_error *err)
{
    struct moec_study study = codes->shape;
    (void)snprintf(study.name, sizeof study.name, "codes/%s", name);
    (void)snprintf(study.units, sizeof study.units, "%s", units);
    (void)snprintf(study.description, sizeof study.description, "%s", description);
    study.values = (double *)(uintptr_t)values;
    return moec_profile_add_study(codes->job->profile, &study, NULL, err);
}

static enum moec_status run(struct codes *codes, struct moec_error *err)
{
    MOEC_TRY(open(codes, err));
    for (uint32_t i = 0; i < MOEC_CODES_COUNT; i++) {
        MOEC_TRY(measure(codes, i, err));
        if (codes->losses.loss[i] <= moec_mixed_targets[0])
            break;
    }
    MOEC_TRY(moec_loss_study_add(&codes->losses, codes->job->profile, err));
    MOEC_TRY(add(codes, "bits", "bit", "of a code", codes->bits, err));
    return add(codes, "bytes", "byte", "all expert records in these codes, without padding", codes->bytes,
               err);
}

enum moec_status moec_codes_measure(struct moec_profile_job *job, struct moec_error *err)
{
    struct codes codes = {.job = job};
    const enum moec_status status = run(&codes, err);
    moec_loss_study_release(&codes.losses);
    free(codes.measure.nll);
    free(codes.measure.kl);
    return status;
}
