/* A sheet is laid out by the very calls that draw it, with no plot to draw on. Text must therefore take the
 * same lines in both. Layout runs twice, for the title needs the width that cells find, and cells need the
 * title's height. */
#include "profiler/plot/chart.h"

#include "formats/base/memory.h"
#include "profiler/plot/chart_draw.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- description ---- */

void moec_chart_release(struct moec_chart *chart)
{
    if (chart == NULL)
        return;
    for (uint32_t i = 0; i < chart->n_series; i++)
        free(chart->series[i].x);
    free(chart->x.categories);
    free(chart->y.categories);
    free(chart->x.numbers);
    free(chart->y.numbers);
    free(chart->cells.values);
    free(chart->cells.rows);
    free(chart->cells.faded);
    memset(chart, 0, sizeof *chart);
}

enum moec_status moec_chart_add_series(struct moec_chart *chart, const char *name, uint64_t n,
                                       struct moec_chart_series **series, struct moec_error *err)
{
    double *numbers = NULL;
    if (chart->n_series == MOEC_CHART_MAX_SERIES)
        return moec_fail(err, MOEC_ERR_LIMIT, "chart '%s' would have more than %d series", chart->name,
                         MOEC_CHART_MAX_SERIES);
    if (n > UINT64_MAX / 4)
        return moec_fail(err, MOEC_ERR_LIMIT, "chart '%s' would have %" PRIu64 " points, which is too many",
                         chart->name, n);
    MOEC_TRY(moec_alloc((void **)&numbers, 4 * n, sizeof *numbers, "a series of a chart", err));
    for (uint64_t i = 0; i < 4 * n; i++)
        numbers[i] = (double)NAN;
    struct moec_chart_series *added = &chart->series[chart->n_series++];
    *added = (struct moec_chart_series){
        .n = n, .x = numbers, .y = numbers + n, .low = numbers + 2 * n, .high = numbers + 3 * n};
    moec_plot_clean_text(added->name, sizeof added->name, name);
    *series = added;
    return MOEC_OK;
}

enum moec_status moec_chart_set_categories(struct moec_chart_axis *axis, uint32_t n, struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)&axis->categories, n, sizeof *axis->categories, "names of a chart", err));
    axis->n_category = n;
    return MOEC_OK;
}

enum moec_status moec_chart_number_categories(struct moec_chart_axis *axis, struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)&axis->numbers, axis->n_category, sizeof *axis->numbers,
                        "numbers of a chart", err));
    for (uint32_t i = 0; i < axis->n_category; i++)
        axis->numbers[i] = (double)NAN;
    return MOEC_OK;
}

enum moec_status moec_chart_set_cells(struct moec_chart *chart, uint32_t n_row, uint32_t n_column,
                                      struct moec_error *err)
{
    struct moec_chart_cells *cells = &chart->cells;
    uint64_t n = (uint64_t)n_row * n_column;
    MOEC_TRY(moec_alloc((void **)&cells->values, n, sizeof(double), "cells of a chart", err));
    MOEC_TRY(moec_alloc((void **)&cells->rows, n_row, sizeof(double), "rows of a chart", err));
    cells->n_row = n_row;
    cells->n_column = n_column;
    cells->colours.mark = (double)NAN;
    cells->numbers.decimals = -1;
    for (uint64_t i = 0; i < n; i++)
        cells->values[i] = (double)NAN;
    for (uint32_t i = 0; i < n_row; i++)
        cells->rows[i] = i;
    return MOEC_OK;
}

void moec_chart_add_rule(struct moec_chart *chart, double at, const char *label)
{
    if (chart->n_rule == MOEC_CHART_MAX_RULES)
        return;
    struct moec_chart_rule *rule = &chart->rules[chart->n_rule++];
    rule->at = at;
    moec_plot_clean_text(rule->label, sizeof rule->label, label);
}

void moec_chart_add_upright(struct moec_chart *chart, double at, const char *label)
{
    const uint32_t n = chart->n_rule;
    moec_chart_add_rule(chart, at, label);
    if (chart->n_rule > n)
        chart->rules[n].is_upright = true;
}

/* ---- numbers ---- */

