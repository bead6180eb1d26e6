/* Figures of parts of weights and of activations: projections, quantizers, ranks, sparsity. */
#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/profile/codes_words.h"
#include "profiler/report/figure_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- groups of bars ---- */

/* A study (series, category) of losses as bars: one series for each place of the first axis. */
static enum moec_status draw_grouped(const struct moec_figure_losses *losses, const char *label,
                                     struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_study_axis *groups = &losses->loss->axes[0], *places = &losses->loss->axes[1];
    char name[MOEC_CHART_LABEL];
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    moec_figure_loss_axis(&chart->y);
    memcpy(chart->x.name, places->name, sizeof chart->x.name);
    static_assert(sizeof chart->x.name == sizeof places->name, "both are names of columns");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "%s", label);
    MOEC_TRY(moec_figure_categories(&chart->x, places, err));
    for (uint64_t g = 0; g < groups->n && g < MOEC_CHART_MAX_SERIES; g++) {
        struct moec_chart_series *series = NULL;
        moec_figure_axis_text(groups, g, name);
        MOEC_TRY(moec_chart_add_series(chart, name, chart->x.n_category, &series, err));
        for (uint64_t i = 0; i < series->n; i++)
            moec_figure_set_loss(series, i, (double)i, losses, g * places->n + i);
    }
    moec_figure_spread_out(chart);
    return MOEC_OK;
}

/* The first category at which every series has a number: the lowest bits, where series differ most. */
static uint64_t first_common(const struct moec_chart *chart)
{
    uint64_t n = chart->n_series > 0 ? chart->series[0].n : 0;
    for (uint64_t i = 0; i < n; i++) {
        bool all = true;
        for (uint32_t s = 0; s < chart->n_series; s++)
            all = all && isfinite(chart->series[s].y[i]);
        if (all)
            return i;
    }
    return n;
}

enum moec_status moec_figure_dense_loss(const struct moec_profile *profile, uint32_t index,
                                        struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"weights", "bits"};
    struct moec_figure_losses losses;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (index > 0 || !moec_figure_find_losses(profile, "dense/loss", 2, axes, &losses))
        return MOEC_OK;
    moec_figure_name(chart, "dense_loss");
    char codes[MOEC_CODES_WORDS];
    moec_figure_title(chart, "Loss with experts quantised alone, and with all weights, %s",
                      moec_codes_words(profile, 0, codes));
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, Fig. 6");
    MOEC_TRY(draw_grouped(&losses, "bitwidth", chart, err));
    uint64_t at = first_common(chart);
    if (chart->n_series < 2 || at == chart->series[0].n)
        return MOEC_OK;
    const struct moec_chart_series *experts_only = &chart->series[0], *with_all = &chart->series[1];
    const double experts = experts_only->y[at], all = with_all->y[at];
    moec_figure_say(chart, "At %s experts alone lose %s %%, all weights %s %%.", chart->x.categories[at],
                    moec_chart_number(a, experts), moec_chart_number(b, all));
    if (!moec_figure_loses_more(with_all, at, experts_only, at))
        moec_figure_say(chart, "The intervals overlap: what the dense weights add may be noise.");
    else if (all > 1.5 * experts)
        moec_figure_say(chart, "Experts tolerate low bitwidths better than the dense weights, which are few: "
                               "keep those precise.");
    else
        moec_figure_say(
            chart, "By the intervals, dense weights add to the loss, but less than half as much as experts.");
    return MOEC_OK;
}

