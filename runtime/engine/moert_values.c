/* Values that a caller makes for chat templates. The first failure is kept, and told when a conversation is
 * rendered: until then callers go on with a spare value. */
#include "runtime/engine/moert_values.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"
#include "runtime/engine/moert_internal.h"

#include <stdlib.h>
#include <string.h>

enum moert_status moert_values_create(struct moert_values **out, struct moert_error *err)
{
    struct moec_error ours = {0};
    void *memory = NULL;
    const enum moec_status status = moec_alloc(&memory, 1, sizeof(struct moert_values), "values", &ours);
    if (status == MOEC_OK)
        *out = memory;
    return moert_to_public(status, &ours, err);
}

void moert_values_free(struct moert_values *values)
{
    if (values == NULL)
        return;
    moec_chat_arena_release(&values->arena);
    free(values);
}

static struct moert_value *keep(struct moert_values *values, enum moec_status status,
                                struct moec_chat_value value)
{
    void *memory = NULL;
    if (status == MOEC_OK)
        status = moec_chat_alloc(&values->arena, sizeof value, &memory, &values->failure);
    if (status != MOEC_OK)
        return (struct moert_value *)&values->spare;
    *(struct moec_chat_value *)memory = value;
    return memory;
}

struct moert_value *moert_value_null(struct moert_values *values)
{
    return keep(values, MOEC_OK, moec_chat_none());
}

struct moert_value *moert_value_bool(struct moert_values *values, bool value)
{
    return keep(values, MOEC_OK, moec_chat_bool(value));
}

struct moert_value *moert_value_int(struct moert_values *values, int64_t value)
{
    return keep(values, MOEC_OK, moec_chat_int(value));
}

struct moert_value *moert_value_double(struct moert_values *values, double value)
{
    return keep(values, MOEC_OK, moec_chat_float(value));
}

static enum moec_status make_string(struct moert_values *values, const char *text, size_t n_bytes,
                                    struct moec_chat_value *out)
{
    if (moec_utf8_valid_bytes(text, n_bytes) != n_bytes)
        return moec_fail(&values->failure, MOEC_ERR_USAGE,
                         "a text for a chat template is not UTF-8 at byte %zu",
                         moec_utf8_valid_bytes(text, n_bytes));
    return moec_chat_string_make(&values->arena, text, n_bytes, 1, out, &values->failure);
}

struct moert_value *moert_value_string(struct moert_values *values, const char *text, size_t n_bytes)
{
    struct moec_chat_value made = moec_chat_none();
    const enum moec_status status = make_string(values, text, n_bytes, &made);
    return keep(values, status, made);
}

struct moert_value *moert_value_list(struct moert_values *values)
{
    struct moec_chat_value made = moec_chat_none();
    const enum moec_status status = moec_chat_list_make(&values->arena, 0, &made, &values->failure);
    return keep(values, status, made);
}

struct moert_value *moert_value_dict(struct moert_values *values)
{
    struct moec_chat_value made = moec_chat_none();
    const enum moec_status status = moec_chat_dict_make(&values->arena, &made, &values->failure);
    return keep(values, status, made);
}

void moert_value_append(struct moert_values *values, struct moert_value *list, const struct moert_value *item)
{
    const struct moec_chat_value *to = moert_value_inner(list);
    enum moec_status status = MOEC_OK;
    if (to->kind == MOEC_CHAT_LIST)
        status =
            moec_chat_list_append(&values->arena, to->as.list, *moert_value_inner(item), &values->failure);
    else
        status = moec_fail(&values->failure, MOEC_ERR_USAGE,
                           "a value is appended to something that is not a list");
    (void)status; /* kept in the values */
}

void moert_value_set(struct moert_values *values, struct moert_value *dict, const char *key,
                     const struct moert_value *value)
{
    const struct moec_chat_value *to = moert_value_inner(dict);
    struct moec_chat_value name;
    enum moec_status status = MOEC_OK;
    if (to->kind != MOEC_CHAT_DICT)
        status =
            moec_fail(&values->failure, MOEC_ERR_USAGE, "a value is set in something that is not a dict");
    else
        status = make_string(values, key, strlen(key), &name);
    if (status == MOEC_OK)
        status = moec_chat_dict_set(&values->arena, to->as.dict, name, *moert_value_inner(value),
                                    &values->failure);
    (void)status; /* kept in the values */
}
