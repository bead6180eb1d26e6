/* Conversation with the guest:
 *
 *   parent                              child (forked)
 *     |-- socketpair, fork ------------->| limits, sandbox, run the file, call the body
 *     |<-- 'A' question -----------------|
 *     |--- answer ---------------------->|
 *     |<-- 'L' line ---------------------|
 *     |<-- 'R' result | 'X' error -------| _exit
 *
 * Frames are those of formats/base/pipe.h. The child never returns from here and never runs exit handlers of
 * the parent's image. */
#include "compiler/lua/lua_host.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/base/pipe.h"
#include "formats/base/sanitizers.h"

#include <errno.h>
#include <lauxlib.h>
#include <lualib.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRIPT_MAX_BYTES (1u << 20)

#define EXIT_MEMORY 42 /* the child ran into its memory limit where it could not tell so itself */

const struct moec_guest_limits moec_guest_limits_default = {
    .memory_bytes = 256u << 20,
    .cpu_seconds = 300,
    .silence_seconds = 60,
    .wall_seconds = 600,
    .n_questions = 1000000,
    .n_log_lines = 10000,
};

struct guest_state {
    const struct moec_guest *guest;
    int socket;
    uint64_t heap_bytes;
};

/* ---- the child's side ---- */

static void *guest_alloc(void *context, void *block, size_t old_bytes, size_t new_bytes)
{
    struct guest_state *state = context;
    uint64_t old = block != NULL ? old_bytes : 0; /* for new objects Lua passes a type tag as old size */
    if (new_bytes == 0) {
        free(block);
        state->heap_bytes -= old;
        return NULL;
    }
    if (new_bytes > old && new_bytes - old > state->guest->limits.memory_bytes - state->heap_bytes)
        return NULL;
    void *moved = realloc(block, new_bytes);
    if (moved != NULL)
        state->heap_bytes = state->heap_bytes - old + new_bytes;
    return moved;
}

static struct guest_state *guest_state(lua_State *lua)
{
    void *state = NULL;
    (void)lua_getallocf(lua, &state);
    return state;
}

void *moec_guest_context(lua_State *lua)
{
    return guest_state(lua)->guest->inside.context;
}

void moec_guest_ask(lua_State *lua, const void *question, size_t n)
{
    struct guest_state *state = guest_state(lua);
    uint32_t length = 0;
    if (!moec_pipe_send(state->socket, MOEC_GUEST_ASK, question, n) ||
        moec_pipe_read(state->socket, &length, sizeof length, -1) != MOEC_PIPE_OK)
        _exit(1); /* the parent is gone or has refused: nobody is left to hear an error */
    luaL_Buffer buffer;
    char *bytes = luaL_buffinitsize(lua, &buffer, length);
    if (moec_pipe_read(state->socket, bytes, length, -1) != MOEC_PIPE_OK)
        _exit(1);
    luaL_pushresultsize(&buffer, length);
}

/* print(...) and log(...): a line to the user, values separated by a space. */
static int guest_log(lua_State *lua)
{
    int n = lua_gettop(lua);
    luaL_Buffer buffer;
    luaL_buffinit(lua, &buffer);
    for (int i = 1; i <= n; i++) {
        if (i > 1)
            luaL_addchar(&buffer, ' ');
        luaL_tolstring(lua, i, NULL);
        luaL_addvalue(&buffer);
    }
    luaL_pushresult(&buffer);
    size_t length = 0;
    const char *line = lua_tolstring(lua, -1, &length);
    if (!moec_pipe_send(guest_state(lua)->socket, MOEC_GUEST_LOG, line, length < 4096 ? length : 4096))
        _exit(1);
    return 0;
}

/* A finalizer would run at a moment of the collector's choosing, outside any protected call. */
static int guest_setmetatable(lua_State *lua)
{
    luaL_checktype(lua, 1, LUA_TTABLE);
    if (!lua_isnoneornil(lua, 2)) {
        luaL_checktype(lua, 2, LUA_TTABLE);
        lua_getfield(lua, 2, "__gc");
        if (!lua_isnil(lua, -1))
            return luaL_error(lua, "a metatable with __gc is not allowed in a moec script");
        lua_pop(lua, 1);
    }
    lua_settop(lua, 2);
    lua_pushvalue(lua, lua_upvalueindex(1));
    lua_insert(lua, 1);
    lua_call(lua, 2, 1);
    return 1;
}

