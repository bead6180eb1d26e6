/* How dense weights come to memory: read whole, as the file's own pages, or with the embedding later, row by
 * row as tokens ask for it. Thread rule: one thread; what comes late, any. */
#ifndef MOEC_FORMATS_DENSE_LOADING_H
#define MOEC_FORMATS_DENSE_LOADING_H

#include "formats/bundle/bundle.h"

struct moec_dense_loading {
    /* Weights that are stored uncompressed at a page's start (moec strip --unpack) are those pages of the
     * file, under the conditions of moec_map_file; with `only_cached` only where the page cache has them. */
    bool maps, only_cached;
    /* What is not mapped leaves out moec_bundle_late_bytes' part: dense->late brings it from the bundle,
     * which then outlives the weights. Whether floats of that part are finite is up to those who ask for it.
     */
    bool leaves_embedding;
};

/* As moec_bundle_load_dense. dense->mapped_bytes says whether weights were mapped. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_open_dense(const struct moec_bundle *bundle,
                                                         const struct moec_dense_loading *how,
                                                         struct moec_dense *dense, struct moec_error *err);

/* What bringing the embedding late takes beside the blob; 0 where it is loaded with the rest: one that is the
 * head too, or less than MOEC_LATE_MIN_BYTES. A text of n tokens asks for n of its rows at most, while every
 * other matrix is read whole for the first token. */
#define MOEC_LATE_MIN_BYTES ((uint64_t)4 << 20)
uint64_t moec_bundle_late_bytes(const struct moec_bundle *bundle);

#endif
