/* Plots as PNG, SVG or PDF, and tables as CSV: the home of Cairo.
 *
 * A plot is a sheet with its origin at the top left, measured in points; PNG has two pixels a point. It is
 * drawn in memory and appears under its name only when committed. Equal calls give equal bytes with the same
 * Cairo and fonts (DejaVu Sans where fontconfig has it): no dates, no counters. Drawing functions cannot
 * fail; what Cairo objects to is reported by commit. Thread rule: a plot belongs to one thread. */
#ifndef MOEC_PROFILER_PLOT_H
#define MOEC_PROFILER_PLOT_H

#include "formats/base/error.h"

#include <stddef.h>

enum moec_plot_format { MOEC_PLOT_PNG, MOEC_PLOT_SVG, MOEC_PLOT_PDF, MOEC_PLOT_CSV };

#define MOEC_PLOT_PNG_SCALE 2
#define MOEC_PLOT_MAX_SIDE                                                                                   \
    14000.0 /* points; Cairo's images end at 32767 pixels, PDF readers at 14400 points */

/* Format by the ending of the name (.png, .svg, .pdf, .csv in any case). Errors: MOEC_ERR_USAGE naming these.
 */
MOEC_WARN_UNUSED enum moec_status moec_plot_format_of(const char *path, enum moec_plot_format *format,
                                                      struct moec_error *err);

/* Writes a finished table whole or not at all. */
MOEC_WARN_UNUSED enum moec_status moec_plot_write_csv(const char *path, const char *text, size_t n_bytes,
                                                      struct moec_error *err);

/* ---- colours ---- */

struct moec_colour {
    uint8_t red, green, blue;
};

/* Diverging scale for 0..1 (clamped): blue, pale in the middle, red; told apart with any colour vision. */
struct moec_colour moec_colour_diverging(double unit);
/* The colour, mostly washed out. */
struct moec_colour moec_colour_faded(struct moec_colour colour);

/* Sequential scale for 0..1 (clamped): viridis, dark to bright, readable with any colour vision and in grey.
 */
struct moec_colour moec_colour_of(double unit);

/* Black or white, whichever reads better on `background`. */
struct moec_colour moec_colour_ink(struct moec_colour background);

/* Series of a chart differ in colour, marker, dashes and pattern at once, so that they are told apart with
 * any colour vision and in grey print. Colours: Okabe and Ito, "Color Universal Design" (2008), without
 * yellow, then a brown and a violet. */
#define MOEC_PLOT_N_STYLE 11
struct moec_colour moec_colour_series(uint32_t series);

/* ---- ticks ---- */

/* Round numbers first, first + step, ...; `decimals` shows them without loss. */
struct moec_ticks {
    double first, step;
    uint32_t n;
    int decimals;
};

/* At most `most` (>= 2) ticks within low..high, at steps of 1, 2 or 5 times a power of ten. */
struct moec_ticks moec_ticks_choose(double low, double high, uint32_t most);

/* Step among 1, 2, 4, 8, ... at which n categories of `cell` points keep `label` points between their labels.
 */
uint32_t moec_ticks_every(uint32_t n, double cell, double label);

/* ---- drawing ---- */

enum moec_plot_anchor { MOEC_PLOT_LEFT, MOEC_PLOT_CENTRE, MOEC_PLOT_RIGHT };

struct moec_plot_font {
    double size; /* points */
    bool bold;
    struct moec_colour colour;
};

/* Points of a sheet, from its left and upper edges. */
struct moec_plot_point {
    double x, y;
};
struct moec_plot_box {
    double x, y, width, height;
};

/* What is drawn on. */
struct moec_plot_sheet {
    enum moec_plot_format format;
    double width, height; /* points */
    const char *title;    /* of PDF's metadata */
};

struct moec_plot;

/* Starts a white sheet. `path` and the title are copied. Errors: MOEC_ERR_LIMIT for a side
 * over MOEC_PLOT_MAX_SIDE, MOEC_ERR_USAGE for CSV. */
MOEC_WARN_UNUSED enum moec_status moec_plot_open(const char *path, const struct moec_plot_sheet *sheet,
                                                 struct moec_plot **out, struct moec_error *err);

/* Finishes the sheet, writes the file whole or not at all and frees the plot in either case. */
MOEC_WARN_UNUSED enum moec_status moec_plot_commit(struct moec_plot *plot, struct moec_error *err);

/* The same, but hands the finished bytes to the caller (free) instead of writing them. */
MOEC_WARN_UNUSED enum moec_status moec_plot_take_bytes(struct moec_plot *plot, uint8_t **bytes,
                                                       size_t *n_bytes, struct moec_error *err);

/* Throws the plot away. NULL-safe. */
void moec_plot_free(struct moec_plot *plot);

void moec_plot_rectangle(struct moec_plot *plot, struct moec_plot_box box, struct moec_colour colour);
/* Light grey with dark diagonal strokes: no value. */
void moec_plot_hatch(struct moec_plot *plot, struct moec_plot_box box);
void moec_plot_line(struct moec_plot *plot, struct moec_plot_point from, struct moec_plot_point to,
                    double line, struct moec_colour colour);
/* A filled triangle whose tip is at (x, y) and whose base lies `size` points to the left (negative: right).
 */
void moec_plot_marker(struct moec_plot *plot, double x, double y, double size, struct moec_colour colour);
/* Straight lines through (x[i], y[i]), dashed by the style of a series. */
void moec_plot_polyline(struct moec_plot *plot, const double *x, const double *y, size_t n, double line,
                        uint32_t series);
/* The area between (x[i], low[i]) and (x[i], high[i]) in the colour of a series, mostly transparent. */
void moec_plot_band(struct moec_plot *plot, const double *x, const double *low, const double *high, size_t n,
                    uint32_t series);
/* Marker of a series, `size` points across. */
void moec_plot_symbol(struct moec_plot *plot, double x, double y, double size, uint32_t series);
/* Bar of a series: its colour, under white strokes that differ from series to series, in a dark outline. */
void moec_plot_bar(struct moec_plot *plot, struct moec_plot_box box, uint32_t series);
/* One line of UTF-8 text; y is the middle of its lower-case letters. */
void moec_plot_text(struct moec_plot *plot, double x, double y, enum moec_plot_anchor anchor,
                    struct moec_plot_font font, const char *text);
/* The same, centred at (x, y) and read from bottom to top. */
void moec_plot_text_up(struct moec_plot *plot, double x, double y, struct moec_plot_font font,
                       const char *text);

/* A copy of a name that came from a file, fit for drawing and for terminals: control characters, those that
 * turn the direction of writing and broken UTF-8 (which Cairo refuses) become '?'; cut to `capacity`. */
void moec_plot_clean_text(char *to, size_t capacity, const char *from);

/* Width of a text in points, without a plot. */
double moec_plot_text_width(struct moec_plot_font font, const char *text);

/* Breaks a text at spaces into lines of at most `width` points (one word at least) and draws them when `plot`
 * is not NULL, the first with its middle at at.y. Returns the number of lines. */
uint32_t moec_plot_paragraph(struct moec_plot *plot, struct moec_plot_point at, double width,
                             double line_height, struct moec_plot_font font, const char *text);

/* Vertical bar from `low` (bottom) to `high` with frame, ticks and their numbers on its right. */
void moec_plot_colour_bar(struct moec_plot *plot, struct moec_plot_box box, double low, double high,
                          struct moec_plot_font font);

/* Version of Cairo in use, "1.16.0". */
const char *moec_plot_version(void);

#endif
