#include "experiments/decisions_time_claims.h"

#include "experiments/decisions_routing.h"
#include "profiler/common/correlation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct experiment_claim *decisions_pair_claim(struct experiment_claims *claims, const char *figure,
                                              const struct decisions_pair *pair, const char *sentence,
                                              const char *more)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%s (here %u to %u bits%s)", sentence, pair->bits, pair->low_bits,
                   more);
    return experiment_claim_add(claims, figure, text);
}

const double decisions_priors_timed[6] = {0, 0.1, 0.3, 0.5, 0.7, 0.9};
const uint32_t decisions_short_prompt = 50, decisions_long_prompt = 350;
const double decisions_rates[2] = {550, 50};
#define N_PRIOR (sizeof decisions_priors_timed / sizeof *decisions_priors_timed)

/* ---- prompts: figures to reach ---- */

#define PROMPT_MEMORY 25.0

static void claim_floor(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    char goal[160];
    const struct decisions_timing *row =
        decisions_timing_find(&pair->prompt_times, "none", "cache", PROMPT_MEMORY, 550);
    if (row == NULL || !isfinite(row->prompt_floor_ms))
        return;
    (void)snprintf(goal, sizeof goal,
                   "a prompt of %u tokens at INT%u, a quarter of the memory, 550 MB/s: within 15 %% of "
                   "max(compute, bytes / bandwidth)",
                   row->prompt_tokens, pair->bits);
    struct experiment_claim *claim = experiment_claim_add(claims, "prompts", goal);
    const double ratio = row->ttft_ms / row->prompt_floor_ms;
    experiment_claim_say(claim,
                         "%.2f times the floor: %.2f ms against %.2f ms (compute %.2f, %.1f KiB in %.2f)",
                         ratio, row->ttft_ms, row->prompt_floor_ms, row->prompt_compute_ms,
                         row->prompt_bytes / 1024, row->prompt_transfer_ms);
    experiment_claim_decide(claim, ratio <= 1.15);
    if (ratio > 1.15)
        experiment_claim_explain(
            claim, "computing and reading one after the other would take %.2f ms, %.2f times the floor",
            row->prompt_compute_ms + row->prompt_transfer_ms,
            (row->prompt_compute_ms + row->prompt_transfer_ms) / row->prompt_floor_ms);
}

/* Whether a point is of a prompt's unpopular experts alone, by counts that no token depends on later ones
 * for. */
static bool is_prefill(const struct decisions_point *point)
{
    return strncmp(point->name, "unpopular-", 10) == 0;
}

/* The setting whose prompts read least of those with the upper end of their loss within 1 %, or NULL;
 * `mildest` has the smallest upper end of all. */
static const struct decisions_point *best_prefill(const struct decisions_pair *pair,
                                                  const struct decisions_point **mildest)
{
    const struct decisions_point *best = NULL;
    double least = INFINITY;
    *mildest = NULL;
    for (uint32_t i = 0; i < pair->prefill.n; i++) {
        const struct decisions_point *point = &pair->prefill.points[i];
        const struct decisions_timing *row =
            decisions_timing_find(&pair->prompt_times, point->name, "cache", PROMPT_MEMORY, 50);
        if (!is_prefill(point) || row == NULL)
            continue;
        if (*mildest == NULL || point->high < (*mildest)->high)
            *mildest = point;
        if (point->high <= 0.01 && row->prompt_bytes < least) {
            best = point;
            least = row->prompt_bytes;
        }
    }
    return best;
}

