/* Base64 (RFC 4648, section 4), strictly: binary data within JSON and HTML. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_BASE64_H
#define MOEC_FORMATS_BASE64_H

#include "formats/base/error.h"

#include <stddef.h>

/* `*bytes` (the caller's, never NULL) receives what text[n] spells, with its padding and nothing else. `what`
 * names the text in messages. Errors: MOEC_ERR_FORMAT with the place, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_base64_decode(const char *text, size_t n, const char *what,
                                                     uint8_t **bytes, size_t *n_bytes,
                                                     struct moec_error *err);

/* Characters that n bytes take, with padding. */
#define MOEC_BASE64_LENGTH(n) (((n) + 2) / 3 * 4)

/* Writes that many characters, without a NUL and without line ends. */
void moec_base64_write(const uint8_t *bytes, size_t n_bytes, char *text);

/* The same; `*text` is the caller's and NUL-terminated. */
MOEC_WARN_UNUSED enum moec_status moec_base64_encode(const uint8_t *bytes, size_t n_bytes, char **text,
                                                     struct moec_error *err);

#endif
