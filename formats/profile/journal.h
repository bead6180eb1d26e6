/* Journals: finished work of a long job, written to disk as soon as it is finished, so that a job that was
 * interrupted or killed can continue where it stopped. formats/profile/JOURNAL.md gives the bytes.
 *
 * A journal is append-only. Its header holds the job's description: text lines "name: value\n" with
 * everything that the result depends on, and their SHA-256. Each record has a kind, a key, a payload and a
 * CRC32C that continues the one of the record before it. Reading stops at the first record that is not whole
 * (torn by a kill or a power cut, or damaged) and keeps everything before it; a job that continues cuts the
 * rest off.
 *
 * A record survives the death of the process once moec_journal_append has returned, because the kernel then
 * has it. For power cuts it is synced (fdatasync) at most every MOEC_JOURNAL_SYNC_SECONDS and when the
 * journal is closed: a cut loses at most that much work, and syncing costs a job of small units next to
 * nothing. The open journal is locked (formats/base/lock.h): two jobs never write one,
 * but on file systems without locks. Thread rule: one thread at a time.
 */
#ifndef MOEC_FORMATS_JOURNAL_H
#define MOEC_FORMATS_JOURNAL_H

#include "formats/base/digest.h"
#include "formats/base/file.h"

#define MOEC_JOURNAL_MAGIC        "MOEC JOURNAL\r\n\x1a\n"
#define MOEC_JOURNAL_VERSION      1u
#define MOEC_JOURNAL_HEADER_BYTES 64u /* before the description */
#define MOEC_JOURNAL_RECORD_BYTES 16u /* before the key */
#define MOEC_JOURNAL_MAX_JOB      (1u << 20)
#define MOEC_JOURNAL_MAX_KEY      128u /* with its NUL */
#define MOEC_JOURNAL_MAX_RECORDS  (1u << 20)
#define MOEC_JOURNAL_SYNC_SECONDS 5

struct moec_journal_record {
    uint64_t payload_offset; /* in the file */
    uint64_t payload_bytes;
    uint64_t key_offset; /* in `keys` */
    uint16_t kind;       /* the application's */
};

struct moec_journal {
    struct moec_file file;
    char *job;                           /* owned: the description, NULL when the header itself is torn */
    struct moec_journal_record *records; /* (n_record), owned, in the order of the file */
    size_t n_record, record_capacity;
    char *keys; /* owned: keys with their NULs */
    size_t keys_bytes, keys_capacity;
    uint64_t n_bytes;   /* whole records end here */
    uint64_t n_dropped; /* bytes after them that are not a whole record */
    uint32_t crc;       /* of the last record: what the next one continues */
    bool is_writable;
    bool is_dirty;    /* appended since the last sync */
    bool is_unlocked; /* the file system has no locks: nothing keeps another process from writing it too */
    int64_t synced_ns;
};

/* A buffer of a payload. */
struct moec_journal_piece {
    const void *bytes;
    size_t n_bytes;
};

/* Begins a journal under a name that does not exist. `job` is the description. Errors: MOEC_ERR_IO,
 * MOEC_ERR_LIMIT (description too long). On failure nothing is open. */
MOEC_WARN_UNUSED enum moec_status moec_journal_create(struct moec_journal *journal, const char *path,
                                                      const char *job, struct moec_error *err);

/* Opens a journal and reads its records. With `job` the journal is continued: the description must be the
 * same, an incomplete record at the end is cut off, and a journal with an incomplete header is started over.
 * With NULL it is only read: nothing is locked or changed. Errors: MOEC_ERR_NOT_FOUND; MOEC_ERR_FORMAT,
 * MOEC_ERR_CHECKSUM (no journal, a damaged header), MOEC_ERR_UNSUPPORTED (a later version), MOEC_ERR_MISMATCH
 * (of another job: the message names what differs), MOEC_ERR_IO (also when another process writes it). On
 * failure nothing is open and the file is as it was. */
MOEC_WARN_UNUSED enum moec_status moec_journal_open(struct moec_journal *journal, const char *path,
                                                    const char *job, struct moec_error *err);

/* Syncs what is not, closes and frees; `*journal` is zero afterwards. A sync that fails here is ignored: the
 * records are whole or cut off the next time. */
void moec_journal_close(struct moec_journal *journal);

/* Appends a record whose payload is the pieces one after the other. `key` is shorter than
 * MOEC_JOURNAL_MAX_KEY. On failure (a full disk) the journal is cut back to what it was. */
MOEC_WARN_UNUSED enum moec_status moec_journal_append(struct moec_journal *journal, uint16_t kind,
                                                      const char *key,
                                                      const struct moec_journal_piece *pieces, size_t n_piece,
                                                      struct moec_error *err);

/* Key of a record; valid until the next append. */
static inline const char *moec_journal_key(const struct moec_journal *journal, size_t record)
{
    return journal->keys + journal->records[record].key_offset;
}

/* First record from `from` on (wrapping around) with this kind and key; n_record when there is none. */
size_t moec_journal_find(const struct moec_journal *journal, size_t from, uint16_t kind, const char *key);

/* Reads n bytes of a record's payload from `offset` on. Errors: MOEC_ERR_FORMAT when they lie outside it. */
MOEC_WARN_UNUSED enum moec_status moec_journal_read(const struct moec_journal *journal, size_t record,
                                                    uint64_t offset, void *buffer, size_t n,
                                                    struct moec_error *err);

#endif
