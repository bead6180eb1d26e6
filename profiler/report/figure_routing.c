/* Figures of what routers choose, and of what can be known before they do. */
#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/report/figure_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- load ---- */

static int compare_falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Share of all choices that goes to the busiest fifth of each layer's experts, in percent. */
static double busiest_fifth(const struct moec_chart_cells *cells, double *scratch)
{
    uint32_t n = cells->n_column, fifth = (n + 4) / 5;
    double busy = 0, all = 0;
    for (uint32_t s = 0; s < cells->n_row; s++) {
        memcpy(scratch, cells->values + (size_t)s * n, n * sizeof *scratch);
        qsort(scratch, n, sizeof *scratch, compare_falling);
        for (uint32_t e = 0; e < n; e++) {
            all += scratch[e];
            busy += e < fifth ? scratch[e] : 0;
        }
    }
    return all > 0 ? 100 * busy / all : (double)NAN;
}

static enum moec_status say_load(const struct moec_profile *profile, struct moec_chart *chart,
                                 struct moec_error *err)
{
    const struct moec_chart_cells *cells = &chart->cells;
    uint64_t n = (uint64_t)cells->n_row * cells->n_column, most = 0, n_none = 0;
    double *scratch = NULL;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (cells->n_row == 0 || cells->n_column == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&scratch, cells->n_column, sizeof *scratch, "load of a layer", err));
    double busy = busiest_fifth(cells, scratch);
    free(scratch);
    for (uint64_t i = 0; i < n; i++) {
        most = cells->values[i] > cells->values[most] ? i : most;
        n_none += profile->activations[i] == 0;
    }
    moec_figure_say(chart,
                    "1 is an even share of the tokens of a layer. The busiest is expert %" PRIu64
                    " of layer %" PRIu32
                    " with %s times that; the busiest fifth of the experts takes %s %% of all choices.",
                    most % cells->n_column, profile->moe_layers[most / cells->n_column],
                    moec_chart_number(a, cells->values[most]), moec_chart_number(b, busy));
    moec_figure_say(chart, busy >= 40
                               ? "A cache that keeps popular experts pays here."
                               : "Popularity alone says little about which experts to keep in memory.");
    if (n_none > 0)
        moec_figure_say(chart, "%" PRIu64 " experts were never chosen.", n_none);
    return MOEC_OK;
}

enum moec_status moec_figure_load(const struct moec_profile *profile, uint32_t index,
                                  struct moec_chart *chart, struct moec_error *err)
{
    if (index > 0)
        return MOEC_OK;
    moec_figure_name(chart, "load");
    moec_figure_title(chart, "Load of every expert, relative to an even share");
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE III-C, Fig. 8; Fate, Fig. 8");
    chart->kind = MOEC_CHART_CELLS;
    chart->x = (struct moec_chart_axis){.name = "expert", .label = "expert"};
    moec_figure_layer_axis(profile, &chart->y);
    (void)snprintf(chart->value_name, sizeof chart->value_name, "relative_load");
    (void)snprintf(chart->value_label, sizeof chart->value_label, "load, 1 = even");
    MOEC_TRY(moec_chart_set_cells(chart, profile->n_moe_layer, profile->n_expert, err));
    struct moec_chart_cells *cells = &chart->cells;
    for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
        const uint64_t *counts = profile->activations + (size_t)s * profile->n_expert;
        double sum = 0;
        for (uint32_t e = 0; e < profile->n_expert; e++)
            sum += (double)counts[e];
        for (uint32_t e = 0; e < profile->n_expert; e++) {
            double load = sum > 0 ? (double)counts[e] * profile->n_expert / sum : 0;
            cells->values[(size_t)s * profile->n_expert + e] = load;
            cells->numbers.largest = fmax(cells->numbers.largest, load);
        }
        cells->rows[s] = profile->moe_layers[s];
    }
    cells->colours.low = 0;
    cells->colours.high = fmax(cells->numbers.largest, 1);
    cells->colours.mark = 1;
    cells->numbers.decimals = 2;
    (void)snprintf(cells->words.mark, sizeof cells->words.mark, "even share");
    return say_load(profile, chart, err);
}

/* ---- one line over layers ---- */

