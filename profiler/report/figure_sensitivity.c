/* Figures of what models, layers and experts lose. */
#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/profile/codes_words.h"
#include "profiler/profile/verdict.h"
#include "profiler/report/figure_parts.h"
#include "profiler/report/heatmap.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum moec_status moec_figure_sensitivity(const struct moec_profile *profile, uint32_t index,
                                         struct moec_chart *chart, struct moec_error *err)
{
    if (index >= profile->n_bits)
        return MOEC_OK;
    return moec_heatmap_chart(profile, profile->bits[index], chart, err);
}

/* ---- whole models ---- */

static enum moec_status loss_of(const struct moec_profile *profile, const double *reference,
                                const double *nll, uint32_t n_window, struct moec_loss *loss,
                                struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
    windows.n_window = n_window;
    MOEC_TRY(
        moec_loss_measure(&windows, &(struct moec_paired_nll){reference, nll, NULL}, &options, loss, err));
    loss->loss = fmin(loss->loss, MOEC_HEATMAP_MOST);
    loss->low = fmin(loss->low, MOEC_HEATMAP_MOST);
    loss->high = fmin(loss->high, MOEC_HEATMAP_MOST);
    return MOEC_OK;
}

/* The lowest uniform bitwidth that keeps a target. */
static void say_targets(struct moec_chart *chart, const struct moec_profile *profile)
{
    static const double targets[] = {1, 2, 5};
    const struct moec_chart_series *series = &chart->series[0];
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        uint64_t best = 0;
        while (best < series->n && !(series->high[best] <= targets[t]))
            best++;
        if (best < series->n)
            moec_figure_say(chart, "A loss of at most %g %% needs %s in all experts.", targets[t],
                            chart->x.categories[best]);
        else
            moec_figure_say(chart, "No bitwidth that was measured is sure to lose at most %g %%.",
                            targets[t]);
    }
    moec_figure_say(chart, "Intervals: one-sided 95 %% ends by Student's t over %" PRIu32 " windows.",
                    profile->n_window);
}

enum moec_status moec_figure_loss_by_bits(const struct moec_profile *profile, uint32_t index,
                                          struct moec_chart *chart, struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    char bits[16], codes[MOEC_CODES_WORDS];
    if (index > 0 || profile->n_uniform == 0)
        return MOEC_OK;
    moec_figure_name(chart, "loss_by_bits");
    moec_figure_title(chart, "Loss of the model when all experts have one bitwidth, %s",
                      moec_codes_words(profile, 0, codes));
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, Fig. 6");
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    moec_figure_loss_axis(&chart->y);
    (void)snprintf(chart->x.name, sizeof chart->x.name, "bits");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "bitwidth of all experts");
    MOEC_TRY(moec_chart_set_categories(&chart->x, profile->n_uniform, err));
    MOEC_TRY(moec_chart_number_categories(&chart->x, err));
    MOEC_TRY(moec_chart_add_series(chart, "", profile->n_uniform, &series, err));
    series->has_interval = true;
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        struct moec_loss loss;
        MOEC_TRY(
            loss_of(profile, profile->reference.nll, profile->uniform[u].nll, profile->n_window, &loss, err));
        moec_heatmap_bits_name(profile->uniform_bits[u], bits);
        (void)snprintf(chart->x.categories[u], MOEC_CHART_LABEL, "%s", bits);
        chart->x.numbers[u] = profile->uniform_bits[u];
        series->x[u] = u;
        series->y[u] = 100 * loss.loss;
        series->low[u] = 100 * loss.low;
        series->high[u] = 100 * loss.high;
    }
    say_targets(chart, profile);
    moec_figure_say(chart, "Compile uses another quantization by default: the verdict has both.");
    moec_figure_spread_out(chart);
    return MOEC_OK;
}

/* ---- sorted sensitivities ---- */

/* What an expert adds to the baseline's loss. */
struct extra {
    double loss, low, high;
};

