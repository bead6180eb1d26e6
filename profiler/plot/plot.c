/* Equal drawings give equal bytes. A PDF's time of creation is fixed, and surface numbers are taken out of
 * SVG, whose coordinates are cut to hundredths. The machine's hinting and antialiasing are left out too. A
 * drawing is rendered into memory first, so a file appears whole or not at all. */
#include "profiler/plot/plot.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/base/sanitizers.h"
#include "formats/base/utf8.h"

#include <assert.h>
#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <cairo.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define FONT "DejaVu Sans"

/* Bytes that Cairo has written so far. */
struct sink {
    uint8_t *bytes;
    size_t n_bytes, capacity;
};

struct moec_plot {
    cairo_surface_t *surface;
    cairo_t *cairo;
    enum moec_plot_format format;
    char *path;
    struct sink sink;
};

/* Fontconfig keeps its configuration until the process ends,
 * behind pointers that leak checkers cannot follow. */
#if MOEC_HAS_ASAN
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
    return "leak:libfontconfig\n";
}
#endif

/* ---- files ---- */

enum moec_status moec_plot_format_of(const char *path, enum moec_plot_format *format, struct moec_error *err)
{
    static const char *const endings[] = {[MOEC_PLOT_PNG] = ".png",
                                          [MOEC_PLOT_SVG] = ".svg",
                                          [MOEC_PLOT_PDF] = ".pdf",
                                          [MOEC_PLOT_CSV] = ".csv"};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot != NULL && i < sizeof endings / sizeof *endings; i++) {
        if (strcasecmp(dot, endings[i]) == 0) {
            *format = (enum moec_plot_format)i;
            return MOEC_OK;
        }
    }
    return moec_fail(err, MOEC_ERR_USAGE, "the file name '%s' does not end in .png, .svg, .pdf or .csv",
                     path);
}

static enum moec_status write_whole(const char *path, const void *bytes, size_t n_bytes,
                                    struct moec_error *err)
{
    struct moec_output output = {.fd = -1};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_output_open(&output, path, err));
    MOEC_TRY_OUT(moec_output_append(&output, bytes, n_bytes, err));
    MOEC_TRY_OUT(moec_output_commit(&output, err));
out:
    moec_output_abort(&output);
    return status;
}

enum moec_status moec_plot_write_csv(const char *path, const char *text, size_t n_bytes,
                                     struct moec_error *err)
{
    return write_whole(path, text, n_bytes, err);
}

/* ---- colours ---- */

/* viridis (Smith and van der Walt, 2015, CC0) at tenths; straight lines between them. */
static const struct moec_colour viridis[] = {{68, 1, 84},    {72, 36, 117},  {65, 68, 135},  {53, 95, 141},
                                             {42, 120, 142}, {33, 145, 140}, {34, 168, 132}, {68, 191, 112},
                                             {122, 209, 81}, {189, 223, 38}, {253, 231, 37}};
#define N_VIRIDIS    (sizeof viridis / sizeof *viridis)
#define LAST_VIRIDIS 10.0

static_assert(N_VIRIDIS == 11, "tenths");

static uint8_t blend(uint8_t a, uint8_t b, double part)
{
    return (uint8_t)lround(a + (b - a) * part);
}

struct moec_colour moec_colour_of(double unit)
{
    double at = (unit > 0 ? fmin(unit, 1) : 0) * LAST_VIRIDIS;
    size_t i = (size_t)at < N_VIRIDIS - 1 ? (size_t)at : N_VIRIDIS - 2;
    const struct moec_colour *a = &viridis[i], *b = &viridis[i + 1];
    double part = at - (double)i;
    return (struct moec_colour){blend(a->red, b->red, part), blend(a->green, b->green, part),
                                blend(a->blue, b->blue, part)};
}

/* RdBu (Brewer, ColorBrewer 2.0), from blue to red. */
static const struct moec_colour diverging[] = {{33, 102, 172},  {67, 147, 195},  {146, 197, 222},
                                               {209, 229, 240}, {247, 247, 247}, {253, 219, 199},
                                               {244, 165, 130}, {214, 96, 77},   {178, 24, 43}};
