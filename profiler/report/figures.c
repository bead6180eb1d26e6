/* The table of makers is the order of figures in reports. A figure without charts stays in the list, so that
 * a report can name it as not measured. */
#include "profiler/report/figures.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "profiler/profile/study_table.h"
#include "profiler/report/figure_parts.h"
#include "profiler/report/heatmap.h"
#include "profiler/routing/score_study.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- table ---- */

static const struct maker {
    const char *title;
    enum moec_figure_section section;
    const char *study, *option;
    moec_figure_make *make;
} makers[] = {
    {"Loss of whole models by bitwidth", MOEC_FIGURE_SENSITIVITY, "", "", moec_figure_loss_by_bits},
    {"Sensitivity of every expert", MOEC_FIGURE_SENSITIVITY, "", "", moec_figure_sensitivity},
    {"Sensitivities in order, with their intervals", MOEC_FIGURE_SENSITIVITY, "", "", moec_figure_sorted},
    {"Tokens of every expert", MOEC_FIGURE_SENSITIVITY, "", "", moec_figure_tokens},
    {"Loss of one layer at a time", MOEC_FIGURE_SENSITIVITY, "layer/loss", "--study layers",
     moec_figure_layer_loss},
    {"Local output error of every expert", MOEC_FIGURE_SENSITIVITY, "fast/local_error", "--sensitivity fast",
     moec_figure_local_error},
    {"Mixed bitwidths against uniform ones", MOEC_FIGURE_SENSITIVITY, "mixed/bytes", "a new profile",
     moec_figure_mixed},
    {"Load of every expert", MOEC_FIGURE_ROUTING, "", "", moec_figure_load},
    {"Evenness of the load", MOEC_FIGURE_ROUTING, "routing/entropy", "a new profile", moec_figure_entropy},
    {"Margin of the router's choice", MOEC_FIGURE_ROUTING, "routing/margin", "a new profile",
     moec_figure_margin},
    {"Popularity of paths", MOEC_FIGURE_ROUTING, "paths/full", "a new profile", moec_figure_paths},
    {"Conditional and unconditional activation", MOEC_FIGURE_ROUTING, "conditional/path", "a new profile",
     moec_figure_conditional},
    {"Recall of predictors", MOEC_FIGURE_ROUTING, "predict/recall", "a new profile", moec_figure_recall},
    {"Recall by width and position", MOEC_FIGURE_ROUTING, "predict/positions", "a new profile",
     moec_figure_positions},
    {"Similarity of neighbouring gate inputs", MOEC_FIGURE_ROUTING, "predict/cosine", "a new profile",
     moec_figure_cosine},
    {"Gate weight and output norm", MOEC_FIGURE_ROUTING, "gate/output_norm", "a new profile",
     moec_figure_gate_norm},
    {"Correlation of gate weight and weighted output norm", MOEC_FIGURE_ROUTING, "gate/correlation",
     "a new profile", moec_figure_gate_correlation},
    {"Scores of experts", MOEC_FIGURE_ROUTING, MOEC_SCORE_STUDY, "a new profile", moec_figure_scores},
    {"Dropping or replacing the expert at a rank", MOEC_FIGURE_ROUTING, "rank/loss", "--study ranks",
     moec_figure_rank},
    {"Experts only and all weights", MOEC_FIGURE_WEIGHTS, "dense/loss", "--study dense",
     moec_figure_dense_loss},
    {"Quantizers and group sizes", MOEC_FIGURE_WEIGHTS, "quantizer/loss", "--study quantizers",
     moec_figure_quantizer},
    {"All weights by quantizer", MOEC_FIGURE_WEIGHTS, "quantizer_all/loss", "--study quantizers",
     moec_figure_quantizer_all},
    {"Loss by projection", MOEC_FIGURE_WEIGHTS, "projection/loss", "--study projections",
     moec_figure_projection_loss},
    {"Projections of every expert", MOEC_FIGURE_WEIGHTS, "projection/expert_loss", "--projections",
     moec_figure_projection_experts},
    {"Small activations as zero", MOEC_FIGURE_WEIGHTS, "sparsity/loss", "--study sparsity",
     moec_figure_sparsity},
    {"Outputs of up projections", MOEC_FIGURE_WEIGHTS, "neurons/up_quantiles", "a new profile",
     moec_figure_up_quantiles},
};
#define N_MAKER (sizeof makers / sizeof *makers)

/* ---- making ---- */

void moec_figures_release(struct moec_figures *figures)
{
    if (figures == NULL)
        return;
    for (uint32_t i = 0; i < figures->n; i++)
        for (uint32_t c = 0; c < figures->items[i].n_chart; c++)
            moec_chart_release(&figures->items[i].charts[c]);
    free(figures->items);
    *figures = (struct moec_figures){0};
}

