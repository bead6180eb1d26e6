#include "experiments/decisions_claims.h"

#include "experiments/decisions_blocks.h"
#include "experiments/decisions_fronts.h"
#include "experiments/decisions_systems.h"
#include "experiments/decisions_time_claims.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define HALF(sample)    ((sample)->n_expert / 2)
#define QUARTER(sample) ((sample)->n_expert / 4)

/* ---- figures to reach ---- */

/* The mildest prior with so few misses, and what it loses. */
static void explain_prior(const struct decisions_sample *sample, struct experiment_claim *claim,
                          const struct decisions_point *plain, double n_missed)
{
    const struct decisions_point *mildest = NULL;
    for (uint32_t i = 0; i < sample->routes.n; i++) {
        const struct decisions_point *point = &sample->routes.points[i];
        if (point->method == DECISIONS_PRIOR && point->n_slots == plain->n_slots &&
            point->n_missed <= n_missed && (mildest == NULL || point->high < mildest->high))
            mildest = point;
    }
    if (mildest != NULL)
        experiment_claim_explain(
            claim, "%s, keeping %u, misses %.1f %% and loses %.2f (%.2f to %.2f) %% on %.0f windows",
            mildest->setting, mildest->keep_top, experiment_percent(decisions_miss_rate(mildest)),
            experiment_percent(mildest->loss), experiment_percent(mildest->low),
            experiment_percent(mildest->high), mildest->n_window);
}

/* The prior with the fewest misses whose loss is at most 1 % with the upper end of its interval, too. */
static void claim_prior(const struct decisions_sample *sample, struct experiment_claims *claims,
                        uint32_t n_slots, double fewer, bool below_belady, const char *goal)
{
    struct experiment_claim *claim = experiment_claim_add(claims, "cache-prior", goal);
    const struct decisions_point *plain = decisions_plain(&sample->routes, n_slots);
    const struct decisions_point *best =
        decisions_fewest_misses(&sample->routes, DECISIONS_PRIOR, n_slots, 0.01, true);
    if (plain == NULL)
        return;
    if (best == NULL) {
        experiment_claim_say(claim, "no setting has the upper end of its loss within 1 %%");
        experiment_claim_decide(claim, false);
        return;
    }
    const double before = decisions_miss_rate(plain), after = decisions_miss_rate(best);
    const bool is_below = !below_belady || best->n_missed < plain->n_belady_missed;
    experiment_claim_say(claim,
                         "%s, keeping %u: %.1f to %.1f %% (%.0f %% fewer) at a loss of %.2f (%.2f to %.2f) "
                         "%%; Belady %.1f %%",
                         best->setting, best->keep_top, experiment_percent(before), experiment_percent(after),
                         experiment_percent(1 - after / before), experiment_percent(best->loss),
                         experiment_percent(best->low), experiment_percent(best->high),
                         experiment_percent(decisions_belady_rate(plain)));
    const bool is_reached = after <= (1 - fewer) * before && is_below;
    experiment_claim_decide(claim, is_reached);
    if (!is_reached)
        explain_prior(sample, claim, plain, (1 - fewer) * plain->n_missed);
}

/* 4-bit experts with low copies of 2 bits, by HOBBIT's own scores. */
static void claim_bytes(const struct decisions_sample *sample, struct experiment_claims *claims,
                        const struct decisions_pair *pair, uint32_t n_slots)
{
    char name[64];
    struct experiment_claim *claim = experiment_claim_add(
        claims, "HOBBIT",
        n_slots == HALF(sample)
            ? "4 to 2 bits, half of the experts: at least 1.2 times fewer bytes than "
              "static INT4, equal buffer"
            : "4 to 2 bits, a quarter: at least 1.2 times fewer bytes than static INT4, equal buffer");
    (void)snprintf(name, sizeof name, "equal-%u", n_slots);
    const struct decisions_point *still = decisions_find(&pair->group, name);
    (void)snprintf(name, sizeof name, "hobbit-0.6-0.9-%u", n_slots);
    const struct decisions_point *hobbit = decisions_find(&pair->group, name);
    if (still == NULL || hobbit == NULL)
        return;
    const double ratio = still->token_bytes / hobbit->token_bytes;
    experiment_claim_say(
        claim,
        "%.2f times: %.1f KiB a token (%u slots, %u low ones) against %.1f KiB (%u slots), at a "
        "loss of %.2f (%.2f to %.2f) %%",
        ratio, hobbit->token_bytes / 1024, hobbit->n_slots, hobbit->n_low_slots, still->token_bytes / 1024,
        still->n_slots, experiment_percent(hobbit->loss), experiment_percent(hobbit->low),
        experiment_percent(hobbit->high));
    experiment_claim_decide(claim, ratio >= 1.2);
}

