/* Writes the report of a paper's experiment from what its script measured: FOLDER/report.html, which needs
 * nothing beside itself, and its tables and charts as FOLDER/NAME.tsv. What to write stands in PAPER.lua and
 * the Lua that it takes, in the folder experiments/ of the current one. */
#include "experiments/paper_library.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int paper_fail(lua_State *lua, const struct moec_error *err)
{
    lua_pushstring(lua, err->message);
    return lua_error(lua);
}

static void open_library(lua_State *lua)
{
    static const luaL_Reg functions[] = {
        {"json", paper_json},       {"names", paper_names}, {"correlation", paper_correlation},
        {"profile", paper_profile}, {"study", paper_study}, {"profile_charts", paper_profile_charts},
        {"text", paper_text},       {"table", paper_table}, {"chart", paper_chart},
        {"page", paper_page},       {"write", paper_write}, {NULL, NULL}};
    luaL_openlibs(lua);
    luaL_newlib(lua, functions);
    lua_setglobal(lua, "moec");
    lua_getglobal(lua, "package");
    lua_pushstring(lua, "experiments/?.lua");
    lua_setfield(lua, -2, "path");
    lua_pop(lua, 1);
}

/* Arguments: the paper, the folder, and the sample's name or nothing. */
static int report(lua_State *lua)
{
    static const char script[] =
        "local paper, folder, name = ... require('page').report(require(paper), folder, name)";
    lua_pushfstring(lua, "experiments/%s.lua", lua_tostring(lua, 1));
    if (access(lua_tostring(lua, -1), R_OK) != 0)
        return luaL_error(lua, "there is no '%s' here: papers are edgemoe, decisions and floe",
                          lua_tostring(lua, -1));
    lua_pop(lua, 1);
    open_library(lua);
    (void)luaL_loadstring(lua, script);
    lua_insert(lua, 1);
    lua_call(lua, 3, 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc != (strcmp(argv[1], "floe") == 0 ? 4 : 3)) {
        (void)fputs(
            "usage: paper_report edgemoe|decisions FOLDER, or paper_report floe FOLDER NAME, where the "
            "script of experiments/ measured\n",
            stderr);
        return 2;
    }
    lua_State *lua = luaL_newstate();
    if (lua == NULL)
        return 1;
    lua_pushcfunction(lua, report);
    for (int a = 1; a < 4; a++)
        lua_pushstring(lua, argv[a]); /* NULL becomes nil */
    const int outcome = lua_pcall(lua, 3, 0, 0);
    if (outcome != LUA_OK)
        (void)fprintf(stderr, "paper_report: %s\n", lua_tostring(lua, -1));
    lua_close(lua);
    return outcome == LUA_OK ? 0 : 1;
}
