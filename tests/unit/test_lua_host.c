/* The guest rules of D12: what a script may not do, and that it always ends. */
#include "compiler/lua/lua_host.h"

#include <lauxlib.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int string_body(lua_State *lua)
{
    luaL_checktype(lua, 1, LUA_TFUNCTION);
    lua_call(lua, 0, 1);
    luaL_tolstring(lua, -1, NULL);
    return 1;
}

static int asking_body(lua_State *lua)
{
    moec_guest_ask(lua, "four", 4);
    return 1;
}

static struct moec_guest make_guest(const char *source, moec_guest_body *body)
{
    return (struct moec_guest){
        .script = {.name = "test.lua", .text = source, .n_text = strlen(source)},
        .seed = 7,
        .limits = {.memory_bytes = 8 << 20,
                   .cpu_seconds = 1,
                   .silence_seconds = 20,
                   .wall_seconds = 40,
                   .n_questions = 3,
                   .n_log_lines = 3},
        .inside.body = body,
    };
}

static enum moec_status run_guest(const struct moec_guest *guest, char text[static 256],
                                  struct moec_error *err)
{
    uint8_t *result = NULL;
    size_t n = 0;
    enum moec_status status = moec_guest_run(guest, &result, &n, err);
    if (status == MOEC_OK) {
        assert_true(n < 256);
        memcpy(text, result, n);
        text[n] = '\0';
    }
    free(result);
    return status;
}

static enum moec_status run_with(const char *source, moec_guest_body *body, moec_guest_answer *answer,
                                 char text[static 256], struct moec_error *err)
{
    struct moec_guest guest = make_guest(source, body);
    guest.outside.answer = answer;
    return run_guest(&guest, text, err);
}

static void expect_text(const char *source, const char *expected)
{
    char text[256] = "";
    struct moec_error err = {0};
    enum moec_status status = run_with(source, string_body, NULL, text, &err);
    if (status != MOEC_OK)
        fail_msg("%s: %s", source, err.message);
    assert_string_equal(text, expected);
}

static void expect_failure(const char *source, const char *part)
{
    char text[256] = "";
    struct moec_error err = {0};
    assert_int_equal(run_with(source, string_body, NULL, text, &err), MOEC_ERR_SCRIPT);
    if (strstr(err.message, part) == NULL)
        fail_msg("message \"%s\" does not say \"%s\"", err.message, part);
}

static void test_lua_host__answers(void **state)
{
    (void)state;
    expect_text("return function() return 6 * 7 end", "42");
    expect_text("local t = require 'target' return function() return t.percent(0.5) end", "50.00%");
}

static void test_lua_host__hides_dangerous_globals(void **state)
{
    (void)state;
    static const char *const names[] = {"io",     "os",      "load",  "loadstring",     "loadfile",
                                        "dofile", "package", "debug", "collectgarbage", "string.dump",
                                        "warn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[128];
        (void)snprintf(source, sizeof source, "return function() return %s end", names[i]);
        expect_text(source, "nil");
    }
}

static void test_lua_host__iterates_in_sorted_order(void **state)
{
    (void)state;
    expect_text("local t = {} for i = 1, 26 do t[string.char(123 - i)] = i end t[3] = 1 t[1.5] = 1 "
                "return function() local s = '' for k in pairs(t) do s = s .. k end return s end",
                "1.53abcdefghijklmnopqrstuvwxyz");
    expect_text("local t = {b = 1, a = 2} return function() return next(t) .. next(t, 'a') end", "ab");
}

static void test_lua_host__random_is_seeded(void **state)
{
    (void)state;
    char first[256], second[256];
    struct moec_error err = {0};
    const char *source = "return function() return math.random(1 << 60) end";
    assert_int_equal(run_with(source, string_body, NULL, first, &err), MOEC_OK);
    assert_int_equal(run_with(source, string_body, NULL, second, &err), MOEC_OK);
    assert_string_equal(first, second);
    expect_failure("math.randomseed() return function() end", "randomseed");
}

