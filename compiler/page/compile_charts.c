/* Points of the curve are sorted by size, series and loss, so equal compiles draw equal pages. Each series
 * has a place for every row, empty where the point is another's. Sentences below a figure come from the rows
 * that it shows, never from other sums. */
#include "compiler/page/compile_page.h"
#include "formats/base/memory.h"
#include "profiler/report/figure_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NEAR_TARGETS 3.0 /* the close view ends at so many times the target */
#define NEAR_SIZES   1.5 /* and at so many times the size of the plan chosen */
#define MEGABYTE     1e6

/* ---- size against loss ---- */

enum curve_series {
    CURVE_SEARCH,
    CURVE_UNIFORM,
    CURVE_ALIKE,
    CURVE_SELECT,
    CURVE_CERTIFICATE,
    CURVE_CHOSEN,
    CURVE_COUNT
};

struct curve_row {
    enum curve_series series;
    uint64_t n_bytes;
    double loss, low, high;
};

struct curve {
    size_t n;
    struct curve_row *rows; /* (n), owned; by size */
};

static int by_size(const void *a, const void *b)
{
    const struct curve_row *first = a, *second = b;
    if (first->n_bytes != second->n_bytes)
        return first->n_bytes < second->n_bytes ? -1 : 1;
    if (first->series != second->series)
        return first->series < second->series ? -1 : 1;
    return (first->loss > second->loss) - (first->loss < second->loss);
}

static enum curve_series series_of(const struct moec_trace_point *point)
{
    return point->part == MOEC_TRACE_SELECT        ? CURVE_SELECT
           : point->part == MOEC_TRACE_CERTIFICATE ? CURVE_CERTIFICATE
           : point->uniform_bits > 0               ? CURVE_UNIFORM
           : point->is_alike                       ? CURVE_ALIKE
                                                   : CURVE_SEARCH;
}

/* What a view shows. */
struct view {
    double most_loss, most_bytes;
};

static void push_row(struct curve *curve, enum curve_series series, const struct moec_trace_point *point,
                     struct view view)
{
    if (point->loss <= view.most_loss && (double)point->n_bytes <= view.most_bytes)
        curve->rows[curve->n++] = (struct curve_row){.series = series,
                                                     .n_bytes = point->n_bytes,
                                                     .loss = 100 * point->loss,
                                                     .low = 100 * point->low,
                                                     .high = 100 * point->high};
}

static enum moec_status make_curve(const struct moec_search_trace *trace, struct view view,
                                   struct curve *curve, struct moec_error *err)
{
    void *rows = NULL;
    MOEC_TRY(moec_alloc(&rows, trace->n + 1, sizeof *curve->rows, "points of a report", err));
    curve->rows = rows;
    for (size_t i = 0; i < trace->n; i++)
        push_row(curve, series_of(&trace->points[i]), &trace->points[i], view);
    if (trace->has_chosen)
        push_row(curve, CURVE_CHOSEN, &trace->chosen, view);
    qsort(curve->rows, curve->n, sizeof *curve->rows, by_size);
    return MOEC_OK;
}

/* Every series has a place for every row, so that the table of the figure goes by size. */
static enum moec_status draw_curve(const struct curve *curve, bool has_interval, struct moec_chart *chart,
                                   struct moec_error *err)
{
    static const char *const names[CURVE_COUNT] = {"tried by the search",
                                                   "one bitwidth for all, codes of the profile",
                                                   "one plan of projections for all",
                                                   "selection part",
                                                   "certificate part",
                                                   "the plan chosen"};
    for (enum curve_series s = 0; s < CURVE_COUNT; s++) {
        struct moec_chart_series *series = NULL;
        size_t n_own = 0;
        for (size_t i = 0; i < curve->n; i++)
            n_own += curve->rows[i].series == s;
        if (n_own == 0)
            continue;
        MOEC_TRY(moec_chart_add_series(chart, names[s], curve->n, &series, err));
        series->has_interval = has_interval;
        for (size_t i = 0; i < curve->n; i++) {
            const struct curve_row *row = &curve->rows[i];
            series->x[i] = (double)row->n_bytes / MEGABYTE;
            if (row->series != s)
                continue;
            series->y[i] = row->loss;
            series->low[i] = row->low;
            series->high[i] = row->high;
        }
    }
    return MOEC_OK;
}

