/* Dense weights of a model that is too large to be resident, layer by layer (internal to runtime/; the seam
 * is moec_model_acquire_layer in model.h).
 *
 * A unit is what is read at once: the matrices of one layer, or a block of rows of the head. Units are kept
 * until others need the room; the least recently used one goes first, so that a sweep which takes many
 * batches through a layer reads it once, and a model whose units all fit is read once in all. What is held is
 * never dropped: while several are held, they may exceed the room together. Thread rule: any thread (one lock
 * inside; loading happens under it). */
#ifndef MOEC_RUNTIME_MODEL_STREAM_H
#define MOEC_RUNTIME_MODEL_STREAM_H

#include "runtime/forward/weights/layer_weights.h"

struct moec_model_stream;

/* Bytes of the largest layer's matrices, or of the smallest useful block of the head. */
uint64_t moec_model_stream_floor(const struct moec_config *config, const struct moec_dense *dense);

/* All but keep_bytes is borrowed until free. `dense` has a source; vectors and routers of `layers` (n_layer)
 * are bound. */
MOEC_WARN_UNUSED enum moec_status
moec_model_stream_create(const struct moec_config *config, const struct moec_dense *dense,
                         const struct moec_layer *layers, uint64_t keep_bytes, struct moec_model_stream **out,
                         struct moec_error *err);
void moec_model_stream_free(struct moec_model_stream *stream);

MOEC_WARN_UNUSED enum moec_status moec_model_stream_layer(struct moec_model_stream *stream, uint32_t layer,
                                                          const struct moec_layer **out,
                                                          struct moec_error *err);
void moec_model_stream_release_layer(struct moec_model_stream *stream, uint32_t layer);

/* The block of head rows that `first_row` begins. */
MOEC_WARN_UNUSED enum moec_status moec_model_stream_head(struct moec_model_stream *stream, uint32_t first_row,
                                                         struct moec_matrix *rows, struct moec_error *err);
void moec_model_stream_release_head(struct moec_model_stream *stream, uint32_t first_row);

/* One encoded row of the embedding. */
MOEC_WARN_UNUSED enum moec_status moec_model_stream_embedding(struct moec_model_stream *stream,
                                                              uint32_t token, uint8_t *row,
                                                              struct moec_error *err);

/* Bytes that units take at most at once. */
uint64_t moec_model_stream_bytes(const struct moec_model_stream *stream);

#endif
