/* The digest is that of the contents table, which holds place, size and SHA-256 of every section. No section
 * is read again. */
#include "formats/bundle/bundle_digest.h"

#include "formats/bundle/bundle_format.h"

#include <string.h>

void moec_bundle_digest(const struct moec_bundle *bundle, uint8_t digest[static MOEC_SHA256_BYTES])
{
    uint8_t header[MOEC_BUNDLE_HEADER_BYTES] = {0},
            table[MOEC_BUNDLE_MAX_SECTIONS * MOEC_BUNDLE_SECTION_BYTES] = {0};
    moec_contents_encode(bundle->sections, header, table);
    memcpy(digest, header + MOEC_HEADER_CONTENTS, MOEC_SHA256_BYTES);
}
