#include "experiments/decisions_charts.h"

#include "experiments/decisions_fronts.h"
#include "profiler/report/figure_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void set_axis(struct moec_chart_axis *axis, const char *name, const char *label)
{
    (void)snprintf(axis->name, sizeof axis->name, "%s", name);
    (void)snprintf(axis->label, sizeof axis->label, "%s", label);
}

static void set_point(struct moec_chart_series *series, uint64_t i, double x,
                      const struct decisions_point *point)
{
    series->x[i] = x;
    series->y[i] = 100 * point->loss;
    series->low[i] = 100 * point->low;
    series->high[i] = 100 * point->high;
}

/* ---- fronts ---- */

#define MOST_LOSS 0.1 /* beyond it nobody chooses, and what is chosen would lie on the axis */

static enum moec_status add_front(const struct decisions_sample *sample, enum decisions_method method,
                                  uint32_t n_slots, struct moec_chart *chart, struct moec_error *err)
{
    struct decisions_front front;
    struct moec_chart_series *series = NULL;
    decisions_front_make(&sample->routes, method, n_slots, DECISIONS_ANY_KEEP, &front);
    if (front.n < 2) /* the router's own choice alone */
        return MOEC_OK;
    MOEC_TRY(moec_chart_add_series(chart, decisions_methods[method], front.n, &series, err));
    series->has_interval = true;
    series->n = 0;
    for (uint32_t i = 0; i < front.n; i++)
        if (front.points[i]->loss <= MOST_LOSS)
            set_point(series, series->n++, 100 * decisions_miss_rate(front.points[i]), front.points[i]);
    return MOEC_OK;
}

enum moec_status decisions_chart_fronts(const struct decisions_sample *sample, uint32_t n_slots,
                                        struct moec_chart *chart, struct moec_error *err)
{
    const struct decisions_point *plain = decisions_plain(&sample->routes, n_slots);
    if (plain == NULL)
        return MOEC_OK;
    chart->kind = MOEC_CHART_LINES;
    moec_figure_name(chart, "%s_fronts_%u", sample->name, n_slots);
    moec_figure_title(chart, "Loss by misses, %u of %u experts of a layer in the cache", n_slots,
                      sample->n_expert);
    (void)snprintf(chart->source, sizeof chart->source, "Cache-conditional experts, Fig. %s",
                   n_slots == sample->n_expert / 2 ? "4 and 9" : "14");
    set_axis(&chart->x, "misses_percent", "experts that miss the cache, % of those chosen");
    set_axis(&chart->y, "loss_percent", "loss of perplexity, %");
    for (int m = DECISIONS_PRIOR; m < DECISIONS_N_METHOD; m++)
        MOEC_TRY(add_front(sample, (enum decisions_method)m, n_slots, chart, err));
    moec_chart_add_upright(chart, 100 * decisions_miss_rate(plain), "LRU");
    moec_chart_add_upright(chart, 100 * decisions_belady_rate(plain), "Belady");
    moec_figure_say(
        chart,
        "Each line joins the settings that no other one of the method beats, whatever number of best "
        "experts they keep; losses above %.0f %% are in the table alone. The router's own choice misses "
        "%.1f %% with LRU and %.1f %% by Belady's rule, which knows the future.",
        100 * MOST_LOSS, 100 * decisions_miss_rate(plain), 100 * decisions_belady_rate(plain));
    return MOEC_OK;
}

/* ---- sizes ---- */

#define MAX_SIZES 16

static uint32_t list_sizes(const struct decisions_sample *sample, uint32_t *sizes)
{
    uint32_t n = 0;
    for (uint32_t slots = 1; slots <= sample->n_expert && n < MAX_SIZES; slots++)
        if (decisions_plain(&sample->routes, slots) != NULL)
            sizes[n++] = slots;
    return n;
}

