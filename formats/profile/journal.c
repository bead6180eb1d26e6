/* Records are chained: the CRC32C of each continues that of the record before it, so a record counts only
 * after all before it. A failed append is cut off again, and a torn end is cut when the journal is opened
 * for writing. Data reach the disk at least every MOEC_JOURNAL_SYNC_SECONDS of appending. The lock is
 * checked against removal, since the former holder may have finished and removed the file. */
#include "formats/profile/journal.h"

#include "formats/base/bytes.h"
#include "formats/base/clock.h"
#include "formats/base/lock.h"
#include "formats/base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t magic[16] = MOEC_JOURNAL_MAGIC;

#define PIECE_BYTES ((size_t)1 << 16) /* of a payload while its checksum is computed */

/* ---- texts ---- */

/* Texts of a journal come into messages: no control characters. */
static bool is_plain(const char *text, size_t n, bool with_newlines)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && !(c == '\n' && with_newlines)) || c == 0x7f)
            return false;
    }
    return true;
}

/* The value of `name` in a description, and its length; NULL when there is none. */
static const char *find_value(const char *job, const char *name, size_t n_name, size_t *n_value)
{
    for (const char *line = job; *line != '\0';) {
        const size_t n = strcspn(line, "\n");
        if (n > n_name && strncmp(line, name, n_name) == 0 && line[n_name] == ':') {
            const size_t skip = n_name + 1 + (line[n_name + 1] == ' ');
            *n_value = n - skip;
            return line + skip;
        }
        line += n + (line[n] == '\n');
    }
    return NULL;
}

/* "seed is '3' (this run: '4'), " for a line that the other description has otherwise or not at all. */
static void describe_difference(char *text, size_t room, const char *line, const char *theirs,
                                const char *ours)
{
    const size_t n_name = strcspn(line, ":\n"), used = strlen(text);
    size_t n_theirs = 4, n_ours = 4;
    const char *their_value = find_value(theirs, line, n_name, &n_theirs);
    const char *our_value = find_value(ours, line, n_name, &n_ours);
    if (their_value != NULL && our_value != NULL && n_theirs == n_ours &&
        memcmp(their_value, our_value, n_ours) == 0)
        return;
    const int most = 72; /* a hexadecimal digest is shown whole */
    (void)snprintf(text + used, room - used, "%s%.*s is '%.*s' (this run: '%.*s')", used > 0 ? ", " : "",
                   (int)(n_name < 40 ? n_name : 40), line, n_theirs < (size_t)most ? (int)n_theirs : most,
                   their_value != NULL ? their_value : "none", n_ours < (size_t)most ? (int)n_ours : most,
                   our_value != NULL ? our_value : "none");
}

