/* Each drawing is rendered for its width instead of being scaled. A heatmap of more than MOST_SVG_CELLS cells
 * is PNG, everything else SVG. Base64 comes in pieces of a multiple of three bytes, so that only the last is
 * padded. */
#include "profiler/report/report_html.h"

#include "formats/base/base64.h"
#include "formats/base/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sheets in points; a screen shows four thirds of a pixel for each. */
#define PIXELS_PER_POINT (4.0 / 3)
#define WIDE_PLANE       500.0
#define WIDE_CELLS       720.0
#define LEAST_CELLS      420.0
#define NARROW           270.0

#define MOST_SVG_CELLS  128  /* more are drawn as pixels */
#define MOST_ROWS       512  /* of a table */
#define MOST_CELL_COUNT 8192 /* of a heatmap's table */

struct moec_html_name moec_html_name(const char *from)
{
    struct moec_html_name name;
    moec_plot_clean_text(name.text, sizeof name.text, from);
    return name;
}

void moec_html_format(FILE *stream, const char *format, ...)
{
    char text[4096];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    moec_html_text(stream, text);
}

/* ---- page ---- */

/* Wide content scrolls in its own box, never the page. In the dark, pictures change light for dark and keep
 * their hues, scales of colour with them: what stands out on white stands out on black. */
static const char style[] =
    ":root{--ink:#1a1a1a;--soft:#595959;--line:#d5d5d5;--ground:#fff;--box:#f5f5f5;--link:#0059a3}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--soft:#b0b0b0;--line:#484848;--ground:#16181b;"
    "--box:#22252a;--link:#7cc4ff}}"
    "*{box-sizing:border-box}"
    "html{-webkit-text-size-adjust:100%}"
    "body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 'DejaVu Sans',Verdana,sans-serif}"
    "main{max-width:62rem;margin:0 auto;padding:1.5rem 1rem 4rem}"
    "h1{font-size:1.6rem;line-height:1.25;margin:0 0 .5rem}"
    "h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-bottom:2px solid var(--line);padding-bottom:.2rem}"
    "h3{font-size:1rem;margin:0 0 .5rem}"
    "p,li,dd,figcaption,h1,h2,h3,th,td{overflow-wrap:anywhere}"
    "p,ul,figcaption{max-width:46rem}"
    "p.lead{font-size:1.1rem}"
    "a{color:var(--link)}"
    "nav ul{padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:0}"
    "dt{color:var(--soft)}dd{margin:0}"
    "figure{margin:2rem 0}figure h3{min-height:1.5em}"
    "@media(prefers-color-scheme:dark){img{filter:invert(.9) hue-rotate(180deg)}}"
    "@media(min-width:1200px){main{max-width:86rem}.figures{display:grid;grid-template-columns:1fr "
    "1fr;column-gap:"
    "2.5rem;align-items:start}.figures figure{margin:1.25rem 0;min-width:0}.figures .wide{grid-column:1/-1}}"
    "picture{display:block}"
    "img{display:block;max-width:100%;height:auto;background:#fff;border-radius:4px}"
    "figcaption{margin-top:.5rem}"
    ".source{color:var(--soft)}"
    "details{margin:.5rem 0}summary{cursor:pointer;color:var(--link)}"
    ".scroll{overflow:auto;max-height:26rem;width:fit-content;max-width:100%;border:1px solid "
    "var(--line);margin:.5rem 0 1rem}"
    ".scroll p{margin:.5rem}"
    "table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--line);overflow-wrap:normal;"
    "white-space:nowrap}"
    "th:first-child,.word,.words{text-align:left}td.words{white-space:normal;min-width:12rem}"
    "thead th{position:sticky;top:0;background:var(--box);vertical-align:bottom}"
    "@media(max-width:640px){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}"
    "img{width:100%!important}}"
    "@media print{body{background:#fff;color:#000;font-size:10pt}nav,details{display:none}"
    "figure,tr{break-inside:avoid}main{max-width:none;padding:0}.scroll{max-height:none;border:0}}";

void moec_html_begin(FILE *stream, const char *title)
{
    (void)fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                "<meta name=\"color-scheme\" content=\"light dark\">\n"
                "<meta name=\"generator\" content=\"moec\">\n<title>",
                stream);
    moec_html_text(stream, title);
    (void)fputs("</title>\n<style>", stream);
    (void)fputs(style, stream);
    (void)fputs("</style>\n</head>\n<body>\n<main>\n<h1>", stream);
    moec_html_text(stream, title);
    (void)fputs("</h1>\n", stream);
}

void moec_html_end(FILE *stream)
{
    (void)fputs("</main>\n</body>\n</html>\n", stream);
}

