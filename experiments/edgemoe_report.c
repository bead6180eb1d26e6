/* Writes the report of EdgeMoE's experiment from what experiments/edgemoe.sh measured: FOLDER/report.html,
 * which needs nothing beside itself, and its tables as FOLDER/NAME.tsv. What is missing is shown as not
 * measured. */
#include "experiments/charts.h"
#include "experiments/claims.h"
#include "experiments/page.h"
#include "profiler/report/figures.h"
#include "profiler/report/report_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_SAMPLE 2

struct report {
    struct experiment_page page;
    struct experiment_sample samples[N_SAMPLE];
};

static const char *const titles[N_SAMPLE] = {
    "The Switch sample: encoder-decoder, one expert a token, summaries of dialogues",
    "The decoder sample: OLMoE, four experts a token, perplexity"};

/* ---- tables ---- */

static enum moec_status put_table2(const struct experiment_page *page, const struct experiment_sample *sample,
                                   struct moec_error *err)
{
    static const struct {
        const char *name, *storage8, *loss8, *rouge8, *storage16, *loss16, *rouge16;
    } paper[] = {{"IO-FREE", "2.43", "0.00", "0.221", "4.12", "0.00", "0.245"},
                 {"IO-EXP", "2.53", "0.00", "0.221", "4.12", "0.00", "0.245"},
                 {"IO-QEXP", "0.85", "2.04", "0.215", "1.03", "3.15", "0.237"},
                 {"STI", "0.85", "20.0", "0.176", "1.03", "25.1", "0.183"},
                 {"Our", "0.81", "0.89", "0.219", "0.95", "1.95", "0.240"},
                 {"Our, dense weights searched too", "–", "–", "–", "–", "–", "–"},
                 {"the paper's procedure", "0.81", "0.89", "0.219", "0.95", "1.95", "0.240"}};
    const char *const headings[] = {"baseline",
                                    "storage, MB",
                                    "loss, %",
                                    experiment_metric(sample),
                                    "ST-base-8: GB",
                                    "ST-base-8: loss, %",
                                    "ST-base-8: ROUGE-2",
                                    "ST-base-16: GB",
                                    "ST-base-16: loss, %",
                                    "ST-base-16: ROUGE-2"};
    const struct experiment_bundle original = {.n_bytes = sample->source_bytes,
                                               .value = sample->ours[0].reference};
    const struct experiment_bundle *bundles[] = {
        &original,        &original,           &sample->uniform[2], &sample->everything[2],
        &sample->ours[0], &sample->ours_dense, &sample->paper[0]};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "table2", headings, sizeof headings / sizeof *headings,
                                   err));
    for (size_t r = 0; r < sizeof paper / sizeof *paper; r++) {
        experiment_table_cell(&table, "%s", paper[r].name);
        experiment_table_number(&table, bundles[r]->n_bytes, 1e-6, 3);
        experiment_table_number(&table, bundles[r]->loss, 100, 2);
        experiment_table_number(&table, bundles[r]->value, 1, 4);
        experiment_table_cell(&table, "%s", paper[r].storage8);
        experiment_table_cell(&table, "%s", paper[r].loss8);
        experiment_table_cell(&table, "%s", paper[r].rouge8);
        experiment_table_cell(&table, "%s", paper[r].storage16);
        experiment_table_cell(&table, "%s", paper[r].loss16);
        experiment_table_cell(&table, "%s", paper[r].rouge16);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

/* The paper's rows below ours, of its summarisers or of its only decoder. */
static void put_table4_paper(struct experiment_table *table, bool is_decoder)
{
    static const char *const summaries[][2] = {{"IO-FREE", "ST-base-8 0.221, ST-base-16 0.245"},
                                               {"Xsum", "ST-base-8 0.220, ST-base-16 0.243"},
                                               {"SAMsum", "ST-base-8 0.219, ST-base-16 0.240"}};
    static const char *const decoder[][2] = {
        {"IO-FREE", "Winogrande 66.0, HellaSwag 75.1, MMLU 50.2, PiQA 77.3"},
        {"refinedweb", "Winogrande 65.8, HellaSwag 74.8, MMLU 49.1, PiQA 77.2"},
        {"c4", "Winogrande 64.8, HellaSwag 74.3, MMLU 48.9, PiQA 77.1"}};
    const char *const(*rows)[2] = is_decoder ? decoder : summaries;
    for (size_t r = 0; r < 3; r++) {
        experiment_table_cell(table, "the paper's: %s", rows[r][0]);
        experiment_table_cell(table, "%s", rows[r][1]);
        experiment_table_cell(table, "–");
        experiment_table_cell(table, "–");
        experiment_table_end_row(table);
    }
}

static enum moec_status put_table4(const struct experiment_page *page, const struct experiment_sample *sample,
                                   struct moec_error *err)
{
    const char *const headings[] = {"calibrated on", experiment_metric(sample), "loss, %", "storage, MB"};
    static const char *const names[] = {"nothing (IO-FREE)", "data like the test's", "other data",
                                        "data like the test's, the paper's procedure",
                                        "other data, the paper's procedure"};
    const struct experiment_bundle original = {.n_bytes = sample->source_bytes,
                                               .value = sample->like.reference};
    const struct experiment_bundle *bundles[] = {&original, &sample->like, &sample->other,
                                                 &sample->paper_like, &sample->paper_other};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "table4", headings, sizeof headings / sizeof *headings,
                                   err));
    for (size_t r = 0; r < sizeof names / sizeof *names; r++) {
        experiment_table_cell(&table, "%s", names[r]);
        experiment_table_number(&table, bundles[r]->value, 1, 4);
        experiment_table_number(&table, bundles[r]->loss, 100, 2);
        experiment_table_number(&table, bundles[r]->n_bytes, 1e-6, 3);
        experiment_table_end_row(&table);
    }
    put_table4_paper(&table,
                     sample->has_profile && moec_config_moe_encoder_count(&sample->profile.config) == 0);
    return experiment_page_end(page, &table, err);
}

