#include "experiments/charts.h"

#include "profiler/report/figure_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_MEMORIES 8

const char *experiment_metric(const struct experiment_sample *sample)
{
    return strcmp(sample->metric, "rouge-2") == 0 ? "ROUGE-2" : sample->metric;
}

/* Name, title and source; the sample's name keeps the names of charts apart. */
static void entitle(const struct experiment_sample *sample, struct moec_chart *chart, const char *name,
                    const char *title, const char *source)
{
    moec_figure_name(chart, "%s_%s", sample->name, name);
    moec_figure_title(chart, "%s", title);
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, %s", source);
}

static void set_axis(struct moec_chart_axis *axis, const char *name, const char *label)
{
    (void)snprintf(axis->name, sizeof axis->name, "%s", name);
    (void)snprintf(axis->label, sizeof axis->label, "%s", label);
}

MOEC_PRINTF(3, 4)
static void set_category(struct moec_chart_axis *axis, uint32_t i, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vsnprintf(axis->categories[i], sizeof axis->categories[i], format, list);
    va_end(list);
}

/* ---- Fig. 6 ---- */

static enum moec_status add_bits(const struct experiment_bundle *bundles, const char *name,
                                 struct moec_chart *chart, struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    MOEC_TRY(moec_chart_add_series(chart, name, EXPERIMENT_N_BITS, &series, err));
    for (uint32_t b = 0; b < EXPERIMENT_N_BITS; b++) {
        series->x[b] = b;
        series->y[b] = bundles[b].value;
    }
    return MOEC_OK;
}

enum moec_status experiment_chart_bits(const struct experiment_sample *sample, struct moec_chart *chart,
                                       struct moec_error *err)
{
    const struct experiment_bundle *int4 = &sample->uniform[2];
    if (!isfinite(int4->value))
        return MOEC_OK;
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    entitle(sample, chart, "bits", "Experts alone or all weights at few bits, on the test data", "Fig. 6");
    set_axis(&chart->x, "bits", "bitwidth");
    set_axis(&chart->y, "value", experiment_metric(sample));
    chart->y.has_zero = true;
    MOEC_TRY(moec_chart_set_categories(&chart->x, EXPERIMENT_N_BITS, err));
    for (uint32_t b = 0; b < EXPERIMENT_N_BITS; b++)
        set_category(&chart->x, b, "INT%u", experiment_bits[b]);
    MOEC_TRY(add_bits(sample->uniform, "experts", chart, err));
    MOEC_TRY(add_bits(sample->everything, "all weights", chart, err));
    moec_chart_add_rule(chart, int4->reference, "original");
    moec_figure_say(chart, "The original has %.4g.", int4->reference);
    for (uint32_t b = 0; b < EXPERIMENT_N_BITS; b++)
        if (isfinite(sample->uniform[b].loss))
            moec_figure_say(chart, "Experts at INT%u lose %.2f %%.", experiment_bits[b],
                            100 * sample->uniform[b].loss);
    moec_figure_say(chart, "Dense weights are not offered at INT2 and INT3.");
    return MOEC_OK;
}

/* ---- Fig. 7b ---- */

enum moec_status experiment_chart_decoding(const struct experiment_sample *sample, struct moec_chart *chart,
                                           struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    const uint32_t n = sample->n_quantizer;
    if (n == 0)
        return MOEC_OK;
    chart->kind = MOEC_CHART_BARS;
    chart->has_value_labels = true;
    entitle(sample, chart, "decoding", "Time of one expert on one token, decoding included, by quantiser",
            "Fig. 7(b)");
    set_axis(&chart->x, "quantizer", "quantiser, INT4");
    set_axis(&chart->y, "us", "microseconds");
    chart->y.has_zero = true;
    MOEC_TRY(moec_chart_set_categories(&chart->x, n + 1, err));
    MOEC_TRY(moec_chart_add_series(chart, "", n + 1, &series, err));
    for (uint32_t q = 0; q < n; q++) {
        set_category(&chart->x, q, "%s", sample->quantizers[q].name);
        series->x[q] = q;
        series->y[q] = sample->quantizers[q].expert_ns * 1e-3;
    }
    set_category(&chart->x, n, "16 bits");
    series->x[n] = n;
    series->y[n] = sample->plain_expert_ns * 1e-3;
    moec_figure_say(chart, "Weights are decoded in registers while they are multiplied, so that decoding has "
                           "no time of its own; 16 bits need none.");
    for (uint32_t q = 1; q < n; q++)
        moec_figure_say(chart, "Linear is %.2f times as fast as %s.",
                        sample->quantizers[q].expert_ns / sample->quantizers[0].expert_ns,
                        sample->quantizers[q].name);
    return MOEC_OK;
}

