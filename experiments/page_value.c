/* Parts of a page, from Lua tables. What is read stands on top of Lua's stack. Charts are told twice from one
 * struct: as HTML, and as a table of all their points. */
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

/* A part of a page that is being written. */
struct part {
    FILE *stream;
    char *text;
    size_t n;
};

static void open_part(lua_State *lua, struct part *part)
{
    part->stream = open_memstream(&part->text, &part->n);
    if (part->stream == NULL)
        (void)luaL_error(lua, "out of memory: a part of the report");
}

static int push_part(lua_State *lua, struct part *part)
{
    if (fclose(part->stream) != 0)
        return luaL_error(lua, "out of memory: a part of the report");
    lua_pushlstring(lua, part->text, part->n);
    free(part->text);
    return 1;
}

int paper_text(lua_State *lua)
{
    struct part part;
    open_part(lua, &part);
    moec_html_text(part.stream, lua_tostring(lua, 1));
    return push_part(lua, &part);
}

/* Pops a text, "" where it is none; it holds as long as the table that it stands in. */
static const char *pop_text(lua_State *lua)
{
    const char *text = lua_tostring(lua, -1);
    lua_pop(lua, 1);
    return text != NULL ? text : "";
}

/* Text i, from 1, of the list at `index`. */
static const char *text_at(lua_State *lua, int index, lua_Integer i)
{
    (void)lua_rawgeti(lua, index, i);
    return pop_text(lua);
}

int paper_table(lua_State *lua)
{
    const char *cells[MOST_COLUMNS], *classes[MOST_COLUMNS];
    const lua_Integer n = (lua_Integer)lua_rawlen(lua, 2);
    struct part part;
    luaL_argcheck(lua, n <= MOST_COLUMNS, 2, "too many columns");
    for (lua_Integer c = 0; c < n; c++)
        classes[c] = text_at(lua, 2, c + 1);
    open_part(lua, &part);
    struct moec_html_table table = {
        .stream = part.stream, .label = "Table", .classes = classes, .is_tall = true};
    moec_html_table_open(&table);
    for (lua_Integer r = 1; lua_rawgeti(lua, 1, r) == LUA_TTABLE; r++) {
        for (lua_Integer c = 0; c < n; c++)
            cells[c] = text_at(lua, -1, c + 1);
        moec_html_table_row(&table, cells, (size_t)n);
        lua_pop(lua, 1);
    }
    moec_html_table_close(&table);
    return push_part(lua, &part);
}

int paper_page(lua_State *lua)
{
    struct moec_error err = {0};
    struct part part;
    open_part(lua, &part);
    moec_html_begin(part.stream, luaL_checkstring(lua, 2));
    (void)fputs(luaL_checkstring(lua, 3), part.stream);
    moec_html_end(part.stream);
    (void)push_part(lua, &part);
    const enum moec_status status =
        moec_html_write(luaL_checkstring(lua, 1), lua_tostring(lua, -1), part.n, &err);
    return status == MOEC_OK ? 0 : paper_fail(lua, &err);
}

int paper_write(lua_State *lua)
{
    struct moec_error err = {0};
    size_t n = 0;
    const char *path = luaL_checkstring(lua, 1), *text = luaL_checklstring(lua, 2, &n);
    return moec_plot_write_csv(path, text, n, &err) == MOEC_OK ? 0 : paper_fail(lua, &err);
}

/* ---- charts ---- */

/* Fields of the table on top. */
static const char *text_of(lua_State *lua, const char *key)
{
    (void)lua_getfield(lua, -1, key);
    return pop_text(lua);
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
    (void)lua_getfield(lua, -1, key);
    (void)snprintf(axis->name, sizeof axis->name, "%s", text_at(lua, -1, 1));
    (void)snprintf(axis->label, sizeof axis->label, "%s", text_at(lua, -1, 2));
    axis->has_zero = truth_of(lua, "has_zero");
    axis->is_whole = truth_of(lua, "is_whole");
    (void)lua_getfield(lua, -1, "categories");
    const uint32_t n = (uint32_t)lua_rawlen(lua, -1);
    if (n > 0)
        MOEC_TRY(moec_chart_set_categories(axis, n, err));
    for (uint32_t c = 0; c < n; c++)
        (void)snprintf(axis->categories[c], sizeof axis->categories[c], "%s", text_at(lua, -1, c + 1));
    lua_pop(lua, 2);
    return MOEC_OK;
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
    for (lua_Integer i = 1; lua_rawgeti(lua, -1, i) == LUA_TTABLE; i++) {
        add(chart, number_at(lua, 1), text_at(lua, -1, 2));
        lua_pop(lua, 1);
    }
    lua_pop(lua, 2);
}

/* Fills a chart from the table on top of the stack, and leaves its parts above it. */
static enum moec_status take_chart(lua_State *lua, struct moec_chart *chart, struct moec_error *err)
{
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
    take_lines(lua, "rules", moec_chart_add_rule, chart);
    take_lines(lua, "uprights", moec_chart_add_upright, chart);
    (void)lua_getfield(lua, -1, "series");
    for (lua_Integer i = 1; lua_rawgeti(lua, -1, i) == LUA_TTABLE; i++) {
        MOEC_TRY(take_series(lua, chart, err));
        lua_pop(lua, 1);
    }
    return MOEC_OK;
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
    return status == MOEC_OK ? 1 : paper_fail(lua, &err);
}

enum moec_status paper_push_chart(lua_State *lua, const struct moec_chart *chart, struct moec_error *err)
{
    struct part part;
    char *table = NULL;
    size_t n = 0;
    lua_newtable(lua);
    lua_pushstring(lua, chart->name);
    lua_setfield(lua, -2, "name");
    open_part(lua, &part);
    enum moec_status status =
        moec_html_figure(part.stream, chart, "a .tsv file beside the page has all of them", err);
    (void)push_part(lua, &part);
    lua_setfield(lua, -2, "html");
    if (status == MOEC_OK)
        status = moec_chart_csv(chart, &table, &n, err);
    lua_pushlstring(lua, table, n);
    lua_setfield(lua, -2, "csv");
    free(table);
    return status;
}