/* Model and data, the same under every figure. */
static enum moec_status describe(const struct moec_profile *profile, char *text, size_t capacity,
                                 struct moec_error *err)
{
    struct moec_heatmap map = {0};
    struct moec_heatmap_words words;
    map.bits = profile->baseline_bits; /* where single experts were not measured */
    if (profile->n_bits > 0)
        MOEC_TRY(moec_heatmap_make(profile, 0, &map, err));
    moec_heatmap_describe(profile, &map, &words);
    moec_heatmap_release(&map);
    (void)snprintf(text, capacity, "Model: %s. Data: %s. Loss: %s.", words.model, words.data, words.measure);
    return MOEC_OK;
}

static enum moec_status make_figure(const struct moec_profile *profile, const struct maker *maker,
                                    const char *provenance, struct moec_figure *figure,
                                    struct moec_error *err)
{
    *figure = (struct moec_figure){
        .title = maker->title, .section = maker->section, .study = maker->study, .option = maker->option};
    while (figure->n_chart < MOEC_FIGURE_MAX_CHARTS) {
        struct moec_chart *chart = &figure->charts[figure->n_chart];
        (void)snprintf(chart->provenance, sizeof chart->provenance, "%s", provenance);
        enum moec_status status = maker->make(profile, figure->n_chart, chart, err);
        if (status != MOEC_OK || chart->name[0] == '\0') {
            moec_chart_release(chart);
            return status;
        }
        figure->n_chart++;
    }
    return MOEC_OK;
}

enum moec_status moec_figures_make(const struct moec_profile *profile, struct moec_figures *figures,
                                   struct moec_error *err)
{
    char provenance[sizeof figures->items->charts->provenance];
    *figures = (struct moec_figures){0};
    MOEC_TRY(describe(profile, provenance, sizeof provenance, err));
    MOEC_TRY(moec_alloc((void **)&figures->items, N_MAKER, sizeof *figures->items, "figures", err));
    for (size_t i = 0; i < N_MAKER; i++) {
        /* Counted first: what a failing figure has made is released with the others. */
        figures->n++;
        enum moec_status status = make_figure(profile, &makers[i], provenance, &figures->items[i], err);
        if (status != MOEC_OK) {
            moec_figures_release(figures);
            return status;
        }
    }
    return MOEC_OK;
}

/* ---- writing ---- */

static enum moec_status make_folder(const char *folder, struct moec_error *err)
{
    if (mkdir(folder, 0777) == 0 || (errno == EEXIST && moec_path_is_folder(folder)))
        return MOEC_OK;
    if (errno == EEXIST)
        return moec_fail(err, MOEC_ERR_IO, "cannot write plots into '%s': it is a file, expected a folder",
                         folder);
    return moec_fail(err, MOEC_ERR_IO, "cannot make the folder '%s' for plots: %s", folder, strerror(errno));
}

static enum moec_status write_chart(const struct moec_chart *chart, const char *folder,
                                    enum moec_plot_format format, struct moec_error *err)
{
    static const char *const endings[] = {
        [MOEC_PLOT_PNG] = "png", [MOEC_PLOT_SVG] = "svg", [MOEC_PLOT_PDF] = "pdf", [MOEC_PLOT_CSV] = "csv"};
    char name[sizeof chart->name + 8], *path = NULL;
    (void)snprintf(name, sizeof name, "%s.%s", chart->name, endings[format]);
    MOEC_TRY(moec_path_join(&path, folder, name, err));
    enum moec_status status = moec_chart_write(chart, path, err);
    free(path);
    return status;
}

enum moec_status moec_figures_write(const struct moec_figures *figures, const char *folder,
                                    const enum moec_plot_format *formats, uint32_t n, uint32_t *n_written,
                                    struct moec_error *err)
{
    *n_written = 0;
    MOEC_TRY(make_folder(folder, err));
    for (uint32_t i = 0; i < figures->n; i++)
        for (uint32_t c = 0; c < figures->items[i].n_chart; c++)
            for (uint32_t f = 0; f < n; f++) {
                MOEC_TRY(write_chart(&figures->items[i].charts[c], folder, formats[f], err));
                ++*n_written;
            }
    return MOEC_OK;
}

/* ---- studies ---- */

const struct moec_study *moec_figure_find(const struct moec_profile *profile, const char *name,
                                          uint32_t n_axis, const char *const *axes)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, name);
    if (study == NULL || study->n_axis != n_axis)
        return NULL;
    for (uint32_t a = 0; a < n_axis; a++)
        if (strcmp(study->axes[a].name, axes[a]) != 0)
            return NULL;
    return study;
}

