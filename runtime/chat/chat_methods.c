/* Methods of strings, lists and dicts. */
#include "runtime/chat/chat_render.h"

#include "formats/base/utf8.h"
#include "runtime/text/letter_case.h"

#include <stdio.h>
#include <string.h>

enum of { OF_STRING = 1, OF_LIST = 2, OF_DICT = 4, OF_CHANGING = 8 };

/* What each method belongs to; those that change a value exist so that they fail as in Jinja's sandbox. */
static const struct method {
    struct moec_chat_signature signature;
    unsigned of;
} methods[] = {
    {{"get", 1, 2, ""}, OF_DICT},
    {{"items", 0, 0, ""}, OF_DICT},
    {{"keys", 0, 0, ""}, OF_DICT},
    {{"values", 0, 0, ""}, OF_DICT},
    {{"split", 0, 2, " sep maxsplit "}, OF_STRING},
    {{"rsplit", 0, 2, " sep maxsplit "}, OF_STRING},
    {{"splitlines", 0, 0, ""}, OF_STRING},
    {{"strip", 0, 1, ""}, OF_STRING},
    {{"lstrip", 0, 1, ""}, OF_STRING},
    {{"rstrip", 0, 1, ""}, OF_STRING},
    {{"startswith", 1, 1, ""}, OF_STRING},
    {{"endswith", 1, 1, ""}, OF_STRING},
    {{"removeprefix", 1, 1, ""}, OF_STRING},
    {{"removesuffix", 1, 1, ""}, OF_STRING},
    {{"replace", 2, 3, ""}, OF_STRING},
    {{"upper", 0, 0, ""}, OF_STRING},
    {{"lower", 0, 0, ""}, OF_STRING},
    {{"title", 0, 0, ""}, OF_STRING},
    {{"capitalize", 0, 0, ""}, OF_STRING},
    {{"find", 1, 1, ""}, OF_STRING},
    {{"count", 1, 1, ""}, OF_STRING | OF_LIST},
    {{"index", 1, 1, ""}, OF_LIST},
    {{"join", 1, 1, ""}, OF_STRING},
    {{"format", 0, 8, NULL}, OF_STRING},
    {{"isdigit", 0, 0, ""}, OF_STRING},
    {{"append", 0, 8, ""}, OF_LIST | OF_CHANGING},
    {{"extend", 0, 8, ""}, OF_LIST | OF_CHANGING},
    {{"insert", 0, 8, ""}, OF_LIST | OF_CHANGING},
    {{"remove", 0, 8, ""}, OF_LIST | OF_CHANGING},
    {{"reverse", 0, 8, ""}, OF_LIST | OF_CHANGING},
    {{"sort", 0, 8, ""}, OF_LIST | OF_CHANGING},
    {{"pop", 0, 8, ""}, OF_LIST | OF_DICT | OF_CHANGING},
    {{"clear", 0, 8, ""}, OF_LIST | OF_DICT | OF_CHANGING},
    {{"update", 0, 8, ""}, OF_DICT | OF_CHANGING},
    {{"setdefault", 0, 8, ""}, OF_DICT | OF_CHANGING},
};

static const struct method *find_method(const struct moec_chat_string *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (moec_chat_string_is(name, methods[i].signature.name))
            return &methods[i];
    return NULL;
}

const struct moec_chat_signature *moec_chat_method_find(const struct moec_chat_string *name)
{
    const struct method *method = find_method(name);
    return method != NULL ? &method->signature : NULL;
}

bool moec_chat_has_method(const struct moec_chat_value *value, const struct moec_chat_string *name)
{
    const unsigned of = value->kind == MOEC_CHAT_STRING ? OF_STRING
                        : value->kind == MOEC_CHAT_LIST ? OF_LIST
                        : value->kind == MOEC_CHAT_DICT ? OF_DICT
                                                        : 0;
    const struct method *method = of != 0 ? find_method(name) : NULL;
    return method != NULL && (method->of & of) != 0;
}

/* ---- strings ---- */

