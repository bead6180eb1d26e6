/* Each figure is drawn by one function of the table at the end, a chart a storage and a memory. A function
 * that has nothing to show leaves the chart without a name, and the chart is dropped. Rows that depend on
 * neither memory nor storage stand in every chart (find_row). */
#include "profiler/bench/bench_figures.h"

#include "formats/base/memory.h"
#include "profiler/bench/bench_row.h"
#include "profiler/common/quantiles.h"
#include "profiler/report/figure_parts.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where more modes ran than a chart has styles, the first of these are shown. */
static const char *const modes[] = {"edgemoe", "io-exp",     "io-qexp",     "sti",
                                    "io-free", "io-exp+lru", "io-qexp+lru", "io-qfree"};
#define N_MODE (sizeof modes / sizeof *modes)

/* Chart number `memory` of a figure on one storage; the name stays empty where there is nothing to show. */
typedef enum moec_status draw_fn(const struct moec_bench *bench, uint32_t storage, uint32_t memory,
                                 struct moec_chart *chart, struct moec_error *err);

/* ---- what figures share ---- */

/* The row of a mode as a figure of this memory and storage shows it: those that do not depend on either are
 * in all of them. */
static const struct moec_bench_row *find_row(const struct moec_bench *bench, const char *mode,
                                             uint32_t memory, uint32_t storage)
{
    const uint32_t n_memory = bench->options.n_memory, n_storage = bench->options.n_storage;
    const struct moec_bench_row *row = moec_bench_find(bench, mode, memory, storage);
    if (row == NULL)
        row = moec_bench_find(bench, mode, n_memory, storage);
    return row != NULL ? row : moec_bench_find(bench, mode, n_memory, n_storage);
}

/* Lower case, digits and underscores of a name. */
static void append_plain(char *to, size_t capacity, const char *name)
{
    size_t used = strlen(to);
    for (bool is_gap = true; *name != '\0' && used + 2 < capacity; name++) {
        if (!isalnum((unsigned char)*name)) {
            is_gap = true;
            continue;
        }
        if (is_gap)
            to[used++] = '_';
        is_gap = false;
        to[used++] = (char)tolower((unsigned char)*name);
    }
    to[used] = '\0';
}

/* Name of the file and title, with the memory and the storage where there are several. */
static void entitle(const struct moec_bench *bench, struct moec_chart *chart, const char *name,
                    const char *title, uint32_t memory, uint32_t storage)
{
    const struct moec_bench_options *options = &bench->options;
    const char *size = memory < options->n_memory ? options->memories[memory].name : "";
    const char *speed = storage < options->n_storage ? options->storages[storage].name : "";
    moec_figure_name(chart, "%s", name);
    append_plain(chart->name, sizeof chart->name, size);
    append_plain(chart->name, sizeof chart->name, speed);
    moec_figure_title(chart, "%s%s%s%s%s", title, size[0] != '\0' ? ", memory " : "", size,
                      speed[0] != '\0' ? ", storage of " : "", speed);
}

static void set_axis(struct moec_chart_axis *axis, const char *name, const char *label)
{
    (void)snprintf(axis->name, sizeof axis->name, "%s", name);
    (void)snprintf(axis->label, sizeof axis->label, "%s", label);
}

static void set_source(struct moec_chart *chart, const char *source)
{
    (void)snprintf(chart->source, sizeof chart->source, "%s", source);
}

/* The rows of all modes that ran, in the order of the table above; returns how many. */
static uint32_t list_rows(const struct moec_bench *bench, uint32_t memory, uint32_t storage,
                          const struct moec_bench_row *rows[static N_MODE])
{
    uint32_t n = 0;
    for (size_t m = 0; m < N_MODE; m++) {
        const struct moec_bench_row *row = find_row(bench, modes[m], memory, storage);
        if (row != NULL)
            rows[n++] = row;
    }
    return n;
}

