/* One block of memory: rows of each layer one after the other, then the running states, then the copies of
 * those. Running states stand at running.length and cannot go back by themselves. Going back to n takes the
 * latest copy that is not past n, else the beginning, and copies past n are void. */
#include "runtime/forward/attention/kv_state.h"

#include "formats/base/mapped_memory.h"
#include "runtime/forward/context/backend.h"
#include "runtime/forward/context/running_row.h"

#include <string.h>

/* The first is the default. */
static const struct {
    const char *name;
    struct moec_codec codec;
} ways[] = {
    {"f32", {.dtype = MOEC_DTYPE_F32}},
    {"f16", {.dtype = MOEC_DTYPE_F16}},
    {"int8", {.dtype = MOEC_DTYPE_INT8, .scheme = MOEC_SCHEME_SYMMETRIC, .group = MOEC_CODEC_BLOCK}},
};
#define N_WAYS (sizeof ways / sizeof *ways)

enum moec_status moec_kv_read(const char *name, struct moec_codec *kv, struct moec_error *err)
{
    *kv = ways[0].codec;
    if (name == NULL)
        return MOEC_OK;
    for (size_t i = 0; i < N_WAYS; i++) {
        *kv = ways[i].codec;
        if (strcmp(name, ways[i].name) == 0)
            return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "unknown type '%s' of keys and values, expected 'f32', 'f16' or 'int8'", name);
}

const char *moec_kv_name(const struct moec_config *config)
{
    size_t way = 0;
    for (uint32_t i = 0; i < config->n_kind; i++)
        while (moec_layer_rounds_kv(&config->kinds[i]) && config->kinds[i].kv.dtype != ways[way].codec.dtype)
            way++;
    return ways[way].name;
}

/* Floats of n_rows rows of a layer: keys and values. */
static uint64_t rows_floats(const struct moec_layer_kind *kind, uint64_t n_rows)
{
    return (moec_layer_has_values(kind) ? 2 : 1) * n_rows * moec_layer_kv_room(kind);
}

/* Floats of n_rows rows in layers first .. end - 1: keys and values, or running states. */
static uint64_t layer_floats(const struct moec_config *config, uint32_t first, uint32_t end, uint64_t n_rows)
{
    uint64_t floats = 0;
    for (uint32_t layer = first; layer < end; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, layer);
        floats += moec_layer_is_running(kind) ? moec_running_floats(kind) : rows_floats(kind, n_rows);
    }
    return floats;
}

/* Floats of all running states. */
static uint64_t running_floats(const struct moec_config *config, uint32_t first, uint32_t end)
{
    return layer_floats(config, first, end, 0);
}

static uint64_t state_floats(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                             enum moec_kv_room room, uint64_t n_rows)
{
    const uint32_t end = first_layer + n_layer;
    uint64_t most = 0;
    if (room != MOEC_KV_ONE_LAYER)
        return layer_floats(config, first_layer, end, n_rows) +
               (room == MOEC_KV_REWINDABLE ? MOEC_KV_COPIES : 0) * running_floats(config, first_layer, end);
    for (uint32_t layer = first_layer; layer < end; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, layer);
        const uint64_t floats = moec_layer_is_running(kind) ? 0 : rows_floats(kind, n_rows);
        most = floats > most ? floats : most;
    }
    return most;
}

uint64_t moec_kv_state_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                             enum moec_kv_room room, uint64_t n_rows)
{
    return state_floats(config, first_layer, n_layer, room, n_rows) * sizeof(float);
}

/* Rows of keys, and of values, stand one behind the other: each layer's begin somewhere in a page. */
static uint64_t filled_row_bytes(const struct moec_layer_kind *kind, uint64_t n_filled)
{
    const uint64_t n_bytes = n_filled * moec_layer_kv_room(kind) * sizeof(float);
    const uint64_t pages = (n_bytes + MOEC_PAGE_BYTES - 1) / MOEC_PAGE_BYTES + 1;
    return (moec_layer_has_values(kind) ? 2 : 1) * pages * MOEC_PAGE_BYTES;
}

uint64_t moec_kv_state_filled_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                                    enum moec_kv_room room, uint64_t n_rows, uint64_t n_filled)
{
    const uint64_t all = moec_kv_state_bytes(config, first_layer, n_layer, room, n_rows);
    uint64_t filled = moec_kv_state_bytes(config, first_layer, n_layer, room, 0);
    if (n_filled == 0)
        return 0;
    for (uint32_t layer = first_layer; layer < first_layer + n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, layer);
        filled += moec_layer_attends(kind) ? filled_row_bytes(kind, n_filled) : 0;
    }
    return filled < all && n_filled < n_rows ? filled : all;
}

uint64_t moec_kv_state_row_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                                 enum moec_kv_room room)
{
    return moec_kv_state_bytes(config, first_layer, n_layer, room, 1) -
           moec_kv_state_bytes(config, first_layer, n_layer, room, 0);
}

