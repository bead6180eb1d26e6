/* Members that are left out take the search's shared settings; then what has no meaning is zeroed. Two
 * candidates that do the same must end as equal structs, for losses are kept by them. The struct crosses the
 * fork as bytes: it is zeroed first, and texts are checked for their NUL before use. */
#include "compiler/policy/policy_candidate.h"

#include "runtime/policy/decide/route_settings.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <math.h>
#include <string.h>

/* ---- the child's side ---- */

/* A member that is not one of these, such as one that is misspelt. */
static void check_members(lua_State *lua, int index, bool has_assignment, const char *what)
{
    static const char *const names[] = {"route",       "precision", "prefill",  "slots",     "low_slots",
                                        "cache_start", "keep_top",  "left_out", "assignment"};
    const size_t n = sizeof names / sizeof *names - !has_assignment;
    for (lua_pushnil(lua); lua_next(lua, index) != 0;) {
        lua_pop(lua, 1);
        bool is_known = false;
        const bool is_text = lua_type(lua, -1) == LUA_TSTRING;
        for (size_t i = 0; is_text && i < n; i++)
            is_known = is_known || strcmp(lua_tostring(lua, -1), names[i]) == 0;
        if (!is_known && !(is_text && !has_assignment && strcmp(lua_tostring(lua, -1), "draft") == 0))
            luaL_error(lua,
                       "%s has a member '%s', expected route, precision, prefill, slots, low_slots, "
                       "cache_start, keep_top, left_out or %s",
                       what, luaL_tolstring(lua, -1, NULL), has_assignment ? "assignment" : "draft");
    }
}

/* Pushes a member; whether there is one. */
static bool push_member(lua_State *lua, int index, const char *name)
{
    lua_pushstring(lua, name);
    return lua_rawget(lua, index) != LUA_TNIL;
}

static void read_words(lua_State *lua, int index, const char *name, const char *what,
                       char out[static MOEC_DECISION_TEXT_BYTES])
{
    size_t n = 0;
    if (push_member(lua, index, name)) {
        if (lua_type(lua, -1) != LUA_TSTRING)
            luaL_error(lua, "%s has a %s as %s, expected a string like the value of --%s", what,
                       luaL_typename(lua, -1), name, name);
        const char *words = lua_tolstring(lua, -1, &n);
        if (n == 0 || n >= MOEC_DECISION_TEXT_BYTES || strlen(words) != n)
            luaL_error(lua, "%s has '%s' as %s, expected 1 to %d characters", what, words, name,
                       MOEC_DECISION_TEXT_BYTES - 1);
        memcpy(out, words, n);
    }
    lua_pop(lua, 1);
}

/* Leaves `out` where there is no such member. */
static bool read_count(lua_State *lua, int index, const char *name, const char *what, uint32_t most,
                       uint32_t *out)
{
    const bool is_there = push_member(lua, index, name);
    if (is_there) {
        int is_integer = 0;
        const lua_Integer value = lua_type(lua, -1) == LUA_TNUMBER ? lua_tointegerx(lua, -1, &is_integer) : 0;
        if (!is_integer || value < 0 || value > (lua_Integer)most)
            luaL_error(lua, "%s has the %s %s as %s, expected a whole number up to %d", what,
                       luaL_typename(lua, -1), luaL_tolstring(lua, -1, NULL), name, (int)most);
        *out = (uint32_t)value;
    }
    lua_pop(lua, 1);
    return is_there;
}

/* Slots may be a share too, such as "25%". */
static bool read_slots(lua_State *lua, const struct moec_candidate_rules *rules, int index, const char *name,
                       const char *what, uint32_t *out)
{
    struct moec_error err = {0};
    const bool is_text = push_member(lua, index, name) && lua_type(lua, -1) == LUA_TSTRING;
    if (is_text && moec_route_read_slots(lua_tostring(lua, -1), rules->config, out, &err) != MOEC_OK)
        luaL_error(lua, "%s: %s", what, err.message);
    lua_pop(lua, 1);
    return is_text || read_count(lua, index, name, what, MOEC_MAX_EXPERTS, out);
}

static void read_start(lua_State *lua, int index, const char *what, bool *starts_frequent)
{
    if (push_member(lua, index, "cache_start")) {
        const char *how = lua_type(lua, -1) == LUA_TSTRING ? lua_tostring(lua, -1) : "";
        *starts_frequent = strcmp(how, "frequency") == 0;
        if (!*starts_frequent && strcmp(how, "empty") != 0)
            luaL_error(lua, "%s has '%s' as cache_start, expected empty or frequency", what,
                       luaL_tolstring(lua, -1, NULL));
    }
    lua_pop(lua, 1);
}

static void read_left_out(lua_State *lua, int index, const char *what, uint32_t *left_out)
{
    if (push_member(lua, index, "left_out")) {
        const double share = lua_type(lua, -1) == LUA_TNUMBER ? lua_tonumber(lua, -1) : NAN;
        if (!(share >= 0 && share <= 1))
            luaL_error(lua, "%s has the %s %s as left_out, expected a share from 0 to 1", what,
                       luaL_typename(lua, -1), luaL_tolstring(lua, -1, NULL));
        *left_out = (uint32_t)lround(1000 * share);
    }
    lua_pop(lua, 1);
}

static void read_draft(lua_State *lua, const struct moec_candidate_rules *rules, int index, const char *what,
                       uint32_t *draft)
{
    uint32_t number = 1;
    const bool is_there = read_count(lua, index, "draft", what, rules->n_draft, &number);
    if (number == 0 || (!is_there && rules->n_draft > 1))
        luaL_error(lua, "%s has no valid draft, expected a number from 1 to %d", what, (int)rules->n_draft);
    *draft = number - 1;
}