/* Least, most and mean of a series; false when it has no number. */
static bool summarise(const struct moec_chart_series *series, uint64_t *least, uint64_t *most, double *mean)
{
    uint64_t n = 0;
    *mean = 0;
    for (uint64_t i = 0; i < series->n; i++) {
        if (!isfinite(series->y[i]))
            continue;
        if (n == 0)
            *least = *most = i;
        *least = series->y[i] < series->y[*least] ? i : *least;
        *most = series->y[i] > series->y[*most] ? i : *most;
        *mean += series->y[i];
        n++;
    }
    *mean /= n > 0 ? (double)n : 1;
    return n > 0;
}

/* A study of one number a layer as a line. */
static enum moec_status draw_layers(const struct moec_profile *profile, const struct moec_study *study,
                                    struct moec_chart *chart, struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    chart->kind = MOEC_CHART_LINES;
    moec_figure_layer_axis(profile, &chart->x);
    MOEC_TRY(moec_chart_add_series(chart, "", study->axes[0].n, &series, err));
    for (uint64_t s = 0; s < series->n; s++) {
        series->x[s] = moec_study_axis_value(&study->axes[0], s);
        series->y[s] = study->values[s];
    }
    return MOEC_OK;
}

static const char *const layer_axis[] = {"moe_layer"};

enum moec_status moec_figure_entropy(const struct moec_profile *profile, uint32_t index,
                                     struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_study *study = moec_figure_find(profile, "routing/entropy", 1, layer_axis);
    uint64_t least = 0, most = 0;
    double mean = 0;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (index > 0 || study == NULL)
        return MOEC_OK;
    moec_figure_name(chart, "entropy");
    moec_figure_title(chart, "How evenly each layer uses its experts");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "entropy");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "entropy of the load, 1 = even");
    MOEC_TRY(draw_layers(profile, study, chart, err));
    if (!summarise(&chart->series[0], &least, &most, &mean))
        return MOEC_OK;
    moec_figure_say(chart,
                    "Layer %g is the least even (%s), the mean is %s; 1 would be a load that is the "
                    "same for all experts.",
                    chart->series[0].x[least], moec_chart_number(a, chart->series[0].y[least]),
                    moec_chart_number(b, mean));
    moec_figure_say(chart, mean > 0.95
                               ? "Routing was trained to be even, and is: popularity of experts hardly helps."
                               : "Layers with low entropy are where a small cache hits often.");
    return MOEC_OK;
}

enum moec_status moec_figure_cosine(const struct moec_profile *profile, uint32_t index,
                                    struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_study *study = moec_figure_find(profile, "predict/cosine", 1, layer_axis);
    uint64_t least = 0, most = 0;
    double mean = 0;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (index > 0 || study == NULL)
        return MOEC_OK;
    moec_figure_name(chart, "cosine");
    moec_figure_title(chart, "Similarity of the gate inputs of a layer and the next");
    (void)snprintf(chart->source, sizeof chart->source, "Fate, Table 1; HOBBIT, Fig. 7(a)");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "cosine");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "cosine similarity");
    MOEC_TRY(draw_layers(profile, study, chart, err));
    if (!summarise(&chart->series[0], &least, &most, &mean))
        return MOEC_OK;
    moec_figure_say(chart, "The mean is %s, the lowest %s at layer %g.", moec_chart_number(a, mean),
                    moec_chart_number(b, chart->series[0].y[least]), chart->series[0].x[least]);
    uint64_t n_above = 0;
    for (uint64_t l = 0; l < chart->series[0].n; l++)
        n_above += chart->series[0].y[l] > 0.83;
    moec_figure_say(chart,
                    "%" PRIu64 " of %" PRIu64
                    " layers exceed the 0.83 that Fate reports for the models that it prefetches for%s.",
                    n_above, chart->series[0].n,
                    n_above > 0 ? ": there the next gate fed with this layer's input is worth trying"
                                : ": the input changes too much between layers for the next gate to be sure");
    return MOEC_OK;
}

