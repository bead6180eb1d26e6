/* Sentences about a sweep, each only where the sweep has what it says. Policies are compared by their mean
 * over all buffers, so that no single size decides. The answer is about one buffer, that of a quarter of
 * the experts. */
#include "profiler/simulate/simulate_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define SIZE 24

static const char *size_text(char text[static SIZE], uint64_t bytes)
{
    const double value = (double)bytes;
    if (bytes < 1u << 20)
        (void)snprintf(text, SIZE, "%.1f KiB", value / 0x1p10);
    else if (bytes < 1u << 30)
        (void)snprintf(text, SIZE, "%.1f MiB", value / 0x1p20);
    else
        (void)snprintf(text, SIZE, "%.2f GiB", value / 0x1p30);
    return text;
}

static double share(const struct moec_simulation *simulation, uint64_t bytes)
{
    return 100 * (double)bytes / (double)simulation->sweep.model->all_bytes;
}

/* Index of the predictor "none", n_predictor when it was not simulated. */
static uint32_t none_of(const struct moec_simulation *simulation)
{
    uint32_t p = 0;
    while (p < simulation->sweep.n_predictor && simulation->sweep.predictors[p] != &moec_predict_none)
        p++;
    return p;
}

uint32_t moec_simulation_best_policy(const struct moec_simulation *simulation, uint32_t predictor,
                                     double *mean_rate)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    uint32_t best = 0;
    *mean_rate = -1;
    for (uint32_t p = 0; p < sweep->n_policy; p++) {
        double sum = 0;
        for (uint32_t b = 0; b < sweep->n_budget; b++)
            sum += moec_simulated_hit_rate(&moec_simulation_at(simulation, predictor, p, b)->decode, true);
        if (sum / sweep->n_budget > *mean_rate) {
            *mean_rate = sum / sweep->n_budget;
            best = p;
        }
    }
    return best;
}

static void describe_cliff(const struct moec_simulation *simulation, struct moec_paragraphs *out)
{
    const struct moec_simulated_model *model = simulation->sweep.model;
    const struct moec_simulate_lru *lru = &simulation->lru;
    char set[SIZE], mean[SIZE];
    moec_paragraph_begin(
        out,
        "One token's working set is %s: %" PRIu32 " MoE layers x %" PRIu32
        " experts x %s, %.1f %% of all experts. In a smaller buffer, lru (least recently used) "
        "evicts every expert before its layer runs again.",
        size_text(set, model->token_bytes), model->n_layer, model->top_k,
        size_text(mean, model->token_bytes / ((uint64_t)model->n_layer * model->top_k)),
        share(simulation, model->token_bytes));
    if (lru->n < 2 || isnan(lru->rates[0]))
        return;
    const double low = lru->rates[lru->cliff], high = lru->rates[lru->cliff + 1];
    moec_paragraph_add(out,
                       " The hit rate of lru rises fastest between buffers of %.2f and %.2f working sets, "
                       "from %.1f %% to %.1f %%: ",
                       (double)lru->budgets[lru->cliff] / (double)model->token_bytes,
                       (double)lru->budgets[lru->cliff + 1] / (double)model->token_bytes, 100 * low,
                       100 * high);
    if (high - low < 0.05)
        moec_paragraph_add(out, "there is no cliff.");
    else if (2 * lru->budgets[lru->cliff] < 3 * model->token_bytes &&
             lru->budgets[lru->cliff + 1] >= model->token_bytes)
        moec_paragraph_add(out, "that is the cliff.");
    else
        moec_paragraph_add(out, "a cliff, but not at the working set.");
}

static void describe_reuse(const struct moec_simulation *simulation, struct moec_paragraphs *out)
{
    if (isnan(simulation->reuse.next_token_share))
        return;
    moec_paragraph_begin(out,
                         "%.1f %% of the experts that a decoded token needs were needed by the token before; "
                         "half of all experts that are needed again are needed within %" PRIu64 " tokens.",
                         100 * simulation->reuse.next_token_share, simulation->reuse.median_tokens);
}

static double mean_bound(const struct moec_simulation *simulation)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    double sum = 0;
    for (uint32_t b = 0; b < sweep->n_budget; b++)
        sum += simulation->belady[b].most_hits / (double)simulation->belady[b].asked;
    return sum / sweep->n_budget;
}

static void describe_policies(const struct moec_simulation *simulation, struct moec_paragraphs *out)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    const uint32_t none = none_of(simulation);
    double rate = 0;
    if (none == sweep->n_predictor || simulation->belady[0].asked == 0)
        return;
    const uint32_t best = moec_simulation_best_policy(simulation, none, &rate);
    moec_paragraph_begin(out, "Without predictions '%s' hits %.1f %% on average over these budgets",
                         sweep->policies[best].word, 100 * rate);
    if (sweep->n_policy > 1)
        moec_paragraph_add(out, ", more than the other policies");
    moec_paragraph_add(out, "; %s allows %.1f %%.",
                       sweep->model->is_equal ? "Belady's bound, which knows the future,"
                                              : "the bound for records of different sizes (space times time)",
                       100 * mean_bound(simulation));
}

