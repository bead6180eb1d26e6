/* The page's sections in their order: result, size against loss, bytes, bits, certificate, settings. Names
 * from files and from the command line are cleaned before they are formatted. The page is made in memory
 * and written as a whole: a failure leaves no half page. */
#include "compiler/page/compile_page.h"
#include "profiler/evaluate/chance.h"
#include "profiler/report/html_table.h"
#include "profiler/report/report_html.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_POINTS 1024 /* rows of the table of measurements */

/* Where the numbers of a figure stand that are too many for its table. */
static const char all_points[] = "the figure has all of them";

/* ---- tables ---- */

static void loss_cell(struct moec_html_table *table, double loss)
{
    if (isnan(loss))
        moec_html_table_cell(table, "–");
    else
        moec_html_table_cell(table, "%.3f %%", 100 * loss);
}

/* ---- what came out ---- */

static const char *target_words(const struct moec_compile_options *options, char text[static 160])
{
    char size[64] = "";
    if (options->target.max_bytes > 0)
        (void)snprintf(size, sizeof size, "%sa bundle of at most %" PRIu64 " bytes",
                       isnan(options->target.max_loss) ? "" : ", and ", options->target.max_bytes);
    if (isnan(options->target.max_loss))
        (void)snprintf(text, 160, "%s", size[0] != '\0' ? size : "none");
    else
        (void)snprintf(text, 160, "a loss of at most %.3g %%%s", 100 * options->target.max_loss, size);
    return text;
}

/* The certificate in words. */
static void put_promise(FILE *stream, const struct moec_compile_page *page)
{
    const struct moec_certificate *certificate = &page->report->certificate;
    (void)fputs("<p>", stream);
    if (!certificate->present) {
        moec_html_format(stream,
                         page->profile == NULL
                             ? "There is no certificate: the bundle was compiled without data."
                             : "There is no certificate: the certificate part of the data was not read.");
        (void)fputs("</p>\n", stream);
        return;
    }
    moec_html_format(stream,
                     "On %" PRIu32 " %s of '%s' that the search never saw, %s goes from %.4f to %.4f: a loss "
                     "of %.3f %%, from %.3f %% to %.3f %%.",
                     certificate->n_window, certificate->n_token > 0 ? "windows" : "rows",
                     moec_html_name(certificate->data_name).text, moec_html_name(certificate->metric).text,
                     certificate->reference, certificate->compiled, 100 * certificate->loss,
                     100 * certificate->loss_low, 100 * certificate->loss_high);
    if (!isnan(certificate->target))
        moec_html_format(stream, " The target of %.3g %% is %s%s.", 100 * certificate->target,
                         certificate->missed ? "missed" : "kept",
                         certificate->missed && page->report->is_written ? ", and the bundle is marked" : "");
    if (certificate->is_chance)
        moec_html_format(stream, " The certificate promises nothing, as " MOEC_CHANCE_MARK ".");
    if (certificate->confidence > 0)
        moec_html_format(stream, " The interval's upper end holds with a confidence of %.3g %%.",
                         100 * certificate->confidence);
    else
        moec_html_format(stream, " This is the measured loss itself, without an interval.");
    moec_html_format(stream, " The certificate covers only text like this data.");
    (void)fputs("</p>\n", stream);
}

/* What came of it, in a sentence before everything else. */
static void put_answer(FILE *stream, const struct moec_compile_page *page)
{
    const struct moec_compile_report *report = page->report;
    const struct moec_certificate *certificate = &report->certificate;
    if (report->shares.n == 0)
        return;
    (void)fputs("<p class=\"lead\">", stream);
    moec_html_format(stream, "%s %.3g MB, %.1f %% of the weights that it came from",
                     report->is_written ? "The bundle takes" : "The plan, which was not written, takes",
                     (double)report->n_bytes / 1e6,
                     100 * (double)report->n_bytes / (double)report->source_bytes);
    if (certificate->present && certificate->confidence > 0)
        moec_html_format(stream, "; its loss is %.3g %% (%s), at most %.3g %% with a confidence of %.3g %%",
                         100 * certificate->loss, moec_html_name(certificate->metric).text,
                         100 * certificate->loss_high, 100 * certificate->confidence);
    else if (certificate->present)
        moec_html_format(stream, "; its loss is %.3g %% (%s)", 100 * certificate->loss,
                         moec_html_name(certificate->metric).text);
    (void)fputs(".</p>\n", stream);
}

