/* A table of filters by name; each gets its arguments bound by the signature in the table. Filters cost what
 * they look at, and sorting is charged for each comparison. Sorting is a stable insertion sort because order
 * must equal Python's. Filters that call others (map, select) check the name and the arguments before the
 * first item. */
#include "runtime/chat/chat_render.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A filter at work. */
struct filtering {
    struct moec_chat_run *run;
    const struct moec_chat_node *node;
    const struct moec_chat_string *name;
    const struct moec_chat_value *input;
    const struct moec_chat_arguments *arguments;
    struct moec_chat_value *out;
};
typedef enum moec_status filter_fn(const struct filtering *f);

static enum moec_status fail(const struct filtering *f, const char *what)
{
    return moec_chat_run_fail(f->run, f->node, MOEC_ERR_FORMAT,
                              "the filter '%.*s' %s (its input has type %s)", (int)f->name->n_bytes,
                              f->name->bytes, what, moec_chat_kind_name(f->input));
}

/* The argument at a place, or NULL. */
static const struct moec_chat_value *argument(const struct filtering *f, size_t place)
{
    return f->arguments->given[place] ? &f->arguments->values[place] : NULL;
}

static bool flag(const struct filtering *f, size_t place, bool otherwise)
{
    return argument(f, place) != NULL ? moec_chat_truth(argument(f, place)) : otherwise;
}

static enum moec_status text_of(const struct filtering *f, const struct moec_chat_value *value,
                                const struct moec_chat_string **out)
{
    return moec_chat_to_string(f->run, f->node, value, out);
}

static struct moec_chat_value string_value(const struct moec_chat_string *string)
{
    return (struct moec_chat_value){.kind = MOEC_CHAT_STRING, .as.string = string};
}

/* ---- text ---- */

static enum moec_status filter_string(const struct filtering *f)
{
    const struct moec_chat_string *text = NULL;
    MOEC_TRY(text_of(f, f->input, &text));
    *f->out = string_value(text);
    return MOEC_OK;
}

static enum moec_status filter_case(const struct filtering *f)
{
    const struct moec_chat_string *text = NULL;
    MOEC_TRY(text_of(f, f->input, &text));
    MOEC_TRY(moec_chat_charge(f->run, f->node, 1 + text->n_bytes / 4));
    const char first = f->name->bytes[0];
    return moec_chat_recase(f->run, text,
                            first == 'u'   ? MOEC_CHAT_UPPER
                            : first == 'l' ? MOEC_CHAT_LOWER
                            : first == 't' ? MOEC_CHAT_TITLE
                                           : MOEC_CHAT_CAPITALIZE,
                            f->out);
}

static enum moec_status filter_trim(const struct filtering *f)
{
    const struct moec_chat_string *text = NULL, *chars = NULL;
    MOEC_TRY(text_of(f, f->input, &text));
    if (argument(f, 0) != NULL && argument(f, 0)->kind == MOEC_CHAT_STRING)
        chars = argument(f, 0)->as.string;
    MOEC_TRY(
        moec_chat_charge(f->run, f->node, 1 + text->n_bytes / 16 * (chars != NULL ? chars->n_bytes : 1)));
    return moec_chat_strip(f->run, text, chars, true, true, f->out);
}

static enum moec_status filter_replace(const struct filtering *f)
{
    const struct moec_chat_string *text = NULL, *old = NULL, *with = NULL;
    MOEC_TRY(text_of(f, f->input, &text));
    MOEC_TRY(text_of(f, argument(f, 0) != NULL ? argument(f, 0) : f->input, &old));
    MOEC_TRY(text_of(f, argument(f, 1) != NULL ? argument(f, 1) : f->input, &with));
    MOEC_TRY(moec_chat_charge(f->run, f->node, 1 + text->n_bytes / 16));
    const struct moec_chat_value *count = argument(f, 2);
    return moec_chat_replace(f->run, f->node, text, old, with,
                             count != NULL && count->kind == MOEC_CHAT_INT ? count->as.integer : -1, f->out);
}