#define LAST_DIVERGING 8.0

struct moec_colour moec_colour_diverging(double unit)
{
    const double at = (unit > 0 ? fmin(unit, 1) : 0) * LAST_DIVERGING;
    const size_t i = at < LAST_DIVERGING - 1 ? (size_t)at : (size_t)LAST_DIVERGING - 1;
    const struct moec_colour *a = &diverging[i], *b = &diverging[i + 1];
    const double part = at - (double)i;
    return (struct moec_colour){blend(a->red, b->red, part), blend(a->green, b->green, part),
                                blend(a->blue, b->blue, part)};
}

#define FADE 0.78

struct moec_colour moec_colour_faded(struct moec_colour colour)
{
    const struct moec_colour pale = {238, 238, 238};
    return (struct moec_colour){blend(colour.red, pale.red, FADE), blend(colour.green, pale.green, FADE),
                                blend(colour.blue, pale.blue, FADE)};
}

struct moec_colour moec_colour_ink(struct moec_colour background)
{
    /* Luma of ITU-R BT.601. */
    double luma = 0.299 * background.red + 0.587 * background.green + 0.114 * background.blue;
    return luma > 128 ? (struct moec_colour){0, 0, 0} : (struct moec_colour){255, 255, 255};
}

struct moec_colour moec_colour_series(uint32_t series)
{
    static const struct moec_colour colours[MOEC_PLOT_N_STYLE] = {
        {0, 114, 178}, {213, 94, 0},  {0, 158, 115}, {204, 121, 167}, {230, 159, 0},  {86, 180, 233},
        {60, 60, 60},  {128, 70, 27}, {148, 0, 211}, {170, 200, 0},   {255, 170, 190}};
    return colours[series % MOEC_PLOT_N_STYLE];
}

/* ---- ticks ---- */

struct moec_ticks moec_ticks_choose(double low, double high, uint32_t most)
{
    static const double multiples[] = {1, 2, 5, 10};
    double span = high - low;
    if (!(span > 0) || !isfinite(span) || most < 2)
        return (struct moec_ticks){.first = low, .step = 1, .n = 1, .decimals = 3};
    int power = (int)floor(log10(span / most));
    double step = 0;
    for (size_t i = 0; i < sizeof multiples / sizeof *multiples; i++) {
        step = multiples[i] * pow(10, power);
        if (floor(high / step) - ceil(low / step) + 1 <= most)
            break;
    }
    struct moec_ticks ticks = {.first = ceil(low / step) * step, .step = step};
    ticks.n = (uint32_t)(floor(high / step) - ceil(low / step) + 1);
    /* A step of 10 x 10^power is one digit coarser than the power says. */
    int digit = step >= 9.99 * pow(10, power) ? power + 1 : power;
    ticks.decimals = digit < 0 ? -digit : 0;
    return ticks;
}

uint32_t moec_ticks_every(uint32_t n, double cell, double label)
{
    uint32_t every = 1;
    while (every < n && cell * every < label)
        every *= 2;
    return every;
}

/* ---- the sheet ---- */

static cairo_status_t sink_write(void *closure, const unsigned char *bytes, unsigned n_bytes)
{
    struct sink *sink = closure;
    size_t needed = sink->n_bytes + n_bytes;
    if (needed < n_bytes ||
        moec_grow((void **)&sink->bytes, &sink->capacity, needed, 1, "a plot", NULL) != MOEC_OK)
        return CAIRO_STATUS_NO_MEMORY;
    memcpy(sink->bytes + sink->n_bytes, bytes, n_bytes);
    sink->n_bytes = needed;
    return CAIRO_STATUS_SUCCESS;
}

static void use_colour(struct moec_plot *plot, struct moec_colour colour)
{
    cairo_set_source_rgb(plot->cairo, colour.red / 255.0, colour.green / 255.0, colour.blue / 255.0);
}

