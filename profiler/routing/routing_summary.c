/* Figures come from studies of the profile. A study that is missing or has other axes gives NaN, and
 * nothing is said of what is NaN. Means are over what is known. */
#include "profiler/routing/routing_summary.h"

#include <inttypes.h>
#include <math.h>

const char *moec_predictor_name(enum moec_predictor predictor)
{
    static const char *const names[] = {"path table", "frequency", "next-layer gate"};
    return names[predictor];
}

/* Studies may come from another version or another program: what has other axes is as if it were not there.
 */
static const struct moec_study *find(const struct moec_profile *profile, const char *name, uint32_t n_axis)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, name);
    return study != NULL && study->n_axis == n_axis ? study : NULL;
}

/* Mean of the known values among n, `step` apart. */
static double mean_of(const double *values, uint64_t n, uint64_t step)
{
    double sum = 0;
    uint64_t n_known = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (isnan(values[i * step]))
            continue;
        sum += values[i * step];
        n_known++;
    }
    return n_known > 0 ? sum / (double)n_known : (double)NAN;
}

static double mean_of_layers(const struct moec_profile *profile, const char *name)
{
    const struct moec_study *study = find(profile, name, 1);
    return study != NULL ? mean_of(study->values, study->axes[0].n, 1) : (double)NAN;
}

/* Where an axis has this value; its length where it has not. */
static uint64_t place_of(const struct moec_study_axis *axis, double value)
{
    uint64_t i = 0;
    while (i < axis->n && moec_study_axis_value(axis, i) != value)
        i++;
    return i;
}

static double mean_margin(const struct moec_profile *profile, double quantile)
{
    const struct moec_study *study = find(profile, "routing/margin", 2);
    if (study == NULL)
        return NAN;
    const uint64_t n = study->axes[1].n, at = place_of(&study->axes[1], quantile);
    return at < n ? mean_of(study->values + at, study->axes[0].n, n) : (double)NAN;
}

static void read_recall(const struct moec_profile *profile, struct moec_routing_summary *summary)
{
    const struct moec_study *study = find(profile, "predict/recall", 3);
    const uint64_t n_layer = study != NULL ? study->axes[0].n : 0;
    if (n_layer < 2 || study->axes[1].n != MOEC_N_PREDICTOR || study->axes[2].n != 3)
        return;
    /* The first layer of each stack has none before it to predict from. */
    const uint64_t n_encoder = moec_config_moe_encoder_count(&profile->config);
    const uint64_t border = n_encoder < n_layer ? n_encoder : 0;
    for (uint32_t p = 0; p < MOEC_N_PREDICTOR; p++)
        for (uint32_t c = 0; c < 3; c++) {
            const double *values = study->values + p * 3 + c;
            double known[MOEC_MAX_LAYERS];
            uint64_t n = 0;
            for (uint64_t s = 1; s < n_layer && s < MOEC_MAX_LAYERS; s++)
                if (s != border)
                    known[n++] = values[s * 9];
            summary->recall[p][c] = mean_of(known, n, 1);
        }
}

static void read_cosine(const struct moec_profile *profile, struct moec_routing_summary *summary)
{
    const struct moec_study *study = find(profile, "predict/cosine", 1);
    summary->cosine = mean_of_layers(profile, "predict/cosine");
    for (uint64_t s = 0; study != NULL && s < study->axes[0].n; s++) {
        if (isnan(study->values[s]) || study->values[s] >= summary->cosine_lowest)
            continue;
        summary->cosine_lowest = study->values[s];
        summary->cosine_lowest_layer = (uint32_t)fmax(0, moec_study_axis_value(&study->axes[0], s));
    }
}

static void read_paths(const struct moec_profile *profile, struct moec_routing_summary *summary)
{
    const struct moec_study *full = find(profile, "paths/full", 1);
    const struct moec_study *fraction = find(profile, "paths/full_fraction", 1);
    summary->n_token = profile->n_trace_token;
    for (uint32_t w = 0; w < profile->n_window && profile->n_trace_token > 0; w++)
        summary->n_token -= moec_profile_source(profile, w);
    if (full != NULL) {
        const struct moec_study_axis *axis = &full->axes[0];
        const double last = moec_study_axis_value(axis, axis->n - 1);
        const uint64_t ten = place_of(axis, 10);
        summary->n_path = last >= 1 && last < 0x1p63 ? (uint64_t)last : 0;
        summary->top_ten = ten < axis->n ? full->values[ten] : full->values[axis->n - 1];
    }
    if (fraction != NULL) {
        const uint64_t fifth = place_of(&fraction->axes[0], 0.2);
        summary->top_fifth = fifth < fraction->axes[0].n ? fraction->values[fifth] : (double)NAN;
    }
}

