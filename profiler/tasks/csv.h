/* Records of CSV text (RFC 4180): quotes, doubled quotes, delimiters and line ends within quotes, CR LF or LF
 * or CR.
 *
 * A quote inside a field that does not begin with one is an ordinary character, as in Python's csv module.
 * Blank lines are skipped. Thread rule: a reader belongs to one thread. */
#ifndef MOEC_PROFILER_CSV_H
#define MOEC_PROFILER_CSV_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_csv_cell {
    size_t offset; /* into moec_csv.text */
    size_t n_bytes;
};

struct moec_csv {
    const char *bytes; /* borrowed */
    size_t n_bytes;
    size_t at;
    uint64_t line;        /* of the next byte, from 1 */
    uint64_t record_line; /* where the last record began */
    char delimiter;
    const char *subject; /* borrowed; names the data in messages */

    struct moec_csv_cell *cells; /* owned: the last record */
    size_t n_cell, cell_capacity;
    char *text; /* owned: its cells, quotes taken off */
    size_t text_bytes, text_capacity;
};

void moec_csv_init(struct moec_csv *csv, const char *bytes, size_t n_bytes, char delimiter,
                   const char *subject);
void moec_csv_release(struct moec_csv *csv);

/* Reads the next record into `cells` and `text`, replacing the last one; `*more` is false at the end of the
 * data. Errors: MOEC_ERR_FORMAT (text after a closing quote, a quote never closed),
 * MOEC_ERR_LIMIT (more than max_cells). */
MOEC_WARN_UNUSED enum moec_status moec_csv_next(struct moec_csv *csv, size_t max_cells, bool *more,
                                                struct moec_error *err);

#endif
