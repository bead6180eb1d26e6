/* Colours follow log(1 + loss over the baseline / unit). A unit is the median half width of the experts'
 * intervals, so that differences within noise look alike. It is no less than a thousandth of the range.
 * Estimates have no intervals, and take a hundredth. An expert's interval is of its difference from the
 * baseline on the same windows; where it holds 0 the cell is faded. `moec_heatmap_loss_at` has to stay the
 * inverse of `moec_heatmap_unit`. */
#include "profiler/report/heatmap.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/profile/codes_words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- values ---- */

void moec_heatmap_release(struct moec_heatmap *heatmap)
{
    if (heatmap == NULL)
        return;
    free(heatmap->cells.loss);
    free(heatmap->cells.reached);
    free(heatmap->cells.unclear);
    memset(heatmap, 0, sizeof *heatmap);
}

static enum moec_status find_bits(const struct moec_profile *profile, uint32_t bits, uint32_t *index,
                                  struct moec_error *err)
{
    char have[128] = "";
    size_t used = 0;
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        if (bits == 0 || profile->bits[b] == bits) {
            *index = b;
            return MOEC_OK;
        }
        int n = snprintf(have + used, sizeof have - used, "%s%" PRIu32, b > 0 ? ", " : "", profile->bits[b]);
        if (n > 0 && (size_t)n < sizeof have - used)
            used += (size_t)n;
    }
    return moec_fail(err, MOEC_ERR_USAGE, "no expert was measured at %" PRIu32 " bits, expected one of %s",
                     bits, have);
}

/* Colours go from the baseline, or the expert that gains most, to the one that loses most. */
static void choose_range(struct moec_heatmap *map)
{
    const uint64_t n = (uint64_t)map->n_layer * map->n_expert;
    bool is_any = false;
    map->range.low = map->range.high = map->range.least = map->range.largest = map->range.baseline;
    for (uint64_t i = 0; i < n; i++) {
        map->counts.n_unreached += !map->cells.reached[i];
        if (!map->cells.reached[i])
            continue;
        map->range.largest = is_any ? fmax(map->range.largest, map->cells.loss[i]) : map->cells.loss[i];
        map->range.least = fmin(map->range.least, map->cells.loss[i]);
        is_any = true;
    }
    map->range.low = map->range.is_diverging ? map->range.least : map->range.baseline;
    map->range.high = fmax(map->range.baseline, map->range.largest);
    if (map->range.is_diverging) /* as far to both sides */
        map->range.high = map->range.baseline +
                          fmax(map->range.high - map->range.baseline, map->range.baseline - map->range.low);
    /* A profile where nothing differs still has a scale. */
    if (!(map->range.high - map->range.low > 1e-9))
        map->range.high = map->range.low + 1e-9;
    const double reach = map->range.high - map->range.baseline;
    map->range.unit = isfinite(map->counts.noise) ? fmax(map->counts.noise, reach / 1000) : reach / 100;
}

/* What each expert adds to the baseline, with its interval. */
static enum moec_status measure_noise(const struct moec_profile *profile, uint32_t b,
                                      struct moec_heatmap *map, struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
    const uint64_t n = (uint64_t)map->n_layer * map->n_expert;
    double *halves = NULL;
    uint64_t n_half = 0;
    enum moec_status status = MOEC_OK;
    windows.n_window = profile->n_sensitivity_window;
    MOEC_TRY(moec_alloc((void **)&halves, 2 * n, sizeof *halves, "intervals of a heatmap", err));
    for (uint64_t i = 0; i < n; i++) {
        struct moec_loss loss;
        const double *nll = moec_profile_expert_row(
            profile, profile->expert_nll, (uint32_t)(i / map->n_expert), (uint32_t)(i % map->n_expert), b);
        if (!map->cells.reached[i])
            continue;
        MOEC_TRY_OUT(moec_loss_measure(&windows, &(struct moec_paired_nll){profile->baseline.nll, nll, NULL},
                                       &options, &loss, err));
        map->counts.n_worse += loss.low > 0;
        map->counts.n_better += loss.high < 0;
        map->cells.unclear[i] = loss.low <= 0 && loss.high >= 0;
        map->counts.n_unclear += map->cells.unclear[i];
        halves[n_half++] = fmin((loss.high - loss.low) / 2, MOEC_HEATMAP_MOST);
    }
    if (n_half > 0)
        map->counts.noise = moec_quantile_of_finite(halves, n_half, 0.5, halves + n);
out:
    free(halves);
    return status;
}

/* A variant that guesses worse than chance in every token passes what a double can say of perplexity. */
static double finite_loss(const struct moec_profile *profile, const double *nll)
{
    return fmin(moec_profile_sensitivity_loss(profile, nll), MOEC_HEATMAP_MOST);
}