enum moec_status moec_chat_recase(struct moec_chat_run *run, const struct moec_chat_string *string,
                                  enum moec_chat_case letter_case, struct moec_chat_value *out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena};
    bool is_start = true;
    for (size_t at = 0; at < string->n_bytes;) {
        const struct moec_utf8_char c = moec_utf8_read(string->bytes + at, string->n_bytes - at);
        const bool is_upper = letter_case == MOEC_CHAT_UPPER || (letter_case != MOEC_CHAT_LOWER && is_start);
        const uint32_t upper = moec_letter_upper(c.code_point), lower = moec_letter_lower(c.code_point);
        char text[4];
        const size_t n = moec_utf8_write(is_upper ? upper : lower, text);
        const uint8_t mark = string->marks != NULL ? string->marks[at] : string->mark;
        MOEC_TRY(moec_chat_write(&buffer, text, n, mark, run->err));
        is_start = letter_case == MOEC_CHAT_TITLE && upper == lower;
        at += c.n_bytes;
    }
    return moec_chat_buffer_end(&buffer, out, run->err);
}

static bool has_char(const struct moec_chat_string *chars, uint32_t code_point)
{
    if (chars == NULL)
        return moec_chat_is_space(code_point);
    for (size_t at = 0; at < chars->n_bytes;) {
        const struct moec_utf8_char c = moec_utf8_read(chars->bytes + at, chars->n_bytes - at);
        if (c.code_point == code_point)
            return true;
        at += c.n_bytes;
    }
    return false;
}

enum moec_status moec_chat_strip(struct moec_chat_run *run, const struct moec_chat_string *string,
                                 const struct moec_chat_string *chars, bool start, bool end,
                                 struct moec_chat_value *out)
{
    size_t first = 0, last = string->n_bytes;
    while (start && first < last) {
        const struct moec_utf8_char c = moec_utf8_read(string->bytes + first, last - first);
        if (!has_char(chars, c.code_point))
            break;
        first += c.n_bytes;
    }
    while (end && last > first) {
        size_t at = last - 1;
        while (at > first && ((uint8_t)string->bytes[at] & 0xC0u) == 0x80)
            at--;
        if (!has_char(chars, moec_utf8_read(string->bytes + at, last - at).code_point))
            break;
        last = at;
    }
    return moec_chat_string_part(run->arena, string, first, last - first, out, run->err);
}

static const char *find_in(const struct moec_chat_string *string, size_t from,
                           const struct moec_chat_string *part)
{
    return memmem(string->bytes + from, string->n_bytes - from, part->bytes, part->n_bytes);
}

enum moec_status moec_chat_replace(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   const struct moec_chat_string *string, const struct moec_chat_string *old,
                                   const struct moec_chat_string *with, int64_t most,
                                   struct moec_chat_value *out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena};
    struct moec_chat_value part;
    size_t at = 0;
    if (old->n_bytes == 0)
        return moec_chat_run_fail(run, node, MOEC_ERR_UNSUPPORTED,
                                  "replacing an empty string is not supported");
    for (int64_t i = 0; i != most; i++) {
        const char *found = find_in(string, at, old);
        if (found == NULL)
            break;
        const size_t n = (size_t)(found - string->bytes) - at;
        MOEC_TRY(moec_chat_charge(run, node, 1));
        MOEC_TRY(moec_chat_string_part(run->arena, string, at, n, &part, run->err));
        MOEC_TRY(moec_chat_write_string(&buffer, part.as.string, run->err));
        MOEC_TRY(moec_chat_write_string(&buffer, with, run->err));
        at += n + old->n_bytes;
    }
    MOEC_TRY(moec_chat_string_part(run->arena, string, at, string->n_bytes - at, &part, run->err));
    MOEC_TRY(moec_chat_write_string(&buffer, part.as.string, run->err));
    return moec_chat_buffer_end(&buffer, out, run->err);
}

static enum moec_status append_part(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_string *string, size_t first, size_t end,
                                    struct moec_chat_list *list)
{
    struct moec_chat_value part;
    MOEC_TRY(moec_chat_charge(run, node, 1));
    MOEC_TRY(moec_chat_string_part(run->arena, string, first, end - first, &part, run->err));
    return moec_chat_list_append(run->arena, list, part, run->err);
}

