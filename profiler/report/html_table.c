/* Cells are escaped as they are written, and a row ends with its last cell: a table in the making is a page that a
 * browser shows. */
#include "profiler/report/html_table.h"

#include <math.h>
#include <stdarg.h>

void moec_html_text(FILE *stream, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&':
            (void)fputs("&amp;", stream);
            break;
        case '<':
            (void)fputs("&lt;", stream);
            break;
        case '>':
            (void)fputs("&gt;", stream);
            break;
        case '"':
            (void)fputs("&quot;", stream);
            break;
        case '\'':
            (void)fputs("&#39;", stream);
            break;
        default:
            (void)fputc((uint8_t)*text < 0x20 || *text == 0x7f ? '?' : *text, stream);
        }
    }
}

void moec_html_table_open(struct moec_html_table *table)
{
    if (table->label != NULL) {
        (void)fprintf(table->stream, "<div class=\"scroll\"%s role=\"region\" tabindex=\"0\" aria-label=\"",
                      table->is_tall ? " style=\"max-height:none\"" : "");
        moec_html_text(table->stream, table->label);
        (void)fputs("\">\n", table->stream);
    }
    (void)fputs("<table><thead>", table->stream);
}

static void put_cell(struct moec_html_table *table, const char *text)
{
    const bool is_heading = !table->is_below || (table->column == 0 && !table->has_plain_rows);
    const char *class = table->classes != NULL ? table->classes[table->column] : "";
    if (table->column++ == 0)
        (void)fputs("<tr>", table->stream);
    (void)fputs(!table->is_below ? "<th scope=\"col\""
                : is_heading     ? "<th scope=\"row\""
                                 : "<td",
                table->stream);
    if (class[0] != '\0')
        (void)fprintf(table->stream, " class=\"%s\"", class);
    (void)fputc('>', table->stream);
    moec_html_text(table->stream, text);
    (void)fputs(is_heading ? "</th>" : "</td>", table->stream);
}

void moec_html_table_cell(struct moec_html_table *table, const char *format, ...)
{
    char text[4096];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    put_cell(table, text);
}

void moec_html_table_number(struct moec_html_table *table, const char *format, double value)
{
    char text[64] = "–";
    if (isfinite(value))
        (void)snprintf(text, sizeof text, format, value);
    put_cell(table, text);
}

void moec_html_table_end_row(struct moec_html_table *table)
{
    (void)fputs(table->is_below ? "</tr>\n" : "</tr></thead><tbody>\n", table->stream);
    table->is_below = true;
    table->column = 0;
}

void moec_html_table_row(struct moec_html_table *table, const char *const *cells, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_cell(table, cells[i]);
    moec_html_table_end_row(table);
}

struct moec_html_table moec_html_table_begin(FILE *stream, const char *label, const char *const *columns,
                                             size_t n)
{
    struct moec_html_table table = {.stream = stream, .label = label};
    moec_html_table_open(&table);
    moec_html_table_row(&table, columns, n);
    return table;
}

void moec_html_table_close(struct moec_html_table *table)
{
    (void)fputs(table->label != NULL ? "</tbody></table></div>\n" : "</tbody></table>\n", table->stream);
}
