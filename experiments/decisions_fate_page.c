#include "experiments/decisions_routing.h"
#include "experiments/decisions_time_claims.h"
#include "experiments/decisions_time_page.h"
#include "profiler/report/figure_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(list)    (sizeof(list) / sizeof *(list))
#define HEADINGS(...) ((const char *const[]){__VA_ARGS__})

static void set_axis(struct moec_chart_axis *axis, const char *name, const char *label)
{
    (void)snprintf(axis->name, sizeof axis->name, "%s", name);
    (void)snprintf(axis->label, sizeof axis->label, "%s", label);
}

/* ---- popular experts ---- */

static const double parts[] = {0.1, 0.3, 0.5};

static enum moec_status put_popular(const struct experiment_page *page, const struct decisions_sample *sample,
                                    struct moec_error *err)
{
    const char *const *headings =
        HEADINGS("MoE layer", "experts that a prompt takes", "tokens of the 10 % least popular, %",
                 "of the 30 % least popular, %", "of the 50 % least popular, %");
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "popular", headings, 5, err));
    for (uint32_t layer = 0; layer < sample->profile.n_moe_layer; layer++) {
        double active = NAN;
        (void)decisions_unpopular_share(&sample->profile, layer, 0.5, &active);
        experiment_table_cell(&table, "%u", layer + 1);
        experiment_table_number(&table, active, 1, 1);
        for (size_t p = 0; p < N_OF(parts); p++)
            experiment_table_number(
                &table, decisions_unpopular_share(&sample->profile, layer, parts[p], NULL), 100, 1);
        experiment_table_end_row(&table);
    }
    for (size_t c = 0; c < 5; c++)
        experiment_table_cell(
            &table, "%s",
            HEADINGS("Qwen1.5-MoE, the paper's, layer 6", "55.9 of 60 on average", "–", "15", "–")[c]);
    experiment_table_end_row(&table);
    return experiment_page_end(page, &table, err);
}

static enum moec_status draw_popular(const struct decisions_sample *sample, struct moec_chart *chart,
                                     struct moec_error *err)
{
    const uint32_t n_layer = sample->profile.n_moe_layer;
    chart->kind = MOEC_CHART_LINES;
    moec_figure_name(chart, "%s_popular_experts", sample->name);
    moec_figure_title(chart, "Tokens of a prompt that its least popular experts cover");
    (void)snprintf(chart->source, sizeof chart->source, "Fate, Fig. 9");
    set_axis(&chart->x, "layer", "MoE layer");
    set_axis(&chart->y, "tokens_percent", "choices of a prompt's tokens, %");
    chart->x.is_whole = true;
    chart->y.has_zero = true;
    for (size_t p = 0; p < N_OF(parts); p++) {
        struct moec_chart_series *series = NULL;
        char name[MOEC_CHART_LABEL];
        (void)snprintf(name, sizeof name, "%.0f %% least popular", 100 * parts[p]);
        MOEC_TRY(moec_chart_add_series(chart, name, n_layer, &series, err));
        for (uint32_t layer = 0; layer < n_layer; layer++) {
            series->x[layer] = layer + 1;
            series->y[layer] = 100 * decisions_unpopular_share(&sample->profile, layer, parts[p], NULL);
        }
    }
    moec_figure_say(chart, "Of the experts that a prompt takes, each window of %u tokens being a prompt.",
                    sample->profile.seq_len_tokens);
    return MOEC_OK;
}

/* ---- low copies of unpopular experts ---- */

static const struct decisions_timing *prompt_timing(const struct decisions_pair *pair, const char *name,
                                                    double rate)
{
    return decisions_timing_find(&pair->prompt_times, name, "cache", 25, rate);
}