/* Every line but the first, and but those that are empty, behind so many spaces. */
static enum moec_status filter_indent(const struct filtering *f)
{
    struct moec_chat_buffer buffer = {.arena = f->run->arena};
    const struct moec_chat_string *text = NULL;
    const struct moec_chat_value *width = argument(f, 0);
    struct moec_chat_value part;
    char spaces[64];
    memset(spaces, ' ', sizeof spaces);
    MOEC_TRY(text_of(f, f->input, &text));
    if (width != NULL && (width->kind != MOEC_CHAT_INT || width->as.integer < 0 || width->as.integer > 64))
        return fail(f, "supports only indents of 0 to 64 spaces");
    const size_t n_space = width != NULL ? (size_t)width->as.integer : 4;
    bool indents = flag(f, 1, false);
    for (size_t at = 0; at <= text->n_bytes;) {
        const char *found = at < text->n_bytes ? memchr(text->bytes + at, '\n', text->n_bytes - at) : NULL;
        const size_t end = found != NULL ? (size_t)(found - text->bytes) : text->n_bytes;
        MOEC_TRY(moec_chat_charge(f->run, f->node, 1));
        if (indents && (end > at || flag(f, 2, false)))
            MOEC_TRY(moec_chat_write(&buffer, spaces, n_space, 0, f->run->err));
        MOEC_TRY(
            moec_chat_string_part(f->run->arena, text, at, end - at + (found != NULL), &part, f->run->err));
        MOEC_TRY(moec_chat_write_string(&buffer, part.as.string, f->run->err));
        at = end + 1;
        indents = true;
    }
    return moec_chat_buffer_end(&buffer, f->out, f->run->err);
}

/* "%s, %s"|format(a, b), or with names. */
static enum moec_status filter_format(const struct filtering *f)
{
    const struct moec_chat_string *text = NULL;
    struct moec_chat_value names;
    MOEC_TRY(text_of(f, f->input, &text));
    MOEC_TRY(moec_chat_dict_make(f->run->arena, &names, f->run->err));
    for (size_t i = 0; i < MOEC_CHAT_MAX_ARGUMENTS; i++)
        if (f->arguments->names[i] != NULL)
            MOEC_TRY(moec_chat_dict_set(f->run->arena, names.as.dict, string_value(f->arguments->names[i]),
                                        f->arguments->values[i], f->run->err));
    if (names.as.dict->n > 0 && f->arguments->n > 0)
        return fail(f, "takes values with names or without names, not both");
    const struct moec_chat_format_values values = {
        .items = f->arguments->values, .n = f->arguments->n, .names = names.as.dict};
    return moec_chat_percent(f->run, f->node, text, &values, f->out);
}

static enum moec_status filter_tojson(const struct filtering *f)
{
    static const struct moec_chat_string comma = {.bytes = ", ", .n_bytes = 2},
                                         bare = {.bytes = ",", .n_bytes = 1},
                                         colon = {.bytes = ": ", .n_bytes = 2};
    struct moec_chat_buffer buffer = {.arena = f->run->arena};
    const struct moec_chat_value *indent = argument(f, 1), *separators = argument(f, 2);
    struct moec_chat_json options = {.ensure_ascii = flag(f, 0, false),
                                     .sort_keys = flag(f, 3, false),
                                     .indent = -1,
                                     .key_separator = &colon};
    if (indent != NULL && indent->kind != MOEC_CHAT_NONE) {
        if (indent->kind != MOEC_CHAT_INT || indent->as.integer < 0 || indent->as.integer > 64)
            return fail(f, "supports only indents of 0 to 64 spaces");
        options.indent = (int)indent->as.integer;
    }
    options.item_separator = options.indent >= 0 ? &bare : &comma;
    if (separators != NULL && separators->kind != MOEC_CHAT_NONE) {
        if (separators->kind != MOEC_CHAT_LIST || separators->as.list->n != 2)
            return fail(f, "takes a list of two separators");
        MOEC_TRY(text_of(f, &separators->as.list->items[0], &options.item_separator));
        MOEC_TRY(text_of(f, &separators->as.list->items[1], &options.key_separator));
    }
    MOEC_TRY(moec_chat_print_json(f->run, f->node, f->input, &options, &buffer));
    return moec_chat_buffer_end(&buffer, f->out, f->run->err);
}

/* ---- one value ---- */

