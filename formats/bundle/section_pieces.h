/* Reading a section in pieces (formats/bundle/FORMAT.md), by two threads: each piece is checked by its CRC32C
 * and, where it is compressed, decompressed to its place (internal to formats/bundle/). */
#ifndef MOEC_FORMATS_SECTION_PIECES_H
#define MOEC_FORMATS_SECTION_PIECES_H

#include "formats/base/digest.h"
#include "formats/bundle/bundle_format.h"

/* A piece as it is stored. */
struct moec_piece {
    uint64_t number;     /* from 0 */
    uint64_t at;         /* of what is stored of it, in the section's stored bytes */
    uint64_t content_at; /* in the section's content */
    uint32_t n_stored;
    uint32_t n; /* of content */
    uint32_t crc;
    bool is_raw;
    uint8_t header[MOEC_PIECE_HEADER_BYTES];
};

/* Pieces that are not loaded: the first `capacity` of those whose content lies within from .. end. */
struct moec_left_pieces {
    uint64_t from, end;
    struct moec_piece *pieces; /* (capacity) */
    size_t capacity;
    size_t n; /* filled in, in order */
};

/* Fills content (section->content_bytes). With a digest the stored bytes are hashed on the way, in order;
 * without one a second thread takes every other piece, where there can be one. Errors: those of the first
 * piece that is wrong, MOEC_ERR_CHECKSUM, MOEC_ERR_FORMAT, MOEC_ERR_IO; MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_section_pieces_load(const struct moec_file *file,
                                                           const struct moec_section *section,
                                                           uint8_t *content, struct moec_sha256 *digest,
                                                           struct moec_error *err);

/* The same without those pieces, and without a digest. What stands there in `content` is left alone, and
 * little of what is stored of them is read. */
MOEC_WARN_UNUSED enum moec_status
moec_section_pieces_load_but(const struct moec_file *file, const struct moec_section *section,
                             uint8_t *content, struct moec_left_pieces *left, struct moec_error *err);

/* One piece that was left, to its place. `buffer` has MOEC_PIECE_BYTES. Errors: as above. */
MOEC_WARN_UNUSED enum moec_status moec_section_piece_load(const struct moec_file *file,
                                                          const struct moec_section *section,
                                                          const struct moec_piece *piece, uint8_t *buffer,
                                                          uint8_t *content, struct moec_error *err);

/* Checksums of a section that is stored as it is, one of each MOEC_PIECE_BYTES: a section of their own. */
size_t moec_section_sums_bytes(uint64_t content_bytes);
void moec_section_sums_encode(const uint8_t *content, uint64_t content_bytes, uint8_t *bytes);
MOEC_WARN_UNUSED enum moec_status moec_section_sums_check(const uint8_t *bytes, size_t n_bytes,
                                                          uint64_t content_bytes, struct moec_error *err);

/* Fills content (section->content_bytes), or only checks it where it is there already, by checksums that
 * moec_section_sums_check has passed. Errors: as moec_section_pieces_load. */
MOEC_WARN_UNUSED enum moec_status moec_section_plain_load(const struct moec_file *file,
                                                          const struct moec_section *section,
                                                          const uint8_t *sums, bool is_there,
                                                          uint8_t *content, struct moec_error *err);

#endif
