#include "profiler/heatmap.h"

#include "formats/memory.h"
#include "formats/utf8.h"
#include "profiler/metrics.h"
#include "profiler/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- values ------------------------------------------------------------------------------------------------
 */

void moec_heatmap_release(struct moec_heatmap *heatmap)
{
    if (heatmap == NULL)
        return;
    free(heatmap->loss);
    free(heatmap->reached);
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

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Colours span the losses of reached experts and the baseline. When the largest lies more than twice as far
 * above the lowest as all but 5 % of the experts do, the scale ends at those: otherwise one expert would
 * leave the rest dark. */
static enum moec_status choose_range(struct moec_heatmap *map, struct moec_error *err)
{
    double *sorted = NULL;
    uint64_t n = (uint64_t)map->n_layer * map->n_expert, n_reached = 0;
    MOEC_TRY(moec_alloc((void **)&sorted, n, sizeof *sorted, "losses of a heatmap", err));
    for (uint64_t i = 0; i < n; i++)
        if (map->reached[i])
            sorted[n_reached++] = map->loss[i];
    map->n_unreached = n - n_reached;
    map->low = map->high = map->largest = map->baseline;
    if (n_reached > 0) {
        qsort(sorted, n_reached, sizeof *sorted, compare_doubles);
        double ordinary = sorted[(n_reached - 1) * 95 / 100];
        map->largest = sorted[n_reached - 1];
        map->low = fmin(map->baseline, sorted[0]);
        map->high = fmax(map->baseline, map->largest);
        if (map->high - map->low > 2 * (fmax(ordinary, map->baseline) - map->low))
            map->high = fmax(ordinary, map->baseline);
    }
    /* A profile where nothing differs still has a scale. */
    if (!(map->high - map->low > 1e-9))
        map->high = map->low + 1e-9;
    for (uint64_t i = 0; i < n_reached; i++)
        map->n_above += sorted[i] > map->high;
    free(sorted);
    return MOEC_OK;
}

/* A variant that guesses worse than chance in every token passes what a double can say of perplexity. */
static double finite_loss(const struct moec_profile *profile, const double *nll)
{
    return fmin(moec_profile_loss(profile, nll), MOEC_HEATMAP_MOST);
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
    heatmap->baseline = finite_loss(profile, profile->baseline.nll);
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&heatmap->loss, n, sizeof(double), "a heatmap", err));
    MOEC_TRY_OUT(moec_alloc((void **)&heatmap->reached, n, sizeof(bool), "a heatmap", err));
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++) {
            uint64_t i = (uint64_t)s * profile->n_expert + e;
            const double *nll = moec_profile_expert_row(profile, profile->expert_nll, s, e, b);
            heatmap->loss[i] = finite_loss(profile, nll);
            heatmap->reached[i] = moec_profile_expert_reached(profile, s, e);
        }
    MOEC_TRY_OUT(choose_range(heatmap, err));
out:
    if (status != MOEC_OK)
        moec_heatmap_release(heatmap);
    return status;
}

double moec_heatmap_unit(const struct moec_heatmap *heatmap, double loss)
{
    double unit = (loss - heatmap->low) / (heatmap->high - heatmap->low);
    return unit > 0 ? fmin(unit, 1) : 0;
}

int moec_heatmap_decimals(const struct moec_heatmap *heatmap)
{
    /* A hundredth of the range, in percent, is the range as a fraction. */
    int digits = (int)ceil(-log10(heatmap->high - heatmap->low));
    return digits < 0 ? 0 : digits > 6 ? 6 : digits;
}

/* --- words -------------------------------------------------------------------------------------------------
 */

/* Names come from files and end on terminals: control characters, those that turn the direction of writing,
 * and broken UTF-8 (which Cairo refuses) become '?'. */
static void copy_clean(char *to, size_t capacity, const char *from)
{
    size_t length = strnlen(from, capacity - 1), n = 0;
    for (size_t i = 0; i < length;) {
        struct moec_utf8_char c = moec_utf8_read(from + i, length - i);
        uint32_t point = c.code_point;
        bool good = c.valid && point >= 0x20 && !(point >= 0x7f && point < 0xa0) &&
                    !(point >= 0x202a && point <= 0x202e) && !(point >= 0x2066 && point <= 0x2069);
        if (good)
            memcpy(to + n, from + i, c.n_bytes);
        else
            to[n] = '?';
        n += good ? c.n_bytes : 1;
        i += c.n_bytes;
    }
    to[n] = '\0';
}

