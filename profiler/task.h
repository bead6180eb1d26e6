/* A task: how rows of a data file become text, and what is measured on them.
 *
 * The C side of a table in datasets/tasks/; the compiler's Lua host fills it. Plain data without ownership.
 *
 * Templates are text with {field} in it: the row's field of that name takes its place; {{ and }} are braces.
 * Plain text rows have one field, {text}. Thread rule: plain data. */
#ifndef MOEC_PROFILER_TASK_H
#define MOEC_PROFILER_TASK_H

#include "formats/error.h"

#include <stddef.h>

#define MOEC_TASK_NAME_BYTES     64
#define MOEC_TASK_TEMPLATE_BYTES 4096

enum moec_task_format {
    MOEC_TASK_FORMAT_AUTO =
        0, /* by the file's name: .jsonl .ndjson .json .csv .tsv (each also .zst), else text */
    MOEC_TASK_FORMAT_TEXT = 1,
    MOEC_TASK_FORMAT_JSONL = 2, /* one object (or string) a line */
    MOEC_TASK_FORMAT_CSV = 3,   /* RFC 4180 with a header line */
    MOEC_TASK_FORMAT_JSON = 4,  /* one array of objects (or strings) */
};

/* What a row of plain text is. */
enum moec_task_split {
    MOEC_TASK_SPLIT_FILE = 0,      /* the whole file */
    MOEC_TASK_SPLIT_LINE = 1,      /* each line that is not blank */
    MOEC_TASK_SPLIT_PARAGRAPH = 2, /* lines between blank lines */
};

enum moec_task_metric {
    MOEC_TASK_METRIC_PERPLEXITY = 0, /* of the prompt; lower is better */
};

struct moec_task {
    char name[MOEC_TASK_NAME_BYTES];
    enum moec_task_format format;
    enum moec_task_split split;
    enum moec_task_metric metric;
    char delimiter; /* of CSV; 0 = comma, tab for .tsv */
    char prompt[MOEC_TASK_TEMPLATE_BYTES];
    char reference[MOEC_TASK_TEMPLATE_BYTES]; /* "" = rows have no reference */
};

/* The task `text`: perplexity of the field `text`, or of plain text taken as one row. */
struct moec_task moec_task_text(void);

/* "perplexity". */
const char *moec_task_metric_name(enum moec_task_metric metric);

/* Checks what a script filled in: name, enums, delimiter, templates. Errors: MOEC_ERR_USAGE naming the task
 * and the member. */
MOEC_WARN_UNUSED enum moec_status moec_task_check(const struct moec_task *task, struct moec_error *err);

/* Walks a template: sets `*piece` and `*n_bytes` to the next piece, a literal or (with *is_field) the name of
 * a field, and returns true; false at the end. `*cursor` starts at the template. The template must have
 * passed moec_task_check. */
bool moec_task_template_next(const char **cursor, const char **piece, size_t *n_bytes, bool *is_field);

#endif