static enum moec_status filter_default(const struct filtering *f)
{
    const bool is_missing =
        f->input->kind == MOEC_CHAT_UNDEFINED || (flag(f, 1, false) && !moec_chat_truth(f->input));
    *f->out = *f->input;
    if (is_missing && argument(f, 0) != NULL)
        *f->out = *argument(f, 0);
    else if (is_missing)
        return moec_chat_string_make(f->run->arena, "", 0, 0, f->out, f->run->err);
    return MOEC_OK;
}

static enum moec_status filter_length(const struct filtering *f)
{
    size_t n = 0;
    switch (f->input->kind) {
    case MOEC_CHAT_STRING:
        MOEC_TRY(moec_chat_charge(f->run, f->node, 1 + f->input->as.string->n_bytes / 16));
        n = moec_chat_code_points(f->input->as.string);
        break;
    case MOEC_CHAT_LIST:
        n = f->input->as.list->n;
        break;
    case MOEC_CHAT_DICT:
        n = f->input->as.dict->n;
        break;
    case MOEC_CHAT_UNDEFINED:
        break;
    default:
        return fail(f, "needs a string, a list or a dict");
    }
    *f->out = moec_chat_int((int64_t)n);
    return MOEC_OK;
}

static enum moec_status filter_int(const struct filtering *f)
{
    char text[64], *end = text;
    const bool is_short = f->input->kind == MOEC_CHAT_STRING && f->input->as.string->n_bytes < sizeof text;
    double number = 0;
    *f->out = argument(f, 0) != NULL ? *argument(f, 0) : moec_chat_int(0);
    if (moec_chat_is_number(f->input)) {
        number = moec_chat_as_float(f->input);
    } else if (is_short) {
        memcpy(text, f->input->as.string->bytes, f->input->as.string->n_bytes);
        text[f->input->as.string->n_bytes] = '\0';
        number = strtod(text, &end);
        if (end == text || end[strspn(end, " \n\t")] != '\0')
            return MOEC_OK;
    } else {
        return MOEC_OK;
    }
    if (f->input->kind == MOEC_CHAT_INT)
        *f->out = *f->input;
    else if (fabs(number) < 0x1p62)
        *f->out = moec_chat_int((int64_t)number);
    return MOEC_OK;
}

static enum moec_status filter_float(const struct filtering *f)
{
    char text[64], *end = text;
    *f->out = argument(f, 0) != NULL ? *argument(f, 0) : moec_chat_float(0);
    if (moec_chat_is_number(f->input)) {
        *f->out = moec_chat_float(moec_chat_as_float(f->input));
    } else if (f->input->kind == MOEC_CHAT_STRING && f->input->as.string->n_bytes < sizeof text) {
        memcpy(text, f->input->as.string->bytes, f->input->as.string->n_bytes);
        text[f->input->as.string->n_bytes] = '\0';
        const double number = strtod(text, &end);
        if (end != text && end[strspn(end, " \n\t")] == '\0')
            *f->out = moec_chat_float(number);
    }
    return MOEC_OK;
}

static enum moec_status filter_abs(const struct filtering *f)
{
    if (!moec_chat_is_number(f->input) ||
        (f->input->kind == MOEC_CHAT_INT && f->input->as.integer == INT64_MIN))
        return fail(f, "takes a number");
    if (f->input->kind == MOEC_CHAT_FLOAT)
        *f->out = moec_chat_float(fabs(f->input->as.number));
    else
        *f->out = moec_chat_int(f->input->kind == MOEC_CHAT_INT ? llabs(f->input->as.integer)
                                                                : f->input->as.boolean);
    return MOEC_OK;
}

/* ---- lists ---- */

static enum moec_status items_of(const struct filtering *f, struct moec_chat_list **items)
{
    return moec_chat_items(f->run, f->node, f->input, items);
}

/* An empty list as the answer. */
static enum moec_status begin_list(const struct filtering *f)
{
    return moec_chat_list_make(f->run->arena, 0, f->out, f->run->err);
}

static enum moec_status add(const struct filtering *f, struct moec_chat_value item)
{
    MOEC_TRY(moec_chat_charge(f->run, f->node, 1));
    return moec_chat_list_append(f->run->arena, f->out->as.list, item, f->run->err);
}

