/* The first heatmap of sensitivities stands at the top and not in its section. Both places have to find the
 * same one. A study counts as drawn where a figure names it, or where a figure of its group shows its
 * interval. Studies that are not drawn get tables. The page is written into memory and appears whole. */
#include "profiler/report/report.h"

#include "profiler/evaluate/metrics.h"
#include "profiler/profile/codes_words.h"
#include "profiler/profile/study_table.h"
#include "profiler/profile/verdict.h"
#include "profiler/report/heatmap.h"
#include "profiler/report/html_table.h"
#include "profiler/report/report_html.h"
#include "profiler/routing/coverage.h"
#include "profiler/routing/routing_summary.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STUDY_ROWS 256
#define WHERE_ALL       "--plots writes all of them as CSV"

/* What the parts of a page share. */
struct page {
    FILE *stream;
    const struct moec_profile *profile;
    const struct moec_figures *figures;
    struct moec_heatmap_words words;
    char family[64], data[256];
};

static void put(const struct page *page, const char *html)
{
    (void)fputs(html, page->stream);
}

/* ---- head ---- */

static void put_head(const struct page *page)
{
    char title[sizeof page->family + sizeof page->data + 32];
    (void)snprintf(title, sizeof title, "Profile of %s on %s", page->family, page->data);
    moec_html_begin(page->stream, title);
}

static void put_contents(const struct page *page)
{
    put(page, "<nav aria-label=\"Contents\"><ul>"
              "<li><a href=\"#verdict\">Verdict</a></li>"
              "<li><a href=\"#measured\">What was measured</a></li>"
              "<li><a href=\"#coverage\">Coverage</a></li>"
              "<li><a href=\"#sensitivity\">Sensitivity</a></li>"
              "<li><a href=\"#routing\">Routing</a></li>"
              "<li><a href=\"#weights\">Weights</a></li>"
              "<li><a href=\"#cost\">Cost and provenance</a></li>"
              "</ul></nav>\n");
}

/* ---- what was measured ---- */

static enum moec_status loss_of(const struct moec_profile *profile, const struct moec_measure *measure,
                                struct moec_loss *loss, struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    const struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
    return moec_loss_measure(&windows,
                             &(struct moec_paired_nll){profile->reference.nll, measure->nll, measure->kl},
                             &options, loss, err);
}

static void put_loss_row(struct moec_html_table *table, const char *name, const struct moec_loss *loss)
{
    moec_html_table_cell(table, "%s", name);
    moec_html_table_cell(table, "%.4f", loss->compiled);
    moec_html_table_cell(table, "%.3f %%", 100 * loss->loss);
    moec_html_table_cell(table, "%.3f to %.3f %%", 100 * loss->low, 100 * loss->high);
    moec_html_table_cell(table, "%.5f", loss->mean_kl);
    moec_html_table_end_row(table);
}

static enum moec_status put_losses(const struct page *page, struct moec_error *err)
{
    const struct moec_profile *profile = page->profile;
    const char *const heads[] = {"experts", profile->metric, "loss", "interval, 95 % each side",
                                 "KL, nats a token"};
    struct moec_html_table table = {.stream = page->stream, .label = "Losses of whole models"};
    struct moec_loss loss;
    char name[64], bits[16];
    moec_html_table_open(&table);
    moec_html_table_row(&table, heads, sizeof heads / sizeof *heads);
    MOEC_TRY(loss_of(profile, &profile->baseline, &loss, err));
    struct moec_loss original = {.compiled = loss.reference};
    put_loss_row(&table, "original", &original);
    moec_heatmap_bits_name(profile->baseline_bits, bits);
    (void)snprintf(name, sizeof name, "%s (baseline)", bits);
    put_loss_row(&table, name, &loss);
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        if (profile->uniform_bits[u] == profile->baseline_bits)
            continue;
        MOEC_TRY(loss_of(profile, &profile->uniform[u], &loss, err));
        moec_heatmap_bits_name(profile->uniform_bits[u], bits);
        put_loss_row(&table, bits, &loss);
    }
    moec_html_table_close(&table);
    return MOEC_OK;
}

