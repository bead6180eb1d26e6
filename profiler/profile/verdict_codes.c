/* What the study `codes` says: which single plan stays within a loss in the codes that compile takes, and
 * what mixing them is predicted to save. */
#include "profiler/profile/mixed.h"
#include "profiler/profile/mixed_plan.h"
#include "profiler/profile/verdict.h"

#include "formats/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_CODES MOEC_MIXED_MAX_OPTIONS

/* The measured ones, by rising bits. */
struct codes {
    uint32_t n;
    char labels[MOST_CODES][MOEC_STUDY_LABEL];
    double bits[MOST_CODES], bytes[MOST_CODES], loss[MOST_CODES], high[MOST_CODES], kl[MOST_CODES];
};

/* A file may say anything: a study that is none of moec's is not used. */
static bool read_codes(const struct moec_profile *profile, struct codes *codes)
{
    static const char *const names[] = {"codes/bits", "codes/bytes", "codes/loss", "codes/loss_high",
                                        "codes/kl"};
    double *const values[] = {codes->bits, codes->bytes, codes->loss, codes->high, codes->kl};
    const struct moec_study *studies[5];
    codes->n = 0;
    for (size_t i = 0; i < 5; i++) {
        studies[i] = moec_studies_find(&profile->studies, names[i]);
        if (studies[i] == NULL || studies[i]->n_axis != 1 || studies[i]->axes[0].n != studies[0]->axes[0].n ||
            studies[i]->axes[0].labels == NULL)
            return false;
    }
    for (uint64_t c = 0; c < studies[0]->axes[0].n && codes->n < MOST_CODES; c++) {
        const double bits = studies[0]->values[c], bytes = studies[1]->values[c];
        if (isnan(studies[2]->values[c]))
            continue;
        if (!(bits >= 1 && bits <= 16 && bytes >= 1 && bytes < 9e15) ||
            (codes->n > 0 && bits <= codes->bits[codes->n - 1]))
            return false;
        for (size_t i = 0; i < 5; i++)
            values[i][codes->n] = studies[i]->values[c];
        memcpy(codes->labels[codes->n++], studies[0]->axes[0].labels[c], MOEC_STUDY_LABEL);
    }
    return true;
}

/* Harm of all experts at a profiled bitwidth, and of one; what chance made negative is none. */
static double effect_of(const struct moec_mixed_model *own, uint32_t expert, uint32_t option)
{
    return fmax(own->effects[(size_t)expert * own->n_option + option], 0);
}

static double sum_of(const struct moec_mixed_model *own, uint32_t option)
{
    double sum = 0;
    for (uint32_t i = 0; i < own->n_expert; i++)
        sum += effect_of(own, i, option);
    return sum;
}

/* The option of the profile whose sensitivities stand for a bitwidth: the most bits up to it that do any
 * harm. The baseline does none. */
static uint32_t option_for(const struct moec_mixed_model *own, uint32_t bits)
{
    uint32_t best = own->n_option;
    for (uint32_t o = 0; o < own->n_option; o++)
        if (sum_of(own, o) > 0 && (best == own->n_option || own->bits[o] <= bits))
            best = o;
    return best;
}

/* The model of compile's codes: the KL of each was measured for all experts together. */
static enum moec_status make_model(const struct moec_mixed_model *own, const struct codes *codes,
                                   struct moec_mixed_model *model, struct moec_error *err)
{
    *model = (struct moec_mixed_model){.n_expert = own->n_expert, .n_option = codes->n};
    MOEC_TRY(moec_alloc((void **)&model->effects, (uint64_t)own->n_expert * codes->n, sizeof(double),
                        "effects of experts", err));
    for (uint32_t o = 0; o < codes->n; o++) {
        const uint32_t option = option_for(own, (uint32_t)codes->bits[o]);
        const double sum = option < own->n_option ? sum_of(own, option) : 0;
        model->bits[o] = (uint32_t)codes->bits[o];
        model->record_bytes[o] = (uint64_t)(codes->bytes[o] / own->n_expert);
        model->kl[o] = codes->kl[o];
        model->loss[o] = codes->loss[o];
        model->additivity[o] = 1;
        for (uint32_t i = 0; i < own->n_expert; i++)
            model->effects[(size_t)i * codes->n + o] =
                codes->kl[o] * (sum > 0 ? effect_of(own, i, option) / sum : 1.0 / own->n_expert);
    }
    return MOEC_OK;
}

static void find_single(const struct codes *codes, double target, struct moec_verdict_single *single)
{
    for (uint32_t c = codes->n; c-- > 0;) {
        if (!(codes->loss[c] <= target))
            continue;
        *single = (struct moec_verdict_single){.bits = (uint32_t)codes->bits[c],
                                               .n_bytes = (uint64_t)codes->bytes[c],
                                               .loss = codes->loss[c],
                                               .loss_high = codes->high[c],
                                               .saving = NAN};
        memcpy(single->codes, codes->labels[c], sizeof single->codes);
    }
}

enum moec_status moec_verdict_read_codes(const struct moec_profile *profile, struct moec_verdict *verdict,
                                         struct moec_error *err)
{
    struct codes codes;
    struct moec_mixed_model own = {0}, model = {0};
    enum moec_status status = MOEC_OK;
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++)
        verdict->singles[t] = (struct moec_verdict_single){.loss = NAN, .loss_high = NAN, .saving = NAN};
    verdict->has_codes = read_codes(profile, &codes) && codes.n > 0;
    if (!verdict->has_codes)
        return MOEC_OK;
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++)
        find_single(&codes, moec_mixed_targets[t], &verdict->singles[t]);
    if (profile->n_bits == 0)
        return MOEC_OK;
    MOEC_TRY_OUT(moec_mixed_model_make(profile, &own, err));
    MOEC_TRY_OUT(make_model(&own, &codes, &model, err));
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        struct moec_verdict_single *single = &verdict->singles[t];
        struct moec_mixed_plan plan = {0};
        if (single->bits == 0)
            continue;
        MOEC_TRY_OUT(moec_mixed_plan(&model, moec_mixed_kl(&model, moec_mixed_targets[t]), &plan, err));
        /* All experts alike are a plan too. */
        single->mixed_bytes = plan.n_bytes < single->n_bytes ? plan.n_bytes : single->n_bytes;
        single->saving = 1 - (double)single->mixed_bytes / (double)single->n_bytes;
        moec_mixed_plan_release(&plan);
    }
out:
    moec_mixed_model_release(&own);
    moec_mixed_model_release(&model);
    return status;
}