static int compare_extras(const void *a, const void *b)
{
    const struct extra *x = a, *y = b;
    return (x->loss < y->loss) - (x->loss > y->loss);
}

static enum moec_status measure_extras(const struct moec_profile *profile, uint32_t b, struct extra *extras,
                                       uint64_t *n, struct moec_error *err)
{
    *n = 0;
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++) {
            struct moec_loss loss;
            if (!moec_profile_expert_reached(profile, s, e))
                continue;
            MOEC_TRY(loss_of(profile, profile->baseline.nll,
                             moec_profile_expert_row(profile, profile->expert_nll, s, e, b),
                             profile->n_sensitivity_window, &loss, err));
            extras[(*n)++] = (struct extra){100 * loss.loss, 100 * loss.low, 100 * loss.high};
        }
    qsort(extras, *n, sizeof *extras, compare_extras);
    return MOEC_OK;
}

/* Spread of the sensitivities beside the width of their intervals. */
static enum moec_status say_spread(struct moec_chart *chart, const struct extra *extras, uint64_t n,
                                   struct moec_error *err)
{
    double *widths = NULL;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER], c[MOEC_CHART_NUMBER];
    uint64_t n_worse = 0, n_better = 0;
    if (n == 0) {
        moec_figure_say(chart, "The data reached no expert: there is nothing to order.");
        return MOEC_OK;
    }
    MOEC_TRY(moec_alloc((void **)&widths, 2 * n, sizeof *widths, "widths of intervals", err));
    for (uint64_t i = 0; i < n; i++) {
        widths[i] = (extras[i].high - extras[i].low) / 2;
        n_worse += extras[i].low > 0;
        n_better += extras[i].high < 0;
    }
    double noise = moec_quantile_of_finite(widths, n, 0.5, widths + n);
    double spread = extras[(n - 1) / 20].loss - extras[(n - 1) - (n - 1) / 20].loss;
    free(widths);
    moec_figure_say(
        chart,
        "Experts from the most to the least sensitive, each with its interval. Nine tenths of the "
        "experts lie within %s percentage points; half the width of an interval is %s at the median, so "
        "that the spread is %s times the noise.",
        moec_chart_number(a, spread), moec_chart_number(b, noise),
        noise > 0 ? moec_chart_number(c, spread / noise) : "many");
    moec_figure_say(chart,
                    "Of %" PRIu64 " experts %" PRIu64 " certainly lose something and %" PRIu64
                    " certainly gain (interval above or below zero).",
                    n, n_worse, n_better);
    moec_figure_say(chart, spread > 4 * noise
                               ? "The order says which experts to keep precise."
                               : "Most of the order is noise: it takes more samples to distinguish experts.");
    return MOEC_OK;
}

static enum moec_status fill_sorted(const struct moec_profile *profile, uint32_t b, struct extra *extras,
                                    struct moec_chart *chart, struct moec_error *err)
{
    uint64_t n = 0;
    struct moec_chart_series *series = NULL;
    bool is_estimated = profile->sensitivity == MOEC_SENSITIVITY_FAST;
    char one[16], others[16], codes[MOEC_CODES_WORDS];
    moec_heatmap_bits_name(profile->bits[b], one);
    moec_heatmap_bits_name(profile->baseline_bits, others);
    MOEC_TRY(measure_extras(profile, b, extras, &n, err));
    moec_figure_name(chart, "sorted_int%" PRIu32, profile->bits[b]);
    moec_figure_title(chart, "What an expert at %s adds to the loss of the %s baseline, in order, %s", one,
                      others, moec_codes_words(profile, profile->bits[b], codes));
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE III-B");
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "place");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "expert, by falling sensitivity");
    chart->x.is_whole = true;
    (void)snprintf(chart->y.name, sizeof chart->y.name, "extra_loss_percent");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "loss added to the baseline, %%");
    MOEC_TRY(moec_chart_add_series(chart, is_estimated ? "expert, estimated" : "expert and its interval", n,
                                   &series, err));
    series->has_interval = series->is_band = !is_estimated;
    for (uint64_t i = 0; i < n; i++) {
        series->x[i] = (double)i + 1;
        series->y[i] = extras[i].loss;
        series->low[i] = extras[i].low;
        series->high[i] = extras[i].high;
    }
    moec_chart_add_rule(chart, 0, "the baseline");
    if (!is_estimated)
        return say_spread(chart, extras, n, err);
    moec_figure_say(
        chart,
        "Experts from the most to the least sensitive, as estimated from local output errors: estimates "
        "have no interval. --sensitivity exact measures them.");
    return MOEC_OK;
}