void moec_html_section_open(FILE *stream, const char *id, const char *title)
{
    (void)fprintf(stream, "<section id=\"%s\" aria-labelledby=\"h-%s\">\n<h2 id=\"h-%s\">", id, id, id);
    moec_html_text(stream, title);
    (void)fputs("</h2>\n", stream);
}

void moec_html_section_close(FILE *stream)
{
    (void)fputs("</section>\n", stream);
}

enum moec_status moec_html_write(const char *path, const char *text, size_t n_bytes, struct moec_error *err)
{
    struct moec_output output = {.fd = -1};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_output_open(&output, path, err));
    MOEC_TRY_OUT(moec_output_append(&output, text, n_bytes, err));
    MOEC_TRY_OUT(moec_output_commit(&output, err));
out:
    moec_output_abort(&output);
    return status;
}

/* ---- facts ---- */

void moec_html_fact(FILE *stream, const char *name, const char *format, ...)
{
    char text[4096];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    (void)fputs("<dt>", stream);
    moec_html_text(stream, name);
    (void)fputs("</dt><dd>", stream);
    moec_html_text(stream, text);
    (void)fputs("</dd>\n", stream);
}

/* ---- pictures ---- */

void moec_html_data(FILE *stream, enum moec_plot_format format, const uint8_t *bytes, size_t n_bytes)
{
    enum { PIECE = 3 * 1024 };
    char text[MOEC_BASE64_LENGTH(PIECE)];
    (void)fprintf(stream, "data:image/%s;base64,", format == MOEC_PLOT_PNG ? "png" : "svg+xml");
    for (size_t i = 0; i < n_bytes; i += PIECE) {
        const size_t n = n_bytes - i < PIECE ? n_bytes - i : PIECE;
        moec_base64_write(bytes + i, n, text);
        (void)fwrite(text, 1, MOEC_BASE64_LENGTH(n), stream);
    }
}

static enum moec_plot_format format_of(const struct moec_chart *chart)
{
    uint64_t n = (uint64_t)chart->cells.n_row * chart->cells.n_column;
    return chart->kind == MOEC_CHART_CELLS && n > MOST_SVG_CELLS ? MOEC_PLOT_PNG : MOEC_PLOT_SVG;
}

static double wide_width(const struct moec_chart *chart)
{
    if (chart->kind != MOEC_CHART_CELLS)
        return WIDE_PLANE;
    return fmin(WIDE_CELLS, fmax(LEAST_CELLS, 180 + 48.0 * chart->cells.n_column));
}

static enum moec_status put_drawing(FILE *stream, const struct moec_chart *chart, double width,
                                    struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    enum moec_plot_format format = format_of(chart);
    MOEC_TRY(moec_chart_render(chart, &(struct moec_chart_look){format, width, true}, &bytes, &n_bytes, err));
    moec_html_data(stream, format, bytes, n_bytes);
    free(bytes);
    return MOEC_OK;
}

/* Narrow screens get a drawing of their own: one that shrinks would not be readable. */
static enum moec_status put_picture(FILE *stream, const struct moec_chart *chart, struct moec_error *err)
{
    (void)fputs("<picture><source media=\"screen and (max-width: 640px)\" srcset=\"", stream);
    MOEC_TRY(put_drawing(stream, chart, NARROW, err));
    (void)fputs("\"><img alt=\"", stream);
    moec_html_text(stream, chart->title);
    (void)fprintf(stream, "\" aria-describedby=\"caption-%s\" style=\"width:%.0fpx\" src=\"", chart->name,
                  wide_width(chart) * PIXELS_PER_POINT);
    MOEC_TRY(put_drawing(stream, chart, wide_width(chart), err));
    (void)fputs("\"></picture>\n", stream);
    return MOEC_OK;
}

/* ---- tables ---- */

static const char *short_number(char text[static MOEC_CHART_NUMBER], double value)
{
    if (isfinite(value))
        (void)snprintf(text, MOEC_CHART_NUMBER, "%.5g", value);
    else
        (void)snprintf(text, MOEC_CHART_NUMBER, "–");
    return text;
}

static void put_value(struct moec_html_table *table, const struct moec_chart_series *series, uint64_t i)
{
    char value[MOEC_CHART_NUMBER], low[MOEC_CHART_NUMBER], high[MOEC_CHART_NUMBER];
    if (series->has_interval && isfinite(series->low[i]) && isfinite(series->high[i]))
        moec_html_table_cell(table, "%s (%s to %s)", short_number(value, series->y[i]),
                             short_number(low, series->low[i]), short_number(high, series->high[i]));
    else
        moec_html_table_cell(table, "%s", short_number(value, series->y[i]));
}