bool decisions_tuning_holds(const struct decisions_tuning *tuning)
{
    const double difference = tuning->test.loss - tuning->loss;
    const double certificate = difference > 0 ? tuning->high - tuning->loss : tuning->loss - tuning->low;
    const double test =
        difference > 0 ? tuning->test.loss - tuning->test.low : tuning->test.high - tuning->test.loss;
    return fabs(difference) <= hypot(certificate, test);
}

static void claim_tunings(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    uint32_t n = 0, n_holding = 0, n_within = 0;
    struct experiment_claim *claim = experiment_claim_add(
        claims, "certificates",
        "20 tunings: held-out loss minus certificate within their joint 90 % interval in at least 15");
    for (uint32_t t = 0; t < sample->n_tuning; t++) {
        const struct decisions_tuning *tuning = &sample->tunings[t];
        if (!decisions_tuning_is_seeded(tuning) || !isfinite(tuning->test.loss))
            continue;
        n++;
        n_holding += decisions_tuning_holds(tuning);
        n_within += tuning->test.loss <= tuning->target;
    }
    if (n == 0)
        return;
    experiment_claim_say(claim, "in %u of %u; the held-out loss itself is within the target in %u", n_holding,
                         n, n_within);
    if (n >= 20)
        experiment_claim_decide(claim, n_holding * 20 >= 15 * n);
    else
        claim->verdict = EXPERIMENT_SHOWN;
}

/* The combinations: one technique each, pairs, and all. */
static void claim_combinations(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    struct experiment_claim *claim = experiment_claim_add(
        claims, "combinations",
        "cache-prior, HOBBIT, Fate's prefill, max-rank, their pairs and all: each with a certificate and a "
        "held-out loss within their joint 90 % interval");
    uint32_t n = 0, n_holding = 0;
    const struct decisions_tuning *other = NULL;
    for (uint32_t t = 0; t < sample->n_tuning; t++) {
        const struct decisions_tuning *tuning = &sample->tunings[t];
        if (strncmp(tuning->name, "with-", 5) != 0 || !isfinite(tuning->test.loss))
            continue;
        n++;
        n_holding += decisions_tuning_holds(tuning);
        other = decisions_tuning_holds(tuning) ? other : tuning;
    }
    if (n == 0)
        return;
    experiment_claim_say(claim, "%u of 8 have a certificate, of which %u hold", n, n_holding);
    experiment_claim_decide(claim, n == 8 && n_holding == 8);
    if (other != NULL)
        experiment_claim_explain(
            claim, "%s: promised %.2f (%.2f to %.2f) %%, held out %.2f (%.2f to %.2f) %%", other->setting,
            experiment_percent(other->loss), experiment_percent(other->low), experiment_percent(other->high),
            experiment_percent(other->test.loss), experiment_percent(other->test.low),
            experiment_percent(other->test.high));
}

/* The faster of the tunings with a route, against bits alone. */
static void claim_decoding(const struct decisions_decoding *decoding, struct experiment_claims *claims,
                           double least)
{
    char goal[192];
    (void)snprintf(
        goal, sizeof goal,
        "%u MB/s, %u %% of the experts in memory: tuned decisions at least %.2f times faster per token "
        "than bits alone at the same certified loss",
        decoding->rate, decoding->share, least);
    struct experiment_claim *claim = experiment_claim_add(claims, "decoding", goal);
    const enum decisions_side side =
        decoding->sides[DECISIONS_BOTH].tpot_ms < decoding->sides[DECISIONS_ROUTE].tpot_ms ? DECISIONS_BOTH
                                                                                           : DECISIONS_ROUTE;
    const double still = decoding->sides[DECISIONS_STATIC].tpot_ms, tuned = decoding->sides[side].tpot_ms;
    if (!isfinite(still) || !isfinite(tuned))
        return;
    experiment_claim_say(claim, "%.2f times: %s %.3f ms (preloads: %s) against %.3f ms (%s)", still / tuned,
                         decisions_side_name(side), tuned, decoding->sides[side].predictor, still,
                         decoding->sides[DECISIONS_STATIC].predictor);
    experiment_claim_decide(claim, still / tuned >= least);
    if (still / tuned < least)
        experiment_claim_explain(claim,
                                 "it reads %.1f KiB a token and finds %.0f %% of its experts in the buffer, "
                                 "bits alone %.1f KiB and %.0f %%",
                                 decoding->sides[side].token_bytes / 1024,
                                 experiment_percent(decoding->sides[side].hit_rate),
                                 decoding->sides[DECISIONS_STATIC].token_bytes / 1024,
                                 experiment_percent(decoding->sides[DECISIONS_STATIC].hit_rate));
}

