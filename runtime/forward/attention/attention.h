/* Attention of one layer over the spans of a batch (part of runtime/forward/pass/forward.h). */
#ifndef MOEC_RUNTIME_ATTENTION_H
#define MOEC_RUNTIME_ATTENTION_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/span.h"

/* hidden += attention(norm(hidden)) for one layer, after the vectors of positions where the layer adds such;
 * writes each span's own keys and values. In a running layer what it has instead of attention, and its state.
 */
MOEC_WARN_UNUSED enum moec_status moec_forward_attention(const struct moec_forward *forward, uint32_t layer,
                                                         struct moec_batch batch, float *hidden,
                                                         struct moec_error *err);

/* Keys and values of one encoder layer for n_tok rows of `hidden`, (n_tok, moec_layer_kv_dim) each, whatever
 * the stride of `out`: for sources that are longer than a batch, whose rows can only attend once all have
 * keys. */
MOEC_WARN_UNUSED enum moec_status moec_forward_keys(const struct moec_forward *forward, uint32_t layer,
                                                    uint32_t n_tok, const float *hidden,
                                                    struct moec_kv_rows out, struct moec_error *err);

/* The same for what a decoder layer's cross attention reads: of n_tok rows of an encoded source. */
MOEC_WARN_UNUSED enum moec_status moec_forward_cross_keys(const struct moec_forward *forward, uint32_t layer,
                                                          uint32_t n_tok, const float *encoded,
                                                          struct moec_kv_rows out, struct moec_error *err);

/* hidden += cross attention(norm(hidden)) for a decoder layer, after its self attention; spans have a source.
 */
MOEC_WARN_UNUSED enum moec_status moec_forward_cross(const struct moec_forward *forward, uint32_t layer,
                                                     struct moec_batch batch, float *hidden,
                                                     struct moec_error *err);

#endif