static int guest_require(lua_State *lua)
{
    size_t length = 0;
    const char *name = luaL_checklstring(lua, 1, &length);
    if (strlen(name) != length)
        return luaL_error(lua, "the name of a module has a NUL after '%s'; only lua/ modules can be required",
                          name);
    luaL_getsubtable(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    if (lua_getfield(lua, -1, name) != LUA_TNIL)
        return 1;
    lua_pop(lua, 1);
    char full[128];
    (void)snprintf(full, sizeof full, "modules/%s", name);
    size_t n = 0;
    const char *text = moec_lua_library_find(full, &n);
    if (text == NULL)
        return luaL_error(lua, "module '%s' is not one of moec's lua/ modules; only these can be required",
                          name);
    lua_pushfstring(lua, "=lua/%s.lua", full);
    if (luaL_loadbufferx(lua, text, n, lua_tostring(lua, -1), "t") != LUA_OK)
        return lua_error(lua);
    lua_call(lua, 0, 1);
    if (lua_isnil(lua, -1))
        return luaL_error(lua, "module '%s' returned nothing", name);
    lua_pushvalue(lua, -1);
    lua_setfield(lua, -4, name);
    return 1;
}

static int guest_randomseed(lua_State *lua)
{
    if (lua_isnoneornil(lua, 1))
        return luaL_error(lua,
                          "math.randomseed needs a number: a script's answer may not depend on the time");
    lua_pushvalue(lua, lua_upvalueindex(1));
    lua_insert(lua, 1);
    lua_call(lua, lua_gettop(lua) - 1, 0);
    return 0;
}

/* Sorted iteration in Lua itself: numbers, then strings, then the rest (which has no order of its own). */
static const char sorted_pairs[] =
    "local rawnext, type, sort, setmt, getmt = next, type, table.sort, setmetatable, getmetatable\n"
    "local rank = {number = 1, string = 2, boolean = 3}\n"
    "local function less(a, b)\n"
    "  local ra, rb = rank[type(a)] or 4, rank[type(b)] or 4\n"
    "  if ra ~= rb then return ra < rb end\n"
    "  if ra < 3 then return a < b end\n"
    "  if ra == 3 then return a and not b end\n"
    "  return false\n"
    "end\n"
    "local function sorted(t)\n"
    "  local keys, n = {}, 0\n"
    "  for k in rawnext, t do n = n + 1; keys[n] = k end\n"
    "  sort(keys, less)\n"
    "  return keys, n\n"
    "end\n"
    "local function pairs(t)\n"
    "  local mt = getmt(t)\n"
    "  if mt and mt.__pairs then return mt.__pairs(t) end\n"
    "  local keys, n = sorted(t)\n"
    "  local i = 0\n"
    "  return function()\n"
    "    while i < n do\n"
    "      i = i + 1\n"
    "      local v = t[keys[i]]\n"
    "      if v ~= nil then return keys[i], v end\n"
    "    end\n"
    "  end, t, nil\n"
    "end\n"
    "local function next(t, key)\n"
    "  local keys, n = sorted(t)\n"
    "  if key == nil then return keys[1], t[keys[1]] end\n"
    "  for i = 1, n do if keys[i] == key then return keys[i + 1], t[keys[i + 1]] end end\n"
    "  error('next: no such key', 2)\n"
    "end\n"
    "return pairs, next\n";

static void remove_field(lua_State *lua, const char *table, const char *field)
{
    lua_getglobal(lua, table);
    lua_pushnil(lua);
    lua_setfield(lua, -2, field);
    lua_pop(lua, 1);
}

static void guard_math_random(lua_State *lua, uint64_t seed)
{
    lua_getglobal(lua, LUA_MATHLIBNAME);
    lua_getfield(lua, -1, "randomseed");
    lua_pushvalue(lua, -1);
    lua_pushinteger(lua, (lua_Integer)seed);
    lua_call(lua, 1, 0);
    lua_pushcclosure(lua, guest_randomseed, 1);
    lua_setfield(lua, -2, "randomseed");
    lua_pop(lua, 1);
}

static void open_sandbox(lua_State *lua, uint64_t seed)
{
    static const luaL_Reg libraries[] = {
        {LUA_GNAME, luaopen_base},       {LUA_TABLIBNAME, luaopen_table}, {LUA_STRLIBNAME, luaopen_string},
        {LUA_MATHLIBNAME, luaopen_math}, {LUA_UTF8LIBNAME, luaopen_utf8}, {LUA_COLIBNAME, luaopen_coroutine}};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        luaL_requiref(lua, libraries[i].name, libraries[i].func, 1);
        lua_pop(lua, 1);
    }
    if (luaL_loadbufferx(lua, sorted_pairs, sizeof sorted_pairs - 1, "=pairs", "t") != LUA_OK)
        (void)lua_error(lua);
    lua_call(lua, 0, 2);
    lua_setglobal(lua, "next");
    lua_setglobal(lua, "pairs");
    static const char *const forbidden[] = {"load",   "loadstring",     "loadfile",
                                            "dofile", "collectgarbage", "warn"};
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        lua_pushnil(lua);
        lua_setglobal(lua, forbidden[i]);
    }
    remove_field(lua, LUA_STRLIBNAME, "dump");
    guard_math_random(lua, seed);
    lua_getglobal(lua, "setmetatable");
    lua_pushcclosure(lua, guest_setmetatable, 1);
    lua_setglobal(lua, "setmetatable");
    lua_register(lua, "require", guest_require);
    lua_register(lua, "print", guest_log);
    lua_register(lua, "log", guest_log);
}

