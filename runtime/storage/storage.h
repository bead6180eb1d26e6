/* The checks that turn bytes from the device into an expert, where a request finds those bytes, and how an
 * MLP lies in them. One object serves one precision copy and one part of its records.
 *
 * Every read is checked by CRC32C, also of a record that was read before: it costs some tenths of a
 * nanosecond a byte where storage takes several, and either may fail at any time. That scales and floats are
 * finite is a property of the same bytes and is checked on the first read only. A bundle has checksums of
 * whole records and none of parts: a caller that reads parts supplies their checksums, computed from whole
 * records that passed the check, and is refused without them.
 * Thread rule: any number of threads may call at once. */
#ifndef MOEC_RUNTIME_STORAGE_H
#define MOEC_RUNTIME_STORAGE_H

#include "formats/bundle/bundle.h"
#include "runtime/storage/record_reader.h"

struct moec_storage;

struct moec_storage_setup {
    const struct moec_bundle *bundle; /* borrowed until freed */
    uint32_t copy;
    struct moec_record_part part;
    /* (S, E): CRC32C of each part's bytes (moec_record_part_range), borrowed until freed;
     * unused for whole records. */
    const uint32_t *part_crc32c;
};

/* Errors: MOEC_ERR_USAGE for a copy that does not exist or a part that is not contiguous,
 * MOEC_ERR_UNSUPPORTED for a part without checksums. */
MOEC_WARN_UNUSED enum moec_status moec_storage_create(const struct moec_storage_setup *setup,
                                                      struct moec_storage **out, struct moec_error *err);
void moec_storage_free(struct moec_storage *storage); /* NULL-safe */

/* Bytes of a storage object, for a budget. */
uint64_t moec_storage_bytes(const struct moec_bundle *bundle);

/* The request that reads an expert. */
struct moec_record_place moec_storage_place_of(const struct moec_storage *storage, uint32_t ordinal,
                                               uint32_t expert);

/* The same for its up projection alone, which stands first in a record; both begin at the same place. */
struct moec_record_place moec_storage_up_place_of(const struct moec_storage *storage, uint32_t ordinal,
                                                  uint32_t expert);

/* What it takes in a buffer that moec_record_reader_create's reader fills. */
uint64_t moec_storage_slot_bytes(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert);

/* Whether the bytes that were read into `slot` are what is promised; `sum` is their CRC32C where the reader
 * has computed it, else NULL. Errors: MOEC_ERR_CHECKSUM, MOEC_ERR_FORMAT, naming layer and expert. */
MOEC_WARN_UNUSED enum moec_status moec_storage_check(struct moec_storage *storage, uint32_t ordinal,
                                                     uint32_t expert, const uint8_t *slot,
                                                     const uint32_t *sum, struct moec_error *err);

/* The same for the up projection alone, which has this CRC32C. */
MOEC_WARN_UNUSED enum moec_status moec_storage_check_up(const struct moec_storage *storage, uint32_t ordinal,
                                                        uint32_t expert, uint32_t crc32c, const uint8_t *slot,
                                                        struct moec_error *err);

/* Points `mlp` into bytes that were checked. */
void moec_storage_bind(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                       const uint8_t *slot, struct moec_mlp *mlp);

#endif
