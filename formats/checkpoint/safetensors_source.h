/* The safetensors of a folder as a source of tensors: 'model.safetensors', or the shards that
 * 'model.safetensors.index.json' names. */
#ifndef MOEC_FORMATS_SAFETENSORS_SOURCE_H
#define MOEC_FORMATS_SAFETENSORS_SOURCE_H

#include "formats/checkpoint/tensor_source.h"

/* Opens them and checks their tables and the index. A folder with only pytorch_model.bin is refused with
 * advice. `*out` is the caller's (its `free`). Errors: MOEC_ERR_NOT_FOUND without weights, MOEC_ERR_IO,
 * MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status
moec_safetensors_source_open(const char *folder, struct moec_tensor_source **out, struct moec_error *err);

#endif
