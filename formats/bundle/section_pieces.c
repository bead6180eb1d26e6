/* A piece is known once the headers before it were read, so threads take pieces in order, under a lock, and
 * then read and decompress each its own. */
#include "formats/bundle/section_pieces.h"

#include "formats/base/bytes.h"
#include "formats/base/compress.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* What decides how long a frame's content is stands in its first bytes (RFC 8878, 3.1.1). */
#define FRAME_HEADER_BYTES 18u
#define STACK_BYTES        ((size_t)256 << 10)
#define FETCH_BYTES        ((uint64_t)2 << 20)  /* that the kernel is told of at once */
#define FETCH_AHEAD        ((uint64_t)16 << 20) /* of what is read */

#define SUMS_VERSION      1u
#define SUMS_HEADER_BYTES 8u

struct loading {
    const struct moec_file *file;
    const struct moec_section *section;
    uint8_t *content;
    struct moec_sha256 *digest;    /* NULL = hashed elsewhere */
    const uint8_t *sums;           /* of pieces without headers; NULL = they have some */
    bool is_there;                 /* the content is */
    struct moec_left_pieces *left; /* NULL: all are loaded */
    pthread_mutex_t lock;
    uint64_t stored_done, content_done; /* of pieces that were taken */
    uint64_t n_taken;
    uint64_t fetched_bytes;  /* the kernel was told of */
    uint64_t failed_piece;   /* the first known to be wrong */
    struct moec_error error; /* why */
};

static enum moec_status read_stored(const struct loading *loading, uint64_t at, void *bytes, size_t n,
                                    struct moec_error *err)
{
    const struct moec_section *section = loading->section;
    if (at > section->stored_bytes || n > section->stored_bytes - at)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "section '%s' of the bundle '%s' ends in the middle of a piece: the %zu bytes at offset "
            "%" PRIu64 " extend past the section's end at %" PRIu64,
            section->name, loading->file->path, n, section->offset + at,
            section->offset + section->stored_bytes);
    return moec_file_read(loading->file, section->offset + at, bytes, n, err);
}

/* Content of a compressed piece that may be short; its frame is checked later. */
static enum moec_status find_content(const struct loading *loading, struct moec_piece *piece,
                                     struct moec_error *err)
{
    uint8_t frame[FRAME_HEADER_BYTES];
    const size_t n = piece->n_stored < sizeof frame ? piece->n_stored : sizeof frame;
    MOEC_TRY(read_stored(loading, piece->at, frame, n, err));
    const uint64_t stated = moec_compressed_content_bytes(frame, n);
    if (stated > piece->n_stored && stated <= piece->n)
        piece->n = (uint32_t)stated;
    return MOEC_OK;
}

/* A piece that begins with a header, of at most MOEC_PIECE_BYTES of content, or of exactly as many in a
 * section without MOEC_SECTION_FLAG_CUT. */
static enum moec_status read_header(const struct loading *loading, struct moec_piece *piece,
                                    struct moec_error *err)
{
    const struct moec_section *section = loading->section;
    const bool is_cut = (section->flags & MOEC_SECTION_FLAG_CUT) != 0;
    MOEC_TRY(read_stored(loading, piece->at, piece->header, sizeof piece->header, err));
    piece->is_raw = (moec_get_u32(piece->header) & MOEC_PIECE_RAW) != 0;
    piece->n_stored = moec_get_u32(piece->header) & ~MOEC_PIECE_RAW;
    piece->crc = moec_get_u32(piece->header + 4);
    const bool is_fit = piece->is_raw ? (is_cut ? piece->n_stored <= piece->n : piece->n_stored == piece->n)
                                      : piece->n_stored < piece->n;
    if (piece->n_stored == 0 || !is_fit)
        return moec_fail(
            err, MOEC_ERR_CHECKSUM,
            "section '%s' of the bundle '%s' is damaged at offset %" PRIu64 ": the piece there has %u "
            "stored bytes for %u bytes of content",
            section->name, loading->file->path, section->offset + piece->at, piece->n_stored, piece->n);
    piece->at += sizeof piece->header;
    if (piece->is_raw)
        piece->n = piece->n_stored;
    else if (is_cut)
        MOEC_TRY(find_content(loading, piece, err));
    return MOEC_OK;
}

static enum moec_status find_piece(const struct loading *loading, struct moec_piece *piece,
                                   struct moec_error *err)
{
    const uint64_t left = loading->section->content_bytes - loading->content_done;
    *piece = (struct moec_piece){.number = loading->n_taken,
                                 .at = loading->stored_done,
                                 .content_at = loading->content_done,
                                 .n = left < MOEC_PIECE_BYTES ? (uint32_t)left : (uint32_t)MOEC_PIECE_BYTES};
    if (loading->sums == NULL)
        return read_header(loading, piece, err);
    piece->is_raw = true;
    piece->n_stored = piece->n;
    piece->crc = moec_get_u32(loading->sums + SUMS_HEADER_BYTES + 4 * piece->number);
    return MOEC_OK;
}