static enum moec_status check_job(const struct moec_journal *journal, const char *job, struct moec_error *err)
{
    char text[640] = "";
    if (journal->job == NULL || strcmp(journal->job, job) == 0)
        return MOEC_OK;
    for (const char *line = job; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n')
        describe_difference(text, sizeof text, line, journal->job, job);
    /* What this run has no word for. */
    for (const char *line = journal->job; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n') {
        size_t n = 0;
        if (find_value(job, line, strcspn(line, ":\n"), &n) == NULL)
            describe_difference(text, sizeof text, line, journal->job, job);
    }
    return moec_fail(err, MOEC_ERR_MISMATCH, "'%s' is the journal of another job: its %s", journal->file.path,
                     text[0] != '\0' ? text : "description differs");
}

/* ---- writing ---- */

static enum moec_status sync_data(struct moec_journal *journal, struct moec_error *err)
{
    if (fdatasync(journal->file.fd) != 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot sync '%s': %s", journal->file.path, strerror(errno));
    journal->is_dirty = false;
    journal->synced_ns = (int64_t)moec_now_ns();
    return MOEC_OK;
}

static enum moec_status cut(struct moec_journal *journal, uint64_t n_bytes, struct moec_error *err)
{
    if (ftruncate(journal->file.fd, (off_t)n_bytes) != 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot truncate '%s' to %" PRIu64 " bytes: %s",
                         journal->file.path, n_bytes, strerror(errno));
    journal->file.n_bytes = n_bytes;
    return MOEC_OK;
}

static enum moec_status lock(struct moec_journal *journal, struct moec_error *err)
{
    struct stat info;
    enum moec_lock taken = MOEC_LOCK_NONE;
    MOEC_TRY(moec_lock_try(journal->file.fd, journal->file.path, &taken, err));
    if (taken == MOEC_LOCK_BUSY)
        return moec_fail(err, MOEC_ERR_IO,
                         "the journal '%s' is being written by another process; wait until it ends",
                         journal->file.path);
    journal->is_unlocked = taken == MOEC_LOCK_NONE;
    /* The process that held it may have finished its job and removed it. */
    if (fstat(journal->file.fd, &info) != 0 || info.st_nlink == 0)
        return moec_fail(err, MOEC_ERR_NOT_FOUND,
                         "the journal '%s' was removed by another process: run the command again",
                         journal->file.path);
    return MOEC_OK;
}

static enum moec_status write_header(struct moec_journal *journal, const char *job, struct moec_error *err)
{
    uint8_t header[MOEC_JOURNAL_HEADER_BYTES] = {0};
    const size_t n_job = strlen(job);
    memcpy(header, magic, sizeof magic);
    moec_put_u32(header + 16, MOEC_JOURNAL_VERSION);
    moec_put_u32(header + 20, (uint32_t)n_job);
    moec_sha256(job, n_job, header + 24);
    journal->crc = moec_crc32c(moec_crc32c(0, header, 60), job, n_job);
    moec_put_u32(header + 60, journal->crc);
    MOEC_TRY(cut(journal, 0, err));
    MOEC_TRY(moec_file_write(&journal->file, 0, header, sizeof header, err));
    MOEC_TRY(moec_file_write(&journal->file, sizeof header, job, n_job, err));
    journal->n_bytes = sizeof header + n_job;
    return sync_data(journal, err);
}

static enum moec_status check_description(const char *job, struct moec_error *err)
{
    const size_t n = strlen(job);
    if (n > MOEC_JOURNAL_MAX_JOB)
        return moec_fail(err, MOEC_ERR_LIMIT, "the description of a job has %zu bytes, expected at most %u",
                         n, MOEC_JOURNAL_MAX_JOB);
    if (!is_plain(job, n, true))
        return moec_fail(err, MOEC_ERR_USAGE, "the description of a job has control characters");
    return MOEC_OK;
}

enum moec_status moec_journal_create(struct moec_journal *journal, const char *path, const char *job,
                                     struct moec_error *err)
{
    *journal = (struct moec_journal){.file.fd = -1, .is_writable = true};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(check_description(job, err));
    MOEC_TRY(moec_file_open_writable(&journal->file, path, true, err));
    MOEC_TRY_OUT(lock(journal, err));
    MOEC_TRY_OUT(moec_strndup(&journal->job, job, strlen(job), err));
    MOEC_TRY_OUT(write_header(journal, job, err));
out:
    if (status != MOEC_OK) {
        (void)unlink(path);
        moec_journal_close(journal);
    }
    return status;
}

static enum moec_status add_record(struct moec_journal *journal, const char *key, size_t n_key,
                                   struct moec_journal_record record, struct moec_error *err)
{
    const char *what = "the records of a journal";
    MOEC_TRY(moec_grow((void **)&journal->records, &journal->record_capacity, journal->n_record + 1,
                       sizeof *journal->records, what, err));
    MOEC_TRY(moec_grow((void **)&journal->keys, &journal->keys_capacity, journal->keys_bytes + n_key + 1, 1,
                       what, err));
    record.key_offset = journal->keys_bytes;
    journal->records[journal->n_record++] = record;
    memcpy(journal->keys + journal->keys_bytes, key, n_key);
    journal->keys_bytes += n_key;
    journal->keys[journal->keys_bytes++] = '\0';
    return MOEC_OK;
}

enum moec_status moec_journal_append(struct moec_journal *journal, uint16_t kind, const char *key,
                                     const struct moec_journal_piece *pieces, size_t n_piece,
                                     struct moec_error *err)
{
    uint8_t head[MOEC_JOURNAL_RECORD_BYTES + MOEC_JOURNAL_MAX_KEY];
    const size_t n_key = strlen(key), n_head = MOEC_JOURNAL_RECORD_BYTES + n_key;
    const uint64_t start = journal->n_bytes;
    uint64_t n_payload = 0;
    if (!journal->is_writable || n_key >= MOEC_JOURNAL_MAX_KEY || !is_plain(key, n_key, false))
        return moec_fail(err, MOEC_ERR_USAGE, "'%s' cannot be the key of a record in the journal '%s'", key,
                         journal->file.path);
    if (journal->n_record >= MOEC_JOURNAL_MAX_RECORDS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the journal '%s' already has %zu records, the most that a journal can have",
                         journal->file.path, journal->n_record);
    for (size_t i = 0; i < n_piece; i++)
        n_payload += pieces[i].n_bytes;
    moec_put_u16(head + 4, kind);
    moec_put_u16(head + 6, (uint16_t)n_key);
    moec_put_u64(head + 8, n_payload);
    memcpy(head + MOEC_JOURNAL_RECORD_BYTES, key, n_key + 1); /* its NUL is not written */
    uint32_t crc = moec_crc32c(journal->crc, head + 4, n_head - 4);
    for (size_t i = 0; i < n_piece; i++)
        crc = moec_crc32c(crc, pieces[i].bytes, pieces[i].n_bytes);
    moec_put_u32(head, crc);