/* "a.b" of an item; a number is an index. */
static enum moec_status member(const struct filtering *f, const struct moec_chat_value *item,
                               const struct moec_chat_value *path, struct moec_chat_value *out)
{
    *out = *item;
    if (path->kind != MOEC_CHAT_STRING)
        return moec_chat_subscript(f->run, f->node, item, path, out);
    const struct moec_chat_string *text = path->as.string;
    for (size_t at = 0; at <= text->n_bytes;) {
        const char *dot = at < text->n_bytes ? memchr(text->bytes + at, '.', text->n_bytes - at) : NULL;
        const size_t end = dot != NULL ? (size_t)(dot - text->bytes) : text->n_bytes;
        struct moec_chat_value key, found;
        MOEC_TRY(moec_chat_string_part(f->run->arena, text, at, end - at, &key, f->run->err));
        MOEC_TRY(moec_chat_subscript(f->run, f->node, out, &key, &found));
        *out = found;
        at = end + 1;
    }
    return MOEC_OK;
}

static enum moec_status filter_list(const struct filtering *f)
{
    struct moec_chat_list *items = NULL;
    MOEC_TRY(items_of(f, &items));
    MOEC_TRY(begin_list(f));
    for (size_t i = 0; i < items->n; i++)
        MOEC_TRY(add(f, items->items[i]));
    return MOEC_OK;
}

static enum moec_status filter_ends(const struct filtering *f)
{
    struct moec_chat_list *items = NULL;
    MOEC_TRY(items_of(f, &items));
    *f->out = moec_chat_undefined(NULL);
    if (items->n > 0)
        *f->out = items->items[f->name->bytes[0] == 'f' ? 0 : items->n - 1];
    return MOEC_OK;
}

static enum moec_status filter_join(const struct filtering *f)
{
    struct moec_chat_buffer buffer = {.arena = f->run->arena};
    struct moec_chat_list *items = NULL;
    const struct moec_chat_string *separator = NULL;
    MOEC_TRY(items_of(f, &items));
    if (argument(f, 0) != NULL)
        MOEC_TRY(text_of(f, argument(f, 0), &separator));
    for (size_t i = 0; i < items->n; i++) {
        struct moec_chat_value item = items->items[i];
        if (argument(f, 1) != NULL)
            MOEC_TRY(member(f, &items->items[i], argument(f, 1), &item));
        if (i > 0 && separator != NULL)
            MOEC_TRY(moec_chat_write_string(&buffer, separator, f->run->err));
        MOEC_TRY(moec_chat_print(f->run, f->node, &item, &buffer));
    }
    return moec_chat_buffer_end(&buffer, f->out, f->run->err);
}

static enum moec_status filter_reverse(const struct filtering *f)
{
    struct moec_chat_buffer buffer = {.arena = f->run->arena};
    struct moec_chat_list *items = NULL;
    MOEC_TRY(items_of(f, &items));
    MOEC_TRY(begin_list(f));
    for (size_t i = items->n; i-- > 0;) {
        if (f->input->kind == MOEC_CHAT_STRING)
            MOEC_TRY(moec_chat_write_string(&buffer, items->items[i].as.string, f->run->err));
        else
            MOEC_TRY(add(f, items->items[i]));
    }
    return f->input->kind == MOEC_CHAT_STRING ? moec_chat_buffer_end(&buffer, f->out, f->run->err) : MOEC_OK;
}

static enum moec_status filter_items(const struct filtering *f)
{
    static const struct moec_chat_string items = {.bytes = "items", .n_bytes = 5};
    const struct moec_chat_arguments none = {.n = 0};
    if (f->input->kind == MOEC_CHAT_UNDEFINED)
        return begin_list(f);
    if (f->input->kind != MOEC_CHAT_DICT)
        return fail(f, "takes a dict");
    return moec_chat_call_method(f->run, f->node, f->input, &items, &none, f->out);
}

/* What is compared when lists are sorted: letters of one case unless asked otherwise. */
static enum moec_status sort_key(const struct filtering *f, const struct moec_chat_value *value,
                                 bool case_sensitive, struct moec_chat_value *out)
{
    *out = *value;
    if (case_sensitive || value->kind != MOEC_CHAT_STRING)
        return MOEC_OK;
    MOEC_TRY(moec_chat_charge(f->run, f->node, 1 + value->as.string->n_bytes / 4));
    return moec_chat_recase(f->run, value->as.string, MOEC_CHAT_LOWER, out);
}

struct keyed {
    struct moec_chat_value key, value;
};

