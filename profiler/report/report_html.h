/* Pieces of HTML that reports are made of (internal to report*.c): escaped text, facts, pictures as data, figures.
 * Streams remember their errors; who opens one checks it once. Thread rule: as streams. */
#ifndef MOEC_PROFILER_REPORT_HTML_H
#define MOEC_PROFILER_REPORT_HTML_H

#include "profiler/plot/chart.h"
#include "profiler/report/html_table.h"

#include <stdio.h>

/* Head of a page with its style, and the title as first heading; what follows stands in <main> until the end.
 */
void moec_html_begin(FILE *stream, const char *title);
void moec_html_end(FILE *stream);

/* A section with its heading; the contents of the page link to `id`. */
void moec_html_section_open(FILE *stream, const char *id, const char *title);
void moec_html_section_close(FILE *stream);

/* A name from a file or the command line, as it may stand on a page: control characters are '?'. */
struct moec_html_name {
    char text[MOEC_ERROR_BYTES];
};
struct moec_html_name moec_html_name(const char *from);

MOEC_PRINTF(2, 3) void moec_html_format(FILE *stream, const char *format, ...);

/* An entry of a description list (<dl>, the caller's): what, and its value. */
MOEC_PRINTF(3, 4)
void moec_html_fact(FILE *stream, const char *name, const char *format, ...);

/* "data:image/...;base64,..." */
void moec_html_data(FILE *stream, enum moec_plot_format format, const uint8_t *bytes, size_t n_bytes);

/* A figure: picture, title, caption, numbers. `where_all` says where the rows of a table that is too long for
 * a page are found: "--plots writes all of them as CSV". */
MOEC_WARN_UNUSED enum moec_status moec_html_figure(FILE *stream, const struct moec_chart *chart,
                                                   const char *where_all, struct moec_error *err);

/* Writes a finished page whole or not at all. Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_html_write(const char *path, const char *text, size_t n_bytes,
                                                  struct moec_error *err);

#endif