enum moec_status moec_figure_sorted(const struct moec_profile *profile, uint32_t index,
                                    struct moec_chart *chart, struct moec_error *err)
{
    struct extra *extras = NULL;
    if (index >= profile->n_bits)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&extras, (uint64_t)profile->n_moe_layer * profile->n_expert, sizeof *extras,
                        "sorted sensitivities", err));
    enum moec_status status = fill_sorted(profile, index, extras, chart, err);
    free(extras);
    return status;
}

/* ---- tokens ---- */

enum moec_status moec_figure_tokens(const struct moec_profile *profile, uint32_t index,
                                    struct moec_chart *chart, struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    uint64_t n = (uint64_t)profile->n_moe_layer * profile->n_expert, n_none = 0, n_few = 0;
    double *scratch = NULL;
    char text[MOEC_CHART_NUMBER];
    if (index > 0)
        return MOEC_OK;
    moec_figure_name(chart, "tokens");
    moec_figure_title(chart, "Tokens that chose each expert, in order");
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "place");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "expert, by falling number of tokens");
    chart->x.is_whole = true;
    (void)snprintf(chart->y.name, sizeof chart->y.name, "tokens");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "tokens");
    MOEC_TRY(moec_chart_add_series(chart, "", n, &series, err));
    MOEC_TRY(moec_alloc((void **)&scratch, n, sizeof *scratch, "tokens of experts", err));
    for (uint64_t i = 0; i < n; i++) {
        series->y[i] = (double)profile->activations[i];
        n_none += profile->activations[i] == 0;
        n_few += profile->activations[i] > 0 && profile->activations[i] < 100;
    }
    double median = moec_quantile_of_finite(series->y, n, 0.5, scratch);
    for (uint64_t i = 0; i < n; i++) {
        series->x[i] = (double)i + 1;
        series->y[i] = scratch[n - 1 - i];
    }
    chart->y.is_log = series->y[n - 1] > 0 && series->y[0] > 30 * series->y[n - 1];
    chart->y.has_zero = true;
    free(scratch);
    moec_figure_say(chart, "Half of the experts saw at least %s tokens.", moec_chart_number(text, median));
    if (n_none > 0)
        moec_figure_say(chart, "%" PRIu64 " saw no tokens: nothing is known about them.", n_none);
    if (n_few > 0)
        moec_figure_say(chart,
                        "%" PRIu64
                        " saw fewer than 100: what they lose was measured on too little data to be trusted.",
                        n_few);
    if (n_none + n_few == 0)
        moec_figure_say(chart, "Every expert saw at least 100 tokens.");
    return MOEC_OK;
}

/* ---- studies ---- */

/* The costliest layer, and whether its interval sets it apart. */
static void say_costliest(struct moec_chart *chart, const struct moec_chart_series *series, uint64_t most,
                          const char *layer, double sum)
{
    uint64_t n_alike = 0;
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    for (uint64_t s = 0; s < series->n; s++)
        n_alike += s != most && isfinite(series->y[s]) && !moec_figure_loses_more(series, most, series, s);
    moec_figure_say(chart,
                    "At %s layer %s costs most, %s %%, which is %s %% of what all layers lose one by one.",
                    series->name, layer, moec_chart_number(a, series->y[most]),
                    moec_chart_number(b, 100 * series->y[most] / sum));
    if (!series->has_interval)
        moec_figure_say(chart, "There are no intervals: the order of layers may be noise.");
    else if (n_alike == 0)
        moec_figure_say(chart, "By the intervals no other layer comes near: more bits there are well spent.");
    else
        moec_figure_say(chart, "By the intervals %" PRIu64 " of the %" PRIu64 " others may cost as much.",
                        n_alike, series->n - 1);
}

