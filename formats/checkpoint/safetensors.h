/* safetensors: a table of named tensors in front of their bytes.
 *
 *   u64 little-endian header length | header (JSON object) | data
 *   header: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
 *            "__metadata__": {...}}
 *
 * Offsets count from the start of the data. The reference implementation's rules hold here too: the header
 * has at most 100 MB, names are unique, a range is as long as shape and dtype say, and the ranges tile the
 * data: no overlap, no gap, nothing behind them (https://github.com/huggingface/safetensors, "Format").
 * A tensor of a dtype that is unknown here may stand beside others: only who needs it refuses it.
 *
 * Only the table is read; the bytes stay on disk. Thread rule: immutable after opening. */
#ifndef MOEC_FORMATS_SAFETENSORS_H
#define MOEC_FORMATS_SAFETENSORS_H

#include "formats/base/file.h"
#include "formats/checkpoint/tensor_source.h"

#define MOEC_SAFETENSORS_MAX_HEADER_BYTES ((uint64_t)100 << 20)

struct moec_safetensors_entry {
    char *name;             /* owned */
    const char *dtype_name; /* as in the file; a static string, or in the memory of `name` */
    enum moec_dtype dtype;  /* F32, F16 or BF16; MOEC_DTYPE_COUNT for all others */
    uint32_t n_dims;
    uint64_t shape[MOEC_TENSOR_MAX_DIMS];
    uint64_t offset; /* in the file, not in the data */
    uint64_t n_bytes;
};

struct moec_safetensors {
    struct moec_file file;
    struct moec_safetensors_entry *entries; /* owned; sorted by name */
    size_t n_entries;
};

/* Opens a file and checks its table. Errors: MOEC_ERR_NOT_FOUND, MOEC_ERR_IO, MOEC_ERR_LIMIT (header),
 * MOEC_ERR_FORMAT; messages name file, tensor and place. On failure nothing is
 * left to close. */
MOEC_WARN_UNUSED enum moec_status moec_safetensors_open(struct moec_safetensors *safetensors,
                                                        const char *path, struct moec_error *err);

/* Parses a header that stands in memory into `safetensors` (whose `file` is left alone); the file it came
 * from has `file_bytes`, of which 8 + n_header are length and header. `path` is for messages. */
MOEC_WARN_UNUSED enum moec_status moec_safetensors_parse(struct moec_safetensors *safetensors,
                                                         const char *header, size_t n_header,
                                                         uint64_t file_bytes, const char *path,
                                                         struct moec_error *err);

/* Releases the table and keeps the file open: for a reader that has noted where its tensors stand. */
void moec_safetensors_forget(struct moec_safetensors *safetensors);

void moec_safetensors_close(struct moec_safetensors *safetensors);

#endif