enum moec_status moec_figure_gate_correlation(const struct moec_profile *profile, uint32_t index,
                                              struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_study *study = moec_figure_find(profile, "gate/correlation", 1, layer_axis);
    uint64_t least = 0, most = 0;
    double mean = 0;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (index > 0 || study == NULL)
        return MOEC_OK;
    moec_figure_name(chart, "gate_correlation");
    moec_figure_title(chart, "Correlation of gate weight and norm of the weighted output");
    (void)snprintf(chart->source, sizeof chart->source, "HOBBIT, Fig. 5(a)");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "correlation");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "Pearson correlation");
    MOEC_TRY(draw_layers(profile, study, chart, err));
    if (!summarise(&chart->series[0], &least, &most, &mean))
        return MOEC_OK;
    moec_figure_say(chart, "The mean is %s, the lowest %s at layer %g; HOBBIT reports 0.99 for Mixtral-8x7B.",
                    moec_chart_number(a, mean), moec_chart_number(b, chart->series[0].y[least]),
                    chart->series[0].x[least]);
    moec_figure_say(
        chart, mean > 0.9 ? "The gate weight says how much an expert matters to a token."
                          : "The gate weight alone says only roughly how much an expert matters to a token.");
    return MOEC_OK;
}

/* ---- margin ---- */

/* Place of the quantile nearest to `part`. */
static uint64_t nearest_value(const struct moec_study_axis *axis, double part)
{
    uint64_t best = 0;
    for (uint64_t i = 1; i < axis->n; i++)
        if (fabs(moec_study_axis_value(axis, i) - part) < fabs(moec_study_axis_value(axis, best) - part))
            best = i;
    return best;
}

enum moec_status moec_figure_margin(const struct moec_profile *profile, uint32_t index,
                                    struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "quantile"};
    const struct moec_study *study = moec_figure_find(profile, "routing/margin", 2, axes);
    struct moec_chart_series *middle = NULL, *low = NULL;
    if (index > 0 || study == NULL)
        return MOEC_OK;
    const struct moec_study_axis *layers = &study->axes[0], *quantiles = &study->axes[1];
    uint64_t half = nearest_value(quantiles, 0.5), lower = nearest_value(quantiles, 0.25),
             upper = nearest_value(quantiles, 0.75), least = 0, most = 0;
    double mean = 0;
    char name[MOEC_CHART_LABEL], a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    moec_figure_name(chart, "margin");
    moec_figure_title(chart, "Margin by which the router takes its last expert");
    chart->kind = MOEC_CHART_LINES;
    moec_figure_layer_axis(profile, &chart->x);
    (void)snprintf(chart->y.name, sizeof chart->y.name, "margin");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "probability of rank k minus rank k + 1");
    chart->y.has_zero = true;
    (void)snprintf(name, sizeof name, "median, %.3g to %.3g %% of the tokens",
                   100 * moec_study_axis_value(quantiles, lower),
                   100 * moec_study_axis_value(quantiles, upper));
    MOEC_TRY(moec_chart_add_series(chart, name, layers->n, &middle, err));
    middle->has_interval = middle->is_band = true;
    uint64_t few = nearest_value(quantiles, 0.05);
    (void)snprintf(name, sizeof name, "%.3g %% of the tokens are below",
                   100 * moec_study_axis_value(quantiles, few));
    MOEC_TRY(moec_chart_add_series(chart, name, layers->n, &low, err));
    for (uint64_t s = 0; s < layers->n; s++) {
        const double *row = study->values + s * quantiles->n;
        middle->x[s] = low->x[s] = moec_study_axis_value(layers, s);
        middle->y[s] = row[half];
        middle->low[s] = row[lower];
        middle->high[s] = row[upper];
        low->y[s] = row[few];
    }
    if (!summarise(middle, &least, &most, &mean))
        return MOEC_OK;
    moec_figure_say(
        chart,
        "Where the margin is small, a little noise in the hidden state changes which experts run. Half of "
        "the tokens have less than %s in layer %g, where choices are closest, and less than %s in layer %g.",
        moec_chart_number(a, middle->y[least]), middle->x[least], moec_chart_number(b, middle->y[most]),
        middle->x[most]);
    moec_figure_say(chart,
                    "Layers with small margins turn the quantisation of earlier layers into other experts.");
    return MOEC_OK;
}

/* ---- paths ---- */

/* A study over one axis as a series. */
static enum moec_status add_curve(struct moec_chart *chart, const char *name, const struct moec_study *study,
                                  double factor, struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    MOEC_TRY(moec_chart_add_series(chart, name, study->axes[0].n, &series, err));
    for (uint64_t i = 0; i < series->n; i++) {
        series->x[i] = moec_study_axis_value(&study->axes[0], i);
        series->y[i] = factor * study->values[i];
    }
    return MOEC_OK;
}

