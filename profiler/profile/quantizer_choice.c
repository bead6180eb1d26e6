/* Candidates come in a fixed order and only a strictly lower price wins, so ties stay with the first. The
 * winner's measurement becomes the profile's of the whole model at these bits, which is then not run again.
 * Options are copied for the phase, so that its evaluations show as one progress. */
#include "profiler/profile/quantizer_choice.h"

#include "formats/base/elementary.h"
#include "formats/base/memory.h"
#include "profiler/profile/loss_study.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define N_CANDIDATE 4

static const struct candidate {
    const char *name, *key;
    struct moec_quantizer_choice choice;
} candidates[N_CANDIDATE] = {
    {"linear symmetric", "linear-symmetric", {MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SYMMETRIC}},
    {"linear asymmetric", "linear-asymmetric", {MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_ASYMMETRIC}},
    {"hqq symmetric", "hqq-symmetric", {MOEC_QUANTIZER_HQQ, MOEC_SCHEME_SYMMETRIC}},
    {"hqq asymmetric", "hqq-asymmetric", {MOEC_QUANTIZER_HQQ, MOEC_SCHEME_ASYMMETRIC}},
};

struct choice {
    struct moec_profile_job *job;
    double widths[MOEC_PROFILE_MAX_BITS + 1]; /* (n_width) bitwidths to choose for */
    uint32_t n_width;
    char labels[N_CANDIDATE][MOEC_STUDY_LABEL];
    struct moec_loss_study study; /* (candidate, n_width) */
    struct moec_measure measure;  /* (W) each, owned: of one candidate, and of the best so far */
    struct moec_measure best;
    const struct moec_progress *outer; /* the job's */
    double n_run, n_done;              /* evaluations to make, and made */
};

/* The evaluations, which all cost the same, as one phase. */
static enum moec_status tell(void *context, const char *phase, double done, double total)
{
    const struct choice *choice = context;
    (void)phase;
    return choice->outer->report(choice->outer->context, "quantizers", choice->n_done * total + done,
                                 choice->n_run * total);
}

static void list_widths(struct choice *choice, const struct moec_profile *profile)
{
    static const uint32_t known[] = {1, 2, 3, 4, 5, 6, 8};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool wanted = known[i] == profile->baseline_bits;
        for (uint32_t u = 0; u < profile->n_uniform; u++)
            wanted = wanted || known[i] == profile->uniform_bits[u];
        if (wanted)
            choice->widths[choice->n_width++] = known[i];
    }
}

static enum moec_status create(struct choice *choice, struct moec_error *err)
{
    const uint64_t n = choice->job->profile->n_window;
    struct moec_study shape = {
        .name = "candidate/loss",
        .description =
            "loss of the whole model with all experts at these bits, by a quantizer and scheme that "
            "--quantizer auto compared",
        .n_axis = 2,
        .axes = {{.name = "candidate", .n = N_CANDIDATE},
                 {.name = "bits", .n = choice->n_width, .values = choice->widths}}};
    for (uint32_t c = 0; c < N_CANDIDATE; c++)
        (void)snprintf(choice->labels[c], sizeof choice->labels[c], "%s", candidates[c].name);
    shape.axes[0].labels = choice->labels;
    double **const arrays[] = {&choice->measure.nll, &choice->measure.kl, &choice->best.nll,
                               &choice->best.kl};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY(moec_alloc((void **)arrays[i], n, sizeof(double), "window losses", err));
    return moec_loss_study_create(&shape, &choice->study, err);
}

static void release(struct choice *choice)
{
    moec_loss_study_release(&choice->study);
    free(choice->measure.nll);
    free(choice->measure.kl);
    free(choice->best.nll);
    free(choice->best.kl);
}

/* Mean KL over the search part times 4^(bits of a weight beyond `bits`). */
static double price(const struct moec_profile *profile, const double *kl, struct moec_codec codec,
                    uint32_t bits)
{
    const double n_embd = profile->config.n_embd;
    double sum = 0, n_token = 0;
    for (uint32_t w = 0; w < profile->n_window; w++) {
        if (!moec_part_has(MOEC_PART_SEARCH, profile->window_part, w))
            continue;
        sum += kl[w];
        n_token += profile->window_scored[w];
    }
    const double stored = 8 * (double)moec_codec_row_bytes(codec, profile->config.n_embd) / n_embd;
    const double beyond = moec_exp_f64((stored - bits) * moec_log_f64(4));
    return sum > 0 ? sum / n_token * beyond : 0; /* rounding may leave a KL of nothing below 0 */
}

