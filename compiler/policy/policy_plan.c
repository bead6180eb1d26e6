/* Lua tables are read without metamethods (rawget), entry by entry, and every key must belong. Names of
 * codecs come from moec.variants() and live in the child's registry. The parent accepts a number only if it
 * is an assignable bitwidth or was offered for that place. A plain MLP's gate repeats up, so that equal plans
 * are equal bytes. */
#include "compiler/policy/policy_plan.h"

#include "formats/model/dense.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

/* Bytes of an expert in a message. */
#define EXPERT_BYTES ((size_t)MOEC_PROJECTION_COUNT)

/* Where the child keeps the numbers of named codecs, in Lua's registry. */
#define NAMES "moec.codec_numbers"

static const uint32_t assignable_bits[MOEC_N_ASSIGNABLE] = MOEC_ASSIGNABLE_BITS;

struct moec_policy_shape moec_policy_shape_of(const struct moec_config *config)
{
    return (struct moec_policy_shape){.n_layer = moec_config_moe_count(config),
                                      .n_expert = config->n_expert,
                                      .n_dense = moec_plan_dense_count(config),
                                      .has_gate = !config->mlp.plain};
}

const char *moec_policy_projection_name(enum moec_projection projection)
{
    static const char *const names[MOEC_PROJECTION_COUNT] = {
        [MOEC_PROJECTION_GATE] = "gate", [MOEC_PROJECTION_UP] = "up", [MOEC_PROJECTION_DOWN] = "down"};
    return names[projection];
}

static bool is_assignable(lua_Integer bits)
{
    for (size_t i = 0; i < MOEC_N_ASSIGNABLE; i++)
        if ((lua_Integer)assignable_bits[i] == bits)
            return true;
    return false;
}

/* "1, 2, 3, 4, 5, 6, 8, 16" */
static const char *list_bits(char text[static 64])
{
    size_t used = 0;
    for (size_t i = 0; i < MOEC_N_ASSIGNABLE; i++)
        used += (size_t)snprintf(text + used, 64 - used, "%s%" PRIu32, i > 0 ? ", " : "", assignable_bits[i]);
    return text;
}

/* ---- the child's side ---- */

void moec_policy_name_codec(lua_State *lua, const char *name, uint8_t number)
{
    (void)luaL_getsubtable(lua, LUA_REGISTRYINDEX, NAMES);
    lua_pushinteger(lua, number);
    lua_setfield(lua, -2, name);
    lua_pop(lua, 1);
}

/* Number of the codec that the string on top of the stack names; -1: of none. */
static int named_number(lua_State *lua)
{
    (void)luaL_getsubtable(lua, LUA_REGISTRYINDEX, NAMES);
    lua_pushvalue(lua, -2);
    const int number = lua_rawget(lua, -2) == LUA_TNUMBER ? (int)lua_tointeger(lua, -1) : -1;
    lua_pop(lua, 2);
    return number;
}

/* The codec number on top of the stack, a bitwidth or a name. Raises an error that says where it stands:
 * `whose` is such as " for gate". Leaves the stack as it is. */
static uint8_t read_number(lua_State *lua, const char *what, const char *whose, const char *place)
{
    char bits[64];
    int is_integer = 0;
    const int type = lua_type(lua, -1);
    if (type == LUA_TSTRING) {
        const int number = named_number(lua);
        if (number >= 0)
            return (uint8_t)number;
    }
    const lua_Integer value = type == LUA_TNUMBER ? lua_tointegerx(lua, -1, &is_integer) : 0;
    if (is_integer && is_assignable(value))
        return (uint8_t)value;
    const bool has_names = lua_getfield(lua, LUA_REGISTRYINDEX, NAMES) != LUA_TNIL;
    lua_pop(lua, 1);
    luaL_error(lua, "%s has no valid bitwidth%s at %s: the %s %s, expected one of the numbers %s%s", what,
               whose, place, lua_typename(lua, type), luaL_tolstring(lua, -1, NULL), list_bits(bits),
               has_names ? " or a name of moec.variants()" : "");
    return 0;
}

/* The keys that a table may have. */
struct keys {
    const char *unit;  /* what it lists */
    uint32_t n;        /* 1..n */
    const char *other; /* a string too; NULL: none */
};

/* Refuses another key of the table at `index`, such as a layer or an expert that the model does not have.
 * `place` is what the table is, such as " at [2]". */
static void check_keys(lua_State *lua, int index, const char *what, const char *place, struct keys keys)
{
    lua_pushnil(lua);
    while (lua_next(lua, index) != 0) {
        lua_pop(lua, 1);
        int is_integer = 0;
        const int type = lua_type(lua, -1);
        const lua_Integer key = type == LUA_TNUMBER ? lua_tointegerx(lua, -1, &is_integer) : 0;
        if (keys.other != NULL && type == LUA_TSTRING && strcmp(lua_tostring(lua, -1), keys.other) == 0)
            continue;
        if (!is_integer || key < 1 || key > (lua_Integer)keys.n)
            luaL_error(lua, "%s has an entry [%s]%s, expected %ss 1..%d", what, luaL_tolstring(lua, -1, NULL),
                       place, keys.unit, (int)keys.n);
    }
}

