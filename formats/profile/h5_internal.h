/* What the files that speak to HDF5 share (formats/profile/h5.h is their interface).
 *
 * Thread rule: as formats/profile/h5.h. */
#ifndef MOEC_FORMATS_H5_INTERNAL_H
#define MOEC_FORMATS_H5_INTERNAL_H

#include "formats/profile/h5.h"

/* HDF5 1.12 and later give H5Lget_info, H5Oget_info_by_name2 and H5Literate other structures, whose addresses
 * are opaque; with this they are those of 1.10, on every version. */
#define H5_USE_110_API
#include <hdf5.h>

struct moec_h5 {
    hid_t file;
    uint64_t user_block_bytes; /* when writing */
    const uint8_t *bytes;      /* of the archive that is read, borrowed; NULL when writing */
    size_t n_bytes;            /* 0 when writing */
    char *subject;             /* owned; opens messages */
    H5E_auto2_t old_auto;      /* what HDF5 did with its errors before */
    void *old_auto_data;
};

/* MOEC_ERR_FORMAT with HDF5's own reason: "SUBJECT: HDF5 cannot ACTION 'PATH': reason". */
enum moec_status moec_h5_fail(const struct moec_h5 *h5, const char *action, const char *path,
                              struct moec_error *err);

/* Every step of a path must be a hard link: soft and external ones could lead to another file. */
MOEC_WARN_UNUSED enum moec_status moec_h5_check_links(struct moec_h5 *h5, const char *path,
                                                      struct moec_error *err);

#endif