enum moec_status moec_figure_projection_loss(const struct moec_profile *profile, uint32_t index,
                                             struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"projection", "bits"};
    struct moec_figure_losses losses;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (index > 0 || !moec_figure_find_losses(profile, "projection/loss", 2, axes, &losses))
        return MOEC_OK;
    moec_figure_name(chart, "projection_loss");
    char codes[MOEC_CODES_WORDS];
    moec_figure_title(chart, "Loss when one projection of all experts is quantised, %s",
                      moec_codes_words(profile, 0, codes));
    (void)snprintf(chart->source, sizeof chart->source, "FloE, Fig. 3(b)");
    MOEC_TRY(draw_grouped(&losses, "bitwidth", chart, err));
    uint64_t at = first_common(chart);
    if (chart->n_series == 0 || at == chart->series[0].n)
        return MOEC_OK;
    uint32_t most = 0, least = 0;
    for (uint32_t s = 1; s < chart->n_series; s++) {
        most = chart->series[s].y[at] > chart->series[most].y[at] ? s : most;
        least = chart->series[s].y[at] < chart->series[least].y[at] ? s : least;
    }
    moec_figure_say(chart, "At %s the %s projection suffers most (%s %%) and %s least (%s %%).",
                    chart->x.categories[at], chart->series[most].name,
                    moec_chart_number(a, chart->series[most].y[at]), chart->series[least].name,
                    moec_chart_number(b, chart->series[least].y[at]));
    if (!moec_figure_loses_more(&chart->series[most], at, &chart->series[least], at))
        moec_figure_say(chart, "Their intervals overlap: the order may be noise.");
    moec_figure_say(chart, "FloE finds down the most and up the least sensitive, and stores up at INT2.");
    return MOEC_OK;
}

/* ---- quantizers ---- */

static const char *const quantizer_axes[] = {"quantizer", "group", "bits"};

/* All choices by what a weight takes: which quantizer and group size are worth their bits. */
static enum moec_status draw_worth(const struct moec_study *size, const struct moec_figure_losses *losses,
                                   struct moec_chart *chart, struct moec_error *err)
{
    uint64_t n = moec_study_count(size) / size->axes[0].n;
    char name[MOEC_CHART_LABEL], a[MOEC_CHART_NUMBER];
    double best[2] = {INFINITY, INFINITY};
    uint32_t best_series[2] = {0, 0};
    moec_figure_name(chart, "quantizer_worth");
    moec_figure_title(chart, "Loss by quantizer, against what a weight takes");
    chart->kind = MOEC_CHART_POINTS;
    moec_figure_loss_axis(&chart->y);
    (void)snprintf(chart->x.name, sizeof chart->x.name, "bits_per_weight");
    (void)snprintf(chart->x.label, sizeof chart->x.label,
                   "bits a weight, with its share of scales and zeros");
    for (uint64_t q = 0; q < size->axes[0].n && q < MOEC_CHART_MAX_SERIES; q++) {
        struct moec_chart_series *series = NULL;
        moec_figure_axis_text(&size->axes[0], q, name);
        MOEC_TRY(moec_chart_add_series(chart, name, n, &series, err));
        for (uint64_t i = 0; i < n; i++) {
            moec_figure_set_loss(series, i, size->values[q * n + i], losses, q * n + i);
            for (int limit = 0; limit < 2; limit++)
                if (moec_figure_loses_at_most(series, i) <= (limit == 0 ? 1 : 5) &&
                    series->x[i] < best[limit]) {
                    best[limit] = series->x[i];
                    best_series[limit] = (uint32_t)q;
                }
        }
        series->has_interval = false;
    }
    for (int limit = 0; limit < 2; limit++)
        if (isfinite(best[limit]))
            moec_figure_say(
                chart,
                "The smallest choice that loses at most %d %% by its interval is %s with %s bits a weight.",
                limit == 0 ? 1 : 5, chart->series[best_series[limit]].name,
                moec_chart_number(a, best[limit]));
    moec_figure_say(chart, "Lower and further left is better: a choice above and to the right of another is "
                           "never worth its bits.");
    moec_figure_spread_out(chart);
    return MOEC_OK;
}

static const char *best_group(const struct moec_study_axis *groups, uint64_t at,
                              char text[static MOEC_CHART_LABEL])
{
    double value = moec_study_axis_value(groups, at);
    if (value == 0)
        (void)snprintf(text, MOEC_CHART_LABEL, "one scale a channel");
    else
        (void)snprintf(text, MOEC_CHART_LABEL, "groups of %.6g", value);
    return text;
}

/* How many other points may be as good as the best, by their intervals. */
static uint64_t count_alike(const struct moec_chart *chart, uint32_t best_series, uint64_t best)
{
    uint64_t n = 0;
    for (uint32_t q = 0; q < chart->n_series; q++)
        for (uint64_t i = 0; i < chart->series[q].n; i++)
            n += (q != best_series || i != best) && isfinite(chart->series[q].y[i]) &&
                 !moec_figure_loses_more(&chart->series[q], i, &chart->series[best_series], best);
    return n;
}