    enum moec_status status = MOEC_OK;
    uint64_t at = start + n_head;
    MOEC_TRY_OUT(moec_file_write(&journal->file, start, head, n_head, err));
    for (size_t i = 0; i < n_piece; at += pieces[i].n_bytes, i++)
        MOEC_TRY_OUT(moec_file_write(&journal->file, at, pieces[i].bytes, pieces[i].n_bytes, err));
    MOEC_TRY_OUT(add_record(journal, key, n_key,
                            (struct moec_journal_record){
                                .kind = kind, .payload_offset = start + n_head, .payload_bytes = n_payload},
                            err));
    journal->crc = crc;
    journal->n_bytes = at;
    journal->is_dirty = true;
    if ((int64_t)moec_now_ns() - journal->synced_ns >= (int64_t)MOEC_JOURNAL_SYNC_SECONDS * 1000000000)
        status = sync_data(journal, err);
    return status;
out:
    (void)cut(journal, start, NULL);
    return status;
}

void moec_journal_close(struct moec_journal *journal)
{
    if (journal->is_writable && journal->is_dirty && journal->file.path != NULL)
        (void)sync_data(journal, NULL);
    moec_file_close(&journal->file);
    free(journal->job);
    free(journal->records);
    free(journal->keys);
    *journal = (struct moec_journal){.file.fd = -1};
}

/* ---- reading ---- */

/* A journal whose job died while it wrote the header: nothing of it counts. */
static enum moec_status torn_header(struct moec_journal *journal)
{
    journal->n_dropped = journal->file.n_bytes;
    return MOEC_OK;
}

static enum moec_status damaged_header(const struct moec_journal *journal, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_CHECKSUM,
                     "the header of the journal '%s' does not match its checksum; delete the file to "
                     "start over",
                     journal->file.path);
}

/* `job` is the description that is expected, NULL for any. */
static enum moec_status read_header(struct moec_journal *journal, const char *job, struct moec_error *err)
{
    const struct moec_file *file = &journal->file;
    uint8_t header[MOEC_JOURNAL_HEADER_BYTES] = {0}, digest[MOEC_SHA256_BYTES];
    const size_t n = file->n_bytes < sizeof header ? (size_t)file->n_bytes : sizeof header;
    MOEC_TRY(moec_file_read(file, 0, header, n, err));
    if (memcmp(header, magic, n < sizeof magic ? n : sizeof magic) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' is not a journal of moec (name another file)",
                         file->path);
    if (n < sizeof header)
        return torn_header(journal);
    const uint32_t version = moec_get_u32(header + 16), n_job = moec_get_u32(header + 20);
    if (version != MOEC_JOURNAL_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is a journal of version %" PRIu32
                         ", expected %u; delete the file to start over",
                         file->path, version, MOEC_JOURNAL_VERSION);
    if (n_job > MOEC_JOURNAL_MAX_JOB)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the journal '%s' has a job description of %" PRIu32 " bytes, expected at most "
                         "%u; delete the file to start over",
                         file->path, n_job, MOEC_JOURNAL_MAX_JOB);
    if (file->n_bytes - sizeof header < n_job)
        return job == NULL || n_job == strlen(job) ? torn_header(journal) : damaged_header(journal, err);
    MOEC_TRY(moec_alloc((void **)&journal->job, (uint64_t)n_job + 1, 1, "the description of a job", err));
    MOEC_TRY(moec_file_read(file, sizeof header, journal->job, n_job, err));
    journal->crc = moec_crc32c(moec_crc32c(0, header, 60), journal->job, n_job);
    moec_sha256(journal->job, n_job, digest);
    if (journal->crc != moec_get_u32(header + 60) || memcmp(digest, header + 24, sizeof digest) != 0)
        return damaged_header(journal, err);
    if (!is_plain(journal->job, n_job, true))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the journal '%s' has a job description with control characters; delete the file "
                         "to start over",
                         file->path);
    journal->n_bytes = sizeof header + n_job;
    return MOEC_OK;
}

