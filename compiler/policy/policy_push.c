/* What policies see, as Lua tables (lua/README.md). Each _set_ function puts one member into the table on
 * top of the stack and leaves the stack as it was; _push_ functions leave their table on top. */
#include "compiler/policy/policy_push.h"

#include "compiler/policy/policy_plan.h"

#include <lauxlib.h>
#include <stdlib.h>

#define LOADING_SECONDS 5 /* of CPU time: a file that is loaded only returns its function */

void moec_policy_expect_function(lua_State *lua, const char *policy)
{
    if (lua_type(lua, 1) != LUA_TFUNCTION)
        luaL_error(lua, "policy '%s' returned a %s, expected a function (see lua/README.md)", policy,
                   luaL_typename(lua, 1));
}

static int check_body(lua_State *lua)
{
    moec_policy_expect_function(lua, moec_guest_context(lua));
    lua_pushliteral(lua, "");
    return 1;
}

enum moec_status moec_policy_check_file(const char *folder, const char *policy, struct moec_error *err)
{
    struct moec_guest guest = {.script.name = policy,
                               .limits = moec_guest_limits_default,
                               .inside = {.body = check_body, .context = (void *)(uintptr_t)policy}};
    char *source = NULL;
    uint8_t *result = NULL;
    size_t n_result = 0;
    guest.limits.cpu_seconds = LOADING_SECONDS;
    MOEC_TRY(moec_lua_script_load(folder, policy, &source, &guest.script.n_text, err));
    guest.script.text = source;
    const enum moec_status status = moec_guest_run(&guest, &result, &n_result, err);
    free(result);
    free(source);
    return status;
}

void moec_policy_set_number(lua_State *lua, const char *key, double value)
{
    lua_pushnumber(lua, value);
    lua_setfield(lua, -2, key);
}

void moec_policy_set_integer(lua_State *lua, const char *key, uint64_t value)
{
    lua_pushinteger(lua, (lua_Integer)value);
    lua_setfield(lua, -2, key);
}

void moec_policy_set_model(lua_State *lua, const struct moec_config *config)
{
    const struct moec_policy_shape shape = moec_policy_shape_of(config);
    const int first = shape.has_gate ? MOEC_PROJECTION_GATE : MOEC_PROJECTION_UP;
    lua_createtable(lua, 0, 6);
    lua_pushstring(lua, config->family);
    lua_setfield(lua, -2, "family");
    moec_policy_set_integer(lua, "layers", shape.n_layer);
    moec_policy_set_integer(lua, "encoder_layers", moec_config_moe_encoder_count(config));
    moec_policy_set_integer(lua, "experts", shape.n_expert);
    moec_policy_set_integer(lua, "top_k", config->top_k);
    lua_createtable(lua, MOEC_PROJECTION_COUNT, 0);
    for (int p = first; p < MOEC_PROJECTION_COUNT; p++) {
        lua_pushstring(lua, moec_policy_projection_name((enum moec_projection)p));
        lua_rawseti(lua, -2, 1 + p - first);
    }
    lua_setfield(lua, -2, "projections");
    lua_setfield(lua, -2, "model");
}

void moec_policy_set_parts(lua_State *lua, const uint32_t n_part_window[static MOEC_PART_COUNT])
{
    lua_createtable(lua, 0, 3);
    moec_policy_set_integer(lua, "search", n_part_window[MOEC_PART_SEARCH]);
    moec_policy_set_integer(lua, "select", n_part_window[MOEC_PART_SELECT]);
    moec_policy_set_integer(lua, "certificate", n_part_window[MOEC_PART_CERTIFICATE]);
    lua_setfield(lua, -2, "parts");
}

static void set_flag(lua_State *lua, const char *key, bool value)
{
    lua_pushboolean(lua, value);
    lua_setfield(lua, -2, key);
}

void moec_policy_set_rules(lua_State *lua, const struct moec_candidate_rules *rules)
{
    const struct moec_decision_settings *shared = &rules->shared;
    lua_createtable(lua, 0, 4);
    set_flag(lua, "route", rules->may_route);
    set_flag(lua, "precision", rules->may_precise);
    set_flag(lua, "prefill", rules->may_prefill);
    set_flag(lua, "left_out", rules->may_leave_out);
    lua_setfield(lua, -2, "with");
    moec_policy_set_integer(lua, "slots", shared->n_slots);
    if (shared->low_bits > 0) {
        moec_policy_set_integer(lua, "low_slots", shared->n_low_slots);
        moec_policy_set_integer(lua, "low_bits", shared->low_bits);
    }
    moec_policy_set_integer(lua, "keep_top", shared->keep_top);
    lua_pushstring(lua, shared->starts_frequent ? "frequency" : "empty");
    lua_setfield(lua, -2, "cache_start");
    moec_policy_set_integer(lua, "drafts", rules->n_draft);
    if (rules->draft_slots == NULL)
        return;
    lua_createtable(lua, (int)rules->n_draft, 0);
    for (uint32_t i = 0; i < rules->n_draft; i++) {
        lua_pushinteger(lua, rules->draft_slots[i]);
        lua_rawseti(lua, -2, (lua_Integer)i + 1);
    }
    lua_setfield(lua, -2, "draft_slots");
}

void moec_policy_push_evaluation(lua_State *lua, const struct moec_evaluation *evaluation)
{
    lua_createtable(lua, 0, 8);
    moec_policy_set_number(lua, "loss", evaluation->loss);
    moec_policy_set_number(lua, "loss_low", evaluation->loss_low);
    moec_policy_set_number(lua, "loss_high", evaluation->loss_high);
    moec_policy_set_number(lua, "kl", evaluation->kl);
    lua_pushboolean(lua, evaluation->accepted);
    lua_setfield(lua, -2, "accepted");
    if (evaluation->n_certificate > 0)
        moec_policy_set_integer(lua, "certificate_windows", evaluation->n_certificate);
    if (!evaluation->has_traffic)
        return;
    moec_policy_set_number(lua, "missed_share", evaluation->missed_share);
    moec_policy_set_number(lua, "misses_per_token", evaluation->token_misses);
    moec_policy_set_number(lua, "bytes_per_token", evaluation->token_bytes);
    if (evaluation->is_read)
        moec_policy_set_number(lua, "read_bytes", evaluation->read_bytes);
    if (evaluation->has_time)
        moec_policy_set_number(lua, "token_ms", 1e-6 * evaluation->token_ns);
}