enum moec_status moec_heatmap_make(const struct moec_profile *profile, uint32_t bits,
                                   struct moec_heatmap *heatmap, struct moec_error *err)
{
    uint32_t b = 0;
    uint64_t n = (uint64_t)profile->n_moe_layer * profile->n_expert;
    memset(heatmap, 0, sizeof *heatmap);
    MOEC_TRY(find_bits(profile, bits, &b, err));
    heatmap->n_layer = profile->n_moe_layer;
    heatmap->n_expert = profile->n_expert;
    heatmap->bits = profile->bits[b];
    heatmap->range.baseline = finite_loss(profile, profile->baseline.nll);
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&heatmap->cells.loss, n, sizeof(double), "a heatmap", err));
    MOEC_TRY_OUT(moec_alloc((void **)&heatmap->cells.reached, n, sizeof(bool), "a heatmap", err));
    MOEC_TRY_OUT(moec_alloc((void **)&heatmap->cells.unclear, n, sizeof(bool), "a heatmap", err));
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++) {
            uint64_t i = (uint64_t)s * profile->n_expert + e;
            const double *nll = moec_profile_expert_row(profile, profile->expert_nll, s, e, b);
            heatmap->cells.loss[i] = finite_loss(profile, nll);
            heatmap->cells.reached[i] = moec_profile_expert_reached(profile, s, e);
        }
    heatmap->counts.noise = NAN;
    heatmap->range.is_diverging = heatmap->bits > profile->baseline_bits;
    if (profile->sensitivity == MOEC_SENSITIVITY_EXACT)
        MOEC_TRY_OUT(measure_noise(profile, b, heatmap, err));
    choose_range(heatmap);
out:
    if (status != MOEC_OK)
        moec_heatmap_release(heatmap);
    return status;
}

double moec_heatmap_unit(const struct moec_heatmap *heatmap, double loss)
{
    const double over = loss - heatmap->range.baseline, reach = heatmap->range.high - heatmap->range.baseline;
    const double part = fmin(log1p(fabs(over) / heatmap->range.unit) / log1p(reach / heatmap->range.unit), 1);
    if (heatmap->range.is_diverging)
        return (1 + (over < 0 ? -part : part)) / 2;
    return over > 0 ? part : 0;
}

double moec_heatmap_loss_at(const struct moec_heatmap *heatmap, double part)
{
    const double reach = heatmap->range.high - heatmap->range.baseline;
    const double side = heatmap->range.is_diverging ? 2 * part - 1 : part;
    const double over = heatmap->range.unit * expm1(fabs(side) * log1p(reach / heatmap->range.unit));
    return heatmap->range.baseline + (side < 0 ? -over : over);
}

struct moec_colour moec_heatmap_colour(const struct moec_heatmap *heatmap, double loss)
{
    const double part = moec_heatmap_unit(heatmap, loss);
    return heatmap->range.is_diverging ? moec_colour_diverging(part) : moec_colour_of(part);
}

int moec_heatmap_decimals(const struct moec_heatmap *heatmap)
{
    /* A hundredth of the range, in percent, is the range as a fraction. */
    int digits = (int)ceil(-log10(fmax(heatmap->range.high - heatmap->range.least, 1e-9)));
    return digits < 0 ? 0 : digits > 6 ? 6 : digits;
}

/* ---- words ---- */

void moec_heatmap_bits_name(uint32_t bits, char name[static 16])
{
    (void)snprintf(name, 16, bits < 16 ? "INT%" PRIu32 : "%" PRIu32 "-bit", bits);
}