static cairo_surface_t *make_surface(struct moec_plot *plot, double width, double height, const char *title)
{
    if (plot->format == MOEC_PLOT_PNG)
        return cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(width * MOEC_PLOT_PNG_SCALE),
                                          (int)ceil(height * MOEC_PLOT_PNG_SCALE));
    if (plot->format == MOEC_PLOT_SVG)
        return cairo_svg_surface_create_for_stream(sink_write, &plot->sink, width, height);
    cairo_surface_t *surface = cairo_pdf_surface_create_for_stream(sink_write, &plot->sink, width, height);
    if (cairo_surface_status(surface) == CAIRO_STATUS_SUCCESS) {
        cairo_pdf_surface_set_metadata(surface, CAIRO_PDF_METADATA_TITLE, title);
        /* Cairo writes the present time unless told another one; this one says nothing. */
        cairo_pdf_surface_set_metadata(surface, CAIRO_PDF_METADATA_CREATE_DATE, "2000-01-01T00:00:00Z");
    }
    return surface;
}

enum moec_status moec_plot_open(const char *path, const struct moec_plot_sheet *sheet, struct moec_plot **out,
                                struct moec_error *err)
{
    const double width = sheet->width, height = sheet->height;
    struct moec_plot *plot = NULL;
    if (sheet->format == MOEC_PLOT_CSV)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the file name '%s' ends in .csv, but this is a plot, not a table: expected "
                         ".png, .svg or .pdf",
                         path);
    if (!(width >= 1 && width <= MOEC_PLOT_MAX_SIDE && height >= 1 && height <= MOEC_PLOT_MAX_SIDE))
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "plot '%s' would be %.0f x %.0f points, expected at most %.0f per side: use .csv",
                         path, width, height, MOEC_PLOT_MAX_SIDE);
    MOEC_TRY(moec_alloc((void **)&plot, 1, sizeof *plot, "a plot", err));
    plot->format = sheet->format;
    enum moec_status status = moec_strndup(&plot->path, path, strlen(path), err);
    if (status != MOEC_OK) {
        moec_plot_free(plot);
        return status;
    }
    plot->surface = make_surface(plot, width, height, sheet->title);
    plot->cairo = cairo_create(plot->surface);
    if (cairo_status(plot->cairo) != CAIRO_STATUS_SUCCESS) {
        status = moec_fail(err, MOEC_ERR_MEMORY, "cannot start plot '%s': %s", path,
                           cairo_status_to_string(cairo_status(plot->cairo)));
        moec_plot_free(plot);
        return status;
    }
    if (sheet->format == MOEC_PLOT_PNG)
        cairo_scale(plot->cairo, MOEC_PLOT_PNG_SCALE, MOEC_PLOT_PNG_SCALE);
    moec_plot_rectangle(plot, (struct moec_plot_box){0, 0, width, height},
                        (struct moec_colour){255, 255, 255});
    *out = plot;
    return MOEC_OK;
}

void moec_plot_free(struct moec_plot *plot)
{
    if (plot == NULL)
        return;
    if (plot->cairo != NULL)
        cairo_destroy(plot->cairo);
    if (plot->surface != NULL) {
        cairo_surface_finish(plot->surface);
        cairo_surface_destroy(plot->surface);
    }
    free(plot->sink.bytes);
    free(plot->path);
    free(plot);
}

/* Writes `value` with at most two decimals, without needless digits; returns the bytes. */
static size_t put_short(uint8_t *to, double value)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%.2f", value);
    while (n > 1 && text[n - 1] == '0')
        n--;
    if (text[n - 1] == '.')
        n--;
    memcpy(to, text, (size_t)n);
    return (size_t)n;
}

/* Length of a number with more than two decimals at the start of a text that ends in NUL, else 0. */
static size_t long_number(const char *text)
{
    size_t whole = strspn(text, "0123456789");
    if (whole == 0 || whole > 12 || text[whole] != '.')
        return 0;
    size_t part = strspn(text + whole + 1, "0123456789");
    return part > 2 ? whole + 1 + part : 0;
}

/* Cairo numbers the surfaces of a process and writes the number into SVG; a second plot of the same profile
 * would differ. The number is taken out. Coordinates come in millionths of a point: hundredths are finer than
 * any printer and half as long. */