enum moec_status moec_figure_layer_loss(const struct moec_profile *profile, uint32_t index,
                                        struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "bits"};
    struct moec_figure_losses losses;
    if (index > 0 || !moec_figure_find_losses(profile, "layer/loss", 2, axes, &losses))
        return MOEC_OK;
    const struct moec_study_axis *layers = &losses.loss->axes[0], *bits = &losses.loss->axes[1];
    char name[MOEC_CHART_LABEL], worst[MOEC_CHART_LABEL], codes[MOEC_CODES_WORDS];
    moec_figure_name(chart, "layer_loss");
    moec_figure_title(chart, "Loss when the experts of one layer alone are quantised, %s",
                      moec_codes_words(profile, 0, codes));
    chart->kind = MOEC_CHART_LINES;
    moec_figure_layer_axis(profile, &chart->x);
    moec_figure_loss_axis(&chart->y);
    for (uint64_t i = 0; i < bits->n && i < MOEC_CHART_MAX_SERIES; i++) {
        struct moec_chart_series *series = NULL;
        uint64_t most = 0;
        double sum = 0;
        moec_figure_axis_text(bits, i, name);
        MOEC_TRY(moec_chart_add_series(chart, name, layers->n, &series, err));
        series->is_band = true;
        for (uint64_t s = 0; s < layers->n; s++) {
            moec_figure_set_loss(series, s, moec_study_axis_value(layers, s), &losses, s * bits->n + i);
            most = series->y[s] > series->y[most] ? s : most;
            sum += isfinite(series->y[s]) ? fmax(series->y[s], 0) : 0;
        }
        if (i > 0 || !(sum > 0))
            continue;
        moec_figure_axis_text(layers, most, worst);
        say_costliest(chart, series, most, worst, sum);
    }
    moec_figure_spread_out(chart);
    return MOEC_OK;
}

enum moec_status moec_figure_local_error(const struct moec_profile *profile, uint32_t index,
                                         struct moec_chart *chart, struct moec_error *err)
{
    static const char *const axes[] = {"moe_layer", "expert", "bits"};
    const struct moec_study *study = moec_figure_find(profile, "fast/local_error", 3, axes);
    if (study == NULL || index >= study->axes[2].n || study->axes[0].n > UINT16_MAX ||
        study->axes[1].n > UINT16_MAX)
        return MOEC_OK;
    char bits[MOEC_CHART_LABEL], text[MOEC_CHART_NUMBER];
    uint32_t n_layer = (uint32_t)study->axes[0].n, n_expert = (uint32_t)study->axes[1].n;
    uint64_t most = 0;
    double largest = -INFINITY;
    moec_figure_axis_text(&study->axes[2], index, bits);
    moec_figure_name(chart, "local_error_%" PRIu32, index);
    moec_figure_title(chart, "Output error of every expert at %s", bits);
    chart->kind = MOEC_CHART_CELLS;
    chart->x = (struct moec_chart_axis){.name = "expert", .label = "expert"};
    moec_figure_layer_axis(profile, &chart->y);
    (void)snprintf(chart->value_name, sizeof chart->value_name, "error_percent");
    (void)snprintf(chart->value_label, sizeof chart->value_label, "squared error of the output, %%");
    MOEC_TRY(moec_chart_set_cells(chart, n_layer, n_expert, err));
    (void)snprintf(chart->cells.words.missing, sizeof chart->cells.words.missing,
                   "never reached by the data");
    for (uint64_t i = 0; i < (uint64_t)n_layer * n_expert; i++) {
        chart->cells.values[i] = 100 * study->values[i * study->axes[2].n + index];
        if (chart->cells.values[i] > largest) {
            largest = chart->cells.values[i];
            most = i;
        }
    }
    for (uint32_t s = 0; s < n_layer; s++)
        chart->cells.rows[s] = moec_study_axis_value(&study->axes[0], s);
    chart->cells.numbers.largest = largest;
    chart->cells.numbers.decimals = 1;
    if (isfinite(largest))
        moec_figure_say(
            chart,
            "Squared error of an expert's output on the tokens that it receives, relative to the output: "
            "the largest is %s %%, of expert %" PRIu64 " in layer %g.",
            moec_chart_number(text, largest), most % n_expert, chart->cells.rows[most / n_expert]);
    moec_figure_say(
        chart,
        "This error says how well an expert can be stored, not yet how much the model needs the expert.");
    return MOEC_OK;
}