static enum moec_status set_mode_categories(struct moec_chart *chart,
                                            const struct moec_bench_row *const *rows, uint32_t n,
                                            struct moec_error *err)
{
    MOEC_TRY(moec_chart_set_categories(&chart->x, n, err));
    set_axis(&chart->x, "mode", "");
    for (uint32_t i = 0; i < n; i++)
        (void)snprintf(chart->x.categories[i], MOEC_CHART_LABEL, "%s", rows[i]->label);
    return MOEC_OK;
}

/* "edgemoe takes 1.2 ms a token, 3.1 times faster than io-exp, ..." */
static void say_speedups(const struct moec_bench *bench, struct moec_chart *chart, uint32_t memory,
                         uint32_t storage)
{
    static const char *const baselines[] = {"io-exp", "io-qexp", "sti", "io-exp+lru", "io-qexp+lru"};
    const struct moec_bench_row *row = find_row(bench, "edgemoe", memory, storage);
    char list[256] = "", a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (row == NULL)
        return;
    for (size_t i = 0; i < sizeof baselines / sizeof *baselines; i++) {
        const struct moec_bench_row *against = find_row(bench, baselines[i], memory, storage);
        const size_t used = strlen(list);
        if (against != NULL)
            (void)snprintf(list + used, sizeof list - used, "%s%s times the speed of %s",
                           used > 0 ? ", " : "", moec_chart_number(b, moec_bench_speedup(row, against)),
                           baselines[i]);
    }
    if (list[0] != '\0')
        moec_figure_say(chart, "edgemoe takes %s ms a token: %s.",
                        moec_chart_number(a, row->figures.tpot_ms_median), list);
}

/* ---- figures ---- */

static enum moec_status draw_tpot(const struct moec_bench *bench, uint32_t storage, uint32_t memory,
                                  struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_bench_row *rows[N_MODE];
    struct moec_chart_series *times = NULL, *floors = NULL;
    const uint32_t n = list_rows(bench, memory, storage, rows);
    if (n == 0)
        return MOEC_OK;
    entitle(bench, chart, "tpot", "Time of a token by run mode", memory, storage);
    set_source(chart, "EdgeMoE, Fig. 11");
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    set_axis(&chart->y, "ms", "time of a token (TPOT), ms");
    MOEC_TRY(set_mode_categories(chart, rows, n, err));
    MOEC_TRY(moec_chart_add_series(chart, "median, with its p95", n, &times, err));
    MOEC_TRY(moec_chart_add_series(chart, "floor: max(compute, bytes/bandwidth), mean", n, &floors, err));
    times->has_interval = true;
    for (uint32_t i = 0; i < n; i++) {
        times->x[i] = floors->x[i] = i;
        times->y[i] = times->low[i] = rows[i]->figures.tpot_ms_median;
        times->high[i] = rows[i]->figures.tpot_ms_p95;
        floors->y[i] = rows[i]->figures.floor_ms;
    }
    moec_figure_spread_out(chart);
    say_speedups(bench, chart, memory, storage);
    return MOEC_OK;
}

static enum moec_status draw_latency(const struct moec_bench *bench, uint32_t storage, uint32_t memory,
                                     struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_bench_row *rows[N_MODE];
    const uint32_t n_sample = bench->tokens.n_sample;
    uint32_t n = list_rows(bench, memory, storage, rows);
    double least = INFINITY, most = 0;
    if (n == 0 || n_sample < 2)
        return MOEC_OK;
    entitle(bench, chart, "latency", "Latency of samples, prompt to last token", memory, storage);
    set_source(chart, "EdgeMoE, Fig. 12");
    chart->kind = MOEC_CHART_LINES;
    set_axis(&chart->x, "ms", "latency of a sample, ms");
    set_axis(&chart->y, "percent", "samples that take at most this, %");
    chart->y.low = 0;
    chart->y.high = 100;
    n = n < MOEC_CHART_MAX_SERIES ? n : MOEC_CHART_MAX_SERIES;
    for (uint32_t i = 0; i < n; i++) {
        struct moec_chart_series *series = NULL;
        MOEC_TRY(moec_chart_add_series(chart, rows[i]->label, n_sample, &series, err));
        for (uint32_t s = 0; s < n_sample; s++)
            series->x[s] = moec_bench_sample_ms(bench, rows[i], s);
        moec_sort_doubles(series->x, n_sample);
        for (uint32_t s = 0; s < n_sample; s++)
            series->y[s] = 100.0 * (s + 1) / n_sample;
        least = fmin(least, series->x[0]);
        most = fmax(most, series->x[n_sample - 1]);
    }
    chart->x.is_log = most > 10 * least;
    moec_figure_say(chart,
                    "Every curve is the distribution over the same %" PRIu32 " samples of %" PRIu32
                    " + %" PRIu32 " tokens: the steeper, the less the prompt matters.",
                    n_sample, bench->tokens.prompt_tokens, bench->tokens.n_tokens);
    return MOEC_OK;
}

