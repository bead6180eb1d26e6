/* The source of tensors of a folder without weights (internal to formats/): it knows the names in
 * 'model.safetensors.index.json' where that is there, and reads nothing. A tensor that it finds has no shape.
 * Thread rule: immutable after opening. */
#ifndef MOEC_FORMATS_ABSENT_WEIGHTS_H
#define MOEC_FORMATS_ABSENT_WEIGHTS_H

#include "formats/checkpoint/tensor_source.h"

/* `*out` is the caller's (its `free`); its `index` is NULL without the file. `explain` says that the index
 * lacks a tensor. Errors: MOEC_ERR_FORMAT for a damaged index, MOEC_ERR_MEMORY, MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status
moec_absent_weights_open(const char *folder, struct moec_tensor_source **out, struct moec_error *err);

#endif
