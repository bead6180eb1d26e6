/* The decisions of an engine's sequences that were made by what its expert buffer held: written to a file as
 * they end, or taken from one (formats/decisions/decision_file.h), or neither. Thread rule: any thread. */
#ifndef MOEC_RUNTIME_DECISION_BOOK_H
#define MOEC_RUNTIME_DECISION_BOOK_H

#include "formats/decisions/decision_file.h"

struct moec_decision_book;

/* Bytes beside a replay's file, for a budget. */
uint64_t moec_decision_book_bytes(uint32_t n_layer, uint32_t top_k);

/* Writes to the file at `path`, which appears when the book is closed; NULL = nothing is written. Errors:
 * those of moec_decision_writer_open. */
MOEC_WARN_UNUSED enum moec_status moec_decision_book_create(const char *path,
                                                            const struct moec_decision_header *header,
                                                            struct moec_decision_book **out,
                                                            struct moec_error *err);
/* Gives what a file has, which the book owns from then on and *file no more. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_decision_book_replay(struct moec_decision_file *file,
                                                            struct moec_decision_book **out,
                                                            struct moec_error *err);
/* Ends the file and frees the book, also on failure. All sequences have ended. NULL-safe. Errors:
 * MOEC_ERR_IO, of what was kept before too. */
MOEC_WARN_UNUSED enum moec_status moec_decision_book_close(struct moec_decision_book *book,
                                                           struct moec_error *err);
/* Frees the book; a file of that name stays as it was. NULL-safe. */
void moec_decision_book_discard(struct moec_decision_book *book);

bool moec_decision_book_is_replay(const struct moec_decision_book *book);
const char *moec_decision_book_path(const struct moec_decision_book *book); /* of a replay */

/* The number of a sequence that begins: 0, 1 and so on. */
uint32_t moec_decision_book_next(struct moec_decision_book *book);
/* What a replay has of it; NULL where that is nothing. */
const struct moec_decision_rows *moec_decision_book_find(const struct moec_decision_book *book,
                                                         uint32_t sequence, uint32_t beam);
/* Writes the rows of a sequence that ends. A failure is told when the book is closed. */
void moec_decision_book_keep(struct moec_decision_book *book, const struct moec_decision_rows *rows);

#endif
