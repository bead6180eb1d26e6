/* The safetensors of a folder (formats/checkpoint/shards.h) as a source of tensors. */
#ifndef MOEC_FORMATS_SAFETENSORS_SOURCE_H
#define MOEC_FORMATS_SAFETENSORS_SOURCE_H

#include "formats/checkpoint/tensor_source.h"

/* Opens them and checks their tables and the index. `*out` is the caller's (its `free`). Errors: those of
 * moec_shards_open. */
MOEC_WARN_UNUSED enum moec_status
moec_safetensors_source_open(const char *folder, struct moec_tensor_source **out, struct moec_error *err);

#endif
