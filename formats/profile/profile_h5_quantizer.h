/* The attributes of a profile that say how experts were quantised (internal to the profile's format;
 * formats/profile/PROFILE.md, "Attributes of the root").
 *
 * Thread rule: as formats/profile/h5.h. */
#ifndef MOEC_FORMATS_PROFILE_H5_QUANTIZER_H
#define MOEC_FORMATS_PROFILE_H5_QUANTIZER_H

#include "formats/profile/h5.h"
#include "formats/profile/profile.h"

/* quantizer, scheme, and what was chosen for each bitwidth when the quantizer is auto; of a checked profile.
 */
MOEC_WARN_UNUSED enum moec_status moec_profile_h5_write_quantizer(struct moec_h5 *h5,
                                                                  const struct moec_profile *profile,
                                                                  struct moec_error *err);

/* Reads them back. A file without `quantizer` predates the choice and is linear.
 * Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_profile_h5_read_quantizer(struct moec_h5 *h5,
                                                                 struct moec_profile *profile,
                                                                 const char *subject, struct moec_error *err);

#endif
