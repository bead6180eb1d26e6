/* Studies as bytes, for journals: what a phase has measured and a later run takes over.
 *
 *   0    64   name, zero-padded          328  128  source
 *   64   24   units                      456  u32  number of axes
 *   88   240  description                460  u32  zero
 *   464  for each axis 72 bytes: name (32), units (24), u64 length, u32 1 = values + 2 = labels, u32 zero
 *        then for each axis its values (F64) and its labels (32 bytes each), then the values (F64)
 *
 * All little-endian; every part is a multiple of 8 bytes long. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_STUDY_BYTES_H
#define MOEC_FORMATS_STUDY_BYTES_H

#include "formats/profile/study.h"

/* Length of a study, and its bytes written to `to` (that long). */
uint64_t moec_study_bytes(const struct moec_study *study);
void moec_study_encode(const struct moec_study *study, uint8_t *to);

/* Reads the study at the start of n bytes, adds it to `studies` and sets `*used` to its length. `bytes` is
 * aligned to 8. Errors: MOEC_ERR_FORMAT when it is not whole, those of moec_studies_add. */
MOEC_WARN_UNUSED enum moec_status moec_study_decode(const uint8_t *bytes, uint64_t n,
                                                    struct moec_studies *studies, uint64_t *used,
                                                    struct moec_error *err);

#endif