static int guest_main(lua_State *lua)
{
    const struct moec_guest *guest = guest_state(lua)->guest;
    open_sandbox(lua, guest->seed);
    lua_pushfstring(lua, "@%s", guest->script.name);
    if (luaL_loadbufferx(lua, guest->script.text, guest->script.n_text, lua_tostring(lua, -1), "t") != LUA_OK)
        return lua_error(lua);
    lua_remove(lua, -2);
    lua_call(lua, 0, 1);
    return guest->inside.body(lua);
}

/* The traceback names the script's line; only strings and tables with __tostring make sense as messages. */
static int guest_error(lua_State *lua)
{
    const char *message = luaL_tolstring(lua, 1, NULL);
    lua_pushstring(lua, message);
    return 1;
}

/* What the parent ignores or blocks the child inherits, and the limit on CPU time speaks through a signal. */
static void reset_signals(void)
{
    static const int fatal[] = {SIGINT, SIGTERM, SIGXCPU};
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) {
        (void)signal(fatal[i], SIG_DFL);
        (void)sigaddset(&set, fatal[i]);
    }
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* A script that computes never looks at its socket, so the system has to end it when the parent dies. A
 * parent that died before this was asked for is no longer the one that forked. */
static void die_with(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
}

static void limit_child(const struct moec_guest_limits *limits)
{
    struct rlimit cpu = {.rlim_cur = limits->cpu_seconds, .rlim_max = limits->cpu_seconds + 1};
    struct rlimit core = {0, 0};
    (void)setrlimit(RLIMIT_CPU, &cpu);
    (void)setrlimit(RLIMIT_CORE, &core);
#if !MOEC_HAS_ASAN && !MOEC_HAS_TSAN
    /* The forked image already counts; sanitizers reserve terabytes and would not survive this limit. */
    FILE *statm = fopen("/proc/self/statm", "re");
    if (statm != NULL) {
        char line[128] = "";
        if (fgets(line, sizeof line, statm) != NULL) {
            uint64_t pages = strtoull(line, NULL, 10);
            uint64_t total = pages * (uint64_t)sysconf(_SC_PAGESIZE) + 2 * limits->memory_bytes;
            struct rlimit space = {.rlim_cur = total, .rlim_max = total};
            (void)setrlimit(RLIMIT_AS, &space);
        }
        (void)fclose(statm);
    }
#endif
}

static _Noreturn void run_child(const struct moec_guest *guest, int socket, pid_t parent)
{
    reset_signals();
    die_with(parent);
    limit_child(&guest->limits);
    struct guest_state state = {.guest = guest, .socket = socket};
    lua_State *lua = lua_newstate(guest_alloc, &state);
    if (lua == NULL)
        _exit(EXIT_MEMORY);
    lua_pushcfunction(lua, guest_error);
    lua_pushcfunction(lua, guest_main);
    int outcome = lua_pcall(lua, 0, 1, 1);
    size_t n = 0;
    const char *text = lua_tolstring(lua, -1, &n);
    if (outcome == LUA_ERRMEM)
        _exit(EXIT_MEMORY);
    if (outcome != LUA_OK || text == NULL || n > MOEC_GUEST_MESSAGE_BYTES) {
        static const char unknown[] = "failed without a message";
        (void)moec_pipe_send(socket, MOEC_GUEST_FAILED, text != NULL ? text : unknown,
                             text != NULL ? (n < 4096 ? n : 4096) : sizeof unknown - 1);
        _exit(1);
    }
    (void)moec_pipe_send(socket, MOEC_GUEST_RESULT, text, n);
    _exit(0); /* no lua_close: nothing of the guest may run after its answer */
}

