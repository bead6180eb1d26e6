/* Values of the template language: what Python's None, bool, int, float, str, list, tuple and dict are there,
 * and what only exists while a template runs. Values are immutable once a template sees them, but for
 * namespaces.
 *
 * Every byte of a string has a mark: 1 if it comes from the caller (a user's text), 0 if it comes from the
 * template. Operations carry marks along, so that special tokens that a user types are told from those that
 * the template writes.
 *
 * Memory: values live in an arena and are freed with it, all at once. Thread rule: an arena belongs to one
 * thread at a time. */
#ifndef MOEC_RUNTIME_CHAT_VALUE_H
#define MOEC_RUNTIME_CHAT_VALUE_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_chat_block;
struct moec_chat_arena {
    struct moec_chat_block *blocks; /* owned, the newest first */
    uint64_t n_bytes, limit_bytes;  /* taken, and at most; limit 0: no limit */
};

/* Zeroed memory. Errors: MOEC_ERR_LIMIT beyond the limit, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_chat_alloc(struct moec_chat_arena *arena, uint64_t n_bytes, void **out,
                                                  struct moec_error *err);
void moec_chat_arena_release(struct moec_chat_arena *arena);

enum moec_chat_kind {
    MOEC_CHAT_UNDEFINED, /* a name or member that does not exist; `name` says which, for messages */
    MOEC_CHAT_NONE,
    MOEC_CHAT_BOOL,
    MOEC_CHAT_INT,
    MOEC_CHAT_FLOAT,
    MOEC_CHAT_STRING,
    MOEC_CHAT_LIST, /* tuples too */
    MOEC_CHAT_DICT,
    MOEC_CHAT_NAMESPACE, /* a dict that assignments change */
    MOEC_CHAT_LOOP,      /* a dict: the variable `loop` */
    MOEC_CHAT_MACRO,
    MOEC_CHAT_METHOD /* of a value, not called yet */
};

struct moec_chat_string {
    const char *bytes; /* UTF-8, no NUL at the end */
    size_t n_bytes;
    const uint8_t *marks; /* (n_bytes) where they differ; NULL: all are `mark` */
    uint8_t mark;
};

struct moec_chat_value {
    enum moec_chat_kind kind;
    union {
        const struct moec_chat_string *name; /* of UNDEFINED; NULL: has none */
        bool boolean;
        int64_t integer;
        double number;
        const struct moec_chat_string *string;
        struct moec_chat_list *list;
        struct moec_chat_dict *dict; /* of NAMESPACE and LOOP too */
        const struct moec_chat_macro *macro;
        const struct moec_chat_method *method;
    } as;
};

struct moec_chat_list {
    struct moec_chat_value *items;
    size_t n, capacity;
    bool is_tuple;
    uint32_t depth;  /* how deep it nests, 1 = not at all */
    uint64_t weight; /* items in it, and in these, and so on: what a comparison may look at */
};

struct moec_chat_pair {
    struct moec_chat_value key, value;
};
struct moec_chat_dict {
    struct moec_chat_pair *pairs; /* in the order in which keys were first set */
    size_t n, capacity;
    uint32_t depth;
    uint64_t weight;
};

struct moec_chat_method {
    struct moec_chat_value object;
    const struct moec_chat_string *name;
};

/* ---- making values ---- */

static inline struct moec_chat_value moec_chat_none(void)
{
    return (struct moec_chat_value){.kind = MOEC_CHAT_NONE};
}
static inline struct moec_chat_value moec_chat_bool(bool boolean)
{
    return (struct moec_chat_value){.kind = MOEC_CHAT_BOOL, .as.boolean = boolean};
}
static inline struct moec_chat_value moec_chat_int(int64_t integer)
{
    return (struct moec_chat_value){.kind = MOEC_CHAT_INT, .as.integer = integer};
}
static inline struct moec_chat_value moec_chat_float(double number)
{
    return (struct moec_chat_value){.kind = MOEC_CHAT_FLOAT, .as.number = number};
}
static inline struct moec_chat_value moec_chat_undefined(const struct moec_chat_string *name)
{
    return (struct moec_chat_value){.kind = MOEC_CHAT_UNDEFINED, .as.name = name};
}

