/* In the child the rows become Lua tables, one at a time; what the script makes of them goes to the parent as
 * questions, a part of the lines in each, whose answers are empty. */
#include "compiler/lua/task_rows.h"

#include "compiler/lua/json_value.h"
#include "compiler/lua/lua_host.h"
#include "formats/base/memory.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "profiler/tasks/csv.h"
#include "profiler/tasks/rows.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <string.h>

#define PART_BYTES ((size_t)1 << 20)
#define MAX_DEPTH  16

/* What the child works on; of the parent's memory when it was forked. */
struct reshaping {
    const struct moec_task_data *data;
    /* the child's */
    char *part;
    size_t part_bytes, part_capacity;
    uint64_t line; /* of the next row to be written, from 1 */
    /* the parent's */
    char *lines;
    size_t n_lines, lines_capacity;
};

/* ---- rows to Lua ---- */

static void push_csv(lua_State *lua, const struct moec_csv *header, const struct moec_csv *csv)
{
    lua_newtable(lua);
    for (size_t i = 0; i < header->n_cell && i < csv->n_cell; i++) {
        lua_pushlstring(lua, header->text + header->cells[i].offset, header->cells[i].n_bytes);
        lua_pushlstring(lua, csv->text + csv->cells[i].offset, csv->cells[i].n_bytes);
        lua_rawset(lua, -3);
    }
}

/* ---- Lua to rows ---- */

static struct moec_json_out *table_to_json(lua_State *lua, int depth);

/* The value on top, into an object by its key or at the end of an array. */
static void put_value(lua_State *lua, struct moec_json_out *node, const char *key, int depth)
{
    size_t n = 0;
    const char *text = NULL;
    switch (lua_type(lua, -1)) {
    case LUA_TSTRING:
        text = lua_tolstring(lua, -1, &n);
        moec_json_out_string_n(node, key, text, n);
        return;
    case LUA_TNUMBER:
        if (lua_isinteger(lua, -1) && lua_tointeger(lua, -1) >= 0)
            moec_json_out_u64(node, key, (uint64_t)lua_tointeger(lua, -1));
        else
            moec_json_out_double(node, key, lua_tonumber(lua, -1));
        return;
    case LUA_TBOOLEAN:
        moec_json_out_bool(node, key, lua_toboolean(lua, -1));
        return;
    case LUA_TTABLE:
        moec_json_out_node(node, key, table_to_json(lua, depth + 1));
        return;
    default:
        luaL_error(lua, "a row's field is a %s, expected text, a number or a table", luaL_typename(lua, -1));
    }
}

/* A list, where the first place has a value, else an object of the fields whose names are text. */
static struct moec_json_out *table_to_json(lua_State *lua, int depth)
{
    const int table = lua_gettop(lua);
    if (depth > MAX_DEPTH)
        luaL_error(lua, "a row is nested more than %d deep", MAX_DEPTH);
    luaL_checkstack(lua, 4, "a row is nested too deeply");
    const bool is_list = lua_rawgeti(lua, table, 1) != LUA_TNIL;
    lua_pop(lua, 1);
    struct moec_json_out *node = is_list ? moec_json_out_array() : moec_json_out_object();
    for (lua_Integer i = 1; is_list && lua_rawgeti(lua, table, i) != LUA_TNIL; i++) {
        put_value(lua, node, NULL, depth);
        lua_pop(lua, 1);
    }
    lua_settop(lua, table);
    lua_pushnil(lua);
    while (!is_list && lua_next(lua, table) != 0) {
        if (lua_type(lua, -2) == LUA_TSTRING)
            put_value(lua, node, lua_tostring(lua, -2), depth);
        lua_pop(lua, 1);
    }
    lua_settop(lua, table);
    return node;
}

static void raise(lua_State *lua, const struct moec_error *err)
{
    luaL_error(lua, "%s", err->message);
}

static void add(lua_State *lua, struct reshaping *job, const char *bytes, size_t n)
{
    struct moec_error err = {0};
    if (moec_grow((void **)&job->part, &job->part_capacity, job->part_bytes + n, 1, "rows", &err) != MOEC_OK)
        raise(lua, &err);
    memcpy(job->part + job->part_bytes, bytes, n);
    job->part_bytes += n;
}

static void send_part(lua_State *lua, struct reshaping *job)
{
    moec_guest_ask(lua, job->part, job->part_bytes);
    lua_pop(lua, 1);
    job->part_bytes = 0;
}

/* The function stands at 2, a row on top: what it makes of the row becomes a line, the row's own. */
static void reshape_row(lua_State *lua, struct reshaping *job, uint64_t line)
{
    struct moec_error err = {0};
    char *text = NULL;
    lua_pushvalue(lua, 2);
    lua_insert(lua, -2);
    lua_call(lua, 1, 1);
    if (lua_type(lua, -1) != LUA_TTABLE)
        luaL_error(lua, "'row' made a %s of row %d of '%s', expected a table", luaL_typename(lua, -1),
                   (int)line, job->data->subject);
    struct moec_json_out *root = table_to_json(lua, 0);
    if (moec_json_out_line(root, &text, &err) != MOEC_OK)
        raise(lua, &err);
    moec_json_out_free(root);
    for (; job->line < line; job->line++)
        add(lua, job, "\n", 1);
    add(lua, job, text, strlen(text));
    free(text);
    lua_settop(lua, 2);
    if (job->part_bytes > PART_BYTES)
        send_part(lua, job);
}

/* ---- the child ---- */