static void claim_hobbit_decoding(const struct decisions_decoding *decoding, struct experiment_claims *claims)
{
    char goal[160];
    (void)snprintf(goal, sizeof goal,
                   "%u MB/s, %u %% of the experts in memory: HOBBIT alone faster than bits alone at the same "
                   "certified loss",
                   decoding->rate, decoding->share);
    struct experiment_claim *claim = experiment_claim_add(claims, "HOBBIT", goal);
    const double still = decoding->sides[DECISIONS_STATIC].tpot_ms,
                 hobbit = decoding->sides[DECISIONS_PRECISION].tpot_ms;
    if (!isfinite(still) || !isfinite(hobbit))
        return;
    experiment_claim_say(claim, "%.2f times: %.3f against %.3f ms", still / hobbit, hobbit, still);
    experiment_claim_decide(claim, hobbit < still);
    if (!(hobbit < still))
        experiment_claim_explain(claim, "it reads %.1f KiB a token, bits alone %.1f KiB",
                                 decoding->sides[DECISIONS_PRECISION].token_bytes / 1024,
                                 decoding->sides[DECISIONS_STATIC].token_bytes / 1024);
}

void decisions_goals(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    claims->n = 0;
    claim_prior(
        sample, claims, HALF(sample), 0.5, true,
        "half of the experts: misses at least halved and below Belady's, upper end of the loss at most 1 %");
    claim_prior(sample, claims, QUARTER(sample), 0.4, false,
                "a quarter of the experts: at least 40 % fewer misses, upper end of the loss at most 1 %");
    for (uint32_t p = 0; p < sample->n_pair; p++) {
        const struct decisions_pair *pair = &sample->pairs[p];
        if (pair->bits != 4 || pair->low_bits != 2)
            continue;
        claim_bytes(sample, claims, pair, HALF(sample));
        claim_bytes(sample, claims, pair, QUARTER(sample));
    }
    for (uint32_t d = 0; d < DECISIONS_N_DECODING; d++)
        claim_decoding(&sample->decodings[d], claims, sample->decodings[d].rate == 550 ? 1.35 : 1.6);
    for (uint32_t d = 0; d < DECISIONS_N_DECODING; d++)
        claim_hobbit_decoding(&sample->decodings[d], claims);
    decisions_time_goals(sample, claims);
    decisions_block_goals(sample, claims);
    claim_combinations(sample, claims);
    claim_tunings(sample, claims);
}

/* ---- cache-conditional experts ---- */

/* How many points of a method another method's front beats, both keeping as many experts as in the paper:
 * more loss at as many misses. */
struct comparison {
    uint32_t n, n_beaten;
    const struct decisions_point *unbeaten; /* the first */
};

static struct comparison compare(const struct decisions_sample *sample, uint32_t n_slots,
                                 enum decisions_method better, enum decisions_method worse)
{
    struct decisions_front front;
    struct comparison comparison = {.n = 0};
    const uint32_t keep = decisions_usual_keep(sample);
    const struct decisions_point *plain = decisions_plain(&sample->routes, n_slots);
    if (plain == NULL)
        return comparison;
    decisions_front_make(&sample->routes, better, n_slots, keep, &front);
    for (uint32_t i = 0; i < sample->routes.n; i++) {
        const struct decisions_point *point = &sample->routes.points[i];
        if (point->method != worse || point->n_slots != n_slots ||
            (point->method != DECISIONS_PRUNE && point->keep_top != keep))
            continue;
        const double loss = decisions_front_loss(&front, decisions_miss_rate(point));
        /* Settings too mild to spare a miss are the router's own: there is nothing to beat. */
        if (!isfinite(loss) || point->n_missed > 0.999 * plain->n_missed)
            continue;
        comparison.n++;
        if (loss <= point->loss)
            comparison.n_beaten++;
        else if (comparison.unbeaten == NULL)
            comparison.unbeaten = point;
    }
    return comparison;
}

