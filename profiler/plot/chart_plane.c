/* Lines, points and bars between two axes. */
#include "profiler/plot/chart_draw.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_TICK    32
#define CHUNK       256 /* points handed to Cairo at once */
#define LEGEND_LINE 14.0
#define SWATCH      22.0
#define MANY_POINTS 60
#define LABEL_LINES 3
#define GROUP_PART  0.8 /* of a category that its bars fill */

static const struct moec_colour grid = {225, 225, 225};

/* ---- scales ---- */

struct scale {
    double low, high; /* of values */
    double from, to;  /* where they stand, in points */
    bool is_log;
    bool has_floor; /* logarithmic: smaller values stand on the lower end, which then means no number */
    bool is_cut;    /* some of those are above zero */
};

static double place(const struct scale *scale, double value)
{
    if (scale->is_log && value <= scale->low)
        return scale->from;
    double part = scale->is_log ? log(value / scale->low) / log(scale->high / scale->low)
                                : (value - scale->low) / (scale->high - scale->low);
    return scale->from + fmin(fmax(part, 0), 1) * (scale->to - scale->from);
}

static bool is_shown(const struct scale *scale, double value)
{
    return isfinite(value) && (!scale->is_log || scale->has_floor || value > 0);
}

static void widen(struct scale *scale, double value)
{
    if (!is_shown(scale, value))
        return;
    scale->low = fmin(scale->low, value);
    scale->high = fmax(scale->high, value);
}

/* Both ends apart, with air where they are not zero and not fixed. */
static void finish_scale(struct scale *scale, const struct moec_chart_axis *axis, double air)
{
    if (axis->low < axis->high) {
        scale->low = axis->low;
        scale->high = axis->high;
        return;
    }
    if (axis->has_zero && !scale->is_log)
        widen(scale, 0);
    if (!(scale->low <= scale->high))
        scale->low = scale->high = 1;
    if (scale->is_log) {
        double factor = fmax(pow(scale->high / scale->low, air), 1.05);
        scale->low = fmax(scale->low / factor, 1e-300);
        scale->high = fmin(scale->high * factor, 1e300);
        return;
    }
    double span = scale->high - scale->low, size = fmax(fabs(scale->low), fabs(scale->high));
    double step = span > 1e-9 * size ? air * span : fmax(1e-3 * size, 1e-9);
    if (scale->low != 0 || !axis->has_zero)
        scale->low -= step;
    if (scale->high != 0 || !axis->has_zero)
        scale->high += step;
}

static struct scale scale_x(const struct moec_chart *chart)
{
    struct scale scale = {.low = INFINITY, .high = -INFINITY, .is_log = chart->x.is_log};
    if (chart->x.n_category > 0)
        return (struct scale){.low = -0.5, .high = chart->x.n_category - 0.5};
    for (uint32_t s = 0; s < chart->n_series; s++)
        for (uint64_t i = 0; i < chart->series[s].n; i++)
            widen(&scale, chart->series[s].x[i]);
    finish_scale(&scale, &chart->x, 0.02);
    return scale;
}

/* Most decades of a logarithmic scale: what is smaller does not matter beside the rest. */
#define MOST_RATIO 1e5

/* The ends of values and intervals of y. */
static void widen_by_series(struct scale *scale, const struct moec_chart_series *series)
{
    for (uint64_t i = 0; i < series->n; i++) {
        widen(scale, series->y[i]);
        /* On a logarithmic scale an interval may reach down to any number. */
        if (series->has_interval) {
            widen(scale, series->high[i]);
            if (!scale->is_log)
                widen(scale, series->low[i]);
        }
    }
}

/* Makes room on a logarithmic scale for values that it cannot show. */
static void add_floor(struct scale *scale, const struct moec_chart *chart)
{
    double least = scale->high / MOST_RATIO;
    scale->is_cut = scale->low < least;
    scale->low = fmax(scale->low, least);
    for (uint32_t s = 0; s < chart->n_series; s++)
        for (uint64_t i = 0; i < chart->series[s].n; i++)
            scale->has_floor = scale->has_floor || chart->series[s].y[i] < scale->low;
    if (scale->has_floor)
        scale->low /= pow(scale->high / scale->low, 0.12) * 1.2;
}

