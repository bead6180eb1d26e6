#include "compiler/policy.h"
#include "compiler/evaluation_cache.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/metrics.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t assignable_bits[MOEC_N_ASSIGNABLE] = MOEC_ASSIGNABLE_BITS;

/* First byte of a question, and of a result. */
enum { ASK_EVALUATE = 'E', ASK_SIZE = 'S', RESULT_ASSIGNMENT = 'R', RESULT_NONE = 'N' };

/* Both sides of the fork see the same image, so a struct is a message. */
struct size_answer {
    uint64_t n_bytes;
};

struct policy_run {
    const struct moec_policy_request *request;
    uint32_t n_layer; /* MoE layers */
    uint32_t n_expert;
    struct moec_evaluation_cache *measured; /* owned */
    struct moec_plan plan;                  /* of the question that is answered */
    /* Of the search part, NULL without a profile: */
    uint64_t *activations;    /* (S, E) */
    double *mean_gate_weight; /* (S, E) */
    double *loss;             /* (B, S, E), on windows that sensitivities are of */
    double *kl;               /* (B, S, E) */
};

/* ---- the child's side ---- */

static struct policy_run *run_of(lua_State *lua)
{
    return moec_guest_context(lua);
}

static bool is_assignable(lua_Integer bits)
{
    for (size_t i = 0; i < MOEC_N_ASSIGNABLE; i++)
        if ((lua_Integer)assignable_bits[i] == bits)
            return true;
    return false;
}

/* Refuses a key of the table at `index` that is not one of 1..n, such as a layer or an expert that the model
 * does not have. `place` is what the table is, such as " at [2]"; `unit` what it lists. */
static void check_keys(lua_State *lua, int index, const char *what, const char *place, const char *unit,
                       uint32_t n)
{
    lua_pushnil(lua);
    while (lua_next(lua, index) != 0) {
        lua_pop(lua, 1);
        int is_integer = 0;
        const lua_Integer key = lua_type(lua, -1) == LUA_TNUMBER ? lua_tointegerx(lua, -1, &is_integer) : 0;
        if (!is_integer || key < 1 || key > (lua_Integer)n)
            luaL_error(lua, "%s has an entry [%s]%s, expected %ss 1..%d", what, luaL_tolstring(lua, -1, NULL),
                       place, unit, (int)n);
    }
}

/* Messages give each expert the bits of its projections, as many bytes. */
#define EXPERT_BYTES ((size_t)MOEC_PROJECTION_COUNT)

static const char *const projection_names[MOEC_PROJECTION_COUNT] = {
    [MOEC_PROJECTION_GATE] = "gate", [MOEC_PROJECTION_UP] = "up", [MOEC_PROJECTION_DOWN] = "down"};

/* Projections that experts of this model have: a plain MLP's lack the first, the gate. */
static int first_projection(const struct policy_run *run)
{
    return run->request->config->plain_mlp ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE;
}

/* The bits on top of the stack, 0 if they are no allowed bitwidth. */
static uint8_t read_bits(lua_State *lua)
{
    int is_integer = 0;
    const lua_Integer bits = lua_type(lua, -1) == LUA_TNUMBER ? lua_tointegerx(lua, -1, &is_integer) : 0;
    return is_integer && is_assignable(bits) ? (uint8_t)bits : 0;
}

/* Refuses a key of the table on top of the stack that is not a projection. `place` is such as "[1][2]". */
static void check_projections(lua_State *lua, const char *what, const char *place)
{
    const int first = first_projection(run_of(lua));
    for (lua_pushnil(lua); lua_next(lua, -2) != 0;) {
        lua_pop(lua, 1);
        int p = first;
        while (p < MOEC_PROJECTION_COUNT &&
               (lua_type(lua, -1) != LUA_TSTRING || strcmp(lua_tostring(lua, -1), projection_names[p]) != 0))
            p++;
        if (p == MOEC_PROJECTION_COUNT)
            luaL_error(lua, "%s has a member '%s' at %s, expected %sup and down", what,
                       luaL_tolstring(lua, -1, NULL), place, first == MOEC_PROJECTION_GATE ? "gate, " : "");
    }
}