enum moec_status moec_kv_state_create(const struct moec_config *config, struct moec_kv_layers layers,
                                      const char *what, struct moec_kv_state *state, struct moec_error *err)
{
    return moec_kv_state_create_on(NULL, config, layers, what, state, err);
}

enum moec_status moec_kv_state_create_on(struct moec_backend *backend, const struct moec_config *config,
                                         struct moec_kv_layers layers, const char *what,
                                         struct moec_kv_state *state, struct moec_error *err)
{
    const uint32_t first = layers.first_layer, end = first + layers.n_layer;
    *state = (struct moec_kv_state){.config = config,
                                    .layers = {.first_layer = first,
                                               .n_layer = layers.n_layer,
                                               .room = layers.room,
                                               .n_rows = layers.n_rows},
                                    .backend = backend};
    state->running.exists = layers.room != MOEC_KV_ONE_LAYER && running_floats(config, first, end) > 0;
    state->n_bytes = moec_kv_state_bytes(config, first, layers.n_layer, layers.room, layers.n_rows);
    if (backend != NULL && state->n_bytes > 0)
        return backend->ops->alloc(backend, state->n_bytes, what, (void **)&state->floats, err);
    return moec_map_memory((void **)&state->floats, state->n_bytes, what, err);
}

void moec_kv_state_release(struct moec_kv_state *state)
{
    if (state->backend != NULL)
        state->backend->ops->free(state->backend, state->floats);
    else
        moec_unmap_memory(state->floats, state->n_bytes);
    *state = (struct moec_kv_state){0};
}

/* What a layer with its own rows begins with. */
static float *floats_of(const struct moec_kv_state *state, uint32_t layer)
{
    return state->floats +
           layer_floats(state->config, state->layers.first_layer, layer, state->layers.n_rows);
}

/* Running states of all layers stand in a copy one behind the other. */
static float *copy_of(const struct moec_kv_state *state, uint32_t copy, uint32_t layer)
{
    const uint32_t end = state->layers.first_layer + state->layers.n_layer;
    return state->floats + layer_floats(state->config, state->layers.first_layer, end, state->layers.n_rows) +
           copy * running_floats(state->config, state->layers.first_layer, end) +
           running_floats(state->config, state->layers.first_layer, layer);
}

/* Two threads of a Xeon of 2024 read keys and values of 3,700 positions, in F16, at 28 GB/s in place of 20.
 * Each layer's keys, or values, that take less than this when full are in small pages: for a few positions
 * they would take more memory than many need. */
#define LEAST_HUGE_BYTES (2 * MOEC_HUGE_PAGE_BYTES)

void moec_kv_state_take_huge_pages(struct moec_kv_state *state)
{
    if (state->backend != NULL || state->layers.room == MOEC_KV_ONE_LAYER)
        return;
    for (uint32_t layer = state->layers.first_layer;
         layer < state->layers.first_layer + state->layers.n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(state->config, layer);
        const uint64_t all =
            moec_layer_attends(kind) ? rows_floats(kind, state->layers.n_rows) * sizeof(float) : 0;
        const uint64_t piece = moec_layer_has_values(kind) ? all / 2 : all;
        const uint64_t begin = (uint64_t)(floats_of(state, layer) - state->floats) * sizeof(float);
        for (uint64_t at = begin; piece >= LEAST_HUGE_BYTES && at < begin + all; at += piece)
            moec_welcome_huge_pages(state->floats, at, at + piece);
    }
}

static uint32_t next_copy(const struct moec_kv_state *state)
{
    return state->running.copied_length[0] == 0 ? 0 : 1;
}

/* Whether the next n positions begin where a copy is to be made, or go past it. */
static bool passes_copy(const struct moec_kv_state *state, uint64_t n)
{
    return state->running.copy_at > 0 && state->running.copy_at >= state->length &&
           state->running.copy_at - state->length < n;
}

struct moec_kv_rows moec_kv_state_rows(const struct moec_kv_state *state, uint32_t layer, uint64_t row)
{
    const struct moec_layer_kind *kind = moec_config_layer(state->config, layer);
    const size_t stride = moec_layer_is_running(kind) ? 0 : moec_layer_kv_room(kind);
    float *keys = state->layers.room == MOEC_KV_ONE_LAYER ? state->floats : floats_of(state, layer);
    const uint64_t first_value = moec_layer_has_values(kind) ? state->layers.n_rows * stride : 0;
    return (struct moec_kv_rows){
        .keys = keys + row * stride, .values = keys + first_value + row * stride, .stride = stride};
}