static void put_limit_rows(struct experiment_table *table, const struct experiment_bench *limits,
                           const char *whose, double n_expert)
{
    for (uint32_t r = 0; r < limits->n_row; r++) {
        const struct experiment_row *row = &limits->rows[r];
        experiment_table_number(table, row->memory_bytes, 1e-6, 2);
        experiment_table_cell(table, "%s", whose);
        experiment_table_number(table, row->buffer_bytes, 1e-6, 2);
        experiment_table_number(table, row->buffer_bytes / row->total_bytes, n_expert, 1);
        experiment_table_end_row(table);
    }
}

/* Table III. */
static enum moec_status put_limits(const struct experiment_page *page, const struct experiment_sample *sample,
                                   struct moec_error *err)
{
    static const char *const headings[] = {"memory limit, MB", "assignment", "expert buffer, MB",
                                           "experts in it"};
    const double n_expert =
        sample->has_profile ? (double)sample->profile.n_moe_layer * sample->profile.n_expert : (double)NAN;
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "table3", headings, sizeof headings / sizeof *headings,
                                   err));
    put_limit_rows(&table, &sample->limits, "ours", n_expert);
    put_limit_rows(&table, &sample->limits_paper, "the paper's procedure", n_expert);
    return experiment_page_end(page, &table, err);
}

static void put_mode_rows(struct experiment_table *table, const struct experiment_bench *bench,
                          const char *whose)
{
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct experiment_row *row = &bench->rows[r];
        experiment_table_cell(table, "%s%s", row->mode, whose);
        experiment_table_cell(table, "%s", row->memory[0] != '\0' ? row->memory : "none");
        experiment_table_cell(table, "%s", row->has_preloads ? "yes" : "no");
        experiment_table_number(table, row->tpot_ms, 1, 3);
        experiment_table_number(table, row->floor_ms, 1, 3);
        experiment_table_number(table, row->stall_ms, 1, 3);
        experiment_table_number(table, row->hit_rate, 100, 1);
        experiment_table_number(table, row->bytes_per_token, 1e-3, 1);
        experiment_table_number(table, row->peak_bytes, 1e-6, 1);
        experiment_table_end_row(table);
    }
}

static enum moec_status put_modes(const struct experiment_page *page, const struct experiment_bench *bench,
                                  const struct experiment_bench *paper, const char *what,
                                  struct moec_error *err)
{
    static const char *const headings[] = {"mode",       "buffer",          "preloads",
                                           "ms a token", "floor, ms",       "stall, ms",
                                           "hits, %",    "KB read a token", "peak, MB"};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(
        experiment_page_begin(page, &table, name, what, headings, sizeof headings / sizeof *headings, err));
    put_mode_rows(&table, bench, "");
    put_mode_rows(&table, paper, ", the paper's procedure");
    return experiment_page_end(page, &table, err);
}

/* A row of a target's or a uniform assignment. */
static void put_assignment(struct experiment_table *table, const struct experiment_bundle *bundle,
                           bool is_searched, double tpot_ms)
{
    experiment_table_number(table, bundle->n_bytes, 1e-6, 3);
    experiment_table_number(table, bundle->loss, 100, 2);
    if (isfinite(bundle->low))
        experiment_table_cell(table, "%.2f to %.2f", 100 * bundle->low, 100 * bundle->high);
    else
        experiment_table_cell(table, "–");
    experiment_table_number(table, is_searched ? bundle->search_loss : NAN, 100, 2);
    experiment_table_number(table, tpot_ms, 1, 3);
    experiment_table_number(table, is_searched ? bundle->seconds : NAN, 1, 0);
    experiment_table_end_row(table);
}

