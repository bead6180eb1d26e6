/* zstd, for what is not streamed. The home of zstd. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_COMPRESS_H
#define MOEC_FORMATS_COMPRESS_H

#include "formats/base/error.h"

#include <stddef.h>

/* Compresses at a fixed level with one thread, so that equal inputs give equal bytes. Owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_compress(const void *bytes, size_t n, uint8_t **out, size_t *n_out,
                                                struct moec_error *err);

/* Decompresses one frame whose content is exactly n_out bytes into the caller's memory, which may hold anything
 * after an error. `subject` names it in messages. Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_decompress_into(const void *bytes, size_t n, uint8_t *out,
                                                       size_t n_out, const char *subject,
                                                       struct moec_error *err);

/* Content bytes that a frame states; 0 where it states none, or is no frame. */
uint64_t moec_compressed_content_bytes(const void *bytes, size_t n);

/* True when the bytes start with the zstd magic number. */
bool moec_is_zstd(const void *bytes, size_t n);

/* Decompresses a whole .zst file content, at most `limit_bytes`; a NUL follows (not counted). Where the first
 * frame states a size over the limit, nothing is allocated; memory never passes what is there and a piece.
 * Errors: MOEC_ERR_FORMAT, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_decompress_all(const void *bytes, size_t n, uint64_t limit_bytes,
                                                      char **out, size_t *n_out, const char *subject,
                                                      struct moec_error *err);

/* Version of the library in use, "1.5.4". */
const char *moec_compress_version(void);

#endif