static void test_lua_host__refuses_finalizers_and_foreign_modules(void **state)
{
    (void)state;
    expect_failure("setmetatable({}, {__gc = function() end}) return function() end", "__gc");
    expect_failure("require 'socket' return function() end", "socket");
    expect_failure("require 'target\\0evil' return function() end", "NUL after 'target'");
    /* Policies and tasks stand in the same library. */
    expect_failure("require 'policies/hull' return function() end", "module 'policies/hull' is not one of");
    expect_failure("require 'modules/target' return function() end", "module 'modules/target' is not one of");
    expect_failure("return function( end", "test.lua:1");
}

static int write_piece(lua_State *lua, const void *piece, size_t n, void *stream)
{
    (void)lua;
    return fwrite(piece, 1, n, stream) != n;
}

/* Lua does not check bytecode: what is wrong in it can do anything to the process. */
static void test_lua_host__refuses_bytecode(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *bytes = NULL, text[256] = "";
    size_t n = 0;
    FILE *stream = open_memstream(&bytes, &n);
    lua_State *lua = luaL_newstate();
    assert_true(stream != NULL && lua != NULL);
    assert_int_equal(luaL_loadstring(lua, "return function() return 'ran' end"), LUA_OK);
    assert_int_equal(lua_dump(lua, write_piece, stream, 0), 0);
    lua_close(lua);
    assert_int_equal(fclose(stream), 0);
    struct moec_guest guest = make_guest("", string_body);
    guest.script.text = bytes;
    guest.script.n_text = n;
    assert_int_equal(run_guest(&guest, text, &err), MOEC_ERR_SCRIPT);
    assert_non_null(strstr(err.message, "attempt to load a binary chunk"));
    free(bytes);
}

static void test_lua_host__ends_endless_scripts(void **state)
{
    (void)state;
    expect_failure("while true do end", "CPU time");
    expect_failure("while true do pcall(error) end", "CPU time");
    expect_failure("return function() return string.find(string.rep('a', 60), string.rep('a?', 60) .. "
                   "string.rep('a', 60) .. 'b') end",
                   "CPU time");
}

static void test_lua_host__ends_memory_hogs(void **state)
{
    (void)state;
    expect_failure("local t = {} while true do t[#t + 1] = string.rep('x', 1000) .. #t end", "8 MiB");
    expect_failure("return function() return string.rep('x', 1 << 30) end", "8 MiB");
    /* All together, not each, and not only where the system ends them. */
    static const char pieces[] = "local t = {}\n"
                                 "for i = 1, %d do t[i] = string.rep('x', 1 << 20) end\n"
                                 "return function() return 'kept ' .. #t end";
    char source[256];
    (void)snprintf(source, sizeof source, pieces, 4);
    expect_text(source, "kept 4");
    (void)snprintf(source, sizeof source, pieces, 9);
    expect_failure(source, "8 MiB");
}

static enum moec_status double_it(void *context, const uint8_t *question, size_t n, uint8_t **answer,
                                  size_t *n_answer, struct moec_error *err)
{
    (void)context, (void)err;
    *answer = malloc(2 * n);
    assert_non_null(*answer);
    memcpy(*answer, question, n);
    memcpy(*answer + n, question, n);
    *n_answer = 2 * n;
    return MOEC_OK;
}

static enum moec_status refuse(void *context, const uint8_t *question, size_t n, uint8_t **answer,
                               size_t *n_answer, struct moec_error *err)
{
    (void)context, (void)question, (void)n, (void)answer, (void)n_answer;
    return moec_fail(err, MOEC_ERR_BUDGET, "refused on purpose");
}

static void test_lua_host__asks_its_parent(void **state)
{
    (void)state;
    char text[256] = "";
    struct moec_error err = {0};
    assert_int_equal(run_with("return 1", asking_body, double_it, text, &err), MOEC_OK);
    assert_string_equal(text, "fourfour");
    assert_int_equal(run_with("return 1", asking_body, refuse, text, &err), MOEC_ERR_BUDGET);
    assert_string_equal(err.message, "refused on purpose");
    struct moec_error unanswered = {0};
    assert_int_equal(run_with("return 1", asking_body, NULL, text, &unanswered), MOEC_ERR_SCRIPT);
}

/* ---- how a guest ends ---- */

static int asking_for_ever(lua_State *lua)
{
    for (int i = 0; i < 1000000; i++) {
        moec_guest_ask(lua, "?", 1);
        lua_pop(lua, 1);
    }
    return 0;
}

