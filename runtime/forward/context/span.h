/* Rows of a batch that belong to one sequence, with what layers keep of its past. Thread rule: plain data. */
#ifndef MOEC_RUNTIME_SPAN_H
#define MOEC_RUNTIME_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows first_row .. first_row + n_rows - 1 of the batch are positions first_position .. of one sequence. Keys
 * and values of one layer: rows of moec_layer_kv_room floats, position-major. Positions before first_position
 * are read from k_prefix/v_prefix (row 0 = position 0; NULL when first_position is 0), those of the span are
 * written to and read from k_own/v_own (row 0 = first_position). moec_kv_state_span makes own directly follow
 * the prefix.
 *
 * A row of a decoder layer sees the positions before it and itself; one of an encoder layer sees the whole
 * source, so there a span holds all of it, from position 0 on. If n_source is not 0, k_prefix and v_prefix
 * already hold the keys and values of a source of that many positions, made by moec_forward_keys or
 * moec_forward_cross_keys: rows see all of them, none are written, and k_own and v_own are ignored. In one
 * call, either all spans have a source or none has.
 *
 * A running layer (runtime/forward/attention/running.h) uses none of these: it begins with state.in, which has
 * passed first_position positions (NULL where these are 0), and leaves what it ends with in state.out (NULL:
 * nowhere), which may be the same. What it has after the span's first n_before_copy rows (fewer than n_rows)
 * goes to state.copy too, unless that is NULL. */
struct moec_span_keys {
    const float *k_prefix;
    const float *v_prefix;
    float *k_own;
    float *v_own;
    bool forgets_own; /* nobody reads k_own and v_own after the layer: they may stay unwritten */
};

struct moec_span_state {
    const float *in;
    float *out;
    float *copy;
    uint32_t n_before_copy;
};

struct moec_span {
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t first_position;
    uint32_t n_source; /* encoder layers and cross attention; 0 = the rows' own keys */
    struct moec_span_keys keys;
    struct moec_span_state state;
};

/* What passes an attention together: n_tok rows of hidden states, and the spans that they belong to. */
struct moec_batch {
    const struct moec_span *spans; /* (n_spans) */
    uint32_t n_spans;
    uint32_t n_tok;
};

/* Keys and values of one layer from some row on; the next row's are `stride` floats (of memory) further. */
struct moec_kv_rows {
    float *keys, *values;
    size_t stride;
};

#endif
