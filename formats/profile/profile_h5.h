/* PROFILE.h5: profiles as HDF5 files for people and programs (h5py, HDFView, Julia).
 * formats/profile/PROFILE.md is the schema.
 *
 * HDF5 can crash on a damaged file, so a profile starts with a user block of 512 bytes (magic, length,
 * SHA-256 of the rest) that is checked before HDF5 sees a byte. Equal profiles give equal files: no time
 * stamps. Thread rule: one thread of the process at a time (HDF5 has one global state). */
#ifndef MOEC_FORMATS_PROFILE_H5_H
#define MOEC_FORMATS_PROFILE_H5_H

#include "formats/profile/profile.h"

#define MOEC_PROFILE_USER_BLOCK_BYTES 512

/* Checks the profile and writes it whole or not at all.
 * Derived datasets (losses, perplexities) are computed here. */
MOEC_WARN_UNUSED enum moec_status moec_profile_write(const struct moec_profile *profile, const char *path,
                                                     struct moec_error *err);

/* Reads and checks a profile; the caller releases it. `trust` skips the checksum, for files edited elsewhere
 * (also those that lost their user block): HDF5 may then crash on damage. `digest` gets the SHA-256 of the
 * content after the user block (of all content where there is none); it names the profile in bundles made
 * from it. Derived datasets are not read. Errors: those of moec_file_load; MOEC_ERR_FORMAT,
 * MOEC_ERR_UNSUPPORTED (a later version), MOEC_ERR_CHECKSUM. On failure `out` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_profile_read(const char *path, bool trust, struct moec_profile *out,
                                                    uint8_t digest[static MOEC_SHA256_BYTES],
                                                    struct moec_error *err);

/* The same in memory. encode gives the bytes of the file, owned by the caller; decode wants them writable for
 * HDF5's sake and does not change them. `subject` opens messages ("profile 'p.h5'"). */
MOEC_WARN_UNUSED enum moec_status moec_profile_encode(const struct moec_profile *profile, uint8_t **bytes,
                                                      size_t *n_bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_profile_decode(uint8_t *bytes, size_t n_bytes, const char *subject,
                                                      bool trust, struct moec_profile *out,
                                                      uint8_t digest[static MOEC_SHA256_BYTES],
                                                      struct moec_error *err);

#endif
