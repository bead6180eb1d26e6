/* The page's sections in their order: result, time against loss, tests, elsewhere, candidates, settings. Points of
 * the curve are sorted by loss, and each series has a place for every one of them. The page is made in memory and
 * written as a whole: a failure leaves no half page. */
#include "cli/output/fit_page.h"

#include "cli/print/print.h"
#include "cli/terminal/terminal.h"
#include "profiler/report/figure_parts.h"
#include "profiler/report/report_html.h"
#include "runtime/policy/decide/route_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct moec_tune_report *report_of(const struct cli_fit_page *page)
{
    return page->result->report;
}

/* What candidates are compared by, in the unit that is printed. */
static double amount_of(const struct cli_fit_page *page, const struct moec_foretold *foretold)
{
    return page->result->by_bytes ? foretold->read_bytes / 1024 : 1e-6 * foretold->token_ns;
}

static const char *unit_of(const struct cli_fit_page *page)
{
    return page->result->by_bytes ? "KiB read a token" : "ms a token";
}

/* Whether a candidate is bits alone; a draft that does not run in the memory has no windows. */
static bool is_plain(const struct moec_tune_candidate *candidate)
{
    return !moec_decision_settings_are_on(&candidate->settings);
}

static bool is_same(const struct moec_tune_candidate *a, const struct moec_tune_candidate *b)
{
    return a->draft == b->draft && strcmp(a->settings.route, b->settings.route) == 0;
}

/* ---- what came out ---- */

static void put_promise(FILE *stream, const struct cli_fit_page *page)
{
    const struct moec_certificate *certificate = &report_of(page)->certificate;
    if (page->failure != NULL)
        return;
    (void)fputs("<p>", stream);
    moec_html_format(
        stream,
        "On %" PRIu32 " windows of '%s' that the search never saw, the loss of bits and decisions "
        "together is %.3f %%, and at most %.3f %% with a confidence of %.3g %%. The certificate covers only "
        "text like this data.",
        certificate->n_window, moec_html_name(page->data).text, 100 * certificate->loss,
        100 * certificate->loss_high, 100 * certificate->confidence);
    (void)fputs("</p>\n", stream);
}

/* The device and the time on it. */
static void put_time(FILE *stream, const struct cli_fit_result *result)
{
    const struct moec_bundle_fit *fit = &result->fit;
    char memory[24], buffer[24], all[24];
    moec_html_fact(stream, "Memory",
                   "%s, the limit of moec-run and so its peak, with a context of %" PRIu32
                   " tokens; experts have %s of %s",
                   cli_memory_text(memory, fit->memory_bytes), fit->n_context,
                   cli_memory_text(buffer, fit->buffer_bytes), cli_memory_text(all, result->all_bytes));
    moec_html_fact(stream, "Storage", "%.4g MB/s, %.4g µs a request", 1e-6 * (double)fit->bytes_per_second,
                   1e-3 * (double)fit->latency_ns);
    moec_html_fact(stream, "A generated token", "%.3f ms expected, %.0f a second; %s binds; %.1f KiB read",
                   1e-6 * fit->token_ns, fit->token_ns > 0 ? 1e9 / fit->token_ns : 0,
                   cli_fit_bound_by(result), result->foretold.read_bytes / 1024);
    if (fit->compiled_ns > 0)
        moec_html_fact(stream, "As moec compile alone would write it", "%.3f ms, %.2f times as long",
                       1e-6 * fit->compiled_ns, fit->token_ns > 0 ? fit->compiled_ns / fit->token_ns : 0);
    else
        moec_html_fact(stream, "As moec compile alone would write it", "does not run in this memory");
    moec_html_fact(stream, "With every expert in memory", "%.3f ms", 1e-6 * fit->resident_ns);
}

static void put_bytes(FILE *stream, const struct cli_fit_result *result)
{
    char buffer[24], all[24];
    moec_html_fact(stream, "A generated token", "%.1f KiB of experts read where %s of %s are in memory",
                   result->foretold.read_bytes / 1024, cli_memory_text(buffer, result->fit.buffer_bytes),
                   cli_memory_text(all, result->all_bytes));
    moec_html_fact(stream, "As moec compile alone would write it", "%.1f KiB",
                   result->compiled_read_bytes / 1024);
}

