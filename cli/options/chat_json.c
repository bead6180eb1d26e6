#include "cli/options/chat_json.h"

#include <string.h>

static enum moec_status make_value(struct moert_values *values, const struct moec_json *node,
                                   struct moert_value **out, struct moec_error *err);

static enum moec_status make_parts(struct moert_values *values, const struct moec_json *node,
                                   struct moert_value **out, struct moec_error *err)
{
    struct moert_value *item = NULL;
    if (moec_json_type(node) == MOEC_JSON_ARRAY) {
        *out = moert_value_list(values);
        for (size_t i = 0; i < moec_json_length(node); i++) {
            MOEC_TRY(make_value(values, moec_json_at(node, i), &item, err));
            moert_value_append(values, *out, item);
        }
        return MOEC_OK;
    }
    *out = moert_value_dict(values);
    for (struct moec_json_member m = moec_json_first(node); m.key != NULL; m = moec_json_next(node, m)) {
        MOEC_TRY(make_value(values, m.value, &item, err));
        moert_value_set(values, *out, m.key, item);
    }
    return MOEC_OK;
}

/* The reader bounds how deep a file nests. */
static enum moec_status make_value(struct moert_values *values, const struct moec_json *node,
                                   struct moert_value **out, struct moec_error *err)
{
    const char *text = "";
    size_t n = 0;
    double number = 0;
    bool boolean = false;
    switch (moec_json_type(node)) {
    case MOEC_JSON_NULL:
        *out = moert_value_null(values);
        return MOEC_OK;
    case MOEC_JSON_BOOL:
        MOEC_TRY(moec_json_as_bool(node, "a value of the conversation", &boolean, err));
        *out = moert_value_bool(values, boolean);
        return MOEC_OK;
    case MOEC_JSON_INTEGER:
        /* Whole numbers are exact up to 2^53. */
        MOEC_TRY(
            moec_json_as_double(node, "a whole number of the conversation", -0x1p53, 0x1p53, &number, err));
        *out = moert_value_int(values, (int64_t)number);
        return MOEC_OK;
    case MOEC_JSON_REAL:
        MOEC_TRY(moec_json_as_double(node, "a number of the conversation", -1e308, 1e308, &number, err));
        *out = moert_value_double(values, number);
        return MOEC_OK;
    case MOEC_JSON_STRING:
        MOEC_TRY(moec_json_as_string(node, "a text of the conversation", &text, &n, err));
        *out = moert_value_string(values, text, n);
        return MOEC_OK;
    case MOEC_JSON_ARRAY:
    case MOEC_JSON_OBJECT:
        break;
    }
    return make_parts(values, node, out, err);
}

enum moec_status cli_chat_json_check(const struct moec_json *root, const char *path, struct moec_error *err)
{
    const struct moec_json *messages =
        moec_json_type(root) == MOEC_JSON_OBJECT ? moec_json_find(root, "messages") : root;
    if (messages == NULL || moec_json_type(messages) != MOEC_JSON_ARRAY)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "'%s' has no messages: expected an array of {\"role\": ..., \"content\": ...}, or an "
            "object with such an array as \"messages\"",
            path);
    for (size_t i = 0; i < moec_json_length(messages); i++)
        if (moec_json_type(moec_json_at(messages, i)) != MOEC_JSON_OBJECT)
            return moec_fail(err, MOEC_ERR_FORMAT, "message %zu of '%s' is %s, expected an object", i, path,
                             moec_json_type_name(moec_json_at(messages, i)));
    return MOEC_OK;
}

enum moec_status cli_chat_json_begin(void *root, struct moert_values *values, struct moert_value *messages,
                                     struct moert_chat *chat, struct moec_error *err)
{
    const struct moec_json *node = root;
    const bool is_object = moec_json_type(node) == MOEC_JSON_OBJECT;
    const struct moec_json *list = is_object ? moec_json_find(node, "messages") : node;
    struct moert_value *item = NULL, *variables = moert_value_dict(values);
    for (size_t i = 0; i < moec_json_length(list); i++) {
        MOEC_TRY(make_value(values, moec_json_at(list, i), &item, err));
        moert_value_append(values, messages, item);
    }
    if (!is_object)
        return MOEC_OK;
    for (struct moec_json_member m = moec_json_first(node); m.key != NULL; m = moec_json_next(node, m)) {
        if (strcmp(m.key, "messages") == 0)
            continue;
        MOEC_TRY(make_value(values, m.value, &item, err));
        if (strcmp(m.key, "tools") == 0)
            chat->tools = item;
        else
            moert_value_set(values, variables, m.key, item);
    }
    chat->variables = variables;
    return MOEC_OK;
}