static double buffer_percent(const struct moec_bench *bench, const struct moec_bench_row *row)
{
    return 100 * (double)row->opened.expert_buffer_bytes / (double)bench->expert_total_bytes;
}

/* All memories in one chart: number 0 alone. */
static enum moec_status draw_hits(const struct moec_bench *bench, uint32_t storage, uint32_t memory,
                                  struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_bench_options *options = &bench->options;
    if (memory > 0 || options->n_evict == 0)
        return MOEC_OK;
    entitle(bench, chart, "hits", "Hits by eviction", options->n_memory, storage);
    set_source(chart, "EdgeMoE, Fig. 14");
    chart->kind = MOEC_CHART_LINES;
    set_axis(&chart->x, "buffer_percent", "expert buffer, % of the compiled experts");
    set_axis(&chart->y, "hits_percent", "experts that were there when the router asked, %");
    chart->y.has_zero = true;
    bool preloads = false;
    for (uint32_t e = 0; e < options->n_evict && e < MOEC_CHART_MAX_SERIES; e++) {
        struct moec_chart_series *series = NULL;
        uint32_t n = 0;
        MOEC_TRY(moec_chart_add_series(chart, options->evicts[e], options->n_memory, &series, err));
        for (uint32_t r = 0; r < bench->n_row; r++) {
            const struct moec_bench_row *row = &bench->rows[r];
            if (strcmp(row->label, "cache") != 0 || row->storage != storage || n == series->n ||
                row->engine.buffer.evict != options->evicts[e] || row->error.status != MOEC_OK ||
                row->engine.buffer.predict != options->engine.buffer.predict)
                continue;
            preloads |= strcmp(row->opened.predict, "none") != 0;
            series->x[n] = buffer_percent(bench, row);
            series->y[n++] = 100 * row->figures.hit_rate;
        }
    }
    moec_figure_say(chart, preloads ? "Experts are preloaded too, and count as hits if they arrived in time."
                                    : "Nothing is preloaded, so all hits are due to the policy.");
    return MOEC_OK;
}