static void put_facts(FILE *stream, const struct cli_fit_page *page)
{
    const struct cli_fit_result *result = page->result;
    const struct moec_tune_report *report = report_of(page);
    const struct moec_decision_settings *settings = &report->winner.settings;
    char name[MOEC_TUNE_NAME_BYTES], slots[48] = "";
    moec_html_fact(stream, "Bundle", "%" PRIu64 " bytes", result->file_bytes);
    if (result->by_bytes)
        put_bytes(stream, result);
    else
        put_time(stream, result);
    if (!is_plain(&report->winner))
        (void)snprintf(slots, sizeof slots, " by %" PRIu32 " experts a layer", settings->n_slots);
    moec_html_fact(stream, "Bits", "plan %" PRIu32, report->winner.draft + 1);
    moec_html_fact(stream, "Decisions", "%s%s", moec_tune_name(settings, 0, name), slots);
    if (cli_fit_why_plain(result) != NULL)
        moec_html_fact(stream, "Why bits alone", "%s", cli_fit_why_plain(result));
    if (!result->by_bytes)
        moec_html_fact(stream, "Eviction and prediction", "%s, %s", result->fit.evict, result->fit.predict);
}

static void put_result(FILE *stream, const struct cli_fit_page *page)
{
    moec_html_section_open(stream, "result", "Result");
    if (page->failure != NULL) {
        (void)fputs("<p class=\"lead\"><strong>No bundle:</strong> ", stream);
        moec_html_text(stream, moec_html_name(page->failure).text);
        (void)fputs("</p>\n", stream);
    }
    (void)fputs("<dl>\n", stream);
    moec_html_fact(stream, "Target", "a loss of at most %.3g %% with a confidence of %.3g %%",
                   100 * page->max_loss, 100 * page->confidence);
    if (page->failure == NULL)
        put_facts(stream, page);
    (void)fputs("</dl>\n", stream);
    put_promise(stream, page);
    moec_html_section_close(stream);
}

/* ---- time against loss ---- */

enum series { SERIES_DECIDED, SERIES_PLAIN, SERIES_WINNER, SERIES_COUNT };

struct point {
    enum series series;
    double loss, amount;
};

static int by_loss(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    if (x->loss != y->loss)
        return x->loss < y->loss ? -1 : 1;
    return (x->amount > y->amount) - (x->amount < y->amount);
}

static uint32_t fill_points(const struct cli_fit_page *page,
                            struct point points[static MOEC_TUNE_MAX_CANDIDATES])
{
    const struct moec_tune_report *report = report_of(page);
    uint32_t n = 0;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[i];
        const bool is_winner = page->failure == NULL && is_same(candidate, &report->winner);
        points[n++] = (struct point){.series = is_winner             ? SERIES_WINNER
                                               : is_plain(candidate) ? SERIES_PLAIN
                                                                     : SERIES_DECIDED,
                                     .loss = 100 * candidate->search.loss,
                                     .amount = amount_of(page, &candidate->foretold)};
    }
    qsort(points, n, sizeof *points, by_loss);
    return n;
}

static enum moec_status draw(const struct cli_fit_page *page, const struct point *points, uint32_t n,
                             struct moec_chart *chart, struct moec_error *err)
{
    static const char *const names[SERIES_COUNT] = {"bits with decisions", "bits alone", "the one written"};
    for (enum series s = 0; s < SERIES_COUNT; s++) {
        struct moec_chart_series *series = NULL;
        uint32_t n_own = 0;
        for (uint32_t i = 0; i < n; i++)
            n_own += points[i].series == s;
        if (n_own == 0)
            continue;
        MOEC_TRY(moec_chart_add_series(chart, names[s], n, &series, err));
        for (uint32_t i = 0; i < n; i++) {
            series->x[i] = points[i].loss;
            if (points[i].series == s)
                series->y[i] = points[i].amount;
        }
    }
    moec_chart_add_upright(chart, 100 * page->max_loss, "target");
    return MOEC_OK;
}