static void claim_share(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    char goal[192];
    const struct decisions_point *mildest = NULL, *point = best_prefill(pair, &mildest);
    const struct decisions_timing *without =
        decisions_timing_find(&pair->prompt_times, "none", "cache", PROMPT_MEMORY, 50);
    if (without == NULL || mildest == NULL)
        return;
    (void)snprintf(goal, sizeof goal,
                   "prompts at 50 MB/s, INT%u for unpopular experts of INT%u: at least 10 %% fewer bytes and "
                   "less time, upper end of the loss at most 1 %%",
                   pair->low_bits, pair->bits);
    struct experiment_claim *claim = experiment_claim_add(claims, "Fate", goal);
    if (point == NULL) {
        experiment_claim_say(claim, "no share of them has the upper end of its loss within 1 %%");
        experiment_claim_decide(claim, false);
        experiment_claim_explain(claim, "%s loses %.2f (%.2f to %.2f) %%", mildest->setting,
                                 experiment_percent(mildest->loss), experiment_percent(mildest->low),
                                 experiment_percent(mildest->high));
        return;
    }
    const struct decisions_timing *with =
        decisions_timing_find(&pair->prompt_times, point->name, "cache", PROMPT_MEMORY, 50);
    const double bytes = 1 - with->prompt_bytes / without->prompt_bytes,
                 time = 1 - with->ttft_ms / without->ttft_ms;
    experiment_claim_say(
        claim,
        "%s: %.1f instead of %.1f KiB (%+.0f %%), %.1f instead of %.1f ms (%+.0f %%) at a loss of "
        "%.2f (%.2f to %.2f) %%",
        point->setting, with->prompt_bytes / 1024, without->prompt_bytes / 1024, -experiment_percent(bytes),
        with->ttft_ms, without->ttft_ms, -experiment_percent(time), experiment_percent(point->loss),
        experiment_percent(point->low), experiment_percent(point->high));
    experiment_claim_decide(claim, bytes >= 0.1 && time > 0);
    if (bytes < 0.1 || time <= 0)
        experiment_claim_explain(claim, "the floor of its prompt is %.1f ms, without %.1f ms",
                                 with->prompt_floor_ms, without->prompt_floor_ms);
}

void decisions_time_goals(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    for (uint32_t p = 0; p < sample->n_pair; p++)
        claim_floor(&sample->pairs[p], claims);
    for (uint32_t p = 0; p < sample->n_pair; p++)
        claim_share(&sample->pairs[p], claims);
}

/* ---- cache-conditional experts: ranks and choices ---- */

static void find_ranks(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    const struct moec_profile *profile = &sample->studies;
    const double left = decisions_rank_loss(profile, "cut", 2, ""),
                 low = decisions_rank_loss(profile, "cut", 2, "_low"),
                 high = decisions_rank_loss(profile, "cut", 2, "_high"),
                 last = decisions_rank_loss(profile, "cut", sample->top_k, "");
    if (!isfinite(left) || !isfinite(low))
        return;
    struct experiment_claim *claim = experiment_claim_add(
        claims, "Fig. 2", "dropping the second expert and those after it leads to a performance drop");
    experiment_claim_say(claim, "loss %.2f (%.2f to %.2f) %%; the %s expert alone %.2f %%",
                         experiment_percent(left), experiment_percent(low), experiment_percent(high), "last",
                         experiment_percent(last));
    experiment_claim_decide(claim, low > 0);
    const double first = decisions_rank_loss(profile, "random swap", 1, ""),
                 second = decisions_rank_loss(profile, "random swap", 2, ""),
                 third = decisions_rank_loss(profile, "random swap", 3, "");
    if (!isfinite(first) || !isfinite(second))
        return;
    struct experiment_claim *swap = experiment_claim_add(
        claims, "Fig. 2",
        "a random expert in the place of the first severely compromises the model, of the second noticeably; "
        "granular models lose minimally from the third on");
    experiment_claim_say(swap, "in the place of the first %.2f %%, the second %.2f %%, the third %.2f %%",
                         experiment_percent(first), experiment_percent(second), experiment_percent(third));
    swap->verdict = EXPERIMENT_SHOWN;
}

static void find_choices(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    double sum = 0, most = 0, last = NAN;
    uint32_t n = 0, best = 0;
    for (uint32_t layer = 0; layer < sample->n_layer; layer++) {
        const double share = decisions_choice_share(&sample->studies, layer);
        if (!isfinite(share))
            continue;
        sum += share;
        n++;
        last = share;
        if (share > most) {
            most = share;
            best = layer;
        }
    }
    if (n == 0)
        return;
    struct experiment_claim *mean = experiment_claim_add(
        claims, "appendix A", "the router's last expert is the best one in its place for 28 % of the tokens");
    experiment_claim_say(mean, "for %.0f %%, over %u layers, of %u experts a token",
                         experiment_percent(sum / n), n, sample->top_k);
    mean->verdict = EXPERIMENT_SHOWN;
    struct experiment_claim *deep =
        experiment_claim_add(claims, "appendix A", "it is so most often, for 38 %, in the last layer");
    experiment_claim_say(deep, "most often, for %.0f %%, in MoE layer %u of %u; in the last for %.0f %%",
                         experiment_percent(most), best + 1, sample->n_layer, experiment_percent(last));
    experiment_claim_decide(deep, last == most);
}