struct moec_span moec_kv_state_span(const struct moec_kv_state *state, uint32_t layer, uint32_t first_row,
                                    uint32_t n_rows)
{
    const struct moec_kv_rows rows = moec_kv_state_rows(state, layer, 0);
    struct moec_span span = {.first_row = first_row,
                             .n_rows = n_rows,
                             .first_position = (uint32_t)state->length,
                             .keys = {.k_prefix = rows.keys,
                                      .v_prefix = rows.values,
                                      .k_own = rows.keys + state->length * rows.stride,
                                      .v_own = rows.values + state->length * rows.stride}};
    if (state->running.exists && rows.stride == 0) {
        span.state.out = rows.keys;
        span.state.in = state->length > 0 ? rows.keys : NULL;
        span.state.copy = passes_copy(state, n_rows) ? copy_of(state, next_copy(state), layer) : NULL;
        span.state.n_before_copy =
            (uint32_t)(span.state.copy != NULL ? state->running.copy_at - state->length : 0);
    }
    return span;
}

struct moec_span moec_kv_state_source_span(const struct moec_kv_state *state, uint32_t layer,
                                           uint32_t first_row, uint32_t n_rows)
{
    const struct moec_kv_rows rows = moec_kv_state_rows(state, layer, 0);
    return (struct moec_span){.first_row = first_row,
                              .n_rows = n_rows,
                              .n_source = (uint32_t)state->length,
                              .keys = {.k_prefix = rows.keys, .v_prefix = rows.values}};
}

void moec_kv_state_append(struct moec_kv_state *state, uint64_t n)
{
    if (passes_copy(state, n)) {
        state->running.copied_length[next_copy(state)] = state->running.copy_at;
        state->running.copy_at = 0;
    }
    state->length += n;
    state->running.length = state->length;
}

/* Both are of one memory. */
static void copy_rows(const struct moec_kv_state *state, float *to, const float *from, size_t n_bytes)
{
    if (state->backend != NULL)
        state->backend->ops->copy(state->backend, to, from, n_bytes);
    else
        memcpy(to, from, n_bytes);
}

/* ---- going back ---- */

void moec_kv_state_keep(struct moec_kv_state *state, uint64_t n)
{
    state->running.copy_at = 0;
    if (!state->running.exists || state->layers.room != MOEC_KV_REWINDABLE ||
        n == state->running.copied_length[0] || n == state->running.copied_length[1])
        return;
    state->running.copy_at = n;
    state->running.copied_length[next_copy(state)] = 0;
}

/* Running states go back to a copy that has passed at most n positions, or to the beginning; copies past n
 * are of no more use. */
static void go_back(struct moec_kv_state *state, uint64_t n)
{
    uint32_t best = MOEC_KV_COPIES;
    state->running.length = 0;
    for (uint32_t i = 0; i < MOEC_KV_COPIES; i++) {
        if (state->running.copied_length[i] > n)
            state->running.copied_length[i] = 0;
        if (state->running.copied_length[i] > state->running.length) {
            best = i;
            state->running.length = state->running.copied_length[i];
        }
    }
    for (uint32_t layer = state->layers.first_layer;
         best < MOEC_KV_COPIES && layer < state->layers.first_layer + state->layers.n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(state->config, layer);
        if (moec_layer_is_running(kind))
            copy_rows(state, floats_of(state, layer), copy_of(state, best, layer),
                      moec_running_floats(kind) * sizeof(float));
    }
}

void moec_kv_state_truncate(struct moec_kv_state *state, uint64_t n)
{
    if (n >= state->length)
        return;
    state->length = n;
    if (!state->running.exists)
        state->running.length = n;
    else if (state->running.length > n)
        go_back(state, n);
}

void moec_kv_state_rewind(struct moec_kv_state *state)
{
    state->length = state->running.length;
}

void moec_kv_state_recover(struct moec_kv_state *state, uint64_t n)
{
    state->length = n;
    state->running.length = n;
    state->running.copy_at = 0;
    if (state->running.exists)
        go_back(state, n);
}

/* ---- copying ---- */

void moec_kv_state_copy(struct moec_kv_state *to, const struct moec_kv_state *from, uint64_t shared)
{
    const uint32_t end = from->layers.first_layer + from->layers.n_layer;
    for (uint32_t layer = from->layers.first_layer; layer < end && shared < from->length; layer++) {
        const struct moec_kv_rows source = moec_kv_state_rows(from, layer, shared);
        const struct moec_kv_rows copy = moec_kv_state_rows(to, layer, shared);
        const size_t n_bytes = (from->length - shared) * source.stride * sizeof(float);
        copy_rows(to, copy.keys, source.keys, n_bytes);
        if (source.values != source.keys)
            copy_rows(to, copy.values, source.values, n_bytes);
    }
    to->length = from->length;
    to->running.length = from->running.length;
    to->running.copy_at = 0;
    for (uint32_t i = 0; i < MOEC_KV_COPIES; i++)
        if (to->running.copied_length[i] > shared)
            to->running.copied_length[i] = 0;
    for (uint32_t layer = from->layers.first_layer; from->running.exists && layer < end; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(from->config, layer);
        if (moec_layer_is_running(kind) && from->running.length > 0)
            copy_rows(to, floats_of(to, layer), floats_of(from, layer),
                      moec_running_floats(kind) * sizeof(float));
    }
}
