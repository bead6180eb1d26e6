/* Base64 (RFC 4648, section 4): binary data within JSON. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_BASE64_H
#define MOEC_FORMATS_BASE64_H

#include "formats/base/error.h"

#include <stddef.h>

/* `*bytes` (the caller's, never NULL) receives what text[n] spells, with its padding and nothing else. `what`
 * names the text in messages. Errors: MOEC_ERR_FORMAT with the place, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_base64_decode(const char *text, size_t n, const char *what,
                                                     uint8_t **bytes, size_t *n_bytes,
                                                     struct moec_error *err);

/* `*text` is the caller's and NUL-terminated, with padding and without line ends. */
MOEC_WARN_UNUSED enum moec_status moec_base64_encode(const uint8_t *bytes, size_t n_bytes, char **text,
                                                     struct moec_error *err);

#endif