static enum moec_status make_chart(const struct cli_fit_page *page, struct moec_chart *chart,
                                   struct moec_error *err)
{
    struct point points[MOEC_TUNE_MAX_CANDIDATES];
    const uint32_t n = fill_points(page, points);
    const bool by_bytes = page->result->by_bytes;
    moec_figure_name(chart, "curve");
    moec_figure_title(chart, by_bytes ? "Bytes read against loss" : "Time against loss");
    chart->kind = MOEC_CHART_POINTS;
    moec_figure_loss_axis(&chart->x);
    (void)snprintf(chart->y.name, sizeof chart->y.name, by_bytes ? "kib" : "ms");
    (void)snprintf(chart->y.label, sizeof chart->y.label, "%s, foretold", unit_of(page));
    chart->y.has_zero = true;
    moec_figure_say(chart,
                    "Each point is a candidate, with its loss on the search part: further left loses less, "
                    "lower is faster. The line is the target, which the upper end of the certificate's "
                    "interval must keep.");
    return n > 0 ? draw(page, points, n, chart, err) : MOEC_OK;
}

static enum moec_status put_curve(FILE *stream, const struct cli_fit_page *page, struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    enum moec_status status = MOEC_OK;
    moec_html_section_open(stream, "curve",
                           page->result->by_bytes ? "Bytes against loss" : "Time against loss");
    if (report_of(page)->n_candidate == 0) {
        (void)fputs("<p>Nothing was measured.</p>\n", stream);
    } else {
        status = make_chart(page, &chart, err);
        if (status == MOEC_OK)
            status = moec_html_figure(stream, &chart, "the candidates below", err);
    }
    moec_chart_release(&chart);
    moec_html_section_close(stream);
    return status;
}

/* ---- tables ---- */

static void loss_cell(struct moec_html_table *table, double loss)
{
    moec_html_table_number(table, "%.3f %%", 100 * loss);
}

