#include "compiler/task_file.h"
#include "compiler/lua_host.h"

#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

/* Keys that a table may have; anything else is a misspelling that would silently do nothing. */
static void check_keys(lua_State *lua, int table, const char *where, const char *const *allowed)
{
    lua_pushnil(lua);
    while (lua_next(lua, table) != 0) {
        lua_pop(lua, 1);
        const char *key = lua_type(lua, -1) == LUA_TSTRING ? lua_tostring(lua, -1) : luaL_typename(lua, -1);
        bool known = false;
        for (size_t i = 0; allowed[i] != NULL; i++)
            known = known || strcmp(allowed[i], key) == 0;
        if (!known)
            luaL_error(lua, "task: %s has an unknown member '%s'", where, key);
    }
}

/* Copies a string member into `out`; keeps the default when it is nil. */
static void read_text(lua_State *lua, int table, const char *key, char *out, size_t capacity)
{
    int type = lua_getfield(lua, table, key);
    if (type == LUA_TSTRING) {
        size_t n = 0;
        const char *text = lua_tolstring(lua, -1, &n);
        if (n >= capacity || strlen(text) != n)
            luaL_error(lua, "task: '%s' is longer than %d bytes or holds a NUL", key, (int)capacity - 1);
        memcpy(out, text, n + 1);
    } else if (type != LUA_TNIL) {
        luaL_error(lua, "task: '%s' is a %s, expected a string", key, luaL_typename(lua, -1));
    }
    lua_pop(lua, 1);
}

/* Index of a string member among `choices` (NULL-terminated); keeps `missing` when it is nil. */
static int read_choice(lua_State *lua, int table, const char *key, const char *const *choices, int missing)
{
    char value[32] = "";
    read_text(lua, table, key, value, sizeof value);
    if (value[0] == '\0')
        return missing;
    for (int i = 0; choices[i] != NULL; i++)
        if (strcmp(choices[i], value) == 0)
            return i;
    luaL_Buffer known;
    luaL_buffinit(lua, &known);
    for (int i = 0; choices[i] != NULL; i++) {
        luaL_addstring(&known, i > 0 ? ", " : "");
        luaL_addstring(&known, choices[i]);
    }
    luaL_pushresult(&known);
    return luaL_error(lua, "task: '%s' is '%s', expected one of %s", key, value, lua_tostring(lua, -1));
}

static void read_rows(lua_State *lua, struct moec_task *task)
{
    static const char *const members[] = {"format", "split", "delimiter", NULL};
    static const char *const formats[] = {"auto", "text", "jsonl", "csv", "json", NULL};
    static const char *const splits[] = {"file", "line", "paragraph", NULL};
    int type = lua_getfield(lua, 1, "rows");
    if (type == LUA_TNIL)
        return;
    if (type != LUA_TTABLE)
        luaL_error(lua, "task: 'rows' is a %s, expected a table", luaL_typename(lua, -1));
    int rows = lua_gettop(lua);
    check_keys(lua, rows, "'rows'", members);
    task->format = (enum moec_task_format)read_choice(lua, rows, "format", formats, (int)task->format);
    task->split = (enum moec_task_split)read_choice(lua, rows, "split", splits, (int)task->split);
    char delimiter[2] = "";
    read_text(lua, rows, "delimiter", delimiter, sizeof delimiter);
    task->delimiter = delimiter[0];
    lua_pop(lua, 1);
}

/* In the child: the file's value is on the stack; leaves the filled struct as a string. */
static int task_body(lua_State *lua)
{
    static const char *const members[] = {"name", "metric", "rows", "prompt", "reference", NULL};
    static const char *const metrics[] = {"perplexity", NULL};
    if (lua_type(lua, 1) != LUA_TTABLE)
        return luaL_error(lua, "the task file returned a %s, expected a table", luaL_typename(lua, 1));
    check_keys(lua, 1, "the table", members);
    struct moec_task task = moec_task_text();
    task.name[0] = '\0';
    read_text(lua, 1, "name", task.name, sizeof task.name);
    if (task.name[0] == '\0')
        return luaL_error(lua, "task: 'name' is missing");
    task.metric = (enum moec_task_metric)read_choice(lua, 1, "metric", metrics, (int)task.metric);
    read_rows(lua, &task);
    read_text(lua, 1, "prompt", task.prompt, sizeof task.prompt);
    read_text(lua, 1, "reference", task.reference, sizeof task.reference);
    lua_pushlstring(lua, (const char *)&task, sizeof task);
    return 1;
}

enum moec_status moec_task_load(const char *name_or_path, struct moec_task *task, struct moec_error *err)
{
    char *source = NULL;
    uint8_t *result = NULL;
    size_t n = 0;
    enum moec_status status = MOEC_OK;
    struct moec_guest guest = {
        .name = name_or_path,
        .limits = {.memory_bytes = 64u << 20, .cpu_seconds = 10, .silence_seconds = 20},
        .body = task_body,
    };
    MOEC_TRY_OUT(moec_lua_script_load("tasks", name_or_path, &source, &guest.n_source, err));
    guest.source = source;
    MOEC_TRY_OUT(moec_guest_run(&guest, &result, &n, err));
    if (n != sizeof *task) {
        status = moec_fail(err, MOEC_ERR_SCRIPT, "task '%s' gave %zu bytes, expected %zu", name_or_path, n,
                           sizeof *task);
        goto out;
    }
    memcpy(task, result, sizeof *task);
    /* Strings came from a guest: end them whatever it sent. */
    task->name[sizeof task->name - 1] = '\0';
    task->prompt[sizeof task->prompt - 1] = '\0';
    task->reference[sizeof task->reference - 1] = '\0';
    status = moec_task_check(task, err);
out:
    free(result);
    free(source);
    return status;
}