/* Median and range over layers of a study (moe_layer, inner) as a series over the inner axis. */
static enum moec_status add_range(struct moec_chart *chart, const char *name, const struct moec_study *study,
                                  bool is_cumulative, double factor, struct moec_error *err)
{
    uint64_t n_layer = study->axes[0].n, n = study->axes[1].n;
    struct moec_chart_series *series = NULL;
    double *values = NULL, *sums = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_chart_add_series(chart, name, n, &series, err));
    MOEC_TRY_OUT(moec_alloc((void **)&values, 2 * n_layer, sizeof *values, "layers of a figure", err));
    MOEC_TRY_OUT(moec_alloc((void **)&sums, n_layer, sizeof *sums, "layers of a figure", err));
    series->has_interval = series->is_band = n_layer > 1;
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t s = 0; s < n_layer; s++) {
            double value = study->values[s * n + i];
            sums[s] = is_cumulative ? sums[s] + value : value;
            values[s] = factor * sums[s];
        }
        series->x[i] = is_cumulative ? (double)i + 1 : moec_study_axis_value(&study->axes[1], i);
        series->y[i] = moec_quantile_of_finite(values, n_layer, 0.5, values + n_layer);
        series->low[i] = moec_quantile_of_finite(values, n_layer, 0, values + n_layer);
        series->high[i] = moec_quantile_of_finite(values, n_layer, 1, values + n_layer);
    }
out:
    free(values);
    free(sums);
    return status;
}

/* First x at which the series reaches `y`, NaN when it never does. */
static double reaches(const struct moec_chart_series *series, double y)
{
    for (uint64_t i = 0; i < series->n; i++)
        if (series->y[i] >= y)
            return series->x[i];
    return (double)NAN;
}

/* A number of things: whole, and short where it is large. */
static const char *count_text(char text[static MOEC_CHART_NUMBER], double n)
{
    if (!(n < 1000))
        return moec_chart_number(text, n);
    (void)snprintf(text, MOEC_CHART_NUMBER, "%.0f", n);
    return text;
}

/* Share of the tokens on the most popular fifth of the full paths that occur; NaN when it was not measured.
 */
static double fifth_of_paths(const struct moec_profile *profile)
{
    static const char *const axes[] = {"path_fraction"};
    const struct moec_study *study = moec_figure_find(profile, "paths/full_fraction", 1, axes);
    if (study == NULL)
        return (double)NAN;
    uint64_t at = nearest_value(&study->axes[0], 0.2);
    return fabs(moec_study_axis_value(&study->axes[0], at) - 0.2) < 0.01 ? study->values[at] : (double)NAN;
}

enum moec_status moec_figure_paths(const struct moec_profile *profile, uint32_t index,
                                   struct moec_chart *chart, struct moec_error *err)
{
    static const char *const full_axes[] = {"popular_paths"}, *const three_axes[] = {"moe_layer",
                                                                                     "popular_paths"};
    const struct moec_study *full = moec_figure_find(profile, "paths/full", 1, full_axes);
    const struct moec_study *three = moec_figure_find(profile, "paths/three", 2, three_axes);
    const struct moec_study *encoder = moec_figure_find(profile, "paths/encoder", 1, full_axes);
    struct moec_chart_series *series = NULL;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (index > 0 || full == NULL)
        return MOEC_OK;
    moec_figure_name(chart, "paths");
    moec_figure_title(chart, "Share of the tokens on the most popular paths");
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, Fig. 4");
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "popular_paths");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "number of most popular paths");
    chart->x.is_log = true;
    (void)snprintf(chart->y.name, sizeof chart->y.name, "tokens_percent");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "tokens, %%");
    chart->y.low = 0;
    chart->y.high = 100;
    const bool has_encoder = moec_config_is_encoder_decoder(&profile->config);
    MOEC_TRY(add_curve(chart, has_encoder ? "MoE layers of the decoder" : "all MoE layers", full, 100, err));
    series = &chart->series[0];
    if (three != NULL)
        MOEC_TRY(add_range(chart, "three layers, median and range", three, false, 100, err));
    if (encoder != NULL)
        MOEC_TRY(add_curve(chart, "MoE layers of the encoder", encoder, 100, err));
    double half = reaches(series, 50);
    if (isfinite(half))
        moec_figure_say(chart, "Half of the tokens take one of at most %s full paths.", count_text(a, half));
    else if (series->n > 0)
        moec_figure_say(chart, "The %s most popular full paths carry %s %% of the tokens.",
                        count_text(a, series->x[series->n - 1]),
                        moec_chart_number(b, series->y[series->n - 1]));
    if (three != NULL && isfinite(reaches(&chart->series[1], 50)))
        moec_figure_say(chart,
                        "Over three consecutive layers at most %s paths carry half of them (median layer).",
                        count_text(a, reaches(&chart->series[1], 50)));
    double fifth = fifth_of_paths(profile);
    if (isfinite(fifth))
        moec_figure_say(chart,
                        "The most popular fifth of the paths that occur carries %s %% of the tokens; EdgeMoE "
                        "reports 99 %%.",
                        moec_chart_number(a, 100 * fifth));
    moec_figure_say(chart,
                    "The steeper these curves, the more the experts of earlier layers say about later ones.");
    return MOEC_OK;
}