static void put_fit(FILE *stream, const struct moec_compile_fit_counts *fit)
{
    if (fit->n_expert == 0)
        return;
    moec_html_fact(stream, "Fitted by GPTQ",
                   "%" PRIu32 " experts, %" PRIu32 " of them reached by no token%s; %" PRIu32
                   " dense matrices, %" PRIu32 " more by HQQ (lookup tables, or too many inputs)",
                   fit->n_expert, fit->n_unseen,
                   fit->has_wide_experts ? " (projections with too many inputs by HQQ)" : "", fit->n_dense,
                   fit->n_plain);
}

static void put_mixing(FILE *stream, const struct moec_compile_report *report)
{
    const struct moec_mixing_gain *mixing = &report->mixing;
    char codes[64] = "with projections that differ", name[40];
    if (mixing->is_known && moec_variant_is_uniform(mixing->single.alike))
        (void)snprintf(codes, sizeof codes, "in %s",
                       moec_codec_name(report->codecs[mixing->single.alike.codecs[0]], name));
    if (mixing->is_known)
        moec_html_fact(stream, "Mixing bitwidths by expert",
                       "%.1f %% %s than the smallest plan measured whose experts are all alike (%s): %" PRIu64
                       " bytes at a loss of %.3g %% on the search part, and %" PRIu64 " at %.3g %%",
                       100 * fabs(mixing->saving), mixing->saving >= 0 ? "less" : "more", codes,
                       mixing->mixed.n_bytes, 100 * mixing->mixed.loss, mixing->single.n_bytes,
                       100 * mixing->single.loss);
    if (report->uses_smallest)
        moec_html_fact(stream, "Smallest codes", "used up: another target finds no smaller plan");
}

static void put_result(FILE *stream, const struct moec_compile_page *page)
{
    const struct moec_compile_report *report = page->report;
    char target[160];
    moec_html_section_open(stream, "result", "Result");
    if (page->failure != NULL) {
        (void)fputs("<p class=\"lead\"><strong>No bundle:</strong> ", stream);
        moec_html_text(stream, moec_html_name(page->failure).text);
        (void)fputs("</p>\n", stream);
    }
    if (report->warning[0] != '\0') {
        (void)fputs("<p class=\"lead\"><strong>Warning:</strong> ", stream);
        moec_html_text(stream, report->warning);
        (void)fputs("</p>\n", stream);
    }
    (void)fputs("<dl>\n", stream);
    moec_html_fact(stream, "Target", "%s", target_words(page->options, target));
    if (report->shares.n > 0) {
        moec_html_fact(stream, report->is_written ? "Bundle" : "Plan",
                       "%" PRIu64 " bytes, from %" PRIu64 " bytes of weights", report->n_bytes,
                       report->source_bytes);
        moec_html_fact(stream, "Written", "%s", report->is_written ? "yes" : "no");
    }
    put_mixing(stream, page->report);
    put_fit(stream, &page->report->fit);
    moec_html_fact(stream, "Search", "policy %s, %" PRIu32 " measurements",
                   moec_html_name(page->options->search.policy).text, report->n_evaluations);
    (void)fputs("</dl>\n", stream);
    put_promise(stream, page);
    moec_html_section_close(stream);
}

/* ---- size against loss ---- */

static enum moec_status put_chart(FILE *stream, struct moec_chart *chart, enum moec_status status,
                                  struct moec_error *err)
{
    if (status == MOEC_OK && chart->name[0] != '\0')
        status = moec_html_figure(stream, chart, all_points, err);
    moec_chart_release(chart);
    return status;
}

