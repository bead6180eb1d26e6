/* Numbers print as Python's repr: the fewest digits that read back as the same double, an exponent below
 * 1e-4 and from 1e16 on. Every written byte keeps its mark, also where it is escaped: text of a user stays
 * marked as the user's in repr and JSON. */
#include "runtime/chat/chat_render.h"

#include "formats/base/utf8.h"
#include "runtime/text/letter_case.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

/* The shortest digits that read back as the same number, as Python's repr has them. */
static void float_text(double number, char text[static 40])
{
    char digits[32], plain[24];
    int precision = 0, n_digit = 0, at = 0;
    if (isnan(number) || isinf(number)) {
        (void)snprintf(text, 40, "%s", isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
        return;
    }
    do
        (void)snprintf(digits, sizeof digits, "%.*e", precision, fabs(number));
    while (strtod(digits, NULL) < fabs(number) || strtod(digits, NULL) > fabs(number) ? ++precision < 17
                                                                                      : false);
    const char *exponent_text = strchr(digits, 'e');
    const int exponent = exponent_text != NULL ? (int)strtol(exponent_text + 1, NULL, 10) : 0;
    for (const char *c = digits; *c != '\0' && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9')
            plain[n_digit++] = *c;
    while (n_digit > 1 && plain[n_digit - 1] == '0')
        n_digit--;
    if (signbit(number))
        text[at++] = '-';
    if (exponent < -4 || exponent >= 16) {
        text[at++] = plain[0];
        if (n_digit > 1)
            at += snprintf(text + at, (size_t)(40 - at), ".%.*s", n_digit - 1, plain + 1);
        (void)snprintf(text + at, (size_t)(40 - at), "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0)
        at += snprintf(text + at, (size_t)(40 - at), "0.%.*s", -exponent - 1, "0000");
    for (int i = 0; i < n_digit || i <= exponent; i++) {
        text[at++] = (char)(i < n_digit ? plain[i] : '0');
        if (i == exponent && i + 1 < n_digit)
            text[at++] = '.';
    }
    text[at] = '\0';
    if (exponent >= 0 && n_digit <= exponent + 1)
        (void)snprintf(text + at, (size_t)(40 - at), ".0");
}

static enum moec_status write_text(struct moec_chat_buffer *out, const char *text, struct moec_error *err)
{
    return moec_chat_write(out, text, strlen(text), 0, err);
}

static enum moec_status write_number(struct moec_chat_run *run, const struct moec_chat_value *value,
                                     struct moec_chat_buffer *out)
{
    char text[40];
    if (value->kind == MOEC_CHAT_FLOAT)
        float_text(value->as.number, text);
    else
        (void)snprintf(text, sizeof text, "%" PRId64, value->as.integer);
    return write_text(out, text, run->err);
}

/* ---- str and repr ---- */

/* A character as repr shows it inside quotes. */
static enum moec_status write_repr_char(struct moec_chat_run *run, const struct moec_chat_string *string,
                                        size_t at, struct moec_utf8_char c, char quote,
                                        struct moec_chat_buffer *out)
{
    static const char from[] = "\n\r\t\\", to[] = "nrt\\";
    const uint8_t mark = string->marks != NULL ? string->marks[at] : string->mark;
    const uint32_t code = c.code_point;
    const char *simple = code < 0x80 && code != 0 ? strchr(from, (int)code) : NULL;
    char text[16];
    if (simple != NULL || code == (uint32_t)quote)
        (void)snprintf(text, sizeof text, "\\%c", simple != NULL ? to[simple - from] : quote);
    else if (moec_letter_prints(code))
        return moec_chat_write(out, string->bytes + at, c.n_bytes, mark, run->err);
    else
        (void)snprintf(text, sizeof text,
                       code < 0x100     ? "\\x%02" PRIx32
                       : code < 0x10000 ? "\\u%04" PRIx32
                                        : "\\U%08" PRIx32,
                       code);
    return moec_chat_write(out, text, strlen(text), mark, run->err);
}

static enum moec_status write_repr(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   const struct moec_chat_string *string, struct moec_chat_buffer *out)
{
    const bool has_single = memchr(string->bytes, '\'', string->n_bytes) != NULL;
    const bool has_double = memchr(string->bytes, '"', string->n_bytes) != NULL;
    const char quote = has_single && !has_double ? '"' : '\'';
    MOEC_TRY(moec_chat_charge(run, node, string->n_bytes / 16));
    MOEC_TRY(moec_chat_write(out, &quote, 1, 0, run->err));
    for (size_t at = 0; at < string->n_bytes;) {
        const struct moec_utf8_char c = moec_utf8_read(string->bytes + at, string->n_bytes - at);
        MOEC_TRY(write_repr_char(run, string, at, c, quote, out));
        at += c.n_bytes;
    }
    return moec_chat_write(out, &quote, 1, 0, run->err);
}

static enum moec_status print_within(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_value *value, bool is_inside,
                                     struct moec_chat_buffer *out);

static enum moec_status print_list(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   const struct moec_chat_list *list, struct moec_chat_buffer *out)
{
    MOEC_TRY(write_text(out, list->is_tuple ? "(" : "[", run->err));
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0)
            MOEC_TRY(write_text(out, ", ", run->err));
        MOEC_TRY(print_within(run, node, &list->items[i], true, out));
    }
    if (list->is_tuple && list->n == 1)
        MOEC_TRY(write_text(out, ",", run->err));
    return write_text(out, list->is_tuple ? ")" : "]", run->err);
}

static enum moec_status print_dict(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   const struct moec_chat_dict *dict, struct moec_chat_buffer *out)
{
    MOEC_TRY(write_text(out, "{", run->err));
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0)
            MOEC_TRY(write_text(out, ", ", run->err));
        MOEC_TRY(print_within(run, node, &dict->pairs[i].key, true, out));
        MOEC_TRY(write_text(out, ": ", run->err));
        MOEC_TRY(print_within(run, node, &dict->pairs[i].value, true, out));
    }
    return write_text(out, "}", run->err);
}