static void describe_predictors(const struct moec_simulation *simulation, struct moec_paragraphs *out)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    bool is_first = true;
    for (uint32_t p = 0; p < sweep->n_predictor; p++) {
        double rate = 0;
        if (sweep->predictors[p] == &moec_predict_none || simulation->belady[0].asked == 0)
            continue;
        const uint32_t best = moec_simulation_best_policy(simulation, p, &rate);
        uint64_t useful = 0, preloads = 0;
        for (uint32_t b = 0; b < sweep->n_budget; b++) {
            useful += moec_simulation_at(simulation, p, best, b)->decode.useful;
            preloads += moec_simulation_at(simulation, p, best, b)->decode.preloads;
        }
        if (is_first)
            moec_paragraph_begin(out, "With predictions, counting late ones as hits:");
        moec_paragraph_add(out, "%s '%s' %.1f %% (with '%s'; of its preloads %.1f %% were used)",
                           is_first ? "" : ";", sweep->predictors[p]->name, 100 * rate,
                           sweep->policies[best].word,
                           preloads > 0 ? 100 * (double)useful / (double)preloads : 0.0);
        is_first = false;
    }
    if (!is_first)
        moec_paragraph_add(out, ". A preload turns a miss into a hit but still costs a read. So with "
                                "predictions, Belady's bound limits the reads and not the hits.");
}

static void describe_times(const struct moec_simulation *simulation, struct moec_paragraphs *out)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    if (!sweep->has_times)
        return;
    for (uint32_t b = 0; b < sweep->n_budget; b++) {
        const bool is_shown = sweep->n_budget <= 4 || b == sweep->n_budget / 4 || b == sweep->n_budget / 2;
        uint32_t predictor = 0, policy = 0;
        double least = INFINITY;
        for (uint32_t i = 0; is_shown && i < sweep->n_predictor * sweep->n_policy; i++) {
            const double median =
                moec_simulation_at(simulation, i / sweep->n_policy, i % sweep->n_policy, b)->tpot_ns_median;
            if (!(median < least))
                continue;
            least = median;
            predictor = i / sweep->n_policy;
            policy = i % sweep->n_policy;
        }
        if (isfinite(least))
            moec_paragraph_begin(out,
                                 "At %.3g %% of the experts '%s' with predictor '%s' is fastest: %.3g ms a "
                                 "token (median).",
                                 share(simulation, sweep->budgets[b]), sweep->policies[policy].word,
                                 sweep->predictors[predictor]->name, least / 1e6);
    }
}

/* The buffer that the answer is about: a quarter of the experts, or the next that was simulated. */
static uint32_t answered_budget(const struct moec_simulation *simulation)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    uint32_t b = 0;
    while (b + 1 < sweep->n_budget && (double)sweep->budgets[b] < 0.24 * (double)sweep->model->all_bytes)
        b++;
    return b;
}

void moec_simulation_answer(const struct moec_simulation *simulation, struct moec_paragraphs *paragraphs)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    const uint32_t b = answered_budget(simulation);
    const struct moec_belady *belady = &simulation->belady[b];
    char size[SIZE], set[SIZE];
    uint32_t best = 0;
    double most = -1;
    if (belady->asked == 0)
        return;
    for (uint32_t i = 0; i < sweep->n_predictor * sweep->n_policy; i++) {
        const double rate = moec_simulated_hit_rate(
            &moec_simulation_at(simulation, i / sweep->n_policy, i % sweep->n_policy, b)->decode, true);
        if (rate > most) {
            most = rate;
            best = i;
        }
    }
    moec_paragraph_begin(
        paragraphs,
        "An expert buffer of %s (%.3g %% of all experts) has a hit rate of %.0f %% with --evict %s "
        "--predict %s. Without predictions, no eviction policy could exceed %.0f %%.",
        size_text(size, sweep->budgets[b]), share(simulation, sweep->budgets[b]), 100 * most,
        sweep->policies[best % sweep->n_policy].word, sweep->predictors[best / sweep->n_policy]->name,
        100 * belady->most_hits / (double)belady->asked);
    moec_paragraph_begin(
        paragraphs,
        "Make the buffer at least %s, which holds one token's experts: with less, lru never hits.",
        size_text(set, sweep->model->token_bytes));
}

void moec_simulation_describe(const struct moec_simulation *simulation, struct moec_paragraphs *paragraphs)
{
    describe_cliff(simulation, paragraphs);
    describe_reuse(simulation, paragraphs);
    describe_policies(simulation, paragraphs);
    describe_predictors(simulation, paragraphs);
    describe_times(simulation, paragraphs);
}