/* What the words that are there leave without a meaning must not be given, and is not shared either. */
static void drop_idle(lua_State *lua, const char *what, bool has_low_slots, bool has_keep,
                      struct moec_decision_settings *settings)
{
    if (!moec_decision_settings_take_low(settings)) {
        if (has_low_slots)
            luaL_error(
                lua,
                "%s has low_slots without precision or prefill: low_slots has an effect only with one of "
                "these",
                what);
        settings->n_low_slots = settings->low_bits = 0;
    }
    if (strcmp(settings->route, "top-k") == 0) /* the router's own by its name */
        memset(settings->route, 0, sizeof settings->route);
    if (settings->route[0] == '\0') {
        if (has_keep && settings->keep_top > 0)
            luaL_error(lua, "%s has keep_top without route: keep_top has an effect only with a route", what);
        settings->keep_top = 0;
    }
}

void moec_policy_read_candidate(lua_State *lua, const struct moec_candidate_rules *rules, int index,
                                bool has_assignment, const char *what, struct moec_policy_candidate *out)
{
    struct moec_error err = {0};
    if (lua_type(lua, index) != LUA_TTABLE)
        luaL_error(lua, "%s is a %s, expected a table such as {route = \"cache-prior:0.1\"}", what,
                   luaL_typename(lua, index));
    memset(out, 0, sizeof *out);
    struct moec_decision_settings *settings = &out->settings;
    settings->n_slots = rules->shared.n_slots;
    settings->n_low_slots = rules->shared.n_low_slots;
    settings->low_bits = rules->shared.low_bits;
    settings->keep_top = rules->shared.keep_top;
    settings->starts_frequent = rules->shared.starts_frequent;
    settings->decode_only = rules->shared.decode_only;
    check_members(lua, index, has_assignment, what);
    read_words(lua, index, "route", what, settings->route);
    read_words(lua, index, "precision", what, settings->precision);
    read_words(lua, index, "prefill", what, settings->prefill);
    if (!has_assignment)
        read_draft(lua, rules, index, what, &out->draft);
    if (rules->draft_slots != NULL)
        settings->n_slots = rules->draft_slots[out->draft];
    (void)read_slots(lua, rules, index, "slots", what, &settings->n_slots);
    const bool has_low_slots = read_slots(lua, rules, index, "low_slots", what, &settings->n_low_slots);
    const bool has_keep = read_count(lua, index, "keep_top", what, MOEC_MAX_TOP_K, &settings->keep_top);
    read_start(lua, index, what, &settings->starts_frequent);
    read_left_out(lua, index, what, &out->left_out);
    drop_idle(lua, what, has_low_slots, has_keep, settings);
    if (moec_policy_check_candidate(rules, out, &err) != MOEC_OK)
        luaL_error(lua, "%s: %s", what, err.message);
}

/* ---- both sides ---- */

static enum moec_status check_allowed(const struct moec_candidate_rules *rules,
                                      const struct moec_policy_candidate *candidate, struct moec_error *err)
{
    const struct moec_decision_settings *settings = &candidate->settings;
    const struct {
        bool is_there, is_allowed;
        const char *name;
    } members[] = {{settings->route[0] != '\0', rules->may_route, "route"},
                   {settings->precision[0] != '\0', rules->may_precise, "precision"},
                   {settings->prefill[0] != '\0', rules->may_prefill, "prefill"},
                   {candidate->left_out > 0, rules->may_leave_out, "left_out"}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (members[i].is_there && !members[i].is_allowed)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "a candidate uses %s, which this search leaves out (moec.with.%s is false)",
                             members[i].name, members[i].name);
    return MOEC_OK;
}

enum moec_status moec_policy_check_candidate(const struct moec_candidate_rules *rules,
                                             const struct moec_policy_candidate *candidate,
                                             struct moec_error *err)
{
    const struct moec_decision_settings *settings = &candidate->settings;
    const char *words[] = {settings->route, settings->precision, settings->prefill};
    struct moec_route route;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memchr(words[i], '\0', MOEC_DECISION_TEXT_BYTES) == NULL)
            return moec_fail(err, MOEC_ERR_SCRIPT,
                             "a candidate of the policy has a text that does not end with a zero byte");
    if (candidate->draft >= rules->n_draft || candidate->left_out > 1000 ||
        (settings->low_bits != 0 && settings->low_bits != rules->shared.low_bits))
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "a candidate names draft number %" PRIu32 ", a sparsity of %" PRIu32
                         "/1000 and low-precision copies of %" PRIu32 " bits, expected a draft below %" PRIu32
                         ", a sparsity of at most 1000/1000, and %" PRIu32 " bits",
                         candidate->draft, candidate->left_out, settings->low_bits, rules->n_draft,
                         rules->shared.low_bits);
    if (settings->n_slots == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a candidate has 0 slots for its logical cache, expected %" PRIu32 " to %" PRIu32
                         ": reads are counted as the misses of this cache, so it needs slots",
                         rules->config->top_k, rules->config->n_expert);
    MOEC_TRY(check_allowed(rules, candidate, err));
    return moec_route_from_settings(settings, rules->config, rules->paths, rules->path, &route, err);
}

bool moec_policy_candidates_equal(const struct moec_policy_candidate *a,
                                  const struct moec_policy_candidate *b)
{
    const struct moec_decision_settings *s = &a->settings, *t = &b->settings;
    return a->draft == b->draft && a->left_out == b->left_out && strcmp(s->route, t->route) == 0 &&
           strcmp(s->precision, t->precision) == 0 && strcmp(s->prefill, t->prefill) == 0 &&
           s->n_slots == t->n_slots && s->n_low_slots == t->n_low_slots && s->low_bits == t->low_bits &&
           s->keep_top == t->keep_top && s->starts_frequent == t->starts_frequent;
}
