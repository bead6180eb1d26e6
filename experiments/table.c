#include "experiments/table.h"

#include "profiler/plot.h"
#include "profiler/report_html.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum moec_status experiment_table_open(struct experiment_table *table, const char *name,
                                       struct moec_error *err)
{
    *table = (struct experiment_table){.name = name};
    table->stream = open_memstream(&table->text, &table->n_bytes);
    return table->stream != NULL ? MOEC_OK
                                 : moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", name);
}

void experiment_table_cell(struct experiment_table *table, const char *format, ...)
{
    char cell[1024];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(cell, sizeof cell, format, list);
    va_end(list);
    for (char *c = cell; *c != '\0'; c++)
        *c = *c == '\t' || *c == '\n' ? ' ' : *c;
    if (table->is_begun)
        (void)fputc('\t', table->stream);
    (void)fputs(cell, table->stream);
    table->is_begun = true;
}

void experiment_table_number(struct experiment_table *table, double value, double factor, int decimals)
{
    if (isfinite(value))
        experiment_table_cell(table, "%.*f", decimals, value * factor);
    else
        experiment_table_cell(table, "–");
}

void experiment_table_end_row(struct experiment_table *table)
{
    (void)fputc('\n', table->stream);
    table->is_begun = false;
}

/* Numbers stand to the right, words to the left. */
static bool is_words(const char *cell)
{
    return isalpha((unsigned char)cell[0]) || strlen(cell) > 24;
}

static void put_html(char *rows, FILE *page)
{
    char *row_state = NULL;
    bool is_head = true;
    (void)fputs("<div class=\"scroll\" style=\"max-height:none\" role=\"region\" tabindex=\"0\" "
                "aria-label=\"Table\">\n<table>",
                page);
    for (char *row = strtok_r(rows, "\n", &row_state); row != NULL; row = strtok_r(NULL, "\n", &row_state)) {
        bool is_first = true;
        (void)fputs(is_head ? "<thead><tr>" : "<tr>", page);
        for (char *cell = row, *next = row; next != NULL; cell = next) {
            next = strchr(cell, '\t');
            if (next != NULL)
                *next++ = '\0';
            const char *open = is_head          ? "<th scope=\"col\">"
                               : is_first       ? "<th scope=\"row\">"
                               : is_words(cell) ? "<td class=\"words\">"
                                                : "<td>";
            (void)fputs(open, page);
            moec_html_text(page, cell);
            (void)fputs(is_head || is_first ? "</th>" : "</td>", page);
            is_first = false;
        }
        (void)fputs(is_head ? "</tr></thead><tbody>\n" : "</tr>\n", page);
        is_head = false;
    }
    (void)fputs("</tbody></table></div>\n", page);
}

enum moec_status experiment_table_close(struct experiment_table *table, const char *folder, FILE *page,
                                        struct moec_error *err)
{
    char path[1024];
    enum moec_status status = MOEC_OK;
    const bool is_broken = ferror(table->stream) != 0;
    if (fclose(table->stream) != 0 || is_broken)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table '%s'", table->name);
    table->stream = NULL;
    (void)snprintf(path, sizeof path, "%s/%s.tsv", folder, table->name);
    if (status == MOEC_OK)
        status = moec_plot_write_csv(path, table->text, table->n_bytes, err);
    if (status == MOEC_OK)
        put_html(table->text, page);
    experiment_table_drop(table);
    return status;
}

void experiment_table_drop(struct experiment_table *table)
{
    if (table->stream != NULL)
        (void)fclose(table->stream);
    free(table->text);
    *table = (struct experiment_table){.name = table->name};
}