enum moec_status moec_figure_conditional(const struct moec_profile *profile, uint32_t index,
                                         struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "activation_rank"};
    const struct moec_study *path = moec_figure_find(profile, "conditional/path", 2, axes);
    const struct moec_study *frequency = moec_figure_find(profile, "conditional/frequency", 2, axes);
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (index > 0 || path == NULL || frequency == NULL)
        return MOEC_OK;
    moec_figure_name(chart, "conditional");
    moec_figure_title(chart, "Activation of the likeliest experts, with and without knowing earlier layers");
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, Fig. 8");
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "likeliest_experts");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "number of likeliest experts");
    chart->x.is_whole = true;
    (void)snprintf(chart->y.name, sizeof chart->y.name, "activation_percent");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "activated experts among them, %%");
    chart->y.has_zero = true;
    double share = 100.0 / fmax(profile->top_k, 1);
    MOEC_TRY(add_range(chart, "given the two layers before", path, true, share, err));
    MOEC_TRY(add_range(chart, "given nothing", frequency, true, share, err));
    const struct moec_chart_series *given = &chart->series[0], *nothing = &chart->series[1];
    uint64_t k = profile->top_k;
    if (k == 0 || given->n < k || nothing->n < k || !isfinite(given->y[k - 1]) ||
        !isfinite(nothing->y[k - 1]))
        return MOEC_OK;
    moec_figure_say(
        chart,
        "Lines: median over layers; bands: their range. The %" PRIu64
        " likeliest experts hold %s %% of those that a token activates when the experts of the two "
        "layers before are known, %s %% when nothing is.",
        k, moec_chart_number(a, given->y[k - 1]), moec_chart_number(b, nothing->y[k - 1]));
    moec_figure_say(
        chart, given->y[k - 1] > 1.3 * nothing->y[k - 1]
                   ? "Earlier layers say a good deal about the next: preloading by path table is worthwhile."
                   : "Earlier layers say little about the next: a path table will predict "
                     "little better than popularity.");
    return MOEC_OK;
}

/* ---- prediction ---- */

static const char *cut_name(uint64_t cut)
{
    static const char *const names[] = {"top k", "top k + 1", "top 2k"};
    return cut < 3 ? names[cut] : "more";
}

/* The first layer of each stack has none before it to predict from: what stands there is frequency alone, and
 * means are over the other layers for every predictor. */
static bool is_predicted(const struct moec_profile *profile, uint64_t s)
{
    const uint64_t n_encoder = moec_config_moe_encoder_count(&profile->config);
    return s > 0 && (s != n_encoder || n_encoder >= profile->n_moe_layer);
}