static void say_uniform(const struct moec_compile_page *page, struct moec_chart *chart)
{
    const struct moec_search_trace *trace = &page->report->trace;
    const struct moec_trace_point *best = NULL;
    char codes[40] = "codes that differ by projection", name[40];
    for (size_t i = 0; i < trace->n; i++) {
        const struct moec_trace_point *point = &trace->points[i];
        if (point->part == MOEC_TRACE_SEARCH && point->is_alike &&
            point->high <= page->options->target.max_loss && (best == NULL || point->n_bytes < best->n_bytes))
            best = point;
    }
    if (best != NULL && moec_variant_is_uniform(best->alike))
        (void)snprintf(codes, sizeof codes, "%s",
                       moec_codec_name(page->report->codecs[best->alike.codecs[0]], name));
    if (best != NULL)
        moec_figure_say(
            chart,
            "Of the measured plans that treat all experts alike, the smallest within the target on the "
            "search part has %s and takes %.3f MB.",
            codes, (double)best->n_bytes / MEGABYTE);
    if (best != NULL && trace->has_chosen && trace->chosen.n_bytes == best->n_bytes)
        moec_figure_say(chart, "The plan chosen takes as much.");
    else if (best != NULL && trace->has_chosen)
        moec_figure_say(chart, "The plan chosen takes %.3f MB, %.1f %% %s.",
                        (double)trace->chosen.n_bytes / MEGABYTE,
                        100 * fabs(1 - (double)trace->chosen.n_bytes / (double)best->n_bytes),
                        trace->chosen.n_bytes < best->n_bytes ? "less" : "more");
    else if (!isnan(page->options->target.max_loss) && best == NULL)
        moec_figure_say(chart, "No measured plan that treats all experts alike is within the target.");
}

static void say_curve(const struct moec_compile_page *page, const struct curve *curve,
                      struct moec_chart *chart)
{
    size_t n_left_out = 0;
    for (size_t i = 0; i < curve->n; i++)
        n_left_out += chart->y.is_log && curve->rows[i].loss <= 0;
    moec_figure_say(chart, "Each point is a plan: further left is smaller, lower loses less. All losses are "
                           "against the original weights.");
    if (!isnan(page->options->target.max_loss))
        moec_figure_say(
            chart,
            "The line is the target: the upper end of the certificate's interval must not be above it.");
    say_uniform(page, chart);
    if (n_left_out > 0)
        moec_figure_say(chart,
                        "%zu of %zu points lose nothing or gain: a logarithmic scale cannot show them.",
                        n_left_out, curve->n);
}

/* The close view: a few times the target, or the loss of what was chosen. */
static struct view choose_view(const struct moec_compile_page *page, bool near)
{
    const struct moec_search_trace *trace = &page->report->trace;
    struct view view = {.most_loss = (double)INFINITY, .most_bytes = (double)INFINITY};
    if (near && !isnan(page->options->target.max_loss))
        view.most_loss = NEAR_TARGETS * page->options->target.max_loss;
    else if (near && trace->has_chosen)
        view.most_loss = NEAR_TARGETS * fmax(trace->chosen.high, 0);
    if (near && trace->has_chosen)
        view.most_bytes = NEAR_SIZES * (double)trace->chosen.n_bytes;
    return view;
}