static void find_order(const struct decisions_sample *sample, struct experiment_claims *claims,
                       const char *figure, const char *sentence, uint32_t n_slots,
                       enum decisions_method better, uint32_t n_worse, const enum decisions_method *worse)
{
    struct experiment_claim *claim = experiment_claim_add(claims, figure, sentence);
    struct comparison sum = {.n = 0};
    for (uint32_t w = 0; w < n_worse; w++) {
        const struct comparison one = compare(sample, n_slots, better, worse[w]);
        sum.n += one.n;
        sum.n_beaten += one.n_beaten;
        sum.unbeaten = sum.unbeaten != NULL ? sum.unbeaten : one.unbeaten;
    }
    if (sum.n == 0)
        return;
    experiment_claim_say(claim,
                         "%s loses less at as many misses than %u of %u settings of the others (J = %u)",
                         decisions_methods[better], sum.n_beaten, sum.n, decisions_usual_keep(sample));
    experiment_claim_decide(claim, sum.n_beaten == sum.n);
    if (sum.unbeaten != NULL)
        experiment_claim_explain(claim, "%s loses %.2f %% at %.1f %% misses", sum.unbeaten->setting,
                                 experiment_percent(sum.unbeaten->loss),
                                 experiment_percent(decisions_miss_rate(sum.unbeaten)));
}

static void find_orders(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    static const enum decisions_method others[] = {DECISIONS_PRUNE, DECISIONS_MAX_RANK, DECISIONS_CUMSUM};
    find_order(
        sample, claims, "Fig. 4",
        "half of the experts: cache-prior consistently outperforms all baselines, across all ranges of "
        "perplexity and misses",
        HALF(sample), DECISIONS_PRIOR, 3, others);
    find_order(sample, claims, "Fig. 14",
               "a quarter of the experts: cache-prior outperforms all other methods across the board",
               QUARTER(sample), DECISIONS_PRIOR, 3, others);
    find_order(sample, claims, "Fig. 4", "max-rank consistently surpasses pruning", HALF(sample),
               DECISIONS_MAX_RANK, 1, &others[0]);
    find_order(sample, claims, "Fig. 4", "cumsum consistently outperforms max-rank", HALF(sample),
               DECISIONS_CUMSUM, 1, &others[1]);
}

static void find_half(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    struct experiment_claim *claim = experiment_claim_add(
        claims, "abstract", "cache miss rates fall by over 50 %, at a perplexity 0.1 to 3 % higher");
    const struct decisions_point *plain = decisions_plain(&sample->routes, HALF(sample));
    const struct decisions_point *best =
        decisions_fewest_misses(&sample->routes, DECISIONS_PRIOR, HALF(sample), 0.03, false);
    if (plain == NULL || best == NULL)
        return;
    const double fewer = 1 - best->n_missed / plain->n_missed;
    experiment_claim_say(claim, "%s: %.0f %% fewer at a loss of %.2f (%.2f to %.2f) %%", best->setting,
                         experiment_percent(fewer), experiment_percent(best->loss),
                         experiment_percent(best->low), experiment_percent(best->high));
    experiment_claim_decide(claim, fewer > 0.5);
}

static void find_belady(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    struct experiment_claim *claim =
        experiment_claim_add(claims, "Fig. 9", "Belady's rule roughly halves the miss rates of LRU");
    const struct decisions_point *plain = decisions_plain(&sample->routes, HALF(sample));
    if (plain == NULL)
        return;
    experiment_claim_say(
        claim, "half of the experts: LRU misses %.1f %%, Belady's rule %.1f %%, %.2f times as many",
        experiment_percent(decisions_miss_rate(plain)), experiment_percent(decisions_belady_rate(plain)),
        plain->n_belady_missed / plain->n_missed);
    claim->verdict = EXPERIMENT_SHOWN;
}