/* split() at runs of whitespace. */
static enum moec_status split_words(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_string *string, int64_t most,
                                    struct moec_chat_list *list)
{
    size_t at = moec_chat_space_before(string->bytes, string->n_bytes);
    for (; at < string->n_bytes && most != 0; most--) {
        size_t end = at;
        while (end < string->n_bytes) {
            const struct moec_utf8_char c = moec_utf8_read(string->bytes + end, string->n_bytes - end);
            if (moec_chat_is_space(c.code_point))
                break;
            end += c.n_bytes;
        }
        MOEC_TRY(append_part(run, node, string, at, end, list));
        at = end + moec_chat_space_before(string->bytes + end, string->n_bytes - end);
    }
    if (at == string->n_bytes)
        return MOEC_OK;
    return append_part(run, node, string, at,
                       string->n_bytes - moec_chat_space_after(string->bytes + at, string->n_bytes - at),
                       list);
}

static enum moec_status split_at(struct moec_chat_run *run, const struct moec_chat_node *node,
                                 const struct moec_chat_string *string,
                                 const struct moec_chat_string *separator, int64_t most,
                                 struct moec_chat_list *list)
{
    size_t at = 0;
    for (; most != 0; most--) {
        const char *found = find_in(string, at, separator);
        if (found == NULL)
            break;
        MOEC_TRY(append_part(run, node, string, at, (size_t)(found - string->bytes), list));
        at = (size_t)(found - string->bytes) + separator->n_bytes;
    }
    return append_part(run, node, string, at, string->n_bytes, list);
}

/* At most so many times, counted from the end. */
static enum moec_status split_from_end(struct moec_chat_run *run, const struct moec_chat_node *node,
                                       const struct moec_chat_string *string,
                                       const struct moec_chat_string *separator, int64_t most,
                                       struct moec_chat_list *list)
{
    struct moec_chat_value all, head;
    MOEC_TRY(moec_chat_list_make(run->arena, 0, &all, run->err));
    MOEC_TRY(split_at(run, node, string, separator, -1, all.as.list));
    const size_t n = all.as.list->n;
    size_t first = most >= 0 && (uint64_t)most < n ? n - (size_t)most - 1 : 0;
    const struct moec_chat_string *last = all.as.list->items[first].as.string;
    MOEC_TRY(moec_chat_string_part(run->arena, string, 0,
                                   (size_t)(last->bytes - string->bytes) + last->n_bytes, &head, run->err));
    MOEC_TRY(moec_chat_list_append(run->arena, list, first > 0 ? head : all.as.list->items[0], run->err));
    for (size_t i = first + 1; i < n; i++)
        MOEC_TRY(moec_chat_list_append(run->arena, list, all.as.list->items[i], run->err));
    return MOEC_OK;
}

static enum moec_status split(struct moec_chat_run *run, const struct moec_chat_node *node,
                              const struct moec_chat_string *string,
                              const struct moec_chat_arguments *arguments, bool from_end,
                              struct moec_chat_value *out)
{
    const struct moec_chat_value *separator = &arguments->values[0];
    const bool at_spaces = !arguments->given[0] || separator->kind == MOEC_CHAT_NONE;
    int64_t most = -1;
    if (arguments->given[1]) {
        if (arguments->values[1].kind != MOEC_CHAT_INT)
            return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "the maxsplit of split must be an integer");
        most = arguments->values[1].as.integer;
    }
    if (!at_spaces && (separator->kind != MOEC_CHAT_STRING || separator->as.string->n_bytes == 0))
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                  "the separator of split must be a string that is not empty");
    if (from_end && at_spaces)
        return moec_chat_run_fail(run, node, MOEC_ERR_UNSUPPORTED,
                                  "the method 'rsplit' without a separator is not supported");
    MOEC_TRY(moec_chat_charge(run, node, 1 + string->n_bytes / 16));
    MOEC_TRY(moec_chat_list_make(run->arena, 0, out, run->err));
    if (at_spaces)
        return split_words(run, node, string, most, out->as.list);
    return (from_end ? split_from_end : split_at)(run, node, string, separator->as.string, most,
                                                  out->as.list);
}

