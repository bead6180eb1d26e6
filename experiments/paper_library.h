/* What the Lua of experiments/ sees of moec: functions of the table `moec`. Each raises an error of Lua where
 * the library reports one. Thread rule: as a state of Lua. */
#ifndef MOEC_EXPERIMENTS_PAPER_LIBRARY_H
#define MOEC_EXPERIMENTS_PAPER_LIBRARY_H

#include "profiler/plot/chart.h"

#include <lua.h>

/* Raises an error's message. */
int paper_fail(lua_State *lua, const struct moec_error *err);

/* ---- measured_value.c ---- */

/* json(path): the document as of moec_lua_push_json with NaN; nil where there is no file. names(folder): of
 * all its entries, "." among them, in the order of versions; none where there is no folder. correlation(one,
 * other): Pearson's of two lists. */
int paper_json(lua_State *lua);
int paper_names(lua_State *lua);
int paper_correlation(lua_State *lua);

/* ---- profile_value.c ---- */

/* profile(path): numbers of a profile, and its handle; nil where there is no file. study(handle, name, ...):
 * its value at a place on each axis, which is a label, a value, or "#" and the place from 1; nil where there
 * is none. profile_charts(handle, sample, beginning): a list, each as of chart, of the charts of the
 * profile's report whose names begin so; their own names follow the sample's. */
int paper_profile(lua_State *lua);
int paper_study(lua_State *lua);
int paper_profile_charts(lua_State *lua);

/* ---- page_value.c ---- */

/* text(words): as it may stand on a page. table(rows, classes): HTML of lists of cells, headings first, with
 * a class for each column. chart(description): a table of name, html and csv of a chart as chart.lua
 * describes it. page(path, title, html) and write(path, text): write a page, or any text, whole or not at
 * all. */
int paper_text(lua_State *lua);
int paper_table(lua_State *lua);
int paper_chart(lua_State *lua);
int paper_page(lua_State *lua);
int paper_write(lua_State *lua);

/* Pushes that table of a chart. Errors: those of moec_html_figure and moec_chart_csv, which leave it
 * unfinished. */
MOEC_WARN_UNUSED enum moec_status paper_push_chart(lua_State *lua, const struct moec_chart *chart,
                                                   struct moec_error *err);

#endif