bool moec_routing_summary_make(const struct moec_profile *profile, struct moec_routing_summary *summary)
{
    *summary = (struct moec_routing_summary){
        .entropy = mean_of_layers(profile, "routing/entropy"),
        .margin_median = mean_margin(profile, 0.5),
        .margin_small = mean_margin(profile, 0.05),
        .gate_top1 = mean_of_layers(profile, "predict/gate_top1"),
        .cosine_lowest = INFINITY,
        .top_fifth = NAN,
        .top_ten = NAN,
        .weight_correlation = mean_of_layers(profile, "gate/correlation"),
        .output_correlation = mean_of_layers(profile, "gate/output_correlation")};
    for (uint32_t p = 0; p < MOEC_N_PREDICTOR; p++)
        for (uint32_t c = 0; c < 3; c++)
            summary->recall[p][c] = NAN;
    read_recall(profile, summary);
    read_cosine(profile, summary);
    read_paths(profile, summary);
    if (isinf(summary->cosine_lowest))
        summary->cosine_lowest = NAN;
    return find(profile, "routing/margin", 2) != NULL && find(profile, "predict/recall", 3) != NULL;
}

/* ---- words ---- */

static enum moec_predictor best_predictor(const struct moec_routing_summary *summary)
{
    enum moec_predictor best = MOEC_BY_FREQUENCY;
    for (enum moec_predictor p = MOEC_BY_PATH; p < MOEC_N_PREDICTOR; p++)
        if (summary->recall[p][0] > summary->recall[best][0])
            best = p;
    return best;
}

static void describe_prediction(const struct moec_profile *profile,
                                const struct moec_routing_summary *summary,
                                struct moec_paragraphs *paragraphs)
{
    const enum moec_predictor best = best_predictor(summary);
    const double *recall = summary->recall[best];
    if (isnan(recall[0]))
        return;
    moec_paragraph_begin(
        paragraphs,
        "Prediction: of three predictors the %s is the best at naming the experts that a layer will use: "
        "%.1f%% of them with k = %" PRIu32 " predictions per token, %.1f%% with k + 1 and %.1f%% with 2k",
        moec_predictor_name(best), 100 * recall[0], profile->top_k, 100 * recall[1], 100 * recall[2]);
    for (enum moec_predictor p = MOEC_BY_PATH; p < MOEC_N_PREDICTOR; p++)
        if (p != best && !isnan(summary->recall[p][0]))
            moec_paragraph_add(paragraphs, "; %s: %.1f%%, %.1f%% and %.1f%%", moec_predictor_name(p),
                               100 * summary->recall[p][0], 100 * summary->recall[p][1],
                               100 * summary->recall[p][2]);
    moec_paragraph_add(paragraphs, " (means over MoE layers after the first, on windows that no table saw).");
    if (!isnan(summary->cosine))
        moec_paragraph_add(paragraphs,
                           " Gate inputs of neighbouring MoE layers have a mean cosine similarity of %.3f; "
                           "the lowest is %.3f, from layer %" PRIu32 " to the next.",
                           summary->cosine, summary->cosine_lowest, summary->cosine_lowest_layer);
}

static void describe_load(const struct moec_profile *profile, const struct moec_routing_summary *summary,
                          struct moec_paragraphs *paragraphs)
{
    if (!isnan(summary->entropy))
        moec_paragraph_begin(paragraphs, "Load: %s; its entropy is %.3f times that of an even load.",
                             summary->entropy > 0.98
                                 ? "nearly even, so caching the most frequent experts gains little"
                             : summary->entropy > 0.9 ? "somewhat uneven"
                                                      : "uneven, so some experts are worth keeping",
                             summary->entropy);
    if (summary->n_path > 0 && !isnan(summary->top_fifth))
        moec_paragraph_begin(paragraphs,
                             "Paths: %" PRIu64 " tokens take %" PRIu64
                             " distinct paths through all %sMoE layers. The most popular 20%% of these carry "
                             "%.1f%% of the tokens, the ten most popular %.1f%%.",
                             summary->n_token, summary->n_path,
                             moec_config_is_encoder_decoder(&profile->config) ? "of the decoder's " : "",
                             100 * summary->top_fifth, 100 * summary->top_ten);
    if (!isnan(summary->margin_median))
        moec_paragraph_begin(
            paragraphs,
            "Choices: the last expert chosen leads the first one left out by a router probability of %.4f in "
            "the median, and by less than %.4f for one token in twenty.",
            summary->margin_median, summary->margin_small);
    if (!isnan(summary->margin_median) && !isnan(summary->weight_correlation))
        moec_paragraph_add(paragraphs,
                           " The norm of what an expert adds has a correlation of %.2f with its gate weight; "
                           "the norm of its output before weighting, %.2f.",
                           summary->weight_correlation, summary->output_correlation);
}

void moec_routing_summary_describe(const struct moec_profile *profile,
                                   const struct moec_routing_summary *summary,
                                   struct moec_paragraphs *paragraphs)
{
    describe_prediction(profile, summary, paragraphs);
    describe_load(profile, summary, paragraphs);
}
