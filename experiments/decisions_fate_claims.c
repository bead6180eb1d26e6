#include "experiments/decisions_routing.h"
#include "experiments/decisions_time_claims.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const double decisions_fate_memories[4] = {12.5, 25, 50, 75};
const uint32_t decisions_fate_prompts[3] = {128, 256, 512};
#define N_MEMORY (sizeof decisions_fate_memories / sizeof *decisions_fate_memories)
#define N_PROMPT (sizeof decisions_fate_prompts / sizeof *decisions_fate_prompts)

const struct decisions_fate_side decisions_fate_sides[FATE_N_SIDE] = {
    {"load on demand, 16 bits", "others", "io-exp"},  {"load on demand, INT4", "others", "lod"},
    {"16 bits with a cache", "others", "io-exp+lru"}, {"INT4 with a cache", "none", "cache"},
    {"activation paths, INT4", "others", "eap"},      {"Fate", "gate", "cache"},
    {"Fate, INT2 at mispredictions", "low", "cache"},
};

const struct decisions_timing *decisions_fate_timing(const struct decisions_sample *sample,
                                                     enum decisions_fate side, uint32_t prompt_tokens,
                                                     double memory_percent, double rate)
{
    char file[32];
    (void)snprintf(file, sizeof file, "%s-%u", decisions_fate_sides[side].file, prompt_tokens);
    return decisions_timing_find(&sample->fate, file, decisions_fate_sides[side].mode, memory_percent, rate);
}

/* ---- popular experts ---- */

static void find_popular(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    double least = INFINITY, most = 0, sum = 0, active = NAN, all_active = 0;
    uint32_t n = 0;
    for (uint32_t layer = 0; sample->has_profile && layer < sample->profile.n_moe_layer; layer++) {
        const double share = decisions_unpopular_share(&sample->profile, layer, 0.3, &active);
        if (!isfinite(share))
            continue;
        least = fmin(least, share);
        most = fmax(most, share);
        sum += share;
        all_active += active;
        n++;
    }
    if (n == 0)
        return;
    struct experiment_claim *claim = experiment_claim_add(
        claims, "Fate, Fig. 9",
        "30 % of the experts that a prompt takes cover only 15 % of its tokens (in layer 6, for instance)");
    experiment_claim_say(
        claim,
        "prompts of %u tokens take %.1f of %u experts; the 30 %% least popular cover %.1f %% "
        "of their tokens, by layer %.1f to %.1f %%",
        sample->profile.seq_len_tokens, all_active / n, sample->n_expert, experiment_percent(sum / n),
        experiment_percent(least), experiment_percent(most));
    experiment_claim_decide(claim, least <= 0.15);
}

static void find_share(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    const struct decisions_point *quarter = decisions_find(&pair->prefill, "whole-0.25"),
                                 *all = decisions_find(&pair->prefill, "whole-1");
    if (quarter == NULL)
        return;
    struct experiment_claim *claim = decisions_pair_claim(
        claims, "Fate, Fig. 10", pair,
        "the 25 % least popular experts of a prompt in the low copy lose less than 1 %", ", perplexity");
    experiment_claim_say(claim, "%.2f (%.2f to %.2f) %%; all of them %.2f %%",
                         experiment_percent(quarter->loss), experiment_percent(quarter->low),
                         experiment_percent(quarter->high),
                         all != NULL ? experiment_percent(all->loss) : (double)NAN);
    experiment_claim_decide(claim, quarter->loss < 0.01);
}

/* The figure's two orders, at the shares where they name other experts. */
static void find_order(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    static const char *const shares[] = {"0.25", "0.5", "0.75"};
    char whole[32], popular[32];
    uint32_t n = 0, n_apart = 0;
    const struct decisions_point *first[2] = {NULL, NULL};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        (void)snprintf(whole, sizeof whole, "whole-%s", shares[i]);
        (void)snprintf(popular, sizeof popular, "popular-%s", shares[i]);
        const struct decisions_point *least = decisions_find(&pair->prefill, whole),
                                     *most = decisions_find(&pair->prefill, popular);
        if (least == NULL || most == NULL)
            continue;
        first[0] = n == 0 ? least : first[0];
        first[1] = n == 0 ? most : first[1];
        n_apart += most->low > least->high;
        n++;
    }
    if (n == 0)
        return;
    struct experiment_claim *claim = decisions_pair_claim(
        claims, "Fate, Fig. 10", pair,
        "non-popular experts at INT2 have minimal impact, in contrast popular ones give a significant drop",
        ", perplexity");
    experiment_claim_say(claim,
                         "%s %.2f (%.2f to %.2f) %%, %s %.2f (%.2f to %.2f) %%; popular ones lose more, "
                         "intervals apart, at %u of %u shares",
                         first[0]->setting, experiment_percent(first[0]->loss),
                         experiment_percent(first[0]->low), experiment_percent(first[0]->high),
                         first[1]->setting, experiment_percent(first[1]->loss),
                         experiment_percent(first[1]->low), experiment_percent(first[1]->high), n_apart, n);
    experiment_claim_decide(claim, n_apart == n);
}