static void put_x(struct moec_html_table *table, const struct moec_chart_axis *axis, double value)
{
    char text[MOEC_CHART_NUMBER];
    bool is_named = axis->n_category > 0 && value >= 0 && value < axis->n_category;
    moec_html_table_cell(table, "%s",
                         is_named ? axis->categories[(uint32_t)value] : short_number(text, value));
}

static void put_series_row(struct moec_html_table *table, const struct moec_chart *chart, uint64_t i)
{
    double x = (double)NAN;
    for (uint32_t s = 0; s < chart->n_series; s++)
        x = i < chart->series[s].n && !isfinite(x) ? chart->series[s].x[i] : x;
    put_x(table, &chart->x, x);
    for (uint32_t s = 0; s < chart->n_series; s++) {
        if (i < chart->series[s].n)
            put_value(table, &chart->series[s], i);
        else
            moec_html_table_cell(table, "%s", "");
    }
    moec_html_table_end_row(table);
}

/* Series side by side: they stand over the same places of x in every figure. */
static void put_series_table(FILE *stream, const struct moec_chart *chart, const char *where_all)
{
    struct moec_html_table table = {.stream = stream};
    uint64_t n = 0;
    moec_html_table_open(&table);
    moec_html_table_cell(&table, "%s", chart->x.label);
    for (uint32_t s = 0; s < chart->n_series; s++) {
        moec_html_table_cell(&table, "%s",
                             chart->series[s].name[0] != '\0' ? chart->series[s].name : chart->y.label);
        n = chart->series[s].n > n ? chart->series[s].n : n;
    }
    moec_html_table_end_row(&table);
    for (uint64_t i = 0; i < n && i < MOST_ROWS; i++)
        put_series_row(&table, chart, i);
    moec_html_table_close(&table);
    if (n > MOST_ROWS)
        (void)fprintf(stream, "<p>The first %d of %" PRIu64 " rows; %s.</p>\n", MOST_ROWS, n, where_all);
}

static void put_cells_table(FILE *stream, const struct moec_chart *chart, const char *where_all)
{
    const struct moec_chart_cells *cells = &chart->cells;
    struct moec_html_table table = {.stream = stream};
    char text[MOEC_CHART_NUMBER];
    uint32_t n_row = cells->n_row;
    while ((uint64_t)n_row * cells->n_column > MOST_CELL_COUNT && n_row > 1)
        n_row--;
    moec_html_table_open(&table);
    moec_html_table_cell(&table, "%s", chart->y.label);
    for (uint32_t c = 0; c < cells->n_column; c++)
        moec_html_table_cell(&table, "%s %" PRIu32, c == 0 ? chart->x.label : "", c);
    moec_html_table_end_row(&table);
    for (uint32_t r = 0; r < n_row; r++) {
        moec_html_table_cell(&table, "%s", short_number(text, cells->rows[r]));
        for (uint32_t c = 0; c < cells->n_column; c++)
            moec_html_table_cell(&table, "%s",
                                 short_number(text, cells->values[(size_t)r * cells->n_column + c]));
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    if (n_row < cells->n_row)
        (void)fprintf(stream, "<p>The first %" PRIu32 " of %" PRIu32 " rows; %s.</p>\n", n_row, cells->n_row,
                      where_all);
}

static void put_table(FILE *stream, const struct moec_chart *chart, const char *where_all)
{
    (void)fputs("<details><summary>Numbers</summary><div class=\"scroll\" role=\"region\" tabindex=\"0\" "
                "aria-label=\"",
                stream);
    moec_html_format(stream, "Numbers: %s", chart->title);
    (void)fputs("\">\n", stream);
    if (chart->kind == MOEC_CHART_CELLS)
        put_cells_table(stream, chart, where_all);
    else
        put_series_table(stream, chart, where_all);
    (void)fputs("</div></details>\n", stream);
}

enum moec_status moec_html_figure(FILE *stream, const struct moec_chart *chart, const char *where_all,
                                  struct moec_error *err)
{
    (void)fprintf(stream, "<figure id=\"figure-%s\"%s>\n<h3>", chart->name,
                  chart->kind == MOEC_CHART_CELLS ? " class=\"wide\"" : "");
    moec_html_text(stream, chart->title);
    (void)fputs("</h3>\n", stream);
    MOEC_TRY(put_picture(stream, chart, err));
    (void)fprintf(stream, "<figcaption id=\"caption-%s\">", chart->name);
    moec_html_text(stream, chart->caption);
    if (chart->source[0] != '\0') {
        (void)fputs(" <span class=\"source\">After ", stream);
        moec_html_text(stream, chart->source);
        (void)fputs(".</span>", stream);
    }
    (void)fputs("</figcaption>\n", stream);
    put_table(stream, chart, where_all);
    (void)fputs("</figure>\n", stream);
    return MOEC_OK;
}