/* ---- Fig. 14 ---- */

static bool is_new_policy(const struct experiment_hits *all, uint32_t h)
{
    for (uint32_t before = 0; before < h; before++)
        if (strcmp(all[before].evict, all[h].evict) == 0)
            return false;
    return true;
}

static enum moec_status make_evictions(const struct experiment_sample *sample,
                                       const struct experiment_hits *all, uint32_t n_hits,
                                       struct moec_chart *chart, struct moec_error *err)
{
    const char *best = "";
    double most = -1;
    if (n_hits == 0 || !sample->has_profile)
        return MOEC_OK;
    const double n_expert = (double)sample->profile.n_moe_layer * sample->profile.n_expert;
    chart->kind = MOEC_CHART_LINES;
    entitle(sample, chart, all == sample->hits ? "evictions" : "paper_evictions",
            all == sample->hits
                ? "Hits by eviction policy and buffer, without preloads"
                : "Hits by eviction policy and buffer, without preloads, the paper's procedure's bundle",
            "Fig. 14");
    set_axis(&chart->x, "experts", "experts that the buffer holds");
    set_axis(&chart->y, "hits_percent", "experts found in the buffer, %");
    chart->y.has_zero = true;
    for (uint32_t h = 0; h < n_hits; h++) {
        struct moec_chart_series *series = NULL;
        uint32_t n = 0;
        if (!is_new_policy(all, h) || chart->n_series == MOEC_CHART_MAX_SERIES)
            continue;
        MOEC_TRY(moec_chart_add_series(chart, all[h].evict, EXPERIMENT_MAX_ROWS, &series, err));
        for (uint32_t i = h; i < n_hits; i++) {
            const struct experiment_hits *hits = &all[i];
            if (strcmp(hits->evict, all[h].evict) != 0)
                continue;
            series->x[n] = hits->buffer_share * n_expert;
            series->y[n++] = 100 * hits->hit_rate;
            if (fabs(hits->buffer_share * n_expert - 10) < 0.5 && hits->hit_rate > most) {
                most = hits->hit_rate;
                best = hits->evict;
            }
        }
        series->n = n;
    }
    moec_figure_say(chart,
                    "Decoded tokens, counted by moec simulate on the calibration data or by moec bench on "
                    "the test data. With ten experts '%s' hits most: %.1f %%.",
                    best, 100 * most);
    return MOEC_OK;
}

enum moec_status experiment_chart_evictions(const struct experiment_sample *sample, struct moec_chart *chart,
                                            struct moec_error *err)
{
    return make_evictions(sample, sample->hits, sample->n_hits, chart, err);
}

enum moec_status experiment_chart_paper_evictions(const struct experiment_sample *sample,
                                                  struct moec_chart *chart, struct moec_error *err)
{
    return make_evictions(sample, sample->hits_paper, sample->n_hits_paper, chart, err);
}

/* ---- Fig. 11 and 16 ---- */

enum moec_status experiment_chart_latency(const struct experiment_sample *sample, struct moec_chart *chart,
                                          struct moec_error *err)
{
    static const char *const modes[] = {"io-free", "io-exp",      "io-qexp", "io-exp+lru",
                                        "sti",     "io-qexp+lru", "edgemoe"};
    uint32_t n_memory = 0;
    while (n_memory < MOST_MEMORIES && experiment_memory(&sample->fast, n_memory) != NULL)
        n_memory++;
    if (n_memory == 0)
        return MOEC_OK;
    chart->kind = MOEC_CHART_LINES;
    entitle(sample, chart, "latency",
            "Time per token by run mode and expert buffer, storage of 550 MB/s, 80 us", "Fig. 11, 16");
    set_axis(&chart->x, "buffer", "expert buffer, share of the experts of the compiled assignment");
    set_axis(&chart->y, "ms", "time per token (median), ms");
    chart->y.has_zero = true;
    MOEC_TRY(moec_chart_set_categories(&chart->x, n_memory, err));
    for (uint32_t m = 0; m < n_memory; m++)
        set_category(&chart->x, m, "%s", experiment_memory(&sample->fast, m));
    for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
        struct moec_chart_series *series = NULL;
        if (experiment_find_row(&sample->fast, modes[k], 0) == NULL)
            continue;
        MOEC_TRY(moec_chart_add_series(chart, modes[k], n_memory, &series, err));
        for (uint32_t m = 0; m < n_memory; m++) {
            const struct experiment_row *row = experiment_find_row(&sample->fast, modes[k], m);
            series->x[m] = m;
            series->y[m] = row != NULL ? row->tpot_ms : NAN;
        }
    }
    moec_figure_say(chart, "The smallest buffer holds ten experts, as the paper's. Modes without a buffer "
                           "are level lines; the same bytes hold fewer experts where these have more bits.");
    return MOEC_OK;
}