static enum moec_status put_measured(const struct page *page, struct moec_error *err)
{
    const struct moec_profile *profile = page->profile;
    uint64_t n_scored = 0;
    char list[MOEC_PROFILE_MAX_BITS * 8] = "", bits[16], task[sizeof profile->task];
    moec_plot_clean_text(task, sizeof task, profile->task);
    for (uint32_t w = 0; w < profile->n_window; w++)
        n_scored += profile->window_scored[w];
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        moec_heatmap_bits_name(profile->bits[b], bits);
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%.6s", b > 0 ? ", " : "", bits);
    }
    moec_heatmap_bits_name(profile->baseline_bits, bits);
    moec_html_section_open(page->stream, "measured", "What was measured");
    put(page, "<dl>\n");
    moec_html_fact(page->stream, "Model", "%s", page->words.model);
    moec_html_fact(page->stream, "Data",
                   "%s, task %s: %" PRIu32 " of %" PRIu64 " windows of up to %" PRIu32 " tokens, %" PRIu64
                   " tokens scored, seed %" PRIu64,
                   page->data, task, profile->n_window, profile->n_window_available, profile->seq_len_tokens,
                   n_scored, profile->seed);
    moec_html_fact(page->stream, "Parts",
                   "%" PRIu32 " windows search, %" PRIu32 " select, %" PRIu32
                   " certify%s; single experts on the first %" PRIu32,
                   moec_profile_part_count(profile, MOEC_PART_SEARCH),
                   moec_profile_part_count(profile, MOEC_PART_SELECT),
                   moec_profile_part_count(profile, MOEC_PART_CERTIFICATE),
                   profile->n_window < profile->n_drawn ? " (not measured)" : "",
                   profile->n_sensitivity_window);
    if (profile->n_bits > 0)
        moec_html_fact(page->stream, "Experts", "each alone at %s, the others at %s", list, bits);
    moec_html_fact(page->stream, "Sensitivities", "%s",
                   profile->sensitivity == MOEC_SENSITIVITY_NONE ? "not measured"
                   : profile->sensitivity == MOEC_SENSITIVITY_FAST
                       ? "estimated from local output errors, scaled by a few exact measurements"
                       : "measured exactly: the whole model with that one expert changed");
    moec_html_fact(page->stream, "Loss", "%s", page->words.measure);
    put(page, "</dl>\n");
    MOEC_TRY(put_losses(page, err));
    moec_html_section_close(page->stream);
    return MOEC_OK;
}

/* ---- words ---- */

/* Each paragraph opens with what it is about, up to a colon: that stands out, and is left out where the
 * heading of the section says it. */
static void put_paragraphs(const struct page *page, const char *heading,
                           const struct moec_paragraphs *paragraphs)
{
    for (uint32_t i = 0; i < paragraphs->n; i++) {
        const char *text = paragraphs->items[i], *colon = strstr(text, ": ");
        char topic[48] = "", first[2] = "";
        if (colon != NULL && (size_t)(colon - text) < sizeof topic)
            (void)snprintf(topic, sizeof topic, "%.*s", (int)(colon - text), text);
        put(page, i == 0 ? "<p class=\"lead\">" : "<p>");
        if (colon != NULL && strcmp(topic, heading) == 0) {
            text = colon + 2;
            first[0] = (char)toupper((uint8_t)*text);
            moec_html_text(page->stream, first);
            text += *text != '\0';
        } else if (topic[0] != '\0') {
            put(page, "<strong>");
            moec_html_text(page->stream, topic);
            put(page, "</strong>");
            text = colon;
        }
        moec_html_text(page->stream, text);
        put(page, "</p>\n");
    }
}

/* ---- the verdict in tables ---- */

