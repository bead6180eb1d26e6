/* JSON text to a tree of values with typed, range-checked getters. The home of jansson: no other file
 * includes it.
 *
 * A document is parsed under limits of size and nesting, duplicate keys are refused, and every message names
 * the file (`subject`) with line, column and byte offset for syntax, or the object (`where`) and the key for
 * values. A vocabulary or a safetensors header is data from outside like any other: no value is used
 * unchecked. NaN, Infinity and -Infinity, which Python's json module writes, are reals: only who needs a
 * finite number refuses them.
 *
 * Nodes are borrowed from the root and live until moec_json_free(root). Strings are valid UTF-8 (RFC 8259; a
 * lone surrogate escape is refused), NUL-terminated, and may hold NUL inside only where a length is handed
 * out. `where` names the object a key is looked up in, ready for a sentence: "'config.json'" or
 * "'rope_scaling' in 'config.json'".
 *
 * Thread rule: a tree may be read by many threads; parse and free belong to one. */
#ifndef MOEC_FORMATS_JSON_H
#define MOEC_FORMATS_JSON_H

#include "formats/base/error.h"

#include <stddef.h>

/* Deepest nesting of arrays and objects that is accepted. */
#define MOEC_JSON_MAX_DEPTH 64

enum moec_json_type {
    MOEC_JSON_NULL,
    MOEC_JSON_BOOL,
    MOEC_JSON_INTEGER,
    MOEC_JSON_REAL,
    MOEC_JSON_STRING,
    MOEC_JSON_ARRAY,
    MOEC_JSON_OBJECT,
};

/* One value of a document; opaque. */
struct moec_json;

/* Parses exactly one JSON value (with white space around it) from `bytes[length]`, which needs no NUL.
 * `max_bytes` is the largest length accepted. `*root` is owned by the caller (moec_json_free).
 * Errors: MOEC_ERR_LIMIT (length or depth), MOEC_ERR_FORMAT (syntax, duplicate key, number out of range). */
MOEC_WARN_UNUSED enum moec_status moec_json_parse(const char *bytes, size_t length, size_t max_bytes,
                                                  const char *subject, struct moec_json **root,
                                                  struct moec_error *err);
void moec_json_free(struct moec_json *root);

enum moec_json_type moec_json_type(const struct moec_json *node);
/* "an object", "a string", ..., "NaN", "Infinity": for messages. A NULL node gives "nothing". */
const char *moec_json_type_name(const struct moec_json *node);

/* --- members of an object ---
 *
 * `object` must be an object, otherwise MOEC_ERR_FORMAT. The plain getters require the key; the `_or` forms
 * give `fallback` when the key is absent or null. Numbers outside [min, max] are MOEC_ERR_FORMAT. */

/* The member's value or NULL when absent (or when `object` is no object); null is returned as a node. */
const struct moec_json *moec_json_find(const struct moec_json *object, const char *key);
/* The same, but NULL for null too. */
const struct moec_json *moec_json_present(const struct moec_json *object, const char *key);
MOEC_WARN_UNUSED enum moec_status moec_json_get(const struct moec_json *object, const char *where,
                                                const char *key, enum moec_json_type type,
                                                const struct moec_json **out, struct moec_error *err);
/* `*length` may be NULL: then a string with a NUL inside is refused. `*out` is borrowed. */
MOEC_WARN_UNUSED enum moec_status moec_json_get_string(const struct moec_json *object, const char *where,
                                                       const char *key, const char **out, size_t *length,
                                                       struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_get_string_or(const struct moec_json *object, const char *where,
                                                          const char *key, const char *fallback,
                                                          const char **out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_get_u64(const struct moec_json *object, const char *where,
                                                    const char *key, uint64_t min, uint64_t max,
                                                    uint64_t *out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_get_u64_or(const struct moec_json *object, const char *where,
                                                       const char *key, uint64_t min, uint64_t max,
                                                       uint64_t fallback, uint64_t *out,
                                                       struct moec_error *err);
/* An optional u32 up to `max`; `*value` keeps what it holds when the key is absent or null. */
MOEC_WARN_UNUSED enum moec_status moec_json_update_u32(const struct moec_json *object, const char *where,
                                                       const char *key, uint32_t max, uint32_t *value,
                                                       struct moec_error *err);
/* Integers are accepted where a double is asked for, Infinity where `max` is infinite, NaN nowhere. */
MOEC_WARN_UNUSED enum moec_status moec_json_get_double(const struct moec_json *object, const char *where,
                                                       const char *key, double min, double max, double *out,
                                                       struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_get_double_or(const struct moec_json *object, const char *where,
                                                          const char *key, double min, double max,
                                                          double fallback, double *out,
                                                          struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_get_bool(const struct moec_json *object, const char *where,
                                                     const char *key, bool *out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_get_bool_or(const struct moec_json *object, const char *where,
                                                        const char *key, bool fallback, bool *out,
                                                        struct moec_error *err);

/* ---- a value by itself; `what` names it in the message ("shape[1] of tensor 'x' in 'y'") ---- */

MOEC_WARN_UNUSED enum moec_status moec_json_as_string(const struct moec_json *node, const char *what,
                                                      const char **out, size_t *length,
                                                      struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_as_u64(const struct moec_json *node, const char *what,
                                                   uint64_t min, uint64_t max, uint64_t *out,
                                                   struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_as_double(const struct moec_json *node, const char *what,
                                                      double min, double max, double *out,
                                                      struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_json_as_bool(const struct moec_json *node, const char *what, bool *out,
                                                    struct moec_error *err);

/* ---- arrays and iteration ---- */

/* Items of an array or members of an object; 0 for anything else. */
size_t moec_json_length(const struct moec_json *node);
/* Item `index` of an array, or NULL. */
const struct moec_json *moec_json_at(const struct moec_json *array, size_t index);

/* Walks an object's members in the order of the file:
 *     for (struct moec_json_member m = moec_json_first(object); m.key != NULL; m = moec_json_next(object, m))
 */
struct moec_json_member {
    const char *key; /* NUL-terminated, no NUL inside; NULL after the last member */
    size_t key_length;
    const struct moec_json *value;
    void *position; /* private */
};
struct moec_json_member moec_json_first(const struct moec_json *object);
struct moec_json_member moec_json_next(const struct moec_json *object, struct moec_json_member member);

/* Version of the library in use, "2.14". */
const char *moec_json_version(void);

#endif