/* Reads {gate=, up=, down=} on top of the stack: one allowed bitwidth for each projection. */
static void read_projections(lua_State *lua, const char *what, const char *place,
                             uint8_t bits[MOEC_PROJECTION_COUNT])
{
    const int first = first_projection(run_of(lua));
    check_projections(lua, what, place);
    for (int p = first; p < MOEC_PROJECTION_COUNT; p++) {
        lua_pushstring(lua, projection_names[p]);
        const int type = lua_rawget(lua, -2);
        bits[p] = read_bits(lua);
        if (bits[p] == 0)
            luaL_error(lua,
                       "%s has no valid bitwidth for %s at %s: the %s %s, expected one of the numbers 2, 3, "
                       "4, 8, 16",
                       what, projection_names[p], place, lua_typename(lua, type),
                       luaL_tolstring(lua, -1, NULL));
        lua_pop(lua, 1);
    }
    if (first == MOEC_PROJECTION_UP)
        bits[MOEC_PROJECTION_GATE] = bits[MOEC_PROJECTION_UP];
}

/* Reads one layer, whose table is on top of the stack, into EXPERT_BYTES of `bits` for each expert. */
static void read_layer(lua_State *lua, uint32_t s, const char *what, uint8_t *bits)
{
    const struct policy_run *run = run_of(lua);
    char place[32];
    (void)snprintf(place, sizeof place, " in layer [%" PRIu32 "]", s + 1);
    if (lua_type(lua, -1) != LUA_TTABLE)
        luaL_error(lua, "%s has a %s at [%d], expected a table of %d bitwidths", what, luaL_typename(lua, -1),
                   (int)s + 1, (int)run->n_expert);
    const int layer = lua_gettop(lua);
    check_keys(lua, layer, what, place, "expert", run->n_expert);
    for (uint32_t e = 0; e < run->n_expert; e++, bits += EXPERT_BYTES) {
        const int type = lua_rawgeti(lua, layer, e + 1);
        (void)snprintf(place, sizeof place, "[%" PRIu32 "][%" PRIu32 "]", s + 1, e + 1);
        if (type == LUA_TNIL)
            luaL_error(lua, "%s has nothing at %s, expected a bitwidth", what, place);
        if (type == LUA_TTABLE) {
            read_projections(lua, what, place, bits);
        } else {
            memset(bits, read_bits(lua), EXPERT_BYTES);
            if (bits[0] == 0)
                luaL_error(
                    lua,
                    "%s has no valid bitwidth at %s: the %s %s, expected one of the numbers 2, 3, 4, 8, 16",
                    what, place, lua_typename(lua, type), luaL_tolstring(lua, -1, NULL));
        }
        lua_pop(lua, 1);
    }
}

/* Pushes a string: `kind` and EXPERT_BYTES for each expert of the assignment at `index`, or raises an error
 * that says which entry is wrong. */
static void push_assignment_message(lua_State *lua, int index, char kind, const char *what)
{
    const struct policy_run *run = run_of(lua);
    if (lua_type(lua, index) != LUA_TTABLE)
        luaL_error(lua, "%s is a %s, expected an assignment: a table of %d layers with %d bitwidths each",
                   what, luaL_typename(lua, index), (int)run->n_layer, (int)run->n_expert);
    const size_t n_layer_bytes = EXPERT_BYTES * run->n_expert, n = n_layer_bytes * run->n_layer;
    uint8_t *message = lua_newuserdatauv(lua, 1 + n, 0);
    message[0] = (uint8_t)kind;
    check_keys(lua, index, what, "", "layer", run->n_layer);
    if (lua_rawlen(lua, index) != run->n_layer)
        luaL_error(lua, "%s has %d layers, expected %d", what, (int)lua_rawlen(lua, index),
                   (int)run->n_layer);
    for (uint32_t s = 0; s < run->n_layer; s++) {
        (void)lua_rawgeti(lua, index, s + 1);
        read_layer(lua, s, what, message + 1 + s * n_layer_bytes);
        lua_pop(lua, 1);
    }
    lua_pushlstring(lua, (const char *)message, 1 + n);
}

