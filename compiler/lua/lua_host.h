/* Lua scripts as guests (D12): the home of Lua.
 *
 * A script runs in a child process with limits on memory, CPU time, wall time, questions and log lines, and
 * talks to its parent over a socket pair. The child dies with its parent. It sees no io, os, load, debug,
 * string.dump or collectgarbage; metatables with __gc are refused; `require` finds only the modules of lua/,
 * which are built into the program; pairs and next go in sorted order and math.random is seeded, so that a
 * script's answer depends on its inputs alone. The parent checks everything that it is sent.
 *
 * Thread rule: one guest at a time; call from the main thread while no parallel region runs
 * (the child is forked). */
#ifndef MOEC_COMPILER_LUA_HOST_H
#define MOEC_COMPILER_LUA_HOST_H

#include "formats/base/error.h"

#include <lua.h>
#include <stddef.h>

struct moec_guest_limits {
    uint64_t memory_bytes;    /* Lua heap */
    uint32_t cpu_seconds;     /* CPU time of the whole script */
    uint32_t silence_seconds; /* wall time between two messages */
    uint32_t wall_seconds; /* wall time of the whole script; neither includes the time that the parent takes
                              to answer */
    uint32_t n_questions;  /* that it may ask; 0 = none */
    uint32_t n_log_lines;  /* that it may send; 0 = none */
};

extern const struct moec_guest_limits moec_guest_limits_default;

/* A message between child and parent: a kind and a payload of at most MOEC_GUEST_MESSAGE_BYTES. */
#define MOEC_GUEST_MESSAGE_BYTES (1u << 24)

enum moec_guest_message {
    MOEC_GUEST_RESULT = 'R', /* child: the script's answer; ends the conversation */
    MOEC_GUEST_FAILED = 'X', /* child: error text; ends the conversation */
    MOEC_GUEST_ASK = 'A',    /* child: a question; the parent replies with one answer */
    MOEC_GUEST_LOG = 'L',    /* child: a line for the user */
};

/* Called in the child with a fresh guarded state whose stack holds one value: what the script file returned.
 * Must leave the answer's bytes in a Lua string on top of the stack. May raise Lua errors. */
typedef int moec_guest_body(lua_State *lua);

/* Called in the parent for each question; fills `answer` (malloc'ed, freed by the host).
 * An error ends the guest. */
typedef enum moec_status moec_guest_answer(void *context, const uint8_t *question, size_t n, uint8_t **answer,
                                           size_t *n_answer, struct moec_error *err);
typedef void moec_guest_log(void *context, const char *line);

struct moec_guest_script {
    const char *name; /* for messages: file or built-in name */
    const char *text; /* Lua */
    size_t n_text;
};

/* What runs in the child. */
struct moec_guest_inside {
    moec_guest_body *body;
    void *context; /* reachable there through moec_guest_context */
};

/* What runs in the parent. */
struct moec_guest_outside {
    moec_guest_answer *answer; /* NULL when the script may not ask */
    moec_guest_log *log;       /* may be NULL */
    void *context;             /* of answer and log */
};

struct moec_guest {
    struct moec_guest_script script;
    uint64_t seed; /* of math.random */
    struct moec_guest_limits limits;
    struct moec_guest_inside inside;
    struct moec_guest_outside outside;
};

/* Runs the script to its answer: `*result` (owned by the caller) holds n_result bytes. Errors:
 * MOEC_ERR_SCRIPT with the script's own message, or saying which limit it passed and what that limit is, or
 * that something outside ended it; errors of `answer` pass through. */
MOEC_WARN_UNUSED enum moec_status moec_guest_run(const struct moec_guest *guest, uint8_t **result,
                                                 size_t *n_result, struct moec_error *err);

/* In the child: inside.context of the running guest; ask the parent, whose answer is pushed as a Lua string
 * (the child ends when the parent is gone). */
void *moec_guest_context(lua_State *lua);
void moec_guest_ask(lua_State *lua, const void *question, size_t n);

/* A file of lua/ or datasets/tasks/ that is built into the program ("policies/edgemoe", "tasks/text"), NULL
 * when there is none. */
const char *moec_lua_library_find(const char *name, size_t *n);
/* Names of the built-in files with this prefix, NULL-terminated by index: returns NULL past the end. */
const char *moec_lua_library_name(const char *prefix, size_t index);

/* Loads a script given by the user as a built-in name (looked up under `prefix`) or as a path ending in
 * ".lua". `*text` is owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_lua_script_load(const char *prefix, const char *name_or_path,
                                                       char **text, size_t *n_text, struct moec_error *err);

/* "Lua 5.4.4". */
const char *moec_lua_version(void);

#endif