/* Mean over layers with their range, by cut. */
static enum moec_status draw_recall_by_cut(const struct moec_profile *profile, const struct moec_study *study,
                                           struct moec_chart *chart, double *scratch, struct moec_error *err)
{
    uint64_t n_layer = study->axes[0].n, n_cut = study->axes[2].n;
    uint64_t n_predictor =
        study->axes[1].n < MOEC_CHART_MAX_SERIES ? study->axes[1].n : MOEC_CHART_MAX_SERIES;
    char name[MOEC_CHART_LABEL];
    n_cut = n_cut < 3 ? n_cut : 3;
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "predicted");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "experts that are predicted");
    MOEC_TRY(moec_chart_set_categories(&chart->x, (uint32_t)n_cut, err));
    for (uint64_t c = 0; c < n_cut; c++)
        (void)snprintf(chart->x.categories[c], MOEC_CHART_LABEL, "%s", cut_name(c));
    for (uint64_t p = 0; p < n_predictor; p++) {
        struct moec_chart_series *series = NULL;
        moec_figure_axis_text(&study->axes[1], p, name);
        MOEC_TRY(moec_chart_add_series(chart, name, n_cut, &series, err));
        series->has_interval = n_layer > 1;
        for (uint64_t c = 0; c < n_cut; c++) {
            double sum = 0;
            uint64_t n = 0;
            for (uint64_t s = 0; s < n_layer; s++) {
                const double value = is_predicted(profile, s)
                                         ? study->values[(s * study->axes[1].n + p) * study->axes[2].n + c]
                                         : (double)NAN;
                scratch[s] = 100 * value;
                sum += isfinite(value) ? 100 * value : 0;
                n += isfinite(value) ? 1 : 0;
            }
            series->x[c] = (double)c;
            series->y[c] = n > 0 ? sum / (double)n : (double)NAN;
            series->low[c] = moec_quantile_of_finite(scratch, n_layer, 0, scratch + n_layer);
            series->high[c] = moec_quantile_of_finite(scratch, n_layer, 1, scratch + n_layer);
        }
    }
    return MOEC_OK;
}

/* In how many layers this predictor recalls at least as much of the top k as every other. */
static uint32_t layers_led(const struct moec_profile *profile, const struct moec_study *study, uint32_t p,
                           uint32_t *n_layer)
{
    const uint64_t n_predictor = study->axes[1].n, n_cut = study->axes[2].n;
    uint32_t n_led = 0;
    *n_layer = 0;
    for (uint64_t s = 0; s < study->axes[0].n; s++) {
        const double *row = study->values + s * n_predictor * n_cut;
        bool leads = is_predicted(profile, s) && isfinite(row[p * n_cut]);
        *n_layer += leads;
        for (uint64_t other = 0; other < n_predictor; other++)
            leads = leads && !(row[other * n_cut] > row[p * n_cut]);
        n_led += leads;
    }
    return n_led;
}

static void say_recall(const struct moec_profile *profile, const struct moec_study *study,
                       struct moec_chart *chart)
{
    uint32_t best = 0, n_layer = 0;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    for (uint32_t p = 1; p < chart->n_series; p++)
        if (chart->series[p].n > 0 && chart->series[p].y[0] > chart->series[best].y[0])
            best = p;
    if (chart->n_series == 0 || chart->series[best].n == 0)
        return;
    const struct moec_chart_series *series = &chart->series[best];
    const uint32_t n_led = layers_led(profile, study, best, &n_layer);
    moec_figure_say(
        chart,
        "Bars: mean over layers; lines on them: from the worst layer to the best. %s predicts best, in "
        "%" PRIu32 " of %" PRIu32 " layers: %s %% of the experts that a token needs are among the top k "
        "predicted, %s %% among the top 2k.",
        series->name, n_led, n_layer, moec_chart_number(a, series->y[0]),
        moec_chart_number(b, series->y[series->n - 1]));
    moec_figure_say(chart, "Experts that were not predicted are read from storage while the token waits.");
}

static enum moec_status draw_recall_by_layer(const struct moec_profile *profile,
                                             const struct moec_study *study, struct moec_chart *chart,
                                             struct moec_error *err)
{
    uint64_t n_predictor =
        study->axes[1].n < MOEC_CHART_MAX_SERIES ? study->axes[1].n : MOEC_CHART_MAX_SERIES;
    char name[MOEC_CHART_LABEL], a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    chart->kind = MOEC_CHART_LINES;
    moec_figure_layer_axis(profile, &chart->x);
    for (uint64_t p = 0; p < n_predictor; p++) {
        struct moec_chart_series *series = NULL;
        uint64_t least = 0, most = 0;
        double mean = 0;
        moec_figure_axis_text(&study->axes[1], p, name);
        MOEC_TRY(moec_chart_add_series(chart, name, study->axes[0].n, &series, err));
        for (uint64_t s = 0; s < series->n; s++) {
            series->x[s] = moec_study_axis_value(&study->axes[0], s);
            series->y[s] = is_predicted(profile, s)
                               ? 100 * study->values[(s * study->axes[1].n + p) * study->axes[2].n]
                               : (double)NAN;
        }
        if (summarise(series, &least, &most, &mean))
            moec_figure_say(chart, "%s: mean %s %%, worst %s %% at layer %g.", series->name,
                            moec_chart_number(a, mean), moec_chart_number(b, series->y[least]),
                            series->x[least]);
    }
    moec_figure_say(chart, "The experts of layers that no predictor predicts well should stay in memory.");
    return MOEC_OK;
}