/* ---- speeds ---- */

/* By which a side's time is a multiple of Fate's: of prompts or of tokens, over everything that was timed. */
struct ratios {
    uint32_t n, n_slower; /* where the side is slower than Fate */
    double most;
};

static struct ratios compare(const struct decisions_sample *sample, enum decisions_fate side, bool is_prompt,
                             double rate)
{
    struct ratios ratios = {.n = 0};
    for (size_t p = 0; p < N_PROMPT; p++)
        for (size_t m = 0; m < N_MEMORY; m++) {
            const uint32_t prompt = decisions_fate_prompts[p];
            const double memory = decisions_fate_memories[m];
            const struct decisions_timing *theirs = decisions_fate_timing(sample, side, prompt, memory, rate),
                                          *fate =
                                              decisions_fate_timing(sample, FATE_GATE, prompt, memory, rate);
            if (theirs == NULL || fate == NULL)
                continue;
            const double ratio =
                is_prompt ? theirs->ttft_ms / fate->ttft_ms : theirs->tpot_ms / fate->tpot_ms;
            ratios.n++;
            ratios.n_slower += ratio > 1;
            ratios.most = fmax(ratios.most, ratio);
        }
    return ratios;
}

static void find_speed(const struct decisions_sample *sample, struct experiment_claims *claims,
                       bool is_prompt, double rate, double demand, double paths)
{
    char sentence[192];
    const struct ratios against_demand = compare(sample, FATE_DEMAND, is_prompt, rate),
                        against_paths = compare(sample, FATE_PATHS, is_prompt, rate);
    if (against_demand.n == 0 || against_paths.n == 0)
        return;
    (void)snprintf(sentence, sizeof sentence,
                   "%s: %s up to %.1f times faster than load on demand and up to %.1f times "
                   "faster than activation paths",
                   rate > 100 ? "faster machine (here 550 MB/s)" : "slower machine (here 50 MB/s)",
                   is_prompt ? "prompts" : "tokens", demand, paths);
    struct experiment_claim *claim =
        experiment_claim_add(claims, is_prompt ? "Fate, Fig. 11" : "Fate, Fig. 12", sentence);
    experiment_claim_say(
        claim, "up to %.2f times and up to %.2f times; load on demand of INT4 up to %.2f times",
        against_demand.most, against_paths.most, compare(sample, FATE_DEMAND_INT4, is_prompt, rate).most);
    experiment_claim_decide(claim, against_demand.most >= demand && against_paths.most >= paths);
    struct experiment_claim *always = experiment_claim_add(
        claims, is_prompt ? "Fate, Fig. 11" : "Fate, Fig. 12",
        is_prompt ? "prompts: Fate consistently outperforms the baselines across diverse scenarios"
                  : "tokens: across all settings Fate is faster than the other strategies");
    experiment_claim_say(
        always, "%.0f MB/s: faster than load on demand in %u of %u, than activation paths in %u of %u", rate,
        against_demand.n_slower, against_demand.n, against_paths.n_slower, against_paths.n);
    experiment_claim_decide(always, against_demand.n_slower == against_demand.n &&
                                        against_paths.n_slower == against_paths.n);
}

static void find_little_memory(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    const double memory = decisions_fate_memories[0];
    const struct decisions_timing *demand = decisions_fate_timing(sample, FATE_DEMAND_INT4, 128, memory, 50),
                                  *paths = decisions_fate_timing(sample, FATE_PATHS, 128, memory, 50),
                                  *fate = decisions_fate_timing(sample, FATE_GATE, 128, memory, 50);
    if (demand == NULL || paths == NULL || fate == NULL)
        return;
    struct experiment_claim *worse = experiment_claim_add(
        claims, "Fate, Fig. 13", "with little memory activation paths are slower than load on demand");
    experiment_claim_say(worse, "%g %% of the experts, 50 MB/s, both INT4: %.3f against %.3f ms a token",
                         memory, paths->tpot_ms, demand->tpot_ms);
    experiment_claim_decide(worse, paths->tpot_ms > demand->tpot_ms);
    if (worse->verdict == EXPERIMENT_NO)
        experiment_claim_explain(worse, "paths read %.1f, load on demand %.1f KiB a token",
                                 paths->token_bytes / 1024, demand->token_bytes / 1024);
    const struct decisions_timing *plain = decisions_fate_timing(sample, FATE_DEMAND, 128, memory, 50);
    if (plain == NULL)
        return;
    struct experiment_claim *better = experiment_claim_add(
        claims, "Fate, Fig. 13",
        "where most experts are offloaded Fate is up to 1.8 times faster than load on demand");
    experiment_claim_say(better, "%g %% of the experts, 50 MB/s: %.2f times, %.2f times that of INT4", memory,
                         plain->tpot_ms / fate->tpot_ms, demand->tpot_ms / fate->tpot_ms);
    experiment_claim_decide(better, plain->tpot_ms / fate->tpot_ms >= 1.8);
}

