#include "experiments/table.h"

#include "profiler/plot/plot.h"
#include "profiler/report/report_html.h"

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
        if (*c == '\t' || *c == '\n')
            *c = ' ';
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

void experiment_table_interval(struct experiment_table *table, double low, double high)
{
    if (isfinite(low) && isfinite(high))
        experiment_table_cell(table, "%.2f to %.2f", 100 * low, 100 * high);
    else
        experiment_table_cell(table, "–");
}

void experiment_table_end_row(struct experiment_table *table)
{
    (void)fputc('\n', table->stream);
    table->is_begun = false;
}

#define MOST_COLUMNS 16

/* Numbers stand to the right, words to the left, and many words on several lines. */
static const char *class_of(bool has_words, size_t longest)
{
    return !has_words ? "" : longest > 24 ? " class=\"words\"" : " class=\"word\"";
}

/* A letter that is not in the "to" of an interval. */
static bool has_words(const char *cell, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isalpha((unsigned char)cell[i])) {
            if (n - i < 3 || strncmp(cell + i, "to ", 3) != 0)
                return true;
            i++;
        }
    return n == 0;
}

/* What stands in each column below its heading. */
static void learn_columns(const char *rows, const char *classes[static MOST_COLUMNS])
{
    bool words[MOST_COLUMNS] = {false};
    size_t longest[MOST_COLUMNS] = {0};
    for (const char *row = strchr(rows, '\n'); row != NULL && row[1] != '\0'; row = strchr(row + 1, '\n')) {
        const char *cell = row + 1;
        for (size_t c = 0; c < MOST_COLUMNS; c++) {
            const size_t n = strcspn(cell, "\t\n");
            words[c] = words[c] || has_words(cell, n);
            longest[c] = n > longest[c] ? n : longest[c];
            if (cell[n] != '\t')
                break;
            cell += n + 1;
        }
    }
    for (size_t c = 0; c < MOST_COLUMNS; c++)
        classes[c] = class_of(words[c], longest[c]);
}

static void put_row(char *row, bool is_head, const char *const classes[static MOST_COLUMNS], FILE *page)
{
    size_t c = 0;
    (void)fputs(is_head ? "<thead><tr>" : "<tr>", page);
    for (char *cell = row, *next = row; next != NULL; cell = next, c++) {
        next = strchr(cell, '\t');
        if (next != NULL)
            *next++ = '\0';
        const char *class = c < MOST_COLUMNS ? classes[c] : "";
        if (is_head)
            (void)fprintf(page, "<th scope=\"col\"%s>", class);
        else
            (void)fprintf(page, c == 0 ? "<th scope=\"row\"%s>" : "<td%s>", class);
        moec_html_text(page, cell);
        (void)fputs(is_head || c == 0 ? "</th>" : "</td>", page);
    }
    (void)fputs(is_head ? "</tr></thead><tbody>\n" : "</tr>\n", page);
}

static void put_html(char *rows, FILE *page)
{
    const char *classes[MOST_COLUMNS];
    char *state = NULL;
    bool is_head = true;
    learn_columns(rows, classes);
    (void)fputs("<div class=\"scroll\" style=\"max-height:none\" role=\"region\" tabindex=\"0\" "
                "aria-label=\"Table\">\n<table>",
                page);
    for (char *row = strtok_r(rows, "\n", &state); row != NULL; row = strtok_r(NULL, "\n", &state)) {
        put_row(row, is_head, classes, page);
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
