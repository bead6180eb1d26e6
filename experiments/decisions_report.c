/* Writes the report about decisions per token from what experiments/decisions.sh measured:
 * FOLDER/report.html, which needs nothing beside itself, and its tables as FOLDER/NAME.tsv. What was not
 * measured does not appear.
 */
#include "experiments/decisions_blocks.h"
#include "experiments/decisions_charts.h"
#include "experiments/decisions_claims.h"
#include "experiments/decisions_fronts.h"
#include "experiments/decisions_systems.h"
#include "experiments/decisions_time_page.h"
#include "experiments/page.h"
#include "profiler/report/report_html.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SAMPLE 8

struct report {
    struct experiment_page page;
    uint32_t n_sample;
    struct decisions_sample samples[MAX_SAMPLE];
};

/* ---- cache-conditional experts ---- */

static enum moec_status put_fronts(const struct experiment_page *page, const struct decisions_sample *sample,
                                   uint32_t n_slots, struct moec_error *err)
{
    static const char *const headings[] = {"routing", "best kept",       "misses, %",
                                           "loss, %", "its interval, %", "Belady's misses, %"};
    struct experiment_table table;
    char name[64], what[32];
    if (decisions_plain(&sample->routes, n_slots) == NULL)
        return MOEC_OK;
    (void)snprintf(what, sizeof what, "routes_%u", n_slots);
    MOEC_TRY(
        experiment_page_begin(page, &table, name, what, headings, sizeof headings / sizeof *headings, err));
    for (int m = DECISIONS_TOP_K; m < DECISIONS_N_METHOD; m++) {
        struct decisions_front front;
        decisions_front_make(&sample->routes, (enum decisions_method)m, n_slots, DECISIONS_ANY_KEEP, &front);
        for (uint32_t i = front.n; i-- > 0;) {
            const struct decisions_point *point = front.points[i];
            if (point->method != (enum decisions_method)m)
                continue;
            experiment_table_cell(&table, "%s", m == DECISIONS_TOP_K ? "the router's own" : point->setting);
            experiment_table_cell(&table, "%u", point->keep_top);
            experiment_table_number(&table, decisions_miss_rate(point), 100, 1);
            experiment_table_number(&table, point->loss, 100, 2);
            experiment_table_interval(&table, point->low, point->high);
            experiment_table_number(&table, decisions_belady_rate(point), 100, 1);
            experiment_table_end_row(&table);
        }
    }
    return experiment_page_end(page, &table, err);
}