/* `buffer` has MOEC_PIECE_BYTES. */
static enum moec_status load_piece(const struct loading *loading, const struct moec_piece *piece,
                                   uint8_t *buffer, struct moec_error *err)
{
    const struct moec_section *section = loading->section;
    uint8_t *content = loading->content + piece->content_at;
    uint8_t *stored = piece->is_raw ? content : buffer;
    if (!loading->is_there)
        MOEC_TRY(read_stored(loading, piece->at, stored, piece->n_stored, err));
    if (loading->digest != NULL) {
        moec_sha256_update(loading->digest, piece->header, sizeof piece->header);
        moec_sha256_update(loading->digest, stored, piece->n_stored);
    }
    const uint32_t crc = moec_crc32c(0, stored, piece->n_stored);
    if (crc != piece->crc)
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "section '%s' of the bundle '%s' is damaged at offset %" PRIu64 ": the piece of "
                         "%u bytes there has CRC32C %08x, expected %08x",
                         section->name, loading->file->path, section->offset + piece->at, piece->n_stored,
                         crc, piece->crc);
    if (piece->is_raw)
        return MOEC_OK;
    char subject[64];
    (void)snprintf(subject, sizeof subject, "section '%s'", section->name);
    return moec_decompress_into(stored, piece->n_stored, content, piece->n, subject, err);
}

/* With the lock held. */
static void fail(struct loading *loading, uint64_t number, const struct moec_error *error)
{
    if (number >= loading->failed_piece)
        return;
    loading->failed_piece = number;
    loading->error = *error;
}

/* Pieces are too small for a device by themselves, and two threads hide from the kernel that they follow each
 * other. With the lock held. */
static void fetch_ahead(struct loading *loading)
{
    const struct moec_section *section = loading->section;
    const struct moec_left_pieces *left = loading->left;
    if (left != NULL && loading->content_done >= left->from && loading->content_done < left->end)
        return;
    if (loading->fetched_bytes < loading->stored_done)
        loading->fetched_bytes = loading->stored_done;
    if (loading->is_there || loading->fetched_bytes >= section->stored_bytes ||
        loading->fetched_bytes > loading->stored_done + FETCH_AHEAD)
        return;
    const uint64_t rest = section->stored_bytes - loading->fetched_bytes;
    const uint64_t n = rest < FETCH_BYTES ? rest : FETCH_BYTES;
    moec_file_fetch(loading->file, section->offset + loading->fetched_bytes, n);
    loading->fetched_bytes += n;
}

/* With the lock held. */
static bool leave_piece(struct moec_left_pieces *left, const struct moec_piece *piece)
{
    if (left == NULL || piece->content_at < left->from || piece->content_at + piece->n > left->end ||
        left->n == left->capacity)
        return false;
    left->pieces[left->n++] = *piece;
    return true;
}

/* Finds the next piece and goes past it, or leaves it. With the lock held. */
static enum moec_status find_next(struct loading *loading, struct moec_piece *piece, bool *is_taken,
                                  struct moec_error *err)
{
    fetch_ahead(loading);
    MOEC_TRY(find_piece(loading, piece, err));
    *is_taken = !leave_piece(loading->left, piece);
    loading->n_taken++;
    loading->stored_done = piece->at + piece->n_stored;
    loading->content_done += piece->n;
    return MOEC_OK;
}

/* False when nothing is left to load. */
static bool take_piece(struct loading *loading, struct moec_piece *piece)
{
    struct moec_error error = {0};
    bool is_taken = false;
    (void)pthread_mutex_lock(&loading->lock);
    while (!is_taken && loading->failed_piece == UINT64_MAX &&
           loading->content_done < loading->section->content_bytes) {
        if (find_next(loading, piece, &is_taken, &error) != MOEC_OK)
            fail(loading, loading->n_taken, &error);
    }
    (void)pthread_mutex_unlock(&loading->lock);
    return is_taken;
}

static void *load_pieces(void *context)
{
    struct loading *loading = context;
    struct moec_piece piece;
    void *buffer = NULL;
    struct moec_error error = {0};
    enum moec_status status = moec_alloc(&buffer, MOEC_PIECE_BYTES, 1, "a read buffer", &error);
    piece.number = 0;
    while (status == MOEC_OK && take_piece(loading, &piece))
        status = load_piece(loading, &piece, buffer, &error);
    free(buffer);
    if (status != MOEC_OK) {
        (void)pthread_mutex_lock(&loading->lock);
        fail(loading, piece.number, &error);
        (void)pthread_mutex_unlock(&loading->lock);
    }
    return NULL;
}