/* ---- cache-conditional experts: throughput ---- */

const struct decisions_timing *decisions_prior_timing(const struct decisions_sample *sample, double prior,
                                                      uint32_t n_slots, uint32_t prompt_tokens)
{
    char file[64];
    (void)snprintf(file, sizeof file, "prior-%g-%u-%u", prior, n_slots, prompt_tokens);
    return decisions_timing_find(&sample->throughput, file, "cache", 100.0 * n_slots / sample->n_expert, 550);
}

/* Hit rates and times a token's speed without a prior, of all priors with so many slots; returns how many. */
static uint32_t list_speeds(const struct decisions_sample *sample, uint32_t n_slots,
                            double hits[static N_PRIOR], double speeds[static N_PRIOR])
{
    const struct decisions_timing *none = decisions_prior_timing(sample, 0, n_slots, decisions_short_prompt);
    uint32_t n = 0;
    for (size_t p = 0; p < N_PRIOR && none != NULL; p++) {
        const struct decisions_timing *row =
            decisions_prior_timing(sample, decisions_priors_timed[p], n_slots, decisions_short_prompt);
        if (row == NULL)
            continue;
        hits[n] = row->hit_rate;
        speeds[n++] = none->tpot_ms / row->tpot_ms;
    }
    return n;
}

/* Once everything is hit, a stronger prior has nothing left to change. */
static bool has_step(const double *hits, uint32_t i)
{
    return fabs(hits[i] - hits[i - 1]) >= 0.001;
}

static void find_throughput(const struct decisions_sample *sample, struct experiment_claims *claims,
                            uint32_t n_slots)
{
    double hits[N_PRIOR], speeds[N_PRIOR];
    char sentence[192];
    const uint32_t n = list_speeds(sample, n_slots, hits, speeds);
    uint32_t n_step = 0, n_rise = 0;
    if (n < 3)
        return;
    for (uint32_t i = 1; i < n; i++) {
        n_step += has_step(hits, i);
        n_rise += has_step(hits, i) && hits[i] > hits[i - 1] && speeds[i] > speeds[i - 1];
    }
    (void)snprintf(
        sentence, sizeof sentence,
        "as L rises the hit rate improves and throughput increases, nearly linearly (here %u of %u "
        "experts cached)",
        n_slots, sample->n_expert);
    struct experiment_claim *claim = experiment_claim_add(claims, "Fig. 8", sentence);
    experiment_claim_say(
        claim,
        "both rise at %u of %u steps of L that change hits; correlation %.3f; %.1f to %.1f %% hits, "
        "at last %.2f times as fast",
        n_rise, n_step, moec_correlation_pearson(hits, speeds, n), experiment_percent(hits[0]),
        experiment_percent(hits[n - 1]), speeds[n - 1]);
    experiment_claim_decide(claim, n_rise == n_step);
    for (uint32_t i = 1; i < n; i++)
        if (has_step(hits, i) && !(hits[i] > hits[i - 1] && speeds[i] > speeds[i - 1]))
            experiment_claim_explain(claim, "%s%.1f to %.1f %% hits: %.2f to %.2f times",
                                     claim->why[0] != '\0' ? "; " : "", experiment_percent(hits[i - 1]),
                                     experiment_percent(hits[i]), speeds[i - 1], speeds[i]);
}

static void find_twice(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    double hits[N_PRIOR], speeds[N_PRIOR], best = 0;
    const uint32_t n = list_speeds(sample, sample->n_expert / 2, hits, speeds);
    for (uint32_t i = 0; i < n; i++)
        best = fmax(best, speeds[i]);
    if (n < 2)
        return;
    struct experiment_claim *claim =
        experiment_claim_add(claims, "section 4.5", "on the device over 2 times faster than with LRU");
    experiment_claim_say(claim, "%.2f times, half of the experts in memory, 550 MB/s", best);
    experiment_claim_decide(claim, best > 2);
    const struct decisions_timing *none =
        decisions_prior_timing(sample, 0, sample->n_expert / 2, decisions_short_prompt);
    if (best <= 2 && none != NULL)
        experiment_claim_explain(claim, "of %.3f ms a token without a prior %.3f are computing",
                                 none->tpot_ms, none->compute_ms);
}