/* What the experts of a measured plan have. */
static void experts_cell(struct moec_html_table *table, const struct moec_trace_point *point,
                         const struct moec_codec *codecs)
{
    char name[40];
    if (!point->is_alike)
        moec_html_table_cell(table, "mixed");
    else if (!moec_variant_is_uniform(point->alike))
        moec_html_table_cell(table, "all alike, projections differ");
    else
        moec_html_table_cell(table, "all in %s", moec_codec_name(codecs[point->alike.codecs[0]], name));
}

/* Every measurement in its order. */
static void put_points(FILE *stream, const struct moec_search_trace *trace, const struct moec_codec *codecs)
{
    static const char *const columns[] = {"measurement", "part", "experts", "dense bits",      "bytes",
                                          "loss",        "from", "to",      "KL, nats a token"};
    static const char *const parts[MOEC_TRACE_N_PART] = {"search", "selection", "certificate"};
    (void)fputs("<details><summary>All measurements, in their order</summary>\n", stream);
    struct moec_html_table table =
        moec_html_table_begin(stream, "Measurements", columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < trace->n && i < MOST_POINTS; i++) {
        const struct moec_trace_point *point = &trace->points[i];
        moec_html_table_cell(&table, "%zu", i + 1);
        moec_html_table_cell(&table, "%s%s", parts[point->part], point->is_extra ? ", for comparison" : "");
        experts_cell(&table, point, codecs);
        if (point->dense_bits > 0)
            moec_html_table_cell(&table, "%" PRIu32, point->dense_bits);
        else
            moec_html_table_cell(&table, "of each matrix");
        moec_html_table_cell(&table, "%" PRIu64, point->n_bytes);
        loss_cell(&table, point->loss);
        loss_cell(&table, point->low);
        loss_cell(&table, point->high);
        moec_html_table_cell(&table, "%.5f", point->kl);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    if (trace->n > MOST_POINTS)
        (void)fprintf(stream, "<p>The first %d of %zu.</p>\n", MOST_POINTS, trace->n);
    (void)fputs("</details>\n", stream);
}

static enum moec_status put_curve(FILE *stream, const struct moec_compile_page *page, struct moec_error *err)
{
    moec_html_section_open(stream, "curve", "Size against loss");
    if (page->report->trace.n == 0)
        (void)fputs("<p>No loss was measured.</p>\n", stream);
    (void)fputs("<div class=\"figures\">\n", stream);
    for (int near = 0; near < 2; near++) {
        struct moec_chart chart = {.name = ""};
        MOEC_TRY(put_chart(stream, &chart, moec_compile_chart_curve(page, near == 1, &chart, err), err));
    }
    (void)fputs("</div>\n", stream);
    if (page->report->trace.n > 0)
        put_points(stream, &page->report->trace, page->report->codecs);
    moec_html_section_close(stream);
    return MOEC_OK;
}

/* ---- bytes ---- */

static void put_share_row(struct moec_html_table *table, const struct moec_bundle_share *share,
                          uint64_t total)
{
    moec_html_table_cell(table, "%s", share->name);
    moec_html_table_cell(table, "%s", share->codec);
    if (share->n_matrix > 0) {
        moec_html_table_cell(table, "%" PRIu64, share->n_matrix);
        moec_html_table_cell(table, "%" PRIu64, share->n_weight);
        moec_html_table_cell(table, "%.3f", 8 * (double)share->n_bytes / (double)share->n_weight);
    } else {
        for (int i = 0; i < 3; i++)
            moec_html_table_cell(table, "%s", "");
    }
    moec_html_table_cell(table, "%" PRIu64, share->n_bytes);
    moec_html_table_cell(table, "%.2f %%", 100 * (double)share->n_bytes / (double)total);
    moec_html_table_end_row(table);
}

static enum moec_status put_bytes(FILE *stream, const struct moec_compile_page *page, struct moec_error *err)
{
    static const char *const columns[] = {"what",          "codec", "matrices",   "weights",
                                          "bits a weight", "bytes", "of the file"};
    const struct moec_bundle_shares *shares = &page->report->shares;
    struct moec_chart chart = {.name = ""};
    struct moec_bundle_share all = {.name = "the whole file"};
    moec_html_section_open(stream, "bytes", "Where the bytes go");
    MOEC_TRY(put_chart(stream, &chart, moec_compile_chart_shares(page, &chart, err), err));
    if (shares->n == 0) {
        (void)fputs("<p>There is no plan.</p>\n", stream);
    } else {
        struct moec_html_table table =
            moec_html_table_begin(stream, "Bytes of the bundle", columns, sizeof columns / sizeof *columns);
        for (size_t i = 0; i < shares->n; i++) {
            if (shares->items[i].n_bytes > 0)
                put_share_row(&table, &shares->items[i], page->report->n_bytes);
            all.n_bytes += shares->items[i].n_bytes;
        }
        put_share_row(&table, &all, page->report->n_bytes);
        moec_html_table_close(&table);
        (void)fputs(
            "<p>Dense weights are stored compressed. The compressed bytes of matrices that are compressed "
            "together are divided among them in proportion to their uncompressed bytes.</p>\n",
            stream);
    }
    moec_html_section_close(stream);
    return MOEC_OK;
}

/* ---- bits ---- */

static enum moec_status put_bits(FILE *stream, const struct moec_compile_page *page, struct moec_error *err)
{
    moec_html_section_open(stream, "bits", "Bits of each expert");
    if (page->report->shares.n == 0)
        (void)fputs("<p>There is no plan.</p>\n", stream);
    for (int p = MOEC_COMPILE_ALL_PROJECTIONS; p < MOEC_PROJECTION_COUNT; p++) {
        struct moec_chart chart = {.name = ""};
        MOEC_TRY(put_chart(stream, &chart, moec_compile_chart_bits(page, p, &chart, err), err));
    }
    moec_html_section_close(stream);
    return MOEC_OK;
}

/* ---- certificate ---- */

/* Each plan as it was tested. */
static void put_sequence(FILE *stream, const struct moec_compile_report *report)
{
    static const char *const columns[] = {"plan",
                                          "bytes",
                                          "loss, search part",
                                          "at most, search part",
                                          "loss, certificate part",
                                          "at most, certificate part",
                                          "p",
                                          "result"};
    static const char *const results[] = {"not tested", "passed", "failed"};
    const struct moec_search_trace *trace = &report->trace;
    struct moec_html_table table =
        moec_html_table_begin(stream, "Tests of the certificate", columns, sizeof columns / sizeof *columns);
    for (uint32_t i = 0; i < trace->n_sequence; i++) {
        const struct moec_sequence_step *step = &trace->sequence[i];
        moec_html_table_cell(&table, "%" PRIu32, i + 1);
        moec_html_table_cell(&table, "%" PRIu64, step->n_bytes);
        loss_cell(&table, step->search_loss);
        loss_cell(&table, step->search_high);
        loss_cell(&table, step->loss);
        loss_cell(&table, step->high);
        moec_html_table_number(&table, "%.2g", step->p_value);
        const bool has_ended = step->result == MOEC_SEQUENCE_FAILED && isnan(step->high);
        moec_html_table_cell(&table, "%s%s", results[step->result],
                             has_ended            ? " on the first half of the windows"
                             : !step->is_chosen   ? ""
                             : report->is_written ? ", written"
                                                  : ", chosen");
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
}

static void put_certificate(FILE *stream, const struct moec_compile_page *page)
{
    const struct moec_search_trace *trace = &page->report->trace;
    moec_html_section_open(stream, "certificate", "Certificate");
    put_promise(stream, page);
    if (trace->n_sequence > 0) {
        (void)fputs(
            "<p>The plans and their order were fixed before the certificate part was read. They are tested "
            "from the first until one fails; the last that passed is written.</p>\n",
            stream);
        put_sequence(stream, page->report);
    }
    moec_html_section_close(stream);
}

/* ---- settings ---- */

static void put_trials(FILE *stream, const struct moec_compile_report *report)
{
    static const char *const columns[] = {"dense bits", "bytes", "loss", "at most", "measurements"};
    struct moec_html_table table =
        moec_html_table_begin(stream, "Bits of dense weights", columns, sizeof columns / sizeof *columns);
    for (uint32_t i = 0; i < report->n_dense_trial; i++) {
        const struct moec_dense_trial *trial = &report->dense_trials[i];
        moec_html_table_cell(&table, "%" PRIu32, trial->bits);
        if (trial->meets)
            moec_html_table_cell(&table, "%" PRIu64, trial->n_bytes);
        else
            moec_html_table_cell(&table, trial->is_measured ? "misses the target" : "never smaller");
        loss_cell(&table, trial->meets ? trial->loss : (double)NAN);
        loss_cell(&table, trial->meets ? trial->loss_high : (double)NAN);
        moec_html_table_cell(&table, "%" PRIu32, trial->n_evaluations);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
}

static void put_settings(FILE *stream, const struct moec_compile_page *page)
{
    const struct moec_compile_options *options = page->options;
    const struct moec_profile *profile = page->profile;
    char digest[2 * MOEC_SHA256_BYTES + 1];
    moec_html_section_open(stream, "settings", "Settings, data, model and versions");
    (void)fputs("<dl>\n", stream);
    moec_html_fact(stream, "Options", "%s", moec_html_name(options->source.options).text);
    moec_html_fact(stream, "Confidence",
                   options->target.confidence > 0 ? "%.4g" : "none: the measured loss itself",
                   options->target.confidence);
    moec_html_fact(stream, "Seed", "%" PRIu64, options->search.seed);
    moec_sha256_hex(page->model_digest, digest);
    moec_html_fact(stream, "Model",
                   "%s: %s, %" PRIu32 " MoE layers x %" PRIu32 " experts, top-%" PRIu32 ", SHA-256 %s",
                   moec_html_name(options->source.model).text, moec_html_name(page->config->family).text,
                   moec_config_moe_count(page->config), page->config->n_expert, page->config->top_k, digest);
    if (profile != NULL) {
        moec_sha256_hex(profile->data_digest, digest);
        moec_html_fact(stream, "Data of the profile",
                       "%s, task %s: %" PRIu32 " of %" PRIu64 " windows of up to %" PRIu32
                       " tokens, seed %" PRIu64 ", SHA-256 %s",
                       moec_html_name(profile->data_name).text, moec_html_name(profile->task).text,
                       profile->n_window, profile->n_window_available, profile->seq_len_tokens, profile->seed,
                       digest);
        moec_html_fact(stream, "Losses measured in", "%s arithmetic",
                       moec_arithmetic_certificate_name(options->by.arithmetic));
        moec_html_fact(stream, "Profile made by", "moec %s, %s arithmetic",
                       moec_html_name(profile->moec_version).text, moec_html_name(profile->arithmetic).text);
    } else {
        moec_html_fact(stream, "Data", "none");
    }
    moec_html_fact(stream, "Compiled by", "moec %s", MOEC_VERSION);
    (void)fputs("</dl>\n", stream);
    if (page->report->n_dense_trial > 0)
        put_trials(stream, page->report);
    moec_html_section_close(stream);
}

/* ---- page ---- */

static enum moec_status put_page(FILE *stream, const struct moec_compile_page *page, struct moec_error *err)
{
    char title[320];
    (void)snprintf(title, sizeof title, "Compile of %.256s",
                   moec_html_name(page->options->source.model).text);
    moec_html_begin(stream, title);
    put_answer(stream, page);
    (void)fputs("<nav aria-label=\"Contents\"><ul>"
                "<li><a href=\"#result\">Result</a></li>"
                "<li><a href=\"#curve\">Size against loss</a></li>"
                "<li><a href=\"#bytes\">Where the bytes go</a></li>"
                "<li><a href=\"#bits\">Bits of each expert</a></li>"
                "<li><a href=\"#certificate\">Certificate</a></li>"
                "<li><a href=\"#settings\">Settings</a></li>"
                "</ul></nav>\n",
                stream);
    put_result(stream, page);
    MOEC_TRY(put_curve(stream, page, err));
    MOEC_TRY(put_bytes(stream, page, err));
    MOEC_TRY(put_bits(stream, page, err));
    put_certificate(stream, page);
    put_settings(stream, page);
    moec_html_end(stream);
    return MOEC_OK;
}

enum moec_status moec_compile_page_write(const struct moec_compile_page *page, const char *path,
                                         struct moec_error *err)
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
