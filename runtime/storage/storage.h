/* The checks that turn bytes from the device into a record, between a reader and everything that computes.
 *
 * Every read is checked by CRC32C, also of a record that was read before: it costs some tenths of a
 * nanosecond a byte where storage takes several, and either may fail at any time. That scales and floats are
 * finite is a property of the same bytes and is checked on the first read only. Thread rule: any number of
 * threads may check at once. */
#ifndef MOEC_RUNTIME_STORAGE_H
#define MOEC_RUNTIME_STORAGE_H

#include "formats/bundle/bundle.h"

struct moec_storage;

/* Checks records of one copy level. The bundle is borrowed until freed. Errors: MOEC_ERR_USAGE for a copy
 * that is not there. */
MOEC_WARN_UNUSED enum moec_status moec_storage_create(const struct moec_bundle *bundle, uint32_t copy,
                                                      struct moec_storage **out, struct moec_error *err);
void moec_storage_free(struct moec_storage *storage);

/* Bytes of a storage object, for a budget. */
uint64_t moec_storage_bytes(const struct moec_bundle *bundle);

/* Whether `record` (entry->n_bytes) is what the bundle's index promises. Errors: MOEC_ERR_CHECKSUM,
 * MOEC_ERR_FORMAT, naming layer and expert. */
MOEC_WARN_UNUSED enum moec_status moec_storage_check(struct moec_storage *storage, uint32_t ordinal,
                                                     uint32_t expert, const uint8_t *record,
                                                     struct moec_error *err);

#endif