void moec_heatmap_bits_name(uint32_t bits, char name[static 16])
{
    (void)snprintf(name, 16, bits < 16 ? "INT%" PRIu32 : "%" PRIu32 "-bit", bits);
}

void moec_heatmap_describe(const struct moec_profile *profile, const struct moec_heatmap *heatmap,
                           struct moec_heatmap_words *words)
{
    char model[2 * MOEC_SHA256_BYTES + 1], data[2 * MOEC_SHA256_BYTES + 1];
    char name[sizeof profile->data_name], task[sizeof profile->task], metric[sizeof profile->metric];
    char version[sizeof profile->moec_version], arithmetic[sizeof profile->arithmetic], group[16] = "channel",
                                                                                        one[16], others[16];
    moec_sha256_hex(profile->model_digest, model);
    moec_sha256_hex(profile->data_digest, data);
    copy_clean(name, sizeof name, profile->data_name);
    copy_clean(task, sizeof task, profile->task);
    copy_clean(metric, sizeof metric, profile->metric);
    copy_clean(version, sizeof version, profile->moec_version);
    copy_clean(arithmetic, sizeof arithmetic, profile->arithmetic);
    if (profile->group > 0)
        (void)snprintf(group, sizeof group, "group of %u", (unsigned)profile->group);
    moec_heatmap_bits_name(heatmap->bits, one);
    moec_heatmap_bits_name(profile->baseline_bits, others);
    (void)snprintf(words->title, sizeof words->title,
                   "Loss of the model when one expert is %s and the others %s", one, others);
    (void)snprintf(words->model, sizeof words->model,
                   "%s, %" PRIu32 " MoE layers x %" PRIu32 " experts, top-%" PRIu32 ", SHA-256 %.12s",
                   profile->config.family, profile->n_moe_layer, profile->n_expert, profile->top_k, model);
    (void)snprintf(words->data, sizeof words->data,
                   "%s, task %s, %" PRIu32 " of %" PRIu64 " windows of up to %" PRIu32
                   " tokens, seed %" PRIu64 ", SHA-256 %.12s",
                   name, task, profile->n_window, profile->n_window_available, profile->seq_len_tokens,
                   profile->seed, data);
    (void)snprintf(
        words->measure, sizeof words->measure,
        "increase of %s over the original weights, all windows; %s quantisation, one scale per %s, "
        "%s arithmetic, moec %s; after EdgeMoE, Fig. 7(a)",
        metric, profile->scheme == MOEC_SCHEME_SYMMETRIC ? "symmetric" : "asymmetric", group, arithmetic,
        version);
}

/* --- table -------------------------------------------------------------------------------------------------
 */

static enum moec_status write_csv(const struct moec_profile *profile, const struct moec_heatmap *map,
                                  const char *path, struct moec_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    (void)fputs("layer,expert,bits,reached,activations,loss_percent,baseline_loss_percent\n", stream);
    for (uint32_t s = 0; s < map->n_layer; s++)
        for (uint32_t e = 0; e < map->n_expert; e++) {
            uint64_t i = (uint64_t)s * map->n_expert + e;
            (void)fprintf(stream, "%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%d,%" PRIu64 ",%.9g,%.9g\n",
                          profile->moe_layers[s], e, map->bits, map->reached[i], profile->activations[i],
                          100 * map->loss[i], 100 * map->baseline);
        }
    enum moec_status status = MOEC_OK;
    if (fclose(stream) != 0)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", path);
    else
        status = moec_plot_write_csv(path, text, n_bytes, err);
    free(text);
    return status;
}

/* --- picture -----------------------------------------------------------------------------------------------
 */

static const struct moec_colour black = {0, 0, 0}, grey = {90, 90, 90}, red = {214, 39, 40};

#define MARGIN      16.0
#define LINE_HEIGHT 12.0
#define BAR_WIDTH   14.0

/* Where things stand, in points. */
struct layout {
    double cell_width, cell_height; /* with the gap that separates cells */
    double gap;
    double left, top; /* of the cells */
    double cells_width, cells_height;
    double bar_left, bar_height;
    double legend_top;
    double width, height;
    int decimals; /* of numbers in cells; -1 = none */
};

/* Cells fill 960 x 560 points, stay readable in models with many experts and do not become slabs in small
 * ones. */
static double cell_side(uint32_t n, double room)
{
    double side = floor(room / n);
    if (side >= 8)
        return fmin(side, 48);
    return n <= 256 ? 8 : fmax(2, floor(2048.0 / n));
}