static const void *ask(lua_State *lua, char kind, const char *what, size_t expected)
{
    luaL_checkany(lua, 1);
    push_assignment_message(lua, 1, kind, what);
    size_t n = 0;
    const char *question = lua_tolstring(lua, -1, &n);
    moec_guest_ask(lua, question, n);
    const char *answer = lua_tolstring(lua, -1, &n);
    if (n != expected)
        luaL_error(lua, "moec answered %d bytes, expected %d", (int)n, (int)expected);
    return answer;
}

static void set_number(lua_State *lua, const char *key, double value)
{
    lua_pushnumber(lua, value);
    lua_setfield(lua, -2, key);
}

static void set_integer(lua_State *lua, const char *key, uint64_t value)
{
    lua_pushinteger(lua, (lua_Integer)value);
    lua_setfield(lua, -2, key);
}

static int policy_evaluate(lua_State *lua)
{
    if (run_of(lua)->request->profile == NULL)
        return luaL_error(lua, "evaluate needs data: give compile a --profile or --data");
    struct moec_evaluation evaluation;
    memcpy(&evaluation, ask(lua, ASK_EVALUATE, "evaluate's assignment", sizeof evaluation),
           sizeof evaluation);
    lua_createtable(lua, 0, 5);
    set_number(lua, "loss", evaluation.loss);
    set_number(lua, "loss_low", evaluation.loss_low);
    set_number(lua, "loss_high", evaluation.loss_high);
    set_number(lua, "kl", evaluation.kl);
    lua_pushboolean(lua, evaluation.accepted);
    lua_setfield(lua, -2, "accepted");
    return 1;
}

static int policy_size(lua_State *lua)
{
    struct size_answer answer;
    memcpy(&answer, ask(lua, ASK_SIZE, "size's assignment", sizeof answer), sizeof answer);
    lua_pushinteger(lua, (lua_Integer)answer.n_bytes);
    return 1;
}

/* Pushes t[layer][expert] = value(s, e), 1-based. */
static void push_expert_table(lua_State *lua, void (*push)(lua_State *lua, const struct policy_run *run,
                                                           uint32_t s, uint32_t e))
{
    const struct policy_run *run = run_of(lua);
    lua_createtable(lua, (int)run->n_layer, 0);
    for (uint32_t s = 0; s < run->n_layer; s++) {
        lua_createtable(lua, (int)run->n_expert, 0);
        for (uint32_t e = 0; e < run->n_expert; e++) {
            push(lua, run, s, e);
            lua_rawseti(lua, -2, e + 1);
        }
        lua_rawseti(lua, -2, s + 1);
    }
}

static size_t expert_index(const struct policy_run *run, uint32_t s, uint32_t e)
{
    return (size_t)s * run->n_expert + e;
}

static void push_activations(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    lua_pushinteger(lua, (lua_Integer)run->activations[expert_index(run, s, e)]);
}

static void push_gate_weight(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    lua_pushnumber(lua, run->mean_gate_weight[expert_index(run, s, e)]);
}

static void push_by_bits(lua_State *lua, const struct policy_run *run, const double *array, uint32_t s,
                         uint32_t e)
{
    const struct moec_profile *profile = run->request->profile;
    lua_createtable(lua, 0, (int)profile->n_bits);
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        lua_pushnumber(lua, array[(size_t)b * run->n_layer * run->n_expert + expert_index(run, s, e)]);
        lua_rawseti(lua, -2, profile->bits[b]);
    }
}

static void push_loss(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    push_by_bits(lua, run, run->loss, s, e);
}

static void push_kl(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    push_by_bits(lua, run, run->kl, s, e);
}

/* Loss and mean KL on those of the first n_window windows that are of the search part, without an interval.
 * Fails only for values that moec_profile_check refuses. */
static struct moec_loss search_part(const struct moec_profile *profile, uint32_t n_window, const double *nll,
                                    const double *kl)
{
    struct moec_loss_options options = moec_loss_options_default();
    options.confidence = MOEC_CONFIDENCE_POINT;
    struct moec_loss loss = {.loss = NAN, .mean_kl = NAN};
    struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_SEARCH);
    windows.n_window = n_window;
    enum moec_status status =
        moec_loss_measure(&windows, profile->reference.nll, nll, kl, &options, &loss, NULL);
    (void)status;
    return loss;
}

