/* Effects are differences of KL to the baseline, of reached experts alone. Above the baseline's bits signs
 * turn, so that "large" always means worth keeping. The share of layers is the variance between their means
 * over the whole (one-way analysis of variance). Noise is judged by paired intervals of NLL. Words come from
 * these numbers only. */
#include "profiler/profile/verdict.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"
#include "profiler/evaluate/chance.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/profile/codes_words.h"
#include "profiler/profile/mixed.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- effects of single experts ---- */

/* The experts that the data reached, and one number for each. */
struct effects {
    uint32_t n;
    uint32_t *layer, *expert; /* (n), owned: MoE ordinal and expert */
    double *kl;               /* (n), owned: nats a token */
    double *sorted;           /* (n), owned */
    double n_token;           /* scored */
};

static void effects_release(struct effects *effects)
{
    free(effects->layer);
    free(effects->expert);
    free(effects->kl);
    free(effects->sorted);
}

static enum moec_status effects_create(const struct moec_profile *profile, struct effects *effects,
                                       struct moec_error *err)
{
    const uint64_t n = (uint64_t)profile->n_moe_layer * profile->n_expert;
    MOEC_TRY(moec_alloc((void **)&effects->layer, n, sizeof *effects->layer, "reached experts", err));
    MOEC_TRY(moec_alloc((void **)&effects->expert, n, sizeof *effects->expert, "reached experts", err));
    MOEC_TRY(moec_alloc((void **)&effects->kl, n, sizeof *effects->kl, "effects of experts", err));
    MOEC_TRY(moec_alloc((void **)&effects->sorted, n, sizeof *effects->sorted, "effects of experts", err));
    for (uint32_t w = 0; w < profile->n_sensitivity_window; w++)
        effects->n_token += profile->window_scored[w];
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++)
            if (moec_profile_expert_reached(profile, s, e)) {
                effects->layer[effects->n] = s;
                effects->expert[effects->n++] = e;
            }
    return MOEC_OK;
}

static double difference(const double *a, const double *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t w = 0; w < n; w++)
        sum += a[w] - b[w];
    return sum;
}

static void fill_effects(const struct moec_profile *profile, uint32_t b, struct effects *effects)
{
    for (uint32_t i = 0; i < effects->n; i++) {
        const double *kl =
            moec_profile_expert_row(profile, profile->expert_kl, effects->layer[i], effects->expert[i], b);
        effects->kl[i] =
            difference(kl, profile->baseline.kl, profile->n_sensitivity_window) / effects->n_token;
    }
    memcpy(effects->sorted, effects->kl, effects->n * sizeof *effects->kl);
    moec_sort_doubles(effects->sorted, effects->n);
}

/* ---- spread ---- */

/* More bits than the baseline's make an expert better: its gain is what counts there. */
static double sense(const struct moec_profile *profile, uint32_t b)
{
    return profile->bits[b] > profile->baseline_bits ? -1 : 1;
}

static void spread_of_experts(const struct moec_profile *profile, const struct effects *effects, double sign,
                              struct moec_verdict_bits *bits)
{
    const double *sorted = effects->sorted;
    uint32_t largest = 0;
    bits->low = sign * moec_quantile_of_sorted(sorted, effects->n, sign > 0 ? 0.1 : 0.9);
    bits->median = sign * moec_quantile_of_sorted(sorted, effects->n, 0.5);
    bits->high = sign * moec_quantile_of_sorted(sorted, effects->n, sign > 0 ? 0.9 : 0.1);
    bits->ratio = bits->low > 0 ? bits->high / bits->low : NAN;
    for (uint32_t i = 1; i < effects->n; i++)
        largest = sign * effects->kl[i] > sign * effects->kl[largest] ? i : largest;
    bits->largest = sign * effects->kl[largest];
    bits->largest_layer = profile->moe_layers[effects->layer[largest]];
    bits->largest_expert = effects->expert[largest];
}