enum moec_status decisions_chart_sizes(const struct decisions_sample *sample, struct moec_chart *chart,
                                       struct moec_error *err)
{
    static const double limits[] = {0.01, 0.05, 0.1};
    struct moec_chart_series *lru = NULL, *belady = NULL;
    uint32_t sizes[MAX_SIZES];
    const uint32_t n = list_sizes(sample, sizes);
    if (n < 2)
        return MOEC_OK;
    chart->kind = MOEC_CHART_LINES;
    moec_figure_name(chart, "%s_sizes", sample->name);
    moec_figure_title(chart, "Misses by the size of the cache");
    (void)snprintf(chart->source, sizeof chart->source, "Cache-conditional experts, Fig. 10");
    set_axis(&chart->x, "slots", "experts of a layer that the cache holds");
    set_axis(&chart->y, "misses_percent", "experts that miss the cache, %");
    chart->x.is_whole = true;
    chart->y.has_zero = true;
    MOEC_TRY(moec_chart_add_series(chart, "LRU", n, &lru, err));
    for (uint32_t i = 0; i < n; i++) {
        lru->x[i] = sizes[i];
        lru->y[i] = 100 * decisions_miss_rate(decisions_plain(&sample->routes, sizes[i]));
    }
    MOEC_TRY(moec_chart_add_series(chart, "Belady", n, &belady, err));
    for (uint32_t i = 0; i < n; i++) {
        belady->x[i] = sizes[i];
        belady->y[i] = 100 * decisions_belady_rate(decisions_plain(&sample->routes, sizes[i]));
    }
    for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
        struct moec_chart_series *series = NULL;
        char name[MOEC_CHART_LABEL];
        (void)snprintf(name, sizeof name, "cache-prior, %.0f %% loss", 100 * limits[l]);
        MOEC_TRY(moec_chart_add_series(chart, name, n, &series, err));
        for (uint32_t i = 0; i < n; i++) {
            const struct decisions_point *best =
                decisions_fewest_misses(&sample->routes, DECISIONS_PRIOR, sizes[i], limits[l], false);
            series->x[i] = sizes[i];
            series->y[i] = best != NULL ? 100 * decisions_miss_rate(best) : NAN;
        }
    }
    moec_figure_say(chart,
                    "Of cache-prior the setting with the fewest misses among those that lose at most so "
                    "much of the perplexity.");
    return MOEC_OK;
}

/* ---- bytes ---- */

#define MOST_BYTES_LOSS 0.025 /* likewise, where everything else loses less than a percent */

enum kind { STILL, ROUTED, REPLACED, SKIPPED, FORESEEN, BOTH, N_KIND };
static const char *const kinds[N_KIND] = {
    "", "cache-prior", "hobbit, T2 = 1", "hobbit, T2 = T1", "fate", "cache-prior with hobbit"};

static enum kind kind_of(const struct decisions_point *point)
{
    if (point->precision == DECISIONS_ONE_PRECISION)
        return point->method == DECISIONS_TOP_K ? STILL : ROUTED;
    if (point->method != DECISIONS_TOP_K)
        return BOTH;
    if (point->precision == DECISIONS_FATE)
        return FORESEEN;
    return point->second_score == 1 ? REPLACED : point->second_score == point->first_score ? SKIPPED : STILL;
}

