/* What a checkpoint says about conversations: its chat templates as text, and the special tokens that they
 * name. Texts by name: "chat_template", "chat_template_tool_use", "bos_token", "eos_token", ... The templates
 * are read by runtime/chat. Thread rule: immutable once filled. */
#ifndef MOEC_FORMATS_CHAT_SOURCE_H
#define MOEC_FORMATS_CHAT_SOURCE_H

#include "formats/base/error.h"

#include <stddef.h>

#define MOEC_CHAT_SOURCE_MAX_TEXTS 16u
#define MOEC_CHAT_SOURCE_MAX_BYTES ((size_t)1 << 20) /* of one text */
#define MOEC_CHAT_SOURCE_MAX_NAME  32u

#define MOEC_CHAT_TEMPLATE       "chat_template"
#define MOEC_CHAT_TEMPLATE_TOOLS "chat_template_tool_use" /* for conversations with tools */

struct moec_chat_text {
    char name[MOEC_CHAT_SOURCE_MAX_NAME + 1]; /* lower-case letters, digits and _ */
    char *bytes;                              /* UTF-8, owned; a NUL follows */
    size_t n_bytes;
};

struct moec_chat_source {
    struct moec_chat_text texts[MOEC_CHAT_SOURCE_MAX_TEXTS]; /* by name */
    uint32_t n;
};

/* Adds a text, or replaces the one of that name. Errors: MOEC_ERR_LIMIT, MOEC_ERR_FORMAT (not UTF-8, a NUL),
 * MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_chat_source_add(struct moec_chat_source *source, const char *name,
                                                       const char *bytes, size_t n_bytes,
                                                       struct moec_error *err);
/* NULL when there is none. */
const struct moec_chat_text *moec_chat_source_find(const struct moec_chat_source *source, const char *name);
void moec_chat_source_release(struct moec_chat_source *source);

/* Section of a bundle (formats/bundle/FORMAT.md, "chat"). encode gives malloc'ed bytes, owned by the caller;
 * decode fills an empty source. Errors: MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_chat_source_encode(const struct moec_chat_source *source,
                                                          uint8_t **bytes, size_t *n_bytes,
                                                          struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_chat_source_decode(const uint8_t *bytes, size_t n_bytes,
                                                          struct moec_chat_source *source,
                                                          struct moec_error *err);

#endif