static enum moec_status put_targets(const struct experiment_page *page,
                                    const struct experiment_sample *sample, struct moec_error *err)
{
    const char *const headings[] = {"assignment",      "storage, MB",    "loss on the test data, %",
                                    "its interval, %", "certificate, %", "ms a token",
                                    "search, s"};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "targets", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t i = 0; i < 2 * EXPERIMENT_N_TARGET; i++) {
        const uint32_t t = i % EXPERIMENT_N_TARGET;
        const bool is_ours = i < EXPERIMENT_N_TARGET;
        const struct experiment_bundle *bundle = is_ours ? &sample->ours[t] : &sample->paper[t];
        if (!isfinite(bundle->n_bytes))
            continue;
        experiment_table_cell(&table, "%s, at most %u %%%s", is_ours ? "ours" : "the paper's procedure",
                              experiment_targets[t], bundle->missed ? " (certificate missed)" : "");
        put_assignment(&table, bundle, true, is_ours ? sample->tpot_of_target[t] : sample->tpot_of_paper[t]);
    }
    for (uint32_t i = 0; i < 2 * EXPERIMENT_N_BITS; i++) {
        const uint32_t b = i % EXPERIMENT_N_BITS;
        const bool is_all = i >= EXPERIMENT_N_BITS;
        const struct experiment_bundle *bundle = is_all ? &sample->everything[b] : &sample->uniform[b];
        if (!isfinite(bundle->n_bytes))
            continue;
        experiment_table_cell(&table, "%s INT%u", is_all ? "all weights" : "experts", experiment_bits[b]);
        put_assignment(&table, bundle, false, NAN);
    }
    return experiment_page_end(page, &table, err);
}

/* ---- charts ---- */

static enum moec_status put_made(const struct experiment_page *page, const struct experiment_sample *sample,
                                 experiment_chart *make, struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    enum moec_status status = make(sample, &chart, err);
    if (status == MOEC_OK)
        status = experiment_page_chart(page, &chart, err);
    moec_chart_release(&chart);
    return status;
}

/* Charts of the profile itself, by the beginning of their names. */
static enum moec_status put_profile_chart(const struct experiment_page *page,
                                          const struct experiment_sample *sample,
                                          const struct moec_figures *figures, const char *name,
                                          struct moec_error *err)
{
    for (uint32_t f = 0; f < figures->n; f++)
        for (uint32_t c = 0; c < figures->items[f].n_chart; c++) {
            struct moec_chart *chart = &figures->items[f].charts[c];
            char own[sizeof chart->name];
            if (strncmp(chart->name, name, strlen(name)) != 0)
                continue;
            (void)snprintf(own, sizeof own, "%s", chart->name);
            (void)snprintf(chart->name, sizeof chart->name, "%.20s_%.40s", sample->name, own);
            MOEC_TRY(experiment_page_chart(page, chart, err));
        }
    return MOEC_OK;
}

static enum moec_status put_figures(const struct experiment_page *page,
                                    const struct experiment_sample *sample, struct moec_error *err)
{
    struct moec_figures figures = {0};
    enum moec_status status = MOEC_OK;
    if (sample->has_profile)
        MOEC_TRY(moec_figures_make(&sample->profile, &figures, err));
    MOEC_TRY_OUT(put_profile_chart(page, sample, &figures, "paths", err));
    MOEC_TRY_OUT(put_made(page, sample, experiment_chart_bits, err));
    MOEC_TRY_OUT(put_profile_chart(page, sample, &figures, "dense_loss", err));
    MOEC_TRY_OUT(put_profile_chart(page, sample, &figures, "sensitivity_int2", err));
    MOEC_TRY_OUT(put_made(page, sample, experiment_chart_decoding, err));
    MOEC_TRY_OUT(put_profile_chart(page, sample, &figures, "conditional", err));
    MOEC_TRY_OUT(put_made(page, sample, experiment_chart_latency, err));
    MOEC_TRY_OUT(put_made(page, sample, experiment_chart_evictions, err));
    MOEC_TRY_OUT(put_made(page, sample, experiment_chart_paper_evictions, err));
    MOEC_TRY_OUT(put_made(page, sample, experiment_chart_storage, err));
    MOEC_TRY_OUT(put_made(page, sample, experiment_chart_targets, err));
out:
    moec_figures_release(&figures);
    return status;
}

/* ---- page ---- */

