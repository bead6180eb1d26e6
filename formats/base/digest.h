/* Checksums: SHA-256 (nettle) for sections, files and provenance, CRC32C for records and structures.
 * The home of nettle. Thread rule: pure functions; a running digest belongs to one thread. */
#ifndef MOEC_FORMATS_DIGEST_H
#define MOEC_FORMATS_DIGEST_H

#include "formats/base/error.h"

#include <nettle/sha2.h>
#include <stddef.h>

#define MOEC_SHA256_BYTES 32

struct moec_sha256 {
    struct sha256_ctx context;
};

void moec_sha256_init(struct moec_sha256 *digest);
void moec_sha256_update(struct moec_sha256 *digest, const void *bytes, size_t n);
/* The number's eight bytes, the lowest first. */
void moec_sha256_update_u64(struct moec_sha256 *digest, uint64_t value);
void moec_sha256_finish(struct moec_sha256 *digest, uint8_t out[static MOEC_SHA256_BYTES]);
void moec_sha256(const void *bytes, size_t n, uint8_t out[static MOEC_SHA256_BYTES]);
/* Whether two digests are the same, in the same time for any two: for secrets. */
bool moec_sha256_equal(const uint8_t a[static MOEC_SHA256_BYTES], const uint8_t b[static MOEC_SHA256_BYTES]);
/* Lower-case hexadecimal with a NUL. */
void moec_sha256_hex(const uint8_t digest[static MOEC_SHA256_BYTES],
                     char text[static 2 * MOEC_SHA256_BYTES + 1]);

/* CRC32C (Castagnoli, RFC 3720 B.4). Start with crc 0 and pass the previous result to continue. */
uint32_t moec_crc32c(uint32_t crc, const void *bytes, size_t n);
/* The same without carry-less products, eight bytes at a time where the processor has an instruction for it:
 * what machines without those products run. */
uint32_t moec_crc32c_words(uint32_t crc, const void *bytes, size_t n);
/* The same without the processor's CRC instruction:
 * what machines that lack it run, and what tests compare with. */
uint32_t moec_crc32c_portable(uint32_t crc, const void *bytes, size_t n);

#endif
