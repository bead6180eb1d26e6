/* A question or result is a byte of kind and structs as they are in memory, for both sides are one image.
 * Whatever the child has checked, the parent checks again, and it counts lengths before it reads. Pairs of
 * child and parent functions must change together. */
#include "compiler/policy/decision_policy.h"

#include "compiler/policy/policy_push.h"
#include "formats/base/memory.h"

#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

/* Where built-in ones stand in lua/. */
#define FOLDER "decisions"

/* First byte of a question, and of a result. */
enum { ASK_EVALUATE = 'E', RESULT_ONE = 'O', RESULT_SEQUENCE = 'S', RESULT_NONE = 'N' };

/* ---- the child's side ---- */

static const struct moec_decision_policy_request *request_of(lua_State *lua)
{
    return moec_guest_context(lua);
}

/* Pushes a message of this kind with the candidate at `index`. */
static void push_candidate(lua_State *lua, int index, char kind, const char *what)
{
    struct moec_policy_candidate candidate;
    moec_policy_read_candidate(lua, request_of(lua)->rules, index, false, what, &candidate);
    lua_pushlstring(lua, &kind, 1);
    lua_pushlstring(lua, (const char *)&candidate, sizeof candidate);
    lua_concat(lua, 2);
}

static int evaluate(lua_State *lua)
{
    struct moec_evaluation evaluation;
    size_t n = 0;
    luaL_checkany(lua, 1);
    push_candidate(lua, 1, ASK_EVALUATE, "evaluate's candidate");
    const char *question = lua_tolstring(lua, -1, &n);
    moec_guest_ask(lua, question, n);
    const char *answer = lua_tolstring(lua, -1, &n);
    if (n != sizeof evaluation)
        return luaL_error(lua, "moec answered %d bytes, expected %d", (int)n, (int)sizeof evaluation);
    memcpy(&evaluation, answer, sizeof evaluation);
    moec_policy_push_evaluation(lua, &evaluation);
    return 1;
}

static void push_request(lua_State *lua)
{
    const struct moec_decision_policy_request *request = request_of(lua);
    lua_createtable(lua, 0, 12);
    moec_policy_set_model(lua, request->rules->config);
    moec_policy_set_number(lua, "max_loss", request->max_loss);
    moec_policy_set_parts(lua, request->n_part_window);
    moec_policy_set_rules(lua, request->rules);
    lua_pushcfunction(lua, evaluate);
    lua_setfield(lua, -2, "evaluate");
    lua_getglobal(lua, "log");
    lua_setfield(lua, -2, "log");
}

/* Pushes the list on top of the stack as a message. */
static void push_sequence(lua_State *lua, const char *what)
{
    const int list = lua_gettop(lua);
    if (lua_type(lua, list) != LUA_TTABLE)
        luaL_error(lua, "%s has a %s as sequence, expected a list of candidates", what,
                   luaL_typename(lua, list));
    const lua_Unsigned n = lua_rawlen(lua, list);
    if (n < 1 || n > MOEC_POLICY_MAX_PLANS)
        luaL_error(lua, "%s has a sequence of %d candidates, expected 1 to %d", what, (int)n,
                   MOEC_POLICY_MAX_PLANS);
    const size_t n_bytes = n * sizeof(struct moec_policy_candidate);
    struct moec_policy_candidate *candidates = lua_newuserdatauv(lua, n_bytes, 0);
    for (lua_Unsigned i = 0; i < n; i++) {
        (void)lua_rawgeti(lua, list, (lua_Integer)i + 1);
        moec_policy_read_candidate(lua, request_of(lua)->rules, lua_gettop(lua), false, what, &candidates[i]);
        lua_pop(lua, 1);
    }
    lua_pushfstring(lua, "%c", RESULT_SEQUENCE);
    lua_pushlstring(lua, (const char *)candidates, n_bytes);
    lua_concat(lua, 2);
}