static enum moec_status still_svg(struct sink *sink, struct moec_error *err)
{
    static const char mark[] = "id=\"surface";
    size_t n = sink->n_bytes, from = 0, to = 0;
    MOEC_TRY(moec_grow((void **)&sink->bytes, &sink->capacity, n + 1, 1, "a plot", err));
    uint8_t *bytes = sink->bytes;
    bytes[n] = '\0';
    while (from < n) {
        bool is_first = from == 0 || bytes[from - 1] < '0' || bytes[from - 1] > '9';
        size_t length = is_first ? long_number((const char *)bytes + from) : 0;
        if (length > 0) {
            to += put_short(bytes + to, strtod((const char *)bytes + from, NULL));
            from += length;
        } else if (n - from > sizeof mark && memcmp(bytes + from, mark, sizeof mark - 1) == 0) {
            memmove(bytes + to, mark, sizeof mark - 1);
            to += sizeof mark - 1;
            from += sizeof mark - 1;
            from += strspn((const char *)bytes + from, "0123456789");
        } else {
            bytes[to++] = bytes[from++];
        }
    }
    sink->n_bytes = to;
    return MOEC_OK;
}

/* Everything drawn is in the sink afterwards. */
static enum moec_status finish(struct moec_plot *plot, struct moec_error *err)
{
    cairo_status_t problem = cairo_status(plot->cairo);
    if (problem == CAIRO_STATUS_SUCCESS) {
        if (plot->format == MOEC_PLOT_PNG)
            problem = cairo_surface_write_to_png_stream(plot->surface, sink_write, &plot->sink);
        cairo_surface_finish(plot->surface);
        if (problem == CAIRO_STATUS_SUCCESS)
            problem = cairo_surface_status(plot->surface);
    }
    if (problem != CAIRO_STATUS_SUCCESS)
        return moec_fail(err, MOEC_ERR_MEMORY, "cannot draw plot '%s': %s", plot->path,
                         cairo_status_to_string(problem));
    return plot->format == MOEC_PLOT_SVG ? still_svg(&plot->sink, err) : MOEC_OK;
}

enum moec_status moec_plot_commit(struct moec_plot *plot, struct moec_error *err)
{
    enum moec_status status = finish(plot, err);
    if (status == MOEC_OK)
        status = write_whole(plot->path, plot->sink.bytes, plot->sink.n_bytes, err);
    moec_plot_free(plot);
    return status;
}

enum moec_status moec_plot_take_bytes(struct moec_plot *plot, uint8_t **bytes, size_t *n_bytes,
                                      struct moec_error *err)
{
    enum moec_status status = finish(plot, err);
    if (status == MOEC_OK) {
        *bytes = plot->sink.bytes;
        *n_bytes = plot->sink.n_bytes;
        plot->sink = (struct sink){0};
    }
    moec_plot_free(plot);
    return status;
}

/* ---- shapes ---- */

void moec_plot_rectangle(struct moec_plot *plot, struct moec_plot_box box, struct moec_colour colour)
{
    use_colour(plot, colour);
    cairo_rectangle(plot->cairo, box.x, box.y, box.width, box.height);
    cairo_fill(plot->cairo);
}

/* Outline of `line` points, drawn inside the rectangle. */
static void frame(struct moec_plot *plot, struct moec_plot_box box, double line, struct moec_colour colour)
{
    use_colour(plot, colour);
    cairo_set_line_width(plot->cairo, line);
    cairo_rectangle(plot->cairo, box.x + line / 2, box.y + line / 2, box.width - line, box.height - line);
    cairo_stroke(plot->cairo);
}

void moec_plot_hatch(struct moec_plot *plot, struct moec_plot_box box)
{
    const double x = box.x, y = box.y, width = box.width, height = box.height;
    moec_plot_rectangle(plot, box, (struct moec_colour){232, 232, 232});
    cairo_save(plot->cairo);
    cairo_rectangle(plot->cairo, x, y, width, height);
    cairo_clip(plot->cairo);
    use_colour(plot, (struct moec_colour){120, 120, 120});
    cairo_set_line_width(plot->cairo, 0.8);
    for (int stroke = 0; stroke * 4 < width + height; stroke++) {
        double at = stroke * 4 - height;
        cairo_move_to(plot->cairo, x + at, y + height);
        cairo_line_to(plot->cairo, x + at + height, y);
    }
    cairo_stroke(plot->cairo);
    cairo_restore(plot->cairo);
}

