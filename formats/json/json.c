/* A text passes three checks before jansson sees it: size, depth (jansson recurses) and words that JSON does
 * not have. NaN and Infinity travel as marked strings of the same length, so that offsets in messages stay
 * true. No parsed text can look like a marked string, because its mark is not UTF-8. */
#include "formats/json/json.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

/* struct moec_json is json_t seen from outside;
 * jansson's API takes non-const pointers even where it only reads. */
static json_t *raw(const struct moec_json *node)
{
    return (json_t *)(uintptr_t)node;
}

static const struct moec_json *wrap(const json_t *value)
{
    return (const struct moec_json *)(const void *)value;
}

struct place {
    size_t line, column;
};

/* jansson counts columns in code points and gives no line for text that it never reached;
 * a byte offset fits both. */
static struct place place_of(const char *bytes, size_t offset)
{
    struct place at = {1, 1};
    for (size_t i = 0; i < offset; i++) {
        if (bytes[i] == '\n') {
            at.line++;
            at.column = 1;
        } else {
            at.column++;
        }
    }
    return at;
}

/* jansson's own limit is 2048 levels of recursion, more than a caller's stack should pay for. */
static enum moec_status check_depth(const char *bytes, size_t length, const char *subject,
                                    struct moec_error *err)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char c = bytes[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > MOEC_JSON_MAX_DEPTH) {
                struct place at = place_of(bytes, i);
                return moec_fail(err, MOEC_ERR_LIMIT,
                                 "the JSON text '%s' nests arrays and objects deeper than %d levels at "
                                 "line %zu column %zu (byte %zu)",
                                 subject, MOEC_JSON_MAX_DEPTH, at.line, at.column, i);
            }
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return MOEC_OK;
}

/* ---- numbers that JSON does not have ---- */

/* Python's json module writes NaN, Infinity and -Infinity as bare words, which jansson does not know and its
 * reals cannot hold. Before parsing, strings of DEL take the place of the words, as long as they are, so that
 * places in messages stay. Afterwards those strings get a content that no parsed text has, since it is no
 * UTF-8: MARK and the word. */
#define MARK '\xff'
#define DEL  '\x7f'

static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
#define N_WORD (sizeof words / sizeof *words)

static bool is_special(const json_t *value)
{
    return json_is_string(value) && json_string_length(value) > 0 && json_string_value(value)[0] == MARK;
}

/* The word of a number that JSON does not have; NULL for every other value. */
static const char *word_of(const struct moec_json *node)
{
    return node != NULL && is_special(raw(node)) ? json_string_value(raw(node)) + 1 : NULL;
}

static double number_of(const struct moec_json *node)
{
    const char *word = word_of(node);
    if (word == NULL)
        return json_number_value(raw(node));
    return word[0] == 'N' ? (double)NAN : word[0] == '-' ? -(double)INFINITY : (double)INFINITY;
}

/* The word that stands at a place where a value may stand; NULL without one. */
static const char *find_word(const char *bytes, size_t length, size_t at)
{
    size_t before = at;
    while (before > 0 && strchr(" \t\n\r", bytes[before - 1]) != NULL && bytes[before - 1] != '\0')
        before--;
    if (before > 0 && bytes[before - 1] != '[' && bytes[before - 1] != ',' && bytes[before - 1] != ':')
        return NULL;
    for (size_t i = 0; i < N_WORD; i++) {
        const size_t n = strlen(words[i]), end = at + n;
        if (n <= length - at && memcmp(bytes + at, words[i], n) == 0 &&
            (end == length || (bytes[end] != '\0' && strchr(" \t\n\r,]}", bytes[end]) != NULL)))
            return words[i];
    }
    return NULL;
}

