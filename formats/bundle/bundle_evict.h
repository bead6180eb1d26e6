/* Weights of HOBBIT's eviction (arXiv:2411.01433, eq. 3) that a bundle keeps: those with which a simulated
 * buffer lost the least time by misses. They change no word. Thread rule: reading from several threads is
 * fine; writing: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_EVICT_H
#define MOEC_FORMATS_BUNDLE_EVICT_H

#include "formats/bundle/bundle.h"

#define MOEC_BUNDLE_EVICT_WEIGHTS                                                                            \
    4u /* in the order of enum moec_evict_weight (runtime/policy/evict/evict.h) */
#define MOEC_BUNDLE_EVICT_BYTES 48u

struct moec_bundle_evict {
    float weights[MOEC_BUNDLE_EVICT_WEIGHTS]; /* that sum to 1; all 0: the bundle has none */
    uint64_t buffer_bytes;                    /* of experts, for which they were found */
    /* Time that a decoded token then lost by misses, with them and with recency alone. */
    double lost_ns, lost_by_lru_ns;
};

static inline bool moec_bundle_evict_is_there(const struct moec_bundle_evict *evict)
{
    return evict->buffer_bytes > 0;
}

/* Leaves `evict` all zero where the bundle has none. Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_evict(const struct moec_bundle *bundle,
                                                         struct moec_bundle_evict *evict,
                                                         struct moec_error *err);

/* Writes to `out` the bundle at `path` with these in place of those that it may have; `out` may be `path`.
 * The other sections keep their bytes, provenance but for a note. Errors: as moec_bundle_strip. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_put_evict(const char *path,
                                                        const struct moec_bundle_evict *evict,
                                                        const char *out, struct moec_error *err);

/* The section: encode writes MOEC_BUNDLE_EVICT_BYTES. Errors: MOEC_ERR_FORMAT for another length, weights
 * that are negative or do not sum to 1, no buffer and times below 0; MOEC_ERR_UNSUPPORTED for another
 * version. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_evict_encode(const struct moec_bundle_evict *evict,
                                                           uint8_t *bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_bundle_evict_decode(const uint8_t *bytes, size_t n_bytes,
                                                           struct moec_bundle_evict *evict,
                                                           struct moec_error *err);

#endif