/* ---- mixed assignments ---- */

static void say_saving(struct moec_chart *chart, const struct moec_verdict_target *target)
{
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (!isfinite(target->saving))
        return;
    moec_figure_say(chart,
                    "At a loss of %g %% mixed bitwidths take %s %% %s than the best uniform one (%" PRIu32
                    " bits); they lose %s %%, %s.",
                    100 * target->target, moec_chart_number(a, 100 * fabs(target->saving)),
                    target->saving >= 0 ? "less" : "more", target->uniform_bits,
                    moec_chart_number(b, 100 * target->loss), target->is_measured ? "measured" : "predicted");
}

enum moec_status moec_figure_mixed(const struct moec_profile *profile, uint32_t index,
                                   struct moec_chart *chart, struct moec_error *err)
{
    struct moec_verdict verdict;
    struct moec_chart_series *mixed = NULL, *uniform = NULL, *single = NULL;
    char codes[MOEC_CODES_WORDS];
    if (index > 0)
        return MOEC_OK;
    MOEC_TRY(moec_verdict_make(profile, &verdict, err));
    if (!verdict.has_mixed)
        return MOEC_OK;
    moec_figure_name(chart, "mixed");
    moec_figure_title(chart, "Size of all experts: mixed bitwidths against the best uniform one, %s",
                      moec_codes_words(profile, 0, codes));
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, Fig. 17");
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "allowed_loss_percent");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "allowed loss");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "megabytes");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "experts, MB");
    MOEC_TRY(moec_chart_set_categories(&chart->x, MOEC_VERDICT_TARGETS, err));
    MOEC_TRY(moec_chart_number_categories(&chart->x, err));
    MOEC_TRY(moec_chart_add_series(chart, "mixed", MOEC_VERDICT_TARGETS, &mixed, err));
    MOEC_TRY(moec_chart_add_series(chart, "best uniform", MOEC_VERDICT_TARGETS, &uniform, err));
    if (verdict.has_codes)
        MOEC_TRY(moec_chart_add_series(chart, "uniform, compile's quantization", MOEC_VERDICT_TARGETS,
                                       &single, err));
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        const struct moec_verdict_target *target = &verdict.targets[t];
        if (single != NULL) {
            single->x[t] = t;
            single->y[t] =
                verdict.singles[t].bits > 0 ? (double)verdict.singles[t].n_bytes / 1e6 : (double)NAN;
        }
        (void)snprintf(chart->x.categories[t], MOEC_CHART_LABEL, "%.3g\xc2\xa0%%", 100 * target->target);
        chart->x.numbers[t] = 100 * target->target;
        mixed->x[t] = uniform->x[t] = t;
        mixed->y[t] = target->mixed_bytes > 0 ? (double)target->mixed_bytes / 1e6 : (double)NAN;
        uniform->y[t] = target->uniform_bytes > 0 ? (double)target->uniform_bytes / 1e6 : (double)NAN;
        say_saving(chart, target);
    }
    moec_figure_say(
        chart, "With this quantization, mixing pays where its bar is clearly lower. By default, compile uses "
               "another quantization, searches further and promises a loss.");
    return MOEC_OK;
}