/* At every cache size that was measured, all experts left out. The paper goes down to one expert; a cache has
 * at least a token's experts here, where LRU and Belady's rule miss alike. */
static void find_sizes(const struct decisions_sample *sample, struct experiment_claims *claims, double limit)
{
    char sentence[192];
    uint32_t n = 0, n_below = 0;
    (void)snprintf(sentence, sizeof sentence,
                   "with %.0f %% more perplexity cache-prior misses less than Belady's rule at all cache "
                   "sizes%s (here those of %u experts and more)",
                   experiment_percent(limit), limit < 0.02 ? " (Phi-3.5-MoE excepted)" : "", sample->top_k);
    struct experiment_claim *claim = experiment_claim_add(claims, "Fig. 10", sentence);
    for (uint32_t i = 0; i < sample->routes.n; i++) {
        const struct decisions_point *plain = &sample->routes.points[i];
        if (plain->method != DECISIONS_TOP_K || plain->n_slots >= sample->n_expert)
            continue;
        const struct decisions_point *best =
            decisions_fewest_misses(&sample->routes, DECISIONS_PRIOR, plain->n_slots, limit, false);
        const bool is_below = best != NULL && best->n_missed < plain->n_belady_missed;
        n++;
        n_below += is_below;
        if (!is_below)
            experiment_claim_explain(claim, "%s%u slots: %.1f %%, Belady's rule %.1f %%",
                                     claim->why[0] != '\0' ? "; " : "", plain->n_slots,
                                     experiment_percent(decisions_miss_rate(best != NULL ? best : plain)),
                                     experiment_percent(decisions_belady_rate(plain)));
    }
    if (n == 0)
        return;
    experiment_claim_say(claim, "at %u of %u sizes", n_below, n);
    experiment_claim_decide(claim, n_below == n);
}

/* The prior of the paper's Table 2. */
static const struct decisions_point *half_prior(const struct decisions_sample *sample)
{
    for (uint32_t i = 0; i < sample->routes.n; i++) {
        const struct decisions_point *point = &sample->routes.points[i];
        if (point->method == DECISIONS_PRIOR && point->strength == 0.5 &&
            point->keep_top == decisions_usual_keep(sample) && point->n_slots == HALF(sample))
            return point;
    }
    return NULL;
}

static void find_stays(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    struct experiment_claim *claim = experiment_claim_add(
        claims, "Table 2",
        "with L = 0.5 experts stay 5 to 9 times longer (in the table itself 2.0 to 4.0 times)");
    const struct decisions_point *plain = decisions_plain(&sample->routes, HALF(sample)),
                                 *prior = half_prior(sample);
    if (plain == NULL || prior == NULL)
        return;
    const double ratio = prior->stay_tokens / plain->stay_tokens;
    experiment_claim_say(claim, "%.1f times: %.1f tokens instead of %.1f, at a loss of %.2f %% (J = %u)",
                         ratio, prior->stay_tokens, plain->stay_tokens, experiment_percent(prior->loss),
                         prior->keep_top);
    experiment_claim_decide(claim, ratio >= 5);
}

/* The loss that keeping the token's best experts spares, on the average of a method's settings. */
static double spared(const struct decisions_sample *sample, enum decisions_method method, uint32_t keep)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < sample->routes.n; i++) {
        const struct decisions_point *kept = &sample->routes.points[i];
        if (kept->method != method || kept->n_slots != HALF(sample) || kept->keep_top != keep)
            continue;
        for (uint32_t j = 0; j < sample->routes.n; j++) {
            const struct decisions_point *free_one = &sample->routes.points[j];
            if (free_one->method != method || free_one->n_slots != HALF(sample) || free_one->keep_top != 0 ||
                free_one->strength != kept->strength)
                continue;
            sum += free_one->loss - kept->loss;
            n++;
        }
    }
    return n > 0 ? sum / n : NAN;
}

