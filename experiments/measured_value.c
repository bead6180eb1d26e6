/* Results as Lua values. What is null is absent, and NaN in a list, whose places stay. Names in a folder come
 * in the order of their numbers (run2 before run10). */
#include "experiments/paper_library.h"

#include "compiler/lua/json_value.h"
#include "formats/base/file.h"
#include "formats/json/json.h"
#include "profiler/common/correlation.h"

#include <dirent.h>
#include <lauxlib.h>
#include <math.h>
#include <stdlib.h>

#define MOST_JSON_BYTES (64u << 20)

int paper_json(lua_State *lua)
{
    const char *path = luaL_checkstring(lua, 1);
    struct moec_error err = {0};
    struct moec_json *root = NULL;
    char *bytes = NULL;
    size_t n = 0;
    enum moec_status status = moec_file_load(path, MOST_JSON_BYTES, &bytes, &n, &err);
    if (status == MOEC_ERR_NOT_FOUND)
        return 0;
    if (status == MOEC_OK)
        status = moec_json_parse(bytes, n, MOST_JSON_BYTES, path, &root, &err);
    free(bytes);
    if (status != MOEC_OK)
        return paper_fail(lua, &err);
    moec_lua_push_json(lua, root, true);
    moec_json_free(root);
    return 1;
}

int paper_names(lua_State *lua)
{
    struct dirent **entries = NULL;
    const int n = scandir(luaL_checkstring(lua, 1), &entries, NULL, versionsort);
    lua_newtable(lua);
    for (int i = 0; i < n; i++) {
        lua_pushstring(lua, entries[i]->d_name);
        lua_rawseti(lua, -2, i + 1);
        free(entries[i]);
    }
    free(entries);
    return 1;
}

int paper_correlation(lua_State *lua)
{
    const size_t n = lua_rawlen(lua, 1);
    double *values = lua_newuserdatauv(lua, (2 * n + 1) * sizeof *values, 0);
    for (size_t i = 0; i < 2 * n; i++) {
        (void)lua_rawgeti(lua, i < n ? 1 : 2, (lua_Integer)(i % n) + 1);
        values[i] = lua_isnumber(lua, -1) ? lua_tonumber(lua, -1) : (double)NAN;
        lua_pop(lua, 1);
    }
    lua_pushnumber(lua, moec_correlation_pearson(values, values + n, n));
    return 1;
}