static bool begin_thread(struct loading *loading, pthread_t *thread)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    const bool has_begun = pthread_create(thread, &attributes, load_pieces, loading) == 0;
    (void)pthread_attr_destroy(&attributes);
    return has_begun;
}

/* With a second thread, unless a digest wants the pieces in order or there is hardly more than one. */
static enum moec_status load_all(struct loading *loading, struct moec_error *err)
{
    const struct moec_section *section = loading->section;
    pthread_t thread;
    loading->failed_piece = UINT64_MAX;
    (void)pthread_mutex_init(&loading->lock, NULL);
    const bool has_thread = loading->digest == NULL && section->content_bytes > MOEC_PIECE_BYTES &&
                            begin_thread(loading, &thread);
    (void)load_pieces(loading);
    if (has_thread)
        (void)pthread_join(thread, NULL);
    (void)pthread_mutex_destroy(&loading->lock);
    if (loading->failed_piece != UINT64_MAX)
        return moec_fail(err, loading->error.status, "%s", loading->error.message);
    if (loading->stored_done != section->stored_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "section '%s' of the bundle '%s' has %" PRIu64 " bytes after its last piece, "
                         "expected none",
                         section->name, loading->file->path, section->stored_bytes - loading->stored_done);
    return MOEC_OK;
}

enum moec_status moec_section_pieces_load(const struct moec_file *file, const struct moec_section *section,
                                          uint8_t *content, struct moec_sha256 *digest,
                                          struct moec_error *err)
{
    struct loading loading = {.file = file, .section = section, .content = content, .digest = digest};
    return load_all(&loading, err);
}

enum moec_status moec_section_pieces_load_but(const struct moec_file *file,
                                              const struct moec_section *section, uint8_t *content,
                                              struct moec_left_pieces *left, struct moec_error *err)
{
    struct loading loading = {.file = file, .section = section, .content = content, .left = left};
    return load_all(&loading, err);
}

enum moec_status moec_section_piece_load(const struct moec_file *file, const struct moec_section *section,
                                         const struct moec_piece *piece, uint8_t *buffer, uint8_t *content,
                                         struct moec_error *err)
{
    const struct loading loading = {.file = file, .section = section, .content = content};
    return load_piece(&loading, piece, buffer, err);
}

/* ---- sections that are stored as they are ---- */

static uint64_t sum_count(uint64_t content_bytes)
{
    return (content_bytes + MOEC_PIECE_BYTES - 1) / MOEC_PIECE_BYTES;
}

size_t moec_section_sums_bytes(uint64_t content_bytes)
{
    return SUMS_HEADER_BYTES + 4 * (size_t)sum_count(content_bytes);
}

void moec_section_sums_encode(const uint8_t *content, uint64_t content_bytes, uint8_t *bytes)
{
    moec_put_u32(bytes, SUMS_VERSION);
    moec_put_u32(bytes + 4, (uint32_t)MOEC_PIECE_BYTES);
    bytes += SUMS_HEADER_BYTES;
    for (uint64_t done = 0; done < content_bytes; done += MOEC_PIECE_BYTES, bytes += 4) {
        const uint64_t left = content_bytes - done;
        moec_put_u32(
            bytes, moec_crc32c(0, content + done, left < MOEC_PIECE_BYTES ? (size_t)left : MOEC_PIECE_BYTES));
    }
}

enum moec_status moec_section_sums_check(const uint8_t *bytes, size_t n_bytes, uint64_t content_bytes,
                                         struct moec_error *err)
{
    if (n_bytes >= 4 && moec_get_u32(bytes) != SUMS_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the checksums of the dense weights have version %u, expected %u",
                         moec_get_u32(bytes), SUMS_VERSION);
    if (n_bytes != moec_section_sums_bytes(content_bytes) || moec_get_u32(bytes + 4) != MOEC_PIECE_BYTES)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the checksums of the dense weights have %zu bytes, expected %zu: one checksum for every %zu of the "
            "%" PRIu64 " bytes of weights",
            n_bytes, moec_section_sums_bytes(content_bytes), MOEC_PIECE_BYTES, content_bytes);
    return MOEC_OK;
}

enum moec_status moec_section_plain_load(const struct moec_file *file, const struct moec_section *section,
                                         const uint8_t *sums, bool is_there, uint8_t *content,
                                         struct moec_error *err)
{
    struct loading loading = {
        .file = file, .section = section, .content = content, .sums = sums, .is_there = is_there};
    return load_all(&loading, err);
}