static void say_alike(struct moec_chart *chart, uint64_t n_alike)
{
    if (n_alike > 0)
        moec_figure_say(chart, "By the intervals %" PRIu64 " other%s may be as good.", n_alike,
                        n_alike > 1 ? "s" : "");
    else
        moec_figure_say(chart, "By the intervals every other loses more.");
}

/* One chart for each bitwidth: groups across, quantizers beside each other. */
enum moec_status moec_figure_quantizer(const struct moec_profile *profile, uint32_t index,
                                       struct moec_chart *chart, struct moec_error *err)
{
    struct moec_figure_losses losses;
    if (!moec_figure_find_losses(profile, "quantizer/loss", 3, quantizer_axes, &losses))
        return MOEC_OK;
    const struct moec_study *size = moec_figure_find(profile, "quantizer/bits_per_weight", 3, quantizer_axes);
    if (size != NULL && moec_study_count(size) == moec_study_count(losses.loss)) {
        if (index == 0)
            return draw_worth(size, &losses, chart, err);
        index--;
    }
    if (index >= losses.loss->axes[2].n)
        return MOEC_OK;
    const struct moec_study_axis *quantizers = &losses.loss->axes[0], *groups = &losses.loss->axes[1],
                                 *bits = &losses.loss->axes[2];
    char name[MOEC_CHART_LABEL], a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    double least = INFINITY, most = -INFINITY;
    uint32_t best_series = 0;
    uint64_t best = 0;
    char group[MOEC_CHART_LABEL];
    moec_figure_axis_text(bits, index, name);
    moec_figure_name(chart, "quantizer_%g", moec_study_axis_value(bits, index));
    moec_figure_title(chart, "Loss at %s by quantizer and group size", name);
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    moec_figure_loss_axis(&chart->y);
    (void)snprintf(chart->x.name, sizeof chart->x.name, "group");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "weights that share a scale");
    MOEC_TRY(moec_figure_categories(&chart->x, groups, err));
    for (uint64_t q = 0; q < quantizers->n && q < MOEC_CHART_MAX_SERIES; q++) {
        struct moec_chart_series *series = NULL;
        moec_figure_axis_text(quantizers, q, name);
        MOEC_TRY(moec_chart_add_series(chart, name, chart->x.n_category, &series, err));
        for (uint64_t g = 0; g < series->n; g++) {
            moec_figure_set_loss(series, g, (double)g, &losses, (q * groups->n + g) * bits->n + index);
            if (series->y[g] < least) {
                least = series->y[g];
                best_series = (uint32_t)q;
                best = g;
            }
            most = fmax(most, series->y[g]);
        }
    }
    moec_figure_spread_out(chart);
    if (isfinite(least))
        moec_figure_say(
            chart,
            "Best is %s with %s: %s %%; the worst choice loses %s %%. Smaller groups take bits for "
            "their scales.",
            chart->series[best_series].name, best_group(groups, best, group), moec_chart_number(a, least),
            moec_chart_number(b, most));
    if (isfinite(least))
        say_alike(chart, count_alike(chart, best_series, best));
    return MOEC_OK;
}

/* One chart for each bitwidth: quantizers across, experts alone beside all weights, in the profile's groups.
 */
