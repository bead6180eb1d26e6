/* A profile as a Lua table. Its numbers are copied when it is opened; studies and charts are looked up in
 * the profile itself. A userdata in the table owns it, and releases it when Lua collects the table. */
#include "experiments/paper_library.h"

#include "formats/profile/profile_h5.h"
#include "profiler/report/figures.h"
#include "profiler/routing/routing_summary.h"

#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDLE "moec.profile"

static void set_number(lua_State *lua, const char *key, double value)
{
    lua_pushnumber(lua, value);
    lua_setfield(lua, -2, key);
}

static void set_whole(lua_State *lua, const char *key, uint64_t value)
{
    lua_pushinteger(lua, (lua_Integer)value);
    lua_setfield(lua, -2, key);
}

/* ---- parts of the table ---- */

static void set_routing(lua_State *lua, const struct moec_profile *profile)
{
    struct moec_routing_summary summary;
    if (!moec_routing_summary_make(profile, &summary))
        return;
    lua_newtable(lua);
    set_number(lua, "top_fifth", summary.top_fifth);
    set_number(lua, "top_ten", summary.top_ten);
    set_whole(lua, "n_path", summary.n_path);
    set_whole(lua, "n_token", summary.n_token);
    set_number(lua, "entropy", summary.entropy);
    set_number(lua, "path_recall", summary.recall[MOEC_BY_PATH][0]);
    set_number(lua, "frequency_recall", summary.recall[MOEC_BY_FREQUENCY][0]);
    lua_setfield(lua, -2, "routing");
}

/* By layer and expert, the loss of each alone at the fewest bits. */
static void set_expert_losses(lua_State *lua, const struct moec_profile *profile)
{
    if (profile->n_bits == 0)
        return;
    set_whole(lua, "bits", profile->bits[0]);
    lua_newtable(lua);
    for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
        lua_newtable(lua);
        for (uint32_t e = 0; e < profile->n_expert; e++) {
            lua_pushnumber(lua, moec_profile_sensitivity_loss(
                                    profile, moec_profile_expert_row(profile, profile->expert_nll, s, e, 0)));
            lua_rawseti(lua, -2, (lua_Integer)e + 1);
        }
        lua_rawseti(lua, -2, (lua_Integer)s + 1);
    }
    lua_setfield(lua, -2, "expert_losses");
}

/* Losses of the whole model, the most bits first. */
static void set_uniform(lua_State *lua, const struct moec_profile *profile)
{
    lua_newtable(lua);
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        lua_newtable(lua);
        set_whole(lua, "bits", profile->uniform_bits[u]);
        set_number(lua, "loss", moec_profile_loss(profile, profile->uniform[u].nll));
        lua_rawseti(lua, -2, (lua_Integer)(profile->n_uniform - u));
    }
    lua_setfield(lua, -2, "uniform");
}

/* Pushes, of the traced tokens from `first` to `end`, how many chose each expert of a layer that some did. */
static void push_counts(lua_State *lua, const struct moec_profile *profile, uint32_t layer, uint64_t first,
                        uint64_t end, uint32_t *counts)
{
    memset(counts, 0, profile->n_expert * sizeof *counts);
    for (uint64_t token = first; token < end; token++)
        for (uint32_t r = 0; r < profile->top_k; r++) {
            const uint64_t place = (token * profile->n_moe_layer + layer) * profile->top_k + r;
            if (profile->trace_experts[place] < profile->n_expert)
                counts[profile->trace_experts[place]]++;
        }
    lua_newtable(lua);
    for (uint32_t e = 0; e < profile->n_expert; e++)
        if (counts[e] > 0) {
            lua_pushinteger(lua, counts[e]);
            lua_rawseti(lua, -2, (lua_Integer)lua_rawlen(lua, -2) + 1);
        }
}

/* By window, each a prompt, and layer. */
static void set_prompts(lua_State *lua, const struct moec_profile *profile)
{
    uint32_t *counts = lua_newuserdatauv(lua, profile->n_expert * sizeof *counts, 0);
    uint64_t token = 0;
    lua_newtable(lua);
    for (uint32_t w = 0; w < profile->n_window && token < profile->n_trace_token; w++) {
        const uint64_t after = token + moec_profile_traced(profile, w);
        const uint64_t end = after < profile->n_trace_token ? after : profile->n_trace_token;
        lua_newtable(lua);
        for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
            push_counts(lua, profile, s, token, end, counts);
            lua_rawseti(lua, -2, (lua_Integer)s + 1);
        }
        lua_rawseti(lua, -2, (lua_Integer)w + 1);
        token = end;
    }
    lua_setfield(lua, -3, "prompts");
    lua_pop(lua, 1);
}

/* ---- functions ---- */

static int release(lua_State *lua)
{
    moec_profile_release(lua_touserdata(lua, 1));
    return 0;
}