/* A stable sort; what has no order fails. */
static enum moec_status sort(const struct filtering *f, struct keyed *items, size_t n, bool is_reversed)
{
    for (size_t i = 1; i < n; i++) {
        const struct keyed item = items[i];
        size_t at = i;
        for (; at > 0; at--) {
            int order = 0;
            MOEC_TRY(moec_chat_charge(f->run, f->node, 1));
            if (!moec_chat_order(&items[at - 1].key, &item.key, &order))
                return fail(f, "cannot compare two of the items");
            if (is_reversed ? order >= 0 : order <= 0)
                break;
            items[at] = items[at - 1];
        }
        items[at] = item;
    }
    return MOEC_OK;
}

/* The items with the keys that they are sorted by: `attribute` of them, or themselves. */
static enum moec_status make_keys(const struct filtering *f, const struct moec_chat_list *items,
                                  const struct moec_chat_value *attribute, bool case_sensitive,
                                  struct keyed **out)
{
    void *memory = NULL;
    MOEC_TRY(moec_chat_alloc(f->run->arena, items->n * sizeof(struct keyed), &memory, f->run->err));
    *out = memory;
    for (size_t i = 0; i < items->n; i++) {
        struct moec_chat_value key = items->items[i];
        if (attribute != NULL && attribute->kind != MOEC_CHAT_NONE)
            MOEC_TRY(member(f, &items->items[i], attribute, &key));
        (*out)[i].value = items->items[i];
        MOEC_TRY(sort_key(f, &key, case_sensitive, &(*out)[i].key));
    }
    return MOEC_OK;
}

static enum moec_status filter_sort(const struct filtering *f)
{
    struct moec_chat_list *items = NULL;
    struct keyed *keyed = NULL;
    MOEC_TRY(items_of(f, &items));
    MOEC_TRY(make_keys(f, items, argument(f, 2), flag(f, 1, false), &keyed));
    MOEC_TRY(sort(f, keyed, items->n, flag(f, 0, false)));
    MOEC_TRY(begin_list(f));
    for (size_t i = 0; i < items->n; i++)
        MOEC_TRY(add(f, keyed[i].value));
    return MOEC_OK;
}

/* Pairs of a dict, sorted by key, or by value. */
static enum moec_status filter_dictsort(const struct filtering *f)
{
    const struct moec_chat_value *by = argument(f, 1);
    struct moec_chat_value pairs;
    struct filtering of_pairs = *f;
    struct keyed *keyed = NULL;
    if (f->input->kind != MOEC_CHAT_DICT)
        return fail(f, "takes a dict");
    of_pairs.out = &pairs;
    MOEC_TRY(filter_items(&of_pairs));
    const bool by_value =
        by != NULL && by->kind == MOEC_CHAT_STRING && moec_chat_string_is(by->as.string, "value");
    const struct moec_chat_value place = moec_chat_int(by_value);
    MOEC_TRY(make_keys(f, pairs.as.list, &place, flag(f, 0, false), &keyed));
    MOEC_TRY(sort(f, keyed, pairs.as.list->n, flag(f, 2, false)));
    MOEC_TRY(begin_list(f));
    for (size_t i = 0; i < pairs.as.list->n; i++)
        MOEC_TRY(add(f, keyed[i].value));
    return MOEC_OK;
}

static enum moec_status filter_extreme(const struct filtering *f)
{
    struct moec_chat_list *items = NULL;
    struct keyed *keyed = NULL;
    MOEC_TRY(items_of(f, &items));
    MOEC_TRY(make_keys(f, items, argument(f, 1), flag(f, 0, false), &keyed));
    *f->out = moec_chat_undefined(NULL);
    size_t best = 0;
    for (size_t i = 1; i < items->n; i++) {
        int order = 0;
        if (!moec_chat_order(&keyed[i].key, &keyed[best].key, &order))
            return fail(f, "cannot compare two of the items");
        if (f->name->bytes[1] == 'i' ? order < 0 : order > 0)
            best = i;
    }
    if (items->n > 0)
        *f->out = keyed[best].value;
    return MOEC_OK;
}