enum moec_status decisions_chart_bytes(const struct decisions_sample *sample,
                                       const struct decisions_pair *pair, uint32_t n_slots,
                                       struct moec_chart *chart, struct moec_error *err)
{
    char name[64];
    (void)snprintf(name, sizeof name, "none-%u", n_slots);
    const struct decisions_point *none = decisions_find(&pair->group, name);
    (void)snprintf(name, sizeof name, "equal-%u", n_slots);
    const struct decisions_point *equal = decisions_find(&pair->group, name);
    if (none == NULL || equal == NULL)
        return MOEC_OK;
    chart->kind = MOEC_CHART_POINTS;
    moec_figure_name(chart, "%s_bytes_%u_%u_%u", sample->name, pair->bits, pair->low_bits, n_slots);
    moec_figure_title(chart, "Loss by bytes: INT%u with low copies of INT%u, %u of %u experts cached",
                      pair->bits, pair->low_bits, n_slots, sample->n_expert);
    (void)snprintf(chart->source, sizeof chart->source, "HOBBIT, section 3.2; Fate, its low-end machine");
    set_axis(&chart->x, "kib_per_token", "KiB of experts read a token");
    set_axis(&chart->y, "loss_percent", "loss of perplexity against the same bundle, %");
    chart->y.has_zero = true;
    for (int kind = ROUTED; kind < N_KIND; kind++) {
        struct moec_chart_series *series = NULL;
        uint32_t n = 0;
        for (uint32_t i = 0; i < pair->group.n; i++) {
            const struct decisions_point *point = &pair->group.points[i];
            if (point->n_slots != n_slots || point->precision == DECISIONS_ALWAYS ||
                kind_of(point) != (enum kind)kind || point->loss > MOST_BYTES_LOSS)
                continue;
            if (series == NULL)
                MOEC_TRY(moec_chart_add_series(chart, kinds[kind], pair->group.n, &series, err));
            set_point(series, n++, point->token_bytes / 1024, point);
        }
        if (series == NULL)
            continue;
        series->n = n;
        series->has_interval = true;
    }
    struct moec_chart_series *still = NULL;
    MOEC_TRY(moec_chart_add_series(chart, "no decisions", 1, &still, err));
    still->x[0] = none->token_bytes / 1024;
    still->y[0] = 0;
    moec_chart_add_upright(chart, equal->token_bytes / 1024, "no decisions, equal memory");
    moec_figure_say(
        chart,
        "Low copies have slots of their own; 'equal memory' gives theirs to the experts: %u slots. "
        "Losses above %.1f %% are in the table alone.",
        equal->n_slots, 100 * MOST_BYTES_LOSS);
    return MOEC_OK;
}

/* ---- replaced ---- */

enum moec_status decisions_chart_replaced(const struct decisions_sample *sample,
                                          const struct decisions_pair *pair, struct moec_chart *chart,
                                          struct moec_error *err)
{
    static const char *const names[] = {"in low precision", "skipped"};
    for (int k = 0; k < 2; k++) {
        struct moec_chart_series *series = NULL;
        uint32_t n = 0;
        for (uint32_t i = 0; i < pair->group.n; i++) {
            const struct decisions_point *point = &pair->group.points[i];
            const double second = k == 0 ? 1 : point->first_score;
            if (point->precision != DECISIONS_ALWAYS || point->second_score != second ||
                point->loss > MOST_LOSS)
                continue;
            if (series == NULL)
                MOEC_TRY(moec_chart_add_series(chart, names[k], pair->group.n, &series, err));
            set_point(series, n++, 100 * (k == 0 ? point->n_low : point->n_skipped) / point->n_chosen, point);
        }
        if (series == NULL)
            return MOEC_OK;
        series->n = n;
        series->has_interval = true;
    }
    chart->kind = MOEC_CHART_POINTS;
    moec_figure_name(chart, "%s_replaced_%u_%u", sample->name, pair->bits, pair->low_bits);
    moec_figure_title(chart, "Loss by the share of experts in INT%u instead of INT%u, or skipped",
                      pair->low_bits, pair->bits);
    (void)snprintf(chart->source, sizeof chart->source, "HOBBIT, Fig. 3(b)");
    set_axis(&chart->x, "share_percent", "experts that are replaced, % of those chosen");
    set_axis(&chart->y, "loss_percent", "loss of perplexity, %");
    chart->y.has_zero = true;
    moec_figure_say(chart,
                    "The least important experts of each token by HOBBIT's score (eq. 2), whatever the cache "
                    "holds. Losses above %.0f %% are in the table alone.",
                    100 * MOST_LOSS);
    return MOEC_OK;
}
