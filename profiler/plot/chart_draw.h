/* How charts are drawn (internal to the chart_*.c files): the sheet around a plot area, and its two kinds.
 * Everything is in points. Thread rule: as plots. */
#ifndef MOEC_PROFILER_CHART_DRAW_H
#define MOEC_PROFILER_CHART_DRAW_H

#include "profiler/plot/chart.h"

#define MOEC_CHART_MARGIN      16.0
#define MOEC_CHART_LINE_HEIGHT 12.0
#define MOEC_CHART_TEXT        9.0  /* ticks, legends */
#define MOEC_CHART_AXIS_TEXT   10.0 /* labels of axes */
#define MOEC_CHART_SMALL       8.0  /* captions, numbers in cells */
#define MOEC_CHART_TITLE       13.0

static const struct moec_colour moec_chart_black = {0, 0, 0}, moec_chart_grey = {90, 90, 90},
                                moec_chart_red = {214, 39, 40};

static inline struct moec_plot_font moec_chart_font(double size, struct moec_colour colour)
{
    return (struct moec_plot_font){.size = size, .bold = false, .colour = colour};
}

/* Where the parts of a sheet stand. */
struct moec_chart_layout {
    double width, height; /* of the sheet */
    double margin;        /* left and right */
    struct {
        double left, top, right, bottom;
    } plot;
    double legend_top; /* middle of the first line */
    double text_top;   /* middle of the first line of the caption */
    struct {
        double cell_width, cell_height, gap; /* a cell with its gap */
        double bar_left, bar_height, label_x;
        int decimals;
    } heatmap;
};

/* Lays out below `top`, where the title ends; `layout->text_top` is set, height is not. */
struct moec_chart_layout moec_chart_lay_out_plane(const struct moec_chart *chart, double width, double margin,
                                                  double top);
struct moec_chart_layout moec_chart_lay_out_cells(const struct moec_chart *chart, double width, double margin,
                                                  double top);
void moec_chart_draw_plane(struct moec_plot *plot, const struct moec_chart *chart,
                           const struct moec_chart_layout *layout);
void moec_chart_draw_cells(struct moec_plot *plot, const struct moec_chart *chart,
                           const struct moec_chart_layout *layout);

/* Entries of a legend, one after the other in lines. */
struct moec_chart_flow {
    double left, right, line_height;
    double x, y; /* where the next entry begins, and the middle of its line */
};
/* Reserves `width` points and returns where they begin; breaks the line where they do not fit. */
double moec_chart_flow_take(struct moec_chart_flow *flow, double width);

#endif