void moec_heatmap_describe(const struct moec_profile *profile, const struct moec_heatmap *heatmap,
                           struct moec_heatmap_words *words)
{
    char model[2 * MOEC_SHA256_BYTES + 1], data[2 * MOEC_SHA256_BYTES + 1];
    char family[sizeof profile->config.family], name[sizeof profile->data_name], task[sizeof profile->task],
        metric[sizeof profile->metric];
    char version[sizeof profile->moec_version], arithmetic[sizeof profile->arithmetic], group[16] = "channel",
                                                                                        one[16], others[16];
    moec_sha256_hex(profile->model_digest, model);
    moec_sha256_hex(profile->data_digest, data);
    moec_plot_clean_text(family, sizeof family, profile->config.family);
    moec_plot_clean_text(name, sizeof name, profile->data_name);
    moec_plot_clean_text(task, sizeof task, profile->task);
    moec_plot_clean_text(metric, sizeof metric, profile->metric);
    moec_plot_clean_text(version, sizeof version, profile->moec_version);
    moec_plot_clean_text(arithmetic, sizeof arithmetic, profile->arithmetic);
    if (profile->group > 0)
        (void)snprintf(group, sizeof group, "group of %u", (unsigned)profile->group);
    char codes[MOEC_CODES_WORDS];
    const struct moec_quantizer_choice choice = moec_profile_quantizer(profile, heatmap->bits);
    moec_heatmap_bits_name(heatmap->bits, one);
    moec_heatmap_bits_name(profile->baseline_bits, others);
    (void)snprintf(words->title, sizeof words->title, "Loss when one expert is %s and the others %s, %s%s",
                   one, others, moec_codes_words(profile, heatmap->bits, codes),
                   profile->sensitivity == MOEC_SENSITIVITY_FAST ? " (estimated)" : "");
    (void)snprintf(words->model, sizeof words->model,
                   "%s, %" PRIu32 " MoE layers x %" PRIu32 " experts, top-%" PRIu32 ", SHA-256 %.12s", family,
                   profile->n_moe_layer, profile->n_expert, profile->top_k, model);
    (void)snprintf(words->data, sizeof words->data,
                   "%s, task %s, %" PRIu32 " of %" PRIu64 " windows of up to %" PRIu32
                   " tokens, seed %" PRIu64 ", SHA-256 %.12s",
                   name, task, profile->n_window, profile->n_window_available, profile->seq_len_tokens,
                   profile->seed, data);
    (void)snprintf(words->measure, sizeof words->measure,
                   "increase of %s over the original weights%s; %s %s quantisation, one scale per %s, "
                   "%s arithmetic, moec %s",
                   metric,
                   profile->sensitivity == MOEC_SENSITIVITY_FAST ? ", estimated from local errors of experts"
                                                                 : "",
                   moec_quantizer_name((enum moec_quantizer)choice.quantizer),
                   moec_scheme_name((enum moec_scheme)choice.scheme), group, arithmetic, version);
}

/* ---- table ---- */

static enum moec_status write_csv(const struct moec_profile *profile, const struct moec_heatmap *map,
                                  const char *path, struct moec_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    (void)fputs("layer,expert,bits,reached,tokens,loss_percent,baseline_loss_percent\n", stream);
    for (uint32_t s = 0; s < map->n_layer; s++)
        for (uint32_t e = 0; e < map->n_expert; e++) {
            uint64_t i = (uint64_t)s * map->n_expert + e;
            (void)fprintf(stream, "%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%d,%" PRIu64 ",%.9g,%.9g\n",
                          profile->moe_layers[s], e, map->bits, map->cells.reached[i],
                          profile->activations[i], 100 * map->cells.loss[i], 100 * map->range.baseline);
        }
    enum moec_status status = MOEC_OK;
    if (fclose(stream) != 0)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    else
        status = moec_plot_write_csv(path, text, n_bytes, err);
    free(text);
    return status;
}

/* ---- picture ---- */

/* The most sensitive expert, and what the intervals say of all of them. */
static void describe_extremes(const struct moec_profile *profile, const struct moec_heatmap *map, char *text,
                              size_t capacity)
{
    const uint64_t n = (uint64_t)map->n_layer * map->n_expert, n_reached = n - map->counts.n_unreached;
    char one[16], others[16];
    uint64_t most = 0;
    bool is_any = false;
    for (uint64_t i = 0; i < n; i++) {
        if (!map->cells.reached[i])
            continue;
        most = !is_any || map->cells.loss[i] > map->cells.loss[most] ? i : most;
        is_any = true;
    }
    if (!is_any) {
        (void)snprintf(text, capacity, "The data reached no expert, so nothing is known about any of them.");
        return;
    }
    moec_heatmap_bits_name(map->bits, one);
    moec_heatmap_bits_name(profile->baseline_bits, others);
    size_t used = (size_t)snprintf(
        text, capacity,
        "Each cell is the %sloss of the whole model when that expert alone is %s and the "
        "others are %s, which by "
        "itself loses %.3f %%. %s is expert %" PRIu64 " of layer %" PRIu32 " with %.3f %%.",
        profile->sensitivity == MOEC_SENSITIVITY_FAST ? "estimated " : "", one, others,
        100 * map->range.baseline, map->range.is_diverging ? "Highest" : "Worst", most % map->n_expert,
        profile->moe_layers[most / map->n_expert], 100 * map->cells.loss[most]);
    if (used >= capacity)
        return;
    if (!isfinite(map->counts.noise))
        (void)snprintf(text + used, capacity - used,
                       " Estimates have no interval: --sensitivity exact measures one.");
    else
        (void)snprintf(text + used, capacity - used,
                       " By their 90 %% intervals %" PRIu64 " of %" PRIu64
                       " experts that the data reached lose more than the baseline, %" PRIu64
                       " lose less, and for %" PRIu64 " (faded) the data does not tell.",
                       map->counts.n_worse, n_reached, map->counts.n_better, map->counts.n_unclear);
}