enum moec_status moec_figure_quantizer_all(const struct moec_profile *profile, uint32_t index,
                                           struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"quantizer", "bits"};
    static const char *const names[2] = {"experts only", "all weights"};
    struct moec_figure_losses all, experts;
    if (!moec_figure_find_losses(profile, "quantizer_all/loss", 2, axes, &all) ||
        !moec_figure_find_losses(profile, "quantizer/loss", 3, quantizer_axes, &experts) ||
        experts.loss->axes[0].n != all.loss->axes[0].n || experts.loss->axes[2].n != all.loss->axes[1].n ||
        index >= all.loss->axes[1].n)
        return MOEC_OK;
    const struct moec_study_axis *groups = &experts.loss->axes[1];
    const uint64_t n_bits = all.loss->axes[1].n;
    char name[MOEC_CHART_LABEL], a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    struct moec_chart_series *series[2] = {NULL, NULL};
    uint64_t group = 0, best = 0;
    while (group < groups->n && moec_study_axis_value(groups, group) != profile->group)
        group++;
    if (group == groups->n)
        return MOEC_OK;
    moec_figure_axis_text(&all.loss->axes[1], index, name);
    moec_figure_name(chart, "quantizer_all_%g", moec_study_axis_value(&all.loss->axes[1], index));
    moec_figure_title(chart, "Loss at %s with experts quantised alone, and with all weights", name);
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, Fig. 6");
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    moec_figure_loss_axis(&chart->y);
    (void)snprintf(chart->x.name, sizeof chart->x.name, "quantizer");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "quantizer");
    MOEC_TRY(moec_figure_categories(&chart->x, &all.loss->axes[0], err));
    for (int s = 0; s < 2; s++)
        MOEC_TRY(moec_chart_add_series(chart, names[s], chart->x.n_category, &series[s], err));
    for (uint64_t q = 0; q < chart->x.n_category; q++) {
        moec_figure_set_loss(series[0], q, (double)q, &experts, (q * groups->n + group) * n_bits + index);
        moec_figure_set_loss(series[1], q, (double)q, &all, q * n_bits + index);
        best = series[1]->y[q] < series[1]->y[best] ? q : best;
    }
    moec_figure_spread_out(chart);
    if (!isfinite(series[1]->y[best]) || !isfinite(series[0]->y[best]))
        return MOEC_OK;
    moec_figure_say(chart,
                    "With all weights at these bits %s loses least: %s %%, and %s %% with experts alone.",
                    chart->x.categories[best], moec_chart_number(a, series[1]->y[best]),
                    moec_chart_number(b, series[0]->y[best]));
    uint64_t n_alike = 0;
    for (uint64_t q = 0; q < series[1]->n; q++)
        n_alike +=
            q != best && isfinite(series[1]->y[q]) && !moec_figure_loses_more(series[1], q, series[1], best);
    say_alike(chart, n_alike);
    return MOEC_OK;
}

/* ---- every projection of every expert ---- */

/* One heatmap for each projection, at the lowest bitwidth. */
enum moec_status moec_figure_projection_experts(const struct moec_profile *profile, uint32_t index,
                                                struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "expert", "projection", "bits"};
    const struct moec_study *study = moec_figure_find(profile, "projection/expert_loss", 4, axes);
    if (study == NULL || index >= study->axes[2].n || study->axes[0].n > UINT16_MAX ||
        study->axes[1].n > UINT16_MAX)
        return MOEC_OK;
    uint32_t n_layer = (uint32_t)study->axes[0].n, n_expert = (uint32_t)study->axes[1].n;
    char projection[MOEC_CHART_LABEL], bits[MOEC_CHART_LABEL], a[MOEC_CHART_NUMBER];
    uint64_t most = 0;
    double largest = -INFINITY;
    moec_figure_axis_text(&study->axes[2], index, projection);
    moec_figure_axis_text(&study->axes[3], 0, bits);
    moec_figure_name(chart, "projection_experts_%" PRIu32, index);
    moec_figure_title(chart, "Loss when the %s projection of one expert alone is %s", projection, bits);
    chart->kind = MOEC_CHART_CELLS;
    chart->x = (struct moec_chart_axis){.name = "expert", .label = "expert"};
    moec_figure_layer_axis(profile, &chart->y);
    (void)snprintf(chart->value_name, sizeof chart->value_name, "loss_percent");
    (void)snprintf(chart->value_label, sizeof chart->value_label, "loss against the original, %%");
    MOEC_TRY(moec_chart_set_cells(chart, n_layer, n_expert, err));
    (void)snprintf(chart->cells.words.missing, sizeof chart->cells.words.missing,
                   "never reached by the data, loss unknown");
    for (uint64_t i = 0; i < (uint64_t)n_layer * n_expert; i++) {
        chart->cells.values[i] =
            100 * fmin(study->values[(i * study->axes[2].n + index) * study->axes[3].n], 1e9);
        if (chart->cells.values[i] > largest) {
            largest = chart->cells.values[i];
            most = i;
        }
    }
    for (uint32_t s = 0; s < n_layer; s++)
        chart->cells.rows[s] = moec_study_axis_value(&study->axes[0], s);
    chart->cells.numbers.largest = largest;
    chart->cells.numbers.decimals = 2;
    if (isfinite(largest))
        moec_figure_say(chart,
                        "Highest is expert %" PRIu64
                        " of layer %g with %s %%. These losses have no interval: "
                        "look for what stands out in one projection only, and needs more bits there alone.",
                        most % n_expert, chart->cells.rows[most / n_expert], moec_chart_number(a, largest));
    return MOEC_OK;
}

