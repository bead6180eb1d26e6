#include "cli/settings/chat_json.h"

#include "server/serve_chat_values.h"

#include <string.h>

enum moec_status cli_chat_json_check(const struct moec_json *root, const char *path, struct moec_error *err)
{
    const struct moec_json *messages =
        moec_json_type(root) == MOEC_JSON_OBJECT ? moec_json_find(root, "messages") : root;
    if (messages == NULL || moec_json_type(messages) != MOEC_JSON_ARRAY)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the conversation '%s' has no messages: expected an array of {\"role\": ..., \"content\": "
            "...}, or an object with such an array as \"messages\"",
            path);
    for (size_t i = 0; i < moec_json_length(messages); i++)
        if (moec_json_type(moec_json_at(messages, i)) != MOEC_JSON_OBJECT)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "message %zu of the conversation '%s' is %s, expected an object", i, path,
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
        MOEC_TRY(serve_chat_value(values, moec_json_at(list, i), &item, err));
        moert_value_append(values, messages, item);
    }
    if (!is_object)
        return MOEC_OK;
    for (struct moec_json_member m = moec_json_first(node); m.key != NULL; m = moec_json_next(node, m)) {
        if (strcmp(m.key, "messages") == 0)
            continue;
        MOEC_TRY(serve_chat_value(values, m.value, &item, err));
        if (strcmp(m.key, "tools") == 0)
            chat->tools = item;
        else
            moert_value_set(values, variables, m.key, item);
    }
    chat->variables = variables;
    return MOEC_OK;
}
