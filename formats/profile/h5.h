/* HDF5 in small pieces: the home of HDF5 (h5.c; attributes in h5_attribute.c). Profiles are its only user
 * (formats/profile/profile_h5.h).
 *
 * An archive is made and read in memory, never by HDF5 on a file of its own: so its bytes can be hashed
 * before HDF5 looks at them, and a file appears whole or not at all. Equal calls give equal bytes: no time
 * stamps, one fixed chunking and compression (shuffle, deflate). Datasets carry their meaning: axes are HDF5
 * dimension scales, units, description and source are attributes.
 *
 * Reading trusts nothing but HDF5 itself: a dataset is checked for type, rank, extent, storage and filters
 * before memory is made for it; links to other files, virtual datasets and filter plugins are refused. HDF5's
 * own messages never reach stderr. Thread rule: HDF5 has one global state;
 * one thread of the process at a time. */
#ifndef MOEC_FORMATS_H5_H
#define MOEC_FORMATS_H5_H

#include "formats/base/error.h"
#include "formats/profile/h5_text.h"

#include <stddef.h>

#define MOEC_H5_MAX_RANK 4

enum moec_h5_type {
    MOEC_H5_U8,
    MOEC_H5_U16,
    MOEC_H5_F16,
    MOEC_H5_U32,
    MOEC_H5_U64,
    MOEC_H5_F64,
    MOEC_H5_HALF, /* F16 in memory and F32 in the file, which every reader of netCDF knows; HDF5 converts */
};

/* What a dataset is. Strings are borrowed for the call. */
struct moec_h5_dataset {
    const char *path; /* "/group/name" */
    enum moec_h5_type type;
    uint32_t rank; /* 0 (one value)..MOEC_H5_MAX_RANK */
    uint64_t dims[MOEC_H5_MAX_RANK];
    const char *axes[MOEC_H5_MAX_RANK]; /* paths of dimension scales written before; a scale names itself */
    const char *units;                  /* "nats"; "1" for plain numbers */
    const char *description;
    const char *source; /* where it is defined: paper and figure; NULL for none */
};

struct moec_h5;

/* Starts an archive in memory whose first `user_block_bytes` (512, 1024, ...) stay free for the caller. */
MOEC_WARN_UNUSED enum moec_status moec_h5_create(uint64_t user_block_bytes, struct moec_h5 **out,
                                                 struct moec_error *err);

/* Bytes of the finished archive, the free user block included (zeros). Owned by the caller (free). The
 * archive can only be closed afterwards. */
MOEC_WARN_UNUSED enum moec_status moec_h5_take_bytes(struct moec_h5 *h5, uint8_t **bytes, size_t *n_bytes,
                                                     struct moec_error *err);

/* Opens an archive in memory for reading. `bytes` (writable for HDF5's sake, never changed) are borrowed
 * until close; `subject` names the archive in messages and is copied. Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_h5_open(uint8_t *bytes, size_t n_bytes, const char *subject,
                                               struct moec_h5 **out, struct moec_error *err);

/* NULL-safe. */
void moec_h5_close(struct moec_h5 *h5);

/* Creates a group "/name". */
MOEC_WARN_UNUSED enum moec_status moec_h5_write_group(struct moec_h5 *h5, const char *path,
                                                      struct moec_error *err);

/* Writes a dataset, row-major, compressed in chunks. A dataset whose only axis is its own path becomes a
 * dimension scale. Extents of 0 are fine. */
MOEC_WARN_UNUSED enum moec_status moec_h5_write(struct moec_h5 *h5, const struct moec_h5_dataset *dataset,
                                                const void *data, struct moec_error *err);

/* Checks that a dataset is there with this type and these extents, and that it stores as much as it claims.
 */
MOEC_WARN_UNUSED enum moec_status moec_h5_check(struct moec_h5 *h5, const struct moec_h5_dataset *dataset,
                                                struct moec_error *err);

/* Checks and reads a dataset into `data`, which holds the product of the extents. */
MOEC_WARN_UNUSED enum moec_status moec_h5_read(struct moec_h5 *h5, const struct moec_h5_dataset *dataset,
                                               void *data, struct moec_error *err);

/* Rank and extents of a dataset that is to be read, before anything is known of it. */
MOEC_WARN_UNUSED enum moec_status moec_h5_read_extents(struct moec_h5 *h5, const char *path, uint32_t *rank,
                                                       uint64_t dims[static MOEC_H5_MAX_RANK],
                                                       struct moec_error *err);

/* Whether there is something of this path, whose parents are known to be groups. */
bool moec_h5_has(struct moec_h5 *h5, const char *path);

/* Whether both are names of one thing (hard links); their parents are known to be groups. */
bool moec_h5_is_same(struct moec_h5 *h5, const char *path, const char *other);

/* Calls `visit` with each name in a group, in order of their bytes, until it fails. */
typedef enum moec_status moec_h5_visit(void *context, const char *name, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_h5_list(struct moec_h5 *h5, const char *path, moec_h5_visit *visit,
                                               void *context, struct moec_error *err);

/* Attributes of a group or dataset ("/" is the root). Texts are UTF-8, written with variable length, which
 * h5py and others give as strings; those of fixed length are read as well (profiles up to version 2). */
MOEC_WARN_UNUSED enum moec_status moec_h5_write_text(struct moec_h5 *h5, const char *path, const char *name,
                                                     const char *text, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_h5_write_u64(struct moec_h5 *h5, const char *path, const char *name,
                                                    uint64_t value, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_h5_write_f64(struct moec_h5 *h5, const char *path, const char *name,
                                                    double value, struct moec_error *err);

/* A list of texts, at least one (formats/profile/h5_text.h). */
MOEC_WARN_UNUSED enum moec_status moec_h5_write_texts(struct moec_h5 *h5, const char *path, const char *name,
                                                      const char *texts, struct moec_h5_text_list list,
                                                      struct moec_error *err);

MOEC_WARN_UNUSED enum moec_status moec_h5_has_attribute(struct moec_h5 *h5, const char *path,
                                                        const char *name, bool *has, struct moec_error *err);

/* Reads attributes back; a missing one, another type or a text that does not fit `capacity`
 * with its NUL is MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_h5_read_text(struct moec_h5 *h5, const char *path, const char *name,
                                                    char *text, size_t capacity, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_h5_read_u64(struct moec_h5 *h5, const char *path, const char *name,
                                                   uint64_t *value, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_h5_read_f64(struct moec_h5 *h5, const char *path, const char *name,
                                                   double *value, struct moec_error *err);

MOEC_WARN_UNUSED enum moec_status moec_h5_read_texts(struct moec_h5 *h5, const char *path, const char *name,
                                                     char *texts, struct moec_h5_text_list list,
                                                     struct moec_error *err);

/* Bytes of one value. */
size_t moec_h5_type_bytes(enum moec_h5_type type);

/* True when the bytes hold an HDF5 signature at offset 0, 512, 1024, ... */
bool moec_h5_has_signature(const uint8_t *bytes, size_t n_bytes);

/* Version of the library in use, "1.10.8". */
void moec_h5_version(char text[static 32]);

#endif
