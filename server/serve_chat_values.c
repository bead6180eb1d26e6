/* JSON of a request as the values that a chat template sees, one for one. Only a content of parts changes:
 * it becomes the joined text of its parts. All values belong to `values`, so nothing is freed one by one. */
#include "server/serve_chat_values.h"

#include "formats/base/memory.h"

#include <string.h>

static enum moec_status make_parts(struct moert_values *values, const struct moec_json *node,
                                   struct moert_value **out, struct moec_error *err)
{
    struct moert_value *item = NULL;
    if (moec_json_type(node) == MOEC_JSON_ARRAY) {
        *out = moert_value_list(values);
        for (size_t i = 0; i < moec_json_length(node); i++) {
            MOEC_TRY(serve_chat_value(values, moec_json_at(node, i), &item, err));
            moert_value_append(values, *out, item);
        }
        return MOEC_OK;
    }
    *out = moert_value_dict(values);
    for (struct moec_json_member m = moec_json_first(node); m.key != NULL; m = moec_json_next(node, m)) {
        MOEC_TRY(serve_chat_value(values, m.value, &item, err));
        moert_value_set(values, *out, m.key, item);
    }
    return MOEC_OK;
}

/* The reader bounds how deep a file nests. */
enum moec_status serve_chat_value(struct moert_values *values, const struct moec_json *node,
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

/* ---- messages of a request ---- */

/* A content of parts, joined: texts alone. */
static bool join_parts(struct moert_values *values, const struct moec_json *parts, size_t at,
                       struct moert_value **out, struct serve_problem *problem)
{
    struct moec_error err = {0};
    char *joined = NULL;
    size_t n_bytes = 0, capacity = 0;
    for (size_t i = 0; i < moec_json_length(parts); i++) {
        const struct moec_json *part = moec_json_at(parts, i), *type = moec_json_find(part, "type");
        const char *kind = "", *text = "";
        size_t n_kind = 0, n = 0;
        if (type == NULL || moec_json_as_string(type, "type", &kind, &n_kind, NULL) != MOEC_OK ||
            n_kind != 4 || memcmp(kind, "text", 4) != 0 || moec_json_find(part, "text") == NULL ||
            moec_json_as_string(moec_json_find(part, "text"), "text", &text, &n, NULL) != MOEC_OK) {
            free(joined);
            return serve_refuse(
                problem, 400, "messages",
                "part %zu of message %zu is not text: images, sounds and files are not supported", i, at);
        }
        if (moec_grow((void **)&joined, &capacity, n_bytes + n + 1, 1, "a message", &err) != MOEC_OK) {
            free(joined);
            return serve_refuse_error(problem, NULL, err.status, err.message);
        }
        memcpy(joined + n_bytes, text, n);
        n_bytes += n;
    }
    *out = moert_value_string(values, joined != NULL ? joined : "", n_bytes);
    free(joined);
    return true;
}

static bool read_message(struct moert_values *values, const struct moec_json *message, size_t at,
                         struct moert_value *list, struct serve_problem *problem)
{
    struct moec_error err = {0};
    const struct moec_json *role = moec_json_find(message, "role");
    struct moert_value *dict = moert_value_dict(values), *value = NULL;
    if (role == NULL || moec_json_type(role) != MOEC_JSON_STRING)
        return serve_refuse(problem, 400, "messages", "message %zu has no 'role'", at);
    for (struct moec_json_member m = moec_json_first(message); m.key != NULL;
         m = moec_json_next(message, m)) {
        const bool is_parts = strcmp(m.key, "content") == 0 && moec_json_type(m.value) == MOEC_JSON_ARRAY;
        if (is_parts && !join_parts(values, m.value, at, &value, problem))
            return false;
        if (!is_parts && serve_chat_value(values, m.value, &value, &err) != MOEC_OK)
            return serve_refuse_error(problem, "messages", err.status, err.message);
        moert_value_set(values, dict, m.key, value);
    }
    moert_value_append(values, list, dict);
    return true;
}

bool serve_chat_messages(struct moert_values *values, const struct moec_json *messages,
                         struct moert_value **out, struct serve_problem *problem)
{
    *out = moert_value_list(values);
    for (size_t i = 0; i < moec_json_length(messages); i++)
        if (!read_message(values, moec_json_at(messages, i), i, *out, problem))
            return false;
    return true;
}