const char *moec_chart_number(char text[static MOEC_CHART_NUMBER], double value)
{
    double size = fabs(value);
    int decimals = size >= 100 || size == 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
    if (!isfinite(value))
        (void)snprintf(text, MOEC_CHART_NUMBER, "unknown");
    else if (size >= 1e7 || (size > 0 && size < 0.0005))
        (void)snprintf(text, MOEC_CHART_NUMBER, "%.2g", value);
    else
        (void)snprintf(text, MOEC_CHART_NUMBER, "%.*f", decimals, value);
    return text;
}

const char *moec_chart_exact(char text[static MOEC_CHART_NUMBER], double value)
{
    text[0] = '\0';
    if (isnan(value))
        return text;
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, MOEC_CHART_NUMBER, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return text;
}

/* ---- table ---- */

/* A field, quoted where it must be (RFC 4180). */
static void put_field(FILE *stream, const char *text)
{
    if (strpbrk(text, ",\"\n\r") == NULL) {
        (void)fputs(text, stream);
        return;
    }
    (void)fputc('"', stream);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            (void)fputc('"', stream);
        (void)fputc(*text, stream);
    }
    (void)fputc('"', stream);
}

static void put_number(FILE *stream, double value)
{
    char text[MOEC_CHART_NUMBER];
    (void)fputs(moec_chart_exact(text, value), stream);
}

static void put_x(FILE *stream, const struct moec_chart_axis *axis, double value)
{
    const bool is_category = axis->n_category > 0 && value >= 0 && value < axis->n_category;
    if (is_category && axis->numbers != NULL && isfinite(axis->numbers[(uint32_t)value]))
        put_number(stream, axis->numbers[(uint32_t)value]);
    else if (is_category)
        put_field(stream, axis->categories[(uint32_t)value]);
    else
        put_number(stream, value);
}

static void put_series(FILE *stream, const struct moec_chart *chart, const struct moec_chart_series *series)
{
    for (uint64_t i = 0; i < series->n; i++) {
        put_field(stream, series->name);
        (void)fputc(',', stream);
        put_x(stream, &chart->x, series->x[i]);
        (void)fputc(',', stream);
        put_number(stream, series->y[i]);
        (void)fputc(',', stream);
        put_number(stream, series->has_interval ? series->low[i] : (double)NAN);
        (void)fputc(',', stream);
        put_number(stream, series->has_interval ? series->high[i] : (double)NAN);
        (void)fputc('\n', stream);
    }
}

static void put_cells(FILE *stream, const struct moec_chart_cells *cells)
{
    for (uint32_t r = 0; r < cells->n_row; r++)
        for (uint32_t c = 0; c < cells->n_column; c++) {
            put_number(stream, cells->rows[r]);
            (void)fprintf(stream, ",%" PRIu32 ",", c);
            put_number(stream, cells->values[(size_t)r * cells->n_column + c]);
            (void)fputc('\n', stream);
        }
}

enum moec_status moec_chart_csv(const struct moec_chart *chart, char **text, size_t *n_bytes,
                                struct moec_error *err)
{
    FILE *stream = open_memstream(text, n_bytes);
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", chart->name);
    if (chart->kind == MOEC_CHART_CELLS) {
        (void)fprintf(stream, "%s,%s,%s\n", chart->y.name, chart->x.name, chart->value_name);
        put_cells(stream, &chart->cells);
    } else {
        (void)fprintf(stream, "series,%s,%s,low,high\n", chart->x.name, chart->y.name);
        for (uint32_t i = 0; i < chart->n_series; i++)
            put_series(stream, chart, &chart->series[i]);
    }
    if (fclose(stream) != 0) {
        free(*text);
        *text = NULL;
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", chart->name);
    }
    return MOEC_OK;
}

/* ---- sheet ---- */

#define TITLE_HEIGHT  16.0
#define PARAGRAPH_GAP 4.0
#define PLANE_WIDTH   500.0
#define LEAST_WIDTH   200.0
#define BARE_MARGIN   6.0

static const struct moec_plot_font title_font = {.size = MOEC_CHART_TITLE, .bold = true};

