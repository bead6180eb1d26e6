#include "experiments/decisions_time_page.h"

#include "experiments/decisions_routing.h"
#include "experiments/decisions_time_claims.h"
#include "profiler/report/figure_parts.h"
#include "profiler/report/figures.h"

#include <math.h>
#include <string.h>

#define N_OF(list)    (sizeof(list) / sizeof *(list))
#define HEADINGS(...) ((const char *const[]){__VA_ARGS__})

void decisions_put_token(struct experiment_table *table, const struct decisions_timing *row)
{
    experiment_table_number(table, row->tpot_ms, 1, 3);
    experiment_table_number(table, 1000 / row->tpot_ms, 1, 0);
    experiment_table_number(table, row->hit_rate, 100, 1);
    experiment_table_number(table, row->token_bytes, 1.0 / 1024, 1);
}

static void set_axis(struct moec_chart_axis *axis, const char *name, const char *label)
{
    (void)snprintf(axis->name, sizeof axis->name, "%s", name);
    (void)snprintf(axis->label, sizeof axis->label, "%s", label);
}

/* ---- cache-conditional experts ---- */

static enum moec_status put_ranks(const struct experiment_page *page, const struct decisions_sample *sample,
                                  struct moec_error *err)
{
    static const char *const actions[][2] = {{"drop", "dropped"},
                                             {"cut", "dropped with those after it"},
                                             {"replace", "replaced by the best unchosen one"},
                                             {"random swap", "replaced by a random one"}};
    const char *const *headings = HEADINGS("expert", "rank", "loss, %", "its interval, %");
    const struct moec_profile *profile = &sample->studies;
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "ranks", headings, 4, err));
    for (size_t a = 0; a < N_OF(actions); a++)
        for (uint32_t rank = 1; rank <= sample->top_k; rank++) {
            const double loss = decisions_rank_loss(profile, actions[a][0], rank, "");
            if (!isfinite(loss))
                continue;
            experiment_table_cell(&table, "%s", actions[a][1]);
            experiment_table_cell(&table, "%u", rank);
            experiment_table_number(&table, loss, 100, 2);
            experiment_table_interval(&table, decisions_rank_loss(profile, actions[a][0], rank, "_low"),
                                      decisions_rank_loss(profile, actions[a][0], rank, "_high"));
            experiment_table_end_row(&table);
        }
    return experiment_page_end(page, &table, err);
}

/* A chart of a profile's own report. */
static enum moec_status put_profile_chart(const struct experiment_page *page,
                                          const struct decisions_sample *sample,
                                          const struct moec_profile *profile, const char *what,
                                          struct moec_error *err)
{
    struct moec_figures figures = {0};
    enum moec_status status = moec_figures_make(profile, &figures, err);
    for (uint32_t f = 0; f < figures.n; f++)
        for (uint32_t c = 0; c < figures.items[f].n_chart && status == MOEC_OK; c++) {
            struct moec_chart *chart = &figures.items[f].charts[c];
            if (strcmp(chart->name, what) != 0)
                continue;
            moec_figure_name(chart, "%s_%s", sample->name, what);
            status = experiment_page_chart(page, chart, err);
        }
    moec_figures_release(&figures);
    return status;
}

static enum moec_status put_choices(const struct experiment_page *page, const struct decisions_sample *sample,
                                    struct moec_error *err)
{
    const char *const *headings = HEADINGS("MoE layer", "the router's last expert is the best, % of tokens");
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "choices", headings, 2, err));
    for (uint32_t layer = 0; layer < sample->n_layer; layer++) {
        experiment_table_cell(&table, "%u", layer + 1);
        experiment_table_number(&table, decisions_choice_share(&sample->studies, layer), 100, 1);
        experiment_table_end_row(&table);
    }
    experiment_table_cell(&table, "Mixtral-8x7B, the paper's: mean");
    experiment_table_cell(&table, "28");
    experiment_table_end_row(&table);
    experiment_table_cell(&table, "Mixtral-8x7B, the paper's: last");
    experiment_table_cell(&table, "38");
    experiment_table_end_row(&table);
    return experiment_page_end(page, &table, err);
}