static void find_keep(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    struct experiment_claim *claim = experiment_claim_add(
        claims, "section 4.8",
        "without the top J experts max-rank and cumsum drop significantly; cache-prior is more robust");
    uint32_t keep = 0;
    for (uint32_t i = 0; i < sample->routes.n; i++)
        if (sample->routes.points[i].keep_top > keep)
            keep = sample->routes.points[i].keep_top;
    const double prior = spared(sample, DECISIONS_PRIOR, keep),
                 rank = spared(sample, DECISIONS_MAX_RANK, keep),
                 cumsum = spared(sample, DECISIONS_CUMSUM, keep);
    if (keep == 0 || !isfinite(prior) || !isfinite(rank) || !isfinite(cumsum))
        return;
    experiment_claim_say(
        claim,
        "J = 0 instead of %u costs max-rank %.2f, cumsum %.2f and cache-prior %.2f points of loss "
        "on the average of their settings",
        keep, experiment_percent(rank), experiment_percent(cumsum), experiment_percent(prior));
    claim->verdict = EXPERIMENT_SHOWN;
}

static void find_start(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    struct experiment_claim *claim = experiment_claim_add(
        claims, "Fig. 18",
        "with L = 0.5 and J = 1 what the cache holds at first has minimal long-term impact");
    const struct decisions_point *empty = decisions_find(&sample->starts, "prior-0.5-empty"),
                                 *filled = decisions_find(&sample->starts, "prior-0.5-frequency");
    if (empty == NULL || filled == NULL)
        return;
    experiment_claim_say(
        claim,
        "empty: loss %.2f (%.2f to %.2f) %%, %.1f %% misses; filled by frequency: %.2f (%.2f to "
        "%.2f) %%, %.1f %%",
        experiment_percent(empty->loss), experiment_percent(empty->low), experiment_percent(empty->high),
        experiment_percent(decisions_miss_rate(empty)), experiment_percent(filled->loss),
        experiment_percent(filled->low), experiment_percent(filled->high),
        experiment_percent(decisions_miss_rate(filled)));
    claim->verdict = EXPERIMENT_SHOWN;
}

/* The same share of two ranges, one file each: "prior-0.2-running". */
static const struct decisions_point *with_range(const struct decisions_group *group,
                                                const struct decisions_point *running, const char *range)
{
    char name[64];
    const size_t n = strlen(running->name) - strlen("running");
    (void)snprintf(name, sizeof name, "%.*s%s", (int)n, running->name, range);
    return decisions_find(group, name);
}

static void find_ranges(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    struct experiment_claim *claim = experiment_claim_add(
        claims, "Fig. 15", "the running average of the range performs comparably to that of calibration");
    char text[sizeof claim->ours] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < sample->ranges.n; i++) {
        const struct decisions_point *running = &sample->ranges.points[i], *calibrated;
        if (strstr(running->name, "-running") == NULL ||
            (calibrated = with_range(&sample->ranges, running, "calibrated")) == NULL)
            continue;
        const double misses = decisions_miss_rate(running), theirs = decisions_miss_rate(calibrated);
        if (used < sizeof text)
            used += (size_t)snprintf(
                text + used, sizeof text - used, "%sL = %g: loss %.2f and %.2f %%, misses %.1f and %.1f %%",
                used > 0 ? "; " : "", running->strength, experiment_percent(running->loss),
                experiment_percent(calibrated->loss), experiment_percent(misses), experiment_percent(theirs));
    }
    if (used == 0)
        return;
    experiment_claim_say(claim, "%s", text);
    claim->verdict = EXPERIMENT_SHOWN;
}

/* ---- HOBBIT ---- */

static double low_share(const struct decisions_point *point)
{
    return point->n_low / point->n_chosen;
}

static double skipped_share(const struct decisions_point *point)
{
    return point->n_skipped / point->n_chosen;
}

static bool replaces(const struct decisions_point *point)
{
    return point->precision == DECISIONS_ALWAYS && point->second_score == 1;
}

static bool skips(const struct decisions_point *point)
{
    return point->precision == DECISIONS_ALWAYS && point->second_score == point->first_score;
}

/* Experts by score alone, whatever the cache holds. */
static void find_replaced(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    struct experiment_claim *claim = decisions_pair_claim(
        claims, "HOBBIT, Fig. 3b", pair,
        "with fewer than 20 % of the experts in low precision perplexity rises by at most 1 %", "");
    const struct decisions_point *most = NULL;
    bool holds = true;
    for (uint32_t i = 0; i < pair->group.n; i++) {
        const struct decisions_point *point = &pair->group.points[i];
        if (!replaces(point) || low_share(point) >= 0.2 || low_share(point) == 0)
            continue;
        holds = holds && point->loss <= 0.01;
        if (most == NULL || low_share(point) > low_share(most))
            most = point;
    }
    if (most == NULL)
        return;
    experiment_claim_say(claim, "%.1f %% of the experts low: loss %.2f (%.2f to %.2f) %%",
                         experiment_percent(low_share(most)), experiment_percent(most->loss),
                         experiment_percent(most->low), experiment_percent(most->high));
    experiment_claim_decide(claim, holds);
}