static void find_parts(const struct decisions_sample *sample, struct experiment_claims *claims, double rate)
{
    static const enum decisions_fate steps[] = {FATE_DEMAND, FATE_CACHED, FATE_CACHED_INT4, FATE_GATE};
    double times[4];
    uint32_t n_faster = 0;
    for (size_t s = 0; s < 4; s++) {
        const struct decisions_timing *row = decisions_fate_timing(sample, steps[s], 128, 50, rate);
        if (row == NULL)
            return;
        times[s] = row->tpot_ms;
        n_faster += s > 0 && times[s] < times[s - 1];
    }
    struct experiment_claim *claim = experiment_claim_add(
        claims, "Fate, Fig. 14",
        "decoding gets faster with each component (there preloads first, then cache and quantisation)");
    experiment_claim_say(claim,
                         "%.0f MB/s, half of the experts: on demand %.3f ms, with a cache %.3f, at INT4 "
                         "%.3f, with preloads %.3f",
                         rate, times[0], times[1], times[2], times[3]);
    experiment_claim_decide(claim, n_faster == 3);
}

/* ---- accuracy ---- */

/* Loss of the whole model at a bitwidth; NaN where it was not measured. */
static double uniform_loss(const struct decisions_sample *sample, uint32_t bits)
{
    for (uint32_t u = 0; sample->has_profile && u < sample->profile.n_uniform; u++)
        if (sample->profile.uniform_bits[u] == bits)
            return moec_profile_loss(&sample->profile, sample->profile.uniform[u].nll);
    return NAN;
}

static void find_bits(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    const double int8 = uniform_loss(sample, 8), int4 = uniform_loss(sample, 4),
                 int2 = uniform_loss(sample, 2);
    if (!isfinite(int4) || !isfinite(int2))
        return;
    struct experiment_claim *claim =
        experiment_claim_add(claims, "Fate, Table 2",
                             "all experts at INT8 lose 0, at INT4 0.2 and at INT2 4.5 points of 59.6 % of "
                             "MMLU; here perplexity, rounded by channel");
    experiment_claim_say(claim, "INT8 %.2f %%, INT4 %.2f %%, INT2 %.2f %%", experiment_percent(int8),
                         experiment_percent(int4), experiment_percent(int2));
    claim->verdict = EXPERIMENT_SHOWN;
}

static void find_machines(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    const struct decisions_point *high = decisions_find(&pair->prefill, "high-end-0.25"),
                                 *low = decisions_find(&pair->prefill, "low-end-0.25");
    if (high == NULL || low == NULL)
        return;
    struct experiment_claim *claim = decisions_pair_claim(
        claims, "Fate, Table 3", pair,
        "less than 1 % of accuracy on the faster machine, over 3 % on the slower one", ", perplexity");
    experiment_claim_say(
        claim,
        "a quarter of a prompt's experts low: %.2f (%.2f to %.2f) %%; with mispredictions low, too: %.2f "
        "(%.2f to %.2f) %%",
        experiment_percent(high->loss), experiment_percent(high->low), experiment_percent(high->high),
        experiment_percent(low->loss), experiment_percent(low->low), experiment_percent(low->high));
    claim->verdict = EXPERIMENT_SHOWN;
}

void decisions_fate_findings(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    find_popular(sample, claims);
    for (uint32_t p = 0; p < sample->n_pair; p++)
        find_share(&sample->pairs[p], claims);
    for (uint32_t p = 0; p < sample->n_pair; p++)
        find_order(&sample->pairs[p], claims);
    find_speed(sample, claims, true, 550, 4.5, 1.9);
    find_speed(sample, claims, true, 50, 1.8, 1.5);
    find_speed(sample, claims, false, 550, 4.1, 2.2);
    find_speed(sample, claims, false, 50, 2.3, 1.6);
    find_little_memory(sample, claims);
    find_parts(sample, claims, 550);
    find_parts(sample, claims, 50);
    find_bits(sample, claims);
    for (uint32_t p = 0; p < sample->n_pair; p++)
        find_machines(&sample->pairs[p], claims);
}
