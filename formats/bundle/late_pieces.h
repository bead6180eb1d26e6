/* The part of the dense weights that comes late: pieces of their section (section_pieces.h), each read,
 * checked and decompressed to its place in the blob when something in it is first asked for (internal to
 * formats/bundle/). */
#ifndef MOEC_FORMATS_LATE_PIECES_H
#define MOEC_FORMATS_LATE_PIECES_H

#include "formats/bundle/section_pieces.h"

/* What n_bytes of content, left to come late, take beside their place. */
uint64_t moec_late_pieces_bytes(uint64_t n_bytes);

/* Bytes from .. end - 1 of a section's content. */
struct moec_content_range {
    uint64_t from, end;
};

/* Loads all of a compressed section but most of `range`, which *late then brings. File, section and
 * content are borrowed. Errors: as moec_section_pieces_load. */
MOEC_WARN_UNUSED enum moec_status moec_late_pieces_load(const struct moec_file *file,
                                                        const struct moec_section *section,
                                                        struct moec_content_range range, uint8_t *content,
                                                        struct moec_dense_late **late,
                                                        struct moec_error *err);

#endif
