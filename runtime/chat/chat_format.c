/* Texts with places for values: Python's "%s" % x, which the filter `format` is too, and str.format.
 *
 * A place is "%", perhaps "(name)", flags, a width, "." and a precision, and a letter. Literal text keeps its
 * marks, and values keep theirs. */
#include "runtime/chat/chat_render.h"

#include "formats/base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WIDTH_MAX 99 /* digits and columns that a template may ask for */

/* ---- percent ---- */

struct place {
    const char *name; /* borrowed from the text; NULL without */
    size_t n_name;
    bool left, zeros;
    char sign;            /* '+', ' ' or 0 */
    int width, precision; /* -1: none */
    char letter;
};

struct formatting {
    struct moec_chat_run *run;
    const struct moec_chat_node *node;
    const struct moec_chat_string *text;
    const struct moec_chat_format_values *values;
    size_t at, next; /* byte of the text, value without a name */
    bool has_names;
    struct moec_chat_buffer out;
};

static enum moec_status fail(const struct formatting *f, const char *what)
{
    return moec_chat_run_fail(f->run, f->node, MOEC_ERR_FORMAT, "in a format string with %%: %s", what);
}

static char peek(const struct formatting *f)
{
    return (char)(f->at < f->text->n_bytes ? f->text->bytes[f->at] : 0);
}

static enum moec_status read_number(struct formatting *f, int *number)
{
    for (; peek(f) >= '0' && peek(f) <= '9'; f->at++) {
        *number = (*number < 0 ? 0 : *number) * 10 + (peek(f) - '0');
        if (*number > WIDTH_MAX)
            return moec_chat_run_fail(f->run, f->node, MOEC_ERR_UNSUPPORTED,
                                      "a width or a precision is over the limit of %d", WIDTH_MAX);
    }
    return MOEC_OK;
}

/* What stands after "%", up to its letter. */
static enum moec_status read_place(struct formatting *f, struct place *place)
{
    *place = (struct place){.width = -1, .precision = -1};
    if (peek(f) == '(') {
        const char *begin = f->text->bytes + f->at + 1;
        const char *end = memchr(begin, ')', f->text->n_bytes - f->at - 1);
        if (end == NULL)
            return fail(f, "a name has no closing parenthesis");
        place->name = begin;
        place->n_name = (size_t)(end - begin);
        f->at += place->n_name + 2;
    }
    for (; strchr("-+ 0", peek(f)) != NULL && peek(f) != '\0'; f->at++) {
        place->left |= peek(f) == '-';
        place->zeros |= peek(f) == '0';
        if (peek(f) == '+' || (peek(f) == ' ' && place->sign == 0))
            place->sign = peek(f);
    }
    MOEC_TRY(read_number(f, &place->width));
    if (peek(f) == '.') {
        f->at++;
        place->precision = 0;
        MOEC_TRY(read_number(f, &place->precision));
    }
    if (peek(f) == '*' || peek(f) == '#')
        return moec_chat_run_fail(f->run, f->node, MOEC_ERR_UNSUPPORTED, "'%c' after %% is not supported",
                                  peek(f));
    if (peek(f) == 'h' || peek(f) == 'l' || peek(f) == 'L') /* sizes of C, which mean nothing */
        f->at++;
    place->letter = peek(f);
    f->at++;
    return f->at <= f->text->n_bytes ? MOEC_OK : fail(f, "the string ends inside a conversion");
}

static enum moec_status find_value(struct formatting *f, const struct place *place,
                                   const struct moec_chat_value **value)
{
    const struct moec_chat_format_values *values = f->values;
    if (place->name == NULL) {
        if (f->next >= values->n)
            return fail(f, "there are fewer values than conversions");
        *value = &values->items[f->next++];
        return MOEC_OK;
    }
    const struct moec_chat_string name = {.bytes = place->name, .n_bytes = place->n_name};
    const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = &name};
    f->has_names = true;
    *value = values->names == NULL ? NULL : moec_chat_dict_find(values->names, &key);
    return *value != NULL ? MOEC_OK : fail(f, "a conversion names a value that is missing");
}

