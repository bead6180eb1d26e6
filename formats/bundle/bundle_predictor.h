/* The learned predictor of a bundle: reading it, and putting one into a bundle that exists. Thread rule:
 * reading from several threads is fine; writing: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_PREDICTOR_H
#define MOEC_FORMATS_BUNDLE_PREDICTOR_H

#include "formats/bundle/bundle.h"
#include "formats/tables/expert_predictor.h"

/* Leaves `predictor` empty where the bundle has no such section. Released with moec_expert_predictor_release.
 * Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_predictor(const struct moec_bundle *bundle,
                                                             struct moec_expert_predictor *predictor,
                                                             struct moec_error *err);

/* Writes to `out` the bundle at `path` with this predictor in place of the one that it may have; `out` may be
 * `path`. n_bytes receives the section's. The other sections keep their bytes, provenance but for a note.
 * Errors: as moec_bundle_strip. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_put_predictor(const char *path,
                                                            const struct moec_expert_predictor *predictor,
                                                            const char *out, size_t *n_bytes,
                                                            struct moec_error *err);

#endif