static void find_skipped(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    struct experiment_claim *claim =
        decisions_pair_claim(claims, "HOBBIT, section 2.2", pair,
                             "skipping 10 % of the experts raises perplexity by more than 1 %", "");
    const struct decisions_point *below = NULL, *above = NULL;
    for (uint32_t i = 0; i < pair->group.n; i++) {
        const struct decisions_point *point = &pair->group.points[i];
        if (!skips(point))
            continue;
        if (skipped_share(point) <= 0.1 && (below == NULL || skipped_share(point) > skipped_share(below)))
            below = point;
        if (skipped_share(point) > 0.1 && (above == NULL || skipped_share(point) < skipped_share(above)))
            above = point;
    }
    if (above == NULL)
        return;
    const double left = below != NULL ? skipped_share(below) : 0, start = below != NULL ? below->loss : 0;
    const double loss = start + (0.1 - left) / (skipped_share(above) - left) * (above->loss - start);
    experiment_claim_say(claim, "%.2f %%, between %.2f %% at %.1f and %.2f %% at %.1f %% skipped",
                         experiment_percent(loss), experiment_percent(start), experiment_percent(left),
                         experiment_percent(above->loss), experiment_percent(skipped_share(above)));
    experiment_claim_decide(claim, loss > 0.01);
}

/* One threshold, experts beyond it low or skipped. */
struct gap {
    double share, points;
};
#define MAX_GAP 32

/* By rising share of the experts; returns how many. */
static uint32_t list_gaps(const struct decisions_pair *pair, struct gap gaps[static MAX_GAP])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pair->group.n; i++)
        for (uint32_t j = 0; j < pair->group.n && n < MAX_GAP; j++) {
            const struct decisions_point *low = &pair->group.points[i], *skip = &pair->group.points[j];
            if (!replaces(low) || !skips(skip) || low->first_score != skip->first_score)
                continue;
            uint32_t at = n++;
            for (; at > 0 && gaps[at - 1].share > low_share(low); at--)
                gaps[at] = gaps[at - 1];
            gaps[at] = (struct gap){.share = low_share(low), .points = skip->loss - low->loss};
        }
    return n;
}

static void find_gap(const struct decisions_pair *pair, struct experiment_claims *claims)
{
    struct gap gaps[MAX_GAP];
    struct experiment_claim *claim = decisions_pair_claim(
        claims, "HOBBIT, Fig. 3b", pair,
        "low precision keeps accuracy better than skipping, and the gap grows with the share", "");
    const uint32_t n = list_gaps(pair, gaps);
    bool holds = true;
    if (n < 2)
        return;
    for (uint32_t i = 0; i < n; i++) {
        if (gaps[i].points > 0 && (i == 0 || gaps[i].points > gaps[i - 1].points))
            continue;
        holds = false;
        experiment_claim_explain(claim, "%s%.2f points at %.1f %%", claim->why[0] != '\0' ? "; " : "",
                                 experiment_percent(gaps[i].points), experiment_percent(gaps[i].share));
    }
    experiment_claim_say(claim, "skipping loses %.2f points more at %.1f %% of the experts, %.2f at %.1f %%",
                         experiment_percent(gaps[0].points), experiment_percent(gaps[0].share),
                         experiment_percent(gaps[n - 1].points), experiment_percent(gaps[n - 1].share));
    experiment_claim_decide(claim, holds);
}

/* Scores do not depend on bits: any pair tells. */
static void find_shares(const struct decisions_sample *sample, const struct decisions_pair *pair,
                        struct experiment_claims *claims)
{
    struct experiment_claim *split =
        experiment_claim_add(claims, "HOBBIT, Fig. 5b",
                             "T1 = 0.6 and T2 = 0.9 divide experts into 67 % high, 30 % low and 3 % skipped");
    const struct decisions_point *always = decisions_find(&pair->group, "always-0.6-0.9");
    if (always == NULL)
        return;
    experiment_claim_say(split, "%.0f %% high, %.0f %% low, %.0f %% skipped, %u experts a token",
                         experiment_percent(1 - low_share(always) - skipped_share(always)),
                         experiment_percent(low_share(always)), experiment_percent(skipped_share(always)),
                         sample->top_k);
    split->verdict = EXPERIMENT_SHOWN;
}

