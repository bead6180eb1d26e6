/* Where the model is that a path given by a user leads to (internal to formats/): the path itself, the
 * snapshot of a Hub's cache, or the GGUF file of a folder without safetensors. Thread rule: pure functions.
 */
#ifndef MOEC_FORMATS_MODEL_PATH_H
#define MOEC_FORMATS_MODEL_PATH_H

#include "formats/base/error.h"

/* `*model` and `*note` are the caller's; the note says what was taken in place of `path`, NULL if it is the
 * path. What needs the config alone (`needs_weights` false) may also be given the path of a config.json, whose
 * folder is taken. Errors: MOEC_ERR_NOT_FOUND where nothing is there, or several models that the message
 * names. */
MOEC_WARN_UNUSED enum moec_status moec_model_path_find(const char *path, bool needs_weights, char **model,
                                                       char **note, struct moec_error *err);

/* Whether the folder has weights that are not GGUF: safetensors or PyTorch's. Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_model_path_has_weights(const char *folder, bool *has,
                                                              struct moec_error *err);

#endif
