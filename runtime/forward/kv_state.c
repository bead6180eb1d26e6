#include "runtime/forward/kv_state.h"

#include "formats/base/memory.h"

#include <string.h>

/* Floats of one row in layers first .. end - 1: keys and values. */
static uint64_t row_floats(const struct moec_config *config, uint32_t first, uint32_t end)
{
    uint64_t floats = 0;
    for (uint32_t layer = first; layer < end; layer++)
        floats += 2 * moec_layer_kv_dim(moec_config_layer(config, layer));
    return floats;
}

static uint64_t state_floats(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                             enum moec_kv_room room, uint64_t n_rows)
{
    uint64_t most = 0;
    if (room == MOEC_KV_EACH_LAYER)
        return n_rows * row_floats(config, first_layer, first_layer + n_layer);
    for (uint32_t layer = first_layer; layer < first_layer + n_layer; layer++) {
        const uint64_t floats = row_floats(config, layer, layer + 1);
        most = floats > most ? floats : most;
    }
    return n_rows * most;
}

uint64_t moec_kv_state_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                             enum moec_kv_room room, uint64_t n_rows)
{
    return state_floats(config, first_layer, n_layer, room, n_rows) * sizeof(float);
}

enum moec_status moec_kv_state_create(const struct moec_config *config, uint32_t first_layer,
                                      uint32_t n_layer, enum moec_kv_room room, uint64_t n_rows,
                                      const char *what, struct moec_kv_state *state, struct moec_error *err)
{
    *state = (struct moec_kv_state){
        .config = config, .first_layer = first_layer, .n_layer = n_layer, .room = room, .n_rows = n_rows};
    return moec_alloc((void **)&state->floats, state_floats(config, first_layer, n_layer, room, n_rows),
                      sizeof(float), what, err);
}

void moec_kv_state_release(struct moec_kv_state *state)
{
    free(state->floats);
    *state = (struct moec_kv_state){0};
}

struct moec_kv_rows moec_kv_state_rows(const struct moec_kv_state *state, uint32_t layer, uint64_t row)
{
    const size_t stride = moec_layer_kv_dim(moec_config_layer(state->config, layer));
    float *keys = state->floats;
    if (state->room == MOEC_KV_EACH_LAYER)
        keys += state->n_rows * row_floats(state->config, state->first_layer, layer);
    return (struct moec_kv_rows){
        .keys = keys + row * stride, .values = keys + (state->n_rows + row) * stride, .stride = stride};
}

struct moec_span moec_kv_state_span(const struct moec_kv_state *state, uint32_t layer, uint32_t first_row,
                                    uint32_t n_rows)
{
    const struct moec_kv_rows rows = moec_kv_state_rows(state, layer, 0);
    return (struct moec_span){.first_row = first_row,
                              .n_rows = n_rows,
                              .first_position = (uint32_t)state->length,
                              .k_prefix = rows.keys,
                              .v_prefix = rows.values,
                              .k_own = rows.keys + state->length * rows.stride,
                              .v_own = rows.values + state->length * rows.stride};
}

struct moec_span moec_kv_state_source_span(const struct moec_kv_state *state, uint32_t layer,
                                           uint32_t first_row, uint32_t n_rows)
{
    const struct moec_kv_rows rows = moec_kv_state_rows(state, layer, 0);
    return (struct moec_span){.first_row = first_row,
                              .n_rows = n_rows,
                              .n_source = (uint32_t)state->length,
                              .k_prefix = rows.keys,
                              .v_prefix = rows.values};
}

void moec_kv_state_append(struct moec_kv_state *state, uint64_t n)
{
    state->length += n;
}

void moec_kv_state_truncate(struct moec_kv_state *state, uint64_t n)
{
    if (n < state->length)
        state->length = n;
}

void moec_kv_state_copy(struct moec_kv_state *to, const struct moec_kv_state *from, uint64_t shared)
{
    const uint32_t end = from->first_layer + from->n_layer;
    for (uint32_t layer = from->first_layer; layer < end && shared < from->length; layer++) {
        const struct moec_kv_rows source = moec_kv_state_rows(from, layer, shared);
        const struct moec_kv_rows copy = moec_kv_state_rows(to, layer, shared);
        const size_t n_bytes = (from->length - shared) * source.stride * sizeof(float);
        memcpy(copy.keys, source.keys, n_bytes);
        memcpy(copy.values, source.values, n_bytes);
    }
    to->length = from->length;
}
