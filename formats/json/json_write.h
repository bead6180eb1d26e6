/* Building JSON for programs to read (--json). Nodes are owned by the tree that they are put into; the root
 * is freed with moec_json_out_free. Out of memory is remembered by the root and reported by
 * moec_json_out_text, so that building needs no checks. Not-a-number and infinities become null. Thread rule:
 * one thread. */
#ifndef MOEC_FORMATS_JSON_WRITE_H
#define MOEC_FORMATS_JSON_WRITE_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_json_out; /* an object or an array */

struct moec_json_out *moec_json_out_object(void);
struct moec_json_out *moec_json_out_array(void);

/* Into an object (`key` not NULL) or at the end of an array (`key` NULL). Strings are UTF-8; invalid bytes
 * are an error reported at the end. */
void moec_json_out_string(struct moec_json_out *node, const char *key, const char *value);
/* The same for `n` bytes, which may hold NUL. */
void moec_json_out_string_n(struct moec_json_out *node, const char *key, const char *value, size_t n);
void moec_json_out_u64(struct moec_json_out *node, const char *key, uint64_t value);
void moec_json_out_double(struct moec_json_out *node, const char *key, double value);
void moec_json_out_bool(struct moec_json_out *node, const char *key, bool value);
void moec_json_out_null(struct moec_json_out *node, const char *key);
/* The value, or null for what is not there: NULL and "", and 0. */
void moec_json_out_string_or_null(struct moec_json_out *node, const char *key, const char *value);
void moec_json_out_u64_or_null(struct moec_json_out *node, const char *key, uint64_t value);
/* Puts `child` (consumed). */
void moec_json_out_node(struct moec_json_out *node, const char *key, struct moec_json_out *child);

/* The text, indented by two spaces, with a newline at the end; members in the order they were put. Owned by
 * the caller. */
MOEC_WARN_UNUSED enum moec_status moec_json_out_text(const struct moec_json_out *root, char **text,
                                                     struct moec_error *err);
/* The same on one line, without spaces or newline. */
MOEC_WARN_UNUSED enum moec_status moec_json_out_line(const struct moec_json_out *root, char **text,
                                                     struct moec_error *err);
void moec_json_out_free(struct moec_json_out *root);

#endif