static enum moec_status put_prefill(const struct experiment_page *page, const struct decisions_pair *pair,
                                    struct moec_error *err)
{
    const char *const *headings =
        HEADINGS("prompts", "low, % of choices", "loss, %", "its interval, %", "KiB a prompt",
                 "ms at 550 MB/s", "its floor, ms", "ms at 50 MB/s", "its floor, ms");
    struct experiment_table table;
    char name[64], what[32];
    (void)snprintf(what, sizeof what, "prefill_%u_%u", pair->bits, pair->low_bits);
    MOEC_TRY(experiment_page_begin(page, &table, name, what, headings, 9, err));
    for (uint32_t i = 0; i <= pair->prefill.n; i++) {
        const struct decisions_point *point = i > 0 ? &pair->prefill.points[i - 1] : NULL;
        const char *timed = point != NULL ? point->name : "none";
        const struct decisions_timing *fast = prompt_timing(pair, timed, 550),
                                      *slow = prompt_timing(pair, timed, 50);
        experiment_table_cell(&table, "%s", point != NULL ? point->setting : "no low copies");
        experiment_table_number(&table, point != NULL ? point->n_low / point->n_taken : 0, 100, 1);
        experiment_table_number(&table, point != NULL ? point->loss : 0, 100, 2);
        if (point != NULL)
            experiment_table_cell(&table, "%.2f to %.2f", 100 * point->low, 100 * point->high);
        else
            experiment_table_cell(&table, "–");
        experiment_table_number(&table, fast != NULL ? fast->prompt_bytes : (double)NAN, 1.0 / 1024, 1);
        experiment_table_number(&table, fast != NULL ? fast->ttft_ms : (double)NAN, 1, 2);
        experiment_table_number(&table, fast != NULL ? fast->prompt_floor_ms : (double)NAN, 1, 2);
        experiment_table_number(&table, slow != NULL ? slow->ttft_ms : (double)NAN, 1, 2);
        experiment_table_number(&table, slow != NULL ? slow->prompt_floor_ms : (double)NAN, 1, 2);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

static enum moec_status draw_prefill(const struct decisions_sample *sample, const struct decisions_pair *pair,
                                     struct moec_chart *chart, struct moec_error *err)
{
    static const char *const ways[][2] = {{"whole-", "by the whole prompt's counts"},
                                          {"unpopular-", "by calibration's counts"},
                                          {"popular-", "most popular first, by the whole prompt's counts"}};
    chart->kind = MOEC_CHART_LINES;
    moec_figure_name(chart, "%s_unpopular_%u_%u", sample->name, pair->bits, pair->low_bits);
    moec_figure_title(chart, "Loss by the share of a prompt's experts in INT%u instead of INT%u",
                      pair->low_bits, pair->bits);
    (void)snprintf(chart->source, sizeof chart->source, "Fate, Fig. 10");
    set_axis(&chart->x, "share_percent", "experts of a layer in the low copy, %");
    set_axis(&chart->y, "loss_percent", "loss of perplexity, %");
    chart->y.has_zero = true;
    for (size_t w = 0; w < N_OF(ways); w++) {
        struct moec_chart_series *series = NULL;
        uint32_t n = 0;
        MOEC_TRY(moec_chart_add_series(chart, ways[w][1], pair->prefill.n + 1, &series, err));
        series->has_interval = true;
        series->x[n] = series->y[n] = series->low[n] = series->high[n] = 0;
        n++;
        for (uint32_t i = 0; i < pair->prefill.n; i++) {
            const struct decisions_point *point = &pair->prefill.points[i];
            if (strncmp(point->name, ways[w][0], strlen(ways[w][0])) != 0)
                continue;
            const double share = strtod(point->name + strlen(ways[w][0]), NULL);
            uint32_t at = n++; /* files come by name */
            for (; at > 1 && series->x[at - 1] > 100 * share; at--) {
                series->x[at] = series->x[at - 1];
                series->y[at] = series->y[at - 1];
                series->low[at] = series->low[at - 1];
                series->high[at] = series->high[at - 1];
            }
            series->x[at] = 100 * share;
            series->y[at] = 100 * point->loss;
            series->low[at] = 100 * point->low;
            series->high[at] = 100 * point->high;
        }
        series->n = n;
    }
    moec_figure_say(chart, "Every token is a prompt's. The paper's figure has the first and the last line.");
    return MOEC_OK;
}

/* ---- times ---- */

static enum moec_status put_sides(const struct experiment_page *page, const struct decisions_sample *sample,
                                  double rate, struct moec_error *err)
{
    const char *const *headings =
        HEADINGS("prompt, tokens", "memory, % of INT4 experts", "strategy", "prompt, ms",
                 "prompt, tokens a second", "ms a token", "tokens a second", "hits, %", "KiB a token");
    struct experiment_table table;
    char name[64], what[32];
    (void)snprintf(what, sizeof what, "fate_%.0f", rate);
    MOEC_TRY(experiment_page_begin(page, &table, name, what, headings, 9, err));
    for (size_t i = 0; i < 12 * FATE_N_SIDE; i++) {
        const enum decisions_fate side = (enum decisions_fate)(i % FATE_N_SIDE);
        const double memory = decisions_fate_memories[i / FATE_N_SIDE % 4];
        const uint32_t prompt = decisions_fate_prompts[i / FATE_N_SIDE / 4];
        const struct decisions_timing *row = decisions_fate_timing(sample, side, prompt, memory, rate);
        if (row == NULL)
            continue;
        experiment_table_cell(&table, "%u", prompt);
        experiment_table_cell(&table, "%g", memory);
        experiment_table_cell(&table, "%s", decisions_fate_sides[side].name);
        experiment_table_number(&table, row->ttft_ms, 1, 2);
        experiment_table_number(&table, 1000 * prompt / row->ttft_ms, 1, 0);
        decisions_put_token(&table, row);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

/* Tokens a second by memory (decoding), or by the length of the prompt in a quarter of it. */
static enum moec_status draw_sides(const struct decisions_sample *sample, double rate, bool is_prompt,
                                   struct moec_chart *chart, struct moec_error *err)
{
    const uint32_t n = is_prompt ? N_OF(decisions_fate_prompts) : N_OF(decisions_fate_memories);
    chart->kind = MOEC_CHART_LINES;
    moec_figure_name(chart, "%s_fate_%s_%.0f", sample->name, is_prompt ? "prompts" : "tokens", rate);
    moec_figure_title(chart,
                      is_prompt ? "Speed of prompts by their length, %.0f MB/s"
                                : "Speed of tokens by memory, %.0f MB/s",
                      rate);
    (void)snprintf(chart->source, sizeof chart->source, "Fate, Fig. %s", is_prompt ? "11" : "12 to 14");
    set_axis(&chart->x, is_prompt ? "tokens" : "memory_percent",
             is_prompt ? "tokens of a prompt" : "memory, % of the experts at INT4");
    set_axis(&chart->y, "tokens_per_second", "tokens a second");
    chart->y.has_zero = true;
    for (int side = 0; side < FATE_N_SIDE; side++) {
        struct moec_chart_series *series = NULL;
        MOEC_TRY(moec_chart_add_series(chart, decisions_fate_sides[side].name, n, &series, err));
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t prompt = is_prompt ? decisions_fate_prompts[i] : 128;
            const double memory = is_prompt ? 25 : decisions_fate_memories[i];
            const struct decisions_timing *row =
                decisions_fate_timing(sample, (enum decisions_fate)side, prompt, memory, rate);
            series->x[i] = is_prompt ? prompt : memory;
            series->y[i] = row == NULL ? (double)NAN
                           : is_prompt ? 1000 * prompt / row->ttft_ms
                                       : 1000 / row->tpot_ms;
        }
    }
    moec_figure_say(chart, is_prompt ? "A quarter of the experts at INT4 fit into memory."
                                     : "After prompts of 128 tokens. Load on demand keeps no experts.");
    return MOEC_OK;
}

/* ---- bits ---- */

static enum moec_status put_bits(const struct experiment_page *page, const struct decisions_sample *sample,
                                 struct moec_error *err)
{
    static const char *const paper[][3] = {{"8", "Qwen1.5-MoE, the paper's", "0"},
                                           {"4", "Qwen1.5-MoE, the paper's", "0.3"},
                                           {"2", "Qwen1.5-MoE, the paper's", "7.6"}};
    const char *const *headings =
        HEADINGS("bits of all experts", "model", "loss, % (perplexity; the paper's: MMLU)");
    const struct moec_profile *profile = &sample->profile;
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "bits", headings, 3, err));
    for (uint32_t u = profile->n_uniform; u-- > 0;) {
        experiment_table_cell(&table, "%u", profile->uniform_bits[u]);
        experiment_table_cell(&table, "%s", sample->name);
        experiment_table_number(&table, moec_profile_loss(profile, profile->uniform[u].nll), 100, 2);
        experiment_table_end_row(&table);
    }
    for (size_t r = 0; r < N_OF(paper); r++) {
        for (size_t c = 0; c < 3; c++)
            experiment_table_cell(&table, "%s", paper[r][c]);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

/* ---- all ---- */

static enum moec_status put_prompts(const struct experiment_page *page, const struct decisions_sample *sample,
                                    const struct decisions_pair *pair, struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    char text[160];
    enum moec_status status = MOEC_OK;
    if (pair->prefill.n + pair->prompt_times.n == 0)
        return MOEC_OK;
    (void)snprintf(text, sizeof text,
                   "Fate, Fig. 10 and Table 3: prompts of INT%u with unpopular experts at INT%u", pair->bits,
                   pair->low_bits);
    experiment_page_heading(page, text);
    experiment_page_paragraph(
        page,
        "A quarter of the experts in memory. 'unpopular' goes by what calibration and earlier blocks of "
        "the prompt took, 'whole' by the prompt's own counts, 'popular' by these the other way round. "
        "Blocks of half a window: the other half is not a prompt, as on the paper's two machines.");
    MOEC_TRY(put_prefill(page, pair, err));
    MOEC_TRY_OUT(draw_prefill(sample, pair, &chart, err));
    MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
out:
    moec_chart_release(&chart);
    return status;
}

enum moec_status decisions_page_fate(const struct experiment_page *page,
                                     const struct decisions_sample *sample, struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    enum moec_status status = MOEC_OK;
    if (sample->has_profile && sample->profile.n_trace_token > 0) {
        experiment_page_heading(page, "Fate, Fig. 9: tokens of a prompt by popularity of their experts");
        MOEC_TRY(put_popular(page, sample, err));
        MOEC_TRY_OUT(draw_popular(sample, &chart, err));
        MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
        moec_chart_release(&chart);
    }
    for (uint32_t p = 0; p < sample->n_pair; p++)
        MOEC_TRY_OUT(put_prompts(page, sample, &sample->pairs[p], err));
    if (sample->has_profile && sample->profile.n_uniform > 0) {
        experiment_page_heading(page, "Fate, Table 2: all experts at one bitwidth");
        MOEC_TRY_OUT(put_bits(page, sample, err));
    }
    for (size_t r = 0; r < 2 && sample->fate.n > 0; r++) {
        char text[96];
        (void)snprintf(text, sizeof text, "Fate, Fig. 11 to 14: prompts and tokens at %.0f MB/s",
                       decisions_rates[r]);
        experiment_page_heading(page, text);
        MOEC_TRY_OUT(put_sides(page, sample, decisions_rates[r], err));
        for (int is_prompt = 1; is_prompt >= 0; is_prompt--) {
            MOEC_TRY_OUT(draw_sides(sample, decisions_rates[r], is_prompt, &chart, err));
            MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
            moec_chart_release(&chart);
        }
    }
out:
    moec_chart_release(&chart);
    return status;
}