static enum moec_status filter_unique(const struct filtering *f)
{
    struct moec_chat_list *items = NULL;
    struct keyed *keyed = NULL;
    MOEC_TRY(items_of(f, &items));
    MOEC_TRY(make_keys(f, items, argument(f, 1), flag(f, 0, false), &keyed));
    MOEC_TRY(begin_list(f));
    for (size_t i = 0; i < items->n; i++) {
        bool is_new = true;
        MOEC_TRY(moec_chat_charge(f->run, f->node, 1 + i));
        for (size_t before = 0; before < i && is_new; before++)
            is_new = !moec_chat_equal(&keyed[before].key, &keyed[i].key);
        if (is_new)
            MOEC_TRY(add(f, keyed[i].value));
    }
    return MOEC_OK;
}

static enum moec_status filter_sum(const struct filtering *f)
{
    struct moec_chat_list *items = NULL;
    double sum = 0;
    int64_t whole = 0;
    bool is_float = false;
    MOEC_TRY(items_of(f, &items));
    for (size_t i = 0; i < items->n; i++) {
        struct moec_chat_value item = items->items[i];
        if (argument(f, 0) != NULL)
            MOEC_TRY(member(f, &items->items[i], argument(f, 0), &item));
        if (!moec_chat_is_number(&item))
            return fail(f, "adds only numbers");
        is_float = is_float || item.kind == MOEC_CHAT_FLOAT;
        sum += moec_chat_as_float(&item);
        const int64_t number = item.kind == MOEC_CHAT_INT    ? item.as.integer
                               : item.kind == MOEC_CHAT_BOOL ? item.as.boolean
                                                             : 0;
        if (__builtin_add_overflow(whole, number, &whole))
            return fail(f, "has a result that does not fit into 64 bits");
    }
    *f->out = is_float ? moec_chat_float(sum) : moec_chat_int(whole);
    return MOEC_OK;
}

/* Arguments from a place on, as those of a filter or test that is named by an argument. */
static struct moec_chat_arguments arguments_from(const struct filtering *f, size_t first)
{
    struct moec_chat_arguments rest = {.n = 0};
    for (size_t i = first; i < f->arguments->n; i++) {
        rest.values[i - first] = f->arguments->values[i];
        rest.given[i - first] = true;
        rest.n++;
    }
    return rest;
}

static enum moec_status filter_map(const struct filtering *f)
{
    struct moec_chat_list *items = NULL;
    struct moec_chat_value item;
    const struct moec_chat_value *attribute = argument(f, 3), *otherwise = argument(f, 4);
    const struct moec_chat_arguments rest = arguments_from(f, 1);
    const struct moec_chat_signature *signature = NULL;
    MOEC_TRY(items_of(f, &items));
    MOEC_TRY(begin_list(f));
    if (attribute == NULL) {
        if (argument(f, 0) == NULL || argument(f, 0)->kind != MOEC_CHAT_STRING)
            return fail(f, "needs the name of a filter or the argument attribute=");
        signature = moec_chat_filter_find(argument(f, 0)->as.string);
        if (signature == NULL || rest.n < signature->n_least || rest.n > signature->n_most)
            return fail(f, "names an unknown filter, or passes a wrong number of arguments to a filter");
    }
    for (size_t i = 0; i < items->n; i++) {
        if (attribute != NULL) {
            MOEC_TRY(member(f, &items->items[i], attribute, &item));
            if (item.kind == MOEC_CHAT_UNDEFINED && otherwise != NULL)
                item = *otherwise;
        } else {
            MOEC_TRY(
                moec_chat_filter(f->run, f->node, argument(f, 0)->as.string, &items->items[i], &rest, &item));
        }
        MOEC_TRY(add(f, item));
    }
    return MOEC_OK;
}

/* select, reject, selectattr and rejectattr: with a test, or by truth. */
static enum moec_status filter_select(const struct filtering *f)
{
    const bool has_member = f->name->n_bytes > 6, selects = f->name->bytes[0] == 's';
    const size_t first = has_member ? 1 : 0;
    const struct moec_chat_value *test = argument(f, first);
    const struct moec_chat_arguments rest = arguments_from(f, first + 1);
    const struct moec_chat_signature *signature = NULL;
    struct moec_chat_list *items = NULL;
    MOEC_TRY(items_of(f, &items));
    MOEC_TRY(begin_list(f));
    if (test != NULL) {
        signature = test->kind == MOEC_CHAT_STRING ? moec_chat_test_find(test->as.string) : NULL;
        if (signature == NULL || rest.n < signature->n_least || rest.n > signature->n_most)
            return fail(f, "names an unknown test, or passes a wrong number of arguments to a test");
    }
    for (size_t i = 0; i < items->n; i++) {
        struct moec_chat_value value = items->items[i];
        if (has_member)
            MOEC_TRY(member(f, &items->items[i], argument(f, 0), &value));
        bool holds = moec_chat_truth(&value);
        if (test != NULL)
            MOEC_TRY(moec_chat_test(f->run, f->node, test->as.string, &value, &rest, &holds));
        if (holds == selects)
            MOEC_TRY(add(f, items->items[i]));
    }
    return MOEC_OK;
}