/* Reached experts stand layer by layer. */
static void spread_of_layers(const struct moec_profile *profile, const struct effects *effects, double sign,
                             struct moec_verdict_bits *bits)
{
    double mean = 0, all = 0, between = 0;
    for (uint32_t i = 0; i < effects->n; i++)
        mean += sign * effects->kl[i] / effects->n;
    for (uint32_t i = 0; i < effects->n; i++)
        all += (sign * effects->kl[i] - mean) * (sign * effects->kl[i] - mean);
    bits->layer_low = INFINITY;
    bits->layer_high = -INFINITY;
    for (uint32_t first = 0, end = 0; first < effects->n; first = end) {
        double layer_mean = 0;
        for (end = first; end < effects->n && effects->layer[end] == effects->layer[first]; end++)
            layer_mean += sign * effects->kl[end];
        layer_mean /= end - first;
        between += (end - first) * (layer_mean - mean) * (layer_mean - mean);
        const uint32_t layer = profile->moe_layers[effects->layer[first]];
        if (layer_mean < bits->layer_low) {
            bits->layer_low = layer_mean;
            bits->least_layer = layer;
        }
        if (layer_mean > bits->layer_high) {
            bits->layer_high = layer_mean;
            bits->most_layer = layer;
        }
    }
    bits->layer_share = all > 0 ? between / all : NAN;
}

/* ---- noise ---- */

/* By the intervals that figures draw. */
static enum moec_status measure_noise(const struct moec_profile *profile, const struct effects *effects,
                                      uint32_t b, struct moec_verdict_bits *bits, struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
    enum moec_status status = MOEC_OK;
    double *widths = NULL;
    windows.n_window = profile->n_sensitivity_window;
    MOEC_TRY(moec_alloc((void **)&widths, effects->n, sizeof *widths, "intervals", err));
    for (uint32_t i = 0; i < effects->n; i++) {
        struct moec_loss loss;
        MOEC_TRY_OUT(moec_loss_measure(
            &windows,
            &(struct moec_paired_nll){profile->baseline.nll,
                                      moec_profile_expert_row(profile, profile->expert_nll, effects->layer[i],
                                                              effects->expert[i], b),
                                      NULL},
            &options, &loss, err));
        widths[i] = (loss.high - loss.low) / 2;
        bits->n_worse += loss.low > 0;
        bits->n_better += loss.high < 0;
    }
    bits->n_unclear = effects->n - bits->n_worse - bits->n_better;
    moec_sort_doubles(widths, effects->n);
    bits->noise = moec_quantile_of_sorted(widths, effects->n, 0.5);
out:
    free(widths);
    return status;
}

/* ---- additivity ---- */

static void measure_additivity(const struct moec_profile *profile, const struct effects *effects, uint32_t b,
                               struct moec_verdict_bits *bits)
{
    double sum_nll = 0;
    bits->joint_kl = bits->joint_loss = bits->additivity = NAN;
    bits->sum_kl = 0;
    for (uint32_t i = 0; i < effects->n; i++) {
        const double *nll =
            moec_profile_expert_row(profile, profile->expert_nll, effects->layer[i], effects->expert[i], b);
        bits->sum_kl += effects->kl[i];
        sum_nll += difference(nll, profile->baseline.nll, profile->n_sensitivity_window) / effects->n_token;
    }
    bits->sum_loss = expm1(sum_nll);
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        if (profile->uniform_bits[u] == bits->bits) {
            const struct moec_measure *whole = &profile->uniform[u];
            bits->joint_kl =
                difference(whole->kl, profile->baseline.kl, profile->n_sensitivity_window) / effects->n_token;
            bits->joint_loss =
                expm1(difference(whole->nll, profile->baseline.nll, profile->n_sensitivity_window) /
                      effects->n_token);
            bits->additivity = bits->sum_kl != 0 ? bits->joint_kl / bits->sum_kl : NAN;
        }
}

/* ---- mixed assignments ---- */

/* Value `at` of a study over targets; NaN without it. */
static double study_value(const struct moec_profile *profile, const char *name, uint32_t at)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, name);
    return study != NULL && moec_study_count(study) > at ? study->values[at] : NAN;
}

static uint64_t whole(double value)
{
    return value > 0 && value < 9e15 ? (uint64_t)value : 0;
}