/* Checksum of n bytes of the file, continuing `crc`. */
static enum moec_status checksum(const struct moec_journal *journal, uint64_t offset, uint64_t n,
                                 uint8_t *piece, uint32_t *crc, struct moec_error *err)
{
    while (n > 0) {
        const size_t now = n < PIECE_BYTES ? (size_t)n : PIECE_BYTES;
        MOEC_TRY(moec_file_read(&journal->file, offset, piece, now, err));
        *crc = moec_crc32c(*crc, piece, now);
        offset += now;
        n -= now;
    }
    return MOEC_OK;
}

/* The record at n_bytes; *whole tells whether there is one. */
static enum moec_status read_record(struct moec_journal *journal, uint8_t *piece, bool *whole,
                                    struct moec_error *err)
{
    const uint64_t left = journal->file.n_bytes - journal->n_bytes;
    uint8_t head[MOEC_JOURNAL_RECORD_BYTES + MOEC_JOURNAL_MAX_KEY];
    *whole = false;
    if (left < MOEC_JOURNAL_RECORD_BYTES)
        return MOEC_OK;
    MOEC_TRY(moec_file_read(&journal->file, journal->n_bytes, head, MOEC_JOURNAL_RECORD_BYTES, err));
    const size_t n_key = moec_get_u16(head + 6), n_head = MOEC_JOURNAL_RECORD_BYTES + n_key;
    const uint64_t n_payload = moec_get_u64(head + 8);
    if (n_key >= MOEC_JOURNAL_MAX_KEY || left < n_head || n_payload > left - n_head)
        return MOEC_OK;
    const char *key = (const char *)head + MOEC_JOURNAL_RECORD_BYTES;
    const uint64_t key_offset = journal->n_bytes + MOEC_JOURNAL_RECORD_BYTES;
    MOEC_TRY(moec_file_read(&journal->file, key_offset, head + MOEC_JOURNAL_RECORD_BYTES, n_key, err));
    uint32_t crc = moec_crc32c(journal->crc, head + 4, n_head - 4);
    MOEC_TRY(checksum(journal, key_offset + n_key, n_payload, piece, &crc, err));
    if (crc != moec_get_u32(head) || !is_plain(key, n_key, false))
        return MOEC_OK;
    if (journal->n_record >= MOEC_JOURNAL_MAX_RECORDS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the journal '%s' has more than %u records; delete the file to start over",
                         journal->file.path, MOEC_JOURNAL_MAX_RECORDS);
    MOEC_TRY(add_record(journal, key, n_key,
                        (struct moec_journal_record){.kind = moec_get_u16(head + 4),
                                                     .payload_offset = key_offset + n_key,
                                                     .payload_bytes = n_payload},
                        err));
    journal->crc = crc;
    journal->n_bytes = key_offset + n_key + n_payload;
    *whole = true;
    return MOEC_OK;
}