/* ---- ranks ---- */

enum moec_status moec_figure_rank(const struct moec_profile *profile, uint32_t index,
                                  struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"action", "rank"};
    struct moec_figure_losses losses;
    char name[MOEC_CHART_LABEL], a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    uint64_t n_free = 0;
    bool has_intervals = true;
    if (index > 0 || !moec_figure_find_losses(profile, "rank/loss", 2, axes, &losses))
        return MOEC_OK;
    const struct moec_study_axis *actions = &losses.loss->axes[0], *ranks = &losses.loss->axes[1];
    moec_figure_name(chart, "rank_loss");
    moec_figure_title(chart, "Loss when the expert at one rank is dropped or replaced");
    (void)snprintf(chart->source, sizeof chart->source, "cache-conditional experts, Fig. 2");
    chart->kind = MOEC_CHART_LINES;
    moec_figure_loss_axis(&chart->y);
    (void)snprintf(chart->x.name, sizeof chart->x.name, "rank");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "rank of the expert by gate weight, 1 = first");
    MOEC_TRY(moec_chart_set_categories(&chart->x, ranks->n < 64 ? (uint32_t)ranks->n : 64, err));
    MOEC_TRY(moec_chart_number_categories(&chart->x, err));
    for (uint32_t r = 0; r < chart->x.n_category; r++) {
        chart->x.numbers[r] = moec_study_axis_value(ranks, r);
        (void)snprintf(chart->x.categories[r], MOEC_CHART_LABEL, "%g", moec_study_axis_value(ranks, r));
    }
    for (uint64_t s = 0; s < actions->n && s < MOEC_CHART_MAX_SERIES; s++) {
        struct moec_chart_series *series = NULL;
        moec_figure_axis_text(actions, s, name);
        MOEC_TRY(moec_chart_add_series(chart, name, chart->x.n_category, &series, err));
        uint64_t n_series_free = 0;
        for (uint64_t r = 0; r < series->n; r++) {
            moec_figure_set_loss(series, r, (double)r, &losses, s * ranks->n + r);
            n_series_free += series->has_interval && series->low[r] <= 0;
        }
        has_intervals = has_intervals && series->has_interval;
        n_free += n_series_free;
        if (series->n > 0)
            moec_figure_say(chart,
                            "%s: the first costs %s %%, the last %s %%; for %" PRIu64 " of %" PRIu64
                            " ranks the interval reaches zero.",
                            series->name, moec_chart_number(a, series->y[0]),
                            moec_chart_number(b, series->y[series->n - 1]), n_series_free, series->n);
    }
    moec_figure_spread_out(chart);
    if (has_intervals)
        moec_figure_say(chart, n_free > 0
                                   ? "Where it does, whichever expert is in memory can serve that rank."
                                   : "So no rank is free: each costs something.");
    return MOEC_OK;
}

/* ---- sparsity ---- */

