/* Packing: encodes every expert of a checkpoint in its codecs and writes the bundle. Experts are read,
 * encoded and appended a few at a time, on all threads; only those few are in memory. */
#ifndef MOEC_COMPILER_PACK_H
#define MOEC_COMPILER_PACK_H

#include "formats/bundle/bundle_writer.h"
#include "formats/checkpoint/expert_encoder.h"

/* Who is told of experts that are packed. */
struct moec_pack_progress {
    bool (*report)(void *context, uint64_t done, uint64_t total); /* false stops the work */
    void *context;
    uint64_t total; /* experts */
};

/* Appends every record that the writer asks for, made by `encoder` (NULL: the checkpoint's own), until it has
 * all. `progress` may be NULL.
 * The caller keeps the writer, also on failure. Errors: MOEC_ERR_CANCELLED when `progress` stops it,
 * those of every part. */
MOEC_WARN_UNUSED enum moec_status moec_pack_records(const struct moec_checkpoint *checkpoint,
                                                    const struct moec_expert_encoder *encoder,
                                                    struct moec_bundle_writer *writer, int n_threads,
                                                    const struct moec_pack_progress *progress,
                                                    struct moec_error *err);

#endif