static enum moec_status put_sample(const struct experiment_page *page, const struct experiment_sample *sample,
                                   const char *title, struct moec_error *err)
{
    struct experiment_claims goals, findings;
    experiment_goals(sample, &goals);
    experiment_findings(sample, &findings);
    (void)fprintf(page->stream, "<section id=\"%s\">\n<h2>", sample->name);
    moec_html_text(page->stream, title);
    (void)fputs("</h2>\n", page->stream);
    if (strcmp(sample->name, "switch") == 0)
        experiment_page_paragraph(
            page, "This sample was trained in two phases. Before the second, whose weight decay of 1.0 "
                  "removes what is left of the random initialisation, experts at INT2 lost less than "
                  "1 % of ROUGE-2.");
    experiment_page_agreement(page, &findings);
    experiment_page_heading(page, "Figures to reach");
    MOEC_TRY(experiment_page_claims(page, &goals, true, err));
    experiment_page_heading(page, "What the paper shows, and what is seen here");
    MOEC_TRY(experiment_page_claims(page, &findings, false, err));
    experiment_page_heading(page, "Table II: storage and loss");
    experiment_page_paragraph(page,
                              "IO-FREE and IO-EXP are the original weights; IO-QEXP has every expert "
                              "at INT4, STI all weights. Ours is moec's own search (policy hull, with a fit "
                              "to the data) for a loss of at most 2 %; the paper's procedure is moec "
                              "compile --preset paper for the same loss.");
    MOEC_TRY(put_table2(page, sample, err));
    if (sample->limits.n_row > 0) {
        experiment_page_heading(page, "Table III: experts that fit into limits of memory");
        MOEC_TRY(put_limits(page, sample, err));
    }
    experiment_page_heading(page, "Table IV: calibrated on one kind of data, tested on another");
    MOEC_TRY(put_table4(page, sample, err));
    experiment_page_heading(page, "Assignments: what they take and lose");
    MOEC_TRY(put_targets(page, sample, err));
    experiment_page_heading(page, "Run modes on storage of 550 MB/s, 80 us");
    MOEC_TRY(put_modes(page, &sample->fast, &sample->fast_paper, "modes", err));
    if (sample->slow.n_row > 0) {
        experiment_page_heading(page, "Run modes on storage of 50 MB/s, 80 us");
        MOEC_TRY(put_modes(page, &sample->slow, &sample->slow_paper, "modes_slow", err));
    }
    MOEC_TRY(put_figures(page, sample, err));
    (void)fputs("</section>\n", page->stream);
    return MOEC_OK;
}

static enum moec_status put_page(const struct experiment_page *page, void *context, struct moec_error *err)
{
    const struct report *report = context;
    const struct experiment_sample *first = &report->samples[report->samples[0].processor[0] == '\0' ? 1 : 0];
    struct experiment_page part = *page;
    moec_html_begin(page->stream, "EdgeMoE's experiment, repeated");
    experiment_page_paragraph(
        page, "Section IV of EdgeMoE (Yi et al., IEEE Transactions on Mobile Computing, 2025) measured on "
              "two small models that this project trained, with moec alone: the paper's rows, its numbers "
              "beside ours. Losses are of data that no search saw; storage is emulated at 550 MB/s and 80 us "
              "a read; the expert buffer holds ten experts where nothing else is said.");
    (void)fputs("<p>", page->stream);
    moec_html_format(page->stream,
                     "Times are of this machine: %s, %.0f threads. The paper's are of a Jetson TX2 (GPU) and "
                     "a Raspberry Pi 4B.",
                     first->processor, first->threads);
    (void)fputs("</p>\n", page->stream);
    for (size_t s = 0; s < N_SAMPLE; s++) {
        struct experiment_claims goals;
        experiment_goals(&report->samples[s], &goals);
        part.sample = report->samples[s].name;
        experiment_page_score(&part, &goals, titles[s]);
    }
    for (size_t s = 0; s < N_SAMPLE; s++) {
        part.sample = report->samples[s].name;
        MOEC_TRY(put_sample(&part, &report->samples[s], titles[s], err));
    }
    moec_html_end(page->stream);
    return MOEC_OK;
}

static enum moec_status write_report(struct report *report, struct moec_error *err)
{
    static const char *const names[N_SAMPLE] = {"switch", "decoder"};
    for (size_t s = 0; s < N_SAMPLE; s++)
        MOEC_TRY(experiment_read(report->page.folder, names[s], &report->samples[s], err));
    return experiment_page_write(&report->page, put_page, report, err);
}

int main(int argc, char **argv)
{
    struct moec_error err = {0};
    if (argc != 2) {
        (void)fputs("usage: edgemoe_report FOLDER, where experiments/edgemoe.sh measured\n", stderr);
        return 2;
    }
    struct report *report = calloc(1, sizeof *report);
    if (report == NULL)
        return 1;
    report->page.folder = argv[1];
    const enum moec_status status = write_report(report, &err);
    if (status != MOEC_OK)
        (void)fprintf(stderr, "edgemoe_report: %s\n", err.message);
    for (size_t s = 0; s < N_SAMPLE; s++)
        experiment_release(&report->samples[s]);
    free(report);
    return status == MOEC_OK ? 0 : 1;
}
