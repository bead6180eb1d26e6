/* Streaming in order: every expert of every MoE layer is read, layer after layer, and wraps from the last
 * layer to the first one of the next token (of the decoder, where a source is encoded before it: then reading
 * starts again with the encoder's first layer for each input). STI (Guo et al., 2023) as EdgeMoE's evaluation
 * compares with it (IV-A): it does not distinguish the experts that a token needs from others, and has a
 * preload buffer of the same size.
 *
 *     the ring, in the order of reading:
 *        tail                    decided                          head
 *     ....| needed, held | not needed: dropped | read ahead of the router |.... free
 *
 * Reading runs ahead as far as the buffer has room. When a router answers, its layer is decided: what it does
 * not need is dropped once it has been read, what it needs is dropped when it is released. Reads continue in
 * order whether a record is needed or not. Every read is checked; one that fails is tried again into the same
 * place, as often as the cache tries (MOEC_RECORD_TRIES), unless its router has answered and does not need
 * it.
 *
 * The source serves one session. Records are held together only as far as they are there already
 * (moec_experts_ops.ready): an acquire that waits while others are held may wait for room that they take.
 * Thread rule: the operations of struct moec_experts from the session's thread, counters from any; one thread
 * of its own reads. */
#ifndef MOEC_RUNTIME_EXPERT_STREAM_H
#define MOEC_RUNTIME_EXPERT_STREAM_H

#include "runtime/experts/expert_cache.h"
#include "runtime/seam/experts.h"
#include "runtime/storage/record_reader.h"
#include "runtime/trace/trace.h"

struct moec_expert_stream;

struct moec_expert_stream_options {
    uint64_t buffer_bytes; /* more than all records need is not allocated */
    uint32_t copy;
    struct moec_record_io io;
    struct moec_trace *trace; /* borrowed until freed, or NULL */
};

/* Bytes beside the buffer, for a budget: tables, reader, the thread's stack. */
uint64_t moec_expert_stream_table_bytes(const struct moec_bundle *bundle, const struct moec_record_io *io);

/* Starts reading. The bundle is borrowed until freed. Errors: MOEC_ERR_BUDGET when the buffer holds less than
 * the largest record, MOEC_ERR_USAGE for a copy that is not there, those of moec_record_reader_create. */
MOEC_WARN_UNUSED enum moec_status moec_expert_stream_create(const struct moec_bundle *bundle,
                                                            const struct moec_expert_stream_options *options,
                                                            struct moec_expert_stream **out,
                                                            struct moec_error *err);
/* Every record must have been released. NULL-safe. */
void moec_expert_stream_free(struct moec_expert_stream *stream);

/* The source to give to moec_forward_init; borrowed until the stream is freed. */
struct moec_experts *moec_expert_stream_experts(struct moec_expert_stream *stream);

uint64_t moec_expert_stream_buffer_bytes(const struct moec_expert_stream *stream);
/* How storage is read (struct moec_reader). */
const char *moec_expert_stream_io(const struct moec_expert_stream *stream);

/* Of one MoE layer (ordinal) since creation. A record that was asked for before its router answered is a
 * preload: useful when it was needed, wasted when not. */
struct moec_cache_counters moec_expert_stream_layer_counters(struct moec_expert_stream *stream,
                                                             uint32_t ordinal);

#endif