static enum moec_status split_lines(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_string *string, struct moec_chat_value *out)
{
    size_t at = 0;
    MOEC_TRY(moec_chat_list_make(run->arena, 0, out, run->err));
    while (at < string->n_bytes) {
        size_t end = at;
        while (end < string->n_bytes && string->bytes[end] != '\n' && string->bytes[end] != '\r')
            end++;
        MOEC_TRY(append_part(run, node, string, at, end, out->as.list));
        at = end + 1;
        at += end + 1 < string->n_bytes && string->bytes[end] == '\r' && string->bytes[end + 1] == '\n';
    }
    return MOEC_OK;
}

static bool starts_with(const struct moec_chat_string *string, const struct moec_chat_string *part)
{
    return part->n_bytes <= string->n_bytes && memcmp(string->bytes, part->bytes, part->n_bytes) == 0;
}

static bool ends_with(const struct moec_chat_string *string, const struct moec_chat_string *part)
{
    return part->n_bytes <= string->n_bytes &&
           memcmp(string->bytes + string->n_bytes - part->n_bytes, part->bytes, part->n_bytes) == 0;
}

/* Whether it has one of the parts: one string, or a tuple of them. */
static enum moec_status has_end(struct moec_chat_run *run, const struct moec_chat_node *node,
                                const struct moec_chat_string *string, const struct moec_chat_value *parts,
                                bool at_start, struct moec_chat_value *out)
{
    bool has = false;
    const bool is_tuple = parts->kind == MOEC_CHAT_LIST && parts->as.list->is_tuple;
    const size_t n = is_tuple ? parts->as.list->n : 1;
    for (size_t i = 0; i < n; i++) {
        const struct moec_chat_value *part = is_tuple ? &parts->as.list->items[i] : parts;
        if (part->kind != MOEC_CHAT_STRING)
            return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "a string is expected here, found %s",
                                      moec_chat_kind_name(part));
        has = has || (at_start ? starts_with : ends_with)(string, part->as.string);
    }
    *out = moec_chat_bool(has);
    return MOEC_OK;
}

static int64_t count_in(const struct moec_chat_string *string, const struct moec_chat_string *part)
{
    int64_t n = 0;
    size_t at = 0;
    if (part->n_bytes == 0)
        return (int64_t)moec_chat_code_points(string) + 1;
    for (const char *found = find_in(string, 0, part); found != NULL; found = find_in(string, at, part), n++)
        at = (size_t)(found - string->bytes) + part->n_bytes;
    return n;
}

static int64_t find_code_point(const struct moec_chat_string *string, const struct moec_chat_string *part)
{
    const char *found = part->n_bytes == 0 ? string->bytes : find_in(string, 0, part);
    const struct moec_chat_string before = {.bytes = string->bytes,
                                            .n_bytes = found == NULL ? 0 : (size_t)(found - string->bytes)};
    return found == NULL ? -1 : (int64_t)moec_chat_code_points(&before);
}

static enum moec_status join(struct moec_chat_run *run, const struct moec_chat_node *node,
                             const struct moec_chat_string *separator, const struct moec_chat_value *parts,
                             struct moec_chat_value *out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena};
    struct moec_chat_list *items = NULL;
    MOEC_TRY(moec_chat_items(run, node, parts, &items));
    for (size_t i = 0; i < items->n; i++) {
        if (items->items[i].kind != MOEC_CHAT_STRING)
            return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                      "the method 'join' expects only strings, found %s",
                                      moec_chat_kind_name(&items->items[i]));
        if (i > 0)
            MOEC_TRY(moec_chat_write_string(&buffer, separator, run->err));
        MOEC_TRY(moec_chat_write_string(&buffer, items->items[i].as.string, run->err));
    }
    return moec_chat_buffer_end(&buffer, out, run->err);
}