static enum moec_projection first_projection(const struct moec_policy_shape *shape)
{
    return shape->has_gate ? MOEC_PROJECTION_GATE : MOEC_PROJECTION_UP;
}

/* Refuses a key of the table on top of the stack that is not a projection. `place` is such as "[1][2]". */
static void check_projections(lua_State *lua, const struct moec_policy_shape *shape, const char *what,
                              const char *place)
{
    const int first = (int)first_projection(shape);
    for (lua_pushnil(lua); lua_next(lua, -2) != 0;) {
        lua_pop(lua, 1);
        int p = first;
        while (p < MOEC_PROJECTION_COUNT &&
               (lua_type(lua, -1) != LUA_TSTRING ||
                strcmp(lua_tostring(lua, -1), moec_policy_projection_name((enum moec_projection)p)) != 0))
            p++;
        if (p == MOEC_PROJECTION_COUNT)
            luaL_error(lua, "%s has a member '%s' at %s, expected %sup and down", what,
                       luaL_tolstring(lua, -1, NULL), place, shape->has_gate ? "gate, " : "");
    }
}

/* Reads {gate=, up=, down=} on top of the stack. */
static void read_projections(lua_State *lua, const struct moec_policy_shape *shape, const char *what,
                             const char *place, uint8_t numbers[MOEC_PROJECTION_COUNT])
{
    check_projections(lua, shape, what, place);
    for (int p = (int)first_projection(shape); p < MOEC_PROJECTION_COUNT; p++) {
        char whose[16];
        const char *name = moec_policy_projection_name((enum moec_projection)p);
        (void)snprintf(whose, sizeof whose, " for %s", name);
        lua_pushstring(lua, name);
        (void)lua_rawget(lua, -2);
        numbers[p] = read_number(lua, what, whose, place);
        lua_pop(lua, 1);
    }
    if (!shape->has_gate)
        numbers[MOEC_PROJECTION_GATE] = numbers[MOEC_PROJECTION_UP];
}

/* Reads one layer, whose table is on top of the stack, into EXPERT_BYTES of `numbers` for each expert. */
static void read_layer(lua_State *lua, const struct moec_policy_shape *shape, uint32_t s, const char *what,
                       uint8_t *numbers)
{
    char place[32];
    (void)snprintf(place, sizeof place, " in layer [%" PRIu32 "]", s + 1);
    if (lua_type(lua, -1) != LUA_TTABLE)
        luaL_error(lua, "%s has a %s at [%d], expected a table of %d bitwidths", what, luaL_typename(lua, -1),
                   (int)s + 1, (int)shape->n_expert);
    const int layer = lua_gettop(lua);
    check_keys(lua, layer, what, place, (struct keys){"expert", shape->n_expert, NULL});
    for (uint32_t e = 0; e < shape->n_expert; e++, numbers += EXPERT_BYTES) {
        const int type = lua_rawgeti(lua, layer, e + 1);
        (void)snprintf(place, sizeof place, "[%" PRIu32 "][%" PRIu32 "]", s + 1, e + 1);
        if (type == LUA_TNIL)
            luaL_error(lua, "%s has nothing at %s, expected a bitwidth", what, place);
        if (type == LUA_TTABLE)
            read_projections(lua, shape, what, place, numbers);
        else
            memset(numbers, read_number(lua, what, "", place), EXPERT_BYTES);
        lua_pop(lua, 1);
    }
}

/* Reads assignment.dense, on top of the stack: nothing, or an entry for some of the matrices. */
static void read_dense(lua_State *lua, const struct moec_policy_shape *shape, const char *what,
                       uint8_t *numbers)
{
    memset(numbers, 0, shape->n_dense);
    if (lua_isnil(lua, -1))
        return;
    if (lua_type(lua, -1) != LUA_TTABLE)
        luaL_error(lua, "%s has a %s as dense, expected a table of the matrices of moec.variants().dense",
                   what, luaL_typename(lua, -1));
    const int dense = lua_gettop(lua);
    check_keys(lua, dense, what, " in dense", (struct keys){"matrice", shape->n_dense, NULL});
    for (uint32_t i = 0; i < shape->n_dense; i++) {
        char place[32];
        (void)snprintf(place, sizeof place, "dense[%" PRIu32 "]", i + 1);
        if (lua_rawgeti(lua, dense, i + 1) != LUA_TNIL)
            numbers[i] = read_number(lua, what, "", place);
        lua_pop(lua, 1);
    }
}

