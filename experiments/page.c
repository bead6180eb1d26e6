#include "experiments/page.h"

#include "profiler/report/report_html.h"

#include <stdlib.h>
#include <string.h>

enum moec_status experiment_page_write(struct experiment_page *page,
                                       enum moec_status (*put)(const struct experiment_page *page,
                                                               void *context, struct moec_error *err),
                                       void *context, struct moec_error *err)
{
    char path[1024], *text = NULL;
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/report.html", page->folder);
    page->stream = open_memstream(&text, &n);
    if (page->stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: report '%s'", path);
    enum moec_status status = put(page, context, err);
    const bool is_broken = ferror(page->stream) != 0;
    if ((fclose(page->stream) != 0 || is_broken) && status == MOEC_OK)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: report '%s'", path);
    if (status == MOEC_OK)
        status = moec_plot_write_csv(path, text, n, err);
    free(text);
    if (status == MOEC_OK)
        (void)printf("%s\n", path);
    return status;
}

void experiment_page_heading(const struct experiment_page *page, const char *text)
{
    (void)fputs("<h3>", page->stream);
    moec_html_text(page->stream, text);
    (void)fputs("</h3>\n", page->stream);
}

void experiment_page_paragraph(const struct experiment_page *page, const char *text)
{
    (void)fputs("<p>", page->stream);
    moec_html_text(page->stream, text);
    (void)fputs("</p>\n", page->stream);
}

enum moec_status experiment_page_begin(const struct experiment_page *page, struct experiment_table *table,
                                       char name[static 64], const char *what, const char *const *headings,
                                       size_t n, struct moec_error *err)
{
    (void)snprintf(name, 64, "%s_%s", page->sample, what);
    MOEC_TRY(experiment_table_open(table, name, err));
    for (size_t h = 0; h < n; h++)
        experiment_table_cell(table, "%s", headings[h]);
    experiment_table_end_row(table);
    return MOEC_OK;
}

enum moec_status experiment_page_end(const struct experiment_page *page, struct experiment_table *table,
                                     struct moec_error *err)
{
    return experiment_table_close(table, page->folder, page->stream, err);
}

/* ---- claims ---- */

static const char *verdict_name(enum experiment_verdict verdict, bool is_goal)
{
    switch (verdict) {
    case EXPERIMENT_YES:
        return is_goal ? "reached" : "agrees";
    case EXPERIMENT_NO:
        return is_goal ? "not reached" : "does not agree";
    case EXPERIMENT_SHOWN:
        return "shown";
    default:
        return "not measured";
    }
}

enum moec_status experiment_page_claims(const struct experiment_page *page,
                                        const struct experiment_claims *claims, bool is_goal,
                                        struct moec_error *err)
{
    const char *const headings[] = {"figure", is_goal ? "to reach" : "the paper", "measured", "", "remarks"};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, is_goal ? "goals" : "findings", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t c = 0; c < claims->n; c++) {
        const struct experiment_claim *claim = &claims->items[c];
        if (page->hides_unmeasured && claim->verdict == EXPERIMENT_NOT_MEASURED)
            continue;
        experiment_table_cell(&table, "%s", claim->figure);
        experiment_table_cell(&table, "%s", claim->paper);
        experiment_table_cell(&table, "%s", claim->ours);
        experiment_table_cell(&table, "%s", verdict_name(claim->verdict, is_goal));
        experiment_table_cell(&table, "%s", claim->why);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

static void put_list(FILE *stream, const struct experiment_claims *claims, enum experiment_verdict verdict,
                     const char *opening)
{
    bool is_first = true;
    for (uint32_t c = 0; c < claims->n; c++) {
        const struct experiment_claim *claim = &claims->items[c];
        if (claim->verdict != verdict)
            continue;
        moec_html_format(stream, "%s%s (%s", is_first ? opening : "; ", claim->figure, claim->ours);
        if (verdict == EXPERIMENT_NO && claim->why[0] != '\0')
            moec_html_format(stream, ": %s", claim->why);
        moec_html_text(stream, ")");
        is_first = false;
    }
    if (!is_first)
        (void)fputs(". ", stream);
}

void experiment_page_agreement(const struct experiment_page *page, const struct experiment_claims *claims)
{
    (void)fputs("<p>", page->stream);
    put_list(page->stream, claims, EXPERIMENT_YES, "As in the paper: ");
    put_list(page->stream, claims, EXPERIMENT_NO, "Not as in the paper: ");
    (void)fputs("</p>\n", page->stream);
}

void experiment_page_score(const struct experiment_page *page, const struct experiment_claims *goals,
                           const char *title)
{
    uint32_t n_reached = 0, n_measured = 0;
    for (uint32_t c = 0; c < goals->n; c++) {
        n_reached += goals->items[c].verdict == EXPERIMENT_YES;
        n_measured += goals->items[c].verdict == EXPERIMENT_YES || goals->items[c].verdict == EXPERIMENT_NO;
    }
    (void)fprintf(page->stream, "<p><a href=\"#%s\">", page->sample);
    moec_html_text(page->stream, title);
    (void)fprintf(page->stream, "</a>: %u of %u figures to reach are reached", n_reached, n_measured);
    if (page->hides_unmeasured)
        (void)fputs(".</p>\n", page->stream);
    else
        (void)fprintf(page->stream, ", %u were not measured.</p>\n", goals->n - n_measured);
}

/* ---- charts ---- */

/* A chart's numbers as TSV: what its CSV says, whose fields are quoted where they hold commas. */
static enum moec_status write_tsv(const struct experiment_page *page, const struct moec_chart *chart,
                                  struct moec_error *err)
{
    char path[1024], *text = NULL;
    size_t n = 0, used = 0;
    MOEC_TRY(moec_chart_csv(chart, &text, &n, err));
    bool is_quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            is_quoted = !is_quoted;
        else if (text[i] == ',' && !is_quoted)
            text[used++] = '\t';
        else
            text[used++] = text[i];
    }
    (void)snprintf(path, sizeof path, "%s/%s.tsv", page->folder, chart->name);
    enum moec_status status = moec_plot_write_csv(path, text, used, err);
    free(text);
    return status;
}

enum moec_status experiment_page_chart(const struct experiment_page *page, const struct moec_chart *chart,
                                       struct moec_error *err)
{
    if (chart->name[0] == '\0')
        return MOEC_OK;
    MOEC_TRY(moec_html_figure(page->stream, chart, "a .tsv file beside the page has all of them", err));
    return write_tsv(page, chart, err);
}
