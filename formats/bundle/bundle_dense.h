/* Dense weights as a section of a bundle: compressed pieces, written in order without holding all of them.
 *
 * Pieces are cut every MOEC_PIECE_BYTES, or by runs: then a piece begins at each dense matrix that plans have
 * a codec for and after it, so that the stored bytes of a matrix depend on its own codec alone, and the size
 * of a section is the sum over its runs. Thread rule: pure functions but for the source of the weights. */
#ifndef MOEC_FORMATS_BUNDLE_DENSE_H
#define MOEC_FORMATS_BUNDLE_DENSE_H

#include "formats/bundle/bundle_format.h"

/* Entries of the run that begins at entry `first`, which is a matrix alone, or everything up to the next one.
 */
uint32_t moec_bundle_dense_run(const struct moec_dense *dense, uint32_t first);

/* Encodes all of it for `sink`. Errors: those of the source and the sink. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_dense_encode(const struct moec_dense *dense, bool is_cut,
                                                           moec_section_sink *sink, void *context,
                                                           struct moec_error *err);

/* Stored bytes of the run that begins at entry `first`; encodes it to learn them. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_dense_run_bytes(const struct moec_dense *dense, uint32_t first,
                                                              uint64_t *stored_bytes, struct moec_error *err);

#endif
