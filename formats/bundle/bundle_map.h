/* Dense weights that are the file's own pages. Thread rule: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_MAP_H
#define MOEC_FORMATS_BUNDLE_MAP_H

#include "formats/bundle/bundle.h"

/* As moec_bundle_load_dense, but where the weights are stored uncompressed at a page's start (moec strip
 * --unpack) the blob is those pages of the file, under the conditions of moec_map_file; with `only_cached`
 * only where the page cache has them. dense->mapped_bytes says whether they were mapped. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_map_dense(const struct moec_bundle *bundle, bool only_cached,
                                                        struct moec_dense *dense, struct moec_error *err);

#endif