/* ---- the table ---- */

/* Places that only arguments without a name have are called by digits, which no name begins with. */
static const struct filter {
    struct moec_chat_signature signature;
    filter_fn *run;
} filters[] = {
    {{"abs", 0, 0, ""}, filter_abs},
    {{"capitalize", 0, 0, ""}, filter_case},
    {{"count", 0, 0, ""}, filter_length},
    {{"d", 0, 2, " default_value boolean "}, filter_default},
    {{"default", 0, 2, " default_value boolean "}, filter_default},
    {{"dictsort", 0, 3, " case_sensitive by reverse "}, filter_dictsort},
    {{"first", 0, 0, ""}, filter_ends},
    {{"float", 0, 1, " default "}, filter_float},
    {{"format", 0, 8, NULL}, filter_format},
    {{"indent", 0, 3, " width first blank "}, filter_indent},
    {{"int", 0, 1, " default "}, filter_int},
    {{"items", 0, 0, ""}, filter_items},
    {{"join", 0, 2, " d attribute "}, filter_join},
    {{"last", 0, 0, ""}, filter_ends},
    {{"length", 0, 0, ""}, filter_length},
    {{"list", 0, 0, ""}, filter_list},
    {{"lower", 0, 0, ""}, filter_case},
    {{"map", 1, 3, " 0 1 2 attribute default "}, filter_map},
    {{"max", 0, 2, " case_sensitive attribute "}, filter_extreme},
    {{"min", 0, 2, " case_sensitive attribute "}, filter_extreme},
    {{"reject", 0, 3, ""}, filter_select},
    {{"rejectattr", 1, 4, ""}, filter_select},
    {{"replace", 2, 3, " old new count "}, filter_replace},
    {{"reverse", 0, 0, ""}, filter_reverse},
    {{"safe", 0, 0, ""}, filter_string},
    {{"select", 0, 3, ""}, filter_select},
    {{"selectattr", 1, 4, ""}, filter_select},
    {{"sort", 0, 3, " reverse case_sensitive attribute "}, filter_sort},
    {{"string", 0, 0, ""}, filter_string},
    {{"sum", 0, 1, " attribute "}, filter_sum},
    {{"title", 0, 0, ""}, filter_case},
    {{"tojson", 0, 4, " ensure_ascii indent separators sort_keys "}, filter_tojson},
    {{"trim", 0, 1, " chars "}, filter_trim},
    {{"unique", 0, 2, " case_sensitive attribute "}, filter_unique},
    {{"upper", 0, 0, ""}, filter_case},
};

static const struct filter *find_filter(const struct moec_chat_string *name)
{
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (moec_chat_string_is(name, filters[i].signature.name))
            return &filters[i];
    return NULL;
}

const struct moec_chat_signature *moec_chat_filter_find(const struct moec_chat_string *name)
{
    const struct filter *filter = find_filter(name);
    return filter != NULL ? &filter->signature : NULL;
}

enum moec_status moec_chat_filter(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  const struct moec_chat_string *name, const struct moec_chat_value *input,
                                  const struct moec_chat_arguments *arguments, struct moec_chat_value *out)
{
    const struct moec_chat_value kept = *input; /* `out` may be where it is */
    const struct filtering f = {run, node, name, &kept, arguments, out};
    if (run->n_call >= MOEC_CHAT_MAX_CALLS)
        return moec_chat_run_fail(run, node, MOEC_ERR_LIMIT, "filter calls nest deeper than %d",
                                  MOEC_CHAT_MAX_CALLS);
    run->n_call++;
    MOEC_TRY(find_filter(name)->run(&f));
    run->n_call--;
    return MOEC_OK;
}
