/* Heatmaps: rows and columns of coloured cells, hatched where there is nothing to show. */
#include "profiler/plot/chart_draw.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define BAR_WIDTH      14.0
#define BAR_NUMBERS    58.0 /* from the bar to the middle of its label */
#define NARROW_NUMBERS 44.0
#define NARROW_SHEET   400.0
#define LEGEND_LINE    14.0
#define LEAST_BAR      120.0

static struct moec_plot_font text_font(void)
{
    return moec_chart_font(MOEC_CHART_TEXT, moec_chart_black);
}

/* ---- values ---- */

/* Ends of the colours: given ones, or those of the values. */
static void find_range(const struct moec_chart_cells *cells, double *low, double *high)
{
    *low = cells->colours.low;
    *high = cells->colours.high;
    if (cells->colours.low < cells->colours.high)
        return;
    *low = INFINITY;
    *high = -INFINITY;
    for (size_t i = 0; i < (size_t)cells->n_row * cells->n_column; i++)
        if (isfinite(cells->values[i])) {
            *low = fmin(*low, cells->values[i]);
            *high = fmax(*high, cells->values[i]);
        }
    if (!(*low <= *high))
        *low = *high = 0;
    if (!(*high - *low > 1e-12 * fmax(fabs(*low), fabs(*high))))
        *high = *low + fmax(1e-9, 1e-3 * fabs(*low));
}

/* 0..1 of the colours. */
static double part_of(const struct moec_chart_cells *cells, double low, double high, double value)
{
    const double over = value - cells->colours.mark;
    if (cells->colours.scale == MOEC_CHART_SCALE_PLAIN)
        return (value - low) / (high - low);
    if (cells->colours.scale == MOEC_CHART_SCALE_OVER)
        return over > 0 ? log1p(over / cells->colours.unit) /
                              log1p((high - cells->colours.mark) / cells->colours.unit)
                        : 0;
    const double reach = fmax(high - cells->colours.mark, cells->colours.mark - low);
    const double part = log1p(fabs(over) / cells->colours.unit) / log1p(reach / cells->colours.unit);
    return (1 + (over < 0 ? -part : part)) / 2;
}

static struct moec_colour colour_at(const struct moec_chart_cells *cells, double part)
{
    return cells->colours.scale == MOEC_CHART_SCALE_DIVERGING ? moec_colour_diverging(part)
                                                              : moec_colour_of(part);
}

static uint64_t count_missing(const struct moec_chart_cells *cells)
{
    uint64_t n = 0;
    for (size_t i = 0; i < (size_t)cells->n_row * cells->n_column; i++)
        n += isfinite(cells->values[i]) ? 0 : 1;
    return n;
}

/* ---- layout ---- */

/* Cells fill the room, stay readable in models with many experts and do not become slabs in small ones. */
static double cell_side(uint32_t n, double room)
{
    double side = floor(room / n);
    if (side >= 8)
        return fmin(side, 48);
    return n <= 256 ? 8 : fmax(2, floor(2048.0 / n));
}

static bool numbers_fit(const struct moec_chart_cells *cells, const struct moec_chart_layout *at,
                        int decimals)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%.*f", decimals, cells->numbers.largest);
    return at->heatmap.cell_height >= 14 &&
           moec_plot_text_width(moec_chart_font(MOEC_CHART_SMALL, moec_chart_black), text) <=
               at->heatmap.cell_width - 4;
}

/* Draws the legend where plot is not NULL; returns the middle of its last line, legend_top - LEGEND_LINE when
 * there is none. */
static double run_legend(struct moec_plot *plot, const struct moec_chart *chart,
                         const struct moec_chart_layout *at)
{
    const struct moec_chart_cells *cells = &chart->cells;
    const char *const texts[] = {cells->words.mark, count_missing(cells) > 0 ? cells->words.missing : "",
                                 cells->words.above, cells->words.faded};
    double left = at->width < NARROW_SHEET ? at->margin : at->plot.left;
    struct moec_chart_flow flow = {.left = left,
                                   .right = at->width - at->margin,
                                   .line_height = LEGEND_LINE,
                                   .x = left,
                                   .y = at->legend_top};
    bool is_any = false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i][0] == '\0')
            continue;
        double x = moec_chart_flow_take(&flow, 19 + moec_plot_text_width(text_font(), texts[i]) + 20);
        is_any = true;
        if (plot == NULL)
            continue;
        if (i == 0)
            moec_plot_marker(plot, x + 12, flow.y, 8, moec_chart_red);
        else if (i == 1)
            moec_plot_hatch(plot, (struct moec_plot_box){x, flow.y - 5, 14, 10});
        else
            moec_plot_rectangle(plot, (struct moec_plot_box){x, flow.y - 5, 14, 10},
                                i == 2 ? colour_at(cells, 1) : moec_colour_faded(colour_at(cells, 0.75)));
        moec_plot_text(plot, x + 19, flow.y, MOEC_PLOT_LEFT, text_font(), texts[i]);
    }
    return is_any ? flow.y : at->legend_top - LEGEND_LINE;
}