/* Modes as lines over the buffer; those that have none are level. */
static enum moec_status draw_memory(const struct moec_bench *bench, uint32_t storage, uint32_t memory,
                                    struct moec_chart *chart, struct moec_error *err)
{
    const struct moec_bench_options *options = &bench->options;
    const uint32_t n = options->n_memory;
    double least = INFINITY, most = 0;
    if (memory > 0 || n < 2)
        return MOEC_OK;
    for (uint32_t r = 0; r < bench->n_row; r++)
        if (bench->rows[r].memory < n && bench->rows[r].error.status == MOEC_OK) {
            least = fmin(least, (double)bench->rows[r].opened.expert_buffer_bytes * 1e-6);
            most = fmax(most, (double)bench->rows[r].opened.expert_buffer_bytes * 1e-6);
        }
    for (size_t m = 0; m < N_MODE && chart->n_series < MOEC_CHART_MAX_SERIES; m++) {
        const bool is_level = moec_bench_find(bench, modes[m], n, storage) != NULL ||
                              moec_bench_find(bench, modes[m], n, options->n_storage) != NULL;
        struct moec_chart_series *series = NULL;
        if (find_row(bench, modes[m], 0, storage) == NULL)
            continue;
        MOEC_TRY(moec_chart_add_series(chart, modes[m], is_level ? 2 : n, &series, err));
        for (uint32_t b = 0; b < series->n; b++) {
            const struct moec_bench_row *row = find_row(bench, modes[m], b, storage);
            if (row == NULL)
                continue;
            series->x[b] =
                is_level ? (b == 0 ? least : most) : (double)row->opened.expert_buffer_bytes * 1e-6;
            series->y[b] = row->figures.tpot_ms_median;
        }
    }
    if (chart->n_series == 0)
        return MOEC_OK;
    entitle(bench, chart, "memory", "Time of a token by expert buffer", n, storage);
    set_source(chart, "EdgeMoE, Fig. 16");
    chart->kind = MOEC_CHART_LINES;
    set_axis(&chart->x, "buffer_mb", "expert buffer, MB");
    set_axis(&chart->y, "ms", "time of a token (TPOT, median), ms");
    chart->y.has_zero = true;
    moec_figure_spread_out(chart);
    moec_figure_say(chart, "Modes that hold everything or nothing are level lines.");
    return MOEC_OK;
}

/* Reads overlap each other and computing, so a wait can be longer than what was read in it takes: an expert
 * is waited for until it is checked, and behind what else is being read. */
static void say_waiting(struct moec_chart *chart, double read_ms, double wait_ms)
{
    char a[MOEC_CHART_NUMBER], b[MOEC_CHART_NUMBER];
    if (wait_ms <= read_ms)
        moec_figure_say(chart,
                        "edgemoe reads for %s ms a token and waits for %s of them: the rest "
                        "is hidden behind computing.",
                        moec_chart_number(a, read_ms), moec_chart_number(b, wait_ms));
    else
        moec_figure_say(chart,
                        "edgemoe waits %s ms a token for experts, of which its reads take %s ms: the rest is "
                        "requests on their way, checks and other reads before them.",
                        moec_chart_number(b, wait_ms), moec_chart_number(a, read_ms));
}

static enum moec_status draw_breakdown(const struct moec_bench *bench, uint32_t storage, uint32_t memory,
                                       struct moec_chart *chart, struct moec_error *err)
{
    static const char *const parts[] = {"computing, all resident", "waiting for storage", "bytes/bandwidth",
                                        "whole token (mean)"};
    const struct moec_bench_row *rows[N_MODE];
    const uint32_t n = list_rows(bench, memory, storage, rows);
    if (n == 0)
        return MOEC_OK;
    entitle(bench, chart, "breakdown", "Where the time of a token goes", memory, storage);
    chart->kind = MOEC_CHART_BARS;
    set_axis(&chart->y, "ms", "of a token, ms");
    MOEC_TRY(set_mode_categories(chart, rows, n, err));
    for (uint32_t p = 0; p < 4; p++) {
        struct moec_chart_series *series = NULL;
        MOEC_TRY(moec_chart_add_series(chart, parts[p], n, &series, err));
        for (uint32_t i = 0; i < n; i++) {
            const struct moec_bench_figures *f = &rows[i]->figures;
            const double values[] = {f->compute_ms, f->stall_ms, f->transfer_ms, f->tpot_ms_mean};
            series->x[i] = i;
            series->y[i] = values[p];
        }
    }
    const struct moec_bench_row *row = find_row(bench, "edgemoe", memory, storage);
    if (row != NULL && row->figures.transfer_ms > 0)
        say_waiting(chart, row->figures.transfer_ms, row->figures.stall_ms);
    return MOEC_OK;
}

