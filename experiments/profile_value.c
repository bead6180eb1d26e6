/* A profile as a Lua table. Its numbers are copied when it is opened; studies and charts are looked up in the
 * profile itself. A userdata in the table owns it, and releases it when Lua collects the table. */
#include "experiments/paper_library.h"

#include "formats/profile/profile_h5.h"
#include "profiler/report/figure_parts.h"
#include "profiler/report/figures.h"

#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDLE "moec.profile"

static void set_whole(lua_State *lua, const char *key, uint64_t value)
{
    lua_pushinteger(lua, (lua_Integer)value);
    lua_setfield(lua, -2, key);
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

/* Counts the experts that a token chose in a layer, in the table on top. */
static void count_experts(lua_State *lua, const struct moec_profile *profile, uint64_t token, uint32_t layer)
{
    const uint16_t *experts =
        profile->trace_experts + (token * profile->n_moe_layer + layer) * profile->top_k;
    for (uint32_t r = 0; r < profile->top_k; r++)
        if (experts[r] < profile->n_expert) {
            (void)lua_rawgeti(lua, -1, experts[r]);
            const lua_Integer n = lua_tointeger(lua, -1) + 1; /* nil is 0 */
            lua_pop(lua, 1);
            lua_pushinteger(lua, n);
            lua_rawseti(lua, -2, experts[r]);
        }
}

/* By window, each a prompt, and layer: how many tokens chose each expert that some did. And how many tokens
 * took a path through the decoder: all but a source's. */
static void set_prompts(lua_State *lua, const struct moec_profile *profile)
{
    uint64_t first = 0, end = 0, n_token = 0;
    lua_newtable(lua);
    for (uint32_t w = 0; w < profile->n_window && end < profile->n_trace_token; w++, first = end) {
        end = first + moec_profile_traced(profile, w);
        n_token += end - first - moec_profile_source(profile, w);
        lua_newtable(lua);
        for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
            lua_newtable(lua);
            for (uint64_t token = first; token < end && token < profile->n_trace_token; token++)
                count_experts(lua, profile, token, s);
            lua_rawseti(lua, -2, (lua_Integer)s + 1);
        }
        lua_rawseti(lua, -2, (lua_Integer)w + 1);
    }
    lua_setfield(lua, -2, "prompts");
    set_whole(lua, "n_token", n_token);
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
    set_expert_losses(lua, profile);
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

int paper_profile_charts(lua_State *lua)
{
    const struct moec_profile *profile = luaL_checkudata(lua, 1, HANDLE);
    size_t n_beginning = 0;
    const char *sample = luaL_checkstring(lua, 2), *beginning = luaL_checklstring(lua, 3, &n_beginning);
    struct moec_figures figures = {0};
    struct moec_error err = {0};
    lua_newtable(lua);
    enum moec_status status = moec_figures_make(profile, &figures, &err);
    for (uint32_t f = 0; f < figures.n; f++)
        for (uint32_t c = 0; c < figures.items[f].n_chart && status == MOEC_OK; c++) {
            struct moec_chart *chart = &figures.items[f].charts[c];
            if (strncmp(chart->name, beginning, n_beginning) != 0)
                continue;
            moec_figure_name(chart, "%s", lua_pushfstring(lua, "%s_%s", sample, chart->name));
            lua_pop(lua, 1);
            status = paper_push_chart(lua, chart, &err);
            lua_rawseti(lua, 4, (lua_Integer)lua_rawlen(lua, 4) + 1);
        }
    moec_figures_release(&figures);
    return status == MOEC_OK ? 1 : paper_fail(lua, &err);
}
