/* Reading a section that is stored in pieces (formats/bundle/FORMAT.md): each is checked by its CRC32C and
 * decompressed to its place (internal to formats/bundle/). */
#ifndef MOEC_FORMATS_SECTION_PIECES_H
#define MOEC_FORMATS_SECTION_PIECES_H

#include "formats/base/digest.h"
#include "formats/bundle/bundle_format.h"

/* Fills content (section->content_bytes). With a digest the stored bytes are hashed on the way, in order;
 * without one a second thread takes every other piece, where there can be one. Errors: those of the first
 * piece that is wrong, MOEC_ERR_CHECKSUM, MOEC_ERR_FORMAT, MOEC_ERR_IO; MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_section_pieces_load(const struct moec_file *file,
                                                           const struct moec_section *section,
                                                           uint8_t *content, struct moec_sha256 *digest,
                                                           struct moec_error *err);

#endif