static bool is_candidate(const struct moec_profile_options *options, const struct candidate *candidate)
{
    return options->codes.any_scheme || candidate->choice.scheme == options->codes.scheme;
}

static void swap(struct moec_measure *a, struct moec_measure *b)
{
    struct moec_measure kept = *a;
    *a = *b;
    *b = kept;
}

static enum moec_status choose_width(struct choice *choice, uint32_t at, struct moec_error *err)
{
    struct moec_profile_job *job = choice->job;
    struct moec_profile *profile = job->profile;
    const uint32_t bits = (uint32_t)choice->widths[at];
    struct moec_codec codec, best = {0};
    double least = 0;
    MOEC_TRY(moec_variants_assign_all(job->variants, bits, err));
    for (uint32_t c = 0; c < N_CANDIDATE; c++) {
        if (!is_candidate(job->options, &candidates[c]))
            continue;
        char key[MOEC_JOURNAL_MAX_KEY];
        (void)snprintf(key, sizeof key, "candidate/%" PRIu32 "/%s", bits, candidates[c].key);
        MOEC_TRY(moec_codec_for_bits(bits, (enum moec_scheme)candidates[c].choice.scheme, profile->group,
                                     (enum moec_dtype)profile->config.expert_dtype, &codec, err));
        codec.quantizer = candidates[c].choice.quantizer;
        MOEC_TRY(moec_variants_set_codec(job->variants, moec_codec_bits(codec), codec, err));
        MOEC_TRY(moec_job_score(job, key, &choice->measure, err));
        choice->n_done++;
        MOEC_TRY(moec_loss_study_set(&choice->study, (uint64_t)c * choice->n_width + at, profile,
                                     &choice->measure, err));
        const double now = price(profile, choice->measure.kl, codec, bits);
        if (best.dtype != MOEC_DTYPE_F32 && now >= least)
            continue;
        least = now;
        best = codec;
        swap(&choice->measure, &choice->best);
    }
    profile->choices[bits] = (struct moec_quantizer_choice){best.quantizer, best.scheme};
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        if (profile->uniform_bits[u] != bits)
            continue;
        memcpy(profile->uniform[u].nll, choice->best.nll, profile->n_window * sizeof(double));
        memcpy(profile->uniform[u].kl, choice->best.kl, profile->n_window * sizeof(double));
    }
    return moec_variants_set_codec(job->variants, moec_codec_bits(best), best, err);
}

double moec_quantizer_choice_passes(const struct moec_profile_job *job)
{
    struct choice choice = {0};
    double passes = 0;
    if (job->profile->quantizer != MOEC_QUANTIZER_AUTO)
        return 0;
    list_widths(&choice, job->profile);
    for (uint32_t c = 0; c < N_CANDIDATE; c++)
        passes += is_candidate(job->options, &candidates[c]) ? choice.n_width : 0;
    return passes;
}

enum moec_status moec_quantizer_choose(struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile_options *options = job->options;
    struct moec_profile_options own_options = *options;
    struct choice choice = {.job = job, .outer = options->progress};
    const struct moec_progress progress = {.report = tell, .context = &choice};
    enum moec_status status = MOEC_OK;
    if (job->profile->quantizer != MOEC_QUANTIZER_AUTO)
        return MOEC_OK;
    if (choice.outer != NULL && choice.outer->report != NULL)
        own_options.progress = &progress;
    job->options = &own_options;
    for (uint32_t bits = 0; bits < MOEC_CODEC_TABLE; bits++)
        job->profile->choices[bits].scheme = job->profile->scheme;
    list_widths(&choice, job->profile);
    choice.n_run = moec_quantizer_choice_passes(job);
    MOEC_TRY_OUT(create(&choice, err));
    for (uint32_t at = 0; at < choice.n_width; at++)
        MOEC_TRY_OUT(choose_width(&choice, at, err));
    status = moec_loss_study_add(&choice.study, job->profile, err);
out:
    job->options = options;
    release(&choice);
    return status;
}
