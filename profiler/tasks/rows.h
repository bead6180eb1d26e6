/* Rows of a data file: plain text, JSONL, CSV or a JSON array, each optionally compressed with zstd.
 *
 * A row is the prompt, the reference and the choices that the task's templates give. What is no text is
 * refused (text_check.h); the tokenizer replaces the few places that may not be valid UTF-8. A byte order
 * mark is dropped, blank lines are skipped, and CR LF is a line end of plain text as LF is. Line ends within
 * a CSV field or a JSON string are data and stay. Data of white space alone is refused. Thread rule:
 * immutable once read. */
#ifndef MOEC_PROFILER_ROWS_H
#define MOEC_PROFILER_ROWS_H

#include "formats/base/digest.h"
#include "profiler/tasks/task.h"
#include "profiler/tasks/text_check.h"

#define MOEC_ROWS_MAX_BYTES  ((uint64_t)1 << 30) /* of a file, and of what it holds when decompressed */
#define MOEC_ROWS_MAX_ROWS   ((uint64_t)1 << 26)
#define MOEC_ROWS_MAX_FIELDS 1024 /* columns of a CSV file */

/* What text may take of the work memory: all of it, but at least this much, so that a work memory that is too
 * small is refused by the work itself, which says how much it needs. 0, no bound, stays 0. */
#define MOEC_ROWS_LEAST_BYTES ((uint64_t)16 << 20)
static inline uint64_t moec_rows_budget(uint64_t work_bytes)
{
    return work_bytes > 0 && work_bytes < MOEC_ROWS_LEAST_BYTES ? MOEC_ROWS_LEAST_BYTES : work_bytes;
}

struct moec_row {
    uint64_t prompt_offset; /* into text; of choices with prompts of their own, the right one's */
    uint64_t prompt_bytes;
    uint64_t reference_offset;
    uint64_t reference_bytes; /* 0 when the task has no reference */
    uint64_t first_choice;    /* into choices */
    uint32_t n_choice;        /* 0 when the task has none */
    uint32_t label;           /* which choice is right, from 0; of several the first */
    uint64_t line;            /* where the row begins, from 1; of a JSON array: the row's number, from 1 */
};

/* What follows the prompt when this choice is taken. */
struct moec_row_choice {
    uint64_t offset; /* into text */
    uint64_t n_bytes;
    uint64_t prompt_offset; /* the row's prompt, or the choice's own */
    uint64_t prompt_bytes;
    bool is_right;
};

struct moec_rows {
    char *text; /* owned: prompts, references and choices */
    uint64_t text_bytes;
    struct moec_row *rows; /* owned */
    size_t n_row;
    struct moec_row_choice *choices; /* owned, those of all rows */
    size_t n_choice;
    char name[256];                    /* file name without folders, printable, cut to fit */
    uint8_t digest[MOEC_SHA256_BYTES]; /* of the file as it is on disk */
    uint64_t file_bytes;
    struct moec_text_found found; /* what is unusual about the data */
    bool has_new_lines;           /* CR LF or CR became LF */

    size_t text_capacity, row_capacity, choice_capacity; /* private */
};

/* Reads a file, and the file of labels beside it where the task names one. The file, what it holds when
 * decompressed and the rows stay within memory_bytes (0: no bound but MOEC_ROWS_MAX_BYTES); running text that
 * is a single row as it stands is not copied. On failure `rows` is empty. Errors: MOEC_ERR_FORMAT (the task,
 * or the data with file and line), MOEC_ERR_NOT_FOUND, MOEC_ERR_IO, MOEC_ERR_LIMIT, MOEC_ERR_BUDGET (before
 * memory_bytes is exceeded), MOEC_ERR_UNSUPPORTED (no text in UTF-8, and what to do about it). */
MOEC_WARN_UNUSED enum moec_status moec_rows_read(const struct moec_task *task, const char *path,
                                                 uint64_t memory_bytes, struct moec_rows *rows,
                                                 struct moec_error *err);

/* A sentence about what was changed or is broken in the data; false: there is nothing to say. */
bool moec_rows_note(const struct moec_rows *rows, char *line, size_t capacity);

/* The memory that the rows take. */
uint64_t moec_rows_memory_bytes(const struct moec_rows *rows);

/* What the rows leave of memory_bytes, at least 1; 0, no bound, stays 0. */
uint64_t moec_rows_left_bytes(const struct moec_rows *rows, uint64_t memory_bytes);

/* Frees texts, rows and choices; name, digest and file_bytes stay. */
void moec_rows_drop_texts(struct moec_rows *rows);

/* Like moec_rows_read, from data in memory. `name` and `digest` stay zero. */
MOEC_WARN_UNUSED enum moec_status moec_rows_parse(const struct moec_task *task,
                                                  const struct moec_task_data *data, struct moec_rows *rows,
                                                  struct moec_error *err);

void moec_rows_release(struct moec_rows *rows);

#endif