static int sleeping_body(lua_State *lua)
{
    for (int i = 0; i < 1000; i++) {
        moec_guest_ask(lua, "?", 1);
        (void)usleep(150000);
        lua_pop(lua, 1);
    }
    return 0;
}

static int killed_body(lua_State *lua)
{
    (void)lua;
    (void)raise(SIGKILL);
    return 0;
}

static void expect_end(struct moec_guest *guest, const char *part)
{
    char text[256] = "";
    struct moec_error err = {0};
    assert_int_equal(run_guest(guest, text, &err), MOEC_ERR_SCRIPT);
    if (strstr(err.message, part) == NULL)
        fail_msg("message \"%s\" does not say \"%s\"", err.message, part);
}

static void test_lua_host__ends_endless_talk(void **state)
{
    (void)state;
    expect_text("return function() for i = 1, 3 do log(i) end return 'three lines' end", "three lines");
    expect_failure("while true do log('again') end", "more than the limit of 3 lines");
    struct moec_guest guest = make_guest("return 1", asking_for_ever);
    guest.outside.answer = double_it;
    expect_end(&guest, "more than the limit of 3 questions");
    guest = make_guest("return 1", sleeping_body);
    guest.outside.answer = double_it;
    guest.limits.n_questions = 1000;
    guest.limits.wall_seconds = 1;
    expect_end(&guest, "ran for more than 1 s");
}

static void test_lua_host__tells_apart_what_ended_a_guest(void **state)
{
    (void)state;
    struct moec_guest guest = make_guest("return 1", killed_body);
    expect_end(&guest, "killed from outside");
    guest = make_guest("while true do end", string_body);
    guest.limits.cpu_seconds = 60;
    guest.limits.silence_seconds = 1;
    expect_end(&guest, "no answer within 1 s");
    /* A parent that ignores SIGXCPU leaves that to its children: without more the system would kill them a
     * second later. */
    void (*old)(int) = signal(SIGXCPU, SIG_IGN);
    expect_failure("while true do end", "more than 1 s of CPU time");
    (void)signal(SIGXCPU, old);
}

static void report_line(void *context, const char *line)
{
    const int *pipe_end = context;
    (void)!write(*pipe_end, line, 1);
}

/* Waits for a child of this process, which orphans become; false when none ends within the time. */
static bool wait_for_orphan(int *wait_status)
{
    for (int i = 0; i < 1000; i++) {
        pid_t ended = waitpid(-1, wait_status, WNOHANG);
        if (ended != 0)
            return ended > 0;
        (void)usleep(10000);
    }
    return false;
}

static void test_lua_host__dies_with_its_parent(void **state)
{
    (void)state;
    int ends[2], wait_status = 0;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    pid_t parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        struct moec_guest guest = make_guest("log('x') while true do end", string_body);
        guest.limits.cpu_seconds = 60;
        guest.limits.silence_seconds = 60;
        guest.limits.wall_seconds = 60;
        guest.outside.log = report_line;
        guest.outside.context = &ends[1];
        uint8_t *result = NULL;
        size_t n = 0;
        enum moec_status status = moec_guest_run(&guest, &result, &n, NULL);
        _exit((int)status);
    }
    char byte = 0;
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(kill(parent, SIGKILL), 0);
    assert_int_equal(waitpid(parent, &wait_status, 0), parent);
    const bool has_ended = wait_for_orphan(&wait_status);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
    assert_true(has_ended);
    assert_true(WIFSIGNALED(wait_status));
    assert_int_equal(WTERMSIG(wait_status), SIGKILL);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lua_host__answers),
        cmocka_unit_test(test_lua_host__hides_dangerous_globals),
        cmocka_unit_test(test_lua_host__iterates_in_sorted_order),
        cmocka_unit_test(test_lua_host__random_is_seeded),
        cmocka_unit_test(test_lua_host__refuses_finalizers_and_foreign_modules),
        cmocka_unit_test(test_lua_host__refuses_bytecode),
        cmocka_unit_test(test_lua_host__ends_endless_scripts),
        cmocka_unit_test(test_lua_host__ends_memory_hogs),
        cmocka_unit_test(test_lua_host__asks_its_parent),
        cmocka_unit_test(test_lua_host__ends_endless_talk),
        cmocka_unit_test(test_lua_host__tells_apart_what_ended_a_guest),
        cmocka_unit_test(test_lua_host__dies_with_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