/* Methods of strings that take one string. */
static enum moec_status call_with_string(struct moec_chat_run *run, const struct moec_chat_node *node,
                                         const struct moec_chat_string *string,
                                         const struct moec_chat_string *name,
                                         const struct moec_chat_value *argument, struct moec_chat_value *out)
{
    if (moec_chat_string_is(name, "join"))
        return join(run, node, string, argument, out);
    if (moec_chat_string_is(name, "startswith") || moec_chat_string_is(name, "endswith"))
        return has_end(run, node, string, argument, moec_chat_string_is(name, "startswith"), out);
    if (argument->kind != MOEC_CHAT_STRING)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "a string is expected here, found %s",
                                  moec_chat_kind_name(argument));
    const struct moec_chat_string *part = argument->as.string;
    size_t first = 0, n = string->n_bytes;
    MOEC_TRY(moec_chat_charge(run, node, 1 + string->n_bytes / 16));
    if (moec_chat_string_is(name, "count") || moec_chat_string_is(name, "find")) {
        *out = moec_chat_int(moec_chat_string_is(name, "count") ? count_in(string, part)
                                                                : find_code_point(string, part));
        return MOEC_OK;
    }
    if (moec_chat_string_is(name, "removeprefix") && starts_with(string, part))
        first = part->n_bytes;
    if (moec_chat_string_is(name, "removesuffix") && ends_with(string, part))
        n -= part->n_bytes;
    return moec_chat_string_part(run->arena, string, first, n - first, out, run->err);
}

static bool is_number_text(const struct moec_chat_string *string)
{
    bool is = string->n_bytes > 0;
    for (size_t i = 0; i < string->n_bytes; i++)
        is = is && string->bytes[i] >= '0' && string->bytes[i] <= '9';
    return is;
}

static enum moec_status replace_method(struct moec_chat_run *run, const struct moec_chat_node *node,
                                       const struct moec_chat_string *string,
                                       const struct moec_chat_arguments *arguments,
                                       struct moec_chat_value *out)
{
    const struct moec_chat_value *values = arguments->values;
    int64_t most = -1;
    if (values[0].kind != MOEC_CHAT_STRING || values[1].kind != MOEC_CHAT_STRING ||
        (arguments->given[2] && values[2].kind != MOEC_CHAT_INT))
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                  "the method 'replace' takes two strings and an optional integer");
    if (arguments->given[2])
        most = values[2].as.integer < 0 ? -1 : values[2].as.integer;
    MOEC_TRY(moec_chat_charge(run, node, 1 + string->n_bytes / 16));
    return moec_chat_replace(run, node, string, values[0].as.string, values[1].as.string, most, out);
}

static enum moec_status strip_method(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_string *string,
                                     const struct moec_chat_string *name,
                                     const struct moec_chat_arguments *arguments, struct moec_chat_value *out)
{
    const struct moec_chat_value *chars = &arguments->values[0];
    const bool has_chars = arguments->given[0] && chars->kind != MOEC_CHAT_NONE;
    if (has_chars && chars->kind != MOEC_CHAT_STRING)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "the method 'strip' takes a string, found %s",
                                  moec_chat_kind_name(chars));
    MOEC_TRY(
        moec_chat_charge(run, node, 1 + string->n_bytes / 16 * (has_chars ? chars->as.string->n_bytes : 1)));
    return moec_chat_strip(run, string, has_chars ? chars->as.string : NULL,
                           !moec_chat_string_is(name, "rstrip"), !moec_chat_string_is(name, "lstrip"), out);
}