void moec_plot_line(struct moec_plot *plot, struct moec_plot_point from, struct moec_plot_point to,
                    double line, struct moec_colour colour)
{
    use_colour(plot, colour);
    cairo_set_line_width(plot->cairo, line);
    cairo_move_to(plot->cairo, from.x, from.y);
    cairo_line_to(plot->cairo, to.x, to.y);
    cairo_stroke(plot->cairo);
}

void moec_plot_marker(struct moec_plot *plot, double x, double y, double size, struct moec_colour colour)
{
    use_colour(plot, colour);
    cairo_move_to(plot->cairo, x, y);
    cairo_line_to(plot->cairo, x - size, y - fabs(size) * 0.6);
    cairo_line_to(plot->cairo, x - size, y + fabs(size) * 0.6);
    cairo_close_path(plot->cairo);
    cairo_fill(plot->cairo);
}

/* ---- series ---- */

static void use_dashes(struct moec_plot *plot, uint32_t series)
{
    static const double dashes[MOEC_PLOT_N_STYLE][4] = {
        {0},        {5, 2}, {1.5, 1.5}, {7, 2, 1.5, 2}, {9, 3},      {3, 1.5, 1.5, 1.5},
        {2.5, 2.5}, {1, 3}, {12, 2},    {4, 4},         {9, 2, 3, 2}};
    static const int n_dash[MOEC_PLOT_N_STYLE] = {0, 2, 2, 4, 2, 4, 2, 2, 2, 2, 4};
    cairo_set_dash(plot->cairo, dashes[series % MOEC_PLOT_N_STYLE], n_dash[series % MOEC_PLOT_N_STYLE], 0);
}

void moec_plot_polyline(struct moec_plot *plot, const double *x, const double *y, size_t n, double line,
                        uint32_t series)
{
    use_colour(plot, moec_colour_series(series));
    cairo_set_line_width(plot->cairo, line);
    cairo_set_line_join(plot->cairo, CAIRO_LINE_JOIN_ROUND);
    use_dashes(plot, series);
    cairo_new_path(plot->cairo); /* a text leaves a point behind itself */
    for (size_t i = 0; i < n; i++)
        cairo_line_to(plot->cairo, x[i], y[i]);
    cairo_stroke(plot->cairo);
    cairo_set_dash(plot->cairo, NULL, 0, 0);
}

void moec_plot_band(struct moec_plot *plot, const double *x, const double *low, const double *high, size_t n,
                    uint32_t series)
{
    struct moec_colour colour = moec_colour_series(series);
    cairo_set_source_rgba(plot->cairo, colour.red / 255.0, colour.green / 255.0, colour.blue / 255.0, 0.18);
    cairo_new_path(plot->cairo);
    for (size_t i = 0; i < n; i++)
        cairo_line_to(plot->cairo, x[i], high[i]);
    for (size_t i = n; i-- > 0;)
        cairo_line_to(plot->cairo, x[i], low[i]);
    cairo_close_path(plot->cairo);
    cairo_fill(plot->cairo);
}

/* Corners of the markers on a circle of radius 1; circles have none. */
static const struct marker {
    uint32_t n_corner;
    double turn;  /* of the first corner, in parts of a whole turn clockwise from the top */
    double scale; /* so that all look equally large */
} markers[MOEC_PLOT_N_STYLE] = {{0, 0, 1},      {4, 0.125, 1.25}, {3, 0, 1.3},   {4, 0, 1.25},
                                {3, 0.5, 1.3},  {5, 0, 1.15},     {6, 0, 1.1},   {3, 0.25, 1.3},
                                {3, 0.75, 1.3}, {5, 0.5, 1.15},   {6, 0.25, 1.1}};

