/* Two ways to decompress. Of a frame whose size is known, the stated sizes are compared before anything is
 * allocated. Of any other, a stream fills a buffer that grows within a limit. A stated size is only a first
 * size there, and bytes beyond the limit are an error, never cut off. */
#include "formats/base/compress.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>
#include <zstd.h>

/* High enough for text that is written once, low enough that a tokenizer of 10 MB takes under a second. */
#define COMPRESSION_LEVEL 9
#define PIECE_BYTES       ((size_t)65536)

enum moec_status moec_compress(const void *bytes, size_t n, uint8_t **out, size_t *n_out,
                               struct moec_error *err)
{
    void *memory = NULL;
    size_t bound = ZSTD_compressBound(n);
    if (ZSTD_isError(bound))
        return moec_fail(err, MOEC_ERR_LIMIT, "cannot compress %zu bytes: %s", n, ZSTD_getErrorName(bound));
    MOEC_TRY(moec_alloc(&memory, bound, 1, "compressed data", err));
    size_t used = ZSTD_compress(memory, bound, bytes, n, COMPRESSION_LEVEL);
    if (ZSTD_isError(used)) {
        free(memory);
        return moec_fail(err, MOEC_ERR_MEMORY, "cannot compress %zu bytes: %s", n, ZSTD_getErrorName(used));
    }
    *out = memory;
    *n_out = used;
    return MOEC_OK;
}

uint64_t moec_compressed_content_bytes(const void *bytes, size_t n)
{
    const unsigned long long content = moec_is_zstd(bytes, n) ? ZSTD_getFrameContentSize(bytes, n) : 0;
    return content == ZSTD_CONTENTSIZE_ERROR || content == ZSTD_CONTENTSIZE_UNKNOWN ? 0 : content;
}

/* Whether the bytes are one frame that states this content. */
static enum moec_status check_frame(const void *bytes, size_t n, uint64_t expected_bytes, const char *subject,
                                    struct moec_error *err)
{
    if (!moec_is_zstd(bytes, n))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is not zstd data", subject);
    /* The sizes that the frame states are compared first, so that a damaged one allocates nothing. */
    unsigned long long content = ZSTD_getFrameContentSize(bytes, n);
    if (content == ZSTD_CONTENTSIZE_ERROR || content == ZSTD_CONTENTSIZE_UNKNOWN)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is zstd data that does not state its decompressed size",
                         subject);
    if (content != expected_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s holds %llu bytes when decompressed, expected %" PRIu64,
                         subject, content, expected_bytes);
    size_t frame = ZSTD_findFrameCompressedSize(bytes, n);
    if (ZSTD_isError(frame))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is damaged zstd data: %s", subject,
                         ZSTD_getErrorName(frame));
    if (frame != n)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %zu bytes after its zstd frame, expected none",
                         subject, n - frame);
    return MOEC_OK;
}

enum moec_status moec_decompress_into(const void *bytes, size_t n, uint8_t *out, size_t n_out,
                                      const char *subject, struct moec_error *err)
{
    MOEC_TRY(check_frame(bytes, n, n_out, subject, err));
    const size_t got = ZSTD_decompress(out, n_out, bytes, n);
    if (ZSTD_isError(got) || got != n_out)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is damaged zstd data: %s", subject,
                         ZSTD_isError(got) ? ZSTD_getErrorName(got) : "it ends early");
    return MOEC_OK;
}

bool moec_is_zstd(const void *bytes, size_t n)
{
    static const uint8_t magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    return n >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

/* Room that the first frame asks for, or a piece where it does not say. */
static enum moec_status first_room(const void *bytes, size_t n, uint64_t limit_bytes, size_t *room,
                                   const char *subject, struct moec_error *err)
{
    const unsigned long long stated = ZSTD_getFrameContentSize(bytes, n);
    *room = PIECE_BYTES;
    if (stated == ZSTD_CONTENTSIZE_UNKNOWN || stated == ZSTD_CONTENTSIZE_ERROR)
        return MOEC_OK;
    if (stated > limit_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%s holds %llu bytes when decompressed, more than the limit of %" PRIu64, subject,
                         stated, limit_bytes);
    *room = (size_t)stated + 1;
    return MOEC_OK;
}

enum moec_status moec_decompress_all(const void *bytes, size_t n, uint64_t limit_bytes, char **out,
                                     size_t *n_out, const char *subject, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *text = NULL;
    size_t capacity = 0, used = 0, left = 1, room = 0;
    ZSTD_inBuffer input = {bytes, n, 0};
    if (!moec_is_zstd(bytes, n))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is not zstd data", subject);
    MOEC_TRY(first_room(bytes, n, limit_bytes, &room, subject, err));
    ZSTD_DStream *stream = ZSTD_createDStream();
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: zstd decoder");
    /* One more byte than the limit: room for the NUL and for seeing that the limit is passed. */
    uint64_t budget = limit_bytes < UINT64_MAX - PIECE_BYTES ? limit_bytes + PIECE_BYTES : UINT64_MAX;
    for (;;) {
        MOEC_TRY_OUT(moec_grow_within(&text, &capacity, used + 2 > room ? used + PIECE_BYTES : room, 1,
                                      &budget, subject, err));
        ZSTD_outBuffer output = {(char *)text + used, capacity - used - 1, 0};
        left = ZSTD_decompressStream(stream, &output, &input);
        if (ZSTD_isError(left)) {
            status = moec_fail(err, MOEC_ERR_FORMAT, "%s is damaged zstd data near byte %zu: %s", subject,
                               input.pos, ZSTD_getErrorName(left));
            goto out;
        }
        used += output.pos;
        if (used > limit_bytes) {
            status = moec_fail(err, MOEC_ERR_LIMIT,
                               "%s holds more than the limit of %" PRIu64 " bytes when decompressed", subject,
                               limit_bytes);
            goto out;
        }
        if (input.pos == n && output.pos < output.size)
            break;
    }
    if (left != 0) {
        status = moec_fail(err, MOEC_ERR_FORMAT, "%s ends early: it is truncated at byte %zu", subject, n);
        goto out;
    }
    ((char *)text)[used] = '\0';
    *out = text;
    *n_out = used;
    text = NULL;
out:
    free(text);
    (void)ZSTD_freeDStream(stream);
    return status;
}

const char *moec_compress_version(void)
{
    return ZSTD_versionString();
}
