/* Charts: one description of numbers with their axes, drawn as PNG, SVG or PDF or tabulated as CSV.
 *
 * A chart says what to show (series with intervals, or cells of a heatmap), in which units, and what to
 * conclude (its caption); how that looks is decided here, once for all charts: fonts, margins, ticks at 1, 2
 * and 5 times powers of ten, legends, colours with markers, dashes and patterns that survive grey print. NaN
 * means that there is nothing to show. Values are drawn as they are: figures convert to percent and the like.
 * Thread rule: plain data. */
#ifndef MOEC_PROFILER_CHART_H
#define MOEC_PROFILER_CHART_H

#include "profiler/plot/plot.h"

#define MOEC_CHART_MAX_SERIES MOEC_PLOT_N_STYLE
#define MOEC_CHART_MAX_RULES  4
#define MOEC_CHART_LABEL      48
#define MOEC_CHART_CAPTION    1600

enum moec_chart_kind {
    MOEC_CHART_LINES,  /* the points of a series joined in their order */
    MOEC_CHART_POINTS, /* a marker for each point */
    MOEC_CHART_BARS,   /* x: categories; the bars of the series stand beside each other, from zero */
    MOEC_CHART_CELLS   /* a heatmap */
};

struct moec_chart_axis {
    char name[32];                        /* column in the CSV: "layer" */
    char label[96];                       /* with units: "loss against the original, %" */
    double low, high;                     /* fixed ends; equal: from the values */
    bool is_log;                          /* values that are not positive are left out */
    bool is_whole;                        /* values are whole numbers: ticks are too */
    bool has_zero;                        /* zero is within the range */
    uint32_t n_category;                  /* 0: a scale; else values are 0 .. n - 1 and have names */
    char (*categories)[MOEC_CHART_LABEL]; /* (n_category), owned */
    double *numbers; /* (n_category) likewise: what tables say for them; NULL = the names */
};

struct moec_chart_series {
    char name[MOEC_CHART_LABEL]; /* "" in a chart of one series: no legend */
    uint64_t n;
    double *x, *y, *low, *high; /* (n) each, one allocation that x owns; low and high are the interval */
    bool has_interval;          /* low and high mean something */
    bool is_band;               /* the interval is drawn as a band instead of bars */
};

/* A line across the plot at a value of y, or upright at a value of x. */
struct moec_chart_rule {
    double at;
    bool is_upright;
    char label[MOEC_CHART_LABEL];
};

/* How values become colours. Over the mark: part = log(1 + (value - mark) / unit) of the same at the end, so
 * that what is `unit` over the mark is told from what is ten times that. */
enum moec_chart_scale {
    MOEC_CHART_SCALE_PLAIN,    /* evenly from low to high */
    MOEC_CHART_SCALE_OVER,     /* by the logarithm over the mark; what is not over it is dark */
    MOEC_CHART_SCALE_DIVERGING /* by the logarithm over and under the mark, from blue over pale to red */
};

/* What the colours of cells stand for. */
struct moec_chart_colours {
    enum moec_chart_scale scale;
    double unit;      /* of scales about the mark, > 0 */
    double low, high; /* range; equal: from the values */
    double mark;      /* marked on the colour bar; NaN = nothing */
};

/* Words of the legend; "" = none. */
struct moec_chart_words {
    char faded[96];
    char mark[96];
    char missing[96]; /* what hatching means */
    char above[96];   /* what the brightest colour means when values exceed the range */
};

struct moec_chart_cells {
    uint32_t n_row, n_column;
    double *values; /* (n_row, n_column), owned; NaN cells are hatched */
    double *rows;   /* (n_row), owned: what the rows are called; whole numbers */
    bool *faded; /* (n_row, n_column), owned; NULL = none: what may be nothing but noise has a pale colour */
    struct moec_chart_colours colours;
    struct moec_chart_words words;
    struct {
        int decimals;   /* in cells where they fit; -1 = none */
        double largest; /* the widest */
    } numbers;
};

struct moec_chart {
    enum moec_chart_kind kind;
    char name[64]; /* of its file, without ending: lower case, digits, underscores */
    char title[160];
    char caption[MOEC_CHART_CAPTION]; /* what is shown and what to conclude */
    char source[128];                 /* paper and figure; "" = none */
    char provenance[1200];            /* model, data, measure */
    struct moec_chart_axis x, y;      /* of heatmaps: x columns, y rows */
    char value_label[96];             /* of heatmaps: what the colours mean, with units */
    char value_name[32];              /* column in the CSV of heatmaps */
    bool has_value_labels;            /* numbers at bars and points, where they fit */
    uint32_t n_series;
    struct moec_chart_series series[MOEC_CHART_MAX_SERIES];
    uint32_t n_rule;
    struct moec_chart_rule rules[MOEC_CHART_MAX_RULES];
    struct moec_chart_cells cells;
};

/* Frees what the chart owns and zeroes it. */
void moec_chart_release(struct moec_chart *chart);

/* Adds a series of n points, NaN everywhere. The series stays where it is. Errors: MOEC_ERR_LIMIT for more
 * than MOEC_CHART_MAX_SERIES, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_chart_add_series(struct moec_chart *chart, const char *name,
                                                        uint64_t n, struct moec_chart_series **series,
                                                        struct moec_error *err);
/* Names are empty at first. */
MOEC_WARN_UNUSED enum moec_status moec_chart_set_categories(struct moec_chart_axis *axis, uint32_t n,
                                                            struct moec_error *err);
/* Makes numbers for the categories, NaN at first: of what has no number tables give the name. */
MOEC_WARN_UNUSED enum moec_status moec_chart_number_categories(struct moec_chart_axis *axis,
                                                               struct moec_error *err);
/* Cells are NaN at first, rows are called 0, 1, ... */
MOEC_WARN_UNUSED enum moec_status moec_chart_set_cells(struct moec_chart *chart, uint32_t n_row,
                                                       uint32_t n_column, struct moec_error *err);
void moec_chart_add_rule(struct moec_chart *chart, double at, const char *label);
/* At a value of x, on a scale. One outside the range of the series is not drawn. */
void moec_chart_add_upright(struct moec_chart *chart, double at, const char *label);

/* "0.0315", "12 300": what a value is called in text, three digits that count. */
#define MOEC_CHART_NUMBER 32
const char *moec_chart_number(char text[static MOEC_CHART_NUMBER], double value);

/* The shortest number that reads back as the same F64; empty for NaN. */
const char *moec_chart_exact(char text[static MOEC_CHART_NUMBER], double value);

/* Exactly the numbers that the chart shows: "series,<x>,<y>,low,high" or "<row>,<column>,<value>". Owned by
 * the caller. */
MOEC_WARN_UNUSED enum moec_status moec_chart_csv(const struct moec_chart *chart, char **text, size_t *n_bytes,
                                                 struct moec_error *err);

/* How a chart is drawn. */
struct moec_chart_look {
    enum moec_plot_format format; /* not CSV */
    double width;                 /* points; 0 = as wide as the chart likes */
    bool is_bare; /* without title, caption, source and provenance, which then stand elsewhere */
};

/* A sheet in memory, owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_chart_render(const struct moec_chart *chart,
                                                    const struct moec_chart_look *look, uint8_t **bytes,
                                                    size_t *n_bytes, struct moec_error *err);

/* Draws or tabulates by the ending of the name, whole or not at all. */
MOEC_WARN_UNUSED enum moec_status moec_chart_write(const struct moec_chart *chart, const char *path,
                                                   struct moec_error *err);

#endif