static void find_prompts(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    const uint32_t sizes[] = {sample->n_expert / 2, sample->n_expert * 3 / 4};
    uint32_t n = 0, n_faster = 0;
    double least = INFINITY, most = 0;
    for (size_t s = 0; s < 2; s++)
        for (size_t p = 0; p < N_PRIOR; p++) {
            const struct decisions_timing *brief = decisions_prior_timing(sample, decisions_priors_timed[p],
                                                                          sizes[s], decisions_short_prompt),
                                          *full = decisions_prior_timing(sample, decisions_priors_timed[p],
                                                                         sizes[s], decisions_long_prompt);
            if (brief == NULL || full == NULL)
                continue;
            const double ratio = brief->tpot_ms / full->tpot_ms;
            n++;
            n_faster += ratio > 1;
            least = fmin(least, ratio);
            most = fmax(most, ratio);
        }
    if (n == 0)
        return;
    struct experiment_claim *claim = experiment_claim_add(
        claims, "Fig. 8 and 17",
        "across all values of L longer prompts yield higher throughput (of generated tokens)");
    experiment_claim_say(claim,
                         "with %u instead of %u tokens of prompt at %u of %u settings, %.2f to %.2f times",
                         decisions_long_prompt, decisions_short_prompt, n_faster, n, least, most);
    experiment_claim_decide(claim, n_faster == n);
}

void decisions_cache_findings(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    if (sample->has_studies) {
        find_ranks(sample, claims);
        find_choices(sample, claims);
    }
    find_throughput(sample, claims, sample->n_expert / 2);
    find_throughput(sample, claims, sample->n_expert * 3 / 4);
    find_twice(sample, claims);
    find_prompts(sample, claims);
}

/* ---- HOBBIT ---- */

static const struct decisions_timing *dynamic_timing(const struct decisions_pair *pair, bool is_on,
                                                     uint32_t ahead, double rate)
{
    char file[16];
    (void)snprintf(file, sizeof file, "%s-%u", is_on ? "on" : "off", ahead);
    return decisions_timing_find(&pair->dynamic, file, "cache", 50, rate);
}

/* How much faster a token is with precisions at a miss, preloading for the next layer on both sides. */
static double dynamic_speedup(const struct decisions_pair *pair, double rate)
{
    const struct decisions_timing *off = dynamic_timing(pair, false, 1, rate),
                                  *on = dynamic_timing(pair, true, 1, rate);
    return off != NULL && on != NULL ? off->tpot_ms / on->tpot_ms : (double)NAN;
}

static void find_dynamic(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    const double fast = dynamic_speedup(pair, 550), slow = dynamic_speedup(pair, 50);
    if (!isfinite(fast) || !isfinite(slow))
        return;
    struct experiment_claim *claim = decisions_pair_claim(
        claims, "HOBBIT, Fig. 16", pair, "dynamic loading makes a token 1.19 to 1.57 times faster",
        ", half of the experts in memory");
    experiment_claim_say(claim, "%.2f times at 550 MB/s, %.2f times at 50 MB/s", fast, slow);
    experiment_claim_decide(claim, fast >= 1.19 && slow >= 1.19);
    const struct decisions_timing *off = dynamic_timing(pair, false, 1, 550),
                                  *on = dynamic_timing(pair, true, 1, 550);
    if (claim->verdict == EXPERIMENT_NO)
        experiment_claim_explain(
            claim, "a token reads %.1f instead of %.1f KiB, and computing takes %.3f of %.3f ms",
            on->token_bytes / 1024, off->token_bytes / 1024, off->compute_ms, off->tpot_ms);
    struct experiment_claim *slower = experiment_claim_add(
        claims, "HOBBIT, Fig. 16", "dynamic loading gains most where transfers are slowest");
    experiment_claim_say(slower, "INT%u to INT%u: %.2f times at 50 MB/s, %.2f times at 550 MB/s", pair->bits,
                         pair->low_bits, slow, fast);
    experiment_claim_decide(slower, slow > fast);
}

/* Speedup of a token by preloads for so many layers ahead. */
static double preload_speedup(const struct decisions_pair *pair, bool is_on, uint32_t ahead, double rate)
{
    const struct decisions_timing *without = dynamic_timing(pair, is_on, 0, rate),
                                  *with = dynamic_timing(pair, is_on, ahead, rate);
    return without != NULL && with != NULL ? without->tpot_ms / with->tpot_ms : (double)NAN;
}