static struct moec_plot_font font_of(double size, bool bold, struct moec_colour colour)
{
    return (struct moec_plot_font){.size = size, .bold = bold, .colour = colour};
}

static bool numbers_fit(const struct moec_heatmap *map, const struct layout *at, int decimals)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%.*f", decimals, 100 * map->largest);
    return at->cell_height >= 14 &&
           moec_plot_text_width(font_of(8, false, black), text) <= at->cell_width - 4;
}

static struct layout lay_out(const struct moec_heatmap *map, const char *caption)
{
    struct layout at = {.left = MARGIN + 46, .top = MARGIN + 30, .decimals = -1};
    at.cell_width = cell_side(map->n_expert, 960);
    at.cell_height = fmin(cell_side(map->n_layer, 560), fmax(at.cell_width, 12));
    at.gap = fmin(at.cell_width, at.cell_height) >= 8 ? 1 : 0;
    at.cells_width = at.cell_width * map->n_expert;
    at.cells_height = at.cell_height * map->n_layer;
    at.bar_left = at.left + at.cells_width + 26;
    at.bar_height = fmax(at.cells_height, 120);
    at.legend_top = at.top + fmax(at.cells_height + 36, at.bar_height + 8) + 8;
    at.width = fmax(at.bar_left + BAR_WIDTH + 74 + MARGIN, 700);
    uint32_t n_line =
        moec_plot_paragraph(NULL, 0, 0, at.width - 2 * MARGIN, LINE_HEIGHT, font_of(8, false, grey), caption);
    at.height = at.legend_top + 20 + n_line * LINE_HEIGHT + MARGIN;
    for (int decimals = moec_heatmap_decimals(map); decimals >= 1 && at.decimals < 0; decimals--)
        if (numbers_fit(map, &at, decimals))
            at.decimals = decimals;
    return at;
}

static void draw_cells(struct moec_plot *plot, const struct moec_heatmap *map, const struct layout *at)
{
    double width = at->cell_width - at->gap, height = at->cell_height - at->gap;
    for (uint32_t s = 0; s < map->n_layer; s++)
        for (uint32_t e = 0; e < map->n_expert; e++) {
            uint64_t i = (uint64_t)s * map->n_expert + e;
            double x = at->left + e * at->cell_width, y = at->top + s * at->cell_height;
            if (!map->reached[i]) {
                moec_plot_hatch(plot, x, y, width, height);
                continue;
            }
            struct moec_colour colour = moec_colour_of(moec_heatmap_unit(map, map->loss[i]));
            moec_plot_rectangle(plot, x, y, width, height, colour);
            if (at->decimals < 0)
                continue;
            char text[64];
            (void)snprintf(text, sizeof text, "%.*f", at->decimals, 100 * map->loss[i]);
            moec_plot_text(plot, x + width / 2, y + height / 2, MOEC_PLOT_CENTRE,
                           font_of(8, false, moec_colour_ink(colour)), text);
        }
}

static void draw_axes(struct moec_plot *plot, const struct moec_profile *profile,
                      const struct moec_heatmap *map, const struct layout *at)
{
    char number[16];
    const struct moec_plot_font font = font_of(9, false, black), label = font_of(10, false, black);
    double bottom = at->top + at->cells_height;
    uint32_t every = moec_ticks_every(map->n_expert, at->cell_width, map->n_expert > 1000 ? 34 : 26);
    for (uint32_t e = 0; e < map->n_expert; e += every) {
        double x = at->left + (e + 0.5) * at->cell_width - at->gap / 2;
        moec_plot_line(plot, x, bottom + 1, x, bottom + 4, 0.6, black);
        (void)snprintf(number, sizeof number, "%" PRIu32, e);
        moec_plot_text(plot, x, bottom + 11, MOEC_PLOT_CENTRE, font, number);
    }
    every = moec_ticks_every(map->n_layer, at->cell_height, 12);
    for (uint32_t s = 0; s < map->n_layer; s += every) {
        double y = at->top + (s + 0.5) * at->cell_height - at->gap / 2;
        moec_plot_line(plot, at->left - 4, y, at->left - 1, y, 0.6, black);
        (void)snprintf(number, sizeof number, "%" PRIu32, profile->moe_layers[s]);
        moec_plot_text(plot, at->left - 7, y, MOEC_PLOT_RIGHT, font, number);
    }
    moec_plot_text(plot, at->left + at->cells_width / 2, bottom + 27, MOEC_PLOT_CENTRE, label, "expert");
    moec_plot_text_up(plot, MARGIN + 8, at->top + at->cells_height / 2, label, "layer");
}