static enum moec_status print_within(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_value *value, bool is_inside,
                                     struct moec_chat_buffer *out)
{
    MOEC_TRY(moec_chat_charge(run, node, 1));
    switch (value->kind) {
    case MOEC_CHAT_UNDEFINED:
        return is_inside ? write_text(out, "Undefined", run->err) : MOEC_OK;
    case MOEC_CHAT_NONE:
        return write_text(out, "None", run->err);
    case MOEC_CHAT_BOOL:
        return write_text(out, value->as.boolean ? "True" : "False", run->err);
    case MOEC_CHAT_INT:
    case MOEC_CHAT_FLOAT:
        return write_number(run, value, out);
    case MOEC_CHAT_STRING:
        return is_inside ? write_repr(run, node, value->as.string, out)
                         : moec_chat_write_string(out, value->as.string, run->err);
    case MOEC_CHAT_LIST:
        return print_list(run, node, value->as.list, out);
    case MOEC_CHAT_DICT:
        return print_dict(run, node, value->as.dict, out);
    case MOEC_CHAT_NAMESPACE:
    case MOEC_CHAT_LOOP:
    case MOEC_CHAT_MACRO:
    case MOEC_CHAT_METHOD:
        break;
    }
    return moec_chat_run_fail(run, node, MOEC_ERR_UNSUPPORTED, "printing a value of type %s is not supported",
                              moec_chat_kind_name(value));
}

enum moec_status moec_chat_print(struct moec_chat_run *run, const struct moec_chat_node *node,
                                 const struct moec_chat_value *value, struct moec_chat_buffer *out)
{
    return print_within(run, node, value, false, out);
}

enum moec_status moec_chat_print_repr(struct moec_chat_run *run, const struct moec_chat_node *node,
                                      const struct moec_chat_value *value, struct moec_chat_buffer *out)
{
    return print_within(run, node, value, true, out);
}

enum moec_status moec_chat_to_string(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_value *value, const struct moec_chat_string **out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena};
    struct moec_chat_value text = *value;
    if (value->kind != MOEC_CHAT_STRING) {
        MOEC_TRY(moec_chat_print(run, node, value, &buffer));
        MOEC_TRY(moec_chat_buffer_end(&buffer, &text, run->err));
    }
    *out = text.as.string;
    return MOEC_OK;
}

/* ---- JSON ---- */

static enum moec_status write_json_char(struct moec_chat_run *run, const struct moec_chat_string *string,
                                        size_t at, struct moec_utf8_char c, bool ensure_ascii,
                                        struct moec_chat_buffer *out)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const uint8_t mark = string->marks != NULL ? string->marks[at] : string->mark;
    const uint32_t code = c.code_point;
    const char *simple = code < 0x80 && code != 0 ? strchr(from, (int)code) : NULL;
    char text[16];
    if (simple != NULL)
        (void)snprintf(text, sizeof text, "\\%c", to[simple - from]);
    else if (code >= 0x20 && (code < 0x7F || !ensure_ascii))
        return moec_chat_write(out, string->bytes + at, c.n_bytes, mark, run->err);
    else if (code >= 0x10000)
        (void)snprintf(text, sizeof text, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xD800 + ((code - 0x10000) >> 10),
                       0xDC00 + ((code - 0x10000) & 0x3FF));
    else if (code == 0x7F)
        return moec_chat_write(out, string->bytes + at, c.n_bytes, mark, run->err);
    else
        (void)snprintf(text, sizeof text, "\\u%04" PRIx32, code);
    return moec_chat_write(out, text, strlen(text), mark, run->err);
}

static enum moec_status write_json_string(struct moec_chat_run *run, const struct moec_chat_node *node,
                                          const struct moec_chat_string *string, bool ensure_ascii,
                                          struct moec_chat_buffer *out)
{
    MOEC_TRY(moec_chat_charge(run, node, string->n_bytes / 16));
    MOEC_TRY(write_text(out, "\"", run->err));
    for (size_t at = 0; at < string->n_bytes;) {
        const struct moec_utf8_char c = moec_utf8_read(string->bytes + at, string->n_bytes - at);
        MOEC_TRY(write_json_char(run, string, at, c, ensure_ascii, out));
        at += c.n_bytes;
    }
    return write_text(out, "\"", run->err);
}

