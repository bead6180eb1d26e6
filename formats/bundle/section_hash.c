/* The thread is a help, not a need: where none can be started, the end computes the digest itself. Reading
 * fails into the hash's own error, which only the end reads, after the join. */
#include "formats/bundle/section_hash.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

#define STACK_BYTES ((size_t)128 << 10)

static void *compute(void *context)
{
    struct moec_section_hash *hash = context;
    const struct moec_section *section = hash->section;
    struct moec_sha256 digest;
    moec_sha256_init(&digest);
    for (uint64_t done = 0; done < section->stored_bytes;) {
        const uint64_t left = section->stored_bytes - done;
        const size_t n = left < MOEC_PIECE_BYTES ? (size_t)left : MOEC_PIECE_BYTES;
        if (moec_file_read(hash->file, section->offset + done, hash->buffer, n, &hash->error) != MOEC_OK)
            return NULL;
        moec_sha256_update(&digest, hash->buffer, n);
        done += n;
    }
    moec_sha256_finish(&digest, hash->digest);
    return NULL;
}

enum moec_status moec_section_hash_begin(struct moec_section_hash *hash, const struct moec_file *file,
                                         const struct moec_section *section, struct moec_error *err)
{
    pthread_attr_t attributes;
    *hash = (struct moec_section_hash){0};
    MOEC_TRY(moec_alloc(&hash->buffer, MOEC_PIECE_BYTES, 1, "a read buffer", err));
    hash->file = file;
    hash->section = section;
    if (pthread_attr_init(&attributes) != 0)
        return MOEC_OK;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    hash->has_thread = pthread_create(&hash->thread, &attributes, compute, hash) == 0;
    (void)pthread_attr_destroy(&attributes);
    return MOEC_OK;
}

enum moec_status moec_section_hash_end(struct moec_section_hash *hash, struct moec_error *err)
{
    if (hash->section == NULL)
        return MOEC_OK;
    if (hash->has_thread)
        (void)pthread_join(hash->thread, NULL);
    else
        (void)compute(hash);
    free(hash->buffer);
    if (hash->error.status != MOEC_OK)
        return moec_fail(err, hash->error.status, "%s", hash->error.message);
    return moec_section_check_digest(hash->file, hash->section, hash->digest, err);
}

enum moec_status moec_section_check_digest(const struct moec_file *file, const struct moec_section *section,
                                           const uint8_t digest[static MOEC_SHA256_BYTES],
                                           struct moec_error *err)
{
    if (memcmp(digest, section->digest, MOEC_SHA256_BYTES) != 0)
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "section '%s' of the bundle '%s' is damaged: its SHA-256 does not match (%" PRIu64
                         " bytes at offset %" PRIu64 "); run moec verify to locate the damage",
                         section->name, file->path, section->stored_bytes, section->offset);
    return MOEC_OK;
}