/* ---- the parent's side ---- */

/* What a run has used of its limits. */
struct usage {
    int64_t own_ms; /* that the parent has waited for the script */
    uint32_t n_questions, n_log_lines;
};

static double cpu_seconds(const struct rusage *used)
{
    return (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) +
           1e-6 * (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec);
}

/* What ended a child that closed its socket without a last word. The system sends SIGXCPU at the limit on CPU
 * time and SIGKILL a second later; a SIGKILL before it comes from outside. */
static enum moec_status explain_death(const struct moec_guest *guest, int wait_status,
                                      const struct rusage *used, struct moec_error *err)
{
    const int signal_number = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    if (signal_number == SIGXCPU ||
        (signal_number == SIGKILL && cpu_seconds(used) >= (double)guest->limits.cpu_seconds))
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "script '%s' used more than %u s of CPU time (an endless loop?)", guest->script.name,
                         guest->limits.cpu_seconds);
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == EXIT_MEMORY)
        return moec_fail(err, MOEC_ERR_SCRIPT, "script '%s' needs more than the limit of %llu MiB of memory",
                         guest->script.name, (unsigned long long)(guest->limits.memory_bytes >> 20));
    if (signal_number == SIGKILL)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "script '%s' was killed from outside after %.1f s of CPU time (SIGKILL; the system "
                         "may be short of memory)",
                         guest->script.name, cpu_seconds(used));
    if (signal_number != 0)
        return moec_fail(err, MOEC_ERR_SCRIPT, "script '%s' was ended by signal %d", guest->script.name,
                         signal_number);
    return moec_fail(err, MOEC_ERR_SCRIPT, "script '%s' ended without an answer", guest->script.name);
}

struct frame {
    uint8_t kind;
    uint8_t *payload; /* owned, NUL-terminated */
    uint32_t n;
};

static enum moec_status explain_lateness(const struct moec_guest *guest, const struct usage *usage,
                                         struct moec_error *err)
{
    if (usage->own_ms >= (int64_t)guest->limits.wall_seconds * 1000)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "script '%s' ran for more than %u s, not "
                         "counting the time it waited for moec's answers",
                         guest->script.name, guest->limits.wall_seconds);
    return moec_fail(err, MOEC_ERR_SCRIPT, "script '%s' gave no answer within %u s (an endless loop?)",
                     guest->script.name, guest->limits.silence_seconds);
}

static enum moec_status receive_frame(const struct moec_guest *guest, int socket, struct usage *usage,
                                      struct frame *frame, bool *closed, struct moec_error *err)
{
    const int64_t start = moec_pipe_now_ms();
    const int64_t silence = (int64_t)guest->limits.silence_seconds * 1000;
    const int64_t left = (int64_t)guest->limits.wall_seconds * 1000 - usage->own_ms;
    const int64_t deadline = start + (left < silence ? left : silence);
    uint32_t n = 0;
    enum moec_pipe_outcome outcome = moec_pipe_read_head(socket, &frame->kind, &n, deadline);
    if (outcome == MOEC_PIPE_OK) {
        if (n > MOEC_GUEST_MESSAGE_BYTES)
            return moec_fail(err, MOEC_ERR_SCRIPT, "script '%s' sent %u bytes at once, the limit is %u",
                             guest->script.name, n, MOEC_GUEST_MESSAGE_BYTES);
        free(frame->payload);
        frame->payload = NULL;
        MOEC_TRY(moec_alloc((void **)&frame->payload, (uint64_t)n + 1, 1, "a script's message", err));
        outcome = moec_pipe_read(socket, frame->payload, n, deadline);
    }
    usage->own_ms += moec_pipe_now_ms() - start;
    if (outcome == MOEC_PIPE_LATE)
        return explain_lateness(guest, usage, err);
    *closed = outcome == MOEC_PIPE_CLOSED;
    frame->n = n;
    return MOEC_OK;
}