/* What compile's codes need, and what mixing them is predicted to save. */
static void put_singles(const struct page *page, const struct moec_verdict *verdict)
{
    static const char *const heads[] = {"allowed loss", "all experts in", "their size",
                                        "lose",         "at most",        "mixing saves, predicted"};
    struct moec_html_table table = {.stream = page->stream, .label = "Codes that compile takes"};
    moec_html_table_open(&table);
    moec_html_table_row(&table, heads, sizeof heads / sizeof *heads);
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        const struct moec_verdict_single *single = &verdict->singles[t];
        moec_html_table_cell(&table, "%.0f %%", 100 * verdict->targets[t].target);
        moec_html_table_cell(&table, "%s", single->bits > 0 ? single->codes : "\xe2\x80\x93");
        moec_html_table_number(&table, "%.4g MB",
                               single->bits > 0 ? (double)single->n_bytes / 1e6 : (double)NAN);
        moec_html_table_number(&table, "%.2f %%", 100 * single->loss);
        moec_html_table_number(&table, "%.2f %%", 100 * single->loss_high);
        moec_html_table_number(&table, "%.1f %%", 100 * single->saving);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    put(page,
        "<p>Codes that compile uses by default, here without data: compile fits the codes to data and so "
        "loses less.</p>\n");
}