static void put_tests(FILE *stream, const struct cli_fit_page *page)
{
    static const char *const results[] = {"not tested", "passed", "failed"};
    const struct moec_tune_report *report = report_of(page);
    const char *const columns[] = {"test", "plan", "decisions", unit_of(page), "loss", "at most", "result"};
    char name[MOEC_TUNE_NAME_BYTES];
    moec_html_section_open(stream, "tests", "Tests");
    (void)fputs(
        "<p>Candidates and their order were fixed before the certificate part was read. They are tested from "
        "the safest on until one fails; the last that passed is written.</p>\n",
        stream);
    struct moec_html_table table =
        moec_html_table_begin(stream, "Tests of the certificate", columns, sizeof columns / sizeof *columns);
    for (uint32_t i = 0; i < report->n_sequence; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[report->sequence[i]];
        const struct moec_sequence_step none = {.loss = NAN, .high = NAN};
        const struct moec_sequence_step *step =
            i < report->certificate.n_sequence ? &report->certificate.sequence[i] : &none;
        moec_html_table_cell(&table, "%" PRIu32, i + 1);
        moec_html_table_cell(&table, "%" PRIu32, candidate->draft + 1);
        moec_html_table_cell(&table, "%s", moec_tune_name(&candidate->settings, 0, name));
        moec_html_table_number(&table, "%.3f", amount_of(page, &candidate->foretold));
        loss_cell(&table, step->loss);
        loss_cell(&table, step->high);
        moec_html_table_cell(&table, "%s%s", results[step->result], step->is_chosen ? ", written" : "");
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    moec_html_section_close(stream);
}

static void put_elsewhere(FILE *stream, const struct cli_fit_page *page)
{
    const struct cli_fit_result *result = page->result;
    const char *const columns[] = {"the same bundle", unit_of(page)};
    if (result->n_look == 0)
        return;
    moec_html_section_open(stream, "elsewhere", "Elsewhere, and without a decision");
    (void)fputs(
        "<p>Foretold, and not certified. With other memory or storage the text and its certified loss stay the "
        "same. Without one of its decisions the text changes, and no loss is certified.</p>\n",
        stream);
    struct moec_html_table table =
        moec_html_table_begin(stream, "The same bundle elsewhere", columns, sizeof columns / sizeof *columns);
    for (uint32_t i = 0; i < result->n_look; i++) {
        const double amount = result->looks[i].amount;
        moec_html_table_cell(&table, "%s", result->looks[i].name);
        if (isnan(amount))
            moec_html_table_cell(&table, "does not run");
        else
            moec_html_table_cell(&table, "%.3f", result->by_bytes ? amount / 1024 : 1e-6 * amount);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    moec_html_section_close(stream);
}

static void put_candidates(FILE *stream, const struct cli_fit_page *page)
{
    const struct moec_tune_report *report = report_of(page);
    const char *const columns[] = {
        "plan",        "decisions",        "slots",           "loss, search part",
        unit_of(page), "KiB read a token", "records a token", "eviction, prediction"};
    char name[MOEC_TUNE_NAME_BYTES];
    moec_html_section_open(stream, "candidates", "Candidates");
    (void)fputs(
        "<p>Everything that was measured, in its order. A plan without decisions is its bits alone.</p>\n",
        stream);
    struct moec_html_table table =
        moec_html_table_begin(stream, "Candidates", columns, sizeof columns / sizeof *columns);
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[i];
        const struct moec_foretold *foretold = &candidate->foretold;
        moec_html_table_cell(&table, "%" PRIu32, candidate->draft + 1);
        moec_html_table_cell(&table, "%s", moec_tune_name(&candidate->settings, 0, name));
        moec_html_table_cell(&table, "%" PRIu32, candidate->settings.n_slots);
        loss_cell(&table, candidate->search.loss);
        moec_html_table_number(&table, "%.3f", amount_of(page, foretold));
        moec_html_table_number(&table, "%.1f", foretold->read_bytes / 1024);
        moec_html_table_number(&table, "%.2f", foretold->reads);
        moec_html_table_cell(&table, "%s, %s", foretold->evict, foretold->predict);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    moec_html_section_close(stream);
}

static void put_settings(FILE *stream, const struct cli_fit_page *page)
{
    const struct moec_certificate *certificate = &report_of(page)->certificate;
    moec_html_section_open(stream, "settings", "Settings and versions");
    (void)fputs("<dl>\n", stream);
    moec_html_fact(stream, "Model", "%s", moec_html_name(page->model).text);
    moec_html_fact(stream, "Data", "%s", moec_html_name(page->data).text);
    if (certificate->present)
        moec_html_fact(
            stream, "Certificate", "%" PRIu32 " windows of up to %" PRIu32 " tokens, %s arithmetic",
            certificate->n_window, certificate->seq_len_tokens, moec_html_name(certificate->arithmetic).text);
    moec_html_fact(stream, "Fitted by", "moec %s", MOEC_VERSION);
    (void)fputs("</dl>\n", stream);
    moec_html_section_close(stream);
}

/* ---- page ---- */

static void put_answer(FILE *stream, const struct cli_fit_page *page)
{
    const struct cli_fit_result *result = page->result;
    char size[24];
    if (page->failure != NULL)
        return;
    (void)fputs("<p class=\"lead\">", stream);
    if (result->by_bytes)
        moec_html_format(stream, "A token reads %.1f KiB of experts", result->foretold.read_bytes / 1024);
    else
        moec_html_format(stream, "A token is expected to take %.3f ms, %.0f a second",
                         1e-6 * result->fit.token_ns,
                         result->fit.token_ns > 0 ? 1e9 / result->fit.token_ns : 0);
    moec_html_format(stream, "; the bundle takes %s and loses at most %.3f %% with a confidence of %.3g %%.",
                     cli_size_text(size, result->file_bytes), 100 * report_of(page)->certificate.loss_high,
                     100 * report_of(page)->certificate.confidence);
    (void)fputs("</p>\n", stream);
}

static enum moec_status put_page(FILE *stream, const struct cli_fit_page *page, struct moec_error *err)
{
    char title[320];
    (void)snprintf(title, sizeof title, "Fit of %.256s", moec_html_name(page->model).text);
    moec_html_begin(stream, title);
    put_answer(stream, page);
    put_result(stream, page);
    MOEC_TRY(put_curve(stream, page, err));
    put_tests(stream, page);
    put_elsewhere(stream, page);
    put_candidates(stream, page);
    put_settings(stream, page);
    moec_html_end(stream);
    return MOEC_OK;
}

enum moec_status cli_fit_page_write(const struct cli_fit_page *page, const char *path, struct moec_error *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory while making the report '%s'", path);
    enum moec_status status = put_page(stream, page, err);
    const bool is_broken = ferror(stream) != 0;
    if (fclose(stream) != 0 || is_broken)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory while making the report '%s'", path);
    if (status == MOEC_OK)
        status = moec_html_write(path, text, n_bytes, err);
    free(text);
    return status;
}
