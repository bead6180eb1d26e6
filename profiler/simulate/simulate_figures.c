/* One chart for each predictor, with a line for each policy. With several predictors there is one more,
 * with a line for each of them under the policy that is best with the first. All of these are made of hits,
 * and again of times where the sweep has them. */
#include "profiler/simulate/simulate_figures.h"

#include "formats/base/memory.h"
#include "profiler/report/figure_parts.h"
#include "profiler/simulate/simulate_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a chart's lines are. */
enum lines { OF_POLICIES, OF_PREDICTORS };

struct wanted {
    const struct moec_simulation *simulation;
    enum lines lines;
    uint32_t fixed; /* the predictor, or the policy */
    bool of_times;
};

static double percent_of(const struct moec_simulation *simulation, uint64_t bytes)
{
    return 100 * (double)bytes / (double)simulation->sweep.model->slots.all_bytes;
}

static const struct moec_simulated_result *result_at(const struct wanted *wanted, uint32_t line,
                                                     uint32_t budget)
{
    return wanted->lines == OF_POLICIES ? moec_simulation_at(wanted->simulation, wanted->fixed, line, budget)
                                        : moec_simulation_at(wanted->simulation, line, wanted->fixed, budget);
}

static enum moec_status add_line(const struct wanted *wanted, uint32_t line, const char *name,
                                 struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_simulate_sweep *sweep = &wanted->simulation->sweep;
    struct moec_chart_series *series = NULL;
    MOEC_TRY(moec_chart_add_series(chart, name, sweep->budgets.n, &series, err));
    for (uint32_t b = 0; b < sweep->budgets.n; b++) {
        const struct moec_simulated_result *result = result_at(wanted, line, b);
        series->x[b] = percent_of(wanted->simulation, sweep->budgets.bytes[b]);
        series->y[b] = wanted->of_times ? result->tpot_ns_median / 1e6
                                        : 100 * moec_simulated_hit_rate(&result->decode, true);
    }
    return MOEC_OK;
}

static enum moec_status add_bounds(const struct moec_simulation *simulation, struct moec_chart *chart,
                                   struct moec_error *err)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    struct moec_chart_series *farthest = NULL, *bound = NULL;
    MOEC_TRY(moec_chart_add_series(
        chart, sweep->model->slots.is_equal ? "Belady's bound" : "farthest next use first", sweep->budgets.n,
        &farthest, err));
    if (!sweep->model->slots.is_equal)
        MOEC_TRY(moec_chart_add_series(chart, "bound by space times time", sweep->budgets.n, &bound, err));
    for (uint32_t b = 0; b < sweep->budgets.n; b++) {
        const struct moec_belady *belady = &simulation->belady[b];
        farthest->x[b] = percent_of(simulation, sweep->budgets.bytes[b]);
        farthest->y[b] = 100 * (double)belady->hits / (double)belady->asked;
        if (bound == NULL)
            continue;
        bound->x[b] = farthest->x[b];
        bound->y[b] = 100 * belady->most_hits / (double)belady->asked;
    }
    return MOEC_OK;
}

static void set_axes(const struct wanted *wanted, struct moec_chart *chart)
{
    const struct moec_simulation *simulation = wanted->simulation;
    char label[MOEC_CHART_LABEL];
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->x.name, sizeof chart->x.name, "buffer_percent");
    (void)snprintf(chart->x.label, sizeof chart->x.label, "expert buffer, %% of the bytes of all experts");
    chart->x.has_zero = true;
    if (wanted->of_times) {
        (void)snprintf(chart->y.name, sizeof chart->y.name, "tpot_ms");
        (void)snprintf(chart->y.label, sizeof chart->y.label, "time of a decoded token, ms (median)");
        chart->y.has_zero = true;
    } else {
        (void)snprintf(chart->y.name, sizeof chart->y.name, "hit_percent");
        (void)snprintf(chart->y.label, sizeof chart->y.label, "hits and late, %% of experts asked for");
        chart->y.high = 100;
    }
    const double set = percent_of(simulation, simulation->sweep.model->slots.token_bytes);
    (void)snprintf(label, sizeof label, "working set of a token: %.3g %%", set);
    moec_chart_add_upright(chart, set, label);
}