bool moec_figure_find_losses(const struct moec_profile *profile, const char *name, uint32_t n_axis,
                             const char *const *axes, struct moec_figure_losses *losses)
{
    losses->loss = moec_figure_find(profile, name, n_axis, axes);
    if (losses->loss == NULL)
        return false;
    losses->low = moec_study_sibling(&profile->studies, losses->loss, "loss_low");
    losses->high = moec_study_sibling(&profile->studies, losses->loss, "loss_high");
    return true;
}

/* A variant that guesses worse than chance in every token passes what a chart can show. */
static double percent(double loss)
{
    return 100 * fmin(loss, MOEC_HEATMAP_MOST);
}

void moec_figure_set_loss(struct moec_chart_series *series, uint64_t i, double x,
                          const struct moec_figure_losses *losses, uint64_t at)
{
    series->x[i] = x;
    series->y[i] = percent(losses->loss->values[at]);
    if (losses->low == NULL || losses->high == NULL)
        return;
    series->has_interval = true;
    series->low[i] = percent(losses->low->values[at]);
    series->high[i] = percent(losses->high->values[at]);
}

/* ---- charts ---- */

void moec_figure_name(struct moec_chart *chart, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(chart->name, sizeof chart->name, format, list);
    va_end(list);
}

void moec_figure_title(struct moec_chart *chart, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(chart->title, sizeof chart->title, format, list);
    va_end(list);
}

void moec_figure_say(struct moec_chart *chart, const char *format, ...)
{
    char sentence[MOEC_CHART_CAPTION];
    size_t used = strlen(chart->caption), length;
    va_list list;
    va_start(list, format);
    (void)vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    length = strlen(sentence);
    /* A sentence that does not fit is left out whole. No line may begin with a sign of percent, so the space
     * before it becomes one that does not break. */
    if (used + 1 + 2 * length >= sizeof chart->caption)
        return;
    char *to = chart->caption + used;
    if (used > 0)
        *to++ = ' ';
    for (size_t i = 0; i < length; i++) {
        if (sentence[i] == ' ' && sentence[i + 1] == '%') {
            *to++ = '\xc2';
            *to++ = '\xa0';
        } else {
            *to++ = sentence[i];
        }
    }
    *to = '\0';
}

void moec_figure_loss_axis(struct moec_chart_axis *axis)
{
    (void)snprintf(axis->name, sizeof axis->name, "loss_percent");
    (void)snprintf(axis->label, sizeof axis->label, "loss against the original, %%");
}

void moec_figure_layer_axis(const struct moec_profile *profile, struct moec_chart_axis *axis)
{
    axis->is_whole = true;
    (void)snprintf(axis->name, sizeof axis->name, "layer");
    moec_profile_layer_label(profile, sizeof axis->label, axis->label);
}

void moec_figure_axis_text(const struct moec_study_axis *axis, uint64_t i, char text[static MOEC_CHART_LABEL])
{
    char raw[MOEC_STUDY_LABEL], bits[16];
    double value = moec_study_axis_value(axis, i);
    bool is_count = value >= 0 && value <= 64 && value == floor(value);
    if (axis->labels == NULL && is_count && strcmp(axis->name, "bits") == 0) {
        moec_heatmap_bits_name((uint32_t)value, bits);
        (void)snprintf(text, MOEC_CHART_LABEL, "%s", bits);
    } else if (axis->labels == NULL && value == 0 && strcmp(axis->name, "group") == 0) {
        (void)snprintf(text, MOEC_CHART_LABEL, "channel");
    } else {
        moec_plot_clean_text(text, MOEC_CHART_LABEL, moec_study_axis_text(axis, i, raw));
    }
}

enum moec_status moec_figure_categories(struct moec_chart_axis *axis, const struct moec_study_axis *from,
                                        struct moec_error *err)
{
    /* More names than a chart can hold: whoever made the study meant a scale. */
    uint32_t n = from->n < 256 ? (uint32_t)from->n : 256;
    MOEC_TRY(moec_chart_set_categories(axis, n, err));
    for (uint32_t i = 0; i < n; i++)
        moec_figure_axis_text(from, i, axis->categories[i]);
    if (from->labels != NULL)
        return MOEC_OK;
    MOEC_TRY(moec_chart_number_categories(axis, err));
    for (uint32_t i = 0; i < n; i++)
        axis->numbers[i] = moec_study_axis_value(from, i);
    return MOEC_OK;
}

void moec_figure_spread_out(struct moec_chart *chart)
{
    double least = INFINITY, most = -INFINITY;
    for (uint32_t s = 0; s < chart->n_series; s++)
        for (uint64_t i = 0; i < chart->series[s].n; i++) {
            double y = chart->series[s].y[i];
            least = isfinite(y) && y > 0 ? fmin(least, y) : least;
            most = isfinite(y) ? fmax(most, y) : most;
        }
    if (!(most > 30 * least))
        return;
    chart->y.is_log = true;
    if (chart->kind == MOEC_CHART_BARS)
        chart->kind = MOEC_CHART_POINTS;
}
