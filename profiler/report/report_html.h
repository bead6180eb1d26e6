/* Pieces of HTML that reports are made of (internal to report*.c): escaped text, pictures as data, tables.
 * Streams remember their errors; who opens one checks it once. Thread rule: as streams. */
#ifndef MOEC_PROFILER_REPORT_HTML_H
#define MOEC_PROFILER_REPORT_HTML_H

#include "profiler/plot/chart.h"

#include <stdio.h>

/* Head of a page with its style, and the title as first heading; what follows stands in <main> until the end.
 */
void moec_html_begin(FILE *stream, const char *title);
void moec_html_end(FILE *stream);

/* Text with & < > " ' as entities and control characters as '?'. */
void moec_html_text(FILE *stream, const char *text);
MOEC_PRINTF(2, 3) void moec_html_format(FILE *stream, const char *format, ...);

/* A cell of a table: its text, as heading of a row or as number. */
void moec_html_cell(FILE *stream, const char *text);
void moec_html_row_heading(FILE *stream, const char *text);

/* "data:image/...;base64,..." */
void moec_html_data(FILE *stream, enum moec_plot_format format, const uint8_t *bytes, size_t n_bytes);

/* A figure: picture, title, caption, numbers. */
MOEC_WARN_UNUSED enum moec_status moec_html_figure(FILE *stream, const struct moec_chart *chart,
                                                   struct moec_error *err);

#endif
