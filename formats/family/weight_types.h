/* How config.json says that weights are stored, for folders whose weights are not there to tell. Thread rule:
 * pure functions. */
#ifndef MOEC_FORMATS_WEIGHT_TYPES_H
#define MOEC_FORMATS_WEIGHT_TYPES_H

#include "formats/json/json.h"
#include "formats/model/config.h"

/* Of which weights are stored in fewer bits: linear layers but embedding and head (FP8), or experts (MXFP4). */
enum moec_weight_storage { MOEC_STORAGE_PLAIN, MOEC_STORAGE_FP8, MOEC_STORAGE_MXFP4 };

struct moec_weight_types {
    enum moec_dtype dtype; /* F32, F16 or BF16 */
    bool is_said;          /* BF16 is taken where config.json names none of these */
    enum moec_weight_storage storage;
};

/* From the root of a config.json that moec_family_read_config has read: 'dtype' or 'torch_dtype', of the root
 * or of its 'text_config', and 'quantization_config'. `where` names the file. Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_weight_types_read(const struct moec_json *root, const char *where,
                                                         struct moec_weight_types *types,
                                                         struct moec_error *err);

#endif