static void reshape_lines(lua_State *lua, struct reshaping *job)
{
    struct moec_error err = {0};
    uint64_t line = 0;
    for (size_t at = 0; at < job->data->n_bytes;) {
        const char *start = job->data->bytes + at, *end = memchr(start, '\n', job->data->n_bytes - at);
        const size_t n = end == NULL ? job->data->n_bytes - at : (size_t)(end - start);
        struct moec_json *root = NULL;
        at += n + 1;
        line++;
        if (moec_text_is_blank(start, n))
            continue;
        if (moec_json_parse(start, n, MOEC_ROWS_MAX_BYTES, "the row", &root, &err) != MOEC_OK) {
            moec_error_prefix(&err, "line %" PRIu64 " of '%s'", line, job->data->subject);
            raise(lua, &err);
        }
        moec_lua_push_json(lua, root, false);
        moec_json_free(root);
        reshape_row(lua, job, line);
    }
}

static void reshape_array(lua_State *lua, struct reshaping *job)
{
    struct moec_error err = {0};
    struct moec_json *root = NULL;
    if (moec_json_parse(job->data->bytes, job->data->n_bytes, MOEC_ROWS_MAX_BYTES, job->data->subject, &root,
                        &err) != MOEC_OK)
        raise(lua, &err);
    if (moec_json_type(root) != MOEC_JSON_ARRAY)
        luaL_error(lua, "'%s' holds %s, expected an array of rows", job->data->subject,
                   moec_json_type_name(root));
    for (size_t i = 0; i < moec_json_length(root); i++) {
        moec_lua_push_json(lua, moec_json_at(root, i), false);
        reshape_row(lua, job, i + 1);
    }
    moec_json_free(root);
}

static void reshape_csv(lua_State *lua, struct reshaping *job)
{
    struct moec_error err = {0};
    struct moec_csv header = {0}, csv = {0};
    bool more = false;
    moec_csv_init(&header, job->data->bytes, job->data->n_bytes, job->data->delimiter, job->data->subject);
    if (moec_csv_next(&header, MOEC_ROWS_MAX_FIELDS, &more, &err) != MOEC_OK)
        raise(lua, &err);
    moec_csv_init(&csv, job->data->bytes, job->data->n_bytes, job->data->delimiter, job->data->subject);
    csv.at = header.at;
    csv.line = header.line;
    while (more) {
        if (moec_csv_next(&csv, MOEC_ROWS_MAX_FIELDS, &more, &err) != MOEC_OK)
            raise(lua, &err);
        if (!more)
            break;
        if (csv.n_cell != header.n_cell)
            luaL_error(lua, "the row at line %d of '%s' has %d fields, expected %d as in its header",
                       (int)csv.record_line, job->data->subject, (int)csv.n_cell, (int)header.n_cell);
        push_csv(lua, &header, &csv);
        reshape_row(lua, job, csv.record_line);
    }
    moec_csv_release(&csv);
    moec_csv_release(&header);
}

static int rows_body(lua_State *lua)
{
    struct reshaping *job = moec_guest_context(lua);
    if (lua_type(lua, 1) != LUA_TTABLE || lua_getfield(lua, 1, "row") != LUA_TFUNCTION)
        return luaL_error(lua, "the task file has no function 'row' any more");
    job->line = 1;
    if (job->data->format == MOEC_TASK_FORMAT_JSONL)
        reshape_lines(lua, job);
    else if (job->data->format == MOEC_TASK_FORMAT_JSON)
        reshape_array(lua, job);
    else
        reshape_csv(lua, job);
    send_part(lua, job);
    lua_pushliteral(lua, "");
    return 1;
}

/* ---- the parent ---- */

static enum moec_status take_part(void *context, const uint8_t *question, size_t n, uint8_t **answer,
                                  size_t *n_answer, struct moec_error *err)
{
    struct reshaping *job = context;
    *answer = NULL;
    *n_answer = 0;
    if (job->n_lines + n > 4 * MOEC_ROWS_MAX_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the rows that the task's function 'row' makes of the data '%s' take more than 4 "
                         "GiB: give less data",
                         job->data->subject);
    MOEC_TRY(moec_grow((void **)&job->lines, &job->lines_capacity, job->n_lines + n + 1, 1, "rows", err));
    memcpy(job->lines + job->n_lines, question, n);
    job->n_lines += n;
    return MOEC_OK;
}

enum moec_status moec_task_rows_reshape(const struct moec_task *task, const struct moec_task_data *data,
                                        char **lines, size_t *n_lines, struct moec_error *err)
{
    struct reshaping job = {.data = data};
    struct moec_guest guest = {.script.name = task->script,
                               .limits = {.memory_bytes = 1u << 30,
                                          .cpu_seconds = 60,
                                          .silence_seconds = 30,
                                          .wall_seconds = 600,
                                          .n_questions = 1u << 16,
                                          .n_log_lines = 1000},
                               .inside = {.body = rows_body, .context = &job},
                               .outside = {.answer = take_part, .context = &job}};
    uint8_t digest[MOEC_SHA256_BYTES], *result = NULL;
    char *source = NULL;
    size_t n = 0;
    if (data->format == MOEC_TASK_FORMAT_TEXT)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "task '%s' builds its rows from named fields, but '%s' is plain text: expected .jsonl, .json "
            "or .csv",
            task->name, data->subject);
    MOEC_TRY(moec_lua_script_load("tasks", task->script, &source, &guest.script.n_text, err));
    guest.script.text = source;
    moec_sha256(source, guest.script.n_text, digest);
    enum moec_status status = memcmp(digest, task->script_digest, sizeof digest) == 0
                                  ? moec_guest_run(&guest, &result, &n, err)
                                  : moec_fail(err, MOEC_ERR_SCRIPT,
                                              "the task file '%s' has changed since the task was read; "
                                              "start again",
                                              task->script);
    free(result);
    free(source);
    if (status == MOEC_OK) {
        *lines = job.lines;
        *n_lines = job.n_lines;
    } else {
        free(job.lines);
    }
    return status;
}