enum moec_status moec_figure_recall(const struct moec_profile *profile, uint32_t index,
                                    struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "predictor", "cut"};
    const struct moec_study *study = moec_figure_find(profile, "predict/recall", 3, axes);
    double *scratch = NULL;
    if (index > 1 || study == NULL)
        return MOEC_OK;
    moec_figure_name(chart, index == 0 ? "recall" : "recall_by_layer");
    moec_figure_title(chart, index == 0 ? "Activated experts among those predicted"
                                        : "Activated experts among the top k predicted, by layer");
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE III-C; HOBBIT, Fig. 7(b); Fate, Table 1");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "recall_percent");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "recall, %%");
    chart->y.has_zero = true;
    if (index == 1)
        return draw_recall_by_layer(profile, study, chart, err);
    MOEC_TRY(moec_alloc((void **)&scratch, 2 * study->axes[0].n, sizeof *scratch, "recall of layers", err));
    enum moec_status status = draw_recall_by_cut(profile, study, chart, scratch, err);
    free(scratch);
    if (status == MOEC_OK)
        say_recall(profile, study, chart);
    return status;
}

/* Mean of the layers that have one, in percent, by width. */
static enum moec_status add_position(const struct moec_study *study, uint64_t position,
                                     struct moec_chart *chart, struct moec_error *err)
{
    const uint64_t n_position = study->axes[1].n, n_width = study->axes[2].n;
    struct moec_chart_series *series = NULL;
    char name[MOEC_CHART_LABEL];
    moec_figure_axis_text(&study->axes[1], position, name);
    MOEC_TRY(moec_chart_add_series(chart, name, n_width, &series, err));
    for (uint64_t i = 0; i < n_width; i++) {
        double sum = 0;
        uint64_t n = 0;
        for (uint64_t s = 0; s < study->axes[0].n; s++) {
            const double value = study->values[(s * n_position + position) * n_width + i];
            sum += isfinite(value) ? value : 0;
            n += isfinite(value) ? 1 : 0;
        }
        series->x[i] = moec_study_axis_value(&study->axes[2], i);
        series->y[i] = n > 0 ? 100 * sum / (double)n : (double)NAN;
    }
    return MOEC_OK;
}

/* The path table's, of the layers that have one before them. */
static enum moec_status add_path(const struct moec_profile *profile, const struct moec_study *path,
                                 struct moec_chart *chart, struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    double sum = 0;
    uint64_t n = 0;
    MOEC_TRY(moec_chart_add_series(chart, "path table", path->axes[1].n, &series, err));
    for (uint64_t s = 0; s < path->axes[0].n; s++)
        n += is_predicted(profile, s);
    for (uint64_t i = 0; i < series->n; i++) {
        for (uint64_t s = 0; s < path->axes[0].n; s++)
            sum += is_predicted(profile, s) ? path->values[s * series->n + i] : 0;
        series->x[i] = (double)i + 1;
        series->y[i] = n > 0 ? 100 * sum / (double)n / fmax(profile->top_k, 1) : (double)NAN;
    }
    return MOEC_OK;
}

/* Path table and gate together. */
static enum moec_status add_path_gate(const struct moec_study *study, struct moec_chart *chart,
                                      struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    const uint64_t n_width = study->axes[1].n;
    MOEC_TRY(moec_chart_add_series(chart, "path table and gate input 1 before", n_width, &series, err));
    for (uint64_t i = 0; i < n_width; i++) {
        double sum = 0;
        uint64_t n = 0;
        for (uint64_t s = 0; s < study->axes[0].n; s++) {
            const double value = study->values[s * n_width + i];
            sum += isfinite(value) ? value : 0;
            n += isfinite(value) ? 1 : 0;
        }
        series->x[i] = moec_study_axis_value(&study->axes[1], i);
        series->y[i] = n > 0 ? 100 * sum / (double)n : (double)NAN;
    }
    return MOEC_OK;
}