static enum moec_status put_throughput(const struct experiment_page *page,
                                       const struct decisions_sample *sample, struct moec_error *err)
{
    const char *const *headings = HEADINGS("slots", "prompt, tokens", "L", "hits, %", "ms a token",
                                           "tokens a second", "times the speed without", "KiB a token");
    const uint32_t slots[] = {sample->n_expert / 2, sample->n_expert * 3 / 4},
                   prompts[] = {decisions_short_prompt, decisions_long_prompt};
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "throughput", headings, 8, err));
    for (size_t i = 0; i < 4 * N_OF(decisions_priors_timed); i++) {
        const size_t p = i % N_OF(decisions_priors_timed), s = i / N_OF(decisions_priors_timed);
        const struct decisions_timing *none = decisions_prior_timing(sample, 0, slots[s / 2], prompts[s % 2]),
                                      *row = decisions_prior_timing(sample, decisions_priors_timed[p],
                                                                    slots[s / 2], prompts[s % 2]);
        if (none == NULL || row == NULL)
            continue;
        experiment_table_cell(&table, "%u", slots[s / 2]);
        experiment_table_cell(&table, "%u", prompts[s % 2]);
        experiment_table_cell(&table, "%g", decisions_priors_timed[p]);
        experiment_table_number(&table, row->hit_rate, 100, 1);
        experiment_table_number(&table, row->tpot_ms, 1, 3);
        experiment_table_number(&table, 1000 / row->tpot_ms, 1, 0);
        experiment_table_number(&table, none->tpot_ms / row->tpot_ms, 1, 2);
        experiment_table_number(&table, row->token_bytes, 1.0 / 1024, 1);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

static enum moec_status draw_throughput(const struct decisions_sample *sample, struct moec_chart *chart,
                                        struct moec_error *err)
{
    const uint32_t slots[] = {sample->n_expert / 2, sample->n_expert * 3 / 4},
                   prompts[] = {decisions_short_prompt, decisions_long_prompt};
    chart->kind = MOEC_CHART_LINES;
    moec_figure_name(chart, "%s_speed_by_hits", sample->name);
    moec_figure_title(chart, "Speed of generation by hits, with priors of 0 to 0.9");
    (void)snprintf(chart->source, sizeof chart->source, "Cache-conditional experts, Fig. 8 and 17");
    set_axis(&chart->x, "hits_percent", "experts that were in memory, %");
    set_axis(&chart->y, "times", "times the speed of LRU without a prior");
    chart->y.has_zero = true;
    for (size_t s = 0; s < 4; s++) {
        const struct decisions_timing *none = decisions_prior_timing(sample, 0, slots[s / 2], prompts[s % 2]);
        struct moec_chart_series *series = NULL;
        char name[MOEC_CHART_LABEL];
        uint32_t n = 0;
        if (none == NULL)
            continue;
        (void)snprintf(name, sizeof name, "%u experts, %u tokens of prompt", slots[s / 2], prompts[s % 2]);
        MOEC_TRY(moec_chart_add_series(chart, name, N_OF(decisions_priors_timed), &series, err));
        for (size_t p = 0; p < N_OF(decisions_priors_timed); p++) {
            const struct decisions_timing *row =
                decisions_prior_timing(sample, decisions_priors_timed[p], slots[s / 2], prompts[s % 2]);
            if (row == NULL)
                continue;
            series->x[n] = 100 * row->hit_rate;
            series->y[n++] = none->tpot_ms / row->tpot_ms;
        }
        series->n = n;
    }
    moec_figure_say(chart, "Storage of 550 MB/s; each line against its own LRU.");
    return MOEC_OK;
}

enum moec_status decisions_page_cache(const struct experiment_page *page,
                                      const struct decisions_sample *sample, struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    enum moec_status status = MOEC_OK;
    if (sample->has_studies) {
        experiment_page_heading(page, "Fig. 2: experts dropped and exchanged by rank");
        MOEC_TRY(put_ranks(page, sample, err));
        MOEC_TRY(put_profile_chart(page, sample, &sample->studies, "rank_loss", err));
        experiment_page_heading(page, "Appendix A: the best expert in the place of a token's last");
        MOEC_TRY(put_choices(page, sample, err));
    }
    if (sample->throughput.n == 0)
        return MOEC_OK;
    experiment_page_heading(page, "Fig. 8 and 17: throughput by hits and by the length of the prompt");
    experiment_page_paragraph(page,
                              "Here a prior decides the prompt's experts, too; the paper's only those of "
                              "generated tokens.");
    MOEC_TRY(put_throughput(page, sample, err));
    MOEC_TRY_OUT(draw_throughput(sample, &chart, err));
    MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
out:
    moec_chart_release(&chart);
    return status;
}

/* ---- HOBBIT ---- */

static enum moec_status put_shares(const struct experiment_page *page, const struct decisions_pair *pair,
                                   struct moec_error *err)
{
    const char *const *headings =
        HEADINGS("T1", "T2", "high, %", "low, %", "skipped, %", "loss, %", "its interval, %");
    struct experiment_table table;
    char name[64], what[32];
    (void)snprintf(what, sizeof what, "shares_%u_%u", pair->bits, pair->low_bits);
    MOEC_TRY(experiment_page_begin(page, &table, name, what, headings, 7, err));
    for (uint32_t i = 0; i < pair->group.n; i++) {
        const struct decisions_point *point = &pair->group.points[i];
        if (point->precision != DECISIONS_ALWAYS)
            continue;
        const double low = point->n_low / point->n_chosen, skipped = point->n_skipped / point->n_chosen;
        experiment_table_number(&table, point->first_score, 1, 2);
        experiment_table_number(&table, point->second_score, 1, 2);
        experiment_table_number(&table, 1 - low - skipped, 100, 1);
        experiment_table_number(&table, low, 100, 1);
        experiment_table_number(&table, skipped, 100, 1);
        experiment_table_number(&table, point->loss, 100, 2);
        experiment_table_interval(&table, point->low, point->high);
        experiment_table_end_row(&table);
    }
    for (size_t c = 0; c < 7; c++)
        experiment_table_cell(
            &table, "%s", HEADINGS("0.60, the paper's Mixtral-8x7B", "0.90", "67", "30", "3", "–", "–")[c]);
    experiment_table_end_row(&table);
    return experiment_page_end(page, &table, err);
}

static enum moec_status put_dynamic(const struct experiment_page *page, const struct decisions_pair *pair,
                                    struct moec_error *err)
{
    const char *const *headings =
        HEADINGS("storage, MB/s", "dynamic loading", "layers ahead", "prompt, ms", "ms a token",
                 "times the speed without either", "hits, %", "KiB a token", "waits, ms a token");
    struct experiment_table table;
    char name[64], what[32], file[16];
    (void)snprintf(what, sizeof what, "dynamic_%u_%u", pair->bits, pair->low_bits);
    MOEC_TRY(experiment_page_begin(page, &table, name, what, headings, 9, err));
    for (uint32_t i = 0; i < 20; i++) {
        const double rate = decisions_rates[i / 10];
        const bool is_on = i / 5 % 2 == 1;
        const uint32_t ahead = i % 5;
        (void)snprintf(file, sizeof file, "%s-%u", is_on ? "on" : "off", ahead);
        const struct decisions_timing *row = decisions_timing_find(&pair->dynamic, file, "cache", 50, rate),
                                      *none =
                                          decisions_timing_find(&pair->dynamic, "off-0", "cache", 50, rate);
        if (row == NULL || none == NULL)
            continue;
        experiment_table_number(&table, rate, 1, 0);
        experiment_table_cell(&table, "%s", is_on ? "on" : "off");
        experiment_table_cell(&table, "%u", ahead);
        experiment_table_number(&table, row->ttft_ms, 1, 2);
        experiment_table_number(&table, row->tpot_ms, 1, 3);
        experiment_table_number(&table, none->tpot_ms / row->tpot_ms, 1, 2);
        experiment_table_number(&table, row->hit_rate, 100, 1);
        experiment_table_number(&table, row->token_bytes, 1.0 / 1024, 1);
        experiment_table_number(&table, row->stall_ms, 1, 3);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

static enum moec_status draw_dynamic(const struct decisions_sample *sample, const struct decisions_pair *pair,
                                     struct moec_chart *chart, struct moec_error *err)
{
    char file[16];
    chart->kind = MOEC_CHART_LINES;
    moec_figure_name(chart, "%s_layers_ahead_%u_%u", sample->name, pair->bits, pair->low_bits);
    moec_figure_title(chart, "Time of a token by layers ahead: INT%u with low copies of INT%u", pair->bits,
                      pair->low_bits);
    (void)snprintf(chart->source, sizeof chart->source, "HOBBIT, Fig. 16 and 17");
    set_axis(&chart->x, "layers_ahead", "layers ahead that are predicted");
    set_axis(&chart->y, "ms", "time of a token, ms");
    chart->x.is_whole = true;
    chart->y.has_zero = true;
    for (size_t i = 0; i < 4; i++) {
        const bool is_on = i % 2 == 1;
        struct moec_chart_series *series = NULL;
        char name[MOEC_CHART_LABEL];
        (void)snprintf(name, sizeof name, "%s dynamic loading, %.0f MB/s", is_on ? "with" : "without",
                       decisions_rates[i / 2]);
        MOEC_TRY(moec_chart_add_series(chart, name, 5, &series, err));
        for (uint32_t ahead = 0; ahead < 5; ahead++) {
            (void)snprintf(file, sizeof file, "%s-%u", is_on ? "on" : "off", ahead);
            const struct decisions_timing *row =
                decisions_timing_find(&pair->dynamic, file, "cache", 50, decisions_rates[i / 2]);
            series->x[ahead] = ahead;
            series->y[ahead] = row != NULL ? row->tpot_ms : (double)NAN;
        }
    }
    moec_figure_say(chart,
                    "Half of the experts in memory; with dynamic loading a fifth of it is for low copies.");
    return MOEC_OK;
}

static enum moec_status put_evictions(const struct experiment_page *page,
                                      const struct decisions_sample *sample, struct moec_error *err)
{
    const char *const *headings = HEADINGS("memory, % of the experts", "policy", "hits, %", "Belady's, %",
                                           "KiB a token", "waits, ms a token", "of random's, %");
    struct experiment_table table;
    char name[64];
    MOEC_TRY(experiment_page_begin(page, &table, name, "evictions", headings, 7, err));
    for (uint32_t m = 0; m < 2; m++)
        for (uint32_t i = 0; i < sample->evictions.n; i++) {
            const struct decisions_eviction *row = &sample->evictions.rows[i],
                                            *random = decisions_eviction_find(&sample->evictions, "random",
                                                                              row->memory_percent);
            if (fabs(row->memory_percent - (m == 0 ? 25 : 50)) > 0.5)
                continue;
            experiment_table_number(&table, row->memory_percent, 1, 0);
            if (strcmp(row->policy, "tuned") == 0 && sample->evictions.weights[m][0] != '\0')
                experiment_table_cell(&table, "tuned, %s", sample->evictions.weights[m]);
            else
                experiment_table_cell(&table, "%s", row->policy);
            experiment_table_number(&table, row->hit_rate, 100, 1);
            experiment_table_number(&table, row->bound, 100, 1);
            experiment_table_number(&table, row->token_bytes, 1.0 / 1024, 1);
            experiment_table_number(&table, row->stall_ms, 1, 3);
            experiment_table_number(&table, random != NULL ? row->stall_ms / random->stall_ms : (double)NAN,
                                    100, 1);
            experiment_table_end_row(&table);
        }
    return experiment_page_end(page, &table, err);
}

static enum moec_status draw_evictions(const struct decisions_sample *sample, struct moec_chart *chart,
                                       struct moec_error *err)
{
    static const char *const policies[] = {"random", "lru", "lfu", "arc", "edgemoe", "hobbit", "tuned"};
    chart->kind = MOEC_CHART_BARS;
    moec_figure_name(chart, "%s_evictions_by_policy", sample->name);
    moec_figure_title(chart, "Waits for storage by eviction policy");
    (void)snprintf(chart->source, sizeof chart->source, "HOBBIT, Fig. 18(a)");
    set_axis(&chart->x, "policy", "");
    set_axis(&chart->y, "percent_of_random", "waits of a token, % of those with random eviction");
    MOEC_TRY(moec_chart_set_categories(&chart->x, N_OF(policies), err));
    for (size_t p = 0; p < N_OF(policies); p++)
        (void)snprintf(chart->x.categories[p], MOEC_CHART_LABEL, "%s", policies[p]);
    for (int m = 0; m < 2; m++) {
        const double memory = m == 0 ? 25 : 50;
        const struct decisions_eviction *random =
            decisions_eviction_find(&sample->evictions, "random", memory);
        struct moec_chart_series *series = NULL;
        MOEC_TRY(moec_chart_add_series(chart, m == 0 ? "a quarter of the experts" : "half of the experts",
                                       N_OF(policies), &series, err));
        for (size_t p = 0; p < N_OF(policies); p++) {
            const struct decisions_eviction *row =
                decisions_eviction_find(&sample->evictions, policies[p], memory);
            series->x[p] = (double)p;
            series->y[p] =
                row != NULL && random != NULL ? 100 * row->stall_ms / random->stall_ms : (double)NAN;
        }
    }
    moec_figure_say(chart,
                    "Simulated from the routing of the test text at 550 MB/s; 'tuned' has the weights that "
                    "wait least on the calibration text. Experts have one precision.");
    return MOEC_OK;
}

static enum moec_status put_pair(const struct experiment_page *page, const struct decisions_sample *sample,
                                 const struct decisions_pair *pair, struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    char text[160];
    enum moec_status status = MOEC_OK;
    if (pair->group.n > 0) {
        (void)snprintf(text, sizeof text, "HOBBIT, Fig. 5b: experts by score, INT%u and INT%u", pair->bits,
                       pair->low_bits);
        experiment_page_heading(page, text);
        MOEC_TRY(put_shares(page, pair, err));
    }
    if (pair->dynamic.n == 0)
        return MOEC_OK;
    (void)snprintf(
        text, sizeof text,
        "HOBBIT, Fig. 16 and 17: dynamic loading (T1 = 0.6, T2 = 0.9) and preloading, INT%u and INT%u",
        pair->bits, pair->low_bits);
    experiment_page_heading(page, text);
    MOEC_TRY(put_dynamic(page, pair, err));
    MOEC_TRY_OUT(draw_dynamic(sample, pair, &chart, err));
    MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
out:
    moec_chart_release(&chart);
    return status;
}

enum moec_status decisions_page_hobbit(const struct experiment_page *page,
                                       const struct decisions_sample *sample, struct moec_error *err)
{
    struct moec_chart chart = {.name = ""};
    enum moec_status status = MOEC_OK;
    if (sample->has_profile && sample->top_k > 1) {
        experiment_page_heading(page, "HOBBIT, Fig. 5b: scores of the experts that tokens take");
        MOEC_TRY(put_profile_chart(page, sample, &sample->profile, "scores", err));
    }
    for (uint32_t p = 0; p < sample->n_pair; p++)
        MOEC_TRY(put_pair(page, sample, &sample->pairs[p], err));
    if (sample->evictions.n == 0)
        return MOEC_OK;
    experiment_page_heading(page, "HOBBIT, Fig. 18: eviction policies");
    experiment_page_paragraph(
        page, "hobbit weighs how recently and how often an expert was used, how often in high precision, and "
              "how far its layer is; tuned has the weights of these four that were found on calibration. "
              "window-lfu and window-lru forget at the end of each window of the text; lfu and lru do not.");
    MOEC_TRY(put_evictions(page, sample, err));
    MOEC_TRY_OUT(draw_evictions(sample, &chart, err));
    MOEC_TRY_OUT(experiment_page_chart(page, &chart, err));
out:
    moec_chart_release(&chart);
    return status;
}