/* Replaces words in a copy, which is made where there are any and is the caller's; else `*copy` is NULL. */
static enum moec_status replace_words(const char *bytes, size_t length, char **copy, size_t *n_word,
                                      struct moec_error *err)
{
    bool in_string = false;
    *copy = NULL;
    *n_word = 0;
    for (size_t i = 0; i < length; i++) {
        const char c = bytes[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        const bool may_begin = !in_string && (c == 'N' || c == 'I' || c == '-');
        const char *word = may_begin ? find_word(bytes, length, i) : NULL;
        if (word == NULL)
            continue;
        const size_t n = strlen(word);
        if (*copy == NULL) {
            MOEC_TRY(moec_alloc((void **)copy, length, 1, "a JSON text", err));
            memcpy(*copy, bytes, length);
        }
        memset(*copy + i, DEL, n);
        (*copy)[i] = (*copy)[i + n - 1] = '"';
        ++*n_word;
        i += n - 1;
    }
    return MOEC_OK;
}

/* Marks a string of DEL that took the place of a word; false where there is no memory. */
static bool mark_word(json_t *value, size_t *n_marked)
{
    char marked[16] = {MARK};
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    for (size_t i = 0; i < n; i++)
        if (text[i] != DEL)
            return true;
    for (size_t i = 0; i < N_WORD; i++) {
        if (strlen(words[i]) != n + 2)
            continue;
        memcpy(marked + 1, words[i], n + 2);
        ++*n_marked;
        return json_string_setn_nocheck(value, marked, n + 3) == 0;
    }
    return true;
}

static bool mark_words(json_t *value, size_t *n_marked)
{
    size_t index = 0;
    const char *key = NULL;
    json_t *inner = NULL;
    if (json_is_string(value))
        return mark_word(value, n_marked);
    json_array_foreach(value, index, inner) if (!mark_words(inner, n_marked)) return false;
    json_object_foreach(value, key, inner) if (!mark_words(inner, n_marked)) return false;
    return true;
}

/* ---- parsing ---- */

static enum moec_status parse_text(const char *bytes, size_t length, const char *subject, json_t **value,
                                   struct moec_error *err)
{
    json_error_t problem;
    /* JSON_DECODE_ANY: the caller's getters say "expected an object" with the subject in the message. */
    *value = json_loadb(length > 0 ? bytes : "", length,
                        JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    if (*value != NULL)
        return MOEC_OK;
    if (json_error_code(&problem) == json_error_out_of_memory)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory while reading '%s'", subject);
    size_t offset = problem.position > 0 ? (size_t)problem.position : 0;
    struct place at = place_of(bytes, offset < length ? offset : length);
    return moec_fail(err, MOEC_ERR_FORMAT, "'%s' is not valid JSON at line %zu column %zu (byte %zu): %s",
                     subject, at.line, at.column, offset, problem.text);
}

enum moec_status moec_json_parse(const char *bytes, size_t length, size_t max_bytes, const char *subject,
                                 struct moec_json **root, struct moec_error *err)
{
    *root = NULL;
    if (length > max_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT, "'%s' has %zu bytes of JSON, more than the limit of %zu",
                         subject, length, max_bytes);
    MOEC_TRY(check_depth(bytes, length, subject, err));
    char *replaced = NULL;
    json_t *value = NULL;
    size_t n_word = 0, n_marked = 0;
    MOEC_TRY(replace_words(bytes, length, &replaced, &n_word, err));
    enum moec_status status = parse_text(replaced != NULL ? replaced : bytes, length, subject, &value, err);
    free(replaced);
    if (status == MOEC_OK && n_word > 0 && !mark_words(value, &n_marked))
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory while reading '%s'", subject);
    if (status == MOEC_OK && n_marked != n_word)
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "the JSON text '%s' has NaN or Infinity and also a string of only DEL "
                           "characters (0x7f): moec cannot read both in one file",
                           subject);
    if (status != MOEC_OK) {
        json_decref(value);
        return status;
    }
    *root = (struct moec_json *)(void *)value;
    return MOEC_OK;
}

void moec_json_free(struct moec_json *root)
{
    json_decref(raw(root));
}

enum moec_json_type moec_json_type(const struct moec_json *node)
{
    switch (json_typeof(raw(node))) {
    case JSON_OBJECT:
        return MOEC_JSON_OBJECT;
    case JSON_ARRAY:
        return MOEC_JSON_ARRAY;
    case JSON_STRING:
        return is_special(raw(node)) ? MOEC_JSON_REAL : MOEC_JSON_STRING;
    case JSON_INTEGER:
        return MOEC_JSON_INTEGER;
    case JSON_REAL:
        return MOEC_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return MOEC_JSON_BOOL;
    case JSON_NULL:
        break;
    }
    return MOEC_JSON_NULL;
}

static const char *type_text(enum moec_json_type type)
{
    static const char *const texts[] = {
        [MOEC_JSON_NULL] = "null",        [MOEC_JSON_BOOL] = "a boolean",  [MOEC_JSON_INTEGER] = "an integer",
        [MOEC_JSON_REAL] = "a real",      [MOEC_JSON_STRING] = "a string", [MOEC_JSON_ARRAY] = "an array",
        [MOEC_JSON_OBJECT] = "an object",
    };
    return texts[type];
}

const char *moec_json_type_name(const struct moec_json *node)
{
    if (node == NULL)
        return "nothing";
    return word_of(node) != NULL ? word_of(node) : type_text(moec_json_type(node));
}

/* ---- values ---- */

static enum moec_status wrong_type(const struct moec_json *node, const char *what, const char *expected,
                                   struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_FORMAT, "%s is %s, expected %s", what, moec_json_type_name(node),
                     expected);
}