/* How many experts each position must name for 95 % of those that are needed. */
static void say_positions(const struct moec_profile *profile, const struct moec_study *study,
                          struct moec_chart *chart)
{
    const uint64_t quarter = ((uint64_t)profile->n_expert + 3) / 4;
    const uint64_t wide = quarter > profile->top_k ? quarter : profile->top_k;
    char k[MOEC_CHART_NUMBER], w[MOEC_CHART_NUMBER];
    moec_figure_say(chart, "Means over the layers that have such a position before them.");
    for (uint32_t p = 0; p < chart->n_series; p++) {
        const struct moec_chart_series *series = &chart->series[p];
        uint64_t width = 0;
        while (width < series->n && !(series->y[width] >= 95))
            width++;
        if (series->n < wide || profile->top_k == 0 || !isfinite(series->y[0]) || width == series->n)
            continue;
        moec_figure_say(
            chart, "%s: %s %% at k = %" PRIu32 ", %s %% at %" PRIu64 ", 95 %% from %g of %" PRIu64 " on.",
            series->name, moec_chart_number(k, series->y[profile->top_k - 1]), profile->top_k,
            moec_chart_number(w, series->y[wide - 1]), wide, series->x[width], study->axes[2].n);
    }
}

enum moec_status moec_figure_positions(const struct moec_profile *profile, uint32_t index,
                                       struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "position", "width"};
    static const char *const rank_axes[] = {"moe_layer", "activation_rank"}, *const width_axes[] = {
                                                                                 "moe_layer", "width"};
    const struct moec_study *study = moec_figure_find(profile, "predict/positions", 3, axes);
    const struct moec_study *path = moec_figure_find(profile, "conditional/path", 2, rank_axes);
    const struct moec_study *path_gate = moec_figure_find(profile, "predict/path_gate", 2, width_axes);
    if (index > 0 || study == NULL)
        return MOEC_OK;
    moec_figure_name(chart, "positions");
    moec_figure_title(chart, "Activated experts among those that a router prefers from an earlier position");
    (void)snprintf(chart->source, sizeof chart->source, "Fate, Table 1 and Fig. 4; HOBBIT, Fig. 7");
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "predicted");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "experts that are predicted");
    chart->x.is_whole = true;
    (void)snprintf(chart->y.name, sizeof chart->y.name, "recall_percent");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "recall, %%");
    chart->y.has_zero = true;
    for (uint64_t p = 0; p < study->axes[1].n && chart->n_series + 2 < MOEC_CHART_MAX_SERIES; p++)
        MOEC_TRY(add_position(study, p, chart, err));
    if (path != NULL)
        MOEC_TRY(add_path(profile, path, chart, err));
    if (path_gate != NULL)
        MOEC_TRY(add_path_gate(path_gate, chart, err));
    say_positions(profile, study, chart);
    return MOEC_OK;
}

/* ---- gate weight ---- */

enum moec_status moec_figure_gate_norm(const struct moec_profile *profile, uint32_t index,
                                       struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"gate_weight"};
    const struct moec_study *study = moec_figure_find(profile, "gate/output_norm", 1, axes);
    const struct moec_study *weighted = moec_figure_find(profile, "gate/weighted_norm", 1, axes);
    if (index > 0 || study == NULL)
        return MOEC_OK;
    moec_figure_name(chart, "gate_norm");
    moec_figure_title(chart, "Norm of an expert's output by its gate weight");
    (void)snprintf(chart->source, sizeof chart->source, "HOBBIT, Fig. 5");
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "gate_weight");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "gate weight");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "relative_norm");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "norm, relative to the layer's mean");
    chart->y.has_zero = true;
    MOEC_TRY(add_curve(chart, "output", study, 1, err));
    if (weighted != NULL)
        MOEC_TRY(add_curve(chart, "output times gate weight", weighted, 1, err));
    moec_figure_say(
        chart,
        "Means over all choices. Where the norm of the output hardly depends on the gate weight, the "
        "weight alone says how much an expert adds, and experts with small weights can be loaded at low "
        "precision or skipped.");
    return MOEC_OK;
}
