/* A template's pieces, one after the other. A field is looked up first among the extras, then in the row:
 * by the header's titles in CSV, by the members of a JSON object. Plain text and other JSON values have one
 * field, 'text'. */
#include "profiler/tasks/row_fields.h"

#include "formats/base/memory.h"
#include "profiler/tasks/task.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Templates may repeat a field, so a text can outgrow the file. */
#define DEFAULT_LIMIT_BYTES ((uint64_t)1 << 32)

/* Longest list of fields that a message shows. */
#define FIELD_LIST_BYTES 200

struct field_value {
    const char *bytes;
    size_t n_bytes;
    char number[40];
};

/* "'a', 'b' and 3 more": so that a wrong field name shows the right ones. */
static void list_name(char *list, size_t *used, const char *name, size_t n)
{
    if (*used + n + 8 >= FIELD_LIST_BYTES)
        return;
    *used += (size_t)snprintf(list + *used, FIELD_LIST_BYTES - *used, "%s'%.*s'", *used > 0 ? ", " : "",
                              (int)n, name);
}

static enum moec_status fail_missing(const struct moec_row_fields *fields, const char *name, size_t n,
                                     struct moec_error *err)
{
    char list[FIELD_LIST_BYTES] = "";
    size_t used = 0;
    if (fields->csv != NULL) {
        for (size_t i = 0; i < fields->header->n_cell; i++)
            list_name(list, &used, fields->header->text + fields->header->cells[i].offset,
                      fields->header->cells[i].n_bytes);
    } else if (fields->json != NULL && moec_json_type(fields->json) == MOEC_JSON_OBJECT) {
        for (struct moec_json_member m = moec_json_first(fields->json); m.key != NULL;
             m = moec_json_next(fields->json, m))
            list_name(list, &used, m.key, m.key_length);
    } else {
        list_name(list, &used, "text", 4);
    }
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "%s %" PRIu64 " of '%s' has no field '%.*s', which the task asks for; "
                     "its fields are: %s",
                     fields->unit, fields->line, fields->subject, (int)n, name, used > 0 ? list : "none");
}

/* Strings as they are, integers and booleans as JSON writes them. */
static enum moec_status json_value(const struct moec_row_fields *fields, const struct moec_json *node,
                                   const char *name, size_t n, struct field_value *value,
                                   struct moec_error *err)
{
    double number = 0;
    bool flag = false;
    switch (moec_json_type(node)) {
    case MOEC_JSON_STRING:
        return moec_json_as_string(node, name, &value->bytes, &value->n_bytes, err);
    case MOEC_JSON_INTEGER:
        MOEC_TRY(moec_json_as_double(node, name, -9e15, 9e15, &number, err));
        value->n_bytes = (size_t)snprintf(value->number, sizeof value->number, "%.0f", number);
        value->bytes = value->number;
        return MOEC_OK;
    case MOEC_JSON_REAL:
        MOEC_TRY(moec_json_as_double(node, name, -1e308, 1e308, &number, err));
        value->n_bytes = (size_t)snprintf(value->number, sizeof value->number, "%.15g", number);
        value->bytes = value->number;
        return MOEC_OK;
    case MOEC_JSON_BOOL:
        MOEC_TRY(moec_json_as_bool(node, name, &flag, err));
        value->bytes = flag ? "true" : "false";
        value->n_bytes = strlen(value->bytes);
        return MOEC_OK;
    default:
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field '%.*s' in %s %" PRIu64 " of '%s' is %s, expected a string or a number",
                         (int)n, name, fields->unit, fields->line, fields->subject,
                         moec_json_type_name(node));
    }
}