static void read_mixed(const struct moec_profile *profile, struct moec_verdict *verdict)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, "mixed/bytes");
    verdict->has_mixed = study != NULL && moec_study_count(study) == MOEC_VERDICT_TARGETS;
    verdict->mixed_passes = study_value(profile, "mixed/passes", 0);
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        struct moec_verdict_target *target = &verdict->targets[t];
        const double measured = study_value(profile, "mixed/loss", t);
        *target = (struct moec_verdict_target){
            .target = moec_mixed_targets[t],
            .is_measured = !isnan(measured),
            .loss = isnan(measured) ? study_value(profile, "mixed/predicted_loss", t) : measured,
            .loss_high = study_value(profile, "mixed/loss_high", t),
            .mixed_bytes = whole(study_value(profile, "mixed/bytes", t)),
            .uniform_bits = (uint32_t)whole(study_value(profile, "mixed/uniform_bits", t)),
            .uniform_bytes = whole(study_value(profile, "mixed/uniform_bytes", t)),
            .saving = NAN,
            .blind_saving = NAN};
        target->is_met = target->loss <= target->target;
        if (target->uniform_bytes == 0)
            continue;
        const double uniform = (double)target->uniform_bytes;
        target->saving = 1 - (double)target->mixed_bytes / uniform;
        target->blind_saving = 1 - study_value(profile, "mixed/blind_bytes", t) / uniform;
    }
}

enum moec_status moec_verdict_make(const struct moec_profile *profile, struct moec_verdict *verdict,
                                   struct moec_error *err)
{
    struct effects effects = {0};
    enum moec_status status = MOEC_OK;
    *verdict = (struct moec_verdict){.is_estimated = profile->sensitivity == MOEC_SENSITIVITY_FAST,
                                     .n_expert = profile->n_moe_layer * profile->n_expert};
    MOEC_TRY_OUT(effects_create(profile, &effects, err));
    verdict->n_reached = effects.n;
    verdict->n_bits = effects.n > 0 ? profile->n_bits : 0;
    for (uint32_t b = 0; b < verdict->n_bits; b++) {
        struct moec_verdict_bits *bits = &verdict->bits[b];
        const double sign = sense(profile, b);
        bits->bits = profile->bits[b];
        bits->noise = NAN;
        fill_effects(profile, b, &effects);
        spread_of_experts(profile, &effects, sign, bits);
        spread_of_layers(profile, &effects, sign, bits);
        measure_additivity(profile, &effects, b, bits);
        if (!verdict->is_estimated)
            MOEC_TRY_OUT(measure_noise(profile, &effects, b, bits, err));
    }
    read_mixed(profile, verdict);
    status = moec_verdict_read_codes(profile, verdict, err);
out:
    effects_release(&effects);
    return status;
}

/* ---- in words ---- */

#define WORTH 0.01 /* a saving under this is none */

/* "a to b %", or one number where they round alike. */
static void add_range(struct moec_paragraphs *paragraphs, double low, double high)
{
    if (round(100 * low) == round(100 * high))
        moec_paragraph_add(paragraphs, "%.0f%%", 100 * high);
    else
        moec_paragraph_add(paragraphs, "%.0f to %.0f%%", 100 * low, 100 * high);
}

/* EdgeMoE's: linear, symmetric, a scale for each channel. */
static bool is_of_paper(const struct moec_profile *profile)
{
    return profile->quantizer == MOEC_QUANTIZER_LINEAR && profile->scheme == MOEC_SCHEME_SYMMETRIC &&
           profile->group == 0;
}