/* A text in a field of so many columns. */
static enum moec_status write_field(struct formatting *f, const struct place *place,
                                    const struct moec_chat_string *text)
{
    const size_t n = moec_chat_code_points(text), width = place->width > 0 ? (size_t)place->width : 0;
    const size_t n_space = n < width ? width - n : 0;
    for (size_t i = 0; i < n_space && !place->left; i++)
        MOEC_TRY(moec_chat_write(&f->out, " ", 1, 0, f->run->err));
    MOEC_TRY(moec_chat_write_string(&f->out, text, f->run->err));
    for (size_t i = 0; i < n_space && place->left; i++)
        MOEC_TRY(moec_chat_write(&f->out, " ", 1, 0, f->run->err));
    return MOEC_OK;
}

static enum moec_status write_string(struct formatting *f, const struct place *place,
                                     const struct moec_chat_value *value)
{
    struct moec_chat_buffer buffer = {.arena = f->run->arena};
    struct moec_chat_value text;
    if (place->letter == 's')
        MOEC_TRY(moec_chat_print(f->run, f->node, value, &buffer));
    else
        MOEC_TRY(moec_chat_print_repr(f->run, f->node, value, &buffer));
    MOEC_TRY(moec_chat_buffer_end(&buffer, &text, f->run->err));
    size_t end = 0;
    for (int i = 0; i < place->precision && end < text.as.string->n_bytes; i++)
        end += moec_utf8_read(text.as.string->bytes + end, text.as.string->n_bytes - end).n_bytes;
    if (place->precision >= 0)
        MOEC_TRY(moec_chat_string_part(f->run->arena, text.as.string, 0, end, &text, f->run->err));
    return write_field(f, place, text.as.string);
}

static enum moec_status write_character(struct formatting *f, const struct place *place,
                                        const struct moec_chat_value *value)
{
    char bytes[8];
    struct moec_chat_string text = {.bytes = bytes};
    if (value->kind == MOEC_CHAT_STRING && moec_chat_code_points(value->as.string) == 1)
        return write_field(f, place, value->as.string);
    const int64_t code = value->kind == MOEC_CHAT_INT    ? value->as.integer
                         : value->kind == MOEC_CHAT_BOOL ? value->as.boolean
                                                         : -1;
    if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return fail(f, "%c takes a character or its number");
    text.n_bytes = moec_utf8_write((uint32_t)code, bytes);
    return write_field(f, place, &text);
}

/* Numbers are written as C writes them, which is as Python does. */
static enum moec_status write_number(struct formatting *f, const struct place *place,
                                     const struct moec_chat_value *value)
{
    const bool is_float = strchr("eEfFgG", place->letter) != NULL;
    const bool is_based = strchr("xXo", place->letter) != NULL;
    char pattern[32], text[640];
    char flags[4] = "";
    size_t n_flag = 0;
    if (!moec_chat_is_number(value) || (is_based && value->kind == MOEC_CHAT_FLOAT))
        return fail(f, "a conversion expects a number, found another type");
    const double number = moec_chat_as_float(value);
    if (!is_float && value->kind == MOEC_CHAT_FLOAT && !(number > -0x1p63 && number < 0x1p63))
        return fail(f, "a number does not fit into 64 bits");
    const int64_t whole = value->kind == MOEC_CHAT_FLOAT  ? (int64_t)number
                          : value->kind == MOEC_CHAT_BOOL ? value->as.boolean
                                                          : value->as.integer;
    if (is_based && whole < 0)
        return moec_chat_run_fail(f->run, f->node, MOEC_ERR_UNSUPPORTED,
                                  "negative numbers with %%%c are not supported", place->letter);
    if (place->left)
        flags[n_flag++] = '-';
    else if (place->zeros)
        flags[n_flag++] = '0';
    if (place->sign != 0 && !is_based)
        flags[n_flag++] = place->sign;
    const int width = place->width > 0 ? place->width : 0;
    const char letter = place->letter == 'i' || place->letter == 'u' ? 'd' : place->letter;
    (void)snprintf(pattern, sizeof pattern, "%%%s*.*%s%c", flags, is_float ? "" : "j", letter);
    /* A precision below 0 counts as none. */
    const int n = is_float ? snprintf(text, sizeof text, pattern, width, place->precision, number)
                           : snprintf(text, sizeof text, pattern, width, place->precision, (intmax_t)whole);
    if (n < 0 || (size_t)n >= sizeof text)
        return fail(f, "a number is too long");
    return moec_chat_write(&f->out, text, (size_t)n, 0, f->run->err);
}

