/* The child reads the table and returns a struct as bytes. The parent checks it again (moec_task_check), for
 * the child is a guest. Every table's members are listed: an unknown one is refused, as a misspelt one would
 * silently do nothing. A member that the metric does not use is refused too. Functions do not cross the fork:
 * a `row` goes as the script's name and digest. */
#include "compiler/lua/task_file.h"
#include "compiler/lua/lua_host.h"
#include "compiler/lua/task_rows.h"

#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys that a table may have; anything else is a misspelling that would silently do nothing. */
static void check_keys(lua_State *lua, int table, const char *where, const char *const *allowed)
{
    lua_pushnil(lua);
    while (lua_next(lua, table) != 0) {
        lua_pop(lua, 1);
        size_t n = 0;
        const bool is_text = lua_type(lua, -1) == LUA_TSTRING;
        const char *key = is_text ? lua_tolstring(lua, -1, &n) : luaL_typename(lua, -1);
        bool known = false;
        for (size_t i = 0; is_text && allowed[i] != NULL; i++)
            known = known || (strlen(allowed[i]) == n && memcmp(allowed[i], key, n) == 0);
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

/* A whole number in 0..most; keeps `missing` when it is nil. */
static uint32_t read_number(lua_State *lua, int table, const char *key, uint32_t most, uint32_t missing)
{
    uint32_t value = missing;
    int type = lua_getfield(lua, table, key);
    if (type != LUA_TNIL) {
        int is_whole = 0;
        lua_Integer number = lua_tointegerx(lua, -1, &is_whole);
        if (type != LUA_TNUMBER || is_whole == 0 || number < 0 || number > (lua_Integer)most)
            luaL_error(lua, "task: '%s' is %s, expected a whole number in 0..%d", key,
                       luaL_tolstring(lua, -1, NULL), (int)most);
        value = (uint32_t)number;
    }
    lua_pop(lua, 1);
    return value;
}

/* A list of strings into texts[capacity]; returns how many. */
static uint32_t read_list(lua_State *lua, int table, const char *key, char (*texts)[MOEC_TASK_TEXT_BYTES],
                          uint32_t capacity)
{
    int type = lua_getfield(lua, table, key);
    uint32_t n = 0;
    if (type != LUA_TNIL && type != LUA_TTABLE)
        luaL_error(lua, "task: '%s' is a %s, expected a list of strings", key, luaL_typename(lua, -1));
    int list = lua_gettop(lua);
    for (; type == LUA_TTABLE; n++) {
        int item = lua_rawgeti(lua, list, (lua_Integer)n + 1);
        if (item == LUA_TNIL)
            break;
        if (n == capacity)
            luaL_error(lua, "task: '%s' has more than %d texts", key, (int)capacity);
        size_t length = 0;
        const char *text = item == LUA_TSTRING ? lua_tolstring(lua, -1, &length) : NULL;
        if (text == NULL || length == 0 || length >= MOEC_TASK_TEXT_BYTES || strlen(text) != length)
            luaL_error(lua, "task: text %d of '%s' must be a string of 1 to %d bytes without NUL", (int)n + 1,
                       key, MOEC_TASK_TEXT_BYTES - 1);
        memcpy(texts[n], text, length + 1);
        lua_pop(lua, 1);
    }
    lua_settop(lua, list - 1);
    return n;
}

/* Refuses a member that does nothing under the task's metric. */
static void refuse(lua_State *lua, int table, const char *key, const struct moec_task *task,
                   const char *metrics)
{
    if (lua_getfield(lua, table, key) != LUA_TNIL)
        luaL_error(lua, "task: '%s' is only for %s, but the metric is '%s'", key, metrics,
                   moec_task_metric_name(task->metric));
    lua_pop(lua, 1);
}

/* Pushes a member that is a table; false, with nothing pushed, when it is nil. */
static bool push_table(lua_State *lua, const char *key, const char *const *members)
{
    int type = lua_getfield(lua, 1, key);
    if (type == LUA_TNIL) {
        lua_pop(lua, 1);
        return false;
    }
    if (type != LUA_TTABLE)
        luaL_error(lua, "task: '%s' is a %s, expected a table", key, luaL_typename(lua, -1));
    char where[32] = "'";
    (void)strncat(where, key, sizeof where - 3);
    (void)strcat(where, "'");
    check_keys(lua, lua_gettop(lua), where, members);
    return true;
}

/* What is generated and how it is compared. */
static void read_answer(lua_State *lua, struct moec_task *task)
{
    static const char *const members[] = {"tokens", "stop", "stem", "take", "after", NULL};
    static const char *const takes[] = {"text", "line", "word", "number", "last-number", NULL};
    const enum moec_task_kind kind = moec_task_metric_kind(task->metric);
    if (kind == MOEC_TASK_KIND_WINDOWS || kind == MOEC_TASK_KIND_CHOICE) {
        refuse(lua, 1, "answer", task, "rouge-1, rouge-2, rouge-l, exact-match and completion");
        return;
    }
    task->n_tokens = 128;
    task->stem = kind == MOEC_TASK_KIND_SUMMARY;
    if (!push_table(lua, "answer", members))
        return;
    const int answer = lua_gettop(lua);
    task->n_tokens = read_number(lua, answer, "tokens", MOEC_TASK_MAX_TOKENS, task->n_tokens);
    (void)read_list(lua, answer, "stop", task->stops, MOEC_TASK_MAX_STOPS);
    if (kind == MOEC_TASK_KIND_SUMMARY) {
        refuse(lua, answer, "take", task, "exact-match");
        refuse(lua, answer, "after", task, "exact-match");
        int type = lua_getfield(lua, answer, "stem");
        if (type != LUA_TNIL && type != LUA_TBOOLEAN)
            luaL_error(lua, "task: 'stem' is a %s, expected true or false", luaL_typename(lua, -1));
        if (type == LUA_TBOOLEAN)
            task->stem = lua_toboolean(lua, -1) ? 1 : 0;
    } else if (kind == MOEC_TASK_KIND_COMPLETION) {
        refuse(lua, answer, "take", task, "exact-match");
        refuse(lua, answer, "after", task, "exact-match");
        refuse(lua, answer, "stem", task, "rouge-1, rouge-2 and rouge-l");
    } else {
        refuse(lua, answer, "stem", task, "rouge-1, rouge-2 and rouge-l");
        task->take = (enum moec_task_take)read_choice(lua, answer, "take", takes, (int)task->take);
        read_text(lua, answer, "after", task->after, sizeof task->after);
    }
    lua_settop(lua, answer - 1);
}

static void read_choices(lua_State *lua, struct moec_task *task)
{
    static const char *const members[] = {"field", "texts",       "text",  "list",
                                          "label", "first_label", "right", NULL};
    if (moec_task_metric_kind(task->metric) != MOEC_TASK_KIND_CHOICE) {
        refuse(lua, 1, "choices", task, "accuracy, accuracy-bytes, accuracy-tokens and right-mass");
        return;
    }
    (void)strcpy(task->choice, " {choice}");
    (void)strcpy(task->label, "{label}");
    if (!push_table(lua, "choices", members))
        return;
    const int choices = lua_gettop(lua);
    read_text(lua, choices, "field", task->choices_field, sizeof task->choices_field);
    task->n_choice = read_list(lua, choices, "texts", task->choices, MOEC_TASK_MAX_TEMPLATES);
    read_text(lua, choices, "text", task->choice, sizeof task->choice);
    read_text(lua, choices, "list", task->list, sizeof task->list);
    read_text(lua, choices, "label", task->label, sizeof task->label);
    task->first_label = read_number(lua, choices, "first_label", 1, 0);
    read_text(lua, choices, "right", task->right, sizeof task->right);
    lua_settop(lua, choices - 1);
}

static void read_rows(lua_State *lua, struct moec_task *task)
{
    static const char *const members[] = {"format", "split", "delimiter", "labels", NULL};
    static const char *const formats[] = {"auto", "text", "jsonl", "csv", "json", NULL};
    static const char *const splits[] = {"file", "line", "paragraph", NULL};
    if (!push_table(lua, "rows", members))
        return;
    int rows = lua_gettop(lua);
    task->format = (enum moec_task_format)read_choice(lua, rows, "format", formats, (int)task->format);
    task->split = (enum moec_task_split)read_choice(lua, rows, "split", splits, (int)task->split);
    char delimiter[2] = "";
    read_text(lua, rows, "delimiter", delimiter, sizeof delimiter);
    task->delimiter = delimiter[0];
    read_text(lua, rows, "labels", task->labels, sizeof task->labels);
    lua_pop(lua, 1);
}

/* In the child: the file's value is on the stack; leaves the filled struct as a string. */
static int task_body(lua_State *lua)
{
    static const char *const members[] = {"name",      "metric", "rows",    "row", "prompt",
                                          "reference", "answer", "choices", NULL};
    const char *metrics[MOEC_TASK_METRICS + 1] = {NULL};
    for (unsigned m = 0; m < MOEC_TASK_METRICS; m++)
        metrics[m] = moec_task_metric_name((enum moec_task_metric)m);
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
    /* Where there is such a function, the parent learns so by a name; it puts its own in place. */
    const int row = lua_getfield(lua, 1, "row");
    if (row != LUA_TNIL && row != LUA_TFUNCTION)
        return luaL_error(lua, "task: 'row' is a %s, expected a function", luaL_typename(lua, -1));
    (void)strcpy(task.script, row == LUA_TFUNCTION ? "row" : "");
    lua_pop(lua, 1);
    read_text(lua, 1, "prompt", task.prompt, sizeof task.prompt);
    read_text(lua, 1, "reference", task.reference, sizeof task.reference);
    read_answer(lua, &task);
    read_choices(lua, &task);
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
        .script.name = name_or_path,
        .limits = {.memory_bytes = 64u << 20,
                   .cpu_seconds = 10,
                   .silence_seconds = 20,
                   .wall_seconds = 30,
                   .n_log_lines = 1000},
        .inside.body = task_body,
    };
    MOEC_TRY_OUT(moec_lua_script_load("tasks", name_or_path, &source, &guest.script.n_text, err));
    guest.script.text = source;
    MOEC_TRY_OUT(moec_guest_run(&guest, &result, &n, err));
    if (n != sizeof *task) {
        status =
            moec_fail(err, MOEC_ERR_SCRIPT, "the task file '%s' answered with %zu bytes, expected %zu bytes",
                      name_or_path, n, sizeof *task);
        goto out;
    }
    memcpy(task, result, sizeof *task);
    task->reshape = NULL;
    if (task->script[0] != '\0') {
        if ((size_t)snprintf(task->script, sizeof task->script, "%s", name_or_path) >= sizeof task->script) {
            status = moec_fail(err, MOEC_ERR_LIMIT, "the path '%s' of a task has more than %zu bytes",
                               name_or_path, sizeof task->script - 1);
            goto out;
        }
        task->reshape = moec_task_rows_reshape;
        moec_sha256(source, guest.script.n_text, task->script_digest);
    }
    status = moec_task_check(task, err);
    if (status != MOEC_OK)
        moec_error_prefix(err, "'%s'", name_or_path);
out:
    free(result);
    free(source);
    return status;
}
