/* What thresholds of a precision at a miss make of the experts that tokens take. */
#include "profiler/report/figure_parts.h"
#include "profiler/routing/score_study.h"

#include <math.h>
#include <stdio.h>

/* Experts of one layer with scores up to step `step`, in percent. */
static double layer_share(const struct moec_study *study, uint64_t layer, uint64_t step)
{
    const uint64_t k = study->axes[1].n;
    double sum = 0;
    for (uint64_t rank = 0; rank < k; rank++)
        sum += study->values[(layer * k + rank) * MOEC_SCORE_COUNT + step];
    return 100 * sum;
}

static void say_thresholds(const double *shares, struct moec_chart *chart)
{
    const uint32_t paper[] = {60, 90};
    float known[MOEC_SCORE_COUNT];
    for (size_t i = 0; i < MOEC_SCORE_COUNT; i++)
        known[i] = (float)shares[i];
    const uint32_t high = moec_score_threshold(known, MOEC_SCORE_PAPER_HIGH),
                   read = moec_score_threshold(known, MOEC_SCORE_PAPER_READ);
    moec_figure_say(
        chart,
        "If all experts are missing, T1 = 0.6 and T2 = 0.9 load %.0f %% of them in high and %.0f %% in low "
        "precision, and skip %.0f %%; for Mixtral-8x7B, HOBBIT reports 67, 30 and 3 %%.",
        100 * shares[paper[0]], 100 * (shares[paper[1]] - shares[paper[0]]), 100 * (1 - shares[paper[1]]));
    moec_figure_say(chart, "On this model, T1 = %g and T2 = %g give %.0f, %.0f and %.0f %%.", high * 0.01,
                    read * 0.01, 100 * shares[high], 100 * (shares[read] - shares[high]),
                    100 * (1 - shares[read]));
}

enum moec_status moec_figure_scores(const struct moec_profile *profile, uint32_t index,
                                    struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "rank", "score"};
    const struct moec_study *study = moec_figure_find(profile, MOEC_SCORE_STUDY, 3, axes);
    double shares[MOEC_SCORE_COUNT];
    struct moec_chart_series *series = NULL;
    if (index > 0 || study == NULL || study->axes[2].n != MOEC_SCORE_COUNT ||
        !moec_score_study_shares(study, shares))
        return MOEC_OK;
    moec_figure_name(chart, "scores");
    moec_figure_title(chart, "Experts whose score stays below a threshold");
    (void)snprintf(chart->source, sizeof chart->source, "HOBBIT, eq. 2 and Fig. 5(b)");
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "score");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "score: weight of the experts before it");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "share_percent");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "share of the experts that tokens take, %%");
    chart->y.has_zero = true;
    MOEC_TRY(
        moec_chart_add_series(chart, "mean of the layers, and their range", MOEC_SCORE_COUNT, &series, err));
    series->has_interval = series->is_band = study->axes[0].n > 1;
    for (uint64_t i = 0; i < series->n; i++) {
        series->x[i] = moec_study_axis_value(&study->axes[2], i);
        series->y[i] = series->low[i] = series->high[i] = 100 * shares[i];
        for (uint64_t layer = 0; layer < study->axes[0].n; layer++) {
            const double share = layer_share(study, layer, i);
            series->low[i] = fmin(series->low[i], share);
            series->high[i] = fmax(series->high[i], share);
        }
    }
    moec_chart_add_upright(chart, 0.6, "T1 = 0.6");
    moec_chart_add_upright(chart, 0.9, "T2 = 0.9");
    say_thresholds(shares, chart);
    return MOEC_OK;
}