struct moec_chart_layout moec_chart_lay_out_cells(const struct moec_chart *chart, double width, double margin,
                                                  double top)
{
    const struct moec_chart_cells *cells = &chart->cells;
    bool is_narrow = width > 0 && width < NARROW_SHEET;
    double numbers = is_narrow ? NARROW_NUMBERS + 6 : BAR_NUMBERS + MOEC_CHART_MARGIN;
    struct moec_chart_layout at = {.margin = margin,
                                   .plot = {.left = margin + (is_narrow ? 38 : 46), .top = top}};
    double gap = is_narrow ? 12 : 26;
    at.heatmap.cell_width = cell_side(cells->n_column, 960);
    if (width > 0)
        at.heatmap.cell_width =
            fmin(48, (width - margin - at.plot.left - gap - BAR_WIDTH - numbers) / cells->n_column);
    at.heatmap.cell_height = fmin(cell_side(cells->n_row, 560), fmax(at.heatmap.cell_width, 12));
    at.heatmap.gap = fmin(at.heatmap.cell_width, at.heatmap.cell_height) >= 6 ? 1 : 0;
    at.plot.right = at.plot.left + at.heatmap.cell_width * cells->n_column;
    at.plot.bottom = at.plot.top + at.heatmap.cell_height * cells->n_row;
    at.heatmap.bar_left = at.plot.right + gap;
    at.heatmap.bar_height = fmax(at.plot.bottom - at.plot.top, LEAST_BAR);
    at.heatmap.label_x = at.heatmap.bar_left + BAR_WIDTH + (is_narrow ? NARROW_NUMBERS : BAR_NUMBERS);
    at.width = width > 0 ? width : fmax(at.heatmap.bar_left + BAR_WIDTH + numbers + margin, 700);
    at.legend_top = at.plot.top + fmax(at.plot.bottom - at.plot.top + 36, at.heatmap.bar_height + 8) + 8;
    at.text_top = run_legend(NULL, chart, &at) + 22;
    at.heatmap.decimals = -1;
    for (int decimals = cells->numbers.decimals; decimals >= 1 && at.heatmap.decimals < 0; decimals--)
        if (numbers_fit(cells, &at, decimals))
            at.heatmap.decimals = decimals;
    return at;
}

/* ---- drawing ---- */

static void draw_cells(struct moec_plot *plot, const struct moec_chart_cells *cells,
                       const struct moec_chart_layout *at, double low, double high)
{
    double width = at->heatmap.cell_width - at->heatmap.gap,
           height = at->heatmap.cell_height - at->heatmap.gap;
    for (uint32_t r = 0; r < cells->n_row; r++)
        for (uint32_t c = 0; c < cells->n_column; c++) {
            double value = cells->values[(size_t)r * cells->n_column + c];
            double x = at->plot.left + c * at->heatmap.cell_width,
                   y = at->plot.top + r * at->heatmap.cell_height;
            if (!isfinite(value)) {
                moec_plot_hatch(plot, (struct moec_plot_box){x, y, width, height});
                continue;
            }
            struct moec_colour colour = colour_at(cells, part_of(cells, low, high, value));
            if (cells->faded != NULL && cells->faded[(size_t)r * cells->n_column + c])
                colour = moec_colour_faded(colour);
            moec_plot_rectangle(plot, (struct moec_plot_box){x, y, width, height}, colour);
            if (at->heatmap.decimals < 0)
                continue;
            char text[64];
            (void)snprintf(text, sizeof text, "%.*f", at->heatmap.decimals, value);
            moec_plot_text(plot, x + width / 2, y + height / 2, MOEC_PLOT_CENTRE,
                           moec_chart_font(MOEC_CHART_SMALL, moec_colour_ink(colour)), text);
        }
}

static void draw_axes(struct moec_plot *plot, const struct moec_chart *chart,
                      const struct moec_chart_layout *at)
{
    const struct moec_chart_cells *cells = &chart->cells;
    const struct moec_plot_font label = moec_chart_font(MOEC_CHART_AXIS_TEXT, moec_chart_black);
    char number[MOEC_CHART_NUMBER];
    uint32_t every =
        moec_ticks_every(cells->n_column, at->heatmap.cell_width, cells->n_column > 1000 ? 34 : 26);
    for (uint32_t c = 0; c < cells->n_column; c += every) {
        double x = at->plot.left + (c + 0.5) * at->heatmap.cell_width - at->heatmap.gap / 2;
        moec_plot_line(plot, (struct moec_plot_point){x, at->plot.bottom + 1},
                       (struct moec_plot_point){x, at->plot.bottom + 4}, 0.6, moec_chart_black);
        (void)snprintf(number, sizeof number, "%" PRIu32, c);
        moec_plot_text(plot, x, at->plot.bottom + 11, MOEC_PLOT_CENTRE, text_font(), number);
    }
    every = moec_ticks_every(cells->n_row, at->heatmap.cell_height, 12);
    for (uint32_t r = 0; r < cells->n_row; r += every) {
        double y = at->plot.top + (r + 0.5) * at->heatmap.cell_height - at->heatmap.gap / 2;
        moec_plot_line(plot, (struct moec_plot_point){at->plot.left - 4, y},
                       (struct moec_plot_point){at->plot.left - 1, y}, 0.6, moec_chart_black);
        (void)snprintf(number, sizeof number, "%.6g", cells->rows[r]);
        moec_plot_text(plot, at->plot.left - 7, y, MOEC_PLOT_RIGHT, text_font(), number);
    }
    moec_plot_text(plot, (at->plot.left + at->plot.right) / 2, at->plot.bottom + 27, MOEC_PLOT_CENTRE, label,
                   chart->x.label);
    moec_plot_text_up(plot, at->margin + 6, (at->plot.top + at->plot.bottom) / 2, label, chart->y.label);
}

