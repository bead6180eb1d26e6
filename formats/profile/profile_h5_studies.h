/* The studies of a profile in its HDF5 file, whatever studies there are (internal to the profile's format;
 * formats/profile/PROFILE.md, "Studies").
 *
 * Thread rule: as formats/profile/h5.h. */
#ifndef MOEC_FORMATS_PROFILE_H5_STUDIES_H
#define MOEC_FORMATS_PROFILE_H5_STUDIES_H

#include "formats/profile/h5.h"
#include "formats/profile/profile.h"

/* Writes all studies of a checked profile whose scales stand in /axes already; nothing if there are none.
 */
MOEC_WARN_UNUSED enum moec_status
moec_profile_h5_write_studies(struct moec_h5 *h5, const struct moec_profile *profile, struct moec_error *err);

/* Reads /studies, if there is one, into a profile whose dimensions and axes are read. Every dataset is
 * checked before memory is made for it. Errors: MOEC_ERR_FORMAT, MOEC_ERR_LIMIT, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_profile_h5_read_studies(struct moec_h5 *h5,
                                                               struct moec_profile *profile,
                                                               const char *subject, struct moec_error *err);

#endif