static enum moec_status draw_ablation(const struct moec_bench *bench, uint32_t storage, uint32_t memory,
                                      struct moec_chart *chart, struct moec_error *err)
{
    static const char *const labels[] = {"io-exp", "quantised", "quantised+preloads", "edgemoe"};
    static const char *const names[] = {"original on demand", "mixed bitwidths", "with preloads",
                                        "with the buffer"};
    struct moec_chart_series *series = NULL;
    if (!bench->options.ablation)
        return MOEC_OK;
    entitle(bench, chart, "ablation", "What each part brings", memory, storage);
    set_source(chart, "EdgeMoE, Fig. 18");
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    set_axis(&chart->y, "ms", "time of a token (TPOT), ms");
    MOEC_TRY(moec_chart_set_categories(&chart->x, 4, err));
    set_axis(&chart->x, "parts", "");
    MOEC_TRY(moec_chart_add_series(chart, "", 4, &series, err));
    series->has_interval = true;
    for (uint32_t i = 0; i < 4; i++) {
        const struct moec_bench_row *row = find_row(bench, labels[i], memory, storage);
        (void)snprintf(chart->x.categories[i], MOEC_CHART_LABEL, "%s", names[i]);
        series->x[i] = i;
        if (row == NULL)
            continue;
        series->y[i] = series->low[i] = row->figures.tpot_ms_median;
        series->high[i] = row->figures.tpot_ms_p95;
    }
    moec_figure_say(chart, "Bars are medians, their whiskers end at the p95.");
    return MOEC_OK;
}

/* ---- all of them ---- */

static const struct {
    const char *title;
    draw_fn *draw;
} drawers[] = {
    {"Time of a token by run mode", draw_tpot},
    {"Latency of samples", draw_latency},
    {"Hits by eviction", draw_hits},
    {"Time of a token by expert buffer", draw_memory},
    {"Where the time of a token goes", draw_breakdown},
    {"What each part brings", draw_ablation},
};
#define N_DRAWER (sizeof drawers / sizeof *drawers)

static void describe(const struct moec_bench *bench, char *text, size_t capacity)
{
    char path[512], data[256];
    moec_plot_clean_text(path, sizeof path, bench->options.path);
    moec_plot_clean_text(data, sizeof data, bench->tokens.name);
    (void)snprintf(text, capacity,
                   "Model: %s. Data: %s, %" PRIu32 " samples of %" PRIu32 " + %" PRIu32
                   " tokens, teacher-forced, %" PRIu32 " threads.",
                   path, data, bench->tokens.n_sample, bench->tokens.prompt_tokens, bench->tokens.n_tokens,
                   bench->rows[0].opened.n_threads);
}

static enum moec_status make_figure(const struct moec_bench *bench, draw_fn *draw, uint32_t storage,
                                    struct moec_figure *figure, struct moec_error *err)
{
    const uint32_t n_memory = bench->options.n_memory;
    for (uint32_t m = 0; m < (n_memory > 0 ? n_memory : 1) && figure->n_chart < MOEC_FIGURE_MAX_CHARTS; m++) {
        struct moec_chart *chart = &figure->charts[figure->n_chart];
        describe(bench, chart->provenance, sizeof chart->provenance);
        enum moec_status status = draw(bench, storage, m, chart, err);
        if (status == MOEC_OK && chart->name[0] != '\0') {
            figure->n_chart++;
            continue;
        }
        moec_chart_release(chart);
        MOEC_TRY(status);
    }
    return MOEC_OK;
}

enum moec_status moec_bench_figures_make(const struct moec_bench *bench, struct moec_figures *figures,
                                         struct moec_error *err)
{
    *figures = (struct moec_figures){0};
    MOEC_TRY(moec_alloc((void **)&figures->items, N_DRAWER * (uint64_t)bench->options.n_storage,
                        sizeof *figures->items, "figures", err));
    for (uint32_t s = 0; s < bench->options.n_storage; s++)
        for (size_t d = 0; d < N_DRAWER; d++) {
            struct moec_figure *figure = &figures->items[figures->n++];
            *figure = (struct moec_figure){.title = drawers[d].title, .study = "", .option = ""};
            enum moec_status status = make_figure(bench, drawers[d].draw, s, figure, err);
            if (status != MOEC_OK) {
                moec_figures_release(figures);
                return status;
            }
        }
    return MOEC_OK;
}