/* What mixing saves in the profile's own codes, as a clause. */
static void describe_own(const struct moec_verdict *verdict, struct moec_paragraphs *paragraphs)
{
    double least = INFINITY, most = -INFINITY, blind = -INFINITY;
    uint32_t n = 0, n_predicted = 0;
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        const struct moec_verdict_target *target = &verdict->targets[t];
        if (isnan(target->saving) || !target->is_met)
            continue;
        least = fmin(least, target->saving);
        most = fmax(most, target->saving);
        blind = fmax(blind, target->blind_saving);
        n_predicted += !target->is_measured;
        n++;
    }
    if (!verdict->has_mixed)
        moec_paragraph_add(paragraphs,
                           "this profile holds no mixed assignment, so it does not say what mixing "
                           "bitwidths would save; profile again to know");
    else if (n == 0)
        moec_paragraph_add(
            paragraphs,
            "for none of the limits of 1, 2 and 5%% loss was both a uniform bitwidth and a mixed assignment "
            "found, so there is nothing to compare");
    else if (most < WORTH)
        moec_paragraph_add(paragraphs,
                           "giving experts different bitwidths saves nothing on this model and data");
    else {
        moec_paragraph_add(paragraphs, "giving experts different bitwidths %s ",
                           n_predicted == n ? "is predicted to save" : "saves");
        add_range(paragraphs, fmax(least, 0), most);
        moec_paragraph_add(paragraphs, " of the expert bytes that the best uniform bitwidth takes");
        if (blind >= most - WORTH)
            moec_paragraph_add(
                paragraphs,
                ", but bitwidths assigned regardless of sensitivity would save as much: the saving comes "
                "from sizes between uniform bitwidths, not from sparing sensitive experts");
    }
}

/* In compile's codes: which single plan each loss needs, and what mixing is predicted to save. */
static void describe_codes(const struct moec_verdict *verdict, struct moec_paragraphs *paragraphs)
{
    double most = NAN;
    const char *joint = "";
    moec_paragraph_add(paragraphs, "with compile's default quantization, all experts at one bitwidth need ");
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        const struct moec_verdict_single *single = &verdict->singles[t];
        if (single->bits > 0)
            moec_paragraph_add(paragraphs, "%s%" PRIu32 " bits to stay within %.0f%% loss", joint,
                               single->bits, 100 * verdict->targets[t].target);
        else
            moec_paragraph_add(paragraphs, "%smore bits than were measured to stay within %.0f%% loss", joint,
                               100 * verdict->targets[t].target);
        joint = t + 2 < MOEC_VERDICT_TARGETS ? ", " : " and ";
        most = fmax(most, single->saving);
    }
    if (isnan(most))
        return;
    if (most < WORTH)
        moec_paragraph_add(paragraphs, ". Choosing the bitwidth by expert is predicted to save nothing");
    else
        moec_paragraph_add(
            paragraphs, ". Choosing the bitwidth by expert is predicted to save up to %.0f%% of these bytes",
            100 * most);
}

static void describe_conclusion(const struct moec_profile *profile, const struct moec_verdict *verdict,
                                struct moec_paragraphs *paragraphs)
{
    char own[MOEC_CODES_WORDS];
    moec_paragraph_begin(paragraphs, "Verdict: ");
    if (verdict->has_codes) {
        describe_codes(verdict, paragraphs);
        moec_paragraph_add(paragraphs, ". With ");
    } else {
        moec_paragraph_add(paragraphs, "with ");
    }
    moec_paragraph_add(paragraphs, "%s%s, ", moec_codes_words(profile, 0, own),
                       is_of_paper(profile) ? ", which EdgeMoE uses" : "");
    describe_own(verdict, paragraphs);
    moec_paragraph_add(paragraphs, ".");
    if (!verdict->has_codes)
        moec_paragraph_add(paragraphs,
                           " Compile uses another quantization by default, which this profile has "
                           "not measured; profile again to compare.");
    if (verdict->is_estimated)
        moec_paragraph_add(paragraphs, " Sensitivities are estimates (fast mode).");
}

static void describe_single(const struct moec_verdict_single *single, struct moec_paragraphs *paragraphs)
{
    if (single->bits == 0) {
        moec_paragraph_add(
            paragraphs, "no bitwidth that was measured with compile's quantization stays within this limit");
        return;
    }
    moec_paragraph_add(paragraphs, "all experts at %s take %.4g MB and lose %.2f%% (upper end %.2f%%)",
                       single->codes, (double)single->n_bytes / 1e6, 100 * single->loss,
                       100 * single->loss_high);
    if (isnan(single->saving))
        return;
    if (single->saving < WORTH / 10)
        moec_paragraph_add(paragraphs, "; different bitwidths are predicted to save nothing");
    else
        moec_paragraph_add(paragraphs, "; different bitwidths are predicted to take %.4g MB (-%.1f%%)",
                           (double)single->mixed_bytes / 1e6, 100 * single->saving);
}

