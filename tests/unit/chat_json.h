/* JSON as values of chat templates. */
#ifndef MOEC_TESTS_CHAT_JSON_H
#define MOEC_TESTS_CHAT_JSON_H

#include "formats/json/json.h"
#include "runtime/chat/chat_value.h"

#include <string.h>

static enum moec_status chat_from_json(struct moec_chat_arena *arena, const struct moec_json *node,
                                       struct moec_chat_value *out, struct moec_error *err)
{
    struct moec_chat_value item, key;
    const char *text = "";
    size_t n = 0;
    double number = 0;
    bool boolean = false;
    switch (moec_json_type(node)) {
    case MOEC_JSON_NULL:
        *out = moec_chat_none();
        return MOEC_OK;
    case MOEC_JSON_BOOL:
        MOEC_TRY(moec_json_as_bool(node, "a value", &boolean, err));
        *out = moec_chat_bool(boolean);
        return MOEC_OK;
    case MOEC_JSON_INTEGER:
    case MOEC_JSON_REAL:
        MOEC_TRY(moec_json_as_double(node, "a value", -1e300, 1e300, &number, err));
        *out =
            moec_json_type(node) == MOEC_JSON_REAL ? moec_chat_float(number) : moec_chat_int((int64_t)number);
        return MOEC_OK;
    case MOEC_JSON_STRING:
        MOEC_TRY(moec_json_as_string(node, "a value", &text, &n, err));
        return moec_chat_string_make(arena, text, n, 1, out, err);
    case MOEC_JSON_ARRAY:
        MOEC_TRY(moec_chat_list_make(arena, 0, out, err));
        for (size_t i = 0; i < moec_json_length(node); i++) {
            MOEC_TRY(chat_from_json(arena, moec_json_at(node, i), &item, err));
            MOEC_TRY(moec_chat_list_append(arena, out->as.list, item, err));
        }
        return MOEC_OK;
    case MOEC_JSON_OBJECT:
        break;
    }
    MOEC_TRY(moec_chat_dict_make(arena, out, err));
    for (struct moec_json_member m = moec_json_first(node); m.key != NULL; m = moec_json_next(node, m)) {
        MOEC_TRY(chat_from_json(arena, m.value, &item, err));
        MOEC_TRY(moec_chat_string_make(arena, m.key, strlen(m.key), 1, &key, err));
        MOEC_TRY(moec_chat_dict_set(arena, out->as.dict, key, item, err));
    }
    return MOEC_OK;
}

#endif