void moec_plot_symbol(struct moec_plot *plot, double x, double y, double size, uint32_t series)
{
    const struct marker *marker = &markers[series % MOEC_PLOT_N_STYLE];
    double radius = size / 2 * marker->scale;
    use_colour(plot, moec_colour_series(series));
    cairo_new_path(plot->cairo);
    if (marker->n_corner == 0)
        cairo_arc(plot->cairo, x, y, radius, 0, 2 * M_PI);
    for (uint32_t i = 0; i < marker->n_corner; i++) {
        double angle = 2 * M_PI * (marker->turn + (double)i / marker->n_corner);
        cairo_line_to(plot->cairo, x + radius * sin(angle), y - radius * cos(angle));
    }
    cairo_close_path(plot->cairo);
    cairo_fill(plot->cairo);
}

/* White strokes over a bar: rising, falling, level, upright. */
static void stroke_bar(cairo_t *cairo, double x, double y, double width, double height, uint32_t series)
{
    static const struct {
        bool rising, falling, level, upright;
    } patterns[MOEC_PLOT_N_STYLE] = {{0},
                                     {.rising = true},
                                     {.level = true},
                                     {.rising = true, .falling = true},
                                     {.falling = true},
                                     {.level = true, .rising = true},
                                     {.level = true, .falling = true},
                                     {.upright = true},
                                     {.upright = true, .level = true},
                                     {.upright = true, .rising = true},
                                     {.upright = true, .falling = true}};
    const double step = 5;
    uint32_t at = series % MOEC_PLOT_N_STYLE;
    for (int i = 0; patterns[at].rising && i * step < width + height; i++) {
        cairo_move_to(cairo, x + i * step - height, y + height);
        cairo_rel_line_to(cairo, height, -height);
    }
    for (int i = 0; patterns[at].falling && i * step < width + height; i++) {
        cairo_move_to(cairo, x + i * step - height, y);
        cairo_rel_line_to(cairo, height, height);
    }
    for (int i = 1; patterns[at].level && i * step < height; i++) {
        cairo_move_to(cairo, x, y + height - i * step);
        cairo_rel_line_to(cairo, width, 0);
    }
    for (int i = 1; patterns[at].upright && i * step < width; i++) {
        cairo_move_to(cairo, x + i * step, y);
        cairo_rel_line_to(cairo, 0, height);
    }
    cairo_set_source_rgb(cairo, 1, 1, 1);
    cairo_set_line_width(cairo, 0.9);
    cairo_stroke(cairo);
}

void moec_plot_bar(struct moec_plot *plot, struct moec_plot_box box, uint32_t series)
{
    const double x = box.x, y = box.y, width = box.width, height = box.height;
    struct moec_colour colour = moec_colour_series(series);
    moec_plot_rectangle(plot, box, colour);
    cairo_save(plot->cairo);
    cairo_rectangle(plot->cairo, x, y, width, height);
    cairo_clip(plot->cairo);
    stroke_bar(plot->cairo, x, y, width, height, series);
    cairo_restore(plot->cairo);
    if (width > 2 && height > 1)
        frame(plot, box, 0.6, (struct moec_colour){40, 40, 40});
}

/* ---- text ---- */

/* The machine's taste in hinting and antialiasing is left out, so that machines draw alike. */
static void use_font(cairo_t *cairo, struct moec_plot_font font)
{
    cairo_font_options_t *options = cairo_font_options_create();
    cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
    cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(cairo, options);
    cairo_font_options_destroy(options);
    cairo_select_font_face(cairo, FONT, CAIRO_FONT_SLANT_NORMAL,
                           font.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo, font.size);
}

/* Advance of a text, and half the height of its lower-case letters. */
static void measure_text(cairo_t *cairo, const char *text, double *width, double *half_height)
{
    cairo_text_extents_t line, letter;
    cairo_text_extents(cairo, text, &line);
    cairo_text_extents(cairo, "x", &letter);
    *width = line.x_advance;
    *half_height = letter.height / 2;
}