static void find_scores(const struct decisions_sample *sample, const struct decisions_pair *pair,
                        struct experiment_claims *claims)
{
    char name[64];
    struct experiment_claim *loss = decisions_pair_claim(
        claims, "HOBBIT, Table 3", pair,
        "accuracy on GSM8K and TruthfulQA falls by no more than 1 %; here perplexity", "");
    (void)snprintf(name, sizeof name, "hobbit-0.6-0.9-%u", HALF(sample));
    const struct decisions_point *hobbit = decisions_find(&pair->group, name);
    if (hobbit == NULL)
        return;
    experiment_claim_say(loss, "T1 = 0.6, T2 = 0.9, half of the experts cached: %.2f (%.2f to %.2f) %%",
                         experiment_percent(hobbit->loss), experiment_percent(hobbit->low),
                         experiment_percent(hobbit->high));
    loss->verdict = EXPERIMENT_SHOWN;
}

static void find_widths(const struct decisions_sample *sample, const struct decisions_pair *pair,
                        struct experiment_claims *claims)
{
    char name[64];
    struct experiment_claim *loss = decisions_pair_claim(
        claims, "Fate, Table 3", pair,
        "low copies at mispredictions, over 3 % of accuracy on the slower machine; here perplexity", "");
    (void)snprintf(name, sizeof name, "fate-%u-%u", sample->n_expert / 4, HALF(sample));
    const struct decisions_point *fate = decisions_find(&pair->group, name);
    if (fate == NULL)
        return;
    experiment_claim_say(
        loss, "a quarter foreseen, half of the experts cached: %.2f (%.2f to %.2f) %%, %.1f %% low",
        experiment_percent(fate->loss), experiment_percent(fate->low), experiment_percent(fate->high),
        experiment_percent(low_share(fate)));
    loss->verdict = EXPERIMENT_SHOWN;
}

const char *const decisions_papers[DECISIONS_N_PAPER] = {"cache-conditional experts", "HOBBIT", "Fate"};

enum decisions_paper decisions_paper_of(const struct experiment_claim *claim)
{
    return strncmp(claim->figure, "HOBBIT", 6) == 0 ? DECISIONS_HOBBIT_PAPER
           : strncmp(claim->figure, "Fate", 4) == 0 ? DECISIONS_FATE_PAPER
                                                    : DECISIONS_CACHE_PAPER;
}

/* Those of one paper together, as they were added. */
static void order_by_paper(struct experiment_claims *claims)
{
    for (uint32_t i = 1; i < claims->n; i++) {
        const struct experiment_claim claim = claims->items[i];
        uint32_t at = i;
        for (; at > 0 && decisions_paper_of(&claims->items[at - 1]) > decisions_paper_of(&claim); at--)
            claims->items[at] = claims->items[at - 1];
        claims->items[at] = claim;
    }
}

void decisions_findings(const struct decisions_sample *sample, struct experiment_claims *claims)
{
    claims->n = 0;
    find_half(sample, claims);
    find_orders(sample, claims);
    find_belady(sample, claims);
    find_sizes(sample, claims, 0.01);
    find_sizes(sample, claims, 0.05);
    find_stays(sample, claims);
    find_keep(sample, claims);
    find_start(sample, claims);
    find_ranges(sample, claims);
    decisions_cache_findings(sample, claims);
    if (sample->n_pair > 0)
        find_shares(sample, &sample->pairs[0], claims);
    for (uint32_t p = 0; p < sample->n_pair; p++) {
        const struct decisions_pair *pair = &sample->pairs[p];
        find_replaced(pair, claims);
        find_skipped(pair, claims);
        find_gap(pair, claims);
        find_scores(sample, pair, claims);
        find_widths(sample, pair, claims);
    }
    decisions_hobbit_findings(sample, claims);
    decisions_system_findings(&sample->systems, claims);
    decisions_block_findings(sample, claims);
    decisions_fate_findings(sample, claims);
    decisions_task_findings(&sample->tasks, claims);
    order_by_paper(claims);
}