/* What to conclude, the working set and the cliff first. */
static void add_caption(const struct wanted *wanted, struct moec_chart *chart)
{
    const struct moec_simulation *simulation = wanted->simulation;
    struct moec_paragraphs text = {0};
    moec_simulation_describe(simulation, &text);
    for (uint32_t i = 0; i < text.n && i < 4; i++)
        moec_figure_say(chart, "%s", text.items[i]);
}

static enum moec_status make_chart(const struct wanted *wanted, const char *source, struct moec_chart *chart,
                                   struct moec_error *err)
{
    const struct moec_simulate_sweep *sweep = &wanted->simulation->sweep;
    const bool by_policy = wanted->lines == OF_POLICIES;
    const char *fixed =
        by_policy ? sweep->preload.predictors[wanted->fixed]->name : sweep->evict.all[wanted->fixed].word;
    moec_figure_name(chart, "simulate_%s_by_%s_%s", wanted->of_times ? "tpot" : "hits",
                     by_policy ? "policy" : "predictor", fixed);
    for (char *at = chart->name; *at != '\0'; at++)
        if (*at == '+' || *at == '-')
            *at = '_';
    moec_figure_title(chart, "%s by %s and buffer (%s '%s')",
                      wanted->of_times ? "Predicted time of a token" : "Hit rate",
                      by_policy ? "eviction" : "predictor", by_policy ? "predictor" : "evict", fixed);
    (void)snprintf(chart->provenance, sizeof chart->provenance,
                   "Routing: %s, %" PRIu64 " tokens decoded one by one. Records: %s.", source,
                   sweep->recording->counted.n_decoded, sweep->model->sizes);
    set_axes(wanted, chart);
    const uint32_t n = by_policy ? sweep->evict.n : sweep->preload.n_predictor;
    for (uint32_t line = 0; line < n; line++)
        MOEC_TRY(add_line(wanted, line,
                          by_policy ? sweep->evict.all[line].word : sweep->preload.predictors[line]->name,
                          chart, err));
    if (!wanted->of_times)
        MOEC_TRY(add_bounds(wanted->simulation, chart, err));
    add_caption(wanted, chart);
    return MOEC_OK;
}

static enum moec_status add_figure(struct moec_figures *figures, const struct wanted *wanted,
                                   const char *source, struct moec_error *err)
{
    struct moec_figure *figure = &figures->items[figures->n++];
    *figure = (struct moec_figure){
        .title = "Simulation", .section = MOEC_FIGURE_ROUTING, .study = "", .option = "", .n_chart = 1};
    return make_chart(wanted, source, &figure->charts[0], err);
}

enum moec_status moec_simulate_figures(const struct moec_simulation *simulation, const char *source,
                                       struct moec_figures *figures, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    char name[256];
    double rate = 0;
    moec_plot_clean_text(name, sizeof name, source);
    *figures = (struct moec_figures){0};
    MOEC_TRY(moec_alloc((void **)&figures->items, 2 * ((uint64_t)sweep->preload.n_predictor + 1),
                        sizeof *figures->items, "figures", err));
    for (int of_times = 0; of_times <= (int)sweep->has_times; of_times++) {
        for (uint32_t p = 0; p < sweep->preload.n_predictor; p++)
            MOEC_TRY_OUT(add_figure(
                figures,
                &(struct wanted){
                    .simulation = simulation, .lines = OF_POLICIES, .fixed = p, .of_times = of_times != 0},
                name, err));
        if (sweep->preload.n_predictor > 1)
            MOEC_TRY_OUT(
                add_figure(figures,
                           &(struct wanted){.simulation = simulation,
                                            .lines = OF_PREDICTORS,
                                            .fixed = moec_simulation_best_policy(simulation, 0, &rate),
                                            .of_times = of_times != 0},
                           name, err));
    }
out:
    if (status != MOEC_OK)
        moec_figures_release(figures);
    return status;
}