enum moec_status moec_compile_chart_curve(const struct moec_compile_page *page, bool near,
                                          struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_compile_options *options = page->options;
    const struct moec_search_trace *trace = &page->report->trace;
    struct curve curve = {0};
    char label[MOEC_CHART_LABEL];
    enum moec_status status = make_curve(trace, choose_view(page, near), &curve, err);
    if (status != MOEC_OK || curve.n < (near ? 2 : 1) || (near && curve.n == trace->n + trace->has_chosen))
        goto out;
    moec_figure_name(chart, near ? "curve_near" : "curve");
    moec_figure_title(chart, near ? "Size against loss, near the target" : "Size against loss");
    chart->kind = MOEC_CHART_POINTS;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "bundle_mb");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "size of the bundle, MB");
    moec_figure_loss_axis(&chart->y);
    MOEC_TRY_OUT(draw_curve(&curve, options->target.confidence > 0, chart, err));
    if (!near)
        moec_figure_spread_out(chart);
    if (!isnan(options->target.max_loss)) {
        (void)snprintf(label, sizeof label, "target: %.3g %%", 100 * options->target.max_loss);
        moec_chart_add_rule(chart, 100 * options->target.max_loss, label);
    }
    if (options->target.max_bytes > 0)
        moec_chart_add_upright(chart, (double)options->target.max_bytes / MEGABYTE, "largest size");
    say_curve(page, &curve, chart);
out:
    free(curve.rows);
    return status;
}

/* ---- bytes ---- */

struct part {
    const char *name;
    uint64_t n_bytes;
};

static int by_bytes(const void *a, const void *b)
{
    const struct part *first = a, *second = b;
    if (first->n_bytes != second->n_bytes)
        return first->n_bytes > second->n_bytes ? -1 : 1;
    return strcmp(first->name, second->name);
}

enum moec_status moec_compile_chart_shares(const struct moec_compile_page *page, struct moec_chart *chart,
                                           struct moec_error *err)
{
    enum { MOST_PARTS = 32 };
    const struct moec_bundle_shares *shares = &page->report->shares;
    struct part parts[MOST_PARTS];
    struct moec_chart_series *series = NULL;
    uint32_t n = 0;
    for (size_t i = 0; i < shares->n; i++) {
        uint32_t at = 0;
        while (at < n && strcmp(parts[at].name, shares->items[i].part) != 0)
            at++;
        if (at == MOST_PARTS)
            continue;
        if (at == n)
            parts[n++] = (struct part){.name = shares->items[i].part};
        parts[at].n_bytes += shares->items[i].n_bytes;
    }
    if (n == 0)
        return MOEC_OK;
    qsort(parts, n, sizeof *parts, by_bytes);
    moec_figure_name(chart, "bytes");
    moec_figure_title(chart, "Where the bytes go");
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "part");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "part of the bundle");
    (void)snprintf(chart->y.name, sizeof chart->y.name, "mb");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "MB in the file");
    MOEC_TRY(moec_chart_set_categories(&chart->x, n, err));
    MOEC_TRY(moec_chart_add_series(chart, "", n, &series, err));
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(chart->x.categories[i], MOEC_CHART_LABEL, "%s", parts[i].name);
        series->x[i] = i;
        series->y[i] = (double)parts[i].n_bytes / MEGABYTE;
    }
    moec_figure_say(chart,
                    "The largest part is %s with %.1f %% of the file. Gate, up and down are the projections "
                    "of experts; padding fills up their records.",
                    parts[0].name, 100 * (double)parts[0].n_bytes / (double)page->report->n_bytes);
    return MOEC_OK;
}

/* ---- bits ---- */

static uint8_t codec_of(const struct moec_compile_page *page, size_t expert, int projection)
{
    return page->report->plan.experts[expert].codecs[projection];
}

/* What a weight takes in the record, with its share of scales and zeros. */
static double stored_bits(const struct moec_compile_page *page, size_t expert, int projection)
{
    const uint32_t n_embd = page->config->n_embd;
    const struct moec_codec codec = page->report->codecs[codec_of(page, expert, projection)];
    return 8.0 * (double)moec_codec_row_bytes(codec, n_embd) / n_embd;
}