static enum moec_status read_records(struct moec_journal *journal, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint8_t *piece = NULL;
    bool whole = true;
    MOEC_TRY(moec_alloc((void **)&piece,
                        journal->file.n_bytes < PIECE_BYTES ? journal->file.n_bytes : PIECE_BYTES, 1,
                        "a read buffer", err));
    while (whole)
        MOEC_TRY_OUT(read_record(journal, piece, &whole, err));
    journal->n_dropped = journal->file.n_bytes - journal->n_bytes;
out:
    free(piece);
    return status;
}

enum moec_status moec_journal_open(struct moec_journal *journal, const char *path, const char *job,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    *journal = (struct moec_journal){.file.fd = -1};
    if (job == NULL) {
        MOEC_TRY(moec_file_open(&journal->file, path, err));
    } else {
        MOEC_TRY(check_description(job, err));
        MOEC_TRY(moec_file_open_writable(&journal->file, path, false, err));
        MOEC_TRY_OUT(lock(journal, err));
    }
    MOEC_TRY_OUT(read_header(journal, job, err));
    if (job != NULL)
        MOEC_TRY_OUT(check_job(journal, job, err));
    if (journal->job != NULL)
        MOEC_TRY_OUT(read_records(journal, err));
    if (job == NULL)
        return MOEC_OK;
    journal->is_writable = true;
    if (journal->job == NULL) {
        MOEC_TRY_OUT(moec_strndup(&journal->job, job, strlen(job), err));
        MOEC_TRY_OUT(write_header(journal, job, err));
    } else if (journal->n_dropped > 0) {
        MOEC_TRY_OUT(cut(journal, journal->n_bytes, err));
        MOEC_TRY_OUT(sync_data(journal, err));
    }
out:
    if (status != MOEC_OK)
        moec_journal_close(journal);
    return status;
}

size_t moec_journal_find(const struct moec_journal *journal, size_t from, uint16_t kind, const char *key)
{
    const size_t n = journal->n_record;
    for (size_t i = 0; i < n; i++) {
        const size_t at = from < n && i < n - from ? from + i : i - (from < n ? n - from : 0);
        if (journal->records[at].kind == kind && strcmp(moec_journal_key(journal, at), key) == 0)
            return at;
    }
    return n;
}

enum moec_status moec_journal_read(const struct moec_journal *journal, size_t record, uint64_t offset,
                                   void *buffer, size_t n, struct moec_error *err)
{
    const struct moec_journal_record *at = &journal->records[record];
    if (offset > at->payload_bytes || n > at->payload_bytes - offset)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "record '%s' of the journal '%s' is too short: %" PRIu64 " bytes, expected at "
                         "least %zu bytes after the first %" PRIu64 " bytes",
                         moec_journal_key(journal, record), journal->file.path, at->payload_bytes, n, offset);
    return moec_file_read(&journal->file, at->payload_offset + offset, buffer, n, err);
}