int paper_profile(lua_State *lua)
{
    const char *path = luaL_checkstring(lua, 1);
    uint8_t digest[MOEC_SHA256_BYTES];
    struct moec_error err = {0};
    lua_newtable(lua);
    struct moec_profile *profile = lua_newuserdatauv(lua, sizeof *profile, 0);
    *profile = (struct moec_profile){.n_expert = 0};
    if (luaL_newmetatable(lua, HANDLE) != 0) {
        lua_pushcfunction(lua, release);
        lua_setfield(lua, -2, "__gc");
    }
    (void)lua_setmetatable(lua, -2);
    lua_setfield(lua, -2, "handle");
    const enum moec_status status = moec_profile_read(path, false, profile, digest, &err);
    if (status == MOEC_ERR_NOT_FOUND)
        return 0;
    if (status != MOEC_OK)
        return paper_fail(lua, &err);
    set_whole(lua, "n_layer", profile->n_moe_layer);
    set_whole(lua, "n_encoder_layer", moec_config_moe_encoder_count(&profile->config));
    set_whole(lua, "n_expert", profile->n_expert);
    set_whole(lua, "top_k", profile->top_k);
    set_whole(lua, "seq_len_tokens", profile->seq_len_tokens);
    set_whole(lua, "baseline_bits", profile->baseline_bits);
    set_number(lua, "cost_passes", profile->cost_passes);
    set_number(lua, "naive_passes", profile->naive_passes);
    set_routing(lua, profile);
    set_expert_losses(lua, profile);
    set_uniform(lua, profile);
    set_prompts(lua, profile);
    return 1;
}

/* The place on an axis that a word names; axis->n where there is none. */
static uint64_t place_of(const struct moec_study_axis *axis, const char *word)
{
    if (word[0] == '#')
        return strtoull(word + 1, NULL, 10) - 1;
    for (uint64_t i = 0; i < axis->n; i++)
        if (axis->labels != NULL ? strcmp(axis->labels[i], word) == 0
                                 : fabs(moec_study_axis_value(axis, i) - strtod(word, NULL)) < 1e-9)
            return i;
    return axis->n;
}

int paper_study(lua_State *lua)
{
    const struct moec_profile *profile = luaL_checkudata(lua, 1, HANDLE);
    const struct moec_study *study = moec_studies_find(&profile->studies, luaL_checkstring(lua, 2));
    uint64_t at = 0;
    if (study == NULL || (int)study->n_axis != lua_gettop(lua) - 2)
        return 0;
    for (uint32_t a = 0; a < study->n_axis; a++) {
        const uint64_t place = place_of(&study->axes[a], luaL_checkstring(lua, 3 + (int)a));
        if (place >= study->axes[a].n)
            return 0;
        at = at * study->axes[a].n + place;
    }
    if (!isfinite(study->values[at]))
        return 0;
    lua_pushnumber(lua, study->values[at]);
    return 1;
}

static bool is_wanted(lua_State *lua, const char *name)
{
    bool is_its = false;
    for (int i = 3; i <= lua_gettop(lua) - 1 && !is_its; i++)
        is_its = strncmp(name, luaL_checkstring(lua, i), strlen(luaL_checkstring(lua, i))) == 0;
    return is_its;
}

/* Adds a chart to the list on top of the stack. */
static enum moec_status add_chart(lua_State *lua, struct moec_chart *chart, struct moec_error *err)
{
    char name[sizeof chart->name];
    (void)snprintf(name, sizeof name, "%.20s_%.40s", luaL_checkstring(lua, 2), chart->name);
    (void)memcpy(chart->name, name, sizeof name);
    lua_newtable(lua);
    lua_pushstring(lua, name);
    lua_setfield(lua, -2, "name");
    const enum moec_status status = paper_push_chart(lua, chart, err);
    if (status != MOEC_OK)
        return status;
    lua_setfield(lua, -3, "tsv");
    lua_setfield(lua, -2, "html");
    lua_rawseti(lua, -2, (lua_Integer)lua_rawlen(lua, -2) + 1);
    return MOEC_OK;
}

int paper_profile_charts(lua_State *lua)
{
    const struct moec_profile *profile = luaL_checkudata(lua, 1, HANDLE);
    struct moec_figures figures = {0};
    struct moec_error err = {0};
    lua_newtable(lua);
    enum moec_status status = moec_figures_make(profile, &figures, &err);
    for (uint32_t f = 0; f < figures.n; f++)
        for (uint32_t c = 0; c < figures.items[f].n_chart && status == MOEC_OK; c++)
            if (is_wanted(lua, figures.items[f].charts[c].name))
                status = add_chart(lua, &figures.items[f].charts[c], &err);
    moec_figures_release(&figures);
    return status == MOEC_OK ? 1 : paper_fail(lua, &err);
}