/* Leaves the result message. */
static int policy_body(lua_State *lua)
{
    const char *what = "the policy's answer";
    moec_policy_expect_function(lua, request_of(lua)->policy);
    push_request(lua);
    lua_call(lua, 1, 2);
    if (lua_isnil(lua, -2) && lua_isstring(lua, -1)) { /* nil, reason */
        lua_pushfstring(lua, "%c%s", RESULT_NONE, lua_tostring(lua, -1));
        return 1;
    }
    lua_pop(lua, 1);
    const int answer = lua_gettop(lua);
    if (lua_type(lua, answer) != LUA_TTABLE)
        return luaL_error(lua, "%s is a %s, expected a candidate, {sequence = {..}}, or nil and a reason",
                          what, luaL_typename(lua, answer));
    lua_pushliteral(lua, "sequence");
    if (lua_rawget(lua, answer) != LUA_TNIL)
        push_sequence(lua, what);
    else
        push_candidate(lua, answer, RESULT_ONE, what);
    return 1;
}

/* ---- the parent's side ---- */

static enum moec_status read_candidate(const struct moec_decision_policy_request *request,
                                       const uint8_t *bytes, struct moec_policy_candidate *candidate,
                                       struct moec_error *err)
{
    memcpy(candidate, bytes, sizeof *candidate);
    return moec_policy_check_candidate(request->rules, candidate, err);
}

static enum moec_status answer_question(void *context, const uint8_t *question, size_t n, uint8_t **answer,
                                        size_t *n_answer, struct moec_error *err)
{
    const struct moec_decision_policy_request *request = context;
    struct moec_policy_candidate candidate;
    struct moec_evaluation evaluation = {0};
    if (n != 1 + sizeof candidate || question[0] != ASK_EVALUATE)
        return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' sent a request of unknown kind", request->policy);
    MOEC_TRY(read_candidate(request, question + 1, &candidate, err));
    MOEC_TRY(request->hooks.evaluate(request->hooks.context, &candidate, &evaluation, err));
    MOEC_TRY(moec_alloc((void **)answer, 1, sizeof evaluation, "an answer", err));
    memcpy(*answer, &evaluation, sizeof evaluation);
    *n_answer = sizeof evaluation;
    return MOEC_OK;
}

static void pass_line(void *context, const char *line)
{
    const struct moec_decision_policy_request *request = context;
    if (request->hooks.log != NULL)
        request->hooks.log(request->hooks.context, line);
}

static enum moec_status take_result(const struct moec_decision_policy_request *request, const uint8_t *result,
                                    size_t n, struct moec_decision_policy_answer *answer,
                                    struct moec_error *err)
{
    const size_t n_bytes = sizeof *answer->candidates;
    if (n > 0 && result[0] == RESULT_NONE)
        return moec_fail(err, MOEC_ERR_TARGET, "policy '%s': %.*s", request->policy, (int)(n - 1),
                         (const char *)result + 1);
    answer->is_sequence = n > 0 && result[0] == RESULT_SEQUENCE;
    if (n < 1 + n_bytes || (!answer->is_sequence && result[0] != RESULT_ONE) || (n - 1) % n_bytes != 0 ||
        (n - 1) / n_bytes > (answer->is_sequence ? MOEC_POLICY_MAX_PLANS : 1))
        return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' gave an answer of unknown kind", request->policy);
    for (size_t at = 1; at < n; at += n_bytes)
        MOEC_TRY(read_candidate(request, result + at, &answer->candidates[answer->n++], err));
    return MOEC_OK;
}

enum moec_status moec_decision_policy_check(const char *policy, struct moec_error *err)
{
    return moec_policy_check_file(FOLDER, policy, err);
}

enum moec_status moec_decision_policy_run(const struct moec_decision_policy_request *request,
                                          struct moec_decision_policy_answer *answer, struct moec_error *err)
{
    char *source = NULL;
    uint8_t *result = NULL;
    size_t n_result = 0;
    struct moec_guest guest = {
        .script.name = request->policy,
        .seed = request->seed,
        .limits = request->limits,
        .inside = {.body = policy_body, .context = (void *)(uintptr_t)request},
        .outside = {.answer = answer_question, .log = pass_line, .context = (void *)(uintptr_t)request}};
    *answer = (struct moec_decision_policy_answer){0};
    MOEC_TRY(moec_lua_script_load(FOLDER, request->policy, &source, &guest.script.n_text, err));
    guest.script.text = source;
    enum moec_status status = moec_guest_run(&guest, &result, &n_result, err);
    if (status == MOEC_OK)
        status = take_result(request, result, n_result, answer, err);
    free(result);
    free(source);
    return status;
}