static enum moec_status call_of_string(struct moec_chat_run *run, const struct moec_chat_node *node,
                                       const struct moec_chat_string *string,
                                       const struct moec_chat_string *name,
                                       const struct moec_chat_arguments *arguments,
                                       struct moec_chat_value *out)
{
    static const struct {
        const char *name;
        enum moec_chat_case letter_case;
    } cases[] = {{"upper", MOEC_CHAT_UPPER},
                 {"lower", MOEC_CHAT_LOWER},
                 {"title", MOEC_CHAT_TITLE},
                 {"capitalize", MOEC_CHAT_CAPITALIZE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (moec_chat_string_is(name, cases[i].name)) {
            MOEC_TRY(moec_chat_charge(run, node, 1 + string->n_bytes / 4));
            return moec_chat_recase(run, string, cases[i].letter_case, out);
        }
    if (moec_chat_string_is(name, "split") || moec_chat_string_is(name, "rsplit"))
        return split(run, node, string, arguments, moec_chat_string_is(name, "rsplit"), out);
    if (moec_chat_string_is(name, "splitlines"))
        return split_lines(run, node, string, out);
    if (moec_chat_string_is(name, "replace"))
        return replace_method(run, node, string, arguments, out);
    if (moec_chat_string_is(name, "format"))
        return moec_chat_format(run, node, string, arguments, out);
    if (moec_chat_string_is(name, "isdigit")) {
        *out = moec_chat_bool(is_number_text(string));
        return MOEC_OK;
    }
    if (name->n_bytes >= 5 && memcmp(name->bytes + name->n_bytes - 5, "strip", 5) == 0)
        return strip_method(run, node, string, name, arguments, out);
    return call_with_string(run, node, string, name, &arguments->values[0], out);
}

/* ---- dicts and lists ---- */

static enum moec_status call_of_dict(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_dict *dict, const struct moec_chat_string *name,
                                     const struct moec_chat_arguments *arguments, struct moec_chat_value *out)
{
    MOEC_TRY(moec_chat_charge(run, node, 1 + dict->n));
    if (moec_chat_string_is(name, "get")) {
        const struct moec_chat_value *found = moec_chat_dict_find(dict, &arguments->values[0]);
        *out = found != NULL ? *found : arguments->given[1] ? arguments->values[1] : moec_chat_none();
        return MOEC_OK;
    }
    const bool has_keys = !moec_chat_string_is(name, "values"),
               has_values = !moec_chat_string_is(name, "keys");
    MOEC_TRY(moec_chat_list_make(run->arena, dict->n, out, run->err));
    for (size_t i = 0; i < dict->n; i++) {
        struct moec_chat_value item = has_keys ? dict->pairs[i].key : dict->pairs[i].value;
        if (has_keys && has_values) {
            MOEC_TRY(moec_chat_list_make(run->arena, 2, &item, run->err));
            item.as.list->is_tuple = true;
            MOEC_TRY(moec_chat_list_append(run->arena, item.as.list, dict->pairs[i].key, run->err));
            MOEC_TRY(moec_chat_list_append(run->arena, item.as.list, dict->pairs[i].value, run->err));
        }
        MOEC_TRY(moec_chat_list_append(run->arena, out->as.list, item, run->err));
    }
    return MOEC_OK;
}

static enum moec_status call_of_list(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_value *value, const struct moec_chat_string *name,
                                     const struct moec_chat_value *argument, struct moec_chat_value *out)
{
    const struct moec_chat_list *list = value->as.list;
    int64_t n = 0, first = -1;
    MOEC_TRY(moec_chat_charge(run, node, moec_chat_weight(value)));
    for (size_t i = 0; i < list->n; i++)
        if (moec_chat_equal(&list->items[i], argument)) {
            first = first < 0 ? (int64_t)i : first;
            n++;
        }
    if (moec_chat_string_is(name, "index") && first < 0)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                  "the method 'index' does not find its value in the list");
    *out = moec_chat_int(moec_chat_string_is(name, "index") ? first : n);
    return MOEC_OK;
}

enum moec_status moec_chat_call_method(struct moec_chat_run *run, const struct moec_chat_node *node,
                                       const struct moec_chat_value *object,
                                       const struct moec_chat_string *name,
                                       const struct moec_chat_arguments *arguments,
                                       struct moec_chat_value *out)
{
    if (!moec_chat_has_method(object, name))
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "a %s has no method '%.*s'",
                                  moec_chat_kind_name(object), (int)name->n_bytes, name->bytes);
    if ((find_method(name)->of & OF_CHANGING) != 0)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                  "the method '%.*s' would change a value, which Jinja's sandbox does not "
                                  "allow",
                                  (int)name->n_bytes, name->bytes);
    if (object->kind == MOEC_CHAT_STRING)
        return call_of_string(run, node, object->as.string, name, arguments, out);
    if (object->kind == MOEC_CHAT_DICT)
        return call_of_dict(run, node, object->as.dict, name, arguments, out);
    return call_of_list(run, node, object, name, &arguments->values[0], out);
}