void moec_plot_text(struct moec_plot *plot, double x, double y, enum moec_plot_anchor anchor,
                    struct moec_plot_font font, const char *text)
{
    double width = 0, half_height = 0;
    use_font(plot->cairo, font);
    measure_text(plot->cairo, text, &width, &half_height);
    double shift = anchor == MOEC_PLOT_LEFT ? 0 : anchor == MOEC_PLOT_CENTRE ? width / 2 : width;
    use_colour(plot, font.colour);
    cairo_move_to(plot->cairo, x - shift, y + half_height);
    cairo_show_text(plot->cairo, text);
}

void moec_plot_text_up(struct moec_plot *plot, double x, double y, struct moec_plot_font font,
                       const char *text)
{
    cairo_save(plot->cairo);
    cairo_translate(plot->cairo, x, y);
    cairo_rotate(plot->cairo, -M_PI / 2);
    moec_plot_text(plot, 0, 0, MOEC_PLOT_CENTRE, font, text);
    cairo_restore(plot->cairo);
}

void moec_plot_clean_text(char *to, size_t capacity, const char *from)
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

double moec_plot_text_width(struct moec_plot_font font, const char *text)
{
    double width = 0, half_height = 0;
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_A8, 1, 1);
    cairo_t *cairo = cairo_create(surface);
    use_font(cairo, font);
    measure_text(cairo, text, &width, &half_height);
    cairo_destroy(cairo);
    cairo_surface_destroy(surface);
    return width;
}

uint32_t moec_plot_paragraph(struct moec_plot *plot, struct moec_plot_point at, double width,
                             double line_height, struct moec_plot_font font, const char *text)
{
    char line[1024];
    uint32_t n_line = 0;
    while (*text != '\0') {
        size_t used = 0, best = 0;
        while (text[used] != '\0') {
            size_t word = used + strspn(text + used, " ");
            word += strcspn(text + word, " ");
            if (word >= sizeof line)
                break;
            memcpy(line, text, word);
            line[word] = '\0';
            if (best > 0 && moec_plot_text_width(font, line) > width)
                break;
            best = used = word;
        }
        /* A word longer than the buffer is cut; at a byte that begins a character. */
        if (best == 0) {
            best = sizeof line - 1;
            while (best > 1 && ((uint8_t)text[best] & 0xc0u) == 0x80u)
                best--;
        }
        memcpy(line, text, best);
        line[best] = '\0';
        if (plot != NULL)
            moec_plot_text(plot, at.x, at.y + n_line * line_height, MOEC_PLOT_LEFT, font, line);
        n_line++;
        text += best + strspn(text + best, " ");
    }
    return n_line;
}

/* ---- colour bar ---- */

void moec_plot_colour_bar(struct moec_plot *plot, struct moec_plot_box box, double low, double high,
                          struct moec_plot_font font)
{
    const double x = box.x, y = box.y, width = box.width, height = box.height;
    cairo_pattern_t *gradient = cairo_pattern_create_linear(x, y + height, x, y);
    for (size_t i = 0; i < N_VIRIDIS; i++)
        cairo_pattern_add_color_stop_rgb(gradient, (double)i / LAST_VIRIDIS, viridis[i].red / 255.0,
                                         viridis[i].green / 255.0, viridis[i].blue / 255.0);
    cairo_rectangle(plot->cairo, x, y, width, height);
    cairo_set_source(plot->cairo, gradient);
    cairo_fill(plot->cairo);
    cairo_pattern_destroy(gradient);
    frame(plot, box, 0.6, font.colour);
    struct moec_ticks ticks = moec_ticks_choose(low, high, (uint32_t)fmax(2, fmin(9, height / 22)));
    for (uint32_t i = 0; i < ticks.n; i++) {
        char number[64];
        double value = ticks.first + i * ticks.step;
        double at = y + height * (high - value) / (high > low ? high - low : 1);
        moec_plot_line(plot, (struct moec_plot_point){x + width, at},
                       (struct moec_plot_point){x + width + 3, at}, 0.6, font.colour);
        /* -0.0 would show its sign. */
        (void)snprintf(number, sizeof number, "%.*f", ticks.decimals,
                       fabs(value) < ticks.step / 2 ? 0.0 : value);
        moec_plot_text(plot, x + width + 5, at, MOEC_PLOT_LEFT, font, number);
    }
}

const char *moec_plot_version(void)
{
    return cairo_version_string();
}