static enum moec_status answer_question(const struct moec_guest *guest, int socket, struct usage *usage,
                                        const struct frame *frame, struct moec_error *err)
{
    if (guest->outside.answer == NULL)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "script '%s' asked for a measurement, but scripts of this kind may not ask for any",
                         guest->script.name);
    if (usage->n_questions++ == guest->limits.n_questions)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "script '%s' asked more than the limit of %u questions (an endless loop?)",
                         guest->script.name, guest->limits.n_questions);
    uint8_t *answer = NULL;
    size_t n = 0;
    MOEC_TRY(guest->outside.answer(guest->outside.context, frame->payload, frame->n, &answer, &n, err));
    uint32_t length = (uint32_t)n;
    bool sent = moec_pipe_write(socket, &length, sizeof length) && moec_pipe_write(socket, answer, n);
    free(answer);
    /* A child that died meanwhile shows at the next read, with its reason. */
    (void)sent;
    return MOEC_OK;
}

static enum moec_status pass_line(const struct moec_guest *guest, struct usage *usage,
                                  const struct frame *frame, struct moec_error *err)
{
    if (usage->n_log_lines++ == guest->limits.n_log_lines)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "script '%s' logged more than the limit of %u lines (an endless loop?)",
                         guest->script.name, guest->limits.n_log_lines);
    if (guest->outside.log != NULL)
        guest->outside.log(guest->outside.context, (const char *)frame->payload);
    return MOEC_OK;
}

static enum moec_status converse(const struct moec_guest *guest, int socket, struct frame *frame,
                                 bool *closed, struct moec_error *err)
{
    struct usage usage = {0};
    for (;;) {
        MOEC_TRY(receive_frame(guest, socket, &usage, frame, closed, err));
        if (*closed)
            return MOEC_OK;
        switch (frame->kind) {
        case MOEC_GUEST_RESULT:
            return MOEC_OK;
        case MOEC_GUEST_FAILED:
            return moec_fail(err, MOEC_ERR_SCRIPT, "script failed: %s", (const char *)frame->payload);
        case MOEC_GUEST_LOG:
            MOEC_TRY(pass_line(guest, &usage, frame, err));
            break;
        case MOEC_GUEST_ASK:
            MOEC_TRY(answer_question(guest, socket, &usage, frame, err));
            break;
        default:
            return moec_fail(err, MOEC_ERR_SCRIPT, "script '%s' sent an unknown message", guest->script.name);
        }
    }
}

enum moec_status moec_guest_run(const struct moec_guest *guest, uint8_t **result, size_t *n_result,
                                struct moec_error *err)
{
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot start script '%s': %s", guest->script.name,
                         strerror(errno));
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) {
        (void)close(sockets[0]);
        (void)close(sockets[1]);
        return moec_fail(err, MOEC_ERR_IO, "cannot start script '%s': %s", guest->script.name,
                         strerror(errno));
    }
    if (child == 0) {
        (void)close(sockets[0]);
        run_child(guest, sockets[1], parent);
    }
    (void)close(sockets[1]);
    struct frame frame = {0};
    bool closed = false;
    enum moec_status status = converse(guest, sockets[0], &frame, &closed, err);
    (void)close(sockets[0]);
    if (!closed)
        (void)kill(child, SIGKILL);
    int wait_status = 0;
    struct rusage used = {0};
    while (wait4(child, &wait_status, 0, &used) < 0 && errno == EINTR)
        continue;
    if (status == MOEC_OK && closed)
        status = explain_death(guest, wait_status, &used, err);
    if (status == MOEC_OK) {
        *result = frame.payload;
        *n_result = frame.n;
        return MOEC_OK;
    }
    free(frame.payload);
    return status;
}

/* ---- scripts ---- */

enum moec_status moec_lua_script_load(const char *prefix, const char *name_or_path, char **text,
                                      size_t *n_text, struct moec_error *err)
{
    size_t length = strlen(name_or_path);
    if (length > 4 && strcmp(name_or_path + length - 4, ".lua") == 0)
        return moec_file_load(name_or_path, SCRIPT_MAX_BYTES, text, n_text, err);
    char full[128];
    (void)snprintf(full, sizeof full, "%s/%s", prefix, name_or_path);
    const char *builtin = moec_lua_library_find(full, n_text);
    if (builtin != NULL)
        return moec_strndup(text, builtin, *n_text, err);
    char known[512] = "";
    for (size_t i = 0; moec_lua_library_name(prefix, i) != NULL; i++) {
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
                       moec_lua_library_name(prefix, i));
    }
    return moec_fail(err, MOEC_ERR_NOT_FOUND,
                     "the name '%s' is not among the built-in %s (%s); the name of your own file must end "
                     "in .lua",
                     name_or_path, prefix, known);
}

const char *moec_lua_version(void)
{
    return LUA_RELEASE;
}
