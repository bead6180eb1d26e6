/* What a GGUF file says about its model, in the terms of a Hugging Face folder.
 *
 * `general.architecture` selects a row of a table (gguf_architectures.h): the family, and what llama.cpp's
 * converter leaves out or changes. Metadata become the config.json that the family reads, so that a family's
 * own code knows one format; tensors have one set of names for all architectures. Thread rule: pure
 * functions. */
#ifndef MOEC_FORMATS_GGUF_MODEL_H
#define MOEC_FORMATS_GGUF_MODEL_H

#include "formats/checkpoint/gguf_source.h"
#include "formats/family/family.h"

/* Text of the config.json that the file stands for, NUL-terminated and the caller's. Errors:
 * MOEC_ERR_UNSUPPORTED for an architecture that is not in the table, MOEC_ERR_FORMAT for metadata that are
 * missing or of another type. */
MOEC_WARN_UNUSED enum moec_status moec_gguf_model_config(const struct moec_tensor_source *source, char **json,
                                                         struct moec_error *err);

/* Puts GGUF's tensor names and layouts in place of a family's own. */
void moec_gguf_model_names(const struct moec_tensor_source *source, struct moec_family *family);

#endif