/* Caption, then source and provenance in small grey print; returns where they end. */
static double draw_text(struct moec_plot *plot, const struct moec_chart *chart,
                        const struct moec_chart_layout *at)
{
    char source[sizeof chart->source + 16] = "";
    const char *const texts[] = {chart->caption, source, chart->provenance};
    const struct moec_colour colours[] = {moec_chart_black, moec_chart_grey, moec_chart_grey};
    double y = at->text_top;
    if (chart->source[0] != '\0')
        (void)snprintf(source, sizeof source, "After %s.", chart->source);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i][0] == '\0')
            continue;
        uint32_t n = moec_plot_paragraph(plot, (struct moec_plot_point){at->margin, y},
                                         at->width - 2 * at->margin, MOEC_CHART_LINE_HEIGHT,
                                         moec_chart_font(MOEC_CHART_SMALL, colours[i]), texts[i]);
        y += n * MOEC_CHART_LINE_HEIGHT + PARAGRAPH_GAP;
    }
    return y;
}

static struct moec_chart_layout lay_out(const struct moec_chart *chart, double width, bool is_bare)
{
    struct moec_chart_layout at;
    bool is_cells = chart->kind == MOEC_CHART_CELLS;
    double margin = is_bare ? BARE_MARGIN : MOEC_CHART_MARGIN, top = margin;
    if (width > 0)
        width = fmax(width, LEAST_WIDTH);
    else if (!is_cells)
        width = PLANE_WIDTH;
    /* A title takes the lines that it needs in the width of the sheet, which for cells the layout finds. */
    for (int pass = 0; pass < 2; pass++) {
        at = is_cells ? moec_chart_lay_out_cells(chart, width, margin, top)
                      : moec_chart_lay_out_plane(chart, width, margin, top);
        if (is_bare)
            break;
        uint32_t n = moec_plot_paragraph(NULL, (struct moec_plot_point){0, 0}, at.width - 2 * margin,
                                         TITLE_HEIGHT, title_font, chart->title);
        top = margin + n * TITLE_HEIGHT + 14;
    }
    at.height = is_bare ? at.text_top : draw_text(NULL, chart, &at) + margin - MOEC_CHART_LINE_HEIGHT / 2;
    return at;
}

static enum moec_status draw(const struct moec_chart *chart, const char *path,
                             const struct moec_chart_look *look, struct moec_plot **plot,
                             struct moec_error *err)
{
    struct moec_chart_layout at = lay_out(chart, look->width, look->is_bare);
    const struct moec_plot_sheet sheet = {look->format, at.width, at.height, chart->title};
    MOEC_TRY(moec_plot_open(path, &sheet, plot, err));
    if (!look->is_bare) {
        (void)moec_plot_paragraph(*plot, (struct moec_plot_point){at.margin, at.margin + 8},
                                  at.width - 2 * at.margin, TITLE_HEIGHT, title_font, chart->title);
        (void)draw_text(*plot, chart, &at);
    }
    if (chart->kind == MOEC_CHART_CELLS)
        moec_chart_draw_cells(*plot, chart, &at);
    else
        moec_chart_draw_plane(*plot, chart, &at);
    return MOEC_OK;
}

enum moec_status moec_chart_render(const struct moec_chart *chart, const struct moec_chart_look *look,
                                   uint8_t **bytes, size_t *n_bytes, struct moec_error *err)
{
    struct moec_plot *plot = NULL;
    MOEC_TRY(draw(chart, chart->name, look, &plot, err));
    return moec_plot_take_bytes(plot, bytes, n_bytes, err);
}

static enum moec_status write_csv(const struct moec_chart *chart, const char *path, struct moec_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    MOEC_TRY(moec_chart_csv(chart, &text, &n_bytes, err));
    enum moec_status status = moec_plot_write_csv(path, text, n_bytes, err);
    free(text);
    return status;
}

enum moec_status moec_chart_write(const struct moec_chart *chart, const char *path, struct moec_error *err)
{
    enum moec_plot_format format = MOEC_PLOT_CSV;
    struct moec_plot *plot = NULL;
    MOEC_TRY(moec_plot_format_of(path, &format, err));
    if (format == MOEC_PLOT_CSV)
        return write_csv(chart, path, err);
    MOEC_TRY(draw(chart, path, &(struct moec_chart_look){.format = format}, &plot, err));
    return moec_plot_commit(plot, err);
}

double moec_chart_flow_take(struct moec_chart_flow *flow, double width)
{
    if (flow->x > flow->left && flow->x + width > flow->right) {
        flow->x = flow->left;
        flow->y += flow->line_height;
    }
    double begin = flow->x;
    flow->x += width;
    return begin;
}
