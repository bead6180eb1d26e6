/* Decision files: in which precision a run took each expert of each token, where that depended on what was in
 * memory (HOBBIT, arXiv:2411.01433, section 3; runtime/policy/decide/decision_book.h). Lines of text, version 1:
 *
 *     moec-decisions 1
 *     bundle 64 hexadecimal digits        SHA-256 of its contents table (formats/bundle/bundle_digest.h)
 *     precision shared:0.6:0.9
 *     decide all                          or decode
 *     arithmetic canonical
 *     kv f32
 *     copy 0                              the level that was run, and below it the low one
 *     low 1
 *     rope 0                              the context that rotary angles were chosen by, where they
 *                                         depend on it
 *     layers 3                            MoE layers of a token
 *     experts 4                           that a token takes in each
 *     sequence 0 beam 0                   of the rows that follow: the sessions in order, and in each its
 *                                         parallel sequences
 *     0<tab>511<tab>hhl-<tab>hhhh<tab>hlll
 *     1<tab>17<tab>hhhh<tab>hh--<tab>hhhl
 *     sha256 64 hexadecimal digits        of all lines before it
 *
 * A row has a position, its token and for each MoE layer a letter a rank, the router's best first: h the high
 * copy, l the low copy, - skipped. Rows of a sequence follow each other without gaps. A beam's rows are the
 * positions that it computed itself: what it copied from another beam is in that one's rows, where that one
 * had it at that time.
 *
 * Thread rule: a writer belongs to one thread at a time; a file that was read is immutable. */
#ifndef MOEC_FORMATS_DECISION_FILE_H
#define MOEC_FORMATS_DECISION_FILE_H

#include "formats/base/digest.h"
#include "formats/base/file.h"

#include <stdbool.h>

#define MOEC_DECISION_FILE_VERSION   1
#define MOEC_DECISION_FILE_MAX_BYTES ((uint64_t)1 << 30)

/* How an expert was taken; values of a row's ranks. */
enum moec_decided {
    MOEC_DECIDED_HIGH = 0,
    MOEC_DECIDED_LOW,
    MOEC_DECIDED_SKIPPED,
};

/* What the decisions hold for. Words have no spaces. */
struct moec_decision_header {
    char bundle[2 * MOEC_SHA256_BYTES + 1];
    char precision[48];
    char arithmetic[32];
    char kv[16];
    bool decode_only;
    uint32_t copy, low; /* levels of the bundle */
    uint32_t rope_context;
    uint32_t n_layer; /* MoE layers */
    uint32_t top_k;
};

/* Rows of one sequence or beam. */
struct moec_decision_rows {
    uint32_t sequence, beam;
    uint32_t first, n;      /* positions first .. first + n - 1 */
    const uint32_t *tokens; /* (n) */
    const uint8_t *decided; /* (n, n_layer, top_k) of enum moec_decided */
};

/* Bytes of a writer's buffer, for a budget: lines are collected before they are written. */
uint64_t moec_decision_writer_bytes(uint32_t n_layer, uint32_t top_k);

struct moec_decision_writer {
    struct moec_output output;
    struct moec_sha256 digest;
    uint32_t n_layer, top_k;
    char *buffer; /* owned */
    size_t capacity, n;
};

/* The file appears under its name at the end. Errors: MOEC_ERR_IO, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_decision_writer_open(struct moec_decision_writer *writer,
                                                            const char *path,
                                                            const struct moec_decision_header *header,
                                                            struct moec_error *err);
/* Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_decision_writer_put(struct moec_decision_writer *writer,
                                                           const struct moec_decision_rows *rows,
                                                           struct moec_error *err);
/* Ends the file and releases the writer, also on failure. Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_decision_writer_close(struct moec_decision_writer *writer,
                                                             struct moec_error *err);
/* Releases the writer; a file of that name stays as it was. */
void moec_decision_writer_discard(struct moec_decision_writer *writer);

struct moec_decision_file {
    char *path; /* owned, for messages */
    struct moec_decision_header header;
    struct moec_decision_rows *rows; /* (n_rows), owned, by sequence and beam, each once */
    size_t n_rows;
    uint32_t *tokens; /* owned: what rows point to */
    uint8_t *decided; /* likewise */
};

/* Reads and checks all of it. Errors: MOEC_ERR_FORMAT, naming line, position and layer, for what is no such
 * file or ends early; MOEC_ERR_UNSUPPORTED for another version; MOEC_ERR_CHECKSUM for a changed one; those of
 * moec_file_load. */
MOEC_WARN_UNUSED enum moec_status moec_decision_file_load(const char *path, struct moec_decision_file *file,
                                                          struct moec_error *err);
void moec_decision_file_release(struct moec_decision_file *file);

/* NULL where the file has no rows of it. */
const struct moec_decision_rows *moec_decision_file_find(const struct moec_decision_file *file,
                                                         uint32_t sequence, uint32_t beam);

#endif