/* Reads the assignment at `index` into moec_policy_plan_bytes bytes. */
static void read_assignment(lua_State *lua, const struct moec_policy_shape *shape, int index,
                            const char *what, uint8_t *bytes)
{
    const size_t n_layer_bytes = EXPERT_BYTES * shape->n_expert;
    if (lua_type(lua, index) != LUA_TTABLE)
        luaL_error(lua, "%s is a %s, expected an assignment: a table of %d layers with %d bitwidths each",
                   what, luaL_typename(lua, index), (int)shape->n_layer, (int)shape->n_expert);
    check_keys(lua, index, what, "", (struct keys){"layer", shape->n_layer, "dense"});
    if (lua_rawlen(lua, index) != shape->n_layer)
        luaL_error(lua, "%s has %d layers, expected %d", what, (int)lua_rawlen(lua, index),
                   (int)shape->n_layer);
    for (uint32_t s = 0; s < shape->n_layer; s++) {
        (void)lua_rawgeti(lua, index, s + 1);
        read_layer(lua, shape, s, what, bytes + s * n_layer_bytes);
        lua_pop(lua, 1);
    }
    lua_pushstring(lua, "dense");
    (void)lua_rawget(lua, index);
    read_dense(lua, shape, what, bytes + shape->n_layer * n_layer_bytes);
    lua_pop(lua, 1);
}

void moec_policy_push_plan(lua_State *lua, const struct moec_policy_shape *shape, int index, char kind,
                           const char *what)
{
    const size_t n = moec_policy_plan_bytes(shape);
    uint8_t *message = lua_newuserdatauv(lua, 1 + n, 0);
    message[0] = (uint8_t)kind;
    read_assignment(lua, shape, index, what, message + 1);
    lua_pushlstring(lua, (const char *)message, 1 + n);
}

void moec_policy_push_answer(lua_State *lua, const struct moec_policy_shape *shape, int index, char kind,
                             const char *what)
{
    const size_t n = moec_policy_plan_bytes(shape);
    if (lua_type(lua, index) == LUA_TTABLE) {
        lua_pushstring(lua, "sequence");
        (void)lua_rawget(lua, index);
    } else {
        lua_pushnil(lua);
    }
    if (lua_isnil(lua, -1)) {
        moec_policy_push_plan(lua, shape, index, kind, what);
        return;
    }
    if (lua_type(lua, -1) != LUA_TTABLE)
        luaL_error(lua, "%s has a %s as sequence, expected a list of assignments", what,
                   luaL_typename(lua, -1));
    const int sequence = lua_gettop(lua);
    const lua_Unsigned n_plan = lua_rawlen(lua, sequence);
    if (n_plan < 1 || n_plan > MOEC_POLICY_MAX_PLANS)
        luaL_error(lua, "%s has a sequence of %d assignments, expected 1 to %d", what, (int)n_plan,
                   MOEC_POLICY_MAX_PLANS);
    check_keys(lua, sequence, what, " in sequence", (struct keys){"assignment", (uint32_t)n_plan, NULL});
    uint8_t *message = lua_newuserdatauv(lua, 1 + n_plan * n, 0);
    message[0] = (uint8_t)kind;
    for (lua_Unsigned i = 0; i < n_plan; i++) {
        (void)lua_rawgeti(lua, sequence, (lua_Integer)i + 1);
        read_assignment(lua, shape, lua_gettop(lua), what, message + 1 + i * n);
        lua_pop(lua, 1);
    }
    lua_pushlstring(lua, (const char *)message, 1 + n_plan * n);
}

/* ---- the parent's side ---- */

size_t moec_policy_plan_bytes(const struct moec_policy_shape *shape)
{
    return EXPERT_BYTES * shape->n_layer * shape->n_expert + shape->n_dense;
}

static bool is_offered(const uint8_t *numbers, uint32_t n, uint8_t number)
{
    return n > 0 && memchr(numbers, number, n) != NULL;
}

enum moec_status moec_policy_read_plan(const struct moec_policy_shape *shape,
                                       const struct moec_policy_variants *variants, const char *policy,
                                       const uint8_t *bytes, struct moec_plan *plan, struct moec_error *err)
{
    char bits[64];
    const size_t n_expert_bytes = EXPERT_BYTES * shape->n_layer * shape->n_expert;
    for (size_t i = 0; i < n_expert_bytes; i++)
        if (!is_assignable(bytes[i]) &&
            (variants == NULL || !is_offered(variants->numbers, variants->n_number, bytes[i])))
            return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' sent bitwidth %u, expected one of %s", policy,
                             bytes[i], list_bits(bits));
    for (uint32_t i = 0; i < shape->n_dense; i++) {
        const uint8_t number = bytes[n_expert_bytes + i];
        if (number != 0 && (variants == NULL || i >= variants->n_dense ||
                            !is_offered(variants->dense[i].numbers, variants->dense[i].n_number, number)))
            return moec_fail(err, MOEC_ERR_SCRIPT,
                             "policy '%s' sent codec %u for dense matrix %" PRIu32
                             ", which moec.variants() does not offer there",
                             policy, number, i + 1);
    }
    memcpy(plan->experts, bytes, n_expert_bytes);
    if (shape->n_dense > 0)
        memcpy(plan->dense, bytes + n_expert_bytes, shape->n_dense);
    return MOEC_OK;
}