static void describe_target(const struct moec_profile *profile, const struct moec_verdict *verdict,
                            uint32_t at, struct moec_paragraphs *paragraphs)
{
    const struct moec_verdict_target *target = &verdict->targets[at];
    char own[MOEC_CODES_WORDS];
    moec_paragraph_begin(paragraphs, "For a loss limit of %.0f%%: ", 100 * target->target);
    if (verdict->has_codes) {
        describe_single(&verdict->singles[at], paragraphs);
        moec_paragraph_add(paragraphs, ". With %s, ", moec_codes_words(profile, 0, own));
    }
    if (target->uniform_bits == 0)
        moec_paragraph_add(paragraphs,
                           "no measured uniform bitwidth stays within this limit; a mixed assignment takes "
                           "%.4g MB",
                           (double)target->mixed_bytes / 1e6);
    else
        moec_paragraph_add(
            paragraphs,
            "experts take %.4g MB at uniform %" PRIu32 " bit%s and %.4g MB at mixed bits (%s%.1f%%)",
            (double)target->uniform_bytes / 1e6, target->uniform_bits, target->uniform_bits == 1 ? "" : "s",
            (double)target->mixed_bytes / 1e6, target->saving >= 0 ? "-" : "+", 100 * fabs(target->saving));
    if (target->is_measured)
        moec_paragraph_add(paragraphs, ", measured to lose %.2f%% (upper end %.2f%%)", 100 * target->loss,
                           100 * target->loss_high);
    else
        moec_paragraph_add(paragraphs, ", predicted to lose %.2f%%", 100 * target->loss);
    if (!target->is_met)
        moec_paragraph_add(paragraphs, ", which is over the target: no plan that was tried stayed within it");
    if (!isnan(target->blind_saving) && target->is_met)
        moec_paragraph_add(paragraphs, "; bits mixed regardless of sensitivity would take %.1f%% %s",
                           100 * fabs(target->blind_saving), target->blind_saving >= 0 ? "less" : "more");
    moec_paragraph_add(paragraphs, ".");
}

static void describe_spread(const struct moec_verdict *verdict, struct moec_paragraphs *paragraphs)
{
    moec_paragraph_begin(paragraphs, "Spread:");
    for (uint32_t b = 0; b < verdict->n_bits; b++) {
        const struct moec_verdict_bits *bits = &verdict->bits[b];
        moec_paragraph_add(paragraphs, " At %" PRIu32 " bit%s ", bits->bits, bits->bits == 1 ? "" : "s");
        if (isnan(bits->ratio))
            moec_paragraph_add(paragraphs,
                               "the tenth of experts that change least do not change the output "
                               "measurably (median %.2g nats per token, 90%% quantile %.2g)",
                               bits->median, bits->high);
        else
            moec_paragraph_add(paragraphs,
                               "the 90%% quantile of experts' effects is %.3g times the 10%% quantile "
                               "(%.2g and %.2g nats per token)",
                               bits->ratio, bits->high, bits->low);
        moec_paragraph_add(paragraphs,
                           "; the largest is that of layer %" PRIu32 " expert %" PRIu32 " with %.2g",
                           bits->largest_layer, bits->largest_expert, bits->largest);
        if (!isnan(bits->layer_share))
            moec_paragraph_add(paragraphs,
                               "; layers explain %.0f%% of the variance, layer %" PRIu32
                               " is the most sensitive on average and layer %" PRIu32 " the least",
                               100 * bits->layer_share, bits->most_layer, bits->least_layer);
        moec_paragraph_add(paragraphs, ".");
    }
}