#define BAR_SLICES 96
#define LEAST_GAP  13.0

/* The bar of a scale about the mark, with what is added to the mark at whole powers of ten. */
static void draw_scale(struct moec_plot *plot, const struct moec_chart_cells *cells,
                       const struct moec_chart_layout *at, double low, double high)
{
    const bool is_both = cells->colours.scale == MOEC_CHART_SCALE_DIVERGING;
    const double slice = at->heatmap.bar_height / BAR_SLICES, middle = is_both ? 0.5 : 0;
    char text[MOEC_CHART_NUMBER];
    for (int i = 0; i < BAR_SLICES; i++)
        moec_plot_rectangle(
            plot,
            (struct moec_plot_box){at->heatmap.bar_left, at->plot.top + i * slice, BAR_WIDTH, slice + 0.5},
            colour_at(cells, 1 - (i + 0.5) / BAR_SLICES));
    for (int sign = 1; sign >= (is_both ? -1 : 1); sign -= 2) {
        double last = at->plot.top + at->heatmap.bar_height * (1 - middle);
        for (int power = -7; power <= 9; power++) {
            const double over = sign * pow(10, power);
            const double part = part_of(cells, low, high, cells->colours.mark + over);
            const double y = at->plot.top + at->heatmap.bar_height * (1 - part);
            if (part < 0 || part > 1 || fabs(y - last) < LEAST_GAP)
                continue;
            (void)snprintf(text, sizeof text, "%+g", over);
            moec_plot_line(plot, (struct moec_plot_point){at->heatmap.bar_left + BAR_WIDTH, y},
                           (struct moec_plot_point){at->heatmap.bar_left + BAR_WIDTH + 3, y}, 0.6,
                           moec_chart_black);
            moec_plot_text(plot, at->heatmap.bar_left + BAR_WIDTH + 5, y, MOEC_PLOT_LEFT, text_font(), text);
            last = y;
        }
    }
}

static void draw_bar(struct moec_plot *plot, const struct moec_chart *chart,
                     const struct moec_chart_layout *at, double low, double high)
{
    const struct moec_plot_font font = moec_chart_font(MOEC_CHART_AXIS_TEXT, moec_chart_black);
    if (chart->cells.colours.scale == MOEC_CHART_SCALE_PLAIN)
        moec_plot_colour_bar(
            plot,
            (struct moec_plot_box){at->heatmap.bar_left, at->plot.top, BAR_WIDTH, at->heatmap.bar_height},
            low, high, text_font());
    else
        draw_scale(plot, &chart->cells, at, low, high);
    if (isfinite(chart->cells.colours.mark)) {
        const double part = fmin(fmax(part_of(&chart->cells, low, high, chart->cells.colours.mark), 0), 1);
        const double y = at->plot.top + at->heatmap.bar_height * (1 - part);
        moec_plot_marker(plot, at->heatmap.bar_left - 1, y, 8, moec_chart_red);
        moec_plot_line(plot, (struct moec_plot_point){at->heatmap.bar_left, y},
                       (struct moec_plot_point){at->heatmap.bar_left + BAR_WIDTH, y}, 1.2, moec_chart_red);
    }
    /* A short bar has no room for the whole of its label: what stands before the comma is left out. */
    const char *text = chart->value_label, *units = strrchr(text, ',');
    if (moec_plot_text_width(font, text) > at->heatmap.bar_height + 30 && units != NULL)
        text = units + 1 + strspn(units + 1, " ");
    moec_plot_text_up(plot, at->heatmap.label_x, at->plot.top + at->heatmap.bar_height / 2, font, text);
}

void moec_chart_draw_cells(struct moec_plot *plot, const struct moec_chart *chart,
                           const struct moec_chart_layout *at)
{
    double low = 0, high = 1;
    find_range(&chart->cells, &low, &high);
    draw_cells(plot, &chart->cells, at, low, high);
    draw_axes(plot, chart, at);
    draw_bar(plot, chart, at, low, high);
    (void)run_legend(plot, chart, at);
}
