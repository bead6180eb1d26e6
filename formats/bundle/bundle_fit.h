/* What a bundle was fitted for (moec fit): a memory, a storage and a context, and the settings that were
 * foretold to be the fastest there. None of them changes a word: decisions have a section of their own.
 * Thread rule: reading from several threads is fine; writing: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_FIT_H
#define MOEC_FORMATS_BUNDLE_FIT_H

#include "formats/bundle/bundle_decisions.h"

#define MOEC_BUNDLE_FIT_NAME_BYTES 16u
#define MOEC_BUNDLE_FIT_BYTES      104u

struct moec_bundle_fit {
    uint64_t memory_bytes; /* --memory of moec-run; 0: the bundle was not fitted */
    uint64_t buffer_bytes; /* of the experts that it then keeps */
    uint32_t n_context;    /* tokens of the KV cache beside them */
    /* Storage: bytes a second, and the latency of a request. */
    uint64_t bytes_per_second, latency_ns;
    /* Mean time of a generated token, foretold: of this bundle, of what moec compile would have written, and
     * of this bundle with every expert in memory. */
    double token_ns, compiled_ns, resident_ns;
    char evict[MOEC_BUNDLE_FIT_NAME_BYTES], predict[MOEC_BUNDLE_FIT_NAME_BYTES]; /* policy, predictor */
};

static inline bool moec_bundle_fit_is_there(const struct moec_bundle_fit *fit)
{
    return fit->memory_bytes > 0;
}

/* Leaves `fit` all zero where the bundle has none. Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_fit(const struct moec_bundle *bundle,
                                                       struct moec_bundle_fit *fit, struct moec_error *err);

/* Writes to `out` the bundle at `path` with this fit, and with these decisions or, where it has none, with
 * this certificate of its bits; each may be NULL. The other sections keep their bytes, provenance but for a
 * note. Errors: as moec_bundle_strip. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_put_fit(const char *path, const struct moec_bundle_fit *fit,
                                                      const struct moec_bundle_decisions *decisions,
                                                      const struct moec_certificate *certificate,
                                                      const char *out, struct moec_error *err);

/* The section: encode writes MOEC_BUNDLE_FIT_BYTES. Errors: MOEC_ERR_FORMAT for another length, no memory,
 * times that are not finite or below 0, and names that are no words; MOEC_ERR_UNSUPPORTED for another
 * version. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_fit_encode(const struct moec_bundle_fit *fit, uint8_t *bytes,
                                                         struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_bundle_fit_decode(const uint8_t *bytes, size_t n_bytes,
                                                         struct moec_bundle_fit *fit, struct moec_error *err);

#endif