static void draw_bar(struct moec_plot *plot, const struct moec_heatmap *map, const struct layout *at)
{
    double span = map->high - map->low;
    double y = at->top + at->bar_height * (map->high - map->baseline) / span;
    moec_plot_colour_bar(plot, at->bar_left, at->top, BAR_WIDTH, at->bar_height, 100 * map->low,
                         100 * map->high, font_of(9, false, black));
    moec_plot_marker(plot, at->bar_left - 1, y, 8, red);
    moec_plot_line(plot, at->bar_left, y, at->bar_left + BAR_WIDTH, y, 1.2, red);
    moec_plot_text_up(plot, at->bar_left + BAR_WIDTH + 58, at->top + at->bar_height / 2,
                      font_of(10, false, black),
                      at->bar_height >= 180 ? "loss against the original, %" : "loss, %");
}

static void draw_legend(struct moec_plot *plot, const struct moec_profile *profile,
                        const struct moec_heatmap *map, const struct layout *at)
{
    char text[160], bits[16];
    const struct moec_plot_font font = font_of(9, false, black);
    double x = at->left, y = at->legend_top;
    int decimals = moec_heatmap_decimals(map);
    moec_plot_marker(plot, x + 8, y, 8, red);
    moec_heatmap_bits_name(profile->baseline_bits, bits);
    (void)snprintf(text, sizeof text, "baseline, all experts %s: %.*f %%", bits, decimals,
                   100 * map->baseline);
    moec_plot_text(plot, x + 13, y, MOEC_PLOT_LEFT, font, text);
    x += 13 + moec_plot_text_width(font, text) + 20;
    if (map->n_unreached > 0) {
        moec_plot_hatch(plot, x, y - 5, 14, 10);
        (void)snprintf(text, sizeof text, "never reached by the data, loss unknown (%" PRIu64 ")",
                       map->n_unreached);
        moec_plot_text(plot, x + 19, y, MOEC_PLOT_LEFT, font, text);
        x += 19 + moec_plot_text_width(font, text) + 20;
    }
    if (map->n_above > 0) {
        moec_plot_rectangle(plot, x, y - 5, 14, 10, moec_colour_of(1));
        (void)snprintf(text, sizeof text, "%" PRIu64 " above the scale, up to %.*f %%", map->n_above,
                       decimals, 100 * map->largest);
        moec_plot_text(plot, x + 19, y, MOEC_PLOT_LEFT, font, text);
    }
}

static enum moec_status draw(const struct moec_profile *profile, const struct moec_heatmap *map,
                             const char *path, enum moec_plot_format format, struct moec_error *err)
{
    struct moec_heatmap_words words;
    struct moec_plot *plot = NULL;
    char caption[sizeof words + 64];
    moec_heatmap_describe(profile, map, &words);
    (void)snprintf(caption, sizeof caption, "Model: %s. Data: %s. Loss: %s.", words.model, words.data,
                   words.measure);
    struct layout at = lay_out(map, caption);
    MOEC_TRY(moec_plot_open(path, format, at.width, at.height, words.title, &plot, err));
    moec_plot_text(plot, at.left, MARGIN + 8, MOEC_PLOT_LEFT, font_of(13, true, black), words.title);
    draw_cells(plot, map, &at);
    draw_axes(plot, profile, map, &at);
    draw_bar(plot, map, &at);
    draw_legend(plot, profile, map, &at);
    (void)moec_plot_paragraph(plot, MARGIN, at.legend_top + 22, at.width - 2 * MARGIN, LINE_HEIGHT,
                              font_of(8, false, grey), caption);
    return moec_plot_commit(plot, err);
}

enum moec_status moec_heatmap_write(const struct moec_profile *profile, uint32_t bits, const char *path,
                                    struct moec_error *err)
{
    enum moec_plot_format format = MOEC_PLOT_CSV;
    struct moec_heatmap map = {0};
    MOEC_TRY(moec_plot_format_of(path, &format, err));
    MOEC_TRY(moec_heatmap_make(profile, bits, &map, err));
    enum moec_status status = format == MOEC_PLOT_CSV ? write_csv(profile, &map, path, err)
                                                      : draw(profile, &map, path, format, err);
    moec_heatmap_release(&map);
    return status;
}
