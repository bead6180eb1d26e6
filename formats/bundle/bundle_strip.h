/* Dropping precision copies from a bundle (D3): the other sections keep their bytes; only their offsets and
 * the contents table change. What the bundle computes, its certificate and the numbers of the remaining
 * copies stay; provenance says what was dropped. Thread rule: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_STRIP_H
#define MOEC_FORMATS_BUNDLE_STRIP_H

#include "formats/bundle/bundle.h"

struct moec_bundle_stripped {
    uint64_t before_bytes; /* of the files */
    uint64_t after_bytes;
    uint32_t n_copy;      /* copies that remain, the assignment included */
    bool drops_decisions; /* settings of decisions that take experts in a dropped copy went with it */
};

/* Writes to `out` the bundle at `path` without the precision copies of these bitwidths (n of them, each
 * once); `out` may be `path`. Everything that is kept is checked on the way (SHA-256). The records of the
 * compiled assignment always stay. Errors: MOEC_ERR_USAGE for a bitwidth without a precision copy, naming
 * those that are there, for one that is named twice, or nothing to drop; MOEC_ERR_LIMIT when provenance has
 * no room for the note; MOEC_ERR_CHECKSUM; those of opening and of the output. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_strip(const char *path, const uint32_t *bits, uint32_t n,
                                                    const char *out, struct moec_bundle_stripped *stripped,
                                                    struct moec_error *err);
/* The same, where n may be 0, and the dense weights are stored uncompressed at a page's start, so that they
 * can be mapped (formats/bundle/dense_loading.h): for a file that starts faster and may be larger. All of
 * them are in memory meanwhile. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_unpack(const char *path, const uint32_t *bits, uint32_t n,
                                                     const char *out, struct moec_bundle_stripped *stripped,
                                                     struct moec_error *err);

#endif