static enum moec_status find_field(const struct moec_row_fields *fields, const char *name, size_t n,
                                   struct field_value *value, struct moec_error *err)
{
    for (size_t i = 0; i < MOEC_ROW_EXTRAS; i++) {
        const struct moec_row_extra *extra = &fields->extras[i];
        if (extra->name == NULL || strlen(extra->name) != n || memcmp(extra->name, name, n) != 0)
            continue;
        value->bytes = extra->bytes;
        value->n_bytes = extra->n_bytes;
        return MOEC_OK;
    }
    if (fields->csv != NULL) {
        for (size_t i = 0; i < fields->header->n_cell; i++) {
            const struct moec_csv_cell *title = &fields->header->cells[i];
            if (title->n_bytes != n || memcmp(fields->header->text + title->offset, name, n) != 0)
                continue;
            value->bytes = fields->csv->text + fields->csv->cells[i].offset;
            value->n_bytes = fields->csv->cells[i].n_bytes;
            return MOEC_OK;
        }
        return fail_missing(fields, name, n, err);
    }
    bool is_text = n == 4 && memcmp(name, "text", 4) == 0;
    if (fields->json != NULL && moec_json_type(fields->json) == MOEC_JSON_OBJECT) {
        char key[MOEC_TASK_TEMPLATE_BYTES];
        memcpy(key, name, n);
        key[n] = '\0';
        const struct moec_json *node = moec_json_find(fields->json, key);
        return node == NULL ? fail_missing(fields, name, n, err)
                            : json_value(fields, node, name, n, value, err);
    }
    if (!is_text)
        return fail_missing(fields, name, n, err);
    if (fields->json != NULL)
        return json_value(fields, fields->json, name, n, value, err);
    value->bytes = fields->text;
    value->n_bytes = fields->text_bytes;
    return MOEC_OK;
}

static enum moec_status append(struct moec_row_text *text, const char *bytes, size_t n,
                               struct moec_error *err)
{
    const uint64_t limit = text->limit_bytes > 0 ? text->limit_bytes : DEFAULT_LIMIT_BYTES;
    text->wanted_bytes = (uint64_t)text->n_bytes + n;
    if (n > limit - text->n_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT, "the texts of the rows have more than %" PRIu64 " bytes",
                         limit);
    void *memory = text->bytes;
    enum moec_status status = /* of empty rows there is text too, to point into */
        moec_grow(&memory, &text->capacity, text->n_bytes + n + 1, 1, "text of the rows", err);
    text->bytes = memory;
    MOEC_TRY(status);
    if (n > 0)
        memcpy(text->bytes + text->n_bytes, bytes, n);
    text->n_bytes += n;
    return MOEC_OK;
}

enum moec_status moec_row_fields_render(const struct moec_row_fields *fields, const char *template,
                                        struct moec_row_text *out, struct moec_error *err)
{
    const char *piece = NULL;
    size_t n = 0;
    bool is_field = false;
    while (moec_task_template_next(&template, &piece, &n, &is_field)) {
        struct field_value value = {.bytes = piece, .n_bytes = n};
        if (is_field)
            MOEC_TRY(find_field(fields, piece, n, &value, err));
        MOEC_TRY(append(out, value.bytes, value.n_bytes, err));
    }
    return MOEC_OK;
}

enum moec_status moec_row_fields_array(const struct moec_row_fields *fields, const char *name,
                                       const struct moec_json **array, size_t *n, struct moec_error *err)
{
    if (fields->json == NULL || moec_json_type(fields->json) != MOEC_JSON_OBJECT)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "'%s' has no array '%s': only JSON rows have arrays; for other rows, give choices "
                         "as a list of templates",
                         fields->subject, name);
    *array = moec_json_find(fields->json, name);
    if (*array == NULL)
        return fail_missing(fields, name, strlen(name), err);
    if (moec_json_type(*array) != MOEC_JSON_ARRAY)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field '%s' in %s %" PRIu64 " of '%s' is %s, expected an array", name, fields->unit,
                         fields->line, fields->subject, moec_json_type_name(*array));
    *n = moec_json_length(*array);
    return MOEC_OK;
}

enum moec_status moec_row_fields_item(const struct moec_row_fields *fields, const char *name,
                                      const struct moec_json *item, struct moec_row_text *out,
                                      struct moec_error *err)
{
    struct field_value value = {0};
    MOEC_TRY(json_value(fields, item, name, strlen(name), &value, err));
    return append(out, value.bytes, value.n_bytes, err);
}
