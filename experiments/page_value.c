/* Parts of a page, from Lua tables. Each take_ reads the table or list on top of Lua's stack and leaves the
 * stack as it was. Charts are drawn twice from one struct: as HTML, and as a table of all their points. */
#include "experiments/paper_library.h"

#include "profiler/report/figure_parts.h"
#include "profiler/report/html_table.h"
#include "profiler/report/report_html.h"

#include <lauxlib.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_COLUMNS 16

/* ---- text, tables, pages ---- */

/* Pushes what was written to a stream of memory. */
static int push_stream(lua_State *lua, FILE *stream, char **text, const size_t *n)
{
    if (stream == NULL || fclose(stream) != 0)
        return luaL_error(lua, "out of memory: a part of the report");
    lua_pushlstring(lua, *text, *n);
    free(*text);
    return 1;
}

int paper_text(lua_State *lua)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (stream != NULL)
        moec_html_text(stream, lua_tostring(lua, 1));
    return push_stream(lua, stream, &text, &n);
}

/* Texts of the list at `index`, which hold as long as the list does; returns how many. */
static size_t take_texts(lua_State *lua, int index, const char *texts[static MOST_COLUMNS])
{
    const size_t n = lua_rawlen(lua, index) < MOST_COLUMNS ? lua_rawlen(lua, index) : MOST_COLUMNS;
    for (size_t i = 0; i < n; i++) {
        (void)lua_rawgeti(lua, index, (lua_Integer)i + 1);
        texts[i] = lua_tostring(lua, -1);
        lua_pop(lua, 1);
    }
    return n;
}

int paper_table(lua_State *lua)
{
    const char *cells[MOST_COLUMNS], *classes[MOST_COLUMNS];
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    struct moec_html_table table = {.stream = stream, .label = "Table", .classes = classes, .is_tall = true};
    (void)take_texts(lua, 2, classes);
    if (stream != NULL) {
        moec_html_table_open(&table);
        for (size_t r = 0; r < lua_rawlen(lua, 1); r++) {
            (void)lua_rawgeti(lua, 1, (lua_Integer)r + 1);
            moec_html_table_row(&table, cells, take_texts(lua, lua_gettop(lua), cells));
            lua_pop(lua, 1);
        }
        moec_html_table_close(&table);
    }
    return push_stream(lua, stream, &text, &n);
}

int paper_page(lua_State *lua)
{
    struct moec_error err = {0};
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    if (stream != NULL) {
        moec_html_begin(stream, luaL_checkstring(lua, 2));
        (void)fputs(luaL_checkstring(lua, 3), stream);
        moec_html_end(stream);
    }
    (void)push_stream(lua, stream, &text, &n);
    if (moec_html_write(luaL_checkstring(lua, 1), lua_tostring(lua, -1), n, &err) != MOEC_OK)
        return paper_fail(lua, &err);
    return 0;
}

int paper_write(lua_State *lua)
{
    struct moec_error err = {0};
    size_t n = 0;
    const char *path = luaL_checkstring(lua, 1), *text = luaL_checklstring(lua, 2, &n);
    return moec_plot_write_csv(path, text, n, &err) == MOEC_OK ? 0 : paper_fail(lua, &err);
}

/* ---- charts ---- */

/* The field of the table on top as text, "" where there is none; it holds as long as the table does. */
static const char *text_of(lua_State *lua, const char *key)
{
    (void)lua_getfield(lua, -1, key);
    const char *text = lua_tostring(lua, -1);
    lua_pop(lua, 1);
    return text != NULL ? text : "";
}

static bool truth_of(lua_State *lua, const char *key)
{
    (void)lua_getfield(lua, -1, key);
    const bool is_so = lua_toboolean(lua, -1);
    lua_pop(lua, 1);
    return is_so;
}

/* Item i, from 1, of the list on top; NaN where it is no number. */
static double number_at(lua_State *lua, lua_Integer i)
{
    (void)lua_rawgeti(lua, -1, i);
    const double value = lua_isnumber(lua, -1) ? lua_tonumber(lua, -1) : (double)NAN;
    lua_pop(lua, 1);
    return value;
}

static enum moec_status take_axis(lua_State *lua, const char *key, struct moec_chart_axis *axis,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    (void)lua_getfield(lua, -1, key);
    for (lua_Integer i = 1; i <= 2; i++) {
        (void)lua_geti(lua, -1, i);
        (void)snprintf(i == 1 ? axis->name : axis->label, i == 1 ? sizeof axis->name : sizeof axis->label,
                       "%s", lua_tostring(lua, -1));
        lua_pop(lua, 1);
    }
    axis->has_zero = truth_of(lua, "has_zero");
    axis->is_whole = truth_of(lua, "is_whole");
    (void)lua_getfield(lua, -1, "categories");
    const uint32_t n = (uint32_t)lua_rawlen(lua, -1);
    if (n > 0)
        status = moec_chart_set_categories(axis, n, err);
    for (uint32_t c = 0; c < n && status == MOEC_OK; c++) {
        (void)lua_rawgeti(lua, -1, (lua_Integer)c + 1);
        (void)snprintf(axis->categories[c], sizeof axis->categories[c], "%s", lua_tostring(lua, -1));
        lua_pop(lua, 1);
    }
    lua_pop(lua, 2);
    return status;
}