static void find_preloads(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    const double off = preload_speedup(pair, false, 1, 550), on = preload_speedup(pair, true, 1, 550);
    if (!isfinite(off) || !isfinite(on))
        return;
    struct experiment_claim *claim = decisions_pair_claim(
        claims, "HOBBIT, Fig. 17b", pair,
        "with dynamic loading preloads make a token about 1.05 times faster, without at most 1.01 times", "");
    experiment_claim_say(claim,
                         "550 MB/s: with it %.2f times, without it %.2f times; 50 MB/s: %.2f and %.2f times",
                         on, off, preload_speedup(pair, true, 1, 50), preload_speedup(pair, false, 1, 50));
    experiment_claim_decide(claim, on >= 1.045 && off < 1.015);
    const struct decisions_timing *without = dynamic_timing(pair, true, 0, 550),
                                  *with = dynamic_timing(pair, true, 1, 550);
    struct experiment_claim *prompt = experiment_claim_add(
        claims, "HOBBIT, Fig. 17b", "preloads reduce the time of a prompt by about 10 %");
    experiment_claim_say(prompt, "INT%u to INT%u: by %.0f %%, %.2f instead of %.2f ms", pair->bits,
                         pair->low_bits, experiment_percent(1 - with->ttft_ms / without->ttft_ms),
                         with->ttft_ms, without->ttft_ms);
    experiment_claim_decide(prompt, with->ttft_ms <= 0.905 * without->ttft_ms);
    double best = 0, more = 0;
    for (uint32_t ahead = 1; ahead <= 4; ahead++) {
        const double speedup = preload_speedup(pair, true, ahead, 550);
        if (ahead <= 3)
            best = fmax(best, speedup);
        else
            more = speedup;
    }
    struct experiment_claim *ahead =
        experiment_claim_add(claims, "HOBBIT, Fig. 17b",
                             "the number of layers ahead is best between 1 and 3; more is slightly worse");
    experiment_claim_say(ahead, "INT%u to INT%u: 1 to 3 layers up to %.3f times, 4 layers %.3f times",
                         pair->bits, pair->low_bits, best, more);
    experiment_claim_decide(ahead, best >= more);
}

/* What asking gates costs where everything is in memory, so that each walk goes all the way. */
static double gate_cost_ms(const struct decisions_pair *pair, uint32_t ahead)
{
    char file[16];
    (void)snprintf(file, sizeof file, "off-%u", ahead);
    const struct decisions_timing *with = decisions_timing_find(&pair->dynamic, file, "cache", 100, 550),
                                  *without =
                                      decisions_timing_find(&pair->dynamic, "off-0", "cache", 100, 550);
    return with != NULL && without != NULL ? with->tpot_ms - without->tpot_ms : (double)NAN;
}

static void find_gates(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    if (!isfinite(gate_cost_ms(pair, 1)) || !isfinite(gate_cost_ms(pair, 4)))
        return;
    struct experiment_claim *claim = experiment_claim_add(
        claims, "HOBBIT, Fig. 17a",
        "asking gates one by one takes time in proportion to their number, stacked it is stable");
    experiment_claim_say(
        claim,
        "one by one, everything in memory: a token takes %.1f, %.1f, %.1f and %.1f us longer with 1 to "
        "4 layers ahead",
        1e3 * gate_cost_ms(pair, 1), 1e3 * gate_cost_ms(pair, 2), 1e3 * gate_cost_ms(pair, 3),
        1e3 * gate_cost_ms(pair, 4));
    claim->verdict = EXPERIMENT_SHOWN;
}

/* Against the other policies at both sizes. */
static void find_penalty(const struct decisions_sample *sample, struct experiment_claims *claims,
                         const char *other, double least, const char *sentence)
{
    double less[2];
    for (size_t m = 0; m < 2; m++) {
        const double memory = m == 0 ? 25 : 50;
        const struct decisions_eviction *tuned = decisions_eviction_find(&sample->evictions, "tuned", memory),
                                        *theirs = decisions_eviction_find(&sample->evictions, other, memory);
        if (tuned == NULL || theirs == NULL || !isfinite(tuned->stall_ms))
            return;
        less[m] = 1 - tuned->stall_ms / theirs->stall_ms;
    }
    struct experiment_claim *claim = experiment_claim_add(claims, "HOBBIT, Fig. 18a", sentence);
    experiment_claim_say(claim,
                         "waits for storage: %.1f %% less with a quarter of the experts, %.1f %% with half",
                         experiment_percent(less[0]), experiment_percent(less[1]));
    experiment_claim_decide(claim, less[0] >= least && less[1] >= least);
    if (claim->verdict == EXPERIMENT_NO)
        for (size_t m = 0; m < 2; m++) {
            const double memory = m == 0 ? 25 : 50;
            experiment_claim_explain(
                claim, "%shits %.1f and %.1f %%", m == 0 ? "" : "; ",
                experiment_percent(decisions_eviction_find(&sample->evictions, "tuned", memory)->hit_rate),
                experiment_percent(decisions_eviction_find(&sample->evictions, other, memory)->hit_rate));
        }
}

