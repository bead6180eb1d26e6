/* What families share in reading and naming (internal to formats/). */
#ifndef MOEC_FORMATS_FAMILY_FIELDS_H
#define MOEC_FORMATS_FAMILY_FIELDS_H

#include "formats/checkpoint/family.h"

/* The member, or NULL when it is absent or null. */
const struct moec_json *moec_family_present(const struct moec_json *object, const char *key);

/* An optional u32 up to `max`; `*value` keeps what it holds when the member is absent or null. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_u32(const struct moec_json *root, const char *where,
                                                       const char *key, uint32_t max, uint32_t *value,
                                                       struct moec_error *err);

/* Switch Transformers (formats/checkpoint/family_switch.c): reads and writes every field but the end-of-text
 * ids. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_switch(const struct moec_json *root, const char *where,
                                                          struct moec_config *config, struct moec_error *err);
void moec_family_write_switch(const struct moec_config *config, struct moec_json_out *root);

#endif
