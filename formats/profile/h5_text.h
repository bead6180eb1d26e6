/* Attributes that are texts of variable length, read from the bytes of an HDF5 archive.
 *
 * HDF5 has two kinds of texts. Those of variable length are what h5py, xarray and Julia give as strings; they
 * lie in a heap beside the object, and the attribute holds their length and place. HDF5 (1.10.8 here) copies
 * such a text into memory of the length that the attribute says, without comparing it with what the heap
 * holds: a file in which the two differ writes over memory, and a length of 4 GiB takes twice that. So HDF5
 * writes these texts, and reading them is done here, by the library's description of its format ("HDF5 File
 * Format Specification Version 3.0": IV.A.1.a object header version 1, IV.A.2.m attribute message, III.E
 * global heap). Nothing is trusted: every place and length is checked against the archive, and memory is the
 * caller's.
 *
 * Thread rule: pure functions. */
#ifndef MOEC_FORMATS_H5_TEXT_H
#define MOEC_FORMATS_H5_TEXT_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdint.h>

/* An archive in memory. Addresses in it count from `base`, the end of its user block. */
struct moec_h5_image {
    const uint8_t *bytes; /* borrowed */
    size_t n_bytes;
    uint64_t base;
};

/* Texts in memory: n of them one after the other, each in text_bytes (at least 1) with its NUL. */
struct moec_h5_text_list {
    size_t text_bytes;
    uint64_t n;
};

/* Reads the texts of an attribute, which has no fewer. `header` is the address of the object's header. A text
 * that holds a NUL ends there. Errors: MOEC_ERR_FORMAT (no such attribute, another type, damage, a text that
 * does not fit), MOEC_ERR_UNSUPPORTED (headers of version 2, which HDF5 writes when it is asked for its
 * latest format). */
MOEC_WARN_UNUSED enum moec_status moec_h5_text_read(const struct moec_h5_image *image, uint64_t header,
                                                    const char *name, char *texts,
                                                    struct moec_h5_text_list list, struct moec_error *err);

#endif
