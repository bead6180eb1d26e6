/* How dense weights come to memory: read whole, as the file's own pages, or with the embedding later, row by
 * row as tokens ask for it. Thread rule: one thread; what comes late, any. */
#ifndef MOEC_FORMATS_DENSE_LOADING_H
#define MOEC_FORMATS_DENSE_LOADING_H

#include "formats/bundle/bundle.h"

#define MOEC_LATE_MIN_BYTES ((uint64_t)4 << 20)

struct moec_dense_loading {
    /* Weights that are stored uncompressed at a page's start (moec strip --unpack) are those pages of the
     * file, under the conditions of moec_map_file; with `only_cached` only where the page cache has them. */
    bool maps, only_cached;
    /* Weights that are compressed leave out an embedding of MOEC_LATE_MIN_BYTES that is not the head too: a
     * text of n tokens asks for n of its rows at most, while every other matrix is read whole for the first
     * token. dense->late brings it from the bundle, which then outlives the weights, and takes
     * bundle->late_bytes beside the blob (0 where nothing is left out). Whether its floats are finite is up
     * to those who ask for it. */
    bool leaves_embedding;
};

/* As moec_bundle_load_dense. dense->mapped_bytes says whether weights were mapped. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_open_dense(const struct moec_bundle *bundle,
                                                         const struct moec_dense_loading *how,
                                                         struct moec_dense *dense, struct moec_error *err);

#endif