static void push_measure(lua_State *lua, const struct moec_profile *profile, uint32_t n_window,
                         const struct moec_measure *measure)
{
    struct moec_loss loss = search_part(profile, n_window, measure->nll, measure->kl);
    lua_createtable(lua, 0, 2);
    set_number(lua, "loss", loss.loss);
    set_number(lua, "kl", loss.mean_kl);
}

static uint64_t search_tokens(const struct moec_profile *profile)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < profile->n_window; w++)
        if (moec_part_has(MOEC_PART_SEARCH, profile->window_part, w))
            n += moec_profile_traced(profile, w);
    return n;
}

static void push_profile(lua_State *lua)
{
    const struct moec_profile *profile = run_of(lua)->request->profile;
    lua_createtable(lua, 0, 10);
    set_integer(lua, "baseline_bits", profile->baseline_bits);
    lua_createtable(lua, (int)profile->n_bits, 0);
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        lua_pushinteger(lua, profile->bits[b]);
        lua_rawseti(lua, -2, b + 1);
    }
    lua_setfield(lua, -2, "bits");
    push_measure(lua, profile, profile->n_sensitivity_window, &profile->baseline);
    lua_setfield(lua, -2, "baseline");
    lua_createtable(lua, 0, (int)profile->n_uniform);
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        push_measure(lua, profile, profile->n_window, &profile->uniform[u]);
        lua_rawseti(lua, -2, profile->uniform_bits[u]);
    }
    lua_setfield(lua, -2, "uniform");
    push_expert_table(lua, push_loss);
    lua_setfield(lua, -2, "loss");
    push_expert_table(lua, push_kl);
    lua_setfield(lua, -2, "kl");
    push_expert_table(lua, push_activations);
    lua_setfield(lua, -2, "activations");
    push_expert_table(lua, push_gate_weight);
    lua_setfield(lua, -2, "mean_gate_weight");
    set_integer(lua, "windows", moec_profile_part_count(profile, MOEC_PART_SEARCH));
    set_integer(lua, "tokens", search_tokens(profile));
}

static void push_request(lua_State *lua)
{
    const struct policy_run *run = run_of(lua);
    const struct moec_policy_request *request = run->request;
    lua_createtable(lua, 0, 12);
    lua_createtable(lua, 0, 5);
    lua_pushstring(lua, request->config->family);
    lua_setfield(lua, -2, "family");
    set_integer(lua, "layers", run->n_layer);
    set_integer(lua, "encoder_layers", moec_config_moe_encoder_count(request->config));
    set_integer(lua, "experts", run->n_expert);
    set_integer(lua, "top_k", request->config->top_k);
    lua_createtable(lua, MOEC_PROJECTION_COUNT, 0);
    for (int p = first_projection(run); p < MOEC_PROJECTION_COUNT; p++) {
        lua_pushstring(lua, projection_names[p]);
        lua_rawseti(lua, -2, 1 + p - first_projection(run));
    }
    lua_setfield(lua, -2, "projections");
    lua_setfield(lua, -2, "model");
    lua_createtable(lua, MOEC_N_ASSIGNABLE, 0);
    for (size_t i = 0; i < MOEC_N_ASSIGNABLE; i++) {
        lua_pushinteger(lua, assignable_bits[i]);
        lua_rawseti(lua, -2, (lua_Integer)i + 1);
    }
    lua_setfield(lua, -2, "bitwidths");
    if (!isnan(request->max_loss))
        set_number(lua, "max_loss", request->max_loss);
    if (request->max_bytes > 0)
        set_integer(lua, "max_size", request->max_bytes);
    if (request->bits > 0)
        set_integer(lua, "bits", request->bits);
    if (request->profile != NULL) {
        push_profile(lua);
        lua_setfield(lua, -2, "profile");
    }
    lua_pushcfunction(lua, policy_evaluate);
    lua_setfield(lua, -2, "evaluate");
    lua_pushcfunction(lua, policy_size);
    lua_setfield(lua, -2, "size");
    lua_getglobal(lua, "log");
    lua_setfield(lua, -2, "log");
}

