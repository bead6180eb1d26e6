/* The tree is the caller's, and Lua copies texts: an error that Lua raises leaves nothing behind. */
#include "compiler/lua/json_value.h"

#include <lauxlib.h>
#include <math.h>

static void push_number(lua_State *lua, const struct moec_json *node)
{
    double value = NAN;
    lua_Integer whole = 0;
    if (moec_json_as_double(node, "a number", -1e308, 1e308, &value, NULL) != MOEC_OK)
        value = NAN;
    if (value == floor(value) && lua_numbertointeger(value, &whole))
        lua_pushinteger(lua, whole);
    else
        lua_pushnumber(lua, value);
}

void moec_lua_push_json(lua_State *lua, const struct moec_json *node, bool has_nan)
{
    const char *text = "";
    size_t n = 0;
    bool truth = false;
    luaL_checkstack(lua, 4, "JSON is nested too deeply");
    switch (moec_json_type(node)) {
    case MOEC_JSON_OBJECT:
        lua_createtable(lua, 0, (int)moec_json_length(node));
        for (struct moec_json_member m = moec_json_first(node); m.key != NULL; m = moec_json_next(node, m))
            if (moec_json_type(m.value) != MOEC_JSON_NULL) {
                moec_lua_push_json(lua, m.value, has_nan);
                lua_setfield(lua, -2, m.key);
            }
        break;
    case MOEC_JSON_ARRAY:
        lua_createtable(lua, (int)moec_json_length(node), 0);
        for (size_t i = 0; i < moec_json_length(node); i++) {
            moec_lua_push_json(lua, moec_json_at(node, i), has_nan);
            lua_rawseti(lua, -2, (lua_Integer)i + 1);
        }
        break;
    case MOEC_JSON_STRING:
        (void)!moec_json_as_string(node, "a text", &text, &n, NULL);
        lua_pushlstring(lua, text, n);
        break;
    case MOEC_JSON_BOOL:
        (void)!moec_json_as_bool(node, "a truth", &truth, NULL);
        lua_pushboolean(lua, truth);
        break;
    case MOEC_JSON_NULL:
        if (has_nan)
            lua_pushnumber(lua, (double)NAN);
        else
            lua_pushnil(lua);
        break;
    default:
        push_number(lua, node);
    }
}