static struct scale scale_y(const struct moec_chart *chart)
{
    struct scale scale = {.low = INFINITY, .high = -INFINITY, .is_log = chart->y.is_log};
    struct moec_chart_axis axis = chart->y;
    for (uint32_t s = 0; s < chart->n_series; s++)
        widen_by_series(&scale, &chart->series[s]);
    for (uint32_t i = 0; i < chart->n_rule; i++)
        if (!chart->rules[i].is_upright)
            widen(&scale, chart->rules[i].at);
    if (scale.is_log && scale.low <= scale.high)
        add_floor(&scale, chart);
    axis.has_zero = axis.has_zero || chart->kind == MOEC_CHART_BARS;
    double low = scale.low;
    finish_scale(&scale, &axis, chart->has_value_labels ? 0.09 : 0.05);
    if (scale.has_floor)
        scale.low = low;
    return scale;
}

/* ---- ticks ---- */

struct ticks {
    uint32_t n;
    double at[MAX_TICK];
    char text[MAX_TICK][16];
};

/* Thousands and millions by letter, so that labels stay short. */
static void name_tick(char text[16], double value, double step, int decimals)
{
    static const struct {
        double unit;
        const char *letter;
    } units[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    if (fabs(value) < step / 2)
        value = 0; /* -0.0 would show its sign */
    if (fabs(value) >= 1e12 || decimals > 6) {
        (void)snprintf(text, 16, "%.2g", value);
        return;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (fabs(value) >= units[i].unit && fabs(value) >= 1e4) {
            (void)snprintf(text, 16, "%.4g%s", value / units[i].unit, units[i].letter);
            return;
        }
    (void)snprintf(text, 16, "%.*f", decimals, value);
}

static void linear_ticks(const struct scale *scale, uint32_t most, bool is_whole, struct ticks *ticks)
{
    most = most < MAX_TICK ? most : MAX_TICK;
    struct moec_ticks chosen = moec_ticks_choose(scale->low, scale->high, most < 2 ? 2 : most);
    if (is_whole && chosen.step < 1) {
        chosen = (struct moec_ticks){.first = ceil(scale->low), .step = 1};
        chosen.n = (uint32_t)fmax(0, floor(scale->high) - chosen.first + 1);
    }
    ticks->n = 0;
    for (uint32_t i = 0; i < chosen.n && i < MAX_TICK; i++) {
        ticks->at[ticks->n] = chosen.first + i * chosen.step;
        name_tick(ticks->text[ticks->n], ticks->at[ticks->n], chosen.step, chosen.decimals);
        ticks->n++;
    }
}

/* Powers of ten, with twice and five times them where there is room. */
static void log_ticks(const struct scale *scale, uint32_t most, struct ticks *ticks)
{
    static const double multiples[] = {1, 2, 5};
    int last = (int)floor(log10(scale->high)), lowest = (int)ceil(log10(scale->low));
    int n_decade = last - lowest + 1, room = (int)most;
    int n_multiple = 3 * n_decade <= room ? 3 : 1;
    int every = n_decade > room ? (n_decade + room - 1) / room : 1;
    ticks->n = 0;
    /* Below the first power there is room for its multiples alone. */
    for (int power = n_multiple > 1 ? lowest - 1 : lowest; power <= last; power += every)
        for (int m = 0; m < n_multiple && ticks->n < MAX_TICK; m++) {
            double value = multiples[m] * pow(10, power);
            if (value < scale->low * (1 - 1e-9) || value > scale->high * (1 + 1e-9))
                continue;
            ticks->at[ticks->n] = value;
            if (value >= 1e4 || value < 1e-4)
                name_tick(ticks->text[ticks->n], value, 0, value < 1 ? 9 : 0);
            else
                (void)snprintf(ticks->text[ticks->n], sizeof *ticks->text, "%g", value);
            ticks->n++;
        }
    if (ticks->n < 2)
        linear_ticks(scale, most, false, ticks);
    if (!scale->has_floor || ticks->n == MAX_TICK)
        return;
    /* The floor takes the place of a tick that is too close to it. */
    if (ticks->n > 0 && log(ticks->at[0] / scale->low) < 0.07 * log(scale->high / scale->low)) {
        memmove(ticks->at, ticks->at + 1, (ticks->n - 1) * sizeof *ticks->at);
        memmove(ticks->text, ticks->text + 1, (ticks->n - 1) * sizeof *ticks->text);
        ticks->n--;
    }
    ticks->at[ticks->n] = scale->low;
    (void)snprintf(ticks->text[ticks->n++], sizeof *ticks->text, scale->is_cut ? "≈ 0" : "≤ 0");
}

static void choose_ticks(const struct scale *scale, double length, double room, bool is_whole,
                         struct ticks *ticks)
{
    uint32_t most = (uint32_t)fmin(fmax(length / room, 2), 12);
    if (scale->is_log)
        log_ticks(scale, most, ticks);
    else
        linear_ticks(scale, most, is_whole, ticks);
}

/* ---- names of categories ---- */

/* Breaks a name at spaces into lines no wider than `room`, as far as words allow; returns their number and
 * the widest. */
static uint32_t break_name(const char *name, double room, struct moec_plot_font font,
                           char lines[LABEL_LINES][MOEC_CHART_LABEL], double *widest)
{
    uint32_t n = 0;
    *widest = 0;
    while (*name != '\0' && n < LABEL_LINES) {
        size_t best = 0, used = 0;
        char *line = lines[n];
        while (name[used] != '\0') {
            size_t word = used + strspn(name + used, " ");
            word += strcspn(name + word, " ");
            memcpy(line, name, word);
            line[word] = '\0';
            if (best > 0 && n + 1 < LABEL_LINES && moec_plot_text_width(font, line) > room)
                break;
            best = used = word;
        }
        line[best] = '\0';
        *widest = fmax(*widest, moec_plot_text_width(font, line));
        name += best + strspn(name + best, " ");
        n++;
    }
    return n;
}

/* How the names of an axis of categories are written: every which one, in how many lines, how large. */
struct naming {
    uint32_t every, n_line;
    double size;
};

static struct naming choose_naming(const struct moec_chart_axis *axis, double length)
{
    char lines[LABEL_LINES][MOEC_CHART_LABEL];
    struct naming naming = {.every = 1, .n_line = 1, .size = MOEC_CHART_TEXT};
    double slot = length / axis->n_category, widest = 0, width = 0;
    for (; naming.size >= 7; naming.size -= 1) {
        widest = 0;
        naming.n_line = 1;
        for (uint32_t i = 0; i < axis->n_category; i++) {
            uint32_t n = break_name(axis->categories[i], slot - 4,
                                    moec_chart_font(naming.size, moec_chart_black), lines, &width);
            naming.n_line = n > naming.n_line ? n : naming.n_line;
            widest = fmax(widest, width);
        }
        if (widest <= slot - 2)
            return naming;
    }
    naming.size = 7;
    naming.every = moec_ticks_every(axis->n_category, slot, widest + 4);
    return naming;
}

static void draw_names(struct moec_plot *plot, const struct moec_chart_axis *axis, const struct scale *scale,
                       double y)
{
    char lines[LABEL_LINES][MOEC_CHART_LABEL];
    double length = scale->to - scale->from, width = 0;
    struct naming naming = choose_naming(axis, length);
    double room = naming.every * length / axis->n_category - 4;
    const struct moec_plot_font font = moec_chart_font(naming.size, moec_chart_black);
    for (uint32_t i = 0; i < axis->n_category; i += naming.every) {
        uint32_t n = break_name(axis->categories[i], room, font, lines, &width);
        for (uint32_t l = 0; l < n; l++)
            moec_plot_text(plot, place(scale, i), y + l * (naming.size + 2), MOEC_PLOT_CENTRE, font,
                           lines[l]);
    }
}

/* ---- layout ---- */

static bool has_legend(const struct moec_chart *chart)
{
    for (uint32_t r = 0; r < chart->n_rule; r++)
        if (!chart->rules[r].is_upright)
            return true;
    return chart->n_series > 1 || (chart->n_series == 1 && chart->series[0].name[0] != '\0');
}

/* Draws the legend where plot is not NULL; returns the middle of its last line. */
static double run_legend(struct moec_plot *plot, const struct moec_chart *chart,
                         const struct moec_chart_layout *at)
{
    const struct moec_plot_font font = moec_chart_font(MOEC_CHART_TEXT, moec_chart_black);
    struct moec_chart_flow flow = {.left = at->plot.left,
                                   .right = at->width - at->margin,
                                   .line_height = LEGEND_LINE,
                                   .x = at->plot.left,
                                   .y = at->legend_top};
    for (uint32_t s = 0; s < chart->n_series; s++) {
        double x =
            moec_chart_flow_take(&flow, SWATCH + 5 + moec_plot_text_width(font, chart->series[s].name) + 14);
        if (plot == NULL)
            continue;
        double ends[2] = {x, x + SWATCH}, middle[2] = {flow.y, flow.y};
        if (chart->kind == MOEC_CHART_BARS) {
            moec_plot_bar(plot, (struct moec_plot_box){x + 4, flow.y - 5, SWATCH - 8, 10}, s);
        } else {
            if (chart->kind == MOEC_CHART_LINES)
                moec_plot_polyline(plot, ends, middle, 2, 1.5, s);
            moec_plot_symbol(plot, x + SWATCH / 2, flow.y, 5.5, s);
        }
        moec_plot_text(plot, x + SWATCH + 5, flow.y, MOEC_PLOT_LEFT, font, chart->series[s].name);
    }
    for (uint32_t r = 0; r < chart->n_rule; r++) {
        if (chart->rules[r].is_upright)
            continue;
        double x =
            moec_chart_flow_take(&flow, SWATCH + 5 + moec_plot_text_width(font, chart->rules[r].label) + 14);
        if (plot == NULL)
            continue;
        moec_plot_line(plot, (struct moec_plot_point){x, flow.y},
                       (struct moec_plot_point){x + SWATCH, flow.y}, 1, moec_chart_grey);
        moec_plot_text(plot, x + SWATCH + 5, flow.y, MOEC_PLOT_LEFT, font, chart->rules[r].label);
    }
    return flow.y;
}

struct moec_chart_layout moec_chart_lay_out_plane(const struct moec_chart *chart, double width, double margin,
                                                  double top)
{
    struct moec_chart_layout at = {.width = width, .margin = margin, .plot.right = width - margin - 8};
    const struct moec_plot_font font = moec_chart_font(MOEC_CHART_TEXT, moec_chart_black);
    double height = fmin(fmax(0.52 * width, 170), 260), widest = 0;
    struct scale y = scale_y(chart);
    struct ticks ticks;
    choose_ticks(&y, height, 32, chart->y.is_whole, &ticks);
    for (uint32_t i = 0; i < ticks.n; i++)
        widest = fmax(widest, moec_plot_text_width(font, ticks.text[i]));
    at.plot.left = margin + 18 + widest + 7;
    at.legend_top = top + 5;
    at.plot.top = has_legend(chart) ? run_legend(NULL, chart, &at) + 14 : top + 4;
    at.plot.bottom = at.plot.top + height;
    uint32_t n_line =
        chart->x.n_category > 0 ? choose_naming(&chart->x, at.plot.right - at.plot.left).n_line : 1;
    at.text_top = at.plot.bottom + 11 + (n_line - 1) * (MOEC_CHART_TEXT + 2) +
                  (chart->x.label[0] != '\0' ? 16 : 0) + 18;
    return at;
}

/* ---- drawing ---- */

/* What the drawing of one chart shares. */
struct plane {
    struct moec_plot *plot;
    const struct moec_chart *chart;
    const struct moec_chart_layout *at;
    struct scale x, y;
};

static void draw_axes(const struct plane *plane)
{
    const struct moec_chart_layout *at = plane->at;
    const struct moec_chart *chart = plane->chart;
    const struct moec_plot_font font = moec_chart_font(MOEC_CHART_TEXT, moec_chart_black);
    const struct moec_plot_font label = moec_chart_font(MOEC_CHART_AXIS_TEXT, moec_chart_black);
    struct moec_plot *plot = plane->plot;
    struct ticks ticks;
    choose_ticks(&plane->y, at->plot.bottom - at->plot.top, 32, chart->y.is_whole, &ticks);
    for (uint32_t i = 0; i < ticks.n; i++) {
        double y = place(&plane->y, ticks.at[i]);
        moec_plot_line(plot, (struct moec_plot_point){at->plot.left, y},
                       (struct moec_plot_point){at->plot.right, y}, 0.6, grid);
        moec_plot_line(plot, (struct moec_plot_point){at->plot.left - 3, y},
                       (struct moec_plot_point){at->plot.left, y}, 0.6, moec_chart_black);
        moec_plot_text(plot, at->plot.left - 6, y, MOEC_PLOT_RIGHT, font, ticks.text[i]);
    }
    double names_bottom = at->plot.bottom + 11;
    if (chart->x.n_category > 0) {
        draw_names(plot, &chart->x, &plane->x, names_bottom);
        names_bottom +=
            (choose_naming(&chart->x, at->plot.right - at->plot.left).n_line - 1) * (MOEC_CHART_TEXT + 2);
    } else {
        choose_ticks(&plane->x, at->plot.right - at->plot.left, 38, chart->x.is_whole, &ticks);
        for (uint32_t i = 0; i < ticks.n; i++) {
            double x = place(&plane->x, ticks.at[i]);
            moec_plot_line(plot, (struct moec_plot_point){x, at->plot.bottom},
                           (struct moec_plot_point){x, at->plot.bottom + 3}, 0.6, moec_chart_black);
            moec_plot_text(plot, x, names_bottom, MOEC_PLOT_CENTRE, font, ticks.text[i]);
        }
    }
    moec_plot_line(plot, (struct moec_plot_point){at->plot.left, at->plot.top},
                   (struct moec_plot_point){at->plot.left, at->plot.bottom}, 0.8, moec_chart_black);
    moec_plot_line(plot, (struct moec_plot_point){at->plot.left, at->plot.bottom},
                   (struct moec_plot_point){at->plot.right, at->plot.bottom}, 0.8, moec_chart_black);
    moec_plot_text(plot, (at->plot.left + at->plot.right) / 2, names_bottom + 16, MOEC_PLOT_CENTRE, label,
                   chart->x.label);
    /* Twelve points from the edge: an upright label is as wide as its letters are high. */
    moec_plot_text_up(plot, at->margin + 6, (at->plot.top + at->plot.bottom) / 2, label, chart->y.label);
}

/* Its name stands along an upright line, since a legend could not tell two of them apart. */
static void draw_upright(const struct plane *plane, const struct moec_chart_rule *rule)
{
    const struct moec_plot_font font = moec_chart_font(MOEC_CHART_TEXT, moec_chart_grey);
    const double x = place(&plane->x, rule->at), top = plane->at->plot.top;
    const double beside = x - plane->at->plot.left > 16 ? x - 6 : x + 6;
    moec_plot_line(plane->plot, (struct moec_plot_point){x, top},
                   (struct moec_plot_point){x, plane->at->plot.bottom}, 1, moec_chart_grey);
    moec_plot_text_up(plane->plot, beside, top + 3 + moec_plot_text_width(font, rule->label) / 2, font,
                      rule->label);
}

static void draw_rules(const struct plane *plane)
{
    for (uint32_t i = 0; i < plane->chart->n_rule; i++) {
        double at = plane->chart->rules[i].at;
        if (plane->chart->rules[i].is_upright) {
            if (!is_shown(&plane->x, at) || at < plane->x.low || at > plane->x.high)
                continue;
            draw_upright(plane, &plane->chart->rules[i]);
            continue;
        }
        if (!is_shown(&plane->y, at))
            continue;
        double y = place(&plane->y, at);
        moec_plot_line(plane->plot, (struct moec_plot_point){plane->at->plot.left, y},
                       (struct moec_plot_point){plane->at->plot.right, y}, 1, moec_chart_grey);
    }
}

/* Series at the same categories stand a little beside each other. */
static double dodge(const struct plane *plane, uint32_t s)
{
    if (plane->chart->x.n_category == 0)
        return 0;
    double slot = (plane->x.to - plane->x.from) / plane->chart->x.n_category;
    return (s - (plane->chart->n_series - 1) / 2.0) * fmin(7, 0.6 * slot / plane->chart->n_series);
}

static void draw_interval(const struct plane *plane, double x, double low, double high, double cap,
                          struct moec_colour colour)
{
    if (!isfinite(low) || !isfinite(high))
        return;
    /* On a logarithmic scale an end that is not positive lies below the plot. */
    double bottom = place(&plane->y, low), top = place(&plane->y, high);
    moec_plot_line(plane->plot, (struct moec_plot_point){x, bottom}, (struct moec_plot_point){x, top}, 0.9,
                   colour);
    if (cap <= 0)
        return;
    moec_plot_line(plane->plot, (struct moec_plot_point){x - cap, top},
                   (struct moec_plot_point){x + cap, top}, 0.9, colour);
    if (!plane->y.is_log || low > plane->y.low)
        moec_plot_line(plane->plot, (struct moec_plot_point){x - cap, bottom},
                       (struct moec_plot_point){x + cap, bottom}, 0.9, colour);
}

/* Runs of points that can be joined, a chunk at a time. */
static void draw_joined(const struct plane *plane, uint32_t s, bool is_band)
{
    const struct moec_chart_series *series = &plane->chart->series[s];
    double x[CHUNK], a[CHUNK], b[CHUNK];
    size_t n = 0;
    for (uint64_t i = 0; i <= series->n; i++) {
        bool is_joined = i < series->n && is_shown(&plane->x, series->x[i]) &&
                         (is_band ? isfinite(series->low[i]) && isfinite(series->high[i])
                                  : is_shown(&plane->y, series->y[i]));
        if (is_joined) {
            x[n] = place(&plane->x, series->x[i]) + dodge(plane, s);
            a[n] = place(&plane->y, is_band ? series->low[i] : series->y[i]);
            b[n] = is_band ? place(&plane->y, series->high[i]) : 0;
            n++;
        }
        if (n > 1 && (!is_joined || n == CHUNK)) {
            if (is_band)
                moec_plot_band(plane->plot, x, a, b, n, s);
            else
                moec_plot_polyline(plane->plot, x, a, n, 1.5, s);
        }
        if (!is_joined) {
            n = 0;
        } else if (n == CHUNK) {
            x[0] = x[n - 1];
            a[0] = a[n - 1];
            b[0] = b[n - 1];
            n = 1;
        }
    }
}

static void draw_series(const struct plane *plane, uint32_t s)
{
    const struct moec_chart_series *series = &plane->chart->series[s];
    bool is_line = plane->chart->kind == MOEC_CHART_LINES;
    uint64_t every = is_line && series->n > MANY_POINTS ? (series->n + 14) / 15 : 1;
    double size = series->n > 4 * MANY_POINTS ? 2.6 : series->n > MANY_POINTS ? 4 : 5;
    if (is_line)
        draw_joined(plane, s, false);
    for (uint64_t i = 0; i < series->n; i++) {
        if (!is_shown(&plane->x, series->x[i]) || !is_shown(&plane->y, series->y[i]))
            continue;
        double x = place(&plane->x, series->x[i]) + dodge(plane, s);
        if (series->has_interval && !series->is_band)
            draw_interval(plane, x, series->low[i], series->high[i], series->n > MANY_POINTS ? 0 : 2.5,
                          moec_colour_series(s));
        if (i % every == 0)
            moec_plot_symbol(plane->plot, x, place(&plane->y, series->y[i]), size, s);
    }
}

static double bar_width(const struct plane *plane)
{
    double slot = (plane->x.to - plane->x.from) / plane->chart->x.n_category;
    return fmin(GROUP_PART * slot / plane->chart->n_series, 46);
}

/* Middle of the bar of series s at a category. */
static double bar_middle(const struct plane *plane, uint32_t s, double category)
{
    return place(&plane->x, category) + (s - (plane->chart->n_series - 1) / 2.0) * bar_width(plane);
}

static void draw_bars(const struct plane *plane)
{
    double width = bar_width(plane), zero = place(&plane->y, 0);
    for (uint32_t s = 0; s < plane->chart->n_series; s++) {
        const struct moec_chart_series *series = &plane->chart->series[s];
        for (uint64_t i = 0; i < series->n; i++) {
            if (!isfinite(series->y[i]) || !isfinite(series->x[i]))
                continue;
            double x = bar_middle(plane, s, series->x[i]), y = place(&plane->y, series->y[i]);
            moec_plot_bar(plane->plot,
                          (struct moec_plot_box){x - width / 2, fmin(y, zero), width, fabs(y - zero)}, s);
            if (series->has_interval)
                draw_interval(plane, x, series->low[i], series->high[i], fmin(3, width / 3),
                              moec_chart_black);
        }
    }
    moec_plot_line(plane->plot, (struct moec_plot_point){plane->at->plot.left, zero},
                   (struct moec_plot_point){plane->at->plot.right, zero}, 0.8, moec_chart_black);
}

/* Numbers over bars and points, all or none: a part of them would look chosen. */
static void draw_value_labels(const struct plane *plane)
{
    const struct moec_chart *chart = plane->chart;
    const struct moec_plot_font font = moec_chart_font(MOEC_CHART_SMALL - 0.5, moec_chart_black);
    bool is_bars = chart->kind == MOEC_CHART_BARS;
    double room = is_bars ? GROUP_PART * (plane->x.to - plane->x.from) / chart->x.n_category / chart->n_series
                          : (plane->x.to - plane->x.from) / fmax(1, chart->x.n_category);
    char text[MOEC_CHART_NUMBER];
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t s = 0; s < chart->n_series; s++)
            for (uint64_t i = 0; i < chart->series[s].n; i++) {
                const struct moec_chart_series *series = &chart->series[s];
                if (!is_shown(&plane->y, series->y[i]) || !isfinite(series->x[i]))
                    continue;
                (void)moec_chart_number(text, series->y[i]);
                if (pass == 0 && moec_plot_text_width(font, text) > room + 2)
                    return;
                double top = series->has_interval && is_shown(&plane->y, series->high[i])
                                 ? fmax(series->high[i], series->y[i])
                                 : series->y[i];
                double x = is_bars ? bar_middle(plane, s, series->x[i]) : place(&plane->x, series->x[i]);
                if (pass == 1)
                    moec_plot_text(plane->plot, x, place(&plane->y, is_bars ? fmax(top, 0) : top) - 8,
                                   MOEC_PLOT_CENTRE, font, text);
            }
}

void moec_chart_draw_plane(struct moec_plot *plot, const struct moec_chart *chart,
                           const struct moec_chart_layout *at)
{
    struct plane plane = {.plot = plot, .chart = chart, .at = at, .x = scale_x(chart), .y = scale_y(chart)};
    plane.x.from = at->plot.left;
    plane.x.to = at->plot.right;
    plane.y.from = at->plot.bottom;
    plane.y.to = at->plot.top;
    draw_axes(&plane);
    if (has_legend(chart))
        (void)run_legend(plot, chart, at);
    if (chart->kind == MOEC_CHART_BARS) {
        draw_bars(&plane);
        draw_rules(&plane);
    } else {
        for (uint32_t s = 0; s < chart->n_series; s++)
            if (chart->series[s].has_interval && chart->series[s].is_band)
                draw_joined(&plane, s, true);
        draw_rules(&plane);
        for (uint32_t s = 0; s < chart->n_series; s++)
            draw_series(&plane, s);
    }
    /* Points of several series are too close for numbers. */
    if (chart->has_value_labels && (chart->kind == MOEC_CHART_BARS || chart->n_series == 1))
        draw_value_labels(&plane);
}
