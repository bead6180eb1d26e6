/* JSON as Lua values. Thread rule: as a state of Lua. */
#ifndef MOEC_COMPILER_JSON_VALUE_H
#define MOEC_COMPILER_JSON_VALUE_H

#include "formats/json/json.h"

#include <lua.h>

/* Pushes a value, objects and arrays as tables, as deep as moec_json_parse allows. Numbers are integers
 * where they are whole. What is null in an object is left out; in an array it is NaN with `has_nan`, else
 * nil. Raises an error of Lua when memory runs out. */
void moec_lua_push_json(lua_State *lua, const struct moec_json *node, bool has_nan);

#endif
