/* Whether the bytes of a data file are text, before a tokenizer makes tokens of whatever they are.
 *
 * A tokenizer takes any bytes: a Parquet file or UTF-16 gives tokens too, a model is measured on them, and
 * the loss that is promised means nothing. So what is no UTF-8 text is refused by the name of what it is,
 * with the command that makes text of it. A few broken places in UTF-8 stay, and become U+FFFD. Thread rule:
 * pure functions. */
#ifndef MOEC_PROFILER_TEXT_CHECK_H
#define MOEC_PROFILER_TEXT_CHECK_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdint.h>

/* What is unusual about a text that is accepted. */
struct moec_text_found {
    uint64_t n_crlf;       /* line ends of two bytes, CR LF */
    uint64_t n_cr;         /* other CR */
    uint64_t n_lf;         /* other LF */
    uint64_t n_broken;     /* places that are not UTF-8, each read as U+FFFD */
    uint64_t first_broken; /* byte offset of the first */
};

/* Looks through all bytes. `subject` is the file's name, in messages and in the commands that they tell.
 * Errors: MOEC_ERR_UNSUPPORTED: another format by its first bytes (Parquet, Arrow, gzip, PDF, ...), UTF-16
 * and UTF-32 with a mark or without, NUL bytes, an encoding of one byte a character (Latin-1), a Git LFS
 * pointer. */
MOEC_WARN_UNUSED enum moec_status moec_text_check(const char *bytes, size_t n_bytes, const char *subject,
                                                  struct moec_text_found *found, struct moec_error *err);

/* Whether line ends are to be changed: there are CR LF, or CR alone and no LF. */
bool moec_text_has_foreign_lines(const struct moec_text_found *found);

/* Makes LF of those line ends in place; returns the bytes that are left. */
size_t moec_text_unify_lines(const struct moec_text_found *found, char *bytes, size_t n_bytes);

/* Whether nothing but white space and byte order marks, those of Unicode too, stands there; true of nothing.
 */
bool moec_text_is_blank(const char *bytes, size_t n_bytes);

#endif