/* Of one projection, or the mean of all that experts have. */
static double shown_bits(const struct moec_compile_page *page, size_t expert, int projection)
{
    const int first = page->config->mlp.plain ? MOEC_PROJECTION_UP : 0;
    double sum = 0;
    if (projection != MOEC_COMPILE_ALL_PROJECTIONS)
        return stored_bits(page, expert, projection);
    for (int p = first; p < MOEC_PROJECTION_COUNT; p++)
        sum += stored_bits(page, expert, p);
    return sum / (MOEC_PROJECTION_COUNT - first);
}

static bool any_differs(const struct moec_compile_page *page)
{
    for (size_t i = 0; i < moec_plan_count(&page->report->plan); i++)
        if (!moec_variant_is_uniform(page->report->plan.experts[i]))
            return true;
    return false;
}

/* How many of the projections shown have each codec. */
static void say_codecs(const struct moec_compile_page *page, int projection, struct moec_chart *chart)
{
    const int first = projection != MOEC_COMPILE_ALL_PROJECTIONS ? projection
                      : page->config->mlp.plain                  ? MOEC_PROJECTION_UP
                                                                 : 0;
    const int last = projection != MOEC_COMPILE_ALL_PROJECTIONS ? projection : MOEC_PROJECTION_COUNT - 1;
    uint64_t count[MOEC_CODEC_TABLE] = {0};
    for (size_t i = 0; i < moec_plan_count(&page->report->plan); i++)
        for (int p = first; p <= last; p++)
            count[codec_of(page, i, p)]++;
    for (uint32_t c = 0; c < MOEC_CODEC_TABLE; c++) {
        char text[40];
        if (count[c] > 0)
            moec_figure_say(chart, "%" PRIu64 " projections: %s.", count[c],
                            moec_codec_name(page->report->codecs[c], text));
    }
}

enum moec_status moec_compile_chart_bits(const struct moec_compile_page *page, int projection,
                                         struct moec_chart *chart, struct moec_error *err)
{
    static const char *const names[MOEC_PROJECTION_COUNT] = {"gate", "up", "down"};
    const struct moec_plan *plan = &page->report->plan;
    struct moec_chart_cells *cells = &chart->cells;
    const bool is_mean = projection == MOEC_COMPILE_ALL_PROJECTIONS;
    double least = INFINITY, most = 0, sum = 0;
    if (page->report->shares.n == 0 || (!is_mean && !any_differs(page)) ||
        (projection == MOEC_PROJECTION_GATE && page->config->mlp.plain))
        return MOEC_OK;
    chart->kind = MOEC_CHART_CELLS;
    moec_figure_name(chart, "bits%s%s", is_mean ? "" : "_", is_mean ? "" : names[projection]);
    if (is_mean)
        moec_figure_title(chart, "Bits of each expert");
    else
        moec_figure_title(chart, "Bits of the %s projection of each expert", names[projection]);
    chart->x = (struct moec_chart_axis){.name = "expert", .label = "expert", .is_whole = true};
    chart->y = (struct moec_chart_axis){.name = "layer", .label = "layer", .is_whole = true};
    (void)snprintf(chart->value_label, sizeof chart->value_label, "bits a weight%s",
                   is_mean ? ", mean of the projections" : "");
    (void)snprintf(chart->value_name, sizeof chart->value_name, "bits");
    MOEC_TRY(moec_chart_set_cells(chart, plan->n_layer, plan->n_expert, err));
    for (uint32_t s = 0; s < plan->n_layer; s++)
        cells->rows[s] = moec_config_moe_layer(page->config, s);
    for (size_t i = 0; i < moec_plan_count(plan); i++) {
        cells->values[i] = shown_bits(page, i, projection);
        least = fmin(least, cells->values[i]);
        most = fmax(most, cells->values[i]);
        sum += cells->values[i];
    }
    cells->colours.low = 2;
    cells->colours.high = fmax(most, 4);
    cells->numbers.largest = most;
    cells->colours.mark = (double)NAN;
    cells->numbers.decimals = 2;
    moec_figure_say(chart, "From %.2f to %.2f bits a weight with scales and zeros, %.2f on average.", least,
                    most, sum / (double)moec_plan_count(plan));
    say_codecs(page, projection, chart);
    return MOEC_OK;
}
