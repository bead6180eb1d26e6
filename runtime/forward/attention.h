/* Attention of one layer over the spans of a batch (part of runtime/forward/forward.h). */
#ifndef MOEC_RUNTIME_ATTENTION_H
#define MOEC_RUNTIME_ATTENTION_H

#include "runtime/forward/context.h"

/* Rows first_row .. first_row + n_rows - 1 of the batch are positions first_position .. of one sequence.
 * Keys and values of one layer: rows of n_kv_head * head_dim floats, position-major. Positions before
 * first_position are read from k_prefix/v_prefix (row 0 = position 0; NULL when first_position is 0), those
 * of the span are written to and read from k_own/v_own (row 0 = first_position). A session points own right
 * behind its prefix.
 *
 * A row of a decoder layer sees the positions before it and itself; one of an encoder layer sees the whole
 * source, so there a span holds all of it, from position 0 on. Where n_source is not 0, the keys and values
 * of a source of so many positions are in k_prefix and v_prefix already, made by moec_forward_keys or
 * moec_forward_cross_keys: rows see all of them, none are written, and own is not looked at. Spans of one
 * call are alike in that. */
struct moec_span {
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t first_position;
    uint32_t n_source; /* encoder layers and cross attention; 0 = the rows' own keys */
    const float *k_prefix;
    const float *v_prefix;
    float *k_own;
    float *v_own;
};

/* hidden += attention(norm(hidden)) for one layer; writes each span's own keys and values. */
MOEC_WARN_UNUSED enum moec_status moec_forward_attention(const struct moec_forward *forward, uint32_t layer,
                                                         const struct moec_span *spans, uint32_t n_spans,
                                                         uint32_t n_tok, float *hidden,
                                                         struct moec_error *err);

/* Keys and values of one encoder layer for n_tok rows of `hidden`, (n_tok, n_kv_head * head_dim) each: for
 * sources that are longer than a batch, whose rows can only attend once all have keys. */
MOEC_WARN_UNUSED enum moec_status moec_forward_keys(const struct moec_forward *forward, uint32_t layer,
                                                    uint32_t n_tok, const float *hidden, float *keys,
                                                    float *values, struct moec_error *err);

/* Keys and values that a decoder layer's cross attention reads, for n_tok rows of an encoded source. */
MOEC_WARN_UNUSED enum moec_status moec_forward_cross_keys(const struct moec_forward *forward, uint32_t layer,
                                                          uint32_t n_tok, const float *encoded, float *keys,
                                                          float *values, struct moec_error *err);

/* hidden += cross attention(norm(hidden)) for a decoder layer, after its self attention; spans have a source.
 */
MOEC_WARN_UNUSED enum moec_status moec_forward_cross(const struct moec_forward *forward, uint32_t layer,
                                                     const struct moec_span *spans, uint32_t n_spans,
                                                     uint32_t n_tok, float *hidden, struct moec_error *err);

#endif
