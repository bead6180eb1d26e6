/* Writing safetensors (formats/checkpoint/safetensors.h has the format): the table first, then the bytes of
 * one tensor after the other, as a stream. The file appears under its name when it is complete. The header is
 * padded with spaces so that the data starts at a multiple of 8, as the reference implementation does, and
 * carries the metadata {"format": "pt"} that transformers asks for.
 * Thread rule: a writer belongs to one thread. */
#ifndef MOEC_FORMATS_SAFETENSORS_WRITE_H
#define MOEC_FORMATS_SAFETENSORS_WRITE_H

#include "formats/base/file.h"
#include "formats/codec/codec.h"

/* One tensor to write: F32, F16, BF16 or I64, up to three dimensions. */
struct moec_safetensors_tensor {
    const char *name; /* borrowed while the writer opens */
    enum moec_dtype dtype;
    bool is_integer; /* I64, whatever `dtype` is */
    uint32_t n_dims;
    uint64_t shape[4];
};

/* Bytes of its data. */
uint64_t moec_safetensors_tensor_bytes(const struct moec_safetensors_tensor *tensor);

struct moec_safetensors_writer {
    struct moec_output output;
    uint64_t file_bytes; /* when complete */
};

/* Starts a file beside `path` with the table of (n) tensors, whose data follows in this order. Errors:
 * MOEC_ERR_LIMIT for a header over the format's limit, those of moec_output_open. */
MOEC_WARN_UNUSED enum moec_status moec_safetensors_writer_open(struct moec_safetensors_writer *writer,
                                                               const char *path,
                                                               const struct moec_safetensors_tensor *tensors,
                                                               size_t n, struct moec_error *err);
/* Appends little-endian bytes of the tensors' data, in pieces of any size. */
MOEC_WARN_UNUSED enum moec_status moec_safetensors_writer_append(struct moec_safetensors_writer *writer,
                                                                 const void *bytes, size_t n,
                                                                 struct moec_error *err);
/* Syncs and renames. MOEC_ERR_USAGE when more or fewer bytes came than the table says; then, as on every
 * failure, nothing appears under the name. */
MOEC_WARN_UNUSED enum moec_status moec_safetensors_writer_commit(struct moec_safetensors_writer *writer,
                                                                 struct moec_error *err);
/* Removes what was written; a no-op after commit. */
void moec_safetensors_writer_abort(struct moec_safetensors_writer *writer);

#endif