/* Adds the series on top: its name, and points of x, y, low and high. */
static enum moec_status take_series(lua_State *lua, struct moec_chart *chart, struct moec_error *err)
{
    struct moec_chart_series *series = NULL;
    const uint64_t n = lua_rawlen(lua, -1);
    MOEC_TRY(moec_chart_add_series(chart, text_of(lua, "name"), n, &series, err));
    series->has_interval = truth_of(lua, "has_interval");
    for (uint64_t i = 0; i < n; i++) {
        (void)lua_rawgeti(lua, -1, (lua_Integer)i + 1);
        series->x[i] = number_at(lua, 1);
        series->y[i] = number_at(lua, 2);
        series->low[i] = number_at(lua, 3);
        series->high[i] = number_at(lua, 4);
        lua_pop(lua, 1);
    }
    return MOEC_OK;
}

/* Adds the lines of the list of that name: a value and a word. */
static void take_lines(lua_State *lua, const char *key,
                       void (*add)(struct moec_chart *, double, const char *), struct moec_chart *chart)
{
    (void)lua_getfield(lua, -1, key);
    for (size_t i = 0; i < lua_rawlen(lua, -1); i++) {
        (void)lua_rawgeti(lua, -1, (lua_Integer)i + 1);
        (void)lua_rawgeti(lua, -1, 2);
        const char *word = lua_tostring(lua, -1);
        lua_pop(lua, 1);
        add(chart, number_at(lua, 1), word);
        lua_pop(lua, 1);
    }
    lua_pop(lua, 1);
}

/* Fills a chart from the table on top of the stack. */
static enum moec_status take_chart(lua_State *lua, struct moec_chart *chart, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const char *kind = text_of(lua, "kind");
    chart->kind = strcmp(kind, "bars") == 0     ? MOEC_CHART_BARS
                  : strcmp(kind, "points") == 0 ? MOEC_CHART_POINTS
                                                : MOEC_CHART_LINES;
    moec_figure_name(chart, "%s", text_of(lua, "name"));
    moec_figure_title(chart, "%s", text_of(lua, "title"));
    moec_figure_say(chart, "%s", text_of(lua, "caption"));
    (void)snprintf(chart->source, sizeof chart->source, "%s", text_of(lua, "source"));
    chart->has_value_labels = truth_of(lua, "has_value_labels");
    MOEC_TRY(take_axis(lua, "x", &chart->x, err));
    MOEC_TRY(take_axis(lua, "y", &chart->y, err));
    (void)lua_getfield(lua, -1, "series");
    for (size_t i = 0; i < lua_rawlen(lua, -1) && status == MOEC_OK; i++) {
        (void)lua_rawgeti(lua, -1, (lua_Integer)i + 1);
        status = take_series(lua, chart, err);
        lua_pop(lua, 1);
    }
    lua_pop(lua, 1);
    take_lines(lua, "rules", moec_chart_add_rule, chart);
    take_lines(lua, "uprights", moec_chart_add_upright, chart);
    return status;
}

/* Commas that are in no quotes become tabs, quotes go. */
static size_t make_tsv(char *text, size_t n)
{
    size_t used = 0;
    bool is_quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            is_quoted = !is_quoted;
        else
            text[used++] = text[i] == ',' && !is_quoted ? '\t' : text[i];
    }
    return used;
}

enum moec_status paper_push_chart(lua_State *lua, const struct moec_chart *chart, struct moec_error *err)
{
    char *html = NULL, *table = NULL;
    size_t n_html = 0, n_table = 0;
    MOEC_TRY(moec_chart_csv(chart, &table, &n_table, err));
    FILE *stream = open_memstream(&html, &n_html);
    enum moec_status status =
        stream == NULL ? moec_fail(err, MOEC_ERR_MEMORY, "out of memory: a chart")
                       : moec_html_figure(stream, chart, "a .tsv file beside the page has all of them", err);
    if (stream != NULL)
        (void)fclose(stream);
    if (status == MOEC_OK) {
        lua_pushlstring(lua, html, n_html);
        lua_pushlstring(lua, table, make_tsv(table, n_table));
    }
    free(html);
    free(table);
    return status;
}

int paper_chart(lua_State *lua)
{
    struct moec_chart chart = {.name = ""};
    struct moec_error err = {0};
    lua_settop(lua, 1);
    enum moec_status status = take_chart(lua, &chart, &err);
    if (status == MOEC_OK)
        status = paper_push_chart(lua, &chart, &err);
    moec_chart_release(&chart);
    return status == MOEC_OK ? 2 : paper_fail(lua, &err);
}