static void find_lowest(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    static const char *const others[] = {"random", "lru", "lfu"};
    uint32_t n = 0, n_lower = 0;
    char list[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < 6; i++) {
        const double memory = i < 3 ? 25 : 50;
        const struct decisions_eviction *tuned = decisions_eviction_find(&sample->evictions, "tuned", memory),
                                        *theirs = decisions_eviction_find(&sample->evictions, others[i % 3],
                                                                          memory);
        if (tuned == NULL || theirs == NULL || !isfinite(tuned->stall_ms))
            return;
        n++;
        n_lower += tuned->stall_ms < theirs->stall_ms;
        if (tuned->stall_ms >= theirs->stall_ms && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s in %.0f %%: %.3f and %.3f ms",
                                     used > 0 ? "; " : "", others[i % 3], memory, theirs->stall_ms,
                                     tuned->stall_ms);
    }
    struct experiment_claim *claim =
        experiment_claim_add(claims, "HOBBIT, Fig. 18a",
                             "its eviction consistently has the lowest miss penalty, of LRU, LFU and random");
    experiment_claim_say(claim, "waits for storage are shorter than theirs in %u of %u cases", n_lower, n);
    experiment_claim_decide(claim, n_lower == n);
    if (n_lower < n)
        experiment_claim_explain(claim, "%s", list);
}

static void find_windows(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    double more[2], recency[2];
    for (size_t m = 0; m < 2; m++) {
        const double memory = m == 0 ? 25 : 50;
        const struct decisions_eviction *own =
                                            decisions_eviction_find(&sample->evictions, "window-lfu", memory),
                                        *lfu = decisions_eviction_find(&sample->evictions, "lfu", memory),
                                        *recent =
                                            decisions_eviction_find(&sample->evictions, "window-lru", memory),
                                        *lru = decisions_eviction_find(&sample->evictions, "lru", memory);
        if (own == NULL || lfu == NULL || recent == NULL || lru == NULL)
            return;
        more[m] = own->hit_rate / lfu->hit_rate - 1;
        recency[m] = recent->hit_rate / lru->hit_rate - 1;
    }
    struct experiment_claim *claim =
        experiment_claim_add(claims, "HOBBIT, Fig. 18b",
                             "an lfu of each sequence has a hit ratio 4.5 % higher than one of the model");
    experiment_claim_say(claim, "%+.1f %% with a quarter of the experts, %+.1f %% with half",
                         experiment_percent(more[0]), experiment_percent(more[1]));
    experiment_claim_decide(claim, more[0] >= 0.045 && more[1] >= 0.045);
    struct experiment_claim *others = experiment_claim_add(
        claims, "HOBBIT, Fig. 18b", "other policies perform similarly for a sequence and for the model");
    experiment_claim_say(others, "lru of each sequence: hit ratio %+.1f and %+.1f %%",
                         experiment_percent(recency[0]), experiment_percent(recency[1]));
    others->verdict = EXPERIMENT_SHOWN;
}

void decisions_hobbit_findings(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    for (uint32_t p = 0; p < sample->n_pair; p++) {
        find_dynamic(&sample->pairs[p], claims);
        find_preloads(&sample->pairs[p], claims);
    }
    if (sample->n_pair > 0)
        find_gates(&sample->pairs[0], claims);
    find_penalty(sample, claims, "lru", 0.0469,
                 "its eviction has a miss penalty 4.69 to 8.68 % lower than LRU");
    find_penalty(sample, claims, "lfu", 0.0213,
                 "its eviction has a miss penalty 2.13 to 4.19 % lower than LFU");
    find_lowest(sample, claims);
    find_windows(sample, claims);
}
