/* What names a bundle's content: two bundles have the same one where all their sections are the same. Thread
 * rule: a pure function. */
#ifndef MOEC_FORMATS_BUNDLE_DIGEST_H
#define MOEC_FORMATS_BUNDLE_DIGEST_H

#include "formats/bundle/bundle.h"

/* SHA-256 of the contents table, which has the SHA-256 of each section. */
void moec_bundle_digest(const struct moec_bundle *bundle, uint8_t digest[static MOEC_SHA256_BYTES]);

#endif
