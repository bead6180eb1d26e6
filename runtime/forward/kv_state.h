/* KV state: the keys and values that layers keep for the positions of one sequence, or for the rows of a
 * batch of many (D10). All code that holds them asks here for their size and place, because both depend on
 * the layer: kinds of layers differ in heads and head dimension.
 *
 * Full and sliding-window attention both keep every position: a layer's keys (n_rows, kv_dim) are contiguous
 * and its values follow them, layer after layer, so a span's own rows directly follow its prefix. A layer
 * with a window reads only the last positions. Thread rule: one thread at a time. */
#ifndef MOEC_RUNTIME_KV_STATE_H
#define MOEC_RUNTIME_KV_STATE_H

#include "formats/model/config.h"
#include "runtime/forward/span.h"

enum moec_kv_room {
    MOEC_KV_EACH_LAYER, /* every layer has its own rows */
    MOEC_KV_ONE_LAYER,  /* there is one set of rows, which each layer overwrites in turn */
};

struct moec_kv_state {
    const struct moec_config *config; /* borrowed */
    uint32_t first_layer, n_layer;    /* whose rows it holds */
    enum moec_kv_room room;
    uint64_t n_rows; /* room, in positions */
    uint64_t length; /* positions that are filled, from 0 on */
    float *floats;   /* owned */
};

/* Keys and values of one layer from some row on; the next row's are `stride` floats further. */
struct moec_kv_rows {
    float *keys, *values;
    size_t stride;
};

/* Bytes for n_rows positions in layers first_layer .. first_layer + n_layer - 1. */
uint64_t moec_kv_state_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                             enum moec_kv_room room, uint64_t n_rows);

/* Creates an empty state. Its memory is first touched when rows are written. `what` names it in messages. */
MOEC_WARN_UNUSED enum moec_status moec_kv_state_create(const struct moec_config *config, uint32_t first_layer,
                                                       uint32_t n_layer, enum moec_kv_room room,
                                                       uint64_t n_rows, const char *what,
                                                       struct moec_kv_state *state, struct moec_error *err);
/* A zeroed struct is allowed. */
void moec_kv_state_release(struct moec_kv_state *state);

/* Where row `row` (< n_rows) of a layer stands. */
struct moec_kv_rows moec_kv_state_rows(const struct moec_kv_state *state, uint32_t layer, uint64_t row);

/* The next n_rows positions of the sequence, as rows first_row.. of a batch: attention writes their keys and
 * values; moec_kv_state_append counts them once every layer has. */
struct moec_span moec_kv_state_span(const struct moec_kv_state *state, uint32_t layer, uint32_t first_row,
                                    uint32_t n_rows);
/* Rows of a batch that attend to all positions of the state, as to a source. */
struct moec_span moec_kv_state_source_span(const struct moec_kv_state *state, uint32_t layer,
                                           uint32_t first_row, uint32_t n_rows);

/* Counts n more positions as filled; there must be room for them. */
void moec_kv_state_append(struct moec_kv_state *state, uint64_t n);
/* Forgets all positions from n on. */
void moec_kv_state_truncate(struct moec_kv_state *state, uint64_t n);
/* Copies what `from` holds to `to`, which has the same layers and room for from's positions. Both already
 * hold the same before position `shared`. In both, each layer has its own rows (MOEC_KV_EACH_LAYER). */
void moec_kv_state_copy(struct moec_kv_state *to, const struct moec_kv_state *from, uint64_t shared);

#endif