enum moec_status moec_json_as_string(const struct moec_json *node, const char *what, const char **out,
                                     size_t *length, struct moec_error *err)
{
    if (node == NULL || moec_json_type(node) != MOEC_JSON_STRING)
        return wrong_type(node, what, "a string", err);
    const char *text = json_string_value(raw(node));
    size_t bytes = json_string_length(raw(node));
    if (length == NULL && strlen(text) != bytes)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s holds a NUL character at byte %zu, expected text without NUL", what,
                         strlen(text));
    if (length != NULL)
        *length = bytes;
    *out = text;
    return MOEC_OK;
}

enum moec_status moec_json_as_u64(const struct moec_json *node, const char *what, uint64_t min, uint64_t max,
                                  uint64_t *out, struct moec_error *err)
{
    if (node == NULL || !json_is_integer(raw(node)))
        return wrong_type(node, what, "an integer", err);
    json_int_t value = json_integer_value(raw(node));
    if (value < 0 || (uint64_t)value < min || (uint64_t)value > max)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s is %" JSON_INTEGER_FORMAT ", expected %" PRIu64 "..%" PRIu64, what, value, min,
                         max);
    *out = (uint64_t)value;
    return MOEC_OK;
}

enum moec_status moec_json_as_double(const struct moec_json *node, const char *what, double min, double max,
                                     double *out, struct moec_error *err)
{
    if (node == NULL || (!json_is_number(raw(node)) && word_of(node) == NULL))
        return wrong_type(node, what, "a number", err);
    double value = number_of(node);
    if (!(value >= min && value <= max) && word_of(node) != NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is %s, expected %g..%g", what, word_of(node), min, max);
    if (!(value >= min && value <= max))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is %g, expected %g..%g", what, value, min, max);
    *out = value;
    return MOEC_OK;
}

enum moec_status moec_json_as_bool(const struct moec_json *node, const char *what, bool *out,
                                   struct moec_error *err)
{
    if (node == NULL || !json_is_boolean(raw(node)))
        return wrong_type(node, what, "true or false", err);
    *out = json_is_true(raw(node));
    return MOEC_OK;
}

/* ---- members ---- */

const struct moec_json *moec_json_find(const struct moec_json *object, const char *key)
{
    return wrap(json_object_get(raw(object), key));
}

const struct moec_json *moec_json_present(const struct moec_json *object, const char *key)
{
    const struct moec_json *node = moec_json_find(object, key);
    return node != NULL && moec_json_type(node) != MOEC_JSON_NULL ? node : NULL;
}

#define NAME_BYTES 320

/* Names a member for a message; a longer name is cut, which only shortens the message. */
static const char *member_name(char buffer[NAME_BYTES], const char *where, const char *key)
{
    int used = snprintf(buffer, NAME_BYTES, "'%s' in %s", key, where);
    return used > 0 ? buffer : key;
}

static enum moec_status member(const struct moec_json *object, const char *where, const char *key,
                               const struct moec_json **out, struct moec_error *err)
{
    if (object == NULL || !json_is_object(raw(object)))
        return wrong_type(object, where, "an object", err);
    *out = moec_json_find(object, key);
    return MOEC_OK;
}

static enum moec_status required(const struct moec_json *object, const char *where, const char *key,
                                 const struct moec_json **out, struct moec_error *err)
{
    MOEC_TRY(member(object, where, key, out, err));
    if (*out == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has no '%s'", where, key);
    return MOEC_OK;
}

/* `*out` is NULL when the member is absent or null. */
static enum moec_status optional(const struct moec_json *object, const char *where, const char *key,
                                 const struct moec_json **out, struct moec_error *err)
{
    MOEC_TRY(member(object, where, key, out, err));
    if (*out != NULL && json_is_null(raw(*out)))
        *out = NULL;
    return MOEC_OK;
}

enum moec_status moec_json_get(const struct moec_json *object, const char *where, const char *key,
                               enum moec_json_type type, const struct moec_json **out, struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(required(object, where, key, &node, err));
    if (moec_json_type(node) != type)
        return wrong_type(node, member_name(name, where, key), type_text(type), err);
    *out = node;
    return MOEC_OK;
}

enum moec_status moec_json_get_string(const struct moec_json *object, const char *where, const char *key,
                                      const char **out, size_t *length, struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(required(object, where, key, &node, err));
    return moec_json_as_string(node, member_name(name, where, key), out, length, err);
}

enum moec_status moec_json_get_string_or(const struct moec_json *object, const char *where, const char *key,
                                         const char *fallback, const char **out, struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(optional(object, where, key, &node, err));
    if (node == NULL) {
        *out = fallback;
        return MOEC_OK;
    }
    return moec_json_as_string(node, member_name(name, where, key), out, NULL, err);
}

enum moec_status moec_json_get_u64(const struct moec_json *object, const char *where, const char *key,
                                   uint64_t min, uint64_t max, uint64_t *out, struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(required(object, where, key, &node, err));
    return moec_json_as_u64(node, member_name(name, where, key), min, max, out, err);
}

enum moec_status moec_json_get_u64_or(const struct moec_json *object, const char *where, const char *key,
                                      uint64_t min, uint64_t max, uint64_t fallback, uint64_t *out,
                                      struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(optional(object, where, key, &node, err));
    if (node == NULL) {
        *out = fallback;
        return MOEC_OK;
    }
    return moec_json_as_u64(node, member_name(name, where, key), min, max, out, err);
}

enum moec_status moec_json_update_u32(const struct moec_json *object, const char *where, const char *key,
                                      uint32_t max, uint32_t *value, struct moec_error *err)
{
    uint64_t wide = 0;
    MOEC_TRY(moec_json_get_u64_or(object, where, key, 0, max, *value, &wide, err));
    *value = (uint32_t)wide;
    return MOEC_OK;
}

enum moec_status moec_json_get_double(const struct moec_json *object, const char *where, const char *key,
                                      double min, double max, double *out, struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(required(object, where, key, &node, err));
    return moec_json_as_double(node, member_name(name, where, key), min, max, out, err);
}

enum moec_status moec_json_get_double_or(const struct moec_json *object, const char *where, const char *key,
                                         double min, double max, double fallback, double *out,
                                         struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(optional(object, where, key, &node, err));
    if (node == NULL) {
        *out = fallback;
        return MOEC_OK;
    }
    return moec_json_as_double(node, member_name(name, where, key), min, max, out, err);
}

enum moec_status moec_json_get_bool(const struct moec_json *object, const char *where, const char *key,
                                    bool *out, struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(required(object, where, key, &node, err));
    return moec_json_as_bool(node, member_name(name, where, key), out, err);
}

enum moec_status moec_json_get_bool_or(const struct moec_json *object, const char *where, const char *key,
                                       bool fallback, bool *out, struct moec_error *err)
{
    const struct moec_json *node = NULL;
    char name[NAME_BYTES];
    MOEC_TRY(optional(object, where, key, &node, err));
    if (node == NULL) {
        *out = fallback;
        return MOEC_OK;
    }
    return moec_json_as_bool(node, member_name(name, where, key), out, err);
}

/* ---- arrays and iteration ---- */

size_t moec_json_length(const struct moec_json *node)
{
    if (node == NULL)
        return 0;
    return json_is_array(raw(node)) ? json_array_size(raw(node)) : json_object_size(raw(node));
}

const struct moec_json *moec_json_at(const struct moec_json *array, size_t index)
{
    return wrap(json_array_get(raw(array), index));
}

static struct moec_json_member member_at(void *position)
{
    struct moec_json_member m = {0};
    if (position != NULL) {
        m.key = json_object_iter_key(position);
        m.key_length = json_object_iter_key_len(position);
        m.value = wrap(json_object_iter_value(position));
        m.position = position;
    }
    return m;
}

struct moec_json_member moec_json_first(const struct moec_json *object)
{
    return member_at(json_object_iter(raw(object)));
}

struct moec_json_member moec_json_next(const struct moec_json *object, struct moec_json_member previous)
{
    return member_at(json_object_iter_next(raw(object), previous.position));
}

const char *moec_json_version(void)
{
    return jansson_version_str();
}