enum moec_status moec_figure_sparsity(const struct moec_profile *profile, uint32_t index,
                                      struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"projection", "sparsity"};
    struct moec_figure_losses losses;
    char name[MOEC_CHART_LABEL];
    if (index > 0 || !moec_figure_find_losses(profile, "sparsity/loss", 2, axes, &losses))
        return MOEC_OK;
    const struct moec_study_axis *projections = &losses.loss->axes[0], *parts = &losses.loss->axes[1];
    moec_figure_name(chart, "sparsity");
    moec_figure_title(chart, "Loss when the smallest activations of experts become zero");
    (void)snprintf(chart->source, sizeof chart->source, "FloE, Fig. 2, 3(a)");
    chart->kind = MOEC_CHART_LINES;
    moec_figure_loss_axis(&chart->y);
    (void)snprintf(chart->x.name, sizeof chart->x.name, "sparsity_percent");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "activations that become zero, %%");
    for (uint64_t p = 0; p < projections->n && p < MOEC_CHART_MAX_SERIES; p++) {
        struct moec_chart_series *series = NULL;
        double kept = (double)NAN;
        moec_figure_axis_text(projections, p, name);
        MOEC_TRY(moec_chart_add_series(chart, name, parts->n, &series, err));
        series->is_band = true;
        for (uint64_t i = 0; i < parts->n; i++) {
            moec_figure_set_loss(series, i, 100 * moec_study_axis_value(parts, i), &losses, p * parts->n + i);
            kept = moec_figure_loses_at_most(series, i) <= 2 ? series->x[i] : kept;
        }
        if (isfinite(kept))
            moec_figure_say(chart, "%s: %g %% can be zero for a loss of at most 2 %% by its interval.",
                            series->name, kept);
        else
            moec_figure_say(chart, "%s: even the lowest sparsity is not sure to cost at most 2 %%.",
                            series->name);
    }
    moec_figure_spread_out(chart);
    moec_figure_say(chart, "Neurons that are zero need not be read from storage.");
    return MOEC_OK;
}

/* Median and range over the experts of a layer, for a few quantiles. */
enum moec_status moec_figure_up_quantiles(const struct moec_profile *profile, uint32_t index,
                                          struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "expert", "quantile"};
    static const double parts[] = {0.5, 0.8, 0.9, 0.99};
    const struct moec_study *study = moec_figure_find(profile, "neurons/up_quantiles", 3, axes);
    double *values = NULL;
    if (index > 0 || study == NULL)
        return MOEC_OK;
    const struct moec_study_axis *layers = &study->axes[0], *quantiles = &study->axes[2];
    uint64_t n_expert = study->axes[1].n, before = UINT64_MAX;
    char name[MOEC_CHART_LABEL];
    enum moec_status status = MOEC_OK;
    moec_figure_name(chart, "up_quantiles");
    moec_figure_title(chart, "Size of the outputs of up projections");
    (void)snprintf(chart->source, sizeof chart->source, "FloE, Fig. 2, eq. 6");
    chart->kind = MOEC_CHART_LINES;
    moec_figure_layer_axis(profile, &chart->x);
    (void)snprintf(chart->y.name, sizeof chart->y.name, "quantile_of_abs_up");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "quantile of |up · x|");
    chart->y.has_zero = true;
    MOEC_TRY_OUT(moec_alloc((void **)&values, 2 * n_expert, sizeof *values, "quantiles of experts", err));
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        struct moec_chart_series *series = NULL;
        uint64_t at = 0;
        for (uint64_t i = 1; i < quantiles->n; i++)
            if (fabs(moec_study_axis_value(quantiles, i) - parts[p]) <
                fabs(moec_study_axis_value(quantiles, at) - parts[p]))
                at = i;
        if (at == before)
            continue;
        before = at;
        (void)snprintf(name, sizeof name, "%.3g %% are smaller", 100 * moec_study_axis_value(quantiles, at));
        MOEC_TRY_OUT(moec_chart_add_series(chart, name, layers->n, &series, err));
        series->has_interval = series->is_band = true;
        for (uint64_t s = 0; s < layers->n; s++) {
            for (uint64_t e = 0; e < n_expert; e++)
                values[e] = study->values[(s * n_expert + e) * quantiles->n + at];
            series->x[s] = moec_study_axis_value(layers, s);
            series->y[s] = moec_quantile_of_finite(values, n_expert, 0.5, values + n_expert);
            series->low[s] = moec_quantile_of_finite(values, n_expert, 0, values + n_expert);
            series->high[s] = moec_quantile_of_finite(values, n_expert, 1, values + n_expert);
        }
    }
    moec_figure_say(
        chart,
        "Lines: median over the experts of a layer; bands: their range. Each line is the threshold under "
        "which that part of the neurons would be left out. Wide bands call for a threshold for each expert; "
        "lines far apart mean that few neurons carry most of the output.");
out:
    free(values);
    return status;
}