/* A copy of n bytes, all with this mark. */
MOEC_WARN_UNUSED enum moec_status moec_chat_string_make(struct moec_chat_arena *arena, const char *bytes,
                                                        size_t n_bytes, uint8_t mark,
                                                        struct moec_chat_value *out, struct moec_error *err);
/* Bytes first .. first + n - 1 of a string, which is not copied. */
MOEC_WARN_UNUSED enum moec_status moec_chat_string_part(struct moec_chat_arena *arena,
                                                        const struct moec_chat_string *string, size_t first,
                                                        size_t n, struct moec_chat_value *out,
                                                        struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_chat_list_make(struct moec_chat_arena *arena, size_t capacity,
                                                      struct moec_chat_value *out, struct moec_error *err);
/* Errors of these two: MOEC_ERR_LIMIT for what nests too deep or weighs too much. */
MOEC_WARN_UNUSED enum moec_status moec_chat_list_append(struct moec_chat_arena *arena,
                                                        struct moec_chat_list *list,
                                                        struct moec_chat_value item, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_chat_dict_make(struct moec_chat_arena *arena,
                                                      struct moec_chat_value *out, struct moec_error *err);
/* A key that is there keeps its place. */
MOEC_WARN_UNUSED enum moec_status moec_chat_dict_set(struct moec_chat_arena *arena,
                                                     struct moec_chat_dict *dict, struct moec_chat_value key,
                                                     struct moec_chat_value value, struct moec_error *err);

/* NULL where the key is missing. */
const struct moec_chat_value *moec_chat_dict_find(const struct moec_chat_dict *dict,
                                                  const struct moec_chat_value *key);
const struct moec_chat_value *moec_chat_dict_get(const struct moec_chat_dict *dict, const char *key);

/* ---- asking ---- */

bool moec_chat_string_is(const struct moec_chat_string *string, const char *text);
/* Python's ==, its order of two numbers, two strings or two lists, and its truth. Strings order by code
 * point. `*out` is < 0, 0 or > 0; false where Python has no order. */
bool moec_chat_equal(const struct moec_chat_value *a, const struct moec_chat_value *b);
bool moec_chat_order(const struct moec_chat_value *a, const struct moec_chat_value *b, int *out);
bool moec_chat_truth(const struct moec_chat_value *value);
bool moec_chat_is_number(const struct moec_chat_value *value); /* bool too */
double moec_chat_as_float(const struct moec_chat_value *number);
/* "str", "list", ... as Python calls it. */
const char *moec_chat_kind_name(const struct moec_chat_value *value);

/* Values nest no deeper than this, and weigh no more: what is put into two lists counts twice. */
#define MOEC_CHAT_MAX_DEPTH  64
#define MOEC_CHAT_MAX_WEIGHT ((uint64_t)1 << 22)

/* Items of a value, and of these; 1 for what has none. */
uint64_t moec_chat_weight(const struct moec_chat_value *value);

/* Sets depth and weight of everything in a tree that was filled after its parts were put together. Errors:
 * MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_chat_measure(const struct moec_chat_value *value,
                                                    struct moec_error *err);

/* ---- text being written ---- */

struct moec_chat_buffer {
    struct moec_chat_arena *arena; /* borrowed */
    char *bytes;
    uint8_t *marks; /* NULL while all are `mark` */
    uint8_t mark;
    size_t n_bytes, capacity;
};

MOEC_WARN_UNUSED enum moec_status moec_chat_write(struct moec_chat_buffer *buffer, const char *bytes,
                                                  size_t n_bytes, uint8_t mark, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_chat_write_string(struct moec_chat_buffer *buffer,
                                                         const struct moec_chat_string *string,
                                                         struct moec_error *err);
/* What was written, as a string; the buffer is not written to afterwards. */
MOEC_WARN_UNUSED enum moec_status moec_chat_buffer_end(const struct moec_chat_buffer *buffer,
                                                       struct moec_chat_value *out, struct moec_error *err);

#endif
