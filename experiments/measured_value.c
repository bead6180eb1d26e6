/* Results as Lua values. Members that are null are absent, and whole numbers stay whole up to 2^53. Names
 * in a folder come in the order of their numbers (run2 before run10). */
#include "experiments/paper_library.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/json/json.h"
#include "profiler/common/correlation.h"

#include <dirent.h>
#include <lauxlib.h>
#include <math.h>
#include <string.h>

#define MOST_JSON_BYTES (64u << 20)
#define MOST_WHOLE      9007199254740992.0 /* 2^53: beyond it not every whole number is a double */

/* ---- JSON ---- */

static void push_number(lua_State *lua, const struct moec_json *node)
{
    double value = NAN;
    struct moec_error ignored = {0};
    if (moec_json_as_double(node, "a figure", -1e300, 1e300, &value, &ignored) != MOEC_OK)
        value = NAN;
    if (moec_json_type(node) == MOEC_JSON_INTEGER && fabs(value) < MOST_WHOLE)
        lua_pushinteger(lua, (lua_Integer)value);
    else
        lua_pushnumber(lua, value);
}

/* Pushes one value; as deep as moec_json_parse allows. */
static void push_value(lua_State *lua, const struct moec_json *node)
{
    const char *text = NULL;
    size_t n = 0;
    bool truth = false;
    luaL_checkstack(lua, 4, "a result");
    switch (moec_json_type(node)) {
    case MOEC_JSON_OBJECT:
        lua_createtable(lua, 0, (int)moec_json_length(node));
        for (struct moec_json_member m = moec_json_first(node); m.key != NULL; m = moec_json_next(node, m))
            if (moec_json_type(m.value) != MOEC_JSON_NULL) {
                push_value(lua, m.value);
                lua_setfield(lua, -2, m.key);
            }
        break;
    case MOEC_JSON_ARRAY:
        lua_createtable(lua, (int)moec_json_length(node), 0);
        for (size_t i = 0; i < moec_json_length(node); i++) {
            push_value(lua, moec_json_at(node, i));
            lua_rawseti(lua, -2, (lua_Integer)i + 1);
        }
        break;
    case MOEC_JSON_STRING:
        if (moec_json_as_string(node, "a text", &text, &n, NULL) == MOEC_OK)
            lua_pushlstring(lua, text, n);
        else
            lua_pushliteral(lua, "");
        break;
    case MOEC_JSON_BOOL:
        lua_pushboolean(lua, moec_json_as_bool(node, "a truth", &truth, NULL) == MOEC_OK && truth);
        break;
    default:
        push_number(lua, node);
    }
}

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
    push_value(lua, root);
    moec_json_free(root);
    return 1;
}

/* ---- folders ---- */

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int by_version(const struct dirent **a, const struct dirent **b)
{
    return versionsort(a, b);
}

int paper_names(lua_State *lua)
{
    size_t n_ending = 0;
    const char *folder = luaL_checkstring(lua, 1), *ending = luaL_checklstring(lua, 2, &n_ending);
    struct dirent **entries = NULL;
    const int n = scandir(folder, &entries, is_visible, by_version);
    lua_newtable(lua);
    for (int i = 0; i < n; i++) {
        const size_t length = strlen(entries[i]->d_name);
        if (length > n_ending && strcmp(entries[i]->d_name + length - n_ending, ending) == 0) {
            lua_pushlstring(lua, entries[i]->d_name, length - n_ending);
            lua_rawseti(lua, -2, (lua_Integer)lua_rawlen(lua, -2) + 1);
        }
        free(entries[i]);
    }
    free(entries);
    return 1;
}

/* ---- numbers ---- */

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
