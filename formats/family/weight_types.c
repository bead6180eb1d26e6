#include "formats/family/weight_types.h"

#include <string.h>

static enum moec_status read_dtype(const struct moec_json *object, const char *where,
                                   struct moec_weight_types *types, struct moec_error *err)
{
    static const struct {
        const char *name;
        enum moec_dtype dtype;
    } names[] = {{"float32", MOEC_DTYPE_F32}, {"float16", MOEC_DTYPE_F16}, {"bfloat16", MOEC_DTYPE_BF16}};
    static const char *const keys[] = {"dtype", "torch_dtype"};
    for (size_t k = 0; k < 2 && !types->is_said; k++) {
        const char *name = NULL;
        MOEC_TRY(moec_json_get_string_or(object, where, keys[k], "", &name, err));
        for (size_t i = 0; i < 3 && !types->is_said; i++)
            if (strcmp(name, names[i].name) == 0) {
                types->dtype = names[i].dtype;
                types->is_said = true;
            }
    }
    return MOEC_OK;
}

enum moec_status moec_weight_types_read(const struct moec_json *root, const char *where,
                                        struct moec_weight_types *types, struct moec_error *err)
{
    const struct moec_json *const text = moec_json_present(root, "text_config");
    const struct moec_json *objects[] = {root, text};
    const char *method = "";
    *types = (struct moec_weight_types){.dtype = MOEC_DTYPE_BF16};
    for (size_t i = 0; i < 2; i++) {
        if (objects[i] == NULL || moec_json_type(objects[i]) != MOEC_JSON_OBJECT)
            continue;
        const struct moec_json *given = moec_json_present(objects[i], "quantization_config");
        MOEC_TRY(read_dtype(objects[i], where, types, err));
        if (given != NULL && method[0] == '\0')
            MOEC_TRY(moec_json_get_string_or(given, where, "quant_method", "", &method, err));
    }
    if (strcmp(method, "mxfp4") == 0)
        types->storage = MOEC_STORAGE_MXFP4;
    else if (method[0] != '\0')
        types->storage = MOEC_STORAGE_FP8; /* of what is readable nothing else is left */
    return MOEC_OK;
}