static enum moec_status write_place(struct formatting *f)
{
    struct place place;
    const struct moec_chat_value *value = NULL;
    MOEC_TRY(read_place(f, &place));
    if (place.letter == '%')
        return moec_chat_write(&f->out, "%", 1, 0, f->run->err);
    if (place.letter == '\0' || strchr("srcdiueEfFgGxXo", place.letter) == NULL)
        return fail(f, "a conversion has an unknown letter, expected s, r, c, d, i, u, e, f, g, x or o");
    MOEC_TRY(find_value(f, &place, &value));
    MOEC_TRY(moec_chat_charge(f->run, f->node, 1));
    if (place.letter == 's' || place.letter == 'r')
        return write_string(f, &place, value);
    return place.letter == 'c' ? write_character(f, &place, value) : write_number(f, &place, value);
}

enum moec_status moec_chat_percent(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   const struct moec_chat_string *text,
                                   const struct moec_chat_format_values *values, struct moec_chat_value *out)
{
    struct formatting f = {
        .run = run, .node = node, .text = text, .values = values, .out = {.arena = run->arena}};
    struct moec_chat_value part;
    while (f.at < text->n_bytes) {
        const char *found = memchr(text->bytes + f.at, '%', text->n_bytes - f.at);
        const size_t end = found != NULL ? (size_t)(found - text->bytes) : text->n_bytes;
        MOEC_TRY(moec_chat_string_part(run->arena, text, f.at, end - f.at, &part, run->err));
        MOEC_TRY(moec_chat_write_string(&f.out, part.as.string, run->err));
        f.at = end + 1;
        if (found != NULL)
            MOEC_TRY(write_place(&f));
    }
    if (f.next < values->n && !f.has_names && !values->may_be_left)
        return fail(&f, "there are more values than conversions");
    return moec_chat_buffer_end(&f.out, out, run->err);
}

/* ---- str.format ---- */

/* The value of "{}", "{0}" or "{name}", whose inside is given; NULL where there is none. `n_before`: how many
 * of the first and of the second were before, which a text does not mix. */
static const struct moec_chat_value *find_field(const struct moec_chat_arguments *arguments, const char *name,
                                                size_t n_name, size_t n_before[static 2])
{
    const bool has_number = n_name == 1 && name[0] >= '0' && name[0] <= '9';
    for (size_t i = 0; n_name > 0 && i < MOEC_CHAT_MAX_ARGUMENTS; i++) {
        const struct moec_chat_string *own = arguments->names[i];
        if (own != NULL && own->n_bytes == n_name && memcmp(own->bytes, name, n_name) == 0)
            return &arguments->values[i];
    }
    if ((n_name > 0 && !has_number) || n_before[!has_number] > 0)
        return NULL;
    const size_t place = has_number ? (size_t)(name[0] - '0') : n_before[0];
    n_before[has_number]++;
    return place < arguments->n ? &arguments->values[place] : NULL;
}

enum moec_status moec_chat_format(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  const struct moec_chat_string *text,
                                  const struct moec_chat_arguments *arguments, struct moec_chat_value *out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena};
    size_t n_before[2] = {0, 0};
    for (size_t at = 0; at < text->n_bytes; at++) {
        const char c = text->bytes[at];
        const char after = (char)(at + 1 < text->n_bytes ? text->bytes[at + 1] : 0);
        const uint8_t mark = text->marks != NULL ? text->marks[at] : text->mark;
        if ((c != '{' && c != '}') || c == after) {
            MOEC_TRY(moec_chat_write(&buffer, &c, 1, mark, run->err));
            at += c == after && (c == '{' || c == '}');
            continue;
        }
        const char *begin = text->bytes + at + 1;
        const char *end = c == '{' ? memchr(begin, '}', text->n_bytes - at - 1) : NULL;
        const struct moec_chat_value *value =
            end != NULL ? find_field(arguments, begin, (size_t)(end - begin), n_before) : NULL;
        if (value == NULL)
            return moec_chat_run_fail(
                run, node, MOEC_ERR_UNSUPPORTED,
                "the method 'format' supports only the fields {}, {0} and {name}, each with an argument");
        MOEC_TRY(moec_chat_print(run, node, value, &buffer));
        at = (size_t)(end - text->bytes);
    }
    return moec_chat_buffer_end(&buffer, out, run->err);
}
