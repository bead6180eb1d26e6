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
    return 100 * (double)bytes / (double)simulation->sweep.model->slots.all_bytes;
}

/* Index of the predictor "none", n_predictor when it was not simulated. */
static uint32_t none_of(const struct moec_simulation *simulation)
{
    uint32_t p = 0;
    while (p < simulation->sweep.preload.n_predictor &&
           simulation->sweep.preload.predictors[p] != &moec_predict_none)
        p++;
    return p;
}

uint32_t moec_simulation_best_policy(const struct moec_simulation *simulation, uint32_t predictor,
                                     double *mean_rate)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    uint32_t best = 0;
    *mean_rate = -1;
    for (uint32_t p = 0; p < sweep->evict.n; p++) {
        double sum = 0;
        for (uint32_t b = 0; b < sweep->budgets.n; b++)
            sum += moec_simulated_hit_rate(&moec_simulation_at(simulation, predictor, p, b)->decode, true);
        if (sum / sweep->budgets.n > *mean_rate) {
            *mean_rate = sum / sweep->budgets.n;
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
        size_text(set, model->slots.token_bytes), model->shape.n_layer, model->shape.top_k,
        size_text(mean, model->slots.token_bytes / ((uint64_t)model->shape.n_layer * model->shape.top_k)),
        share(simulation, model->slots.token_bytes));
    if (lru->n < 2 || isnan(lru->rates[0]))
        return;
    const double low = lru->rates[lru->cliff], high = lru->rates[lru->cliff + 1];
    moec_paragraph_add(out,
                       " The hit rate of lru rises fastest between buffers of %.2f and %.2f working sets, "
                       "from %.1f %% to %.1f %%: ",
                       (double)lru->budgets[lru->cliff] / (double)model->slots.token_bytes,
                       (double)lru->budgets[lru->cliff + 1] / (double)model->slots.token_bytes, 100 * low,
                       100 * high);
    if (high - low < 0.05)
        moec_paragraph_add(out, "there is no cliff.");
    else if (2 * lru->budgets[lru->cliff] < 3 * model->slots.token_bytes &&
             lru->budgets[lru->cliff + 1] >= model->slots.token_bytes)
        moec_paragraph_add(out, "that is the cliff.");
    else
        moec_paragraph_add(out, "there is a cliff, but not at the working set.");
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
    for (uint32_t b = 0; b < sweep->budgets.n; b++)
        sum += simulation->belady[b].most_hits / (double)simulation->belady[b].asked;
    return sum / sweep->budgets.n;
}

static void describe_policies(const struct moec_simulation *simulation, struct moec_paragraphs *out)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    const uint32_t none = none_of(simulation);
    double rate = 0;
    if (none == sweep->preload.n_predictor || simulation->belady[0].asked == 0)
        return;
    const uint32_t best = moec_simulation_best_policy(simulation, none, &rate);
    moec_paragraph_begin(out, "Without predictions '%s' hits %.1f %% on average over these budgets",
                         sweep->evict.all[best].word, 100 * rate);
    if (sweep->evict.n > 1)
        moec_paragraph_add(out, ", more than the other policies");
    moec_paragraph_add(out, "; %s allows %.1f %%.",
                       sweep->model->slots.is_equal
                           ? "Belady's bound, which knows the future,"
                           : "the bound for records of different sizes (space times time)",
                       100 * mean_bound(simulation));
}

static void describe_predictors(const struct moec_simulation *simulation, struct moec_paragraphs *out)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    bool is_first = true;
    for (uint32_t p = 0; p < sweep->preload.n_predictor; p++) {
        double rate = 0;
        if (sweep->preload.predictors[p] == &moec_predict_none || simulation->belady[0].asked == 0)
            continue;
        const uint32_t best = moec_simulation_best_policy(simulation, p, &rate);
        uint64_t useful = 0, preloads = 0;
        for (uint32_t b = 0; b < sweep->budgets.n; b++) {
            useful += moec_simulation_at(simulation, p, best, b)->decode.useful;
            preloads += moec_simulation_at(simulation, p, best, b)->decode.preloads;
        }
        if (is_first)
            moec_paragraph_begin(out, "With predictions, counting late ones as hits:");
        moec_paragraph_add(out, "%s '%s' %.1f %% (with '%s'; of its preloads %.1f %% were used)",
                           is_first ? "" : ";", sweep->preload.predictors[p]->name, 100 * rate,
                           sweep->evict.all[best].word,
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
    for (uint32_t b = 0; b < sweep->budgets.n; b++) {
        const bool is_shown = sweep->budgets.n <= 4 || b == sweep->budgets.n / 4 || b == sweep->budgets.n / 2;
        uint32_t predictor = 0, policy = 0;
        double least = INFINITY;
        for (uint32_t i = 0; is_shown && i < sweep->preload.n_predictor * sweep->evict.n; i++) {
            const double median =
                moec_simulation_at(simulation, i / sweep->evict.n, i % sweep->evict.n, b)->tpot_ns_median;
            if (!(median < least))
                continue;
            least = median;
            predictor = i / sweep->evict.n;
            policy = i % sweep->evict.n;
        }
        if (isfinite(least))
            moec_paragraph_begin(out,
                                 "At %.3g %% of the experts '%s' with predictor '%s' is fastest: %.3g ms a "
                                 "token (median).",
                                 share(simulation, sweep->budgets.bytes[b]), sweep->evict.all[policy].word,
                                 sweep->preload.predictors[predictor]->name, least / 1e6);
    }
}

/* The buffer that the answer is about: a quarter of the experts, or the next that was simulated. */
static uint32_t answered_budget(const struct moec_simulation *simulation)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    uint32_t b = 0;
    while (b + 1 < sweep->budgets.n &&
           (double)sweep->budgets.bytes[b] < 0.24 * (double)sweep->model->slots.all_bytes)
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
    for (uint32_t i = 0; i < sweep->preload.n_predictor * sweep->evict.n; i++) {
        const double rate = moec_simulated_hit_rate(
            &moec_simulation_at(simulation, i / sweep->evict.n, i % sweep->evict.n, b)->decode, true);
        if (rate > most) {
            most = rate;
            best = i;
        }
    }
    moec_paragraph_begin(
        paragraphs,
        "An expert buffer of %s (%.3g %% of all experts) has a hit rate of %.0f %% with --evict %s "
        "--predict %s. Without predictions, no eviction could exceed %.0f %%.",
        size_text(size, sweep->budgets.bytes[b]), share(simulation, sweep->budgets.bytes[b]), 100 * most,
        sweep->evict.all[best % sweep->evict.n].word, sweep->preload.predictors[best / sweep->evict.n]->name,
        100 * belady->most_hits / (double)belady->asked);
    moec_paragraph_begin(
        paragraphs,
        "Make the buffer at least %s, which holds one token's experts: with less, lru never hits.",
        size_text(set, sweep->model->slots.token_bytes));
}

void moec_simulation_describe(const struct moec_simulation *simulation, struct moec_paragraphs *paragraphs)
{
    describe_cliff(simulation, paragraphs);
    describe_reuse(simulation, paragraphs);
    describe_policies(simulation, paragraphs);
    describe_predictors(simulation, paragraphs);
    describe_times(simulation, paragraphs);
}
