/* One row of a data file as templates see it: named fields, whatever the format.
 *
 * Strings stand as they are, integers and booleans as JSON writes them, other numbers with 15 digits. A field
 * named in `extras` hides one of the same name in the row. Thread rule: one thread at a time. */
#ifndef MOEC_PROFILER_ROW_FIELDS_H
#define MOEC_PROFILER_ROW_FIELDS_H

#include "formats/json/json.h"
#include "profiler/tasks/csv.h"

#define MOEC_ROW_EXTRAS 4

/* Growing text; zero-initialised is empty; the owner frees `bytes`. */
struct moec_row_text {
    char *bytes;
    size_t n_bytes, capacity;
    uint64_t limit_bytes;  /* 0 = 4 GiB */
    uint64_t wanted_bytes; /* after MOEC_ERR_LIMIT: what it would have grown to */
};

struct moec_row_extra {
    const char *name; /* NULL: none */
    const char *bytes;
    size_t n_bytes;
};

/* All borrowed while the row is made. */
struct moec_row_fields {
    const char *text; /* plain text: the field `text` */
    size_t text_bytes;
    const struct moec_json *json;  /* or a JSON value */
    const struct moec_csv *header; /* or a CSV record with its header */
    const struct moec_csv *csv;
    uint64_t line;
    const char *unit; /* what `line` counts: "line" or "row" */
    const char *subject;
    struct moec_row_extra extras[MOEC_ROW_EXTRAS];
};

/* Appends the template with its fields filled in. The template must have passed moec_task_check. Errors:
 * MOEC_ERR_FORMAT (a field that the row lacks, with those that it has; one that is no string or
 * number), MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_row_fields_render(const struct moec_row_fields *fields,
                                                         const char *template, struct moec_row_text *out,
                                                         struct moec_error *err);

/* The array in a JSON row's field: `*n` items. Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_row_fields_array(const struct moec_row_fields *fields,
                                                        const char *name, const struct moec_json **array,
                                                        size_t *n, struct moec_error *err);

/* Appends the text of one item of such an array. */
MOEC_WARN_UNUSED enum moec_status moec_row_fields_item(const struct moec_row_fields *fields, const char *name,
                                                       const struct moec_json *item,
                                                       struct moec_row_text *out, struct moec_error *err);

#endif