/* With an indent, a line break and so many levels of it. */
static enum moec_status write_break(struct moec_chat_run *run, const struct moec_chat_json *options,
                                    int level, struct moec_chat_buffer *out)
{
    if (options->indent < 0)
        return MOEC_OK;
    MOEC_TRY(write_text(out, "\n", run->err));
    for (int i = 0; i < level * options->indent; i++)
        MOEC_TRY(write_text(out, " ", run->err));
    return MOEC_OK;
}

static enum moec_status json_within(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_value *value, const struct moec_chat_json *options,
                                    int level, struct moec_chat_buffer *out);

static enum moec_status json_list(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  const struct moec_chat_list *list, const struct moec_chat_json *options,
                                  int level, struct moec_chat_buffer *out)
{
    if (list->n == 0)
        return write_text(out, "[]", run->err);
    MOEC_TRY(write_text(out, "[", run->err));
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0)
            MOEC_TRY(moec_chat_write_string(out, options->item_separator, run->err));
        MOEC_TRY(write_break(run, options, level + 1, out));
        MOEC_TRY(json_within(run, node, &list->items[i], options, level + 1, out));
    }
    MOEC_TRY(write_break(run, options, level, out));
    return write_text(out, "]", run->err);
}

static int compare_keys(const void *a, const void *b)
{
    int order = 0;
    const struct moec_chat_pair *x = a, *y = b;
    return moec_chat_order(&x->key, &y->key, &order) ? order : 0;
}

static enum moec_status json_dict(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  const struct moec_chat_dict *dict, const struct moec_chat_json *options,
                                  int level, struct moec_chat_buffer *out)
{
    const struct moec_chat_pair *pairs = dict->pairs;
    if (dict->n == 0)
        return write_text(out, "{}", run->err);
    if (options->sort_keys) {
        void *sorted = NULL;
        MOEC_TRY(moec_chat_alloc(run->arena, dict->n * sizeof *pairs, &sorted, run->err));
        memcpy(sorted, pairs, dict->n * sizeof *pairs);
        qsort(sorted, dict->n, sizeof *pairs, compare_keys);
        pairs = sorted;
    }
    MOEC_TRY(write_text(out, "{", run->err));
    for (size_t i = 0; i < dict->n; i++) {
        const struct moec_chat_string *key = NULL;
        if (i > 0)
            MOEC_TRY(moec_chat_write_string(out, options->item_separator, run->err));
        MOEC_TRY(write_break(run, options, level + 1, out));
        MOEC_TRY(moec_chat_to_string(run, node, &pairs[i].key, &key));
        MOEC_TRY(write_json_string(run, node, key, options->ensure_ascii, out));
        MOEC_TRY(moec_chat_write_string(out, options->key_separator, run->err));
        MOEC_TRY(json_within(run, node, &pairs[i].value, options, level + 1, out));
    }
    MOEC_TRY(write_break(run, options, level, out));
    return write_text(out, "}", run->err);
}

static enum moec_status json_within(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_value *value, const struct moec_chat_json *options,
                                    int level, struct moec_chat_buffer *out)
{
    MOEC_TRY(moec_chat_charge(run, node, 1));
    switch (value->kind) {
    case MOEC_CHAT_NONE:
        return write_text(out, "null", run->err);
    case MOEC_CHAT_BOOL:
        return write_text(out, value->as.boolean ? "true" : "false", run->err);
    case MOEC_CHAT_INT:
        return write_number(run, value, out);
    case MOEC_CHAT_FLOAT:
        if (isnan(value->as.number) || isinf(value->as.number))
            return write_text(out,
                              isnan(value->as.number) ? "NaN"
                              : value->as.number > 0  ? "Infinity"
                                                      : "-Infinity",
                              run->err);
        return write_number(run, value, out);
    case MOEC_CHAT_STRING:
        return write_json_string(run, node, value->as.string, options->ensure_ascii, out);
    case MOEC_CHAT_LIST:
        return json_list(run, node, value->as.list, options, level, out);
    case MOEC_CHAT_DICT:
        return json_dict(run, node, value->as.dict, options, level, out);
    case MOEC_CHAT_UNDEFINED:
    case MOEC_CHAT_NAMESPACE:
    case MOEC_CHAT_LOOP:
    case MOEC_CHAT_MACRO:
    case MOEC_CHAT_METHOD:
        break;
    }
    return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "a value of type %s cannot be written as JSON",
                              moec_chat_kind_name(value));
}

enum moec_status moec_chat_print_json(struct moec_chat_run *run, const struct moec_chat_node *node,
                                      const struct moec_chat_value *value,
                                      const struct moec_chat_json *options, struct moec_chat_buffer *out)
{
    return json_within(run, node, value, options, 0, out);
}