static void put_targets(const struct page *page, const struct moec_verdict *verdict)
{
    static const char *const heads[] = {"allowed loss", "best uniform", "its size", "mixed",
                                        "saves",        "loses",        "at most",  "regardless"};
    char codes[MOEC_CODES_WORDS];
    struct moec_html_table table = {.stream = page->stream, .label = "Sizes of all experts"};
    moec_html_table_open(&table);
    moec_html_table_row(&table, heads, sizeof heads / sizeof *heads);
    for (uint32_t t = 0; t < MOEC_VERDICT_TARGETS; t++) {
        const struct moec_verdict_target *target = &verdict->targets[t];
        moec_html_table_cell(&table, "%.0f %%", 100 * target->target);
        moec_html_table_number(&table, "%.0f bits",
                               target->uniform_bits > 0 ? target->uniform_bits : (double)NAN);
        moec_html_table_number(&table, "%.4g MB",
                               target->uniform_bytes > 0 ? (double)target->uniform_bytes / 1e6 : (double)NAN);
        moec_html_table_number(&table, "%.4g MB", (double)target->mixed_bytes / 1e6);
        moec_html_table_number(&table, "%.1f %%", target->is_met ? 100 * target->saving : (double)NAN);
        moec_html_table_number(&table, target->is_measured ? "%.2f %%" : "%.2f %%, predicted",
                               100 * target->loss);
        moec_html_table_number(&table, "%.2f %%", 100 * target->loss_high);
        moec_html_table_number(&table, "%.1f %%", 100 * target->blind_saving);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    put(page, "<p>In ");
    moec_html_text(page->stream, moec_codes_words(page->profile, 0, codes));
    put(page, ". Mixed: the smallest assignment found whose loss stays within the allowed "
              "one. Regardless: what bitwidths mixed without regard to sensitivity would save.</p>\n");
}

static void put_bits(const struct page *page, const struct moec_verdict *verdict)
{
    static const char *const heads[] = {"one expert at",  "10 %",        "median",    "90 %",       "largest",
                                        "most sensitive", "by layers",   "noise",     "lose",       "gain",
                                        "undecided",      "all at once", "summed up", "compounding"};
    struct moec_html_table table = {.stream = page->stream, .label = "Effects of single experts"};
    moec_html_table_open(&table);
    moec_html_table_row(&table, heads, sizeof heads / sizeof *heads);
    for (uint32_t b = 0; b < verdict->n_bits; b++) {
        const struct moec_verdict_bits *bits = &verdict->bits[b];
        const bool is_known = !verdict->is_estimated;
        moec_html_table_cell(&table, "%" PRIu32 " bit%s", bits->bits, bits->bits == 1 ? "" : "s");
        moec_html_table_number(&table, "%.2g", bits->low);
        moec_html_table_number(&table, "%.2g", bits->median);
        moec_html_table_number(&table, "%.2g", bits->high);
        moec_html_table_number(&table, "%.2g", bits->largest);
        moec_html_table_cell(&table, "layer %" PRIu32 ", expert %" PRIu32, bits->largest_layer,
                             bits->largest_expert);
        moec_html_table_number(&table, "%.0f %%", 100 * bits->layer_share);
        moec_html_table_number(&table, "\xc2\xb1%.2g %%", is_known ? 100 * bits->noise : (double)NAN);
        moec_html_table_number(&table, "%.0f", is_known ? bits->n_worse : (double)NAN);
        moec_html_table_number(&table, "%.0f", is_known ? bits->n_better : (double)NAN);
        moec_html_table_number(&table, "%.0f", is_known ? bits->n_unclear : (double)NAN);
        moec_html_table_number(&table, "%.3g", bits->joint_kl);
        moec_html_table_number(&table, "%.3g", bits->sum_kl);
        moec_html_table_number(&table, "%.2f", bits->additivity);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    put(page,
        "<p>Effects are KL divergences in nats a token that one expert adds to the baseline: their "
        "quantiles, the largest, and the share of their variance that is between layers. Noise is half of an "
        "expert's 90 % interval at the median; an expert loses or gains if its interval says so. All at "
        "once: every expert at these bits. Compounding: that effect over the sum of the single effects; "
        "near 1, single effects add up; above 1, they understate.</p>\n");
}

/* One sentence, and the picture that it is about. */
static enum moec_status put_answer(const struct page *page, struct moec_error *err)
{
    struct moec_verdict verdict;
    struct moec_paragraphs text = {0};
    MOEC_TRY(moec_verdict_make(page->profile, &verdict, err));
    moec_verdict_describe(page->profile, &verdict, &text);
    text.n = text.n > 1 ? 1 : text.n;
    put_paragraphs(page, "Verdict", &text);
    for (uint32_t f = 0; f < page->figures->n; f++) {
        const struct moec_figure *figure = &page->figures->items[f];
        if (figure->section == MOEC_FIGURE_SENSITIVITY && figure->n_chart > 0 &&
            figure->charts[0].kind == MOEC_CHART_CELLS)
            return moec_html_figure(page->stream, &figure->charts[0], WHERE_ALL, err);
    }
    return MOEC_OK;
}

static enum moec_status put_verdict(const struct page *page, struct moec_error *err)
{
    struct moec_verdict verdict;
    MOEC_TRY(moec_verdict_make(page->profile, &verdict, err));
    moec_html_section_open(page->stream, "verdict", "Verdict");
    if (verdict.has_codes)
        put_singles(page, &verdict);
    if (verdict.has_mixed)
        put_targets(page, &verdict);
    if (verdict.n_bits > 0)
        put_bits(page, &verdict);
    else
        put(page, "<p>Single experts were not measured, or the data reached none of them.</p>\n");
    moec_html_section_close(page->stream);
    return MOEC_OK;
}

static enum moec_status put_coverage(const struct page *page, struct moec_error *err)
{
    struct moec_coverage coverage;
    struct moec_paragraphs text = {0};
    MOEC_TRY(moec_coverage_make(page->profile, &coverage, err));
    moec_coverage_describe(page->profile, &coverage, &text);
    moec_html_section_open(page->stream, "coverage", "Coverage");
    put_paragraphs(page, "Coverage", &text);
    put(page, "<p><a href=\"#figure-tokens\">Tokens of every expert</a></p>\n");
    moec_html_section_close(page->stream);
    return MOEC_OK;
}

/* ---- figures ---- */

static void put_missing(const struct page *page, enum moec_figure_section section)
{
    bool is_open = false;
    for (uint32_t f = 0; f < page->figures->n; f++) {
        const struct moec_figure *figure = &page->figures->items[f];
        if (figure->section != section || figure->n_chart > 0)
            continue;
        if (!is_open)
            put(page, "<h3>Not measured</h3>\n<ul>\n");
        is_open = true;
        put(page, "<li>");
        moec_html_text(page->stream, figure->title);
        if (figure->option[0] != '\0') {
            put(page, ": <code>");
            moec_html_text(page->stream, figure->option);
            put(page, "</code>");
        }
        put(page, "</li>\n");
    }
    if (is_open)
        put(page, "</ul>\n");
}

static void put_routing_words(const struct page *page)
{
    struct moec_routing_summary summary;
    struct moec_paragraphs text = {0};
    if (!moec_routing_summary_make(page->profile, &summary))
        return;
    moec_routing_summary_describe(page->profile, &summary, &text);
    put_paragraphs(page, "Routing", &text);
}

static enum moec_status put_figures(const struct page *page, enum moec_figure_section section, const char *id,
                                    const char *title, struct moec_error *err)
{
    moec_html_section_open(page->stream, id, title);
    bool is_shown = false;
    if (section == MOEC_FIGURE_ROUTING)
        put_routing_words(page);
    put(page, "<div class=\"figures\">\n");
    for (uint32_t f = 0; f < page->figures->n; f++) {
        const struct moec_figure *figure = &page->figures->items[f];
        for (uint32_t c = 0; figure->section == section && c < figure->n_chart; c++) {
            const bool is_answer = !is_shown && section == MOEC_FIGURE_SENSITIVITY && c == 0 &&
                                   figure->charts[0].kind == MOEC_CHART_CELLS; /* it stands above */
            is_shown = is_shown || is_answer;
            if (!is_answer)
                MOEC_TRY(moec_html_figure(page->stream, &figure->charts[c], WHERE_ALL, err));
        }
    }
    put(page, "</div>\n");
    put_missing(page, section);
    moec_html_section_close(page->stream);
    return MOEC_OK;
}

/* ---- studies ---- */

/* Drawn as a figure, or an end of an interval that one shows. */
static bool is_drawn(const struct page *page, const struct moec_study *study)
{
    const char *slash = strchr(study->name, '/');
    size_t group = slash != NULL ? (size_t)(slash - study->name) : 0;
    for (uint32_t f = 0; f < page->figures->n; f++) {
        const struct moec_figure *figure = &page->figures->items[f];
        bool is_its = strcmp(figure->study, study->name) == 0;
        bool is_part = slash != NULL && strncmp(figure->study, study->name, group + 1) == 0 &&
                       strncmp(slash, "/loss_", 6) == 0;
        if (figure->n_chart > 0 && (is_its || is_part))
            return true;
    }
    return false;
}

static void put_study_table(const struct page *page, const struct moec_study *study)
{
    struct moec_html_table table = {.stream = page->stream, .has_plain_rows = true};
    const uint64_t n = moec_study_count(study), shown = n < MOST_STUDY_ROWS ? n : MOST_STUDY_ROWS;
    char text[MOEC_STUDY_LABEL];
    put(page, "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"");
    moec_html_text(page->stream, study->name);
    put(page, "\">\n");
    moec_html_table_open(&table);
    for (uint32_t a = 0; a < study->n_axis; a++)
        moec_html_table_cell(&table, "%s", study->axes[a].name);
    moec_html_table_cell(&table, "value");
    moec_html_table_end_row(&table);
    for (uint64_t i = 0; i < shown; i++) {
        uint64_t stride = n;
        for (uint32_t a = 0; a < study->n_axis; a++) {
            stride /= study->axes[a].n;
            moec_html_table_cell(&table, "%s",
                                 moec_study_axis_text(&study->axes[a], i / stride % study->axes[a].n, text));
        }
        moec_html_table_number(&table, "%.6g", study->values[i]);
        moec_html_table_end_row(&table);
    }
    moec_html_table_close(&table);
    if (shown < n)
        (void)fprintf(page->stream,
                      "<p>The first %d of %" PRIu64 " values; the profile holds all of them.</p>\n",
                      MOST_STUDY_ROWS, n);
    put(page, "</div>\n");
}

static void put_studies(const struct page *page)
{
    const struct moec_studies *studies = &page->profile->studies;
    bool is_open = false;
    for (uint32_t i = 0; i < studies->n; i++) {
        const struct moec_study *study = &studies->items[i];
        if (is_drawn(page, study))
            continue;
        if (!is_open)
            put(page, "<h3>Further measurements, without a figure</h3>\n");
        is_open = true;
        put(page, "<details><summary>");
        moec_html_format(page->stream, "%s: %s", study->name, study->description);
        if (study->units[0] != '\0')
            moec_html_format(page->stream, " [%s]", study->units);
        put(page, "</summary>\n");
        put_study_table(page, study);
        put(page, "</details>\n");
    }
}

static void put_cost(const struct page *page)
{
    const struct moec_profile *profile = page->profile;
    char digest[2 * MOEC_SHA256_BYTES + 1], text[sizeof profile->moec_version];
    moec_html_section_open(page->stream, "cost", "Cost and provenance");
    put(page, "<dl>\n");
    moec_html_fact(
        page->stream, "Cost",
        "%.1f passes over the windows; one evaluation for each expert and bitwidth would have been %.0f",
        profile->cost_passes, profile->naive_passes);
    moec_plot_clean_text(text, sizeof text, profile->moec_version);
    moec_html_fact(page->stream, "Made by", "moec %s", text);
    moec_sha256_hex(profile->model_digest, digest);
    moec_html_fact(page->stream, "SHA-256 of the model", "%s", digest);
    moec_sha256_hex(profile->data_digest, digest);
    moec_html_fact(page->stream, "SHA-256 of the data", "%s", digest);
    put(page, "</dl>\n");
    put_studies(page);
    moec_html_section_close(page->stream);
}

/* ---- page ---- */

static enum moec_status put_page(const struct page *page, struct moec_error *err)
{
    put_head(page);
    MOEC_TRY(put_answer(page, err));
    put_contents(page);
    MOEC_TRY(put_verdict(page, err));
    MOEC_TRY(put_measured(page, err));
    MOEC_TRY(put_coverage(page, err));
    MOEC_TRY(put_figures(page, MOEC_FIGURE_SENSITIVITY, "sensitivity", "Sensitivity", err));
    MOEC_TRY(put_figures(page, MOEC_FIGURE_ROUTING, "routing", "Routing", err));
    MOEC_TRY(put_figures(page, MOEC_FIGURE_WEIGHTS, "weights", "Weights", err));
    put_cost(page);
    moec_html_end(page->stream);
    return MOEC_OK;
}

enum moec_status moec_report_write(const struct moec_profile *profile, const struct moec_figures *figures,
                                   const char *path, struct moec_error *err)
{
    struct page page = {.profile = profile, .figures = figures};
    struct moec_heatmap map = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    map.bits = profile->baseline_bits; /* where single experts were not measured */
    if (profile->n_bits > 0)
        MOEC_TRY(moec_heatmap_make(profile, 0, &map, err));
    moec_heatmap_describe(profile, &map, &page.words);
    moec_heatmap_release(&map);
    moec_plot_clean_text(page.family, sizeof page.family, profile->config.family);
    moec_plot_clean_text(page.data, sizeof page.data, profile->data_name);
    page.stream = open_memstream(&text, &n_bytes);
    if (page.stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory while writing the report '%s'", path);
    enum moec_status status = put_page(&page, err);
    bool is_broken = ferror(page.stream) != 0;
    if (fclose(page.stream) != 0 || is_broken)
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory while writing the report '%s'", path);
    if (status == MOEC_OK)
        status = moec_html_write(path, text, n_bytes, err);
    free(text);
    return status;
}
