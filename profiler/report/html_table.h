/* Tables of a page, the one writer of them. Thread rule: as streams, which remember their errors. */
#ifndef MOEC_PROFILER_HTML_TABLE_H
#define MOEC_PROFILER_HTML_TABLE_H

#include "formats/base/error.h"

#include <stdbool.h>
#include <stdio.h>

/* A table that is being written, cell after cell: first the row of headings, then the others. Zeroed but for
 * what the caller sets, which is borrowed. */
struct moec_html_table {
    FILE *stream;
    const char *label;          /* of the box that the table scrolls in; NULL = it stands in the caller's */
    const char *const *classes; /* of the columns: "word", "words", "" for numbers; NULL = all are numbers */
    bool is_tall;               /* the box is as high as the table */
    bool has_plain_rows;        /* their first cell is no heading */
    size_t column;              /* of the next cell */
    bool is_below;              /* the headings are written */
};

void moec_html_table_open(struct moec_html_table *table);
/* One whose columns are numbers but for the first, opened, with its headings. */
struct moec_html_table moec_html_table_begin(FILE *stream, const char *label, const char *const *columns,
                                             size_t n);
/* A cell; what it holds is text, at most 4095 bytes of it. */
MOEC_PRINTF(2, 3) void moec_html_table_cell(struct moec_html_table *table, const char *format, ...);
/* A number by the format of a double; a dash unless it is finite. */
void moec_html_table_number(struct moec_html_table *table, const char *format, double value);
void moec_html_table_end_row(struct moec_html_table *table);
/* A row of n cells. */
void moec_html_table_row(struct moec_html_table *table, const char *const *cells, size_t n);
void moec_html_table_close(struct moec_html_table *table);

/* Text with & < > " ' as entities and control characters as '?'. */
void moec_html_text(FILE *stream, const char *text);

#endif