/* The stack holds what the file returned. Leaves the result message. */
static int policy_body(lua_State *lua)
{
    if (lua_type(lua, 1) != LUA_TFUNCTION)
        return luaL_error(lua, "the policy file returned a %s, expected a function (see lua/README.md)",
                          luaL_typename(lua, 1));
    push_request(lua);
    lua_call(lua, 1, 2);
    if (lua_isnil(lua, -2) && lua_isstring(lua, -1)) { /* nil, reason */
        lua_pushfstring(lua, "%c%s", RESULT_NONE, lua_tostring(lua, -1));
        return 1;
    }
    lua_pop(lua, 1);
    push_assignment_message(lua, lua_gettop(lua), RESULT_ASSIGNMENT, "the policy's answer");
    return 1;
}

/* ---- the parent's side ---- */

/* The child checked too, but it is a guest. */
static enum moec_status read_message(const struct policy_run *run, const uint8_t *message, size_t n,
                                     struct moec_plan *plan, struct moec_error *err)
{
    const size_t n_expert = moec_plan_count(plan);
    if (n != 1 + EXPERT_BYTES * n_expert)
        return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' sent %zu bytes, expected %zu",
                         run->request->policy, n, 1 + EXPERT_BYTES * n_expert);
    for (size_t i = 1; i < n; i++)
        if (!is_assignable(message[i]))
            return moec_fail(err, MOEC_ERR_SCRIPT,
                             "policy '%s' sent bitwidth %u, expected one of 2, 3, 4, 8, 16",
                             run->request->policy, message[i]);
    for (size_t i = 0; i < n_expert; i++)
        memcpy(plan->experts[i].codecs, message + 1 + EXPERT_BYTES * i, EXPERT_BYTES);
    return MOEC_OK;
}

/* The plan that was read from `message`. One that was measured before is not measured again: the same bits
 * would come out. */
static enum moec_status evaluate(struct policy_run *run, const uint8_t *message, size_t n,
                                 struct moec_evaluation *out, struct moec_error *err)
{
    const struct moec_policy_request *request = run->request;
    uint8_t key[MOEC_SHA256_BYTES];
    moec_sha256(message, n, key);
    if (moec_evaluation_cache_find(run->measured, key, out))
        return MOEC_OK;
    if (moec_evaluation_cache_count(run->measured) >= request->max_evaluations)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "policy '%s' evaluated more than its %" PRIu32 " different assignments",
                         request->policy, request->max_evaluations);
    MOEC_TRY(request->ops.evaluate(request->context, &run->plan, out, err));
    return moec_evaluation_cache_add(run->measured, key, out, err);
}