/* Table 2 with the paper's rows below. */
static enum moec_status put_stays(const struct experiment_page *page, const struct decisions_sample *sample,
                                  struct moec_error *err)
{
    static const char *const headings[] = {"model",        "cache",         "routing",
                                           "stay, tokens", "its deviation", "misses, %"};
    static const char *const paper[][6] = {
        {"Qwen1.5-MoE", "30 / 60", "original", "26", "31", "35"},
        {"Qwen1.5-MoE", "30 / 60", "cache-prior:0.5, J = 2", "58", "67", "16"},
        {"DeepSeek-V2", "32 / 64", "original", "19", "17", "28"},
        {"DeepSeek-V2", "32 / 64", "cache-prior:0.5, J = 2", "76", "90", "7"},
        {"Phi-3.5-MoE", "8 / 16", "original", "22", "31", "22"},
        {"Phi-3.5-MoE", "8 / 16", "cache-prior:0.5, J = 1", "55", "94", "9"},
        {"Mixtral-8x7B", "4 / 8", "original", "5", "4", "40"},
        {"Mixtral-8x7B", "4 / 8", "cache-prior:0.5, J = 1", "10", "10", "21"}};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "stays", headings, sizeof headings / sizeof *headings,
                                   err));
    for (uint32_t i = 0; i < sample->routes.n; i++) {
        const struct decisions_point *point = &sample->routes.points[i];
        if ((point->keep_top > 0 && point->keep_top != decisions_usual_keep(sample)) ||
            (point->method != DECISIONS_TOP_K && point->method != DECISIONS_PRIOR) ||
            (point->n_slots != sample->n_expert / 2 && point->n_slots != sample->n_expert / 4))
            continue;
        experiment_table_cell(&table, "%s", sample->name);
        experiment_table_cell(&table, "%u / %u", point->n_slots, sample->n_expert);
        if (point->method == DECISIONS_TOP_K)
            experiment_table_cell(&table, "original");
        else
            experiment_table_cell(&table, "%s, J = %u", point->setting, point->keep_top);
        experiment_table_number(&table, point->stay_tokens, 1, 1);
        experiment_table_number(&table, point->stay_deviation, 1, 1);
        experiment_table_number(&table, decisions_miss_rate(point), 100, 1);
        experiment_table_end_row(&table);
    }
    for (size_t r = 0; r < sizeof paper / sizeof *paper; r++) {
        for (size_t c = 0; c < 6; c++)
            experiment_table_cell(&table, "%s%s", paper[r][c], c == 0 ? ", the paper's" : "");
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

static enum moec_status put_starts(const struct experiment_page *page, const struct decisions_sample *sample,
                                   struct moec_error *err)
{
    static const char *const headings[] = {"routing", "the cache at first", "misses, %", "loss, %",
                                           "its interval, %"};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "starts", headings, sizeof headings / sizeof *headings,
                                   err));
    for (uint32_t i = 0; i < sample->starts.n; i++) {
        const struct decisions_point *point = &sample->starts.points[i];
        experiment_table_cell(&table, "%s",
                              point->method == DECISIONS_TOP_K ? "the router's own" : point->setting);
        experiment_table_cell(&table, "%s", point->starts_frequent ? "by frequency" : "empty");
        experiment_table_number(&table, decisions_miss_rate(point), 100, 1);
        experiment_table_number(&table, point->loss, 100, 2);
        experiment_table_interval(&table, point->low, point->high);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

static enum moec_status put_ranges(const struct experiment_page *page, const struct decisions_sample *sample,
                                   struct moec_error *err)
{
    static const char *const headings[] = {"routing", "misses, %", "loss, %", "its interval, %"};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "ranges", headings, sizeof headings / sizeof *headings,
                                   err));
    for (uint32_t i = 0; i < sample->ranges.n; i++) {
        const struct decisions_point *point = &sample->ranges.points[i];
        experiment_table_cell(&table, "%s", point->setting);
        experiment_table_number(&table, decisions_miss_rate(point), 100, 1);
        experiment_table_number(&table, point->loss, 100, 2);
        experiment_table_interval(&table, point->low, point->high);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

/* ---- HOBBIT ---- */

static enum moec_status put_pair(const struct experiment_page *page, const struct decisions_pair *pair,
                                 struct moec_error *err)
{
    static const char *const headings[] = {"decisions",   "slots",      "low slots",
                                           "low, %",      "skipped, %", "misses, %",
                                           "KiB a token", "loss, %",    "its interval, %"};
    struct experiment_table table;
    char name[64], what[32];
    (void)snprintf(what, sizeof what, "pair_%u_%u", pair->bits, pair->low_bits);
    MOEC_TRY(
        experiment_page_begin(page, &table, name, what, headings, sizeof headings / sizeof *headings, err));
    for (uint32_t i = 0; i < pair->group.n; i++) {
        const struct decisions_point *point = &pair->group.points[i];
        experiment_table_cell(&table, "%s",
                              point->setting[0] != '\0'                ? point->setting
                              : strncmp(point->name, "equal-", 6) == 0 ? "none, in equal memory"
                                                                       : "none");
        experiment_table_cell(&table, "%u", point->n_slots);
        experiment_table_cell(&table, "%u", point->n_low_slots);
        experiment_table_number(&table, point->n_low / point->n_chosen, 100, 1);
        experiment_table_number(&table, point->n_skipped / point->n_chosen, 100, 1);
        experiment_table_number(&table, decisions_miss_rate(point), 100, 1);
        experiment_table_number(&table, point->token_bytes, 1.0 / 1024, 1);
        experiment_table_number(&table, point->loss, 100, 2);
        experiment_table_interval(&table, point->low, point->high);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

/* ---- certificates ---- */

static enum moec_status put_tunings(const struct experiment_page *page, const struct decisions_sample *sample,
                                    struct moec_error *err)
{
    static const char *const headings[] = {"tuning",
                                           "settings found",
                                           "certificate, %",
                                           "its interval, %",
                                           "on the test text, %",
                                           "its interval, %",
                                           "within both intervals",
                                           "misses, %",
                                           "without, %",
                                           "KiB a token",
                                           "without"};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "tunings", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t t = 0; t < sample->n_tuning; t++) {
        const struct decisions_tuning *tuning = &sample->tunings[t];
        experiment_table_cell(&table, "%s", tuning->name);
        experiment_table_cell(&table, "%s", tuning->setting);
        experiment_table_number(&table, tuning->loss, 100, 2);
        experiment_table_interval(&table, tuning->low, tuning->high);
        experiment_table_number(&table, tuning->test.loss, 100, 2);
        experiment_table_interval(&table, tuning->test.low, tuning->test.high);
        experiment_table_cell(&table, "%s",
                              !isfinite(tuning->test.loss)     ? "–"
                              : decisions_tuning_holds(tuning) ? "yes"
                                                               : "no");
        experiment_table_number(&table, tuning->missed_share, 100, 1);
        experiment_table_number(&table, tuning->plain_missed_share, 100, 1);
        experiment_table_number(&table, tuning->token_bytes, 1.0 / 1024, 1);
        experiment_table_number(&table, tuning->plain_bytes, 1.0 / 1024, 1);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

/* ---- decoding ---- */

static bool was_timed(const struct decisions_sample *sample)
{
    bool was = false;
    for (uint32_t d = 0; d < DECISIONS_N_DECODING; d++)
        was = was || isfinite(sample->decodings[d].sides[DECISIONS_STATIC].tpot_ms);
    return was;
}

static enum moec_status put_decoding(const struct experiment_page *page,
                                     const struct decisions_sample *sample, struct moec_error *err)
{
    static const char *const headings[] = {
        "storage, MB/s", "memory, % of the experts", "decisions", "preloads", "ms a token", "hits, %",
        "KiB a token"};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "decoding", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t d = 0; d < DECISIONS_N_DECODING; d++)
        for (int side = 0; side < DECISIONS_N_SIDE; side++) {
            const struct decisions_decoding *decoding = &sample->decodings[d];
            if (!isfinite(decoding->sides[side].tpot_ms))
                continue;
            experiment_table_cell(&table, "%u", decoding->rate);
            experiment_table_cell(&table, "%u", decoding->share);
            experiment_table_cell(&table, "%s",
                                  side == DECISIONS_STATIC ? "none, bits alone"
                                                           : decisions_side_name((enum decisions_side)side));
            experiment_table_cell(&table, "%s", decoding->sides[side].predictor);
            experiment_table_number(&table, decoding->sides[side].tpot_ms, 1, 3);
            experiment_table_number(&table, decoding->sides[side].hit_rate, 100, 1);
            experiment_table_number(&table, decoding->sides[side].token_bytes, 1.0 / 1024, 1);
            experiment_table_end_row(&table);
        }
    return experiment_page_end(page, &table, err);
}

/* ---- parts ---- */

static enum moec_status put_routes(const struct experiment_page *page, const struct decisions_sample *sample,
                                   struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    const uint32_t sizes[] = {sample->n_expert / 2, sample->n_expert / 4};
    enum moec_status status = MOEC_OK;
    experiment_page_heading(page, "Routing that prefers the cache: loss and misses");
    experiment_page_paragraph(page,
                              "The checkpoint against itself. Each method's settings that no other one of it "
                              "beats, by falling misses; Belady's misses are those of the very experts that "
                              "each setting took.");
    for (size_t i = 0; i < 2; i++) {
        MOEC_TRY_OUT(put_fronts(page, sample, sizes[i], err));
        MOEC_TRY_OUT(decisions_chart_fronts(sample, sizes[i], &chart, err));
        MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
        moec_chart_release(&chart);
    }
    MOEC_TRY_OUT(decisions_chart_sizes(sample, &chart, err));
    MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
    experiment_page_heading(page, "Table 2: how long experts stay in the cache");
    MOEC_TRY_OUT(put_stays(page, sample, err));
out:
    moec_chart_release(&chart);
    return status;
}

static enum moec_status put_pairs(const struct experiment_page *page, const struct decisions_sample *sample,
                                  struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    enum moec_status status = MOEC_OK;
    for (uint32_t p = 0; p < sample->n_pair; p++) {
        const struct decisions_pair *pair = &sample->pairs[p];
        char text[128];
        if (pair->group.n == 0)
            continue;
        (void)snprintf(text, sizeof text, "Precision at a miss: INT%u with low copies of INT%u", pair->bits,
                       pair->low_bits);
        experiment_page_heading(page, text);
        MOEC_TRY_OUT(put_pair(page, pair, err));
        for (uint32_t part = 2; part <= 4; part += 2) {
            MOEC_TRY_OUT(decisions_chart_bytes(sample, pair, sample->n_expert / part, &chart, err));
            MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
            moec_chart_release(&chart);
        }
        MOEC_TRY_OUT(decisions_chart_replaced(sample, pair, &chart, err));
        MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
        moec_chart_release(&chart);
    }
out:
    moec_chart_release(&chart);
    return status;
}

static void put_title(const struct decisions_sample *sample, char title[static 160])
{
    (void)snprintf(title, 160, "%s: %s, %u of %u experts a token in %u layers", sample->name, sample->family,
                   sample->top_k, sample->n_expert, sample->n_layer);
}

/* How many sentences of each paper agree: the table says which. */
static void put_agreement(const struct experiment_page *page, const struct experiment_claims *findings)
{
    uint32_t n[DECISIONS_N_PAPER] = {0}, n_agree[DECISIONS_N_PAPER] = {0};
    for (uint32_t c = 0; c < findings->n; c++) {
        const enum experiment_verdict verdict = findings->items[c].verdict;
        const enum decisions_paper paper = decisions_paper_of(&findings->items[c]);
        n[paper] += verdict == EXPERIMENT_YES || verdict == EXPERIMENT_NO;
        n_agree[paper] += verdict == EXPERIMENT_YES;
    }
    (void)fputs(
        "<p>Of the papers' sentences that say by how much, or which is better, these agree with what was "
        "measured here:",
        page->stream);
    for (int paper = 0; paper < DECISIONS_N_PAPER; paper++)
        moec_html_format(page->stream, "%s %u of %u of %s", paper > 0 ? "," : "", n_agree[paper], n[paper],
                         decisions_papers[paper]);
    (void)fputs(". Figures without a name are those of the first.</p>\n", page->stream);
}

static enum moec_status put_sample(const struct experiment_page *page, const struct decisions_sample *sample,
                                   struct moec_error *err)
{
    struct experiment_claims goals, findings;
    char title[160];
    put_title(sample, title);
    decisions_goals(sample, &goals);
    decisions_findings(sample, &findings);
    (void)fprintf(page->stream, "<section id=\"%s\">\n<h2>", sample->name);
    moec_html_text(page->stream, title);
    (void)fputs("</h2>\n", page->stream);
    put_agreement(page, &findings);
    experiment_page_heading(page, "Figures to reach");
    MOEC_TRY(experiment_page_claims(page, &goals, true, err));
    experiment_page_heading(page, "What the papers say, and what is seen here");
    MOEC_TRY(experiment_page_claims(page, &findings, false, err));
    if (sample->routes.n > 0)
        MOEC_TRY(put_routes(page, sample, err));
    if (sample->starts.n > 0) {
        experiment_page_heading(page, "Fig. 18: what the cache holds at first");
        MOEC_TRY(put_starts(page, sample, err));
    }
    if (sample->ranges.n > 0) {
        experiment_page_heading(page, "Fig. 15: the range that a prior is a share of");
        MOEC_TRY(put_ranges(page, sample, err));
    }
    MOEC_TRY(decisions_page_cache(page, sample, err));
    MOEC_TRY(put_pairs(page, sample, err));
    MOEC_TRY(decisions_page_hobbit(page, sample, err));
    MOEC_TRY(decisions_page_systems(page, &sample->systems, err));
    MOEC_TRY(decisions_page_blocks(page, sample, err));
    MOEC_TRY(decisions_page_fate(page, sample, err));
    MOEC_TRY(decisions_page_tasks(page, &sample->tasks, err));
    if (sample->n_tuning > 0) {
        experiment_page_heading(page, "Settings with a certificate");
        experiment_page_paragraph(
            page, "What moec tune proved on one part of the calibration text, and what the same "
                  "bundle and settings lose on the test text, which nothing had seen. Misses "
                  "and bytes are the certificate's, with the settings and without.");
        MOEC_TRY(put_tunings(page, sample, err));
    }
    if (was_timed(sample)) {
        experiment_page_heading(page, "Decoding on slow storage");
        experiment_page_paragraph(
            page, "Bundles of the same certified loss in the same memory, LRU, each with the "
                  "preloads that are fastest for it: all of the loss spent on bits, or half of "
                  "it left to a route. Precisions start from experts of 4 bits with copies of 2.");
        MOEC_TRY(put_decoding(page, sample, err));
    }
    (void)fputs("</section>\n", page->stream);
    return MOEC_OK;
}

static enum moec_status put_page(const struct experiment_page *page, void *context, struct moec_error *err)
{
    const struct report *report = context;
    struct experiment_page part = *page;
    moec_html_begin(page->stream, "Decisions per token, measured");
    experiment_page_paragraph(
        page,
        "Cache-conditional experts (Skliar et al., arXiv:2412.00099), HOBBIT (Tang et al., arXiv:2411.01433) "
        "and Fate (Fang et al., arXiv:2502.12224) on small models, with moec alone: losses of perplexity on "
        "text that nothing was tuned on, with 90 % intervals, and what misses a logical cache of each layer, "
        "LRU, empty at the beginning of each window. The papers' figures are of models of 14 "
        "to 47 billion parameters.");
    for (uint32_t s = 0; s < report->n_sample; s++) {
        struct experiment_claims goals;
        char title[160];
        put_title(&report->samples[s], title);
        decisions_goals(&report->samples[s], &goals);
        part.sample = report->samples[s].name;
        experiment_page_score(&part, &goals, title);
    }
    for (uint32_t s = 0; s < report->n_sample; s++) {
        part.sample = report->samples[s].name;
        MOEC_TRY(put_sample(&part, &report->samples[s], err));
    }
    moec_html_end(page->stream);
    return MOEC_OK;
}

/* ---- folders ---- */

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static bool has_model(const char *folder, const char *name)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s/model.json", folder, name);
    FILE *file = fopen(path, "rb");
    if (file != NULL)
        (void)fclose(file);
    return file != NULL;
}

/* Every folder in the experiment's that has a model.json, in the order of their names. */
static enum moec_status read_samples(struct report *report, struct moec_error *err)
{
    struct dirent **entries = NULL;
    const char *folder = report->page.folder;
    const int n = scandir(folder, &entries, is_visible, alphasort);
    enum moec_status status = MOEC_OK;
    if (n < 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot list '%s': %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (status == MOEC_OK && report->n_sample < MAX_SAMPLE && has_model(folder, name))
            status = decisions_read(folder, name, &report->samples[report->n_sample++], err);
        free(entries[i]);
    }
    free(entries);
    if (status == MOEC_OK && report->n_sample == 0)
        return moec_fail(err, MOEC_ERR_NOT_FOUND, "'%s' has no results of experiments/decisions.sh", folder);
    return status;
}

int main(int argc, char **argv)
{
    struct moec_error err = {0};
    if (argc != 2) {
        (void)fputs("usage: decisions_report FOLDER, where experiments/decisions.sh measured\n", stderr);
        return 2;
    }
    struct report *report = calloc(1, sizeof *report);
    if (report == NULL)
        return 1;
    report->page = (struct experiment_page){.folder = argv[1], .hides_unmeasured = true};
    enum moec_status status = read_samples(report, &err);
    if (status == MOEC_OK)
        status = experiment_page_write(&report->page, put_page, report, &err);
    if (status != MOEC_OK)
        (void)fprintf(stderr, "decisions_report: %s\n", err.message);
    for (uint32_t s = 0; s < report->n_sample; s++)
        decisions_release(&report->samples[s]);
    free(report);
    return status == MOEC_OK ? 0 : 1;
}
