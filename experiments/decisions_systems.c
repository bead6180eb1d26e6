#include "experiments/decisions_systems.h"

#include "experiments/decisions_time_claims.h"
#include "experiments/decisions_time_page.h"

#include <math.h>
#include <stdio.h>

enum system { SYSTEM_ALL, SYSTEM_OFFLOADING, SYSTEM_INFINITY, SYSTEM_HOBBIT, N_SYSTEM };

static const struct {
    const char *name, *file, *mode;
} known[N_SYSTEM] = {
    {"every expert for every token", "others", "sti"},
    {"MoE-Offloading", "others", "moe-offloading"},
    {"MoE-Infinity", "others", "moe-infinity"},
    {"HOBBIT", "hobbit", "cache"},
};

/* What was timed: precisions as on the paper's two machines, prompts of two lengths, two storages. */
#define N_CASE 8
struct timed_case {
    uint32_t bits, low_bits, prompt_tokens;
    double rate;
};

static struct timed_case case_at(uint32_t i)
{
    return (struct timed_case){.bits = i < 4 ? 16 : 8,
                               .low_bits = i < 4 ? 4 : 2,
                               .prompt_tokens = i % 4 < 2 ? 16 : 128,
                               .rate = decisions_rates[i % 2]};
}

static const struct decisions_timing *find(const struct decisions_timings *systems, enum system system,
                                           struct timed_case timed)
{
    char file[48];
    (void)snprintf(file, sizeof file, "%s-%u-%u-%u", known[system].file, timed.bits, timed.low_bits,
                   timed.prompt_tokens);
    return decisions_timing_find(systems, file, known[system].mode, 50, timed.rate);
}

/* HOBBIT against one system, over all cases that were timed of both. */
struct contest {
    uint32_t n, n_token, n_prompt; /* cases, and those in which HOBBIT is faster */
    double speedup, reduction;     /* means */
};

static struct contest contest_with(const struct decisions_timings *systems, enum system system)
{
    struct contest contest = {.n = 0};
    for (uint32_t i = 0; i < N_CASE; i++) {
        const struct decisions_timing *theirs = find(systems, system, case_at(i)),
                                      *hobbit = find(systems, SYSTEM_HOBBIT, case_at(i));
        if (theirs == NULL || hobbit == NULL)
            continue;
        contest.n++;
        contest.n_token += hobbit->tpot_ms < theirs->tpot_ms;
        contest.n_prompt += hobbit->ttft_ms < theirs->ttft_ms;
        contest.speedup += theirs->tpot_ms / hobbit->tpot_ms;
        contest.reduction += 1 - hobbit->ttft_ms / theirs->ttft_ms;
    }
    contest.speedup /= contest.n > 0 ? contest.n : 1;
    contest.reduction /= contest.n > 0 ? contest.n : 1;
    return contest;
}

static void find_one(const struct decisions_timings *systems, enum system system, double speedup,
                     double reduction, const char *sentence, struct experiment_claims *claims)
{
    const struct contest contest = contest_with(systems, system);
    if (contest.n == 0)
        return;
    struct experiment_claim *claim = experiment_claim_add(claims, "HOBBIT, Fig. 14", sentence);
    experiment_claim_say(claim,
                         "%.2f times the decoding speed, prompts %+.0f %% of the time, mean of %u cases",
                         contest.speedup, -100 * contest.reduction, contest.n);
    experiment_claim_decide(claim, contest.speedup >= speedup && contest.reduction >= reduction);
}

void decisions_system_findings(const struct decisions_timings *systems, struct experiment_claims *claims)
{
    const struct contest all = contest_with(systems, SYSTEM_ALL),
                         offloading = contest_with(systems, SYSTEM_OFFLOADING),
                         infinity = contest_with(systems, SYSTEM_INFINITY);
    if (all.n == 0 || offloading.n == 0 || infinity.n == 0)
        return;
    struct experiment_claim *claim = experiment_claim_add(
        claims, "HOBBIT, Fig. 14",
        "HOBBIT delivers the best performance in both decoding speed and prefill latency");
    experiment_claim_say(claim,
                         "tokens: faster than every expert for every token in %u, than MoE-Offloading in %u, "
                         "than MoE-Infinity in %u of %u cases; prompts: in %u, %u and %u",
                         all.n_token, offloading.n_token, infinity.n_token, all.n, all.n_prompt,
                         offloading.n_prompt, infinity.n_prompt);
    experiment_claim_decide(claim, all.n_token + offloading.n_token + infinity.n_token == 3 * all.n &&
                                       all.n_prompt + offloading.n_prompt + infinity.n_prompt == 3 * all.n);
    find_one(
        systems, SYSTEM_OFFLOADING, 3.21, 0.51,
        "against MoE-Offloading an average speedup of 3.21 to 3.29 times in decoding, prefill latency 51 to "
        "54 % lower",
        claims);
    find_one(
        systems, SYSTEM_INFINITY, 2.30, 0.14,
        "against MoE-Infinity an average speedup of 2.30 to 9.93 times in decoding, prefill latency 14 to "
        "72 % lower",
        claims);
}

enum moec_status decisions_page_systems(const struct experiment_page *page,
                                        const struct decisions_timings *systems, struct moec_error *err)
{
    static const char *const headings[] = {"precisions",      "storage, MB/s", "prompt, tokens",
                                           "system",          "prompt, ms",    "ms a token",
                                           "tokens a second", "hits, %",       "KiB a token"};
    struct experiment_table table;
    char name[64];
    if (systems->n == 0)
        return MOEC_OK;
    experiment_page_heading(page, "HOBBIT, Fig. 14: beside the systems that it compares with");
    experiment_page_paragraph(
        page,
        "Half of the experts fit into memory. The others keep and preload as those systems do, with this "
        "project's reads and arithmetic; HOBBIT alone has low copies, in a fifth of the memory, by the paper's "
        "thresholds 0.6 and 0.9, a prompt by blocks. The table below says what this loses.");
    MOEC_TRY(experiment_page_begin(page, &table, name, "systems", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t i = 0; i < N_CASE * N_SYSTEM; i++) {
        const struct timed_case timed = case_at(i / N_SYSTEM);
        const enum system system = (enum system)(i % N_SYSTEM);
        const struct decisions_timing *row = find(systems, system, timed);
        if (row == NULL)
            continue;
        if (timed.bits == 16)
            experiment_table_cell(&table, "16 bits and INT%u", timed.low_bits);
        else
            experiment_table_cell(&table, "INT%u and INT%u", timed.bits, timed.low_bits);
        experiment_table_number(&table, timed.rate, 1, 0);
        experiment_table_cell(&table, "%u", timed.prompt_tokens);
        experiment_table_cell(&table, "%s", known[system].name);
        experiment_table_number(&table, row->ttft_ms, 1, 2);
        decisions_put_token(&table, row);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}