/* ---- Fig. 17 ---- */

static enum moec_status begin_targets(const struct experiment_sample *sample, struct moec_chart *chart,
                                      const char *name, const char *title, struct moec_error *err)
{
    chart->kind = MOEC_CHART_LINES;
    entitle(sample, chart, name, title, "Fig. 17");
    set_axis(&chart->x, "target", "loss allowed");
    chart->y.has_zero = true;
    MOEC_TRY(moec_chart_set_categories(&chart->x, EXPERIMENT_N_TARGET, err));
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++)
        set_category(&chart->x, t, "%u %%", experiment_targets[t]);
    return MOEC_OK;
}

enum moec_status experiment_chart_storage(const struct experiment_sample *sample, struct moec_chart *chart,
                                          struct moec_error *err)
{
    struct moec_chart_series *ours = NULL, *paper = NULL, *uniform = NULL;
    if (!isfinite(sample->ours[0].n_bytes))
        return MOEC_OK;
    MOEC_TRY(begin_targets(sample, chart, "storage", "Storage by the loss allowed", err));
    set_axis(&chart->y, "megabytes", "bundle, MB");
    MOEC_TRY(moec_chart_add_series(chart, "ours", EXPERIMENT_N_TARGET, &ours, err));
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++) {
        ours->x[t] = t;
        ours->y[t] = sample->ours[t].n_bytes / 1e6;
    }
    MOEC_TRY(moec_chart_add_series(chart, "the paper's procedure", EXPERIMENT_N_TARGET, &paper, err));
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++) {
        paper->x[t] = t;
        paper->y[t] = sample->paper[t].n_bytes / 1e6;
    }
    MOEC_TRY(moec_chart_add_series(chart, "best uniform bitwidth that meets it", EXPERIMENT_N_TARGET,
                                   &uniform, err));
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++) {
        uniform->x[t] = t;
        for (uint32_t b = 0; b < EXPERIMENT_N_BITS; b++)
            if (sample->uniform[b].loss <= experiment_targets[t] / 100.0)
                uniform->y[t] = fmin(uniform->y[t], sample->uniform[b].n_bytes / 1e6);
    }
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++)
        if (isfinite(sample->ours[t].loss))
            moec_figure_say(chart, "Asked for %u %%: %.2f %% on the test data.", experiment_targets[t],
                            100 * sample->ours[t].loss);
    return MOEC_OK;
}

enum moec_status experiment_chart_targets(const struct experiment_sample *sample, struct moec_chart *chart,
                                          struct moec_error *err)
{
    struct moec_chart_series *series = NULL, *paper = NULL;
    if (!isfinite(sample->tpot_of_target[0]))
        return MOEC_OK;
    MOEC_TRY(begin_targets(sample, chart, "target_times",
                           "Time per token by the loss allowed, buffer of ten experts", err));
    set_axis(&chart->y, "ms", "time per token (median), ms");
    MOEC_TRY(moec_chart_add_series(chart, "ours", EXPERIMENT_N_TARGET, &series, err));
    MOEC_TRY(moec_chart_add_series(chart, "the paper's procedure", EXPERIMENT_N_TARGET, &paper, err));
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++) {
        series->x[t] = paper->x[t] = t;
        series->y[t] = sample->tpot_of_target[t];
        paper->y[t] = sample->tpot_of_paper[t];
    }
    moec_figure_say(chart, "Mode edgemoe on storage of 550 MB/s, 80 us.");
    return MOEC_OK;
}