static enum moec_status policy_answer(void *context, const uint8_t *question, size_t n, uint8_t **answer,
                                      size_t *n_answer, struct moec_error *err)
{
    struct policy_run *run = context;
    const struct moec_policy_request *request = run->request;
    MOEC_TRY(read_message(run, question, n, &run->plan, err));
    if (question[0] == ASK_EVALUATE && request->profile != NULL) {
        struct moec_evaluation evaluation = {0};
        MOEC_TRY(evaluate(run, question + 1, n - 1, &evaluation, err));
        MOEC_TRY(moec_alloc((void **)answer, 1, sizeof evaluation, "an answer", err));
        memcpy(*answer, &evaluation, sizeof evaluation);
        *n_answer = sizeof evaluation;
        return MOEC_OK;
    }
    if (question[0] == ASK_SIZE) {
        struct size_answer size = {0};
        MOEC_TRY(request->ops.size(request->context, &run->plan, &size.n_bytes, err));
        MOEC_TRY(moec_alloc((void **)answer, 1, sizeof size, "an answer", err));
        memcpy(*answer, &size, sizeof size);
        *n_answer = sizeof size;
        return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' sent a request of unknown kind", request->policy);
}

static void policy_log(void *context, const char *line)
{
    const struct policy_run *run = context;
    if (run->request->ops.log != NULL)
        run->request->ops.log(run->request->context, line);
}

/* Mean KL of each expert at bits[b] on the search part, (S, E); experts that the data never reached get the
 * largest of their layer, as moec_profile_importance does for the loss. */
static void expert_divergences(const struct policy_run *run, uint32_t b, double *out)
{
    const struct moec_profile *profile = run->request->profile;
    for (uint32_t s = 0; s < run->n_layer; s++) {
        double worst = 0;
        for (uint32_t e = 0; e < run->n_expert; e++) {
            double *kl = &out[expert_index(run, s, e)];
            *kl = search_part(profile, profile->n_sensitivity_window,
                              moec_profile_expert_row(profile, profile->expert_nll, s, e, b),
                              moec_profile_expert_row(profile, profile->expert_kl, s, e, b))
                      .mean_kl;
            if (moec_profile_expert_reached(profile, s, e))
                worst = fmax(worst, *kl);
        }
        for (uint32_t e = 0; e < run->n_expert; e++)
            if (!moec_profile_expert_reached(profile, s, e))
                out[expert_index(run, s, e)] = worst;
    }
}

static enum moec_status prepare_losses(struct policy_run *run, struct moec_error *err)
{
    const struct moec_profile *profile = run->request->profile;
    if (profile == NULL)
        return MOEC_OK;
    uint64_t n_experts = (uint64_t)run->n_layer * run->n_expert;
    MOEC_TRY(moec_alloc((void **)&run->activations, n_experts, sizeof(uint64_t), "routing of experts", err));
    MOEC_TRY(
        moec_alloc((void **)&run->mean_gate_weight, n_experts, sizeof(double), "routing of experts", err));
    moec_part_routing(profile, MOEC_PART_SEARCH, run->activations, run->mean_gate_weight);
    MOEC_TRY(
        moec_alloc((void **)&run->loss, n_experts * profile->n_bits, sizeof(double), "expert losses", err));
    MOEC_TRY(moec_alloc((void **)&run->kl, n_experts * profile->n_bits, sizeof(double), "expert divergences",
                        err));
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        moec_profile_importance(profile, MOEC_PART_SEARCH, b, run->loss + b * n_experts);
        expert_divergences(run, b, run->kl + b * n_experts);
    }
    return MOEC_OK;
}

static enum moec_status take_result(const struct policy_run *run, const uint8_t *result, size_t n,
                                    struct moec_plan *plan, struct moec_error *err)
{
    if (n > 0 && result[0] == RESULT_NONE)
        return moec_fail(err, MOEC_ERR_TARGET, "policy '%s': %.*s", run->request->policy, (int)(n - 1),
                         (const char *)result + 1);
    if (n == 0 || result[0] != RESULT_ASSIGNMENT)
        return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' gave an answer of unknown kind",
                         run->request->policy);
    return read_message(run, result, n, plan, err);
}

enum moec_status moec_policy_run(const struct moec_policy_request *request, struct moec_plan *plan,
                                 uint32_t *n_evaluations, struct moec_error *err)
{
    struct policy_run run = {
        .request = request,
        .n_layer = moec_config_moe_count(request->config),
        .n_expert = request->config->n_expert,
    };
    char *source = NULL;
    uint8_t *result = NULL;
    size_t n_result = 0;
    enum moec_status status = MOEC_OK;
    struct moec_guest guest = {
        .name = request->policy,
        .seed = request->seed,
        .limits = request->limits,
        .body = policy_body,
        .body_context = &run,
        .answer = policy_answer,
        .log = policy_log,
        .context = &run,
    };
    MOEC_TRY_OUT(moec_lua_script_load("policies", request->policy, &source, &guest.n_source, err));
    guest.source = source;
    MOEC_TRY_OUT(moec_plan_create(&run.plan, request->config, err));
    MOEC_TRY_OUT(prepare_losses(&run, err));
    MOEC_TRY_OUT(moec_evaluation_cache_create(&run.measured, err));
    MOEC_TRY_OUT(moec_guest_run(&guest, &result, &n_result, err));
    MOEC_TRY_OUT(take_result(&run, result, n_result, plan, err));
    *n_evaluations = moec_evaluation_cache_count(run.measured);
out:
    free(result);
    free(source);
    moec_evaluation_cache_free(run.measured);
    free(run.activations);
    free(run.mean_gate_weight);
    free(run.loss);
    free(run.kl);
    moec_plan_release(&run.plan);
    return status;
}