static enum moec_status fill_chart(const struct moec_profile *profile, const struct moec_heatmap *map,
                                   struct moec_chart *chart, struct moec_error *err)
{
    struct moec_heatmap_words words;
    char bits[16];
    int decimals = moec_heatmap_decimals(map);
    struct moec_chart_cells *cells = &chart->cells;
    MOEC_TRY(moec_chart_set_cells(chart, map->n_layer, map->n_expert, err));
    moec_heatmap_describe(profile, map, &words);
    (void)snprintf(chart->name, sizeof chart->name, "sensitivity_int%" PRIu32, map->bits);
    (void)snprintf(chart->title, sizeof chart->title, "%s", words.title);
    describe_extremes(profile, map, chart->caption, sizeof chart->caption);
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE, Fig. 7(a)");
    (void)snprintf(chart->provenance, sizeof chart->provenance, "Model: %s. Data: %s. Loss: %s.", words.model,
                   words.data, words.measure);
    chart->x = (struct moec_chart_axis){.name = "expert", .label = "expert", .is_whole = true};
    chart->y = (struct moec_chart_axis){.name = "layer", .is_whole = true};
    moec_profile_layer_label(profile, sizeof chart->y.label, chart->y.label);
    (void)snprintf(chart->value_label, sizeof chart->value_label, "loss over the baseline, %%");
    (void)snprintf(chart->value_name, sizeof chart->value_name, "loss_percent");
    for (uint32_t s = 0; s < map->n_layer; s++)
        cells->rows[s] = profile->moe_layers[s];
    for (uint64_t i = 0; i < (uint64_t)map->n_layer * map->n_expert; i++)
        if (map->cells.reached[i])
            cells->values[i] = 100 * map->cells.loss[i];
    cells->colours.scale = map->range.is_diverging ? MOEC_CHART_SCALE_DIVERGING : MOEC_CHART_SCALE_OVER;
    cells->colours.unit = 100 * map->range.unit;
    cells->colours.low = 100 * map->range.low;
    cells->colours.high = 100 * map->range.high;
    cells->colours.mark = 100 * map->range.baseline;
    cells->numbers.largest = 100 * map->range.largest;
    cells->numbers.decimals = decimals;
    moec_heatmap_bits_name(profile->baseline_bits, bits);
    (void)snprintf(cells->words.mark, sizeof cells->words.mark, "baseline, all experts %s: %.*f %%", bits,
                   decimals, 100 * map->range.baseline);
    (void)snprintf(cells->words.missing, sizeof cells->words.missing,
                   "never reached by the data, loss unknown (%" PRIu64 ")", map->counts.n_unreached);
    if (map->counts.n_unclear == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&cells->faded, (uint64_t)map->n_layer * map->n_expert, sizeof *cells->faded,
                        "faded cells", err));
    memcpy(cells->faded, map->cells.unclear, (size_t)map->n_layer * map->n_expert * sizeof *cells->faded);
    (void)snprintf(cells->words.faded, sizeof cells->words.faded, "may be noise (%" PRIu64 ")",
                   map->counts.n_unclear);
    return MOEC_OK;
}

enum moec_status moec_heatmap_chart(const struct moec_profile *profile, uint32_t bits,
                                    struct moec_chart *chart, struct moec_error *err)
{
    struct moec_heatmap map = {0};
    memset(chart, 0, sizeof *chart);
    chart->kind = MOEC_CHART_CELLS;
    MOEC_TRY(moec_heatmap_make(profile, bits, &map, err));
    enum moec_status status = fill_chart(profile, &map, chart, err);
    moec_heatmap_release(&map);
    if (status != MOEC_OK)
        moec_chart_release(chart);
    return status;
}

enum moec_status moec_heatmap_write(const struct moec_profile *profile, uint32_t bits, const char *path,
                                    struct moec_error *err)
{
    enum moec_plot_format format = MOEC_PLOT_CSV;
    enum moec_status status;
    MOEC_TRY(moec_plot_format_of(path, &format, err));
    if (format == MOEC_PLOT_CSV) {
        struct moec_heatmap map = {0};
        MOEC_TRY(moec_heatmap_make(profile, bits, &map, err));
        status = write_csv(profile, &map, path, err);
        moec_heatmap_release(&map);
        return status;
    }
    struct moec_chart chart;
    MOEC_TRY(moec_heatmap_chart(profile, bits, &chart, err));
    status = moec_chart_write(&chart, path, err);
    moec_chart_release(&chart);
    return status;
}