static void describe_noise(const struct moec_verdict *verdict, struct moec_paragraphs *paragraphs)
{
    if (verdict->is_estimated) {
        moec_paragraph_begin(paragraphs,
                             "Noise: single experts were not measured, so their intervals are not "
                             "known; --sensitivity exact measures them.");
        return;
    }
    moec_paragraph_begin(paragraphs, "Noise: against the baseline,");
    for (uint32_t b = 0; b < verdict->n_bits; b++) {
        const struct moec_verdict_bits *bits = &verdict->bits[b];
        moec_paragraph_add(paragraphs,
                           "%s at %" PRIu32 " bit%s %" PRIu32 " of %" PRIu32
                           " experts lose more than noise, %" PRIu32 " gain, %" PRIu32
                           " are undecided (half of the intervals are wider than +-%.2g%%)",
                           b > 0 ? ";" : "", bits->bits, bits->bits == 1 ? "" : "s", bits->n_worse,
                           verdict->n_reached, bits->n_better, bits->n_unclear, 100 * bits->noise);
    }
    moec_paragraph_add(paragraphs, ". Intervals have one-sided 95%% ends, paired by window.");
}

static void describe_additivity(const struct moec_verdict *verdict, struct moec_paragraphs *paragraphs)
{
    bool begun = false;
    for (uint32_t b = 0; b < verdict->n_bits; b++) {
        const struct moec_verdict_bits *bits = &verdict->bits[b];
        if (isnan(bits->additivity))
            continue;
        if (!begun)
            moec_paragraph_begin(paragraphs, "Additivity:");
        begun = true;
        moec_paragraph_add(paragraphs,
                           " All experts at %" PRIu32
                           " bit%s together change KL by %.3g nats per token, the sum of "
                           "single experts by %.3g: %.2f times (loss %.3g%% and %.3g%%)",
                           bits->bits, bits->bits == 1 ? "" : "s", bits->joint_kl, bits->sum_kl,
                           bits->additivity, 100 * bits->joint_loss, 100 * bits->sum_loss);
        if (bits->sum_kl < 0)
            moec_paragraph_add(paragraphs, " (less than the baseline's)");
        else if (bits->additivity > 1.25)
            moec_paragraph_add(paragraphs, ", so errors compound and single figures understate");
        else if (bits->additivity < 0.8)
            moec_paragraph_add(paragraphs, ", so errors saturate and single figures overstate");
        else
            moec_paragraph_add(paragraphs, ", so single figures add up");
        moec_paragraph_add(paragraphs, ".");
    }
}

void moec_verdict_conclude(const struct moec_profile *profile, const struct moec_verdict *verdict,
                           struct moec_paragraphs *paragraphs)
{
    if (moec_profile_is_chance(profile))
        moec_paragraph_begin(paragraphs, "Nothing here says how well the model would do: " MOEC_CHANCE_MARK
                                         " (--anyway).");
    if (profile->sensitivity == MOEC_SENSITIVITY_NONE)
        moec_paragraph_begin(paragraphs,
                             "Verdict: single experts were not measured (--sensitivity none), so this "
                             "profile does not say what mixing bitwidths would save.");
    else
        describe_conclusion(profile, verdict, paragraphs);
}

void moec_verdict_describe(const struct moec_profile *profile, const struct moec_verdict *verdict,
                           struct moec_paragraphs *paragraphs)
{
    char own[MOEC_CODES_WORDS];
    moec_verdict_conclude(profile, verdict, paragraphs);
    if (profile->sensitivity == MOEC_SENSITIVITY_NONE)
        return;
    for (uint32_t t = 0; verdict->has_mixed && t < MOEC_VERDICT_TARGETS; t++)
        describe_target(profile, verdict, t, paragraphs);
    if (verdict->has_mixed && verdict->mixed_passes > 0)
        moec_paragraph_add(paragraphs, " Measuring mixed bits took %.0f whole passes.",
                           verdict->mixed_passes);
    if (verdict->has_codes)
        moec_paragraph_begin(
            paragraphs,
            "Quantization: the losses above are for quantization without calibration data; compile uses GPTQ "
            "with your data and loses less. The results below are for %s; each expert was "
            "measured on its own.",
            moec_codes_words(profile, 0, own));
    if (verdict->n_bits == 0) {
        moec_paragraph_begin(paragraphs,
                             "The data reached no expert, so nothing is known about their sensitivity.");
        return;
    }
    describe_spread(verdict, paragraphs);
    describe_noise(verdict, paragraphs);
    describe_additivity(verdict, paragraphs);
}
